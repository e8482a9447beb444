//! `labelmill evaluate`: scores a published run against a table of true classes.
//!
//! Labels are scored on the instances that the run labelled, predictions on the instances that it predicted, annotated
//! or not. Rows of the truth whose instance is in neither are counted. A table that the run did not publish is not
//! scored.

mod confusion;
mod labels;
mod tables;

use arrow::datatypes::Schema;
use serde_json::{Map, Value, json};

use super::at_options;
use super::run_source::source_of_run;
use crate::engine::EngineSpec;
use crate::error::{Error, Overlap, Result};
use crate::job_context::{JobContext, WarningCode};
use crate::sink::{RunTables, register_run};
use crate::source::{
    Cleaning, ColumnsSpec, Location, Origin, Relation, Source, SourceSpec, select,
};
use crate::store::StoreSpec;
use labels::{ScoredLabels, TrueClasses};
use tables::Tables;

/// One score of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The question, where the run had several.
    pub question: Option<String>,
    /// The measure's name.
    pub name: String,
    /// The value; `None` where it is not defined.
    pub value: Option<f64>,
}

/// The scores as one JSON object: each value by its name, below `questions` where the run had several, and the warnings.
#[must_use]
pub fn as_json(scores: &[Score], warnings: &[String]) -> Value {
    let (mut all, mut questions) = (Map::new(), Map::new());
    for Score { question, name, value } in scores {
        match question {
            Some(question) => {
                let of_question = questions.entry(question.clone()).or_insert_with(|| json!({}));
                of_question[name] = json!(value);
            }
            None => drop(all.insert(name.clone(), json!(value))),
        }
    }
    if !questions.is_empty() {
        all.insert("questions".to_owned(), questions.into());
    }
    all.insert("warnings".to_owned(), json!(warnings));
    all.into()
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
    /// Memory and threads of the queries.
    pub engine: EngineSpec,
}

/// The options in place of the keys of a pipeline file.
const OPTIONS: [(&str, &str); 3] = [
    ("source.tables.truth", "--truth"),
    ("source.tables.true_confusion", "--confusion"),
    ("engine.memory_limit", "--memory-limit"),
];

/// Scores a run: every measure of [`LabelsWithTruth`](crate::metrics::LabelsWithTruth) on its labels; the same on its
/// predictions, with the prefix `prediction_`; `unknown_instances`, the number of rows of the truth whose instance is in neither; and,
/// where the true matrices are given, four `confusion_` measures (`sql/confusion_error.sql`).
///
/// # Errors
/// When there is no such run, the truth cannot be read, or the two share no instance or no class.
pub async fn evaluate(
    what: &Evaluation<'_>,
    stores: &StoreSpec,
    job: &mut JobContext,
) -> Result<Vec<Score>> {
    evaluate_run(what, stores, job).await.map_err(|e| at_options(e, &OPTIONS))
}

async fn evaluate_run(
    what: &Evaluation<'_>,
    stores: &StoreSpec,
    job: &mut JobContext,
) -> Result<Vec<Score>> {
    let ctx = what.engine.session()?;
    register_run(&ctx, what.run, stores).await?;
    let source_of_run = source_of_run(&ctx).await?;
    let mut columns = columns_of_run(&source_of_run, &what.columns);
    // The truth is read by the rules for text values that the run was made with. A run of `predict` has none.
    let cleaning: Cleaning = serde_json::from_value(source_of_run).unwrap_or_default();
    let mut tables = std::collections::BTreeMap::from([("truth".to_owned(), url(what.truth))]);
    if let Some(confusion) = what.confusion {
        tables.insert("true_confusion".to_owned(), url(confusion));
    }
    let spec = SourceSpec { tables, columns: columns.clone(), ..SourceSpec::default() };
    let source = Source::register(&ctx, &spec, stores, &RunTables, job).await?;
    let truth = ctx.table("truth").await?;
    keep_columns_of(truth.schema().as_arrow(), &what.columns, &mut columns);
    let truth = select(truth, (Relation::Gold, Origin::OnlyTable), &columns).map_err(|e| {
        e.at("--truth").help("name the columns with --instance-column and --class-column")
    })?;
    let truth = cleaning.apply(truth)?;
    let (mut found, mut overlaps) = (Vec::new(), Vec::new());
    let questions = Tables::of_questions(&ctx).await?;
    tables::check_questions(&truth, &questions, job).await?;
    labels::warn_without_class(&truth, job).await?;
    for tables in &questions {
        let truth = TrueClasses::read(&truth, tables).await?;
        let (mut measured, instances) = label_scores(tables, &truth).await?;
        overlaps.push((instances, truth.classes_in_run.clone()));
        if what.confusion.is_some() {
            let confusion = confusion::scores(tables, truth.n_classes()).await;
            let confusion = confusion.map_err(|e| e.or_at("--confusion"))?;
            if confusion.iter().all(|(_, value)| value.is_none()) {
                let asked = tables.question.as_ref();
                let of = asked.map_or_else(String::new, |question| format!(" of `{question}`"));
                job.warn(format!(
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
    check_overlaps(&overlaps, job)?;
    source.check_unchanged().await?;
    Ok(found)
}

/// Checks the instances and the classes of the truth, by question, against those of the run. Warns of those that the run
/// does not know.
///
/// # Errors
/// When no question has a common instance, or none has a common class.
fn check_overlaps(overlaps: &[(Overlap, Overlap)], job: &mut JobContext) -> Result<()> {
    let disjoint = overlaps.iter().filter(|(instances, _)| !instances.has_common()).count();
    if let Some((instances, _)) = overlaps.last().filter(|_| disjoint == overlaps.len()) {
        return Err(instances.error().at("--truth"));
    }
    if disjoint > 0 {
        job.warn(format!(
            "the truth has no instance of {disjoint} of the {} questions: their labels are not scored",
            overlaps.len()
        ));
    }
    let scored = || overlaps.iter().filter(|(instances, _)| instances.has_common());
    if let Some((_, classes)) = scored().next()
        && scored().all(|(_, classes)| classes.is_empty())
    {
        return Err(classes.error().at("--truth"));
    }
    let all = scored().flat_map(|(instances, classes)| [instances, classes]);
    let warnings: Vec<String> = all.filter_map(Overlap::warning).collect();
    warnings.iter().for_each(|warning| job.warn_code(WarningCode::TablesPartlyMatch, warning));
    Ok(())
}

/// The names of columns that the user gave, or else those that the run was made with.
fn columns_of_run(source: &Value, given: &ColumnsSpec) -> ColumnsSpec {
    let of_run: ColumnsSpec = serde_json::from_value(source["columns"].clone()).unwrap_or_default();
    let given = given.clone();
    ColumnsSpec {
        instance: given.instance.or(of_run.instance),
        class: given.class.or(of_run.class),
        question: given.question.or(of_run.question),
        label: of_run.label,
        ..ColumnsSpec::default()
    }
}

/// Leaves out the run's names for columns that the truth does not have; those that the user `given` stay. The class may
/// have the run's name for labels.
fn keep_columns_of(truth: &Schema, given: &ColumnsSpec, columns: &mut ColumnsSpec) {
    let has = |name: &String| truth.index_of(name).is_ok();
    let label = columns.label.take().filter(has);
    for (given, name) in [
        (&given.instance, &mut columns.instance),
        (&given.class, &mut columns.class),
        (&given.question, &mut columns.question),
    ] {
        if given.is_none() {
            *name = name.take().filter(has);
        }
    }
    if truth.index_of("class").is_err() {
        columns.class = columns.class.take().or(label);
    }
}

fn url(text: &str) -> Location {
    Location::Url(text.to_owned())
}

/// The name and the value of a measure.
type NamedScore = (String, Option<f64>);

/// The scores of the labels and of the predictions, and the instances of the truth in the run. There are no scores where
/// the truth has none of these instances.
async fn label_scores(
    tables: &Tables<'_>,
    truth: &TrueClasses,
) -> Result<(Vec<NamedScore>, Overlap)> {
    let labels = ScoredLabels::labels(tables, truth).await?;
    let predictions = ScoredLabels::predictions(tables, truth).await?;
    let parts = || [("", &labels), ("prediction_", &predictions)].into_iter();
    let parts = || parts().filter_map(|(prefix, given)| Some((prefix, given.as_ref()?)));
    if parts().next().is_none() {
        return Err(Error::data("the run has neither labels nor predictions")
            .at("--run")
            .help("name another run, or leave them among the tables of sink.tables"));
    }
    let is_known = |row: usize| parts().any(|(_, given)| given.is_known[row]);
    let all = parts().map(|(_, given)| &given.instances).max_by_key(|ids| ids.len());
    let instances = all.map(|ids| truth.instances_in(ids, is_known)).transpose()?;
    let instances = instances.ok_or_else(|| Error::bug("a run without tables is scored"))?;
    if parts().all(|(_, given)| given.scored.is_empty()) {
        return Ok((Vec::new(), instances));
    }
    let all = parts().flat_map(|(prefix, given)| given.scored.all(prefix, "truth"));
    let mut scores: Vec<NamedScore> = all.map(|m| (m.name, m.value)).collect();
    let unknown = (0..truth.len()).filter(|row| !is_known(*row)).count();
    scores.push(("unknown_instances".to_owned(), Some(unknown as f64)));
    Ok((scores, instances))
}
