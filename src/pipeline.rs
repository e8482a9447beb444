//! The whole job on one screen: `source -> frame -> model -> tables -> sink`.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::behaviour::TestSpec;
use crate::decide::{DecideSpec, Tally};
use crate::engine::EngineSpec;
use crate::error::{Error, Problem, Result};
use crate::frame::{Frame, FrameSpec, Relations, Role, Scratch, collect};
use crate::gate::GateSpec;
use crate::model::{FAMILIES, ModelSpec, family, switching};
use crate::run::Run;
use crate::scored::Scored;
use crate::sink::{Manifest, Sink, SinkSpec};
use crate::source::{Source, SourceSpec};
use crate::spec::Problems;
use crate::store::StoreSpec;
use crate::tables::metrics::Metric;
use crate::tables::{Answer, InputRecord, Outcome, RunRecord, SCHEMA_VERSION};

/// A whole pipeline file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineSpec {
    /// The seed of every random stream.
    pub seed: u64,
    /// Where the input is.
    pub source: SourceSpec,
    /// How rows become annotations.
    pub frame: FrameSpec,
    /// The model: its `kind`, and its parameters.
    pub model: ModelSpec,
    /// How posteriors become labels.
    pub decide: DecideSpec,
    /// What must hold before anything is published.
    pub gate: GateSpec,
    /// Where the tables go.
    pub sink: SinkSpec,
    /// Resources of the run.
    pub engine: EngineSpec,
    /// How object stores are reached.
    pub store: StoreSpec,
    /// Examples that `labelmill test` runs.
    pub test: Vec<TestSpec>,
}

/// The JSON Schema of a pipeline file: that of the structs, with `[model]` spelled out for every kind.
#[must_use]
pub fn schema() -> Value {
    let mut root = schema_for!(PipelineSpec).to_value();
    let mut definitions = serde_json::Map::new();
    let models: Vec<Value> = FAMILIES
        .iter()
        .map(|family| {
            let mut model = (family.schema)().to_value();
            if let Some(Value::Object(own)) = model.get_mut("$defs").map(Value::take) {
                definitions.extend(own);
            }
            let kind = json!({"const": family.kind, "description": family.summary});
            model["properties"]["kind"] = kind;
            model["required"] = json!(["kind"]);
            if let Some(object) = model.as_object_mut() {
                object.remove("$defs");
                object.remove("$schema");
            }
            model
        })
        .collect();
    if let Some(Value::Object(all)) = root.get_mut("$defs") {
        all.extend(definitions);
        all.insert("ModelSpec".to_owned(), json!({"oneOf": models}));
    }
    root
}

impl PipelineSpec {
    /// Adds the problems that only show between fields.
    pub fn check(&self, place: &str, problems: &mut Problems) {
        self.source.check(place, problems);
        self.sink.check(place, problems);
        self.engine.check(place, problems);
        if family(&self.model.kind).is_ok_and(|f| f.needs_features) && !self.source.has_features() {
            problems.push(
                Problem::new(format!("`{}` learns from features", self.model.kind))
                    .at(format!("{place}: source.features"))
                    .help("set source.features, or choose a label-only model"),
            );
        }
        match self.model.load() {
            Ok(loaded) => (loaded.check)(&format!("{place}: model"), problems),
            Err(e) => e.problems.into_iter().for_each(|p| problems.push(p)),
        }
    }

    /// The spec as JSON with every default filled in, the model's too.
    ///
    /// # Errors
    /// When the model does not load.
    pub fn to_json(&self) -> Result<Value> {
        let mut value = serde_json::to_value(self)
            .map_err(|e| Error::bug(format!("the spec has no JSON form: {e}")))?;
        let mut model = self.model.load()?.parameters;
        model["kind"] = json!(self.model.kind);
        value["model"] = model;
        Ok(value)
    }

    /// What makes two runs the same job: everything that can change a byte of the tables.
    ///
    /// # Errors
    /// When the model does not load.
    pub(crate) fn digest(&self, inputs: &[InputRecord]) -> Result<String> {
        let mut spec = self.to_json()?;
        if let Some(object) = spec.as_object_mut() {
            for resource in ["engine", "store", "test", "gate"] {
                object.remove(resource);
            }
        }
        let tables = json!([self.sink.tables, self.sink.compression]);
        spec["sink"] = tables;
        let whole = json!([SCHEMA_VERSION, env!("CARGO_PKG_VERSION"), spec, inputs]);
        Ok(format!("{:x}", Sha256::digest(whole.to_string().as_bytes())))
    }
}

/// How a run ended.
pub struct Published {
    /// What was committed.
    pub manifest: Manifest,
    /// The run's folder.
    pub folder: String,
    /// What it was made of; `None` where the same job had been done before.
    pub outcome: Option<Arc<Outcome>>,
}

/// Runs the job. With `force`, a job that was done before is done again, under an id of its own.
///
/// # Errors
/// By the stage that failed; nothing is published then.
pub async fn run(spec: &PipelineSpec, force: bool, run: &mut Run) -> Result<Published> {
    let ctx = spec.engine.session()?;
    let source = Source::register(&ctx, &spec.source, &spec.store).await?;
    let inputs = inputs(&source);
    let digest = spec.digest(&inputs)?;
    let sink = Sink::open(&spec.sink, &spec.store)?;
    let wanted = spec.sink.run_id.clone().unwrap_or_else(|| digest[..16].to_owned());
    if let Some(manifest) = sink.committed(&wanted).await?
        && !force
    {
        return same_job(&sink, manifest, &digest).await;
    }
    let run_id = sink.free_id(&wanted).await?;
    let began = run.clock.seconds();
    let frames = read(spec, &ctx, &source, run).await?;
    let read_at = run.clock.seconds();
    let mut checkpoints = Checkpoints::of(spec, &digest);
    let mut outcome = tokio::task::block_in_place(|| fit(spec, frames, &mut checkpoints, run))?;
    let rows = |count: fn(&Frame) -> u64| outcome.answers.iter().map(|a| count(&a.frame)).sum();
    outcome.run = RunRecord {
        run_id,
        spec: spec.to_json()?.to_string(),
        seed: spec.seed,
        inputs,
        rows_read: rows(|f| f.rows_read),
        rows_used: rows(Frame::rows_used),
        rows_rejected: rows(|f| f.rejects.total()),
        device: outcome.answers[0].fitted.device.clone(),
        converged: outcome.answers.iter().all(|a| a.fitted.stop.converged),
        seconds_reading: read_at - began,
        seconds_fitting: run.clock.seconds() - read_at,
        peak_memory_bytes: crate::run::peak_memory_bytes(),
        warnings: run.warnings().to_vec(),
    };
    spec.gate.check(&outcome)?;
    let outcome = Arc::new(outcome);
    let manifest = sink.publish(Arc::clone(&outcome), &digest, run).await?;
    checkpoints.remove();
    Ok(Published { folder: sink.folder(&manifest.run_id), manifest, outcome: Some(outcome) })
}

/// Where the fits of one job keep their state, one file a question; gone when the job is committed.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    /// What every file's path begins with.
    stem: Option<String>,
    files: Vec<PathBuf>,
}

impl Checkpoints {
    fn of(spec: &PipelineSpec, digest: &str) -> Self {
        let folder = spec.engine.checkpoints.as_deref();
        let stem = folder.map(|f| format!("{}/{}", f.trim_end_matches('/'), &digest[..16]));
        Self { stem, files: Vec::new() }
    }

    /// The file of the next question.
    fn next(&mut self) -> Option<PathBuf> {
        let stem = self.stem.as_ref()?;
        let file = PathBuf::from(format!("{stem}-{}.checkpoint", self.files.len()));
        self.files.push(file.clone());
        Some(file)
    }

    /// What is left is of no use, and harms nothing if it stays.
    fn remove(&self) {
        self.files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// Reads the relations into one frame for each question.
///
/// # Errors
/// When a query does not plan, a file cannot be read, or no usable row is left.
pub async fn read(
    spec: &PipelineSpec,
    ctx: &datafusion::prelude::SessionContext,
    source: &Source,
    run: &Run,
) -> Result<Vec<Frame>> {
    let mut relations = Relations {
        annotations: source.annotations(ctx).await?,
        gold: source.gold(ctx).await?,
        features: None,
        annotator_features: None,
    };
    if family(&spec.model.kind)?.needs_features {
        let features = source.features(ctx).await?;
        relations.features = features.map(|query| (query, Scratch::of(&spec.engine)));
        relations.annotator_features = source.annotator_features(ctx).await?;
    }
    collect(relations, &spec.frame, run).await.map_err(|e| e.or_at("source.annotations"))
}

/// Fits the model to each question's frame and scores it against the gold that it was not told.
///
/// # Errors
/// When the model fails, or returns what is no number.
pub fn fit(
    spec: &PipelineSpec,
    frames: Vec<Frame>,
    checkpoints: &mut Checkpoints,
    run: &mut Run,
) -> Result<Outcome> {
    let loaded = spec.model.load()?;
    let mut answers = Vec::with_capacity(frames.len());
    for frame in frames {
        let pool = run.pool();
        run.keep_checkpoint(checkpoints.next());
        let fitted = pool.install(|| loaded.model.fit(frame.evidence(), run))?;
        if let Some(what) = fitted.not_finite() {
            return Err(Error::new(
                crate::error::Stage::Bug,
                Problem::new(format!("the fit gave a number that is none: {what}")).at("model"),
            ));
        }
        if let Some(confusion) = &fitted.report.confusion
            && let Some(names) = switching::switched(&frame.annotations, confusion)
        {
            run.warn(switch_warning(&frame, &names));
        }
        let tally =
            pool.install(|| Tally::count(&spec.decide, &frame.annotations, &fitted, spec.seed));
        answers.push(Answer { frame, fitted, tally });
    }
    let mut outcome = Outcome {
        answers,
        decide: spec.decide.clone(),
        metrics: Vec::new(),
        run: RunRecord { seed: spec.seed, ..RunRecord::default() },
    };
    outcome.metrics = score(&outcome);
    Ok(outcome)
}

async fn same_job(sink: &Sink, manifest: Manifest, digest: &str) -> Result<Published> {
    if manifest.digest != digest {
        return Err(Error::spec("the run id belongs to another job")
            .at("sink.run_id")
            .found(format!("`{}`, committed {}", manifest.run_id, manifest.committed_at))
            .help("choose another run id, or pass --force to publish under a numbered one"));
    }
    sink.point_latest(&manifest.run_id).await?;
    Ok(Published { folder: sink.folder(&manifest.run_id), manifest, outcome: None })
}

/// The files behind every source.
pub(crate) fn inputs(source: &Source) -> Vec<InputRecord> {
    let record = |name: &str, object: &object_store::ObjectMeta| InputRecord {
        source: name.to_owned(),
        path: object.location.to_string(),
        bytes: object.size,
        version: object.e_tag.clone().unwrap_or_else(|| object.last_modified.to_rfc3339()),
    };
    let files = source.files.iter();
    files.flat_map(|(name, files)| files.objects.iter().map(move |o| record(name, o))).collect()
}

fn switch_warning(frame: &Frame, names: &[usize]) -> String {
    let moved = names.iter().enumerate().filter(|(k, l)| k != *l);
    let pairs =
        moved.map(|(k, l)| format!("{} as {}", frame.labels.text(k), frame.labels.text(*l)));
    format!(
        "the annotators agree better with the classes under other names ({}): the fit may have switched labels; \
         compare with majority_vote, or give some gold",
        crate::error::offenders(pairs)
    )
}

/// Every metric of every question and role that the model was not told.
fn score(outcome: &Outcome) -> Vec<(usize, Metric)> {
    let mut metrics = Vec::new();
    for (question, Answer { frame, fitted, .. }) in outcome.answers.iter().enumerate() {
        let a = &frame.annotations;
        // What an instance without evidence has in `posteriors` too: nothing, whatever the model fills in.
        let nothing = vec![0.0; a.dims().classes];
        for role in Role::ALL.into_iter().filter(|r| !r.trains()) {
            let mut scored = Scored::new(a.dims().classes);
            for gold in frame.gold.iter().filter(|g| g.role == role) {
                let i = gold.instance as usize;
                let decided = outcome.decide.decide(a, fitted, outcome.run.seed, i);
                let row = if a.has_evidence(i) { fitted.posterior.row(i) } else { &nothing };
                scored.push(decided.class.map(|c| c as usize), row, gold.class as usize);
            }
            if !scored.is_empty() {
                metrics.extend(scored.all("", role.word()).into_iter().map(|m| (question, m)));
            }
            if let (Some(predictions), Some(described)) = (&fitted.predictions, &frame.described) {
                let mut scored = Scored::new(predictions.n_classes());
                for gold in described.gold.iter().filter(|g| g.role == role) {
                    let row = predictions.row(gold.instance as usize);
                    scored.push_prediction(row, gold.class as usize);
                }
                if !scored.is_empty() {
                    let all = scored.all("prediction_", role.word());
                    metrics.extend(all.into_iter().map(|m| (question, m)));
                }
            }
        }
    }
    metrics
}
