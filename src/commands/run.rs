//! `labelmill run`: the job of a pipeline, which may have nothing to do today.

use crate::error::{Error, Result, Stage};
use crate::job_context::JobContext;
use crate::pipeline::{self, PipelineSpec, Rerun};
use crate::sink::Published;
use crate::source::OnMissing;
use crate::tables::Outcome;

/// The end of a job that runs a pipeline.
pub enum JobEnd {
    /// The run is committed.
    Published(Box<Published<Outcome>>),
    /// An input is missing or empty, as this error says, and `source.on_missing` is `skip`.
    Skipped(Error),
}

/// Runs the job.
///
/// # Errors
/// Those of [`pipeline::run`], but a missing input is none where the pipeline skips it.
pub async fn run(spec: &PipelineSpec, rerun: Rerun, job: &mut JobContext) -> Result<JobEnd> {
    let skips = spec.source.on_missing == OnMissing::Skip;
    match pipeline::run(spec, rerun, job).await {
        Err(e) if e.stage == Stage::NoInput && skips => Ok(JobEnd::Skipped(e)),
        done => done.map(|published| JobEnd::Published(Box::new(published))),
    }
}
