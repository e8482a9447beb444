//! The spec of a neural model: the sections that all neural models have, and the model's own settings.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::data::inputs::{EmbeddingInput, LearnerInput};
use super::data::sizes::Sizes;
use super::objective::network_spec::NetworkSpec;
use super::objective::train_spec::{BatchBy, Select};
use super::train::learners::learner::{CLASSIFIER, LearnerSpec};
use crate::error::Problem;
use crate::frame::{Annotations, QuestionFeatures};
use crate::model::neural::device::DeviceChoice;
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::settings::preset::Preset;
use crate::model::{Capabilities, Spec};
use crate::spec::Problems;

/// A model with its network: the section `[model]` for a neural kind, which holds the keys of both structs.
///
/// # Why
/// The model's struct holds only its own settings, so it repeats no shared key and its loss cannot depend on the
/// device. Both structs are flattened: each takes the keys that it knows, and `deny_unknown_fields` of this struct
/// rejects all other keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Neural<N> {
    /// Device, backbone and training.
    #[serde(flatten)]
    pub network: NetworkSpec,
    /// The model's own parameters.
    #[serde(flatten)]
    pub model: N,
}

/// The JSON schema of the model, extended by the properties of [`NetworkSpec`].
impl<N: CrowdNet> JsonSchema for Neural<N> {
    fn schema_name() -> Cow<'static, str> {
        N::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        N::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = N::json_schema(generator);
        let common = NetworkSpec::json_schema(generator).remove("properties");
        let own = schema.ensure_object().entry("properties").or_insert_with(|| json!({}));
        if let (Value::Object(own), Some(Value::Object(mut common))) = (own, common) {
            common["train"]["description"] = json!(N::TRAINING);
            own.append(&mut common);
        }
        schema
    }
}

impl<N: CrowdNet> Neural<N> {
    /// Adds to `problems` what the model cannot do with gold.
    fn check_gold(&self, location: &str, problems: &mut Problems) {
        let NetworkSpec { fine_tune, hold_back_gold, init_from_gold, .. } = self.network;
        let of_tuning = "has no classifier that trusted classes alone could train";
        let refused = [
            ("fine_tune", fine_tune > 0 && !N::FINE_TUNES, of_tuning),
            ("hold_back_gold", hold_back_gold && !N::FINE_TUNES, of_tuning),
            (
                "init_from_gold",
                init_from_gold && !N::STARTS_AT_MATRICES,
                "has no start at confusion matrices",
            ),
        ];
        for (key, _, why) in refused.into_iter().filter(|(_, is_refused, _)| *is_refused) {
            problems.push(
                Problem::new(format!("`{}` {why}", N::KIND))
                    .at(format!("{location}.{key}"))
                    .help("leave it out"),
            );
        }
    }

    /// The classifier, and the other learners, for data of these sizes.
    pub(crate) fn learners(&self, sizes: &Sizes) -> (LearnerSpec, Vec<LearnerSpec>) {
        let (backbone, heads) = (self.network.backbone.clone(), self.model.heads(sizes));
        let width = self.model.instance_embedding(sizes.has_features());
        let input = width.map_or(LearnerInput::Features, |width| {
            LearnerInput::Embedding(EmbeddingInput::of_instances(width))
        });
        let classifier = LearnerSpec { name: CLASSIFIER, backbone, heads, input, optimiser: None };
        let mut others = self.model.other_learners(&self.network, sizes);
        if !N::NEEDS_ANNOTATOR_FEATURES && sizes.annotator_features.is_none() {
            others.retain(|other| other.input != LearnerInput::Annotators);
        }
        (classifier, others)
    }

    /// The sizes of the data, with the number of features of one annotator only if a learner reads them.
    pub(crate) fn sizes(&self, a: &Annotations, with_features: &QuestionFeatures) -> Sizes {
        let (dims, joint) = (a.dims(), a.joint.iter());
        let questions = joint.flat_map(|joint| &joint.questions).map(|q| (q.classes, q.labels));
        let sizes = Sizes {
            features: with_features.matrix().shape().to_vec(),
            classes: dims.classes,
            labels: dims.labels,
            annotators: dims.annotators,
            annotator_features: with_features.annotator_matrix().map(|(matrix, _)| matrix.width()),
            questions: questions.collect(),
            question: 0,
        };
        let others = self.model.other_learners(&self.network, &sizes);
        let reads = others.iter().any(|other| other.input == LearnerInput::Annotators);
        Sizes { annotator_features: sizes.annotator_features.filter(|_| reads), ..sizes }
    }
}

impl<N: CrowdNet> Spec for Neural<N> {
    const KIND: &'static str = N::KIND;
    const SUMMARY: &'static str = N::SUMMARY;
    const SOURCE: &'static str = N::SOURCE;
    const CAPABILITIES: Capabilities = Capabilities {
        features: N::FEATURES,
        confusion: N::CONFUSION,
        random_start: true,
        pair_competence: N::HAS_MATRICES_OF_PAIRS,
        fits_questions_together: N::FITS_QUESTIONS_TOGETHER,
        ..Capabilities::LABELS
    };

    fn paper() -> Option<Self> {
        let (network, model) = N::paper();
        Some(Self { network: NetworkSpec { preset: Preset::Paper, ..network }, model })
    }

    fn code() -> Option<Self> {
        let (network, model) = N::code()?;
        Some(Self { network: NetworkSpec { preset: Preset::Code, ..network }, model })
    }

    fn estimates_prior(&self) -> bool {
        self.model.estimates_prior()
    }

    fn needs(&self) -> Capabilities {
        self.model.needs(Self::CAPABILITIES)
    }

    fn check(&self, location: &str, problems: &mut Problems) {
        let NetworkSpec { backbone, train, .. } = &self.network;
        backbone.check(location, problems);
        if let (None, Some(reduction)) = (N::REDUCTION, train.reduction) {
            problems.push(
                Problem::new(format!("`{}` sums no losses of annotations", N::KIND))
                    .at(format!("{location}.train.reduction"))
                    .found(serde_json::to_string(&reduction).unwrap_or_default())
                    .help("leave it out"),
            );
        }
        let needed = match (N::NEEDS_WHOLE_INSTANCES, N::TRAINS_ON_TARGETS) {
            (true, _) => Some("needs all annotations of an instance in one batch"),
            (_, true) => Some("is trained on one target for each instance"),
            _ => None,
        };
        if let (Some(needed), BatchBy::Annotation) = (needed, train.batch_by) {
            problems.push(
                Problem::new(format!("`{}` {needed}", N::KIND))
                    .at(format!("{location}.train.batch_by"))
                    .found("\"annotation\"")
                    .help("choose \"instance\", or leave it out"),
            );
        }
        if let (Some(patience), Select::Last) = (train.patience, train.select) {
            problems.push(
                Problem::new("`patience` compares the scores of epochs, and no epoch is scored")
                    .at(format!("{location}.train.patience"))
                    .found(format!("{patience} with select = \"last\""))
                    .help("choose another select, or leave patience out"),
            );
        }
        if let Err(e) = DeviceChoice::parse(&self.network.device) {
            let at = format!("{location}.device");
            e.problems.into_iter().for_each(|p| problems.push(p.at(at.clone())));
        }
        if self.model.instance_embedding(true).is_some() && train.select == Select::Valid {
            problems.push(
                Problem::new(
                    "a learned embedding says nothing about instances without annotations",
                )
                .at(format!("{location}.train.select"))
                .found("\"valid\" with embed_instances")
                .help("choose another way to select the epoch, or leave embed_instances out"),
            );
        }
        self.check_gold(location, problems);
        self.model.check(train, location, problems);
    }

    fn check_without_gold(&self, location: &str, problems: &mut Problems) {
        if self.network.train.select == Select::Valid {
            problems.push(
                Problem::new("there is no gold to select the best epoch by")
                    .at(format!("{location}.train.select"))
                    .found("\"valid\", without source.gold")
                    .help(
                        "set source.gold with rows of the role `valid`, or select = \"annotation_likelihood\" or \"last\"",
                    ),
            );
        }
        let NetworkSpec { fine_tune, hold_back_gold, init_from_gold, .. } = self.network;
        let needed = [
            ("fine_tune", fine_tune > 0),
            ("hold_back_gold", hold_back_gold),
            ("init_from_gold", init_from_gold),
        ];
        for (key, _) in needed.into_iter().filter(|(_, is_needed)| *is_needed) {
            problems.push(
                Problem::new(format!("`{key}` needs trusted classes, and there is no gold"))
                    .at(format!("{location}.{key}"))
                    .help(format!(
                        "set source.gold with rows of the role `train`, or leave {key} out"
                    )),
            );
        }
        self.model.check_without_gold(location, problems);
    }

    fn fixed_keys() -> Vec<&'static str> {
        let keys = [
            ("train.reduction", N::REDUCTION.is_none()),
            ("train.batch_by", N::NEEDS_WHOLE_INSTANCES || N::TRAINS_ON_TARGETS),
            ("fine_tune", !N::FINE_TUNES),
            ("hold_back_gold", !N::FINE_TUNES),
            ("init_from_gold", !N::STARTS_AT_MATRICES),
        ];
        keys.into_iter().filter(|(_, is_fixed)| *is_fixed).map(|(key, _)| key).collect()
    }
}
