//! The trait of a model that learns a classifier and parameters of annotators, and what it is given and reports.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::annotator_params::{AnnotatorParams, ParamTable};
use super::batch_context::{BatchContext, BatchPrediction, Gradient};
use super::net::heads::Heads;
use super::schedule::{Act, Phase, one_after_the_other};
use super::spec::{NetworkSpec, Neural};
use super::train::learner::LearnerSpec;
use super::train::spec::{Reduction, TrainSpec};
use super::train::state::TrainState;
use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence};
use crate::model::fitted::Fitted;
use crate::run::Run;
use crate::spec::Problems;

/// What a model is fitted to.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// Everything observed.
    pub evidence: Evidence<'a>,
    /// The sizes of every axis.
    pub dims: Dims,
    /// The width of the last hidden layer, where the model needs it.
    pub hidden: usize,
    /// Random streams.
    pub run: &'a Run,
}

/// What a trained model reports of annotators.
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
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// A classifier with a model of its annotators.
///
/// It is the struct of the model's own parameters; [`Neural`] adds the sections that all models have.
pub trait CrowdNet:
    Default + Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// The word in `[model] kind = "..."`.
    const KIND: &'static str;

    /// One sentence a user understands.
    const SUMMARY: &'static str;

    /// Where the model comes from.
    const SOURCE: &'static str;

    /// The meaning of the section `train`, where the model has its own word on epochs.
    const TRAINING: &'static str = "How it is trained.";

    /// The settings of the paper, or of its authors' code where they differ.
    #[must_use]
    fn paper() -> Neural<Self>;

    /// Rules across the model's parameters, and between them and the training.
    fn check(&self, _train: &TrainSpec, _place: &str, _problems: &mut Problems) {}

    /// The outputs of the classifier that it reads.
    fn heads(&self) -> Heads {
        Heads::CLASSIFIER
    }

    /// The learners beside the classifier.
    fn other_learners(&self, _network: &NetworkSpec) -> Vec<LearnerSpec> {
        Vec::new()
    }

    /// The parameters of annotators at the start.
    ///
    /// # Errors
    /// When the model cannot start with these annotations.
    fn tables(&self, _task: &Task<'_>) -> Result<Vec<ParamTable>> {
        Ok(Vec::new())
    }

    /// The result of an aggregator without features, for models whose classifier learns from it.
    ///
    /// # Errors
    /// Those of the aggregator.
    fn aggregate(&self, _evidence: Evidence<'_>, _run: &mut Run) -> Result<Option<Fitted>> {
        Ok(None)
    }

    /// The divisor of the annotations' losses, unless the user chooses; `None` where the loss does not sum them.
    const REDUCTION: Option<Reduction>;

    /// The learning rate of annotators' parameters, unless the user chooses. An annotator is in few batches, so it is
    /// larger than the classifier's.
    const ANNOTATOR_RATE: f64 = 0.1;

    /// Whether annotators' parameters are frozen in the first epochs, unless the user chooses. They are where they
    /// start as an identity: trained before the classifier knows anything, they may exchange classes for good.
    const DELAYS_ANNOTATORS: bool = true;

    /// Whether an epoch leaves out an incomplete last batch.
    const DROPS_LAST_BATCH: bool = false;

    /// Whether the loss needs all annotations of an instance in one batch.
    const NEEDS_WHOLE_INSTANCES: bool = false;

    /// Whether the loss of the classifier is that of the batch's targets, which hold the trusted classes.
    const TRAINS_ON_TARGETS: bool = false;

    /// Whether the model defines P(label given class, annotator), so that the posterior of an instance uses its
    /// annotations; else the posterior is the classifier's prediction.
    const CONDITIONS_ON_ANNOTATIONS: bool = true;

    /// The number of epochs, of `epochs` in a phase, in which annotators' parameters are frozen at first.
    fn annotator_delay(&self, train: &TrainSpec, epochs: u32) -> u32 {
        let default = if Self::DELAYS_ANNOTATORS { epochs / 5 } else { 0 };
        train.optimiser.annotator_delay.unwrap_or(default)
    }

    /// The next act of the training; `None` at its end. What changes is `state` alone, which a checkpoint holds, so that an
    /// interrupted training goes on with the same act.
    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let phase = Phase::joint("train", train.epochs);
        one_after_the_other(vec![phase], state.acts)
    }

    /// The epochs of all acts.
    fn epochs(&self, train: &TrainSpec) -> u32 {
        train.epochs
    }

    /// Estimates parameters of annotators from the targets, whose expected counts are `[column, class]`.
    fn m_step(&self, _a: &Annotations, _counts: &[f64], _params: &mut AnnotatorParams) {}

    /// The loss of a batch; adds its derivatives to `gradient`, which is zero.
    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64;

    /// The prediction of the trained model for a batch; any of its annotations and rows may be new.
    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: context.out.p.clone(),
            likelihood: context.class_likelihood(),
            parameters: Vec::new(),
        }
    }

    /// P(label given features and annotator) of each annotation of a batch, which may be new.
    fn likelihood(&self, context: &BatchContext<'_>) -> Vec<f64> {
        self.predict(context).likelihood
    }

    /// The names of the numbers in [`BatchPrediction::parameters`].
    fn instance_parameters(&self) -> Vec<String> {
        Vec::new()
    }

    /// The report on annotators after training.
    fn report(&self, _task: &Task<'_>, _annotator_params: &AnnotatorParams) -> AnnotatorReport {
        AnnotatorReport::default()
    }
}
