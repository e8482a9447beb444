//! The environment of a job.

use crate::engine::EngineSpec;
use crate::error::Result;
use crate::run::Run;

/// The environment of a job with these resources.
pub(super) fn run_with(engine: &EngineSpec, seed: u64) -> Result<Run> {
    Ok(Run::new(seed).with_threads(engine.threads())?.with_memory(engine.memory_bytes()))
}
