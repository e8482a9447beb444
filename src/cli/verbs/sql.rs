//! `labelmill sql`: prints the rows of each statement.

use std::fmt::Write as _;
use std::path::PathBuf;

use arrow::json::LineDelimitedWriter;
use futures::StreamExt;
use serde_json::json;

use crate::cli::shared_args::{QueryArgs, read_text};
use crate::cli::terminal::stream;
use crate::cli::text_table::DrawnTable;
use crate::commands::at_options;
use crate::commands::sql::{Script, ScriptText, SqlSession, StatementRows};
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::escape;
use crate::job_context::JobContext;
use crate::sql::{NAMED_QUERIES, NamedQuery, QueryParameter, Statement, catch_panics};

/// SQL over tables.
#[derive(Debug, clap::Args)]
pub struct SqlArgs {
    /// The query
    #[arg(short, long, value_name = "QUERY", conflicts_with = "file", allow_hyphen_values = true)]
    pub command: Option<String>,
    /// A file with the query
    pub file: Option<PathBuf>,
    /// A published run, or the folder it was published to: its tables by name
    #[arg(long, value_name = "URL")]
    pub run: Option<String>,
    /// Run a query that ships with labelmill over the tables of --run
    #[arg(long, value_name = "NAME", conflicts_with_all = ["command", "file"], requires = "run")]
    pub query: Option<String>,
    /// Set a parameter of the named query, such as n=50
    #[arg(long, value_name = "NAME=VALUE", requires = "query")]
    pub param: Vec<String>,
    /// List the named queries with their parameters
    #[arg(long, conflicts_with_all = ["command", "file", "query"])]
    pub list: bool,
    /// Any other source as a table; of a named query, where annotations or gold are now
    #[arg(long, value_name = "NAME=URL")]
    pub table: Vec<String>,
    /// Let statements change or write something, such as COPY; without it only queries run
    #[arg(long)]
    pub write: bool,
    /// Print one JSON object a row
    #[arg(long)]
    pub json: bool,
    /// What its queries may use.
    #[command(flatten)]
    pub resources: QueryArgs,
}

pub(super) async fn command(
    args: &SqlArgs,
    engine: EngineSpec,
    warned: &mut JobContext,
) -> Result<()> {
    if args.list {
        return print_list(args.json);
    }
    let text = match (&args.query, &args.command, &args.file) {
        (Some(_), ..) => String::new(),
        (None, Some(query), _) => query.clone(),
        (None, None, Some(file)) => read_text(file)?,
        (None, None, None) => {
            return Err(Error::spec("there is no query").help(
                "give one with -c, or a file, or one of `labelmill sql --list` with --query",
            ));
        }
    };
    let text = match &args.query {
        Some(name) => ScriptText::Named(NamedQuery::find(name)?, &args.param),
        None => ScriptText::Statements(&text),
    };
    let (run, tables, write) = (args.run.as_deref(), args.table.as_slice(), args.write);
    let what = Script { text, run, tables, write, engine };
    let stores = args.resources.stores();
    let location = match (&args.query, &args.file) {
        (Some(name), _) => format!("--query {name}"),
        (None, Some(file)) => file.display().to_string(),
        (None, None) => "-c".to_owned(),
    };
    let opened = SqlSession::open(&what, stores, warned).await;
    let (session, statements) = opened.map_err(|e| at_options(e, &OPTIONS).or_at(&location))?;
    let is_one_of_several = statements.len() > 1;
    for (n, statement) in statements.into_iter().enumerate() {
        let printed = catch_panics(async {
            session.register_stores(&statement)?;
            print_rows(&session, statement, args.json).await
        });
        let printed = printed.await.map_err(|e| {
            let statement = format!("statement {}", n + 1);
            let e = at_options(e, &OPTIONS);
            e.or_at(if is_one_of_several { &statement } else { &location })
        });
        if !printed? {
            break;
        }
    }
    Ok(())
}

/// Prints the named queries: what their rows and columns are, and their parameters.
fn print_list(json: bool) -> Result<()> {
    let mut text = String::new();
    for query in NAMED_QUERIES {
        if json {
            let parameter = |p: QueryParameter| json!({"name": p.name, "default": p.default, "meaning": p.meaning});
            let parameters: Vec<_> = query.parameters().map(parameter).collect();
            let columns: Vec<_> = query
                .columns()
                .map(|(name, meaning)| json!({"name": name, "meaning": meaning}))
                .collect();
            let value = json!({
                "name": query.name,
                "summary": query.summary(),
                "columns": columns,
                "parameters": parameters,
            });
            let _ = writeln!(text, "{value}");
        } else {
            let _ = writeln!(text, "{}\n    {}", query.name, query.summary());
            for (name, meaning) in query.columns() {
                let _ = writeln!(text, "    {name}: {meaning}");
            }
            for QueryParameter { name, default, meaning } in query.parameters() {
                let _ = writeln!(text, "    --param {name}={default}: {meaning}");
            }
        }
    }
    stream(text.as_bytes()).map(drop)
}

/// The option in place of the key of a pipeline file.
const OPTIONS: [(&str, &str); 1] = [("engine.memory_limit", "--memory-limit")];

/// Rows per write of JSON: a row may be large.
const JSON_ROWS: usize = 256;

/// Runs one statement and writes its rows while they arrive; returns false once the reader of stdout is gone.
async fn print_rows(session: &SqlSession, statement: Statement, json: bool) -> Result<bool> {
    let StatementRows { mut rows, is_plan } = session.rows(statement).await?;
    // The plan of EXPLAIN is printed over several lines.
    let mut frame = (!json).then(|| DrawnTable::new(&rows.schema(), !is_plan));
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
