//! `labelmill sql`: queries over a run's tables and any other source; statements that change something only with
//! `--write`.

use arrow::json::LineDelimitedWriter;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use super::args::{SqlArgs, read_text, store};
use super::framed::DrawnTable;
use super::terminal::stream;
use crate::commands::published::register_run;
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::escape;
use crate::source::{Location, Source, SourceSpec};
use crate::sql::{Statement, explains, locations, only_reads, parse, unbroken, what_it_does};
use crate::store::{StoreSpec, open, parse_url, secret_problem};

pub(super) async fn command(args: &SqlArgs) -> Result<()> {
    let text = match (&args.command, &args.file) {
        (Some(query), _) => query.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => {
            return Err(Error::spec("there is no query").help("give one with -c, or a file"));
        }
    };
    let ctx = EngineSpec::default().session()?;
    let statements = parse(&ctx, &text)?;
    if !args.write {
        statements.iter().try_for_each(refuse_change)?;
    }
    let stores = store(args.endpoint.as_deref());
    if let Some(run) = &args.run {
        register_run(&ctx, run, &stores).await?;
    }
    register_tables(&ctx, &args.table, &stores).await?;
    for statement in statements {
        for url in locations(&statement) {
            register_store(&ctx, url, &stores)?;
        }
        if !unbroken(answer_rows(&ctx, statement, args)).await? {
            break;
        }
    }
    Ok(())
}

fn refuse_change(statement: &Statement) -> Result<()> {
    if only_reads(statement) {
        return Ok(());
    }
    let what = what_it_does(statement);
    Err(Error::spec(format!("`labelmill sql` only reads: {what} is refused"))
        .help("pass --write to let statements change or write something"))
}

/// Rows per write of JSON: a row may be large.
const JSON_ROWS: usize = 256;

/// Runs one statement and writes its rows while they arrive; returns false once the reader of stdout is gone.
async fn answer_rows(ctx: &SessionContext, statement: Statement, args: &SqlArgs) -> Result<bool> {
    // The plan of EXPLAIN is printed over several lines.
    let is_plan = explains(&statement);
    let plan = ctx.state().statement_to_plan(statement).await?;
    crate::sql::options(args.write).verify_plan(&plan)?;
    let mut rows = ctx.execute_logical_plan(plan).await?.execute_stream().await?;
    let mut frame = (!args.json).then(|| DrawnTable::new(&rows.schema(), !is_plan));
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        match &mut frame {
            Some(frame) => {
                if !stream(frame.push(&batch)?.as_bytes())? {
                    return Ok(false);
                }
            }
            None => {
                for from in (0..batch.num_rows()).step_by(JSON_ROWS) {
                    let mut writer = LineDelimitedWriter::new(Vec::new());
                    let n = JSON_ROWS.min(batch.num_rows() - from);
                    writer.write(&batch.slice(from, n))?;
                    writer.finish()?;
                    let rows = writer.into_inner();
                    if !stream(escape::json(&String::from_utf8_lossy(&rows)).as_bytes())? {
                        return Ok(false);
                    }
                }
            }
        }
    }
    frame.map_or(Ok(true), |frame| stream(frame.finish().as_bytes()))
}

/// Registers the store of a URL that a statement names.
fn register_store(ctx: &SessionContext, url: &str, stores: &StoreSpec) -> Result<()> {
    let url = parse_url(url)?;
    if url.scheme() != "file" {
        let place = open(&url, stores)?;
        ctx.register_object_store(&place.root(), place.store);
    }
    Ok(())
}

async fn register_tables(
    ctx: &SessionContext,
    tables: &[String],
    stores: &StoreSpec,
) -> Result<()> {
    let url = |table: &str| table.split_once('=').map(|(_, url)| url.to_owned());
    let secret = |table: &String| {
        secret_problem(table).or_else(|| secret_problem(&url(table).unwrap_or_default()))
    };
    let secrets = tables.iter().filter_map(secret);
    let secrets: Vec<_> = secrets.map(|problem| problem.at("--table")).collect();
    if !secrets.is_empty() {
        return Err(Error::spec_problems(secrets));
    }
    let mut spec = SourceSpec::default();
    for table in tables {
        let (name, url) = table.split_once('=').ok_or_else(|| {
            Error::spec("a table needs a name")
                .found(format!("`{table}`"))
                .help("write --table name=URL")
        })?;
        spec.tables.insert(name.to_owned(), Location::Url(url.to_owned()));
    }
    Source::register(ctx, &spec, stores).await?;
    Ok(())
}
