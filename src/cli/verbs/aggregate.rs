//! `labelmill aggregate`: runs a job without a pipeline file.

use super::run::run_job;
use crate::cli::args::AggregateArgs;
use crate::cli::environment::bounded;
use crate::commands::aggregate::Aggregation;
use crate::error::Result;
use crate::process::signals::Signals;

pub(super) async fn command(args: AggregateArgs, quiet: bool, signals: &Signals) -> Result<()> {
    let AggregateArgs { annotations, features, gold, pairs, model, set, output, job, gate } = args;
    let what = Aggregation { annotations, features, gold, pairs, model, output, set };
    run_job(bounded(what.pipeline()?), (job, gate), quiet, signals).await
}
