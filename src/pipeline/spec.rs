//! The spec of a whole pipeline file, and the digest that identifies a job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tests_spec::TestSpec;
use crate::decide::{DecideSpec, Ties};
use crate::engine::EngineSpec;
use crate::error::{Error, Problem, Result};
use crate::frame::FrameSpec;
use crate::gate::GateSpec;
use crate::model::calibration::CalibrationSpec;
use crate::model::{Capabilities, FeatureUse, ModelSpec, model_kind};
use crate::sink::{SinkSpec, digest};
use crate::source::{Relation, SourceSpec};
use crate::spec::Problems;
use crate::store::{StoreSpec, secret_problem};
use crate::tables::{InputRecord, SCHEMA_VERSION};

/// A whole pipeline file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineSpec {
    /// The pipeline's name: `sink.keep_runs` deletes older runs of pipelines with the same one.
    pub name: Option<String>,
    /// The seed of every random stream.
    pub seed: u64,
    /// The input.
    pub source: SourceSpec,
    /// How rows become annotations.
    pub frame: FrameSpec,
    /// The model: its `kind`, and its parameters.
    pub model: ModelSpec,
    /// How posteriors and predictions are calibrated.
    pub calibration: CalibrationSpec,
    /// How posteriors become labels.
    pub decide: DecideSpec,
    /// Conditions that must hold before anything is published.
    pub gate: GateSpec,
    /// The output.
    pub sink: SinkSpec,
    /// Resources of the run.
    pub engine: EngineSpec,
    /// How object stores are reached.
    pub store: StoreSpec,
    /// Examples that `labelmill test` runs.
    pub test: Vec<TestSpec>,
}

impl PipelineSpec {
    /// Adds the problems that the JSON Schema cannot find, within a section and between sections.
    pub fn check(&self, location: &str, problems: &mut Problems) {
        self.source.check(location, problems);
        self.sink.check(location, problems);
        let secret = secret_problem(&self.sink.url).map(|p| p.at(format!("{location}: sink.url")));
        secret.into_iter().for_each(|p| problems.push(p));
        self.source.check_sink(&self.sink.url, location, problems);
        self.calibration.check(self.source.has_gold(), location, problems);
        self.engine.check(location, problems);
        if self.sink.keep_runs.is_some() && self.name.as_deref().unwrap_or_default().is_empty() {
            problems.push(
                Problem::new("it is unknown which runs are of the same pipeline")
                    .at(format!("{location}: sink.keep_runs"))
                    .help("give the pipeline a `name`: older runs of pipelines with that name are deleted"),
            );
        }
        if self.gate.min_accuracy.is_some() && !self.source.has_gold() {
            problems.push(
                Problem::new("there is no gold to measure the accuracy on")
                    .at(format!("{location}: gate.min_accuracy"))
                    .help("set source.gold, with rows of the role `holdout`"),
            );
        }
        self.store.check(location, problems);
        let kind = model_kind(&self.model.kind).ok();
        for (n, test) in self.test.iter().enumerate() {
            test.check(&format!("{location}: test[{n}]"), kind, problems);
        }
        match self.model.load() {
            Ok(loaded) => {
                self.check_relations(loaded.needs, location, problems);
                if self.decide.ties == Ties::ByPrior && !loaded.estimates_prior {
                    problems.push(
                        Problem::new(format!("`{}` has no prior to break ties by", self.model.kind))
                            .at(format!("{location}: decide.ties"))
                            .found("\"by_prior\"")
                            .help(
                                "choose another value, or a model that estimates P(class), such as dawid_skene without \
                                 fixed_prior",
                            ),
                    );
                }
                let location = format!("{location}: model");
                (loaded.check)(&location, problems);
                if !self.source.has_gold() {
                    (loaded.check_without_gold)(&location, problems);
                }
            }
            Err(e) => e.problems.into_iter().for_each(|p| problems.push(p)),
        }
    }

    /// Adds to `problems` the relations that the model needs and that the source lacks.
    fn check_relations(&self, uses: Capabilities, location: &str, problems: &mut Problems) {
        if uses.confusion == FeatureUse::Needed && !Relation::Confusion.is_in(&self.source) {
            problems.push(
                Problem::new(format!("`{}` needs confusion matrices", self.model.kind))
                    .at(format!("{location}: source.confusion"))
                    .help(
                        "set source.confusion to a table annotator_id, class, label, probability, or choose a model that \
                         estimates matrices, such as dawid_skene",
                    ),
            );
        }
        let has_predictions =
            uses.predictions.are_read() && Relation::Predictions.is_in(&self.source);
        if uses.features == FeatureUse::Needed && !self.source.has_features() && !has_predictions {
            let help = if uses.predictions.are_read() {
                "set source.features, or source.predictions to probabilities of your own classifier"
            } else {
                "set source.features, or choose a label-only model"
            };
            problems.push(
                Problem::new(format!("`{}` learns from features", self.model.kind))
                    .at(format!("{location}: source.features"))
                    .help(help),
            );
        }
    }

    /// The spec as JSON with every default filled in, those of the model too.
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

    /// The digest that identifies a job, over everything that can change a byte of the tables.
    ///
    /// # Errors
    /// When the model does not load.
    pub(crate) fn digest(&self, inputs: &[InputRecord]) -> Result<String> {
        let mut spec = self.to_json()?;
        if let Some(object) = spec.as_object_mut() {
            for resource in ["name", "engine", "store", "test", "gate"] {
                object.remove(resource);
            }
            if let Some(source) = object.get_mut("source").and_then(Value::as_object_mut) {
                source.remove("on_missing");
            }
            if self.calibration == CalibrationSpec::default() {
                object.remove("calibration");
            }
        }
        let tables = json!([self.sink.tables, self.sink.compression]);
        spec["sink"] = tables;
        let whole = json!([SCHEMA_VERSION, env!("CARGO_PKG_VERSION"), spec, inputs]);
        Ok(digest(whole.to_string()))
    }
}
