//! `labelmill agreement`: how far annotators agree beyond chance: all of them, on each class, by question, and in the groups
//! of any column.
//!
//! The annotations are read as a run reads them. Each column of groups is one more pass over the source: the annotations of a
//! group are a data set of their own, with the classes of all.

use std::collections::BTreeMap;

use datafusion::prelude::{DataFrame, SessionContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::at_options;
use crate::agreement::{AgreementRow, Categories, measure};
use crate::engine::EngineSpec;
use crate::error::{Problem, Result};
use crate::frame::{Frame, FrameSpec, MemoryEstimate, Reason, Rejects, Relations, collect};
use crate::job_context::JobContext;
use crate::pipeline::warn_of_rows;
use crate::sink::RunTables;
use crate::source::{GROUP_SEPARATOR, Source, SourceSpec};
use crate::spec::{COMMAND_LINE, Overrides, Problems, from_table};
use crate::store::StoreSpec;
use crate::tables::group_of;

/// The keys of a pipeline file that the command takes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgreementSpec {
    /// The seed of the bootstrap.
    pub seed: u64,
    /// The input.
    pub source: SourceSpec,
    /// How rows become annotations.
    pub frame: FrameSpec,
    /// Resources.
    pub engine: EngineSpec,
    /// How object stores are reached.
    pub store: StoreSpec,
}

/// The arguments of `labelmill agreement`.
#[derive(Debug, Clone)]
pub struct AgreementRequest {
    /// What is read, and how.
    pub spec: AgreementSpec,
    /// The columns whose values make groups.
    pub by: Vec<String>,
}

/// One statistic of one group of annotations.
#[derive(Debug, Clone, PartialEq)]
pub struct AgreementOfGroup {
    /// The question, where there are several.
    pub question: Option<String>,
    /// `all`, `class=...`, or a column and its value.
    pub group: String,
    /// The statistic.
    pub row: AgreementRow,
}

/// The rows as one JSON object, with the warnings.
#[must_use]
pub fn as_json(rows: &[AgreementOfGroup], warnings: &[String]) -> Value {
    let object = |AgreementOfGroup { question, group, row }: &AgreementOfGroup| {
        let AgreementRow { statistic, value, low, high, n, .. } = row;
        let mut object = json!({
            "statistic": statistic, "group": group, "value": value, "low": low, "high": high, "n": n,
        });
        if let Some(question) = question {
            object["question"] = json!(question);
        }
        object
    };
    json!({ "agreement": rows.iter().map(object).collect::<Vec<_>>(), "warnings": warnings })
}

impl AgreementRequest {
    /// The annotations at a URL, columns whose values make groups, and keys of a pipeline file as `key.path=value`.
    ///
    /// # Errors
    /// When a key does not exist, or a value does not fit.
    pub fn new(annotations: &str, by: Vec<String>, set: Vec<String>) -> Result<Self> {
        // The command takes no variables: in a pipeline file, `$${` stands for a plain `${`.
        let url = toml::Value::from(annotations.replace("${", "$${"));
        let source = toml::Table::from_iter([("annotations".to_owned(), url)]);
        let table = toml::Table::from_iter([("source".to_owned(), source.into())]);
        let overrides = Overrides { set, ..Overrides::default() };
        let schema = schemars::schema_for!(AgreementSpec).to_value();
        let spec: AgreementSpec = from_table(table, COMMAND_LINE, &overrides, &schema)?;
        let mut problems = Problems::default();
        spec.source.check(COMMAND_LINE, &mut problems);
        spec.engine.check(COMMAND_LINE, &mut problems);
        spec.store.check(COMMAND_LINE, &mut problems);
        let annotator = spec.source.columns.annotator.as_deref().unwrap_or("annotator_id");
        if by.iter().any(|column| column == annotator) {
            let problem = Problem::new("each group has one annotator, who agrees with nobody else")
                .at("--by")
                .found(format!("`{annotator}`, the column of annotators"))
                .help(
                    "labelmill sql --run OUT --query agreement_of_pairs compares the annotators of a run two by two",
                );
            problems.push(problem);
        }
        problems.into_result()?;
        Ok(Self { spec, by })
    }
}

/// Measures the agreement of all annotations, by question where there are several, and of each group.
///
/// # Errors
/// When the annotations cannot be read, or none of them can be used.
pub async fn agreement(
    request: &AgreementRequest,
    job: &mut JobContext,
) -> Result<Vec<AgreementOfGroup>> {
    let measured = measured(request, job).await;
    measured.map_err(|e| at_options(e, &[("source.annotations", "--annotations")]))
}

async fn measured(
    request: &AgreementRequest,
    job: &mut JobContext,
) -> Result<Vec<AgreementOfGroup>> {
    let AgreementRequest { spec, by } = request;
    let ctx = spec.engine.session()?;
    let source = Source::register(&ctx, &spec.source, &spec.store, &RunTables, job).await?;
    let frames = frames(spec, (&source, source.annotations(&ctx).await?), job).await?;
    warn_of_rows(&frames, job);
    let (mut rows, mut categories) = (Vec::new(), BTreeMap::new());
    for frame in &frames {
        let question = frame.question.as_ref().map(|question| question.text(0));
        let of_question = Categories::new(&frame.classes(), spec.frame.classes.is_some());
        let found = measured_in_pool(frame, &of_question, job);
        if found.iter().all(|row| row.n == 0) {
            let of = frame.subject().map_or_else(String::new, |subject| format!("{subject}: "));
            job.warn(format!("{of}no instance has two annotators: no agreement is defined"));
        }
        rows.extend(found.into_iter().map(|row| {
            let class = row.class.map(|class| frame.labels.text(class as usize));
            AgreementOfGroup { question: question.clone(), group: group_of(class), row }
        }));
        categories.insert(question, of_question);
    }
    drop(frames);
    for column in by {
        rows.extend(by_column(spec, (&ctx, &source), column, &categories, job).await?);
    }
    Ok(rows)
}

/// The agreement of the groups of a column; `categories` are those of each question.
async fn by_column(
    spec: &AgreementSpec,
    (ctx, source): (&SessionContext, &Source),
    column: &str,
    categories: &BTreeMap<Option<String>, Categories>,
    job: &mut JobContext,
) -> Result<Vec<AgreementOfGroup>> {
    let annotations = source.annotations_by(ctx, column).await?;
    let frames = frames(spec, (source, annotations), job).await?;
    let rejects = frames.iter().flat_map(Frame::all_rejects);
    let all: u64 = rejects
        .flat_map(Rejects::iter)
        .filter(|(reason, ..)| *reason == Reason::NullQuestion)
        .map(|(_, n, _)| n)
        .sum();
    if all > 0 {
        job.warn(format!(
            "annotations without a value in `{column}` are in none of its groups: {all}"
        ));
    }
    let mut rows = Vec::new();
    for frame in &frames {
        let value = frame.question.as_ref().map_or_else(String::new, |group| group.text(0));
        let (question, value) = match value.split_once(GROUP_SEPARATOR) {
            Some((question, value)) => (Some(question.to_owned()), value.to_owned()),
            None => (None, value),
        };
        let Some(of_question) = categories.get(&question) else { continue };
        let found = measured_in_pool(frame, &of_question.of_part(&frame.classes()), job);
        let of_all = found.into_iter().filter(|row| row.class.is_none());
        let group = format!("{column}={value}");
        rows.extend(of_all.map(|row| AgreementOfGroup {
            question: question.clone(),
            group: group.clone(),
            row,
        }));
    }
    Ok(rows)
}

async fn frames(
    spec: &AgreementSpec,
    (source, annotations): (&Source, DataFrame),
    job: &mut JobContext,
) -> Result<Vec<Frame>> {
    let relations = Relations {
        annotations,
        gold: None,
        features: None,
        annotator_features: None,
        given: Vec::new(),
        fit_memory: Box::new(|_| Some(MemoryEstimate::default())),
        scratch: spec.engine.scratch_folder(),
    };
    let of_frame = spec.frame.normalised(&spec.source.cleaning());
    let frames = collect(relations, &of_frame, job).await;
    source.check_unchanged().await?;
    frames.map_err(|e| source.at_query(e.or_at("source.annotations")))
}

fn measured_in_pool(frame: &Frame, categories: &Categories, job: &JobContext) -> Vec<AgreementRow> {
    let mut rng = job.rng("agreement");
    let pool = job.pool();
    tokio::task::block_in_place(|| {
        pool.install(|| measure(&frame.annotations, categories, &mut rng, usize::MAX))
    })
}
