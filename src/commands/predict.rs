//! `labelmill predict`: predicts the classes of new features with a saved classifier.

use arrow::datatypes::Schema;
use serde_json::{Value, json};

use super::at_options;
use crate::engine::EngineSpec;
use crate::error::{Error, Result, offenders};
use crate::frame::{Features, Ids, Scratch, number_columns, read_features};
use crate::job_context::JobContext;
#[cfg(feature = "neural")]
use crate::model::neural::DeviceChoice;
use crate::model::posterior::Posterior;
use crate::model::{Predicted, SavedModel, model_kind};
use crate::pipeline::inputs;
use crate::sink::model_files::{calibrator_of, classes_of, cleaning_of, load};
use crate::sink::{
    self, Advice, BeginOutcome, Contents, JobIdentity, Published, Publisher, RunTables, SinkSpec,
    digest,
};
use crate::source::{ColumnsSpec, InferenceScope, Location, Source, SourceSpec, sink_problem};
use crate::store::StoreSpec;
use crate::tables::{self, RunRecord, SCHEMA_VERSION};

/// The arguments of `labelmill predict`.
pub struct Prediction<'a> {
    /// A run's folder, the folder that a sink published to, or a model's own folder.
    pub model: &'a str,
    /// New features.
    pub features: &'a str,
    /// The folder for the predictions.
    pub output: &'a str,
    /// The columns' names in the files.
    pub columns: ColumnsSpec,
    /// Threads, memory and scratch folder.
    pub engine: EngineSpec,
    /// The device to compute on; `None` for the device in the model's own parameters.
    pub device: Option<&'a str>,
    /// Whether to predict again even if this job is already committed.
    pub force: bool,
}

/// The options in place of the keys of a pipeline file.
const OPTIONS: [(&str, &str); 5] = [
    ("source.features", "--features"),
    ("engine.memory_limit", "--memory-limit"),
    ("engine.scratch", "--scratch"),
    ("sink.url", "--output"),
    ("sink.run_id", "--output"),
];

pub(crate) const ADVICE: Advice = Advice {
    taken: "choose another folder, or pass --force to publish under another run id",
    taken_meanwhile: "choose another folder, or pass --force to publish under another run id",
    swept: "run the command again, on a machine that does not suspend it",
};

/// The pipeline of every run of predictions.
const PIPELINE: &str = "command predict";

/// Predicts new features with a saved model, and publishes the table `predictions`.
///
/// # Errors
/// When the model or the features cannot be read, or do not match each other, or the output is a folder of other runs.
pub async fn predict(
    what: &Prediction<'_>,
    stores: &StoreSpec,
    job: &mut JobContext,
) -> Result<Published<RunRecord>> {
    predict_and_publish(what, stores, job).await.map_err(|e| at_options(e, &OPTIONS))
}

async fn predict_and_publish(
    what: &Prediction<'_>,
    stores: &StoreSpec,
    job: &mut JobContext,
) -> Result<Published<RunRecord>> {
    if let Some(problem) = sink_problem("--features", what.features, what.output) {
        return Err(Error::spec_problems(vec![problem.at("--output")]));
    }
    #[cfg(feature = "neural")]
    if let Some(name) = what.device {
        DeviceChoice::parse(name).map_err(|e| e.at("--device"))?;
    }
    let (description, bytes) = load(what.model, stores).await.map_err(|e| e.or_at("--model"))?;
    let classes = classes_of(&description)?;
    let calibrator = calibrator_of(&description, classes.len()).map_err(|e| e.or_at("--model"))?;
    // Ids are read by the rules that the model's run was made with, so that its tables and the predictions meet.
    let cleaning = cleaning_of(&description).map_err(|e| e.or_at("--model"))?;
    let ctx = what.engine.session()?;
    let spec = SourceSpec {
        features: Some(Location::Url(what.features.to_owned())),
        columns: what.columns.clone(),
        null_values: cleaning.null_values,
        normalise: cleaning.normalise,
        ..SourceSpec::default()
    };
    let source = Source::list(&spec, stores, &RunTables, job).await?;
    let inputs = inputs(&source);
    let parameters = digest(&bytes);
    let versions = json!([SCHEMA_VERSION, env!("CARGO_PKG_VERSION")]);
    let model = json!([description, parameters, what.device]);
    let identity = json!([versions, model, what.features, inputs, what.columns]);
    let digest = digest(identity.to_string());
    let pipeline = PIPELINE.to_owned();
    let identity = JobIdentity { digest, run_id: None, pipeline, advice: ADVICE };
    let sink = SinkSpec { url: what.output.to_owned(), ..SinkSpec::default() };
    let sink = sink::open(&sink, stores)?;
    refuse_other_runs(sink.as_ref(), what.output).await?;
    let run_id = match sink.begin(&identity, what.force).await? {
        BeginOutcome::Done(run) => return sink.done_before(*run).await,
        BeginOutcome::New(run_id) => run_id,
    };
    let began = job.clock.seconds();
    source.open(&ctx, InferenceScope::Whole).await?;
    let learned = learned_columns(&description)?;
    let query = source
        .features_for(&ctx, &learned, job)
        .await?
        .ok_or_else(|| Error::bug("no features were registered"))?;
    let table = ctx.table_provider("features").await?.schema();
    check_columns(&number_columns(query.schema().inner()), &learned, &table, job)?;
    let features =
        read_features(query, Scratch::from_engine(&what.engine), "--features", job).await;
    source.check_unchanged().await?;
    let features = features?;
    let read_at = job.clock.seconds();
    let Predicted { classes: predictions, device } = tokio::task::block_in_place(|| {
        job.pool().install(|| -> Result<Predicted> {
            let mut predicted = through(&description, &bytes, &features, what.device, job)?;
            if let Some(calibrator) = &calibrator {
                calibrator.apply_to(&mut predicted.classes, |_| true);
            }
            Ok(predicted)
        })
    })?;
    job.keep_warnings_of_machine();
    let rows = predictions.len() as u64;
    let record = RunRecord {
        run_id,
        spec: description.to_string(),
        inputs,
        rows_read: rows,
        rows_used: rows,
        device,
        converged: true,
        seconds_reading: read_at - began,
        seconds_fitting: job.clock.seconds() - read_at,
        peak_memory_bytes: crate::job_context::peak_memory_bytes(),
        warnings: job.warnings().to_vec(),
        ..RunRecord::default()
    };
    let predictions = tables::predictions(&features.ids, &classes, &predictions);
    let run_table = tables::run(&record);
    let contents = Contents { tables: vec![&predictions, &run_table], ..Contents::default() };
    let run = sink.publish(&record.run_id, &identity, &contents, job).await?;
    drop(contents);
    drop(run_table);
    Ok(sink.published(run, Some(record)).await)
}

/// Refuses a folder whose newest run is not one of predictions: `latest` would lead to the predictions, where other jobs
/// look for that run's labels and its model.
async fn refuse_other_runs(sink: &dyn Publisher, output: &str) -> Result<()> {
    let Some(run_id) = sink.latest().await? else { return Ok(()) };
    match sink.committed(&run_id).await? {
        Some(newest) if newest.pipeline != PIPELINE => Err(Error::spec(
            "the folder holds runs other than predictions, and `latest` would leave them",
        )
        .at(format!("--output {}", output.trim_end_matches('/')))
        .found(format!("the run `{run_id}`"))
        .help("choose another folder")),
        _ => Ok(()),
    }
}

/// The names of the columns that the model learned from; none where it learned from lists.
fn learned_columns(description: &Value) -> Result<Vec<String>> {
    let learned: Option<Vec<String>> = serde_json::from_value(description["columns"].clone())
        .map_err(|_| {
            Error::data("the names of the columns that the model learned from cannot be read")
                .at("--model")
                .found(description["columns"].to_string().chars().take(80).collect::<String>())
                .help("the file is damaged: take it from the run that wrote it")
        })?;
    Ok(learned.unwrap_or_default())
}

/// Checks that the given columns of numbers, none where lists are given, are those that the model learned from; `table`
/// has all columns. Where either are lists, there are no names to compare, and `run` is warned.
fn check_columns(
    given: &[String],
    learned: &[String],
    table: &Schema,
    job: &mut JobContext,
) -> Result<()> {
    match (given, learned) {
        ([], []) => {}
        ([], learned) => job.warn(format!(
            "the model learned from columns, and the features are lists: it is not checked that the numbers of a list \
             are in the order of {}",
            offenders(learned)
        )),
        (given, []) => job.warn(format!(
            "the model learned from lists, and the features are columns: it is not checked that the numbers of its lists \
             were in the order of {}",
            offenders(given)
        )),
        (given, learned) => {
            let unread = learned.iter().filter(|name| !given.contains(name));
            let (others, missing): (Vec<&String>, Vec<&String>) =
                unread.partition(|name| table.field_with_name(name).is_ok());
            let error = |what: &str, names: Vec<&String>, help: &str| {
                let error = Error::data(what).at("--features").found(offenders(&names)).help(help);
                (!names.is_empty()).then_some(error)
            };
            let missing = error(
                "columns that the model learned from are missing",
                missing,
                "give every column under the name that it had for training",
            );
            let others = error(
                "columns that the model learned from do not hold numbers alone",
                others,
                "write a number in every row",
            );
            Error::all(missing.into_iter().chain(others))?;
        }
    }
    Ok(())
}

fn through(
    description: &Value,
    bytes: &[u8],
    features: &Features,
    device: Option<&str>,
    job: &JobContext,
) -> Result<Predicted> {
    let kind = description["kind"].as_str().unwrap_or_default();
    let predict = model_kind(kind)?
        .predict
        .ok_or_else(|| Error::data(format!("`{kind}` learns no classifier")).at("--model"))?;
    let model = SavedModel::new(description, bytes, device);
    let predicted = predict(model, &features.matrix, job).map_err(|e| e.or_at("--features"))?;
    check_finite(&predicted.classes, &features.ids)?;
    Ok(predicted)
}

/// Refuses predictions that are not finite.
///
/// # Errors
/// When one of them is not; the error names its instance.
fn check_finite(predictions: &Posterior, ids: &Ids) -> Result<()> {
    let Some(at) = predictions.values().iter().position(|p| !p.is_finite()) else {
        return Ok(());
    };
    let instance = ids.text(at / predictions.n_classes());
    Err(Error::data("a prediction is not a number")
        .at("--features")
        .found(format!("{} for the instance `{instance}`", predictions.values()[at]))
        .help("are its features on another scale than those of the training? Otherwise the model's files are damaged: take them from the run that wrote them"))
}

#[cfg(all(test, feature = "neural"))]
mod tests {
    use super::*;
    use crate::pipeline;
    use crate::spec::Overrides;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_prediction_keeps_the_warnings_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
        write("in.csv", "instance_id,annotator_id,label\n1,a,x\n2,a,y\n");
        write("features.csv", "instance_id,h\n1,0\n2,1\n");
        let (annotations, features) = (path("in.csv"), path("features.csv"));
        let text = format!(
            "source = {{ annotations = '{annotations}', features = '{features}' }}
             model = {{ kind = 'dl', train.epochs = 1 }}\nsink.url = '{}'",
            path("out")
        );
        let spec = pipeline::load(&text, "pipeline.toml", &Overrides::default()).unwrap();
        pipeline::run(&spec, pipeline::Rerun::default(), &mut JobContext::new(0)).await.unwrap();
        let (model, output) = (path("out"), path("predicted"));
        let what = Prediction {
            model: &model,
            features: &features,
            output: &output,
            columns: ColumnsSpec::default(),
            engine: EngineSpec::default(),
            device: None,
            force: false,
        };
        let mut job = JobContext::new(0);
        job.warn_of_machine("no GPU".to_owned());
        let done = predict(&what, &StoreSpec::default(), &mut job).await.unwrap();
        assert_eq!(done.outcome.unwrap().warnings, ["no GPU"]);
    }
}
