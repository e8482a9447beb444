//! `labelmill aggregate`: runs a job without a pipeline file.

use super::run::run_job;
use crate::cli::environment::bounded;
use crate::cli::shared_args::{GateArgs, JobArgs};
use crate::commands::aggregate::Aggregation;
use crate::error::Result;
use crate::process::signals::Signals;

/// A job without a pipeline file.
#[derive(Debug, clap::Args)]
pub struct AggregateArgs {
    /// The annotations: a file, a folder or a glob on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub annotations: String,
    /// Features of the instances
    #[arg(long, value_name = "URL")]
    pub features: Option<String>,
    /// Trusted classes
    #[arg(long, value_name = "URL")]
    pub gold: Option<String>,
    /// Pairs of an instance and an annotator whose competence is asked for (`lia`, `lia_multi`)
    #[arg(long, value_name = "URL")]
    pub pairs: Option<String>,
    /// One of the kinds that `labelmill models` lists
    #[arg(long, value_name = "KIND")]
    pub model: String,
    /// Set any key of a pipeline file, such as source.columns.instance=item
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// A folder for the tables, on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub output: String,
    /// How the job runs.
    #[command(flatten)]
    pub job: JobArgs,
    /// What becomes of a run that a gate refuses.
    #[command(flatten)]
    pub gate: GateArgs,
}

pub(super) async fn command(args: AggregateArgs, quiet: bool, signals: &Signals) -> Result<()> {
    let AggregateArgs { annotations, features, gold, pairs, model, set, output, job, gate } = args;
    let what = Aggregation { annotations, features, gold, pairs, model, output, set };
    run_job(bounded(what.pipeline()?), (job, gate), quiet, signals).await
}
