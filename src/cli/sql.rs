//! `labelmill sql`: prints the rows of each statement.

use arrow::json::LineDelimitedWriter;
use futures::StreamExt;

use super::args::{SqlArgs, read_text, store};
use super::terminal::stream;
use super::text_table::DrawnTable;
use crate::commands::at_options;
use crate::commands::sql::{Script, SqlSession, StatementRows};
use crate::error::{Error, Result};
use crate::escape;
use crate::run::Run;
use crate::sql::{Statement, catch_panics};

pub(super) async fn command(args: &SqlArgs, warned: &mut Run) -> Result<()> {
    let text = match (&args.command, &args.file) {
        (Some(query), _) => query.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => {
            return Err(Error::spec("there is no query").help("give one with -c, or a file"));
        }
    };
    let (run, tables, write) = (args.run.as_deref(), args.table.as_slice(), args.write);
    let what = Script { text: &text, run, tables, write };
    let stores = store(args.endpoint.as_deref());
    let (session, statements) = SqlSession::open(&what, stores, warned).await?;
    let is_one_of_several = statements.len() > 1;
    for (n, statement) in statements.into_iter().enumerate() {
        let printed = catch_panics(async {
            session.register_stores(&statement)?;
            print_rows(&session, statement, args.json).await
        });
        let printed = printed.await.map_err(|e| {
            let e = at_options::<&str, &str>(e, &[]);
            if is_one_of_several { e.or_at(&format!("statement {}", n + 1)) } else { e }
        });
        if !printed? {
            break;
        }
    }
    Ok(())
}

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
