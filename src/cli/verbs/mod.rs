//! Runs the command, and prints what it returns: one file per command.

pub(super) mod aggregate;
pub(super) mod agreement;
mod check;
pub(super) mod evaluate;
mod explain;
pub(super) mod models;
pub(super) mod predict;
pub(super) mod run;
mod schema;
pub(super) mod simulate;
pub(super) mod sql;
mod test;

use std::process::ExitCode;
use std::sync::Arc;

use super::args::{Args, Command};
use super::progress::Bars;
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::process::allocator::bound_job;
use crate::process::signals::{Signals, or_signalled};
use evaluate::EvaluateArgs;
use predict::PredictArgs;
use simulate::SimulateArgs;
use sql::SqlArgs;

pub(super) async fn dispatch(args: Args, signals: Signals) -> Result<ExitCode> {
    let quiet = args.quiet;
    let engine = engine_of(&args.command);
    bound_job(engine.allocation_bound());
    match args.command {
        Command::Run(args) => run::command(args, quiet, &signals).await?,
        Command::Aggregate(args) => aggregate::command(args, quiet, &signals).await?,
        Command::Predict(args) => predict::command(args, engine, quiet, &signals).await?,
        Command::Simulate(args) => simulate::command(args, engine, quiet, &signals).await?,
        other => return or_signalled(&signals, run_unpublished(other, engine, quiet)).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// The resources that the arguments give. A command with a pipeline takes those of the pipeline once it is known.
fn engine_of(command: &Command) -> EngineSpec {
    match command {
        Command::Sql(SqlArgs { resources, .. })
        | Command::Evaluate(EvaluateArgs { resources, .. }) => {
            EngineSpec::of_queries(resources.memory_limit.clone())
        }
        Command::Predict(PredictArgs { memory_limit, scratch, .. }) => EngineSpec {
            memory_limit: memory_limit.clone(),
            scratch: scratch.clone(),
            ..EngineSpec::default()
        },
        Command::Simulate(SimulateArgs { memory_limit, .. }) => {
            EngineSpec { memory_limit: memory_limit.clone(), ..EngineSpec::default() }
        }
        _ => EngineSpec::default(),
    }
}

/// Runs a command that publishes nothing; `sql --write` may write files of its own.
async fn run_unpublished(command: Command, engine: EngineSpec, quiet: bool) -> Result<ExitCode> {
    let mut job = JobContext::new(0);
    job.progress = Arc::new(Bars::new(quiet));
    match command {
        Command::Check(args) => check::command(&args, &mut job).await?,
        Command::Explain(args) => explain::command(&args, &mut job).await?,
        Command::Models(args) => models::command(&args)?,
        Command::Schema => schema::command()?,
        Command::Sql(args) => sql::command(&args, engine, &mut job).await?,
        Command::Evaluate(args) => evaluate::command(&args, engine, &mut job).await?,
        Command::Agreement(args) => agreement::command(args, job).await?,
        Command::Test(args) => return test::command(&args).await,
        Command::Run(_) | Command::Aggregate(_) | Command::Predict(_) | Command::Simulate(_) => {
            return Err(Error::bug("a job is run where nothing may be published"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
