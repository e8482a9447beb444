//! The trait of models that learn a classifier and parameters of annotators, with the types of its input and its
//! report.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::annotator_params::AnnotatorParams;
use super::batch_context::{BatchContext, BatchPrediction, Gradient};
use super::data::inputs::Sizes;
use super::net::heads::Heads;
use super::network_spec::NetworkSpec;
use super::param_table::ParamTable;
use super::schedule::{Act, Phase, sequential};
use super::train::learner::LearnerSpec;
use super::train::spec::{Reduction, TrainSpec};
use super::train::state::TrainState;
use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence};
use crate::model::fitted::Fitted;
use crate::run::Run;
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
    pub run: &'a Run,
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

/// A classifier with a model of its annotators.
///
/// The implementing struct holds the settings that only this model has; [`Neural`](super::Neural) adds the sections that all models
/// have.
pub trait CrowdNet:
    Default + Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// The value of `kind` in the section `[model]`.
    const KIND: &'static str;

    /// A summary in one sentence, for users.
    const SUMMARY: &'static str;

    /// The paper that describes the model.
    const SOURCE: &'static str;

    /// The description of the section `train` in the JSON schema. A model overrides it if its epochs have a special
    /// meaning.
    const TRAINING: &'static str = "How it is trained.";

    /// The settings of the paper, or of its authors' code where they differ.
    #[must_use]
    fn paper() -> (NetworkSpec, Self);

    /// Adds to `problems` the violated rules among the model's settings, and between them and `train`.
    fn check(&self, _train: &TrainSpec, _place: &str, _problems: &mut Problems) {}

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
    fn tables(&self, _task: &Task<'_>) -> Result<Vec<ParamTable>> {
        Ok(Vec::new())
    }

    /// The result of an aggregator without features, for models whose classifier learns from it.
    ///
    /// # Errors
    /// When the aggregator fails.
    fn aggregate(&self, _evidence: Evidence<'_>, _run: &mut Run) -> Result<Option<Fitted>> {
        Ok(None)
    }

    /// The default divisor of the annotations' losses; `None` if the loss is not a sum over annotations.
    const REDUCTION: Option<Reduction>;

    /// The default learning rate of annotators' parameters. It is larger than the classifier's, because an annotator is
    /// in few batches.
    const ANNOTATOR_RATE: f64 = 0.1;

    /// Whether annotators' parameters are frozen in the first epochs by default. Models whose matrices start at the
    /// identity freeze them: if the matrices are trained before the classifier has learned anything, they can swap
    /// classes for the rest of the training.
    const DELAYS_ANNOTATORS: bool = true;

    /// Whether an epoch leaves out an incomplete last batch.
    const DROPS_LAST_BATCH: bool = false;

    /// Whether the loss needs all annotations of an instance in one batch.
    const NEEDS_WHOLE_INSTANCES: bool = false;

    /// Whether the classifier is trained on the batch's targets, which already hold the trusted classes.
    const TRAINS_ON_TARGETS: bool = false;

    /// Whether the model defines P(label given class, annotator), so that the posterior of an instance uses its
    /// annotations; else the posterior is the classifier's prediction.
    const CONDITIONS_ON_ANNOTATIONS: bool = true;

    /// Whether a learner that reads features of annotators is an error where the data have none; else it is left out.
    const NEEDS_ANNOTATOR_FEATURES: bool = true;

    /// The number of initial epochs in which annotators' parameters are frozen, in a phase of `epochs` epochs.
    fn annotator_delay(&self, train: &TrainSpec, epochs: u32) -> u32 {
        let default = if Self::DELAYS_ANNOTATORS { epochs / 5 } else { 0 };
        train.optimiser.annotator_delay.unwrap_or(default)
    }

    /// The next act of the training; `None` at its end. It depends on nothing but the settings and `state`. A
    /// checkpoint holds `state`, so that an interrupted training resumes with the same act.
    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let phase = Phase::joint("train", train.epochs);
        sequential(vec![phase], state.acts)
    }

    /// The number of epochs of all acts together.
    fn epochs(&self, train: &TrainSpec) -> u32 {
        train.epochs
    }

    /// The posteriors that an E-step computes for a batch, `[row, class]`. The batch has the targets of this name, which
    /// the result replaces.
    fn e_step(&self, context: &BatchContext<'_>, _name: &'static str) -> Vec<f64> {
        self.predict(context).posterior
    }

    /// The M-step: estimates parameters of annotators from `counts`, the expected counts `[column, class]` of the
    /// targets [`MAIN_TARGETS`](super::MAIN_TARGETS), and other numbers from the targets of `state`.
    fn m_step(
        &self,
        _a: &Annotations,
        _counts: &[f64],
        _state: &mut TrainState,
        _params: &mut AnnotatorParams,
    ) {
    }

    /// The loss of a batch; adds its derivatives to `gradient`, which is zero before the call.
    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64;

    /// Numbers of each row for the loss, which depend on nothing that `context.phase` trains; `None` if the loss of this
    /// phase uses none. A phase that does not train the classifier computes them once, and the loss finds them in
    /// `out.constants`. If they do not fit into memory, these are empty, and the loss must compute them itself. The context
    /// has no outputs of other learners.
    fn constants(&self, _context: &BatchContext<'_>) -> Option<Vec<Vec<f64>>> {
        None
    }

    /// The prediction of the trained model for a batch, whose rows and annotations need not be training data.
    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: context.out.p.clone(),
            likelihood: context.class_likelihood(),
            parameters: Vec::new(),
        }
    }

    /// P(label given features and annotator) of each annotation of a batch, which need not be training data.
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
