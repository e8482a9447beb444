//! `labelmill agreement`: prints the statistics of each group.

use crate::cli::environment::job_with;
use crate::cli::plain_table::plain_table;
use crate::cli::terminal::{print_json, print_result};
use crate::commands::agreement::{AgreementOfGroup, AgreementRequest, agreement, as_json};
use crate::error::Result;
use crate::job_context::JobContext;
use crate::process::allocator::bound_job;

/// The annotations whose agreement is measured.
#[derive(Debug, clap::Args)]
pub struct AgreementArgs {
    /// The annotations: a file, a folder or a glob on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub annotations: String,
    /// Measure each group of annotations too: those with one value in this column
    #[arg(long, value_name = "COLUMN")]
    pub by: Vec<String>,
    /// Set a key of a pipeline file, such as source.columns.instance=item
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) async fn command(args: AgreementArgs, shown: JobContext) -> Result<()> {
    let AgreementArgs { annotations, by, set, json } = args;
    let request = AgreementRequest::new(&annotations, by, set)?;
    bound_job(request.spec.engine.allocation_bound());
    let mut job = job_with(&request.spec.engine, request.spec.seed)?;
    job.progress = shown.progress;
    let rows = agreement(&request, &mut job).await?;
    if json {
        return print_json(&as_json(&rows, job.warnings()));
    }
    let has_questions = rows.iter().any(|row| row.question.is_some());
    let names = ["question", "group", "statistic", "value", "low", "high", "n"];
    let skipped = usize::from(!has_questions);
    let mut table = plain_table();
    table.add_row(&names[skipped..]);
    for AgreementOfGroup { question, group, row } in rows {
        let number = |x: Option<f64>| x.map_or("not defined".to_owned(), |x| format!("{x:.6}"));
        let end = |x: Option<f64>| x.map(|x| format!("{x:.6}")).unwrap_or_default();
        let cells = [
            question.unwrap_or_default(),
            group,
            row.statistic.to_owned(),
            number(row.value),
            end(row.low),
            end(row.high),
            row.n.to_string(),
        ];
        table.add_row(&cells[skipped..]);
    }
    print_result(&table.trim_fmt())
}
