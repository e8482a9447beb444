//! `labelmill evaluate`: prints the scores of a run.

use crate::cli::plain_table::plain_table;
use crate::cli::shared_args::QueryArgs;
use crate::cli::terminal::{print_json, print_result};
use crate::commands::evaluate::{Evaluation, as_json, evaluate};
use crate::engine::EngineSpec;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::source::ColumnsSpec;

/// The run to score, the true classes, and the options of the scores.
#[derive(Debug, clap::Args)]
pub struct EvaluateArgs {
    /// A published run, or the folder it was published to
    #[arg(long, value_name = "URL")]
    pub run: String,
    /// The true classes: instance_id, and class or label
    #[arg(long, value_name = "URL")]
    pub truth: String,
    /// The truth's name for instance_id
    #[arg(long, value_name = "NAME")]
    pub instance_column: Option<String>,
    /// The truth's name for class
    #[arg(long, value_name = "NAME")]
    pub class_column: Option<String>,
    /// True confusion matrices: annotator_id, class, label, probability
    #[arg(long, value_name = "URL")]
    pub confusion: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// What its queries may use.
    #[command(flatten)]
    pub resources: QueryArgs,
}

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
    let scores = evaluate(&what, &args.resources.stores(), job).await?;
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
