//! Runs the command, and prints what it returns: one function per command.

use std::process::ExitCode;
use std::sync::Arc;

use super::args::{
    AggregateArgs, Args, Command, EvaluateArgs, FileArgs, GateArgs, JobArgs, ModelsArgs,
    PredictArgs, SimulateArgs, SqlArgs, read_text, store,
};
use super::plain_table::plain_table;
use super::progress::Bars;
use super::publish::PublishingJob;
use super::run_with::run_with;
use super::summary::JobSummary;
use super::{
    agreement, print_error, print_json, print_message, print_result, print_warning, simulate, sql,
};
use crate::commands::aggregate::Aggregation;
use crate::commands::check::check;
use crate::commands::evaluate::{self, Evaluation, evaluate};
use crate::commands::explain::explain;
use crate::commands::models::{ModelParameter, as_json, models, parameters};
use crate::commands::predict::{Prediction, predict};
use crate::commands::test::{Verdict, exit_code, run_tests};
use crate::engine::EngineSpec;
use crate::error::{Error, Problem, Result, Stage};
use crate::job_context::JobContext;
use crate::model::ModelKind;
use crate::pipeline::{self, PipelineSpec, Rerun, load};
use crate::process::allocator::bound_job;
use crate::process::log_format::logs_are_json;
use crate::process::signals::{Signals, or_signalled};
use crate::redact::redacted;
use crate::source::{ColumnsSpec, OnMissing};
use crate::spec::Overrides;

pub(super) async fn dispatch(args: Args, signals: Signals) -> Result<ExitCode> {
    let quiet = args.quiet;
    let engine = engine_of(&args.command);
    bound_job(engine.allocation_bound());
    match args.command {
        Command::Run(args) => {
            run_job(load_pipeline(&args.file)?, (args.job, args.gate), quiet, &signals).await?;
        }
        Command::Aggregate(args) => {
            let AggregateArgs { annotations, features, gold, model, set, output, job, gate } = args;
            let what = Aggregation { annotations, features, gold, model, output, set };
            run_job(bounded(what.pipeline()?), (job, gate), quiet, &signals).await?;
        }
        Command::Predict(args) => run_prediction(args, engine, quiet, &signals).await?,
        Command::Simulate(args) => simulate::command(args, engine, quiet, &signals).await?,
        other => return or_signalled(&signals, run_unpublished(other, engine, quiet)).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// The resources that the arguments give. A command with a pipeline takes those of the pipeline once it is known.
fn engine_of(command: &Command) -> EngineSpec {
    match command {
        Command::Sql(SqlArgs { memory_limit, .. })
        | Command::Evaluate(EvaluateArgs { memory_limit, .. }) => {
            EngineSpec::of_queries(memory_limit.clone())
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
        Command::Check(args) => run_check(&args, &mut job).await?,
        Command::Explain(args) => {
            let text = explain(&load_pipeline(&args)?, &mut job).await?;
            print_result(redacted(&text).trim_end())?;
        }
        Command::Models(args) => print_models(&args)?,
        Command::Schema => print_json(pipeline::schema())?,
        Command::Sql(args) => sql::command(&args, engine, &mut job).await?,
        Command::Evaluate(args) => print_scores(&args, engine, &mut job).await?,
        Command::Agreement(args) => agreement::command(args, job).await?,
        Command::Test(args) => return run_test_blocks(&args).await,
        Command::Run(_) | Command::Aggregate(_) | Command::Predict(_) | Command::Simulate(_) => {
            return Err(Error::bug("a job is run where nothing may be published"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn load_pipeline(args: &FileArgs) -> Result<PipelineSpec> {
    load_without(args, &[])
}

/// Loads a pipeline for a command that does not use these sections.
fn load_without(args: &FileArgs, unused_sections: &'static [&'static str]) -> Result<PipelineSpec> {
    let location = args.file.display().to_string();
    let text = read_text(&args.file)?;
    let overrides = Overrides { set: args.set.clone(), var: args.var.clone(), unused_sections };
    load(&text, &location, &overrides).map(bounded)
}

/// The pipeline, with whose memory limit the process is bounded from now on.
fn bounded(spec: PipelineSpec) -> PipelineSpec {
    bound_job(spec.engine.allocation_bound());
    spec
}

async fn run_job(
    spec: PipelineSpec,
    (args, gate): (JobArgs, GateArgs),
    quiet: bool,
    signals: &Signals,
) -> Result<()> {
    let rerun = Rerun { force: args.force, keep_rejected: gate.keep_rejected };
    let job = run_with(&spec.engine, spec.seed)?;
    let skips = spec.source.on_missing == OnMissing::Skip;
    PublishingJob { job, signals, json: args.json, quiet }
        .execute(move |mut job| async move {
            match pipeline::run(&spec, rerun, &mut job).await {
                Err(e) if e.stage == Stage::NoInput && skips => Ok(JobSummary::Skipped(e)),
                done => done.map(|published| JobSummary::Published(Box::new(published))),
            }
        })
        .await
}

async fn run_check(args: &FileArgs, job: &mut JobContext) -> Result<()> {
    check(&load_pipeline(args)?, job).await?;
    print_message(&format!("{}: the spec and the schemas fit", args.file.display()));
    Ok(())
}

fn print_models(args: &ModelsArgs) -> Result<()> {
    let kinds = models(args.kind.as_deref())?;
    if args.json {
        return print_json(&as_json(&kinds));
    }
    let mut table = plain_table();
    if args.kind.is_some() {
        for kind in kinds {
            parameters(kind).into_iter().for_each(|ModelParameter { path, default, meaning }| {
                table.add_row([path, default, meaning]);
            });
            let ModelKind { kind, summary, source, capabilities, .. } = kind;
            let facts = [vec![format!("{kind}: {summary}")], capabilities.limits()].concat();
            let facts = facts.join("; ");
            print_result(&format!("{facts}\n{source}\n\n{}", table.trim_fmt()))?;
        }
        return Ok(());
    }
    for kind in kinds {
        table.add_row([kind.kind, kind.summary, kind.source]);
    }
    print_result(&table.trim_fmt())
}

async fn print_scores(args: &EvaluateArgs, engine: EngineSpec, job: &mut JobContext) -> Result<()> {
    let columns = ColumnsSpec {
        instance: args.instance_column.clone(),
        class: args.class_column.clone(),
        ..ColumnsSpec::default()
    };
    let what = Evaluation {
        run: &args.run,
        truth: &args.truth,
        columns,
        confusion: args.confusion.as_deref(),
        engine,
    };
    let scores = evaluate(&what, &store(args.endpoint.as_deref()), job).await?;
    if args.json {
        return print_json(&evaluate::as_json(&scores, job.warnings()));
    }
    let mut table = plain_table();
    for score in scores {
        let value = score.value.map_or("not defined".to_owned(), |v| format!("{v:.6}"));
        table.add_row([score.question.unwrap_or_default(), score.name, value]);
    }
    print_result(&table.trim_fmt())
}

async fn run_prediction(
    args: PredictArgs,
    engine: EngineSpec,
    quiet: bool,
    signals: &Signals,
) -> Result<()> {
    let job = run_with(&engine, 0)?;
    PublishingJob { job, signals, json: args.job.json, quiet }
        .execute(move |mut job| async move {
            let columns = ColumnsSpec {
                instance: args.instance_column,
                features: args.features_column,
                ..ColumnsSpec::default()
            };
            let what = Prediction {
                model: &args.model,
                features: &args.features,
                output: &args.output,
                columns,
                engine,
                device: args.device.as_deref(),
                force: args.job.force,
            };
            predict(&what, &store(args.endpoint.as_deref()), &mut job).await
        })
        .await
}

async fn run_test_blocks(args: &FileArgs) -> Result<ExitCode> {
    let spec = load_without(args, &["source", "sink"])?;
    let verdicts = run_tests(&spec).await;
    verdicts.iter().for_each(print_verdict);
    let passed = verdicts.iter().filter(|verdict| verdict.passed()).count();
    print_message(&format!("{passed} passed, {} failed", verdicts.len() - passed));
    Ok(ExitCode::from(exit_code(&verdicts)))
}

fn print_verdict(verdict: &Verdict) {
    let Verdict { name, result, warnings } = verdict;
    if verdict.passed() {
        return print_message(&format!("ok      {name}"));
    }
    if logs_are_json() {
        match result {
            Ok(rows) => {
                let failed = Problem::new(format!("the test `{name}` failed"));
                print_error(&Error::new(Stage::Gate, failed.found(rows.join("; "))));
            }
            Err(e) => print_error(e),
        }
        return warnings.iter().for_each(|warning| print_warning(warning));
    }
    print_message(&format!("FAILED  {name}"));
    let print_line = |line: &str| print_message(&format!("        {line}"));
    match result {
        Ok(rows) => rows.iter().for_each(|row| print_line(row)),
        Err(e) => e.to_string().lines().for_each(print_line),
    }
    warnings.iter().for_each(|warning| print_line(&format!("warning: {warning}")));
}
