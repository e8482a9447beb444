//! `labelmill run`: runs the job of a pipeline file.

use crate::cli::environment::{job_with, load_pipeline};
use crate::cli::publish::PublishingJob;
use crate::cli::shared_args::{FileArgs, GateArgs, JobArgs};
use crate::commands::run::run;
use crate::error::Result;
use crate::pipeline::{PipelineSpec, Rerun};
use crate::process::signals::Signals;

#[derive(Debug, clap::Args)]
#[allow(missing_docs)]
pub struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub gate: GateArgs,
}

pub(super) async fn command(args: RunArgs, quiet: bool, signals: &Signals) -> Result<()> {
    run_job(load_pipeline(&args.file)?, (args.job, args.gate), quiet, signals).await
}

/// Runs the job of a pipeline, wherever it comes from.
pub(super) async fn run_job(
    spec: PipelineSpec,
    (args, gate): (JobArgs, GateArgs),
    quiet: bool,
    signals: &Signals,
) -> Result<()> {
    let rerun = Rerun { force: args.force, keep_rejected: gate.keep_rejected };
    let job = job_with(&spec.engine, spec.seed)?;
    PublishingJob { job, signals, json: args.json, quiet }
        .execute(move |mut job| async move { run(&spec, rerun, &mut job).await })
        .await
}
