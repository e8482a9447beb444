//! `labelmill sql`: queries over a run's tables and any other source; statements that change something only with
//! `--write`.

mod agreement_functions;
mod named_query;
mod values_of_run;

use datafusion::execution::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;

use super::{at_options, table_with_url};
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::sink::{RunTables, register_run};
use crate::source::{Location, Source, SourceSpec, name_problems};
use crate::spec::Problems;
use crate::sql::{
    NamedQuery, Statement, explains, locations, only_reads, options, parse, what_it_does,
    with_known_tables,
};
use crate::store::{StoreSpec, open, parse_url, secret_problem};
use agreement_functions::register_agreement;
use named_query::RunQuery;

/// What `labelmill sql` runs.
#[derive(Clone, Copy)]
pub enum ScriptText<'a> {
    /// Statements.
    Statements(&'a str),
    /// A query that ships with the binary, and its parameters, as `name=value`.
    Named(NamedQuery, &'a [String]),
}

/// The arguments of `labelmill sql`.
pub struct Script<'a> {
    /// The statements, or the query.
    pub text: ScriptText<'a>,
    /// The folder of the run whose tables they read.
    pub run: Option<&'a str>,
    /// Further tables, as `name=URL`.
    pub tables: &'a [String],
    /// Whether statements may change or write something.
    pub write: bool,
    /// The memory that they may take.
    pub engine: EngineSpec,
}

/// A session with the tables that the statements read.
pub struct SqlSession {
    ctx: SessionContext,
    stores: StoreSpec,
    write: bool,
    /// Whether the column `question` is left out of the rows.
    without_question: bool,
}

/// The rows of a statement.
pub struct StatementRows {
    /// The rows, which arrive while they are read.
    pub rows: SendableRecordBatchStream,
    /// Whether they are the plan of an `EXPLAIN`.
    pub is_plan: bool,
}

impl SqlSession {
    /// Registers the tables, and parses the statements. `run` is warned of files that are left out.
    ///
    /// # Errors
    /// When a statement does not parse, or changes something although it may not; when a table cannot be found, or its
    /// name is taken.
    pub async fn open(
        what: &Script<'_>,
        stores: StoreSpec,
        job: &mut JobContext,
    ) -> Result<(Self, Vec<Statement>)> {
        let ctx = what.engine.session()?;
        register_agreement(&ctx);
        let parsed = |text: &str| {
            let statements = Vec::from(parse(&ctx, text)?);
            if !what.write {
                statements.iter().try_for_each(refuse_change)?;
            }
            Ok::<_, Error>(statements)
        };
        let (statements, without_question) = match what.text {
            // Parsed before any table is looked for.
            ScriptText::Statements(text) => {
                let statements = parsed(text)?;
                if let Some(folder) = what.run {
                    register_run(&ctx, folder, &stores).await?;
                }
                register_tables(&ctx, what.tables, &stores, job).await?;
                (statements, false)
            }
            ScriptText::Named(query, params) => {
                let folder = what.run.ok_or_else(|| {
                    Error::spec("a named query needs a run").help("give its folder with --run")
                })?;
                register_run(&ctx, folder, &stores).await?;
                let query = RunQuery { query, params, tables: what.tables };
                let (text, without_question) = query.open(&ctx, &stores, job).await?;
                (parsed(&text)?, without_question)
            }
        };
        Ok((Self { ctx, stores, write: what.write, without_question }, statements))
    }

    /// Registers the stores that a statement names.
    ///
    /// # Errors
    /// When a URL is invalid, or its store cannot be opened.
    pub fn register_stores(&self, statement: &Statement) -> Result<()> {
        for url in locations(statement) {
            register_store(&self.ctx, url, &self.stores)?;
        }
        Ok(())
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// When it does not plan, or its first rows cannot be computed.
    pub async fn rows(&self, statement: Statement) -> Result<StatementRows> {
        let is_plan = explains(&statement);
        let plan = self.ctx.state().statement_to_plan(statement).await;
        let plan = plan.map_err(|e| with_known_tables(&self.ctx, e.into()))?;
        options(self.write).verify_plan(&plan)?;
        let mut frame = self.ctx.execute_logical_plan(plan).await?;
        if self.without_question {
            frame = frame.drop_columns(&["question"])?;
        }
        let rows = frame.execute_stream().await?;
        Ok(StatementRows { rows, is_plan })
    }
}

fn refuse_change(statement: &Statement) -> Result<()> {
    if only_reads(statement) {
        return Ok(());
    }
    let what = what_it_does(statement);
    Err(Error::spec(format!("`labelmill sql` only reads: {what} is refused"))
        .help("pass --write to let statements change or write something"))
}

/// Registers the store of a URL that a statement names.
fn register_store(ctx: &SessionContext, url: &str, stores: &StoreSpec) -> Result<()> {
    let url = parse_url(url)?;
    if url.scheme() != "file" {
        let location = open(&url, stores)?;
        ctx.register_object_store(&location.root(), location.store);
    }
    Ok(())
}

async fn register_tables(
    ctx: &SessionContext,
    tables: &[String],
    stores: &StoreSpec,
    job: &mut JobContext,
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
    let pairs: Vec<(&str, &str)> =
        tables.iter().map(|table| table_with_url(table)).collect::<Result<_>>()?;
    let names = || pairs.iter().map(|(name, _)| *name);
    let option = |name: &str| format!("--table {name}");
    let mut problems = Problems::default();
    for (name, problem) in name_problems(names(), |name| ctx.table_exist(name).unwrap_or(false)) {
        problems.push(problem.at(option(name)));
    }
    problems.into_result()?;
    let keys: Vec<(String, String)> =
        names().map(|name| (format!("source.tables.{name}"), option(name))).collect();
    let table = |(name, url): &(&str, &str)| ((*name).to_owned(), Location::Url((*url).to_owned()));
    let spec = SourceSpec { tables: pairs.iter().map(table).collect(), ..SourceSpec::default() };
    let registered = Source::register(ctx, &spec, stores, &RunTables, job).await;
    registered.map(drop).map_err(|e| at_options(e, &keys))
}
