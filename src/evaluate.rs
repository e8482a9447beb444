//! `labelmill evaluate`: scores a published run against a table of true classes.

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::common::ScalarValue;
use datafusion::prelude::{DataFrame, SessionContext, col, lit};
use serde::Serialize;

use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::frame::Ids;
use crate::scored::Scored;
use crate::source::{ColumnsSpec, Location, Relation, Source, SourceSpec, register_run, select};
use crate::sql;
use crate::store::StoreSpec;

/// One score of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// The question, where the run had several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What is measured.
    pub name: String,
    /// The value; `None` where it is not defined.
    pub value: Option<f64>,
}

/// What to compare.
#[derive(Debug, Clone)]
pub struct Evaluation<'a> {
    /// The run's folder, or the folder it was published to.
    pub run: &'a str,
    /// Rows of `instance_id` and `class` (or `label`).
    pub truth: &'a str,
    /// The columns' names in the truth table.
    pub columns: ColumnsSpec,
    /// True confusion matrices: `annotator_id`, `class`, `label`, `probability`.
    pub confusion: Option<&'a str>,
}

/// Scores a run: accuracy, expected-tie accuracy, macro-F1, log-loss, ECE, AUC, and the confusion error where the true
/// matrices are given.
///
/// # Errors
/// When there is no such run, the truth cannot be read, or the two share no instance.
pub async fn evaluate(what: &Evaluation<'_>, stores: &StoreSpec) -> Result<Vec<Score>> {
    let ctx = EngineSpec::default().session()?;
    register_run(&ctx, what.run, stores).await?;
    let mut tables = std::collections::BTreeMap::from([("truth".to_owned(), url(what.truth))]);
    if let Some(confusion) = what.confusion {
        tables.insert("true_confusion".to_owned(), url(confusion));
    }
    Source::register(
        &ctx,
        &SourceSpec { tables, columns: what.columns.clone(), ..SourceSpec::default() },
        stores,
    )
    .await?;
    let truth = select(ctx.table("truth").await?, Relation::Gold, &what.columns)
        .map_err(|e| e.at("--truth"))?;
    let mut found = Vec::new();
    for question in questions(&ctx).await? {
        let scored = scored(&ctx, &truth, question.as_ref()).await?;
        let question = question.map(|q| q.to_string());
        found.extend(scored.all("", "truth").into_iter().map(|m| Score {
            question: question.clone(),
            name: m.name.clone(),
            value: m.value,
        }));
    }
    if what.confusion.is_some() {
        let batches = ctx.sql(sql::CONFUSION_ERROR).await?.collect().await?;
        let value = batches.first().map(|b| b.column(0).as_primitive::<Float64Type>().value(0));
        found.push(Score { question: None, name: "confusion_error".to_owned(), value });
    }
    Ok(found)
}

fn url(text: &str) -> Location {
    Location::Url(text.to_owned())
}

async fn questions(ctx: &SessionContext) -> Result<Vec<Option<ScalarValue>>> {
    if !has_column(&ctx.table("labels").await?, "question") {
        return Ok(vec![None]);
    }
    let mut questions = Vec::new();
    for batch in ctx.sql(sql::QUESTIONS).await?.collect().await? {
        for row in 0..batch.num_rows() {
            questions.push(Some(ScalarValue::try_from_array(batch.column(0), row)?));
        }
    }
    Ok(questions)
}

fn has_column(frame: &DataFrame, name: &str) -> bool {
    frame.schema().fields().iter().any(|f| f.name() == name)
}

/// Columns of a table (of one question) as whole arrays.
async fn columns(
    frame: DataFrame,
    question: Option<&ScalarValue>,
    names: &[&str],
) -> Result<Vec<ArrayRef>> {
    let frame = match question {
        Some(value) if has_column(&frame, "question") => {
            frame.filter(col("question").eq(lit(value.clone())))?
        }
        _ => frame,
    };
    let frame = frame.select_columns(names)?;
    let schema = frame.schema().inner().clone();
    let batch = concat_batches(&schema, &frame.collect().await?)?;
    Ok(batch.columns().to_vec())
}

/// The instances that the run and the truth share.
async fn scored(
    ctx: &SessionContext,
    truth: &DataFrame,
    question: Option<&ScalarValue>,
) -> Result<Scored> {
    let classes = ctx.table("classes").await?.sort(vec![col("index").sort(true, true)])?;
    let classes = Ids::in_order(columns(classes, question, &["class"]).await?.swap_remove(0));
    let labels = columns(ctx.table("labels").await?, question, &["instance_id", "label"]).await?;
    let instances = Ids::in_order(ArrayRef::clone(&labels[0]));
    let given = classes.lookup("labels.label", &labels[1])?;
    let truth = columns(truth.clone(), question, &["instance_id", "class"]).await?;
    let as_type = |array: &ArrayRef, like: &Ids| -> Result<ArrayRef> {
        let wanted = like.values().data_type();
        cast(array, wanted).map_err(|_| {
            Error::data(format!("the truth's {} cannot be read as {wanted}", array.data_type()))
                .at("--truth")
        })
    };
    let true_instance = instances.lookup("truth.instance_id", &as_type(&truth[0], &instances)?)?;
    let true_class = as_type(&truth[1], &classes)?;
    let known = classes.lookup("truth.class", &true_class)?;
    // Every class that the run does not know is one more, which nothing was ever given.
    let n_classes = classes.len() + 1;
    let posterior = dense_posterior(ctx, question, &instances, &classes, n_classes).await?;
    let mut scored = Scored::new(n_classes);
    for (row, instance) in true_instance.iter().enumerate() {
        if let Some(i) = instance.map(|i| i as usize)
            && true_class.is_valid(row)
        {
            let truth = known[row].map_or(classes.len(), |k| k as usize);
            let label = given[i].map(|k| k as usize);
            scored.push(label, &posterior[i * n_classes..(i + 1) * n_classes], truth);
        }
    }
    if scored.is_empty() {
        return Err(Error::data("the run and the truth have no instance in common")
            .at("--truth")
            .found(format!("{} instances in the run, {} in the truth", instances.len(), true_instance.len()))
            .help("do the ids have the same form? name the columns with --instance-column and --class-column"));
    }
    Ok(scored.without_idle_class())
}

async fn dense_posterior(
    ctx: &SessionContext,
    question: Option<&ScalarValue>,
    instances: &Ids,
    classes: &Ids,
    n_classes: usize,
) -> Result<Vec<f64>> {
    let mut dense = vec![0.0; instances.len() * n_classes];
    let Ok(table) = ctx.table("posteriors").await else { return Ok(dense) };
    let rows = columns(table, question, &["instance_id", "class", "probability"]).await?;
    let instance = instances.lookup("posteriors.instance_id", &rows[0])?;
    let class = classes.lookup("posteriors.class", &rows[1])?;
    let probability = rows[2].as_primitive::<Float64Type>();
    for (row, place) in instance.into_iter().zip(class).enumerate() {
        if let (Some(i), Some(k)) = place {
            dense[i as usize * n_classes + k as usize] = probability.value(row);
        }
    }
    Ok(dense)
}
