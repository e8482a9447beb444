//! A trained classifier as files beside a run's tables, and `predict`: new features through it.
//!
//! ```text
//! model/model.json          kind, parameters, sizes, the classes in their order with their type
//! model/model.safetensors   every number
//! ```
//! With several questions each has a folder of its own: `model/0`, `model/1`, ... in the order of the questions.

use std::str::FromStr;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray, new_empty_array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Column;
use datafusion::logical_expr::Expr;
use datafusion::prelude::DataFrame;
use object_store::ObjectStoreExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::decide::{DecideSpec, Tally};
use crate::engine::EngineSpec;
use crate::error::{Error, Result, offenders};
use crate::frame::{
    Annotations, Described, Dims, Duplicates, Features, Frame, Ids, Rejects, Rows, Scratch,
    number_columns, read_features,
};
use crate::model::fitted::{Fitted, Posterior, Report, Stop, on_cpu};
use crate::model::{Predicted, SavedModel, family};
use crate::pipeline::{Published, inputs};
use crate::run::Run;
use crate::sink::{Sink, SinkSpec};
use crate::source::{ColumnsSpec, Location, Source, SourceSpec, run_folder};
use crate::store::{StoreSpec, open, parse_url};
use crate::tables::{Answer, Outcome, RunRecord};

const DESCRIPTION: &str = "model.json";
const PARAMETERS: &str = "model.safetensors";

/// The files of every trained classifier of a run, by path below the run's folder.
///
/// # Errors
/// When the classes have a type that has no text.
pub fn files(outcome: &Outcome) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for (n, Answer { frame, fitted, .. }) in outcome.answers.iter().enumerate() {
        let Some(trained) = &fitted.model else { continue };
        let folder =
            if frame.question.is_some() { format!("model/{n}") } else { "model".to_owned() };
        let classes = frame.labels.values().slice(0, frame.annotations.dims().classes);
        let mut description = trained.description.clone();
        description["labelmill"] = json!(env!("CARGO_PKG_VERSION"));
        description["classes"] = typed(&classes)?;
        let described = frame.described.as_ref();
        if let Some(described) = described.filter(|d| !d.features.columns.is_empty()) {
            description["columns"] = json!(described.features.columns);
        }
        description["instance_type"] = json!(frame.instances.values().data_type().to_string());
        if let Some(question) = &frame.question {
            description["question"] = json!(question.text(0));
        }
        let text = serde_json::to_vec_pretty(&description).unwrap_or_default();
        files.push((format!("{folder}/{DESCRIPTION}"), text));
        files.push((format!("{folder}/{PARAMETERS}"), trained.parameters.clone()));
    }
    Ok(files)
}

/// Values with their type, as JSON.
fn typed(values: &ArrayRef) -> Result<Value> {
    let text = cast(values, &DataType::Utf8)?;
    let text: Vec<Option<&str>> = text.as_string::<i32>().iter().collect();
    Ok(json!({"type": values.data_type().to_string(), "values": text}))
}

fn untyped(value: &Value) -> Result<ArrayRef> {
    let damaged = || Error::data("the model's classes cannot be read").at(DESCRIPTION);
    let name = value["type"].as_str().ok_or_else(damaged)?;
    let data_type = DataType::from_str(name).map_err(|_| damaged())?;
    let values = value["values"].as_array().ok_or_else(damaged)?;
    let text: StringArray = values.iter().map(|v| v.as_str()).collect();
    Ok(cast(&text, &data_type)?)
}

/// The classes in the model's order.
fn classes_of(description: &Value) -> Result<Ids> {
    let classes = Ids::in_order(untyped(&description["classes"])?);
    let learned = &description["sizes"]["classes"];
    if *learned != json!(classes.len()) {
        return Err(Error::data("the model's classes are not those that it learned")
            .at(DESCRIPTION)
            .found(format!("{} in the list, where the network tells {learned}", classes.len()))
            .help("the list belongs to the numbers: take both from the run that wrote them"));
    }
    Ok(classes)
}

/// The features in the order that the model learned from, where both are columns: other columns are left out.
fn as_learned(query: DataFrame, description: &Value) -> Result<DataFrame> {
    let learned: Vec<String> =
        serde_json::from_value(description["columns"].clone()).unwrap_or_default();
    let given = number_columns(query.schema().inner());
    if learned.is_empty() || given.is_empty() {
        return Ok(query);
    }
    let missing: Vec<&String> = learned.iter().filter(|name| !given.contains(name)).collect();
    if !missing.is_empty() {
        return Err(Error::data("columns that the model learned from are missing")
            .at("--features")
            .found(offenders(missing))
            .help("give every column under the name that it had for training"));
    }
    let column = |name: &str| Expr::Column(Column::new_unqualified(name));
    let columns = std::iter::once("instance_id").chain(learned.iter().map(String::as_str));
    Ok(query.select(columns.map(column).collect::<Vec<_>>())?)
}

/// What `labelmill predict` was asked for.
pub struct Prediction<'a> {
    /// A run's folder, the folder that a sink published to, or a model's own folder.
    pub model: &'a str,
    /// New features.
    pub features: &'a str,
    /// Where the predictions go.
    pub output: &'a str,
    /// The columns' names in the files.
    pub columns: ColumnsSpec,
    /// Threads, memory and scratch folder.
    pub engine: EngineSpec,
    /// Where to compute, if not where the model was told to.
    pub device: Option<&'a str>,
    /// Whether to predict again what was predicted before.
    pub force: bool,
}

/// Predicts new features with a saved model, and publishes the table `predictions`.
///
/// # Errors
/// When the model or the features cannot be read, or do not fit each other.
pub async fn predict(
    what: &Prediction<'_>,
    stores: &StoreSpec,
    run: &mut Run,
) -> Result<Published> {
    let (description, bytes) = load(what.model, stores).await.map_err(|e| e.or_at("--model"))?;
    let classes = classes_of(&description)?;
    let ctx = what.engine.session()?;
    let spec = SourceSpec {
        features: Some(Location::Url(what.features.to_owned())),
        columns: what.columns.clone(),
        ..SourceSpec::default()
    };
    let source = Source::register(&ctx, &spec, stores).await?;
    let inputs = inputs(&source);
    let parameters = format!("{:x}", Sha256::digest(&bytes));
    let identity = json!([description, inputs, what.columns, parameters]);
    let digest = format!("{:x}", Sha256::digest(identity.to_string().as_bytes()));
    let tables = ["predictions", "run"].map(str::to_owned).to_vec();
    let sink =
        SinkSpec { url: what.output.to_owned(), tables: Some(tables), ..SinkSpec::default() };
    let sink = Sink::open(&sink, stores)?;
    if let Some(manifest) = sink.committed(&digest[..16]).await?
        && !what.force
    {
        sink.point_latest(&manifest.run_id).await?;
        return Ok(Published { folder: sink.folder(&manifest.run_id), manifest, outcome: None });
    }
    let run_id = sink.free_id(&digest[..16]).await?;
    let began = run.clock.seconds();
    let query =
        source.features(&ctx).await?.ok_or_else(|| Error::bug("no features were registered"))?;
    let query = as_learned(query, &description)?;
    let features = read_features(query, Scratch::of(&what.engine), "--features", run).await?;
    let read_at = run.clock.seconds();
    let Predicted { classes: predictions, device } = tokio::task::block_in_place(|| {
        run.pool().install(|| through(&description, &bytes, &features, what.device, run))
    })?;
    let mut outcome = outcome(classes, features, predictions)?;
    let rows = outcome.answers[0].fitted.predictions.as_ref().map_or(0, Posterior::len) as u64;
    outcome.run = RunRecord {
        run_id,
        spec: description.to_string(),
        inputs,
        rows_read: rows,
        rows_used: rows,
        device,
        converged: true,
        seconds_reading: read_at - began,
        seconds_fitting: run.clock.seconds() - read_at,
        peak_memory_bytes: crate::run::peak_memory_bytes(),
        warnings: run.warnings().to_vec(),
        ..RunRecord::default()
    };
    let outcome = Arc::new(outcome);
    let manifest = sink.publish(Arc::clone(&outcome), &digest, run).await?;
    Ok(Published { folder: sink.folder(&manifest.run_id), manifest, outcome: Some(outcome) })
}

/// A model's description and numbers.
async fn load(url: &str, stores: &StoreSpec) -> Result<(Value, Vec<u8>)> {
    let own = open(&parse_url(url.trim_end_matches('/'))?, stores)?;
    let folder = match own.store.head(&own.path.clone().join(DESCRIPTION)).await {
        Ok(_) => url.trim_end_matches('/').to_owned(),
        Err(_) => format!("{}/model", run_folder(url, stores).await?),
    };
    let place = open(&parse_url(&folder)?, stores)?;
    let read = async |name: &str| -> Result<Vec<u8>> {
        match place.store.get(&place.path.clone().join(name)).await {
            Ok(found) => Ok(found.bytes().await?.to_vec()),
            Err(object_store::Error::NotFound { .. }) => {
                Err(Error::data("there is no trained model here")
                    .found(format!("no {folder}/{name}"))
                    .help("name a run of a model that learns from features, or its model folder"))
            }
            Err(e) => Err(Error::from(e)),
        }
    };
    let description = serde_json::from_slice(&read(DESCRIPTION).await?)
        .map_err(|e| Error::data(format!("the model's description cannot be read: {e}")))?;
    Ok((description, read(PARAMETERS).await?))
}

fn through(
    description: &Value,
    bytes: &[u8],
    features: &Features,
    device: Option<&str>,
    run: &Run,
) -> Result<Predicted> {
    let kind = description["kind"].as_str().unwrap_or_default();
    let predict = family(kind)?
        .predict
        .ok_or_else(|| Error::data(format!("`{kind}` learns no classifier")).at("--model"))?;
    let model = SavedModel {
        parameters: description["parameters"].clone(),
        sizes: description["sizes"].clone(),
        bytes,
        device,
    };
    predict(model, &features.matrix, run).map_err(|e| e.or_at("--features"))
}

/// Predictions as the outcome of a run without annotations.
fn outcome(classes: Ids, features: Features, predictions: Posterior) -> Result<Outcome> {
    let nobody = Ids::in_order(new_empty_array(&DataType::Utf8));
    let dims = Dims { instances: 0, annotators: 0, classes: classes.len(), labels: classes.len() };
    let annotations = Annotations::build(dims, Rows::default(), Duplicates::Keep)
        .map_err(|_| Error::bug("no annotations repeat themselves"))?;
    let fitted = Fitted {
        posterior: Posterior::zeros(0, classes.len()),
        predictions: Some(predictions),
        report: Report::default(),
        trace: Vec::new(),
        stop: Stop { converged: true, iterations: 0 },
        model: None,
        device: on_cpu(),
    };
    let frame = Frame {
        question: None,
        annotations,
        instances: Ids::in_order(new_empty_array(features.ids.values().data_type())),
        annotators: nobody,
        labels: classes,
        gold: Vec::new(),
        described: Some(Described {
            features,
            row_of_instance: Vec::new(),
            gold: Vec::new(),
            annotators: None,
        }),
        rejects: Rejects::default(),
        rows_read: 0,
    };
    let answer = Answer { frame, fitted, tally: Tally::default() };
    Ok(Outcome {
        answers: vec![answer],
        decide: DecideSpec::default(),
        metrics: Vec::new(),
        run: RunRecord::default(),
    })
}
