//! The pipeline and the environment of a job.

use super::shared_args::{FileArgs, read_text};
use crate::engine::EngineSpec;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::pipeline::{PipelineSpec, load};
use crate::process::allocator::bound_job;
use crate::spec::Overrides;

/// The environment of a job with these resources.
pub(super) fn job_with(engine: &EngineSpec, seed: u64) -> Result<JobContext> {
    Ok(JobContext::new(seed).with_threads(engine.threads())?.with_memory(engine.memory_bytes()))
}

pub(super) fn load_pipeline(args: &FileArgs) -> Result<PipelineSpec> {
    load_without(args, &[])
}

/// Loads a pipeline for a command that does not use these sections.
pub(super) fn load_without(
    args: &FileArgs,
    unused_sections: &'static [&'static str],
) -> Result<PipelineSpec> {
    let location = args.file.display().to_string();
    let text = read_text(&args.file)?;
    let overrides = Overrides { set: args.set.clone(), var: args.var.clone(), unused_sections };
    load(&text, &location, &overrides).map(bounded)
}

/// The pipeline, with whose memory limit the process is bounded from now on.
pub(super) fn bounded(spec: PipelineSpec) -> PipelineSpec {
    bound_job(spec.engine.allocation_bound());
    spec
}
