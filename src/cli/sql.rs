//! `labelmill sql`: queries over a run's tables and any other source; statements that change something only with
//! `--write`.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::prelude::SessionContext;

use super::args::SqlArgs;
use super::commands::{read_text, store};
use super::terminal::{answer_exact, framed};
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::source::{Location, Source, SourceSpec, register_run};
use crate::sql::{Statement, explains, only_reads, parse, what_it_does};
use crate::store::{StoreSpec, secret_problem};

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
        // The plan of a query is drawn over several lines.
        let is_plan = explains(&statement);
        let rows = execute(&ctx, statement, args.write).await?;
        print(&rows, args.json, is_plan)?;
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

async fn execute(
    ctx: &SessionContext,
    statement: Statement,
    writes: bool,
) -> Result<Vec<RecordBatch>> {
    let plan = ctx.state().statement_to_plan(statement).await?;
    crate::sql::options(writes).verify_plan(&plan)?;
    Ok(ctx.execute_logical_plan(plan).await?.collect().await?)
}

fn print(rows: &[RecordBatch], json: bool, is_plan: bool) -> Result<()> {
    if !json {
        answer_exact(&framed(rows, !is_plan)?);
        return Ok(());
    }
    let mut writer = LineDelimitedWriter::new(Vec::new());
    rows.iter().try_for_each(|batch| writer.write(batch))?;
    writer.finish()?;
    answer_exact(String::from_utf8_lossy(&writer.into_inner()).trim_end());
    Ok(())
}

async fn register_tables(
    ctx: &SessionContext,
    tables: &[String],
    stores: &StoreSpec,
) -> Result<()> {
    let mut spec = SourceSpec::default();
    for table in tables {
        if let Some(problem) = secret_problem(table) {
            return Err(Error::spec_problems(vec![problem.at("--table")]));
        }
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
