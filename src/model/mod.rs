//! The third stage: a model turns a question's sparse annotations into posteriors and estimates for the annotators.
//!
//! # Adding a label-only model
//! 1. Write one file under `vote/`, `em/pairs/`, `em/` or `spectral/`; open it with the generative story, the citation and `Differs from`.
//! 2. Give it a spec struct: every field documented (the text is what `labelmill models KIND` prints), with a default.
//! 3. Implement [`em::PairModel`] or [`em::EmModel`] (the loop, restarts, trusted rows and the trace come with them), or
//!    [`Model`] itself.
//! 4. Add its `mod` line and its line in the slice `KINDS` to the folder's `mod.rs`. The command line, the JSON Schema,
//!    the README's table and the tests walk [`MODELS`]; add the kind to the list of `testing/conformance`, which tests it.
//! 5. Add fixtures with their origin to `tests/`, and a case worked by hand to the file.
//! 6. Name every key of the spec above a test that shows what it does (`// keys: my_model.my_key`): `tests/keys.rs` walks
//!    the schema and fails for a key that no test names.
//! 7. Run `UPDATE=1 cargo test`, which rewrites the README's table and `pipelines/schema.json`, and
//!    `INSTA_UPDATE=always cargo test`, which rewrites the list of models in `tests/snapshots/`; then read the difference.
//!
//! How to add a model that trains a network is described in [`neural`]; how to add a classifier, in
//! `classifier/mod.rs`. [`with_classifier::gem::Gem`] is an EM model with such a classifier.
//!
//! The layer rule, which a test holds: nothing under `model/` imports Arrow or DataFusion, and only `neural/` imports
//! candle.

pub mod calibration;
pub(crate) mod classifier;
pub mod confusion;
pub mod em;
pub mod fitted;
#[cfg(feature = "neural")]
pub mod neural;
pub mod numerics;
pub mod posterior;
pub(crate) mod saved;
pub mod settings;
pub mod spectral;
pub mod vote;
pub mod with_classifier;

use std::sync::LazyLock;

use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Problem, Result, did_you_mean};
use crate::frame::{
    EstimateMemory, Evidence, MemoryEstimate, QuestionSet, QuestionSizes, dense_memory_estimate,
};
use crate::job_context::JobContext;
use crate::spec::Problems;
#[cfg(feature = "neural")]
pub use classifier::NetworkClassifierSpec;
pub use classifier::{
    ClassifierKind, ClassifierSpec, Criterion, ForestSpec, LogisticSpec, TreeSpec,
};
use fitted::Fitted;
pub use saved::{Predict, Predicted, SavedModel};
pub use settings::capabilities::{Capabilities, FeatureUse};

/// The parameters that a user writes in `[model]` for one kind of model.
pub trait Spec:
    Default + Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// The word in `[model] kind = "..."`.
    const KIND: &'static str;
    /// One sentence a user understands.
    const SUMMARY: &'static str;
    /// Where the model comes from.
    const SOURCE: &'static str;
    /// What the kind needs and promises.
    const CAPABILITIES: Capabilities = Capabilities::LABELS;
    /// The settings of the paper, for models that have a `preset`.
    #[must_use]
    fn paper() -> Option<Self> {
        None
    }
    /// The settings of the authors' code, for models that have them beside those of the paper.
    #[must_use]
    fn code() -> Option<Self> {
        None
    }
    /// Whether a fit with these parameters estimates P(class), by which ties may be broken: a prior that is the same for
    /// all classes, whatever the data, breaks none.
    fn estimates_prior(&self) -> bool {
        false
    }
    /// What a fit with these parameters needs, where that is not the same for all of the kind.
    fn needs(&self) -> Capabilities {
        Self::CAPABILITIES
    }
    /// Checks rules that involve several fields; the range of a single field is an attribute of that field.
    fn check(&self, _location: &str, _problems: &mut Problems) {}
    /// Adds to `problems` the settings that no pipeline without gold can follow.
    fn check_without_gold(&self, _location: &str, _problems: &mut Problems) {}
    /// The keys of sections that several kinds share, for which this kind accepts no other value than the default,
    /// because nothing in it depends on them. [`Spec::check`] refuses other values; tests compare the two.
    #[must_use]
    fn fixed_keys() -> Vec<&'static str> {
        Vec::new()
    }
}

/// A model that is ready to fit.
pub trait Model: Send + Sync {
    /// Fits the model to what was observed of one question.
    ///
    /// # Errors
    /// When the run is cancelled, the evidence lacks what the model needs, or the model did not converge and the spec
    /// calls that a failure.
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted>;

    /// Fits the model to several questions: to each by itself, but for a kind that
    /// [fits them together](Capabilities::fits_questions_together).
    ///
    /// # Errors
    /// As [`Model::fit`].
    fn fit_questions(
        &self,
        questions: &QuestionSet<'_>,
        job: &mut JobContext,
    ) -> Result<Vec<Fitted>> {
        questions.evidence.iter().map(|evidence| self.fit(*evidence, job)).collect()
    }

    /// How many more times a fit starts, beside which it holds the best fit so far.
    fn restarts(&self) -> u32 {
        0
    }

    /// The memory of a fit; `None` where it is too much to be counted. Without a method of its own, a model holds a
    /// probability for each instance and class, and a matrix that all annotators share.
    #[must_use]
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate>
    where
        Self: Sized,
    {
        dense_memory_estimate(sizes)
    }
}

/// The section `[model]`: `kind` chooses the model, the other keys are its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelSpec {
    /// One of the kinds that `labelmill models` lists.
    pub kind: String,
    /// The parameters of that kind.
    #[serde(flatten)]
    pub parameters: serde_json::Map<String, Value>,
}

impl Default for ModelSpec {
    fn default() -> Self {
        Self { kind: MODELS[0].kind.to_owned(), parameters: serde_json::Map::new() }
    }
}

impl ModelSpec {
    /// The model with its parameters, defaults filled in.
    ///
    /// # Errors
    /// When there is no such kind, or a parameter does not fit.
    pub fn load(&self) -> Result<LoadedModel> {
        model_kind(&self.kind)?.load(Value::Object(self.parameters.clone()))
    }
}

/// One kind of model: its entry in the registry.
pub struct ModelKind {
    /// The word in `[model] kind = "..."`.
    pub kind: &'static str,
    /// One sentence a user understands.
    pub summary: &'static str,
    /// Where the model comes from.
    pub source: &'static str,
    /// The JSON Schema of its parameters.
    pub schema: fn() -> Schema,
    /// The default of each parameter.
    pub defaults: fn() -> Value,
    /// What it needs and promises.
    pub capabilities: Capabilities,
    /// The keys for which it accepts no other value than the default.
    pub fixed_keys: fn() -> Vec<&'static str>,
    /// Predicts with a saved model of this kind; `None` for a kind that learns no classifier.
    pub predict: Option<Predict>,
    /// The memory of its fit.
    pub memory_estimate: EstimateMemory,
    load: fn(Value) -> Result<LoadedModel, serde_json::Error>,
}

/// Adds the broken rules of a spec to the problems, given the key of its section.
type SpecCheck = Box<dyn Fn(&str, &mut Problems)>;

/// A model with every parameter filled in.
pub struct LoadedModel {
    /// The model, ready to fit.
    pub model: Box<dyn Model>,
    /// Every parameter, defaults included; the digest of the run includes them.
    pub parameters: Value,
    /// Whether a fit estimates P(class).
    pub estimates_prior: bool,
    /// What a fit with these parameters needs.
    pub needs: Capabilities,
    /// Adds the broken rules across fields to the problems, given the key of the section.
    pub check: SpecCheck,
    /// Adds the settings that no pipeline without gold can follow.
    pub check_without_gold: SpecCheck,
}

impl ModelKind {
    const fn new<S: Spec + Model>() -> Self {
        Self::fitted_by::<S, S>()
    }

    const fn em<E: em::EmModel + Spec>() -> Self {
        Self::fitted_by::<E, em::Em<E>>()
    }

    const fn pairs<M: em::PairModel>() -> Self {
        Self::fitted_by::<M, em::PairEm<M>>()
    }

    #[cfg(feature = "neural")]
    const fn neural<N: neural::CrowdNet>() -> Self {
        Self::with_features::<neural::Neural<N>>(neural::predict::<N>)
    }

    const fn classifier_em<S: with_classifier::gem::ClassifierEm + Model>() -> Self {
        Self::with_features::<S>(with_classifier::gem::predict::<S>)
    }

    const fn with_features<S: Spec + Model>(predict: Predict) -> Self {
        Self { predict: Some(predict), ..Self::new::<S>() }
    }

    const fn fitted_by<S: Spec, M: Model + From<S> + 'static>() -> Self {
        Self {
            kind: S::KIND,
            summary: S::SUMMARY,
            source: S::SOURCE,
            schema: || schema_for!(S),
            defaults: || crate::spec::defaults::<S>(),
            capabilities: S::CAPABILITIES,
            fixed_keys: S::fixed_keys,
            predict: None,
            memory_estimate: M::memory_estimate,
            load: |value| {
                let spec: S = serde_json::from_value(settings::preset::apply::<S>(value)?)?;
                let parameters = serde_json::to_value(&spec)?;
                let (checked, without_gold) = (spec.clone(), spec.clone());
                Ok(LoadedModel {
                    estimates_prior: spec.estimates_prior(),
                    needs: spec.needs(),
                    model: Box::new(M::from(spec)),
                    parameters,
                    check: Box::new(move |location, problems| checked.check(location, problems)),
                    check_without_gold: Box::new(move |location, problems| {
                        without_gold.check_without_gold(location, problems);
                    }),
                })
            },
        }
    }

    /// The model with these parameters (an object without `kind`).
    ///
    /// # Errors
    /// When they do not fit the schema.
    pub fn load(&self, parameters: Value) -> Result<LoadedModel> {
        (self.load)(parameters).map_err(|e| Error::spec(e.to_string()).at("model"))
    }
}

/// All models, in the order in which a reader would learn them: the joined slices of the folders.
pub static MODELS: LazyLock<Vec<&'static ModelKind>> = LazyLock::new(|| {
    let folders: &[&[ModelKind]] = &[
        vote::KINDS,
        em::KINDS,
        spectral::KINDS,
        with_classifier::gem::KINDS,
        with_classifier::crowdlab::KINDS,
        #[cfg(feature = "neural")]
        neural::KINDS,
    ];
    folders.iter().copied().flatten().collect()
});

/// The kind of model of this name.
///
/// # Errors
/// When no model has this name; the error suggests the nearest one.
pub fn model_kind(name: &str) -> Result<&'static ModelKind> {
    MODELS.iter().find(|m| m.kind == name).copied().ok_or_else(|| {
        let names = MODELS.iter().map(|m| m.kind);
        let help = did_you_mean(name, names, || "`labelmill models` lists them".to_owned());
        Error::spec_problems(vec![
            Problem::new(format!("there is no model `{name}`")).at("model.kind").help(help),
        ])
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_two_models_share_a_kind() {
        for (i, model) in MODELS.iter().enumerate() {
            assert!(MODELS[..i].iter().all(|m| m.kind != model.kind), "{}", model.kind);
        }
    }

    #[test]
    fn every_default_loads_and_passes_its_own_check() {
        for model in MODELS.iter() {
            let loaded = model.load((model.defaults)()).unwrap();
            let mut problems = Problems::default();
            (loaded.check)("model", &mut problems);
            assert!(problems.into_result().is_ok(), "{}", model.kind);
        }
    }

    #[test]
    fn a_stop_rule_in_part_leaves_the_other_keys_of_the_kind() {
        for (kind, tol) in [("ibcc", 1e-8), ("glad", 1e-8), ("dawid_skene", 1e-5)] {
            let part = json!({"stop": {"max_iter": 7}});
            let stop = &model_kind(kind).unwrap().load(part).unwrap().parameters["stop"];
            assert_eq!((&stop["max_iter"], &stop["tol"]), (&json!(7), &json!(tol)), "{kind}");
        }
        assert!(model_kind("ibcc").unwrap().load(json!({"stop": {"max_iters": 7}})).is_err());
    }

    /// Three of twelve instances are of class 1.
    #[test]
    fn a_fixed_prior_stays_uniform_and_a_learned_one_does_not() {
        let rows: Vec<_> = (0..36).map(|n| (n / 3, n % 3, u32::from(n < 9))).collect();
        let a = crate::testing::tiny(2, &rows);
        for kind in ["dawid_skene", "one_coin"] {
            for fixed in [true, false] {
                let parameters = json!({"fixed_prior": fixed});
                let loaded = model_kind(kind).unwrap().load(parameters).unwrap();
                let fitted = loaded.model.fit((&a).into(), &mut JobContext::new(0)).unwrap();
                let prior = fitted.report.prior.unwrap();
                assert_eq!(prior == [0.5, 0.5], fixed, "{kind}: {prior:?}");
                assert_eq!(loaded.estimates_prior, !fixed, "{kind}");
            }
        }
    }

    #[test]
    fn whether_there_is_a_prior_may_depend_on_the_parameters() {
        let estimates = |kind: &str, parameters: Value| {
            model_kind(kind).unwrap().load(parameters).unwrap().estimates_prior
        };
        assert!(!estimates("majority_vote", json!({})) && !estimates("glad", json!({})));
        for kind in ["dawid_skene", "one_coin"] {
            for fixed in [true, false] {
                assert_eq!(estimates(kind, json!({"fixed_prior": fixed})), !fixed, "{kind}");
            }
        }
        for (kind, without, with) in [
            ("dl", json!({}), json!({"aggregator": {"kind": "dawid_skene"}})),
            ("max_mig", json!({"prior": "votes"}), json!({"prior": "learned"})),
        ] {
            if cfg!(feature = "neural") {
                assert!(!estimates(kind, without) && estimates(kind, with), "{kind}");
            }
        }
    }
}
