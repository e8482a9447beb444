//! `labelmill evaluate`: scores a published run against a table of true classes.
//!
//! Labels are scored on the instances that the run labelled, predictions on the instances that it predicted, annotated
//! or not. Rows of the truth whose instance is in neither are counted. A table that the run did not publish is not
//! scored.

mod confusion;
mod labels;
mod tables;

use arrow::util::display::array_value_to_string;
use datafusion::prelude::SessionContext;
use serde::Serialize;

use super::at_options;
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::run::Run;
use crate::sink::{RunTables, register_run};
use crate::source::{
    Cleaning, ColumnsSpec, Location, Origin, Relation, Source, SourceSpec, select,
};
use crate::store::StoreSpec;
use labels::{ScoredLabels, TrueClasses};
use tables::Tables;

/// One score of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// The question, where the run had several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The measure's name.
    pub name: String,
    /// The value; `None` where it is not defined.
    pub value: Option<f64>,
}

/// The run and the truth to compare.
#[derive(Debug, Clone)]
pub struct Evaluation<'a> {
    /// The run's folder, or the folder it was published to.
    pub run: &'a str,
    /// Rows of `instance_id` and `class` (or `label`).
    pub truth: &'a str,
    /// The columns' names in the truth table.
    pub columns: ColumnsSpec,
    /// True confusion matrices: `annotator_id`, `class`, `label`, `probability`. A cell that is left out is zero; a
    /// row, or an annotator, without any cell is unknown.
    pub confusion: Option<&'a str>,
}

/// The options in place of the keys of a pipeline file.
const OPTIONS: [(&str, &str); 2] =
    [("source.tables.truth", "--truth"), ("source.tables.true_confusion", "--confusion")];

/// Scores a run: every measure of [`LabelsWithTruth`](crate::metrics::LabelsWithTruth) on its labels; the same on its
/// predictions, with the prefix `prediction_`; `unknown_instances`, the number of rows of the truth whose instance is in neither; and,
/// where the true matrices are given, four `confusion_` measures (`sql/confusion_error.sql`).
///
/// # Errors
/// When there is no such run, the truth cannot be read, or the two share no instance.
pub async fn evaluate(
    what: &Evaluation<'_>,
    stores: &StoreSpec,
    run: &mut Run,
) -> Result<Vec<Score>> {
    evaluate_run(what, stores, run).await.map_err(|e| at_options(e, &OPTIONS))
}

async fn evaluate_run(
    what: &Evaluation<'_>,
    stores: &StoreSpec,
    run: &mut Run,
) -> Result<Vec<Score>> {
    let ctx = EngineSpec::default().session()?;
    register_run(&ctx, what.run, stores).await?;
    let mut tables = std::collections::BTreeMap::from([("truth".to_owned(), url(what.truth))]);
    if let Some(confusion) = what.confusion {
        tables.insert("true_confusion".to_owned(), url(confusion));
    }
    let spec = SourceSpec { tables, columns: what.columns.clone(), ..SourceSpec::default() };
    let source = Source::register(&ctx, &spec, stores, &RunTables, run).await?;
    let truth =
        select(ctx.table("truth").await?, (Relation::Gold, Origin::OnlyTable), &what.columns)
            .map_err(|e| {
                e.at("--truth").help("name the columns with --instance-column and --class-column")
            })?;
    let truth = cleaning_of_run(&ctx).await?.apply(truth)?;
    let (mut found, mut disjoint) = (Vec::new(), Vec::new());
    let questions = Tables::of_questions(&ctx).await?;
    tables::check_questions(&truth, &questions, run).await?;
    labels::warn_without_class(&truth, run).await?;
    for tables in &questions {
        let truth = TrueClasses::read(&truth, tables).await?;
        let (mut measured, n_instances) = label_scores(tables, &truth).await?;
        if measured.is_empty() {
            disjoint.push((n_instances, truth.len()));
        }
        if what.confusion.is_some() {
            let confusion = confusion::scores(tables, truth.n_classes()).await;
            let confusion = confusion.map_err(|e| e.or_at("--confusion"))?;
            if confusion.iter().all(|(_, value)| value.is_none()) {
                let asked = tables.question.as_ref();
                let of = asked.map_or_else(String::new, |question| format!(" of `{question}`"));
                run.warn(format!(
                    "no annotator has a matrix in the run{of} and in --confusion: its scores are not defined"
                ));
            }
            measured.extend(confusion);
        }
        let question = tables.question.as_ref().map(ToString::to_string);
        found.extend(measured.into_iter().map(|(name, value)| Score {
            question: question.clone(),
            name,
            value,
        }));
    }
    if let Some((n_instances, n_true)) = disjoint.last() {
        if disjoint.len() == questions.len() {
            return Err(Error::data("the run and the truth have no instance in common")
                .at("--truth")
                .found(format!("{n_instances} instances in the run, {n_true} in the truth"))
                .help("do the ids have the same form? name the columns with --instance-column and --class-column"));
        }
        run.warn(format!(
            "the truth has no instance of {} of the {} questions: their labels are not scored",
            disjoint.len(),
            questions.len()
        ));
    }
    source.check_unchanged().await?;
    Ok(found)
}

/// The rules for text values that the run was made with: the truth must be read by the same.
async fn cleaning_of_run(ctx: &SessionContext) -> Result<Cleaning> {
    if !ctx.table_exist("run")? {
        return Ok(Cleaning::default());
    }
    let rows = ctx.table("run").await?.select_columns(&["spec"])?.collect().await?;
    let spec = rows.first().filter(|batch| batch.num_rows() > 0);
    let spec = spec.map(|batch| array_value_to_string(batch.column(0), 0)).transpose()?;
    let spec: serde_json::Value =
        serde_json::from_str(&spec.unwrap_or_default()).unwrap_or_default();
    // Runs of `predict` have no source of this form.
    Ok(serde_json::from_value(spec["source"].clone()).unwrap_or_default())
}

fn url(text: &str) -> Location {
    Location::Url(text.to_owned())
}

/// The name and the value of a measure.
type NamedScore = (String, Option<f64>);

/// The scores of the labels and of the predictions, and the number of instances in the run. There are no scores where
/// the truth has none of these instances.
async fn label_scores(
    tables: &Tables<'_>,
    truth: &TrueClasses,
) -> Result<(Vec<NamedScore>, usize)> {
    let labels = ScoredLabels::labels(tables, truth).await?;
    let predictions = ScoredLabels::predictions(tables, truth).await?;
    let parts = || [("", &labels), ("prediction_", &predictions)].into_iter();
    let parts = || parts().filter_map(|(prefix, given)| Some((prefix, given.as_ref()?)));
    if parts().next().is_none() {
        return Err(Error::data("the run has neither labels nor predictions")
            .at("--run")
            .help("name another run, or leave them among the tables of sink.tables"));
    }
    let n_instances = parts().map(|(_, given)| given.n_instances).max().unwrap_or_default();
    if parts().all(|(_, given)| given.scored.is_empty()) {
        return Ok((Vec::new(), n_instances));
    }
    let all = parts().flat_map(|(prefix, given)| given.scored.all(prefix, "truth"));
    let mut scores: Vec<NamedScore> = all.map(|m| (m.name, m.value)).collect();
    let is_unknown = |row: &usize| !parts().any(|(_, s)| s.is_known[*row]);
    let unknown = (0..truth.len()).filter(is_unknown).count();
    scores.push(("unknown_instances".to_owned(), Some(unknown as f64)));
    Ok((scores, n_instances))
}
