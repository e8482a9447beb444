//! EM models: the steps that a model implements ([`EmSteps`]). The loop that calls them is in `maximise.rs`.
//!
//! A model whose likelihood is a product over (annotator, label) pairs is a [`PairModel`]: an
//! [`Estimator`](kernels::Estimator), a prior of the classes and a report; [`PairEm`] makes its steps. A model whose
//! likelihood is not such a product implements [`LogLikelihood`](kernels::LogLikelihood). A model with a classifier has
//! steps with the data of a fit, and reports with the classifier itself ([`gem`](super::with_classifier::gem)).

mod glad;
pub mod kernels;
mod maximise;
mod mmce;
mod pairs;
mod random_effects;
mod start;
mod stop;

use super::fitted::fitted_posterior::FittedPosterior;
use crate::error::Result;
use crate::frame::{Annotations, Evidence, MemoryEstimate, QuestionSizes, dense_memory_estimate};
use crate::job_context::{Cancel, JobContext};
use crate::model::fitted::{Fitted, Report};
use crate::model::{Model, ModelKind, Spec};
pub use glad::Glad;
pub use maximise::LoopState;
pub(crate) use maximise::{Optimum, maximise};
pub use mmce::Mmce;
pub use pairs::clusters::community_bcc::CommunityBcc;
pub use pairs::clusters::worker_clustering::WorkerClustering;
pub use pairs::conal_em::ConalEm;
pub(crate) use pairs::conal_em::MixtureEstimator;
pub(crate) use pairs::dawid_skene::few_annotations;
pub use pairs::dawid_skene::{DawidSkene, MatrixPrior};
pub use pairs::fast_dawid_skene::{FastDawidSkene, FastStart};
pub use pairs::ibcc::Ibcc;
pub use pairs::known_confusion::KnownConfusion;
pub use pairs::mace::{Mace, MaceMethod};
pub use pairs::one_coin::OneCoin;
pub use pairs::pair_em::{ClassPrior, PairEm, PairFit, PairModel};
pub use pairs::snorkel::Snorkel;
pub use random_effects::RandomEffects;
#[cfg(feature = "neural")]
pub(in crate::model) use start::first_start;
pub use stop::{OnExhausted, StopRule};

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::pairs::<DawidSkene>(),
    ModelKind::pairs::<FastDawidSkene>(),
    ModelKind::pairs::<OneCoin>(),
    ModelKind::pairs::<Ibcc>(),
    ModelKind::pairs::<KnownConfusion>(),
    ModelKind::pairs::<Mace>(),
    ModelKind::pairs::<Snorkel>(),
    ModelKind::pairs::<ConalEm>(),
    ModelKind::pairs::<CommunityBcc>(),
    ModelKind::pairs::<WorkerClustering>(),
    ModelKind::em::<Glad>(),
    ModelKind::em::<Mmce>(),
    ModelKind::em::<RandomEffects>(),
];

/// The value of the objective after a step of EM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// What EM maximises, and so cannot fall: it decides when the loop stops and which start wins.
    pub maximised: f64,
    /// The objective of the trace.
    ///
    /// # Why
    /// The histories that are published for Dawid-Skene and one-coin models are of the marginal log-likelihood, also
    /// where a prior makes EM maximise its sum with the log-prior; `gem` follows them. For other models this is
    /// `maximised`.
    pub traced: f64,
}

impl Objective {
    /// The objective of a model that maximises its log-likelihood plus a log-prior, and whose trace shows the former.
    #[must_use]
    pub fn penalised(log_likelihood: f64, log_prior: f64) -> Self {
        Self { maximised: log_likelihood + log_prior, traced: log_likelihood }
    }
}

impl From<f64> for Objective {
    fn from(maximised: f64) -> Self {
        Self { maximised, traced: maximised }
    }
}

/// The steps of an EM model.
pub trait EmSteps {
    /// All that passes from one step to the next, allocated once.
    type Params: Send;
    /// Allocates the parameters.
    fn params(&self, a: &Annotations) -> Self::Params;
    /// Sets the starting point of a run: `attempt` counts from 0, and `job` provides random numbers. Returns what EM
    /// maximises, where the start is one of parameters, from which an E-step has followed.
    fn start(
        &self,
        a: &Annotations,
        attempt: u32,
        params: &mut Self::Params,
        job: &JobContext,
    ) -> Option<f64>;
    /// Estimates the parameters from what the last E-step, or the start, has computed.
    ///
    /// # Errors
    /// The interruption, where an M-step takes so long that it checks `cancel` itself.
    fn m_step(&self, a: &Annotations, params: &mut Self::Params, cancel: &Cancel) -> Result<()>;
    /// Computes what the M-step reads of the posteriors, with one-hot rows for trusted instances. Returns the objective:
    /// the marginal log-likelihood plus the model's other terms, such as a log-prior.
    fn e_step(&self, a: &Annotations, params: &mut Self::Params) -> Objective;
    /// A warning for the user, where this model is unreliable for these annotations; `job` has the names of its keys.
    fn caution(&self, _a: &Annotations, _job: &JobContext) -> Option<String> {
        None
    }
    /// Checks that the settings fit the annotations; `job` has the names of their keys.
    ///
    /// # Errors
    /// Where they do not, such as a list with an entry for each of other classes.
    fn check_data(&self, _a: &Annotations, _job: &JobContext) -> Result<()> {
        Ok(())
    }
    /// Whether the parameters are still being trained, so that the loop must go on, however little the objective changes.
    fn is_in_training(&self, _params: &Self::Params) -> bool {
        false
    }
    /// Whether the last E-step was the first of another objective, which does not go on from the one before.
    fn has_new_objective(&self, _params: &Self::Params) -> bool {
        false
    }
    /// The state in the checkpoint of an interrupted fit, whose parameters go into `params`; `None` to start anew, as by
    /// default, or where the checkpoint is that of another fit.
    ///
    /// # Errors
    /// When the checkpoint cannot be read.
    fn resume(
        &self,
        _a: &Annotations,
        _params: &mut Self::Params,
        _job: &mut JobContext,
    ) -> Result<Option<LoopState>> {
        Ok(None)
    }
    /// Saves the state after an iteration of the first attempt, for [`EmSteps::resume`]; by default, nothing.
    ///
    /// # Errors
    /// When a checkpoint cannot be written.
    fn checkpoint(&self, _state: &LoopState, _params: &Self::Params) -> Result<()> {
        Ok(())
    }
    /// When to stop.
    fn stop(&self) -> &StopRule;
    /// How many more times to start; the best objective wins, and of objectives within the tolerance of the loop that of
    /// the earliest start.
    fn restarts(&self) -> u32 {
        0
    }
}

/// The posteriors of the last E-step, and the report of the parameters that an M-step estimates from them.
pub type EmResult = (FittedPosterior, Report);

/// An EM model without a classifier: what its parameters become in the end.
pub trait EmModel: EmSteps {
    /// The end of a fit, after the last E-step.
    ///
    /// # Errors
    /// As [`EmSteps::m_step`].
    fn finish(&self, a: &Annotations, params: Self::Params, cancel: &Cancel) -> Result<EmResult>;
    /// A warning for the user, where the posteriors cannot be used; `job` has the names of the model's keys.
    fn doubt(
        &self,
        _a: &Annotations,
        _posterior: &FittedPosterior,
        _job: &JobContext,
    ) -> Option<String> {
        None
    }
    /// See [`Model::memory_estimate`].
    #[must_use]
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        dense_memory_estimate(sizes)
    }
}

/// An EM model: the loop around its steps. A wrapper, since two blanket implementations of [`Model`] would clash.
pub struct Em<E>(pub E);

impl<E> From<E> for Em<E> {
    fn from(steps: E) -> Self {
        Self(steps)
    }
}

impl<E: EmModel + Spec> Model for Em<E> {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        fit(&self.0, E::KIND, evidence.annotations, job)
    }

    fn restarts(&self) -> u32 {
        self.0.restarts()
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        E::memory_estimate(sizes)
    }
}

/// Fits a model of this kind.
pub(crate) fn fit(
    steps: &impl EmModel,
    kind: &str,
    a: &Annotations,
    job: &mut JobContext,
) -> Result<Fitted> {
    let (Optimum { params, stop, .. }, trace) = maximise(steps, kind, a, job)?;
    let (posterior, report) = steps.finish(a, params, &job.cancel)?;
    if let Some(doubt) = steps.doubt(a, &posterior, job) {
        job.warn(doubt);
    }
    Ok(Fitted { trace, stop, ..Fitted::new(posterior, report) })
}
