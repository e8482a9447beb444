//! The trait of what the training loop trains: a loss with its derivatives, a schedule, and predictions.
//!
//! # Why
//! The loop in `train/` needs neither a kind nor a section of settings. So an objective that is no kind of model, such
//! as the loss of soft targets, can be trained as well.

use super::batch_context::{BatchContext, BatchPrediction, Gradient};
use super::counted;
use super::schedule::{Act, Phase, sequential};
use super::train_spec::{Reduction, TrainSpec};
use super::train_state::TrainState;
use crate::error::Result;
use crate::frame::{Annotations, Dims};
use crate::model::neural::params::annotator_matrices::AnnotatorMatrices;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::numerics::MIN_PROBABILITY;

/// So many annotations of an instance leave its class open, on average, and the classifier decides it.
const FEW_ANNOTATIONS: f64 = 4.0;

/// The loss of a model, with the acts of its training and its reports, for the training loop.
pub trait TrainingObjective {
    /// The default divisor of the annotations' losses; `None` if the loss is not a sum over annotations.
    const REDUCTION: Option<Reduction>;

    /// The default learning rate of annotators' parameters, for at most `FEW_ANNOTATIONS` of an instance. It is larger
    /// than the classifier's, because an annotator is in few batches.
    const ANNOTATOR_RATE: f64 = 0.1;

    /// The power by which the default rate falls with the mean number of annotations of an instance; 0 for one rate.
    ///
    /// # Why
    /// Many annotations determine an instance's class without the classifier. At a high rate the parameters of their
    /// annotators then follow the mistakes of a classifier with weak features (`benches/networks.md`).
    const RATE_POWER: f64 = 0.0;

    /// The default learning rate of annotators' parameters, given the mean number of annotations of an instance.
    fn annotator_rate(&self, of_instance: f64) -> f64 {
        Self::ANNOTATOR_RATE * (FEW_ANNOTATIONS / of_instance).min(1.0).powf(Self::RATE_POWER)
    }

    /// Whether annotators' parameters are frozen in the first epochs by default. Models whose matrices start at the
    /// identity freeze them: if the matrices are trained before the classifier has learned anything, they can swap
    /// classes for the rest of the training.
    const DELAYS_ANNOTATORS: bool = true;

    /// Whether an epoch leaves out an incomplete last batch.
    const DROPS_LAST_BATCH: bool = false;

    /// Whether the classifier is trained on the batch's targets, which already hold the trusted classes.
    const TRAINS_ON_TARGETS: bool = false;

    /// Whether the first table holds confusion matrices that an M-step counts. The table, the M-step, the report and the
    /// memory of such a model are those of `counted` by default.
    const COUNTS_CONFUSION: bool = false;

    /// Whether the loss multiplies by the weights of annotations. Targets hold only the shares of the votes.
    fn weighs_annotations(&self) -> bool {
        !Self::TRAINS_ON_TARGETS
    }

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

    /// The confusion matrices of an E-step by the EM kernels, which multiply them with [`TrainingObjective::prior`].
    /// `None` for all other models: their E-step takes the posteriors of [`TrainingObjective::e_step`].
    fn annotator_matrices<'p>(
        &self,
        _params: &'p AnnotatorParams,
        _dims: Dims,
    ) -> Option<AnnotatorMatrices<'p>> {
        None
    }

    /// P(class) of each row before its annotations, `[row, class]`, for an E-step with
    /// [`TrainingObjective::annotator_matrices`]; the rows come without annotations.
    fn prior(&self, context: &BatchContext<'_>) -> Vec<f64> {
        context.out.p.clone()
    }

    /// The posteriors that an E-step computes for a batch, `[row, class]`, for a model without
    /// [`TrainingObjective::annotator_matrices`]. The batch has the targets of this name, which the result replaces.
    fn e_step(&self, context: &BatchContext<'_>, _name: &'static str) -> Vec<f64> {
        self.predict(context).posterior
    }

    /// Whether the targets of this name hold the classes of trusted instances; else an E-step replaces them too.
    fn keeps_trusted(&self, _name: &'static str) -> bool {
        true
    }

    /// The M-step: estimates parameters of annotators from `counts`, the expected counts `[pair, class]` of the targets
    /// that the act names, and other numbers from the targets of `state`.
    fn m_step(
        &self,
        a: &Annotations,
        counts: &[f64],
        _state: &mut TrainState,
        params: &mut AnnotatorParams,
    ) {
        if Self::COUNTS_CONFUSION {
            counted::count(a, counts, MIN_PROBABILITY, params);
        }
    }

    /// Restores a property of annotators' parameters that their mean over several epochs may lack. It is called for an
    /// average of models alone.
    fn restore_averaged(&self, _params: &mut AnnotatorParams, _dims: Dims) {}

    /// The loss of a batch; adds its derivatives to `gradient`, which is zero before the call. A model may leave the
    /// derivatives of its [`TensorObjective`](super::tensor_objective::TensorObjective) to `loss_by_tensors`.
    ///
    /// # Errors
    /// When tensors do not fit each other.
    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64>;

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
}
