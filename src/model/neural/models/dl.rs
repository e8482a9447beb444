//! Two stages: an aggregator estimates the labels, then a classifier is trained on them.
//!
//! ```text
//! T = the aggregator's posterior;  loss = -(1/B) sum_i sum_k T[i][k] ln p_i[k]
//! ```
//! The baselines called DL-MV, DL-DS and so on: S. Li et al.: Trustable Co-label Learning from Multiple Noisy
//! Annotators. IEEE Transactions on Multimedia 2022; Z. Chu, J. Ma, H. Wang: Learning from Crowds by Modeling Common
//! Confusions. AAAI 2021. If all instances have trusted classes, it is a classifier trained on the true classes.
//!
//! The posteriors are the aggregator's; the classifier's probabilities are in `predictions`.
//!
//! With `embed_instances` the classifier reads a learned embedding of each instance, without features (the columns MAJ*-E
//! and MMCE*-E of Platanios et al. 2020, table 2), and its probabilities are the posteriors. Nothing
//! else reads an embedding, so that it learns the aggregator's label, and the more surely, the longer it is trained.
//!
//! Differs from the papers in network and training, which are labelmill's defaults. `preset = "paper"` has the settings
//! of Li et al. for LabelMe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, Result};
use crate::frame::Evidence;
use crate::job_context::JobContext;
use crate::model::fitted::{Fitted, Report};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::given_matrices::of_better_annotators;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::posterior::best;
use crate::model::vote::{MajorityVote, agreement};
use crate::model::{Capabilities, FeatureUse, ModelSpec, Spec as _, model_kind};
use crate::spec::Problems;

/// The form of the classifier's targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Targets {
    /// `hard` for a majority vote, but with `embed_instances`; `soft` for every other aggregator.
    #[default]
    Auto,
    /// The most probable class.
    Hard,
    /// The whole posterior.
    Soft,
}

/// A classifier on aggregated labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dl {
    /// The model that finds the labels: a `kind` without features, and its parameters.
    pub aggregator: ModelSpec,
    /// The form of the classifier's targets.
    pub targets: Targets,
    /// Whether the classifier reads a learned embedding of each instance in place of its features, and its probabilities
    /// are the posteriors.
    pub embed_instances: bool,
    /// The width of embeddings of instances.
    #[schemars(range(min = 1))]
    pub instance_embedding: usize,
}

impl Default for Dl {
    fn default() -> Self {
        Self {
            aggregator: ModelSpec::default(),
            targets: Targets::Auto,
            embed_instances: false,
            instance_embedding: 16,
        }
    }
}

/// The section of the aggregator's parameters.
const AGGREGATOR: &str = "model.aggregator";

impl Dl {
    fn is_hard(&self) -> bool {
        match self.targets {
            Targets::Auto => !self.embed_instances && self.aggregator.kind == MajorityVote::KIND,
            Targets::Hard => true,
            Targets::Soft => false,
        }
    }
}

impl CrowdNet for Dl {
    const KIND: &'static str = "dl";
    const SUMMARY: &'static str = "a classifier trained on the labels of an aggregator";
    const SOURCE: &'static str =
        "DL-MV, DL-DS, ...: Chu et al. 2021, arXiv:2012.13052; Li et al. 2022";
    const STARTS_AT_MATRICES: bool = true;
    /// The matrices are the aggregator's.
    const CONFUSION: FeatureUse = FeatureUse::Unused;

    /// The settings of Li et al. 2022 for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        (paper::classifier(30, Some(128), 1e-4), Self::default())
    }

    fn estimates_prior(&self) -> bool {
        self.aggregator.load().is_ok_and(|aggregator| aggregator.estimates_prior)
    }

    fn needs(&self, of_kind: Capabilities) -> Capabilities {
        let features = if self.embed_instances { FeatureUse::Optional } else { of_kind.features };
        Capabilities { features, ..of_kind }
    }

    fn instance_embedding(&self, _has_features: bool) -> Option<usize> {
        self.embed_instances.then_some(self.instance_embedding)
    }

    fn check(&self, _train: &TrainSpec, location: &str, problems: &mut Problems) {
        let location = format!("{location}.aggregator");
        match self.aggregator.load() {
            Ok(loaded) => (loaded.check)(&location, problems),
            Err(e) => e.problems.into_iter().for_each(|p| problems.push(p.at(location.clone()))),
        }
        if model_kind(&self.aggregator.kind).is_ok_and(|f| f.capabilities.features.are_read()) {
            problems.push(
                Problem::new("the aggregator must do without features")
                    .at(format!("{location}.kind"))
                    .found(format!("`{}`", self.aggregator.kind))
                    .help("choose a label-only kind, such as \"dawid_skene\""),
            );
        }
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        let starts = model_kind(&self.aggregator.kind)?.capabilities.confusion.are_read();
        let model = self.aggregator.load().map_err(|e| e.moved("model", AGGREGATOR))?.model;
        let mut fit = |annotations| {
            let alone = Evidence { annotations, with_features: None };
            job.in_section(AGGREGATOR, |job| model.fit(alone, job))
        };
        let a = evidence.annotations;
        if starts || a.given.confusion.is_none() {
            return fit(a).map(Some);
        }
        let (better, n_left_out) = of_better_annotators(a)?;
        let fitted = fit(&better)?;
        if n_left_out == 0 {
            return Ok(Some(fitted));
        }
        job.warn(format!(
            "init_from_gold leaves the answers of {n_left_out} of {} annotators out where others answered: by gold they are \
             worse than the most frequent class",
            a.dims().annotators
        ));
        // What the aggregator reports is of other annotations.
        let skill = agreement(a, |i| best(&fitted.posterior.row(i)));
        let report = Report { skill, prior: fitted.report.prior, ..Report::default() };
        Ok(Some(Fitted { report, ..fitted }))
    }
}

impl TrainingObjective for Dl {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        if !self.is_hard() {
            return Ok(context.cross_entropy_of_targets(gradient));
        }
        let targets = context.batch.targets.chunks_exact(context.dims.classes);
        let classes: Vec<Option<usize>> =
            targets.map(|target| best(target).map(|(k, _)| k)).collect();
        Ok(context.cross_entropy(gradient, |b, k| f64::from(u8::from(classes[b] == Some(k)))))
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let decides = if self.embed_instances { &context.out.p } else { &context.batch.targets };
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: decides.clone(),
            likelihood: context.class_likelihood(),
            parameters: Vec::new(),
        }
    }
}
