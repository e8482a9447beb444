//! `labelmill evaluate`: prints the scores of a run.

use crate::cli::args::{EvaluateArgs, store};
use crate::cli::plain_table::plain_table;
use crate::cli::terminal::{print_json, print_result};
use crate::commands::evaluate::{Evaluation, as_json, evaluate};
use crate::engine::EngineSpec;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::source::ColumnsSpec;

pub(super) async fn command(
    args: &EvaluateArgs,
    engine: EngineSpec,
    job: &mut JobContext,
) -> Result<()> {
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
        return print_json(&as_json(&scores, job.warnings()));
    }
    let mut table = plain_table();
    for score in scores {
        let value = score.value.map_or("not defined".to_owned(), |v| format!("{v:.6}"));
        table.add_row([score.question.unwrap_or_default(), score.name, value]);
    }
    print_result(&table.trim_fmt())
}
