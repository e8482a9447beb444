//! One function per command.

use std::process::ExitCode;
use std::sync::Arc;

use comfy_table::{ContentArrangement, Table as TextTable, presets::NOTHING};
use serde_json::{Value, json};
use toml::Table;

use super::args::{
    AggregateArgs, Args, Command, EvaluateArgs, FileArgs, JobArgs, ModelsArgs, PredictArgs,
    read_text, store,
};
use super::progress::Bars;
use super::signals::{Signals, or_signalled, until_signalled};
use super::{allocator, answer, answer_json, say, simulate, sql, summary};
use crate::commands::evaluate::{Evaluation, evaluate};
use crate::commands::explain::explain;
use crate::commands::predict::{Prediction, predict};
use crate::commands::test::run_tests;
use crate::engine::EngineSpec;
use crate::error::{Error, Result, Stage};
use crate::model::{MODELS, ModelKind, model_kind};
use crate::pipeline::{self, PipelineSpec, from_table, load};
use crate::redact::redacted;
use crate::run::Run;
use crate::sink::ParquetSink;
use crate::source::{ColumnsSpec, InferenceScope, Source};
use crate::spec::Overrides;

pub(super) async fn dispatch(args: Args, signals: Signals) -> Result<ExitCode> {
    let quiet = args.quiet;
    match args.command {
        Command::Run(args) => job(pipeline_file(&args.file)?, args.job, quiet, &signals).await?,
        Command::Aggregate(args) => {
            let job_args = JobArgs { force: args.job.force, json: args.job.json };
            job(aggregate_spec(args)?, job_args, quiet, &signals).await?;
        }
        Command::Predict(args) => predictions(args, quiet, &signals).await?,
        Command::Simulate(args) => simulate::command(args, quiet, &signals).await?,
        reads => return or_signalled(&signals, read_only(reads)).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn read_only(command: Command) -> Result<ExitCode> {
    match command {
        Command::Check(args) => check(&args).await?,
        Command::Explain(args) => {
            let text = explain(&pipeline_file(&args)?).await?;
            answer(redacted(&text).trim_end());
        }
        Command::Models(args) => models(&args)?,
        Command::Schema => answer_json(&pipeline::schema()),
        Command::Sql(args) => sql::command(&args).await?,
        Command::Evaluate(args) => scores(&args).await?,
        Command::Test(args) => return test(&args).await,
        Command::Run(_) | Command::Aggregate(_) | Command::Predict(_) | Command::Simulate(_) => {
            return Err(Error::bug("a job is run where nothing may be written"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn pipeline_file(args: &FileArgs) -> Result<PipelineSpec> {
    let place = args.file.display().to_string();
    let text = read_text(&args.file)?;
    load(&text, &place, &Overrides { set: args.set.clone(), var: args.var.clone() })
}

fn aggregate_spec(args: AggregateArgs) -> Result<PipelineSpec> {
    let mut source = Table::new();
    let urls =
        [("annotations", Some(args.annotations)), ("features", args.features), ("gold", args.gold)];
    for (name, url) in urls {
        if let Some(url) = url {
            source.insert(name.to_owned(), url.into());
        }
    }
    let mut table = Table::new();
    table.insert("source".to_owned(), source.into());
    table.insert(
        "model".to_owned(),
        Table::from_iter([("kind".to_owned(), args.model.into())]).into(),
    );
    table.insert(
        "sink".to_owned(),
        Table::from_iter([("url".to_owned(), args.output.into())]).into(),
    );
    from_table(table, "command line", &Overrides { set: args.set, var: Vec::new() })
}

async fn job(spec: PipelineSpec, args: JobArgs, quiet: bool, signals: &Signals) -> Result<()> {
    allocator::bound(spec.engine.allocation_bound());
    let mut run = Run::new(spec.seed)
        .with_threads(spec.engine.threads())?
        .with_memory(spec.engine.memory_bytes());
    run.progress = Arc::new(Bars::new(quiet));
    let cancel = run.cancel.clone();
    let progress = Arc::clone(&run.progress);
    let done = until_signalled(signals, &cancel, async move {
        pipeline::run(&spec, args.force, &mut run).await
    })
    .await;
    progress.end();
    let published = done?;
    if args.json {
        answer_json(&summary::json(&published));
    } else if !quiet {
        say(&summary::text(&published));
    }
    Ok(())
}

async fn check(args: &FileArgs) -> Result<()> {
    let spec = pipeline_file(args)?;
    let ctx = spec.engine.session()?;
    let source = Source::list(&spec.source, &spec.store).await?;
    source.open(&ctx, InferenceScope::First).await?;
    source.annotations(&ctx).await?;
    source.gold(&ctx).await?;
    source.features(&ctx).await?;
    source.annotator_features(&ctx).await?;
    ParquetSink::open(&spec.sink, &spec.store)?;
    say(&format!("{}: the spec and the schemas fit", args.file.display()));
    Ok(())
}

fn models(args: &ModelsArgs) -> Result<()> {
    let chosen = match &args.kind {
        Some(kind) => vec![model_kind(kind)?],
        None => MODELS.clone(),
    };
    if args.json {
        let models: Vec<Value> = chosen
            .iter()
            .map(|f| {
                json!({
                    "kind": f.kind, "summary": f.summary, "source": f.source,
                    "parameters": (f.schema)().to_value(), "defaults": (f.defaults)(),
                })
            })
            .collect();
        answer_json(&json!(models));
    } else if args.kind.is_some() {
        for f in chosen {
            answer(&format!("{}: {}\n{}\n\n{}", f.kind, f.summary, f.source, parameter_table(f)));
        }
    } else {
        let mut table = plain_table();
        chosen.iter().for_each(|f| {
            table.add_row([f.kind, f.summary, f.source]);
        });
        answer(&table.trim_fmt());
    }
    Ok(())
}

/// A table of every parameter with its default and meaning.
fn parameter_table(kind: &ModelKind) -> String {
    let mut table = plain_table();
    let (schema, defaults) = ((kind.schema)().to_value(), (kind.defaults)());
    add_parameters(&mut table, &schema, &schema, &defaults, "");
    table.trim_fmt()
}

fn add_parameters(
    table: &mut TextTable,
    root: &Value,
    schema: &Value,
    defaults: &Value,
    path: &str,
) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let reference = property["$ref"].as_str().and_then(|r| r.strip_prefix('#'));
        let target = reference.and_then(|pointer| root.pointer(pointer)).unwrap_or(property);
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if target.get("properties").is_some() {
            add_parameters(table, root, target, &defaults[name], &path);
        } else {
            let meaning =
                property["description"].as_str().or_else(|| target["description"].as_str());
            let words = target["oneOf"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|o| o["const"].as_str());
            let words: Vec<&str> = words.collect();
            let choices =
                if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
            let meaning = meaning.unwrap_or_default().replace('\n', " ") + &choices;
            table.add_row([path, defaults[name].to_string().replace('"', ""), meaning]);
        }
    }
}

async fn scores(args: &EvaluateArgs) -> Result<()> {
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
    };
    let scores = evaluate(&what, &store(args.endpoint.as_deref())).await?;
    if args.json {
        answer_json(&json!(scores));
        return Ok(());
    }
    let mut table = plain_table();
    for score in scores {
        let value = score.value.map_or("not defined".to_owned(), |v| format!("{v:.6}"));
        table.add_row([score.question.unwrap_or_default(), score.name, value]);
    }
    answer(&table.trim_fmt());
    Ok(())
}

async fn predictions(args: PredictArgs, quiet: bool, signals: &Signals) -> Result<()> {
    let engine = EngineSpec {
        memory_limit: args.memory_limit,
        scratch: args.scratch,
        ..EngineSpec::default()
    };
    allocator::bound(engine.allocation_bound());
    let mut run = Run::new(0).with_threads(engine.threads())?.with_memory(engine.memory_bytes());
    run.progress = Arc::new(Bars::new(quiet));
    let (cancel, progress) = (run.cancel.clone(), Arc::clone(&run.progress));
    let (force, json) = (args.job.force, args.job.json);
    let done = until_signalled(signals, &cancel, async move {
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
            force,
        };
        predict(&what, &store(args.endpoint.as_deref()), &mut run).await
    })
    .await;
    progress.end();
    let published = done?;
    if json {
        answer_json(&summary::predictions_json(&published));
    } else if !quiet {
        say(&summary::predictions(&published));
    }
    Ok(())
}

async fn test(args: &FileArgs) -> Result<ExitCode> {
    let spec = pipeline_file(args)?;
    let verdicts = run_tests(&spec).await?;
    let mut failed = 0;
    for verdict in &verdicts {
        let word = if verdict.failures.is_empty() { "ok" } else { "FAILED" };
        say(&format!("{word:<7} {}", verdict.name));
        verdict.failures.iter().for_each(|f| say(&format!("        {f}")));
        failed += usize::from(!verdict.failures.is_empty());
    }
    say(&format!("{} passed, {failed} failed", verdicts.len() - failed));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(Stage::Gate.exit_code()) })
}

fn plain_table() -> TextTable {
    let mut table = TextTable::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}
