//! Fine-tuning: the trained classifier goes on learning from the trusted classes alone.
//!
//! ```text
//! loss = -(1/B) sum_i ln p_i[class of i]      over the trusted instances with features
//! ```
//! The optimiser is that of the training, with new moments, at the rate of the last epoch, but no less than a tenth of the
//! first: a schedule that ends near 0 would leave the classifier as it is. Annotators' parameters stay as they are, and so do
//! the running statistics of batch norm: batches of few classes have other means, and the classifier would unlearn the very
//! classes that gold names.

use crate::error::Result;
use crate::frame::Evidence;
use crate::job_context::JobContext;
use crate::model::fitted::FINE_TUNING;
use crate::model::neural::data::TrainingData;
use crate::model::neural::data::batching::{Batching, InstanceSubset};
use crate::model::neural::net::optimiser::optimiser_spec::{LrSchedule, OptimiserSpec};
use crate::model::neural::objective::batch_context::{BatchContext, Gradient};
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::given_matrices::few_of_a_class;
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase};
use crate::model::neural::objective::train_spec::{Reduction, Select, TrainSpec};
use crate::model::neural::objective::train_state::TrainState;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::train::learners::learner::CLASSIFIER;
use crate::model::neural::train::{LoopPosition, Trainer};

/// The least share of the first learning rate.
const MIN_FACTOR: f64 = 0.1;

/// Trains the classifier on the trusted classes of `evidence` for so many more epochs; with `select = "valid"` the best of
/// these is kept. Returns how many were planned: none without a trusted class.
///
/// # Errors
/// When the training diverges, the run is cancelled, or the device fails.
pub(super) fn fine_tuned<'a, N: CrowdNet>(
    trainer: Trainer<'a, N>,
    epochs: u32,
    evidence: Evidence<'_>,
    job: &mut JobContext,
) -> Result<(Trainer<'a, N>, u32)> {
    let batching = Batching { by_annotation: false, ..trainer.spec.batching(false) };
    let data = TrainingData::new(evidence, None, false, batching);
    let Some(data) = data.filter(|data| !data.trusted().is_empty()) else {
        job.warn("no instance with features has a trusted class (gold of the role `train`): fine_tune changes nothing");
        return Ok((trainer, 0));
    };
    let few = few_of_a_class(evidence.annotations, "which the fine-tuning may unlearn");
    few.into_iter().for_each(|warning| job.warn(warning));
    let (of_training, all) = (&trainer.spec.optimiser, trainer.spec.epochs);
    let factor = of_training.factor(all.saturating_sub(1), all).max(MIN_FACTOR);
    let optimiser = OptimiserSpec {
        learning_rate: factor * of_training.learning_rate,
        schedule: LrSchedule::Constant,
        warmup: 0,
        annotator_learning_rate: None,
        annotator_delay: None,
        ..of_training.clone()
    };
    let spec = TrainSpec {
        epochs,
        optimiser,
        select: if trainer.spec.select == Select::Valid { Select::Valid } else { Select::Last },
        patience: None,
        average: 0.0,
        ..trainer.spec.clone()
    };
    let mut learners = trainer.learners;
    learners.keep_statistics();
    let mut state = trainer.state;
    let mut tuner = Trainer {
        model: &TrustedClasses,
        fingerprint: None,
        spec: &spec,
        data: &data,
        dims: trainer.dims,
        valid: trainer.valid,
        valid_questions: trainer.valid_questions,
        learners,
        annotator_params: trainer.annotator_params,
        state: TrainState { trace: std::mem::take(&mut state.trace), ..TrainState::default() },
        position: LoopPosition::default(),
    };
    tuner.train(job)?;
    state.trace = tuner.state.trace;
    let (learners, annotator_params) = (tuner.learners, tuner.annotator_params);
    Ok((Trainer { learners, annotator_params, state, ..trainer }, epochs))
}

/// No loss but that of the trusted classes, which the loop adds to that of each model.
struct TrustedClasses;

impl TrainingObjective for TrustedClasses {
    const REDUCTION: Option<Reduction> = None;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let phase = Phase {
            learners: LearnerSubset::Only(&[CLASSIFIER]),
            tables: Some(&[]),
            changes_likelihood: false,
            instances: InstanceSubset::Trusted,
            ..Phase::joint(FINE_TUNING, train.epochs)
        };
        (state.acts == 0).then_some(Act::Train(phase))
    }

    fn loss(&self, _context: &BatchContext<'_>, _gradient: &mut Gradient) -> Result<f64> {
        Ok(0.0)
    }
}
