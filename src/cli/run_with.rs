//! The environment of a job.

use crate::engine::EngineSpec;
use crate::error::Result;
use crate::job_context::JobContext;

/// The environment of a job with these resources.
pub(super) fn run_with(engine: &EngineSpec, seed: u64) -> Result<JobContext> {
    Ok(JobContext::new(seed).with_threads(engine.threads())?.with_memory(engine.memory_bytes()))
}
