//! The trait of the models that users choose, which learn a classifier and parameters of annotators, with the types of
//! its input and its report.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::batch_context::BatchContext;
use super::counted;
use super::network_spec::NetworkSpec;
use super::train_spec::TrainSpec;
use super::training_objective::TrainingObjective;
use crate::error::Result;
use crate::frame::{Dims, Evidence, MemoryEstimate, QuestionSizes, dense_memory_estimate};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::heads::Heads;
use crate::model::neural::params::annotator_matrices;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::neural::train::learners::learner::LearnerSpec;
use crate::model::vote::MajorityVote;
use crate::model::{Capabilities, FeatureUse, Model as _};
use crate::spec::Problems;

/// The evidence that a model is fitted to, and its sizes.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// Everything observed.
    pub evidence: Evidence<'a>,
    /// The numbers of instances, annotators, classes and labels.
    pub dims: Dims,
    /// The width of the last hidden layer, where the model needs it.
    pub hidden: usize,
    /// The run, which provides the random streams.
    pub job: &'a JobContext,
}

/// A trained model's report on its annotators.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnnotatorReport {
    /// P(label given class), `[annotator, class, label]`.
    pub confusion: Option<Vec<f64>>,
    /// One matrix `[class, label]` that all annotators share.
    pub common: Option<Vec<f64>>,
    /// P(class), where the model learned it.
    pub prior: Option<Vec<f64>>,
    /// Other numbers of annotators, by name.
    pub parameters: Vec<(String, Vec<f64>)>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// A classifier with a model of its annotators: a kind that users choose, with its networks, its annotators' parameters
/// and its report. Its loss and its schedule are those of its [`TrainingObjective`].
///
/// The implementing struct holds the settings that only this model has; [`Neural`](crate::model::neural::Neural) adds the sections
/// that all models have.
pub trait CrowdNet:
    TrainingObjective
    + Default
    + Clone
    + Serialize
    + DeserializeOwned
    + JsonSchema
    + Send
    + Sync
    + 'static
{
    /// The value of `kind` in the section `[model]`.
    const KIND: &'static str;

    /// A summary in one sentence, for users.
    const SUMMARY: &'static str;

    /// The paper that describes the model.
    const SOURCE: &'static str;
    /// What it makes of features of the instances.
    const FEATURES: FeatureUse = FeatureUse::Needed;

    /// The description of the section `train` in the JSON schema. A model overrides it if its epochs have a special
    /// meaning.
    const TRAINING: &'static str = "How it is trained.";

    /// Whether the loss needs all annotations of an instance in one batch.
    const NEEDS_WHOLE_INSTANCES: bool = false;

    /// Whether the model defines P(label given class, annotator), so that the posterior of an instance uses its
    /// annotations; else the posterior is the classifier's prediction.
    const CONDITIONS_ON_ANNOTATIONS: bool = true;

    /// Whether a learner that reads features of annotators is an error where the data have none; else it is left out.
    const NEEDS_ANNOTATOR_FEATURES: bool = true;

    /// Whether the classifier can be trained on trusted classes alone.
    const FINE_TUNES: bool = true;

    /// Whether a fit can start at given confusion matrices: `given.confusion` of the annotations that
    /// [`CrowdNet::tables`] and [`CrowdNet::aggregate`] see.
    const STARTS_AT_MATRICES: bool = false;

    /// What it makes of a table of confusion matrices.
    const CONFUSION: FeatureUse =
        if Self::STARTS_AT_MATRICES { FeatureUse::Optional } else { FeatureUse::Unused };

    /// See [`Spec::needs`](crate::model::Spec::needs).
    fn needs(&self, of_kind: Capabilities) -> Capabilities {
        of_kind
    }

    /// Whether the model has [`CrowdNet::pair_matrices`].
    const HAS_MATRICES_OF_PAIRS: bool = false;

    /// Whether one fit takes all questions. The rows of a batch then name their question, of which the classifier's outputs
    /// are; the model's other outputs are its own concern. Its matrices of annotators are those of pairs.
    const FITS_QUESTIONS_TOGETHER: bool = false;

    /// See [`Model::memory_estimate`](crate::model::Model::memory_estimate).
    #[must_use]
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        if Self::COUNTS_CONFUSION {
            return annotator_matrices::memory_estimate(sizes);
        }
        dense_memory_estimate(sizes)
    }

    /// The settings of the paper, or of its authors' code where they differ.
    #[must_use]
    fn paper() -> (NetworkSpec, Self);

    /// The settings of the authors' code, where the model has them beside those of the paper.
    #[must_use]
    fn code() -> Option<(NetworkSpec, Self)> {
        None
    }

    /// Whether a fit with these settings estimates P(class).
    fn estimates_prior(&self) -> bool {
        false
    }

    /// Adds to `problems` the violated rules among the model's settings, and between them and `train`.
    fn check(&self, _train: &TrainSpec, _location: &str, _problems: &mut Problems) {}

    /// Adds to `problems` the model's settings that no pipeline without gold can follow.
    fn check_without_gold(&self, _location: &str, _problems: &mut Problems) {}

    /// The width of learned embeddings of instances that the classifier reads in place of features, given whether the data
    /// have features; `None` for a classifier that reads features. Such a fit predicts nothing about other instances.
    fn instance_embedding(&self, _has_features: bool) -> Option<usize> {
        None
    }

    /// The outputs of the classifier that the model reads, given the sizes of the data.
    fn heads(&self, _sizes: &Sizes) -> Heads {
        Heads::CLASSIFIER
    }

    /// The learners other than the classifier, given the sizes of the data.
    fn other_learners(&self, _network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        Vec::new()
    }

    /// The initial tables of annotators' parameters.
    ///
    /// # Errors
    /// When the model cannot start with these annotations.
    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        Ok(Self::COUNTS_CONFUSION.then(|| counted::table(task.dims)).into_iter().collect())
    }

    /// The result of an aggregator without features, for models whose classifier learns from it: the votes, by default.
    ///
    /// # Errors
    /// When the aggregator fails.
    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        let votes = Self::TRAINS_ON_TARGETS.then(MajorityVote::default);
        votes.map(|votes| votes.fit(evidence, job)).transpose()
    }

    /// The names of the numbers in [`BatchPrediction::parameters`](crate::model::neural::BatchPrediction::parameters).
    fn instance_parameters(&self) -> Vec<String> {
        Vec::new()
    }

    /// P(label given class) of each annotation's annotator on its instance, `[annotation, class, label]`, for a model whose
    /// matrices depend on the instance. The fit reports their means over each annotator's instances.
    fn pair_matrices(&self, _context: &BatchContext<'_>) -> Option<Vec<f64>> {
        None
    }

    /// The report on annotators after training.
    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let reported = || counted::reported(annotator_params, task.dims);
        AnnotatorReport {
            confusion: Self::COUNTS_CONFUSION.then(reported),
            ..AnnotatorReport::default()
        }
    }
}
