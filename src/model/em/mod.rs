//! EM models: the steps that a model implements ([`EmSteps`]). The loop that calls them is in `maximise.rs`.
//!
//! Models of confusion columns build their steps from a [`ColumnModel`](kernels::ColumnModel): a prior per class or per
//! instance, and an [`Estimator`](kernels::Estimator) that fills the columns. A model whose likelihood is not a product
//! of columns implements [`LogLikelihood`](kernels::LogLikelihood). A model with a classifier has steps with the data of
//! a fit, and reports with the classifier itself ([`gem`](super::gem)).

mod crowd_rows;
mod dawid_skene;
mod glad;
mod ibcc;
pub mod kernels;
mod maximise;
mod one_coin;
mod start;
mod stop;

use crate::error::Result;
use crate::frame::{Annotations, Evidence};
use crate::model::fitted::{Fitted, Report, on_cpu};
use crate::model::posterior::Posterior;
use crate::model::{Model, ModelKind, Spec};
use crate::run::{Cancel, Run};
pub(crate) use dawid_skene::few_annotations;
pub use dawid_skene::{DawidSkene, MatrixPrior};
pub use glad::Glad;
pub use ibcc::Ibcc;
pub use maximise::LoopState;
pub(crate) use maximise::{Optimum, maximise};
pub use one_coin::OneCoin;
pub use start::Start;
use start::perturbed;
pub use stop::{OnExhausted, StopRule};

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::em::<DawidSkene>(),
    ModelKind::em::<OneCoin>(),
    ModelKind::em::<Ibcc>(),
    ModelKind { fit_bytes: Glad::fit_bytes, ..ModelKind::em::<Glad>() },
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
    /// The estimates of the M-step, and the buffers that a model reuses in the next iteration.
    type Params: Send;
    /// Allocates the parameters.
    fn params(&self, a: &Annotations) -> Self::Params;
    /// The starting point of a run: `attempt` counts from 0, and `run` provides random numbers. The default is the
    /// shares of the votes, which later attempts mix with noise.
    fn start(&self, a: &Annotations, attempt: u32, _params: &mut Self::Params, run: &Run) -> Start {
        let votes = Posterior::from_votes(a);
        Start::Posterior(if attempt == 0 { votes } else { perturbed(a, votes, attempt, run) })
    }
    /// Computes the expected counts of a start, which no E-step has made.
    fn count(&self, _a: &Annotations, _t: &Posterior, _params: &mut Self::Params) {}
    /// Estimates the parameters from posteriors and their expected counts.
    ///
    /// # Errors
    /// The interruption, where an M-step takes so long that it checks `cancel` itself.
    fn m_step(
        &self,
        a: &Annotations,
        t: &Posterior,
        params: &mut Self::Params,
        cancel: &Cancel,
    ) -> Result<()>;
    /// Computes posteriors from the parameters, with one-hot rows for trusted instances, and their expected counts.
    /// Returns the objective: the marginal log-likelihood plus the model's other terms, such as a log-prior. On entry
    /// `t` holds the posteriors that the parameters were estimated from; zeros after [`Start::Parameters`]. A model whose
    /// M-step reads nothing but the counts may leave `t` as it is, and then has [`EmSteps::posteriors`].
    fn e_step(&self, a: &Annotations, params: &mut Self::Params, t: &mut Posterior) -> Objective;
    /// Stores the posteriors of the last E-step in `t`, where the E-step has left them out: the loop calls it after the
    /// last iteration.
    fn posteriors(&self, _a: &Annotations, _params: &mut Self::Params, _t: &mut Posterior) {}
    /// Reports the fitted parameters; `t` are the posteriors that they were estimated from.
    fn report(&self, a: &Annotations, t: &Posterior, params: Self::Params) -> Report;
    /// A warning for the user, where this model is unreliable for these annotations; `run` has the names of its keys.
    fn caution(&self, _a: &Annotations, _run: &Run) -> Option<String> {
        None
    }
    /// Whether the parameters are still being trained, so that the loop must go on, however little the objective changes.
    fn is_in_training(&self, _params: &Self::Params) -> bool {
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
        _run: &mut Run,
    ) -> Result<Option<LoopState>> {
        Ok(None)
    }
    /// Saves the state after an iteration of the first run of the loop, for [`EmSteps::resume`]; by default, nothing. The
    /// state has the posteriors of the E-step, which must not leave them out.
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

/// An EM model: the loop around its steps. A wrapper, since two blanket implementations of [`Model`] would clash.
pub struct Em<E>(pub E);

impl<E> From<E> for Em<E> {
    fn from(steps: E) -> Self {
        Self(steps)
    }
}

impl<E: EmSteps + Spec> Model for Em<E> {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let (steps, a) = (&self.0, evidence.annotations);
        let (Optimum { posterior, params, stop, .. }, trace) = maximise(steps, E::KIND, a, run)?;
        let report = steps.report(a, &posterior, params);
        Ok(Fitted {
            posterior: posterior.into(),
            predictions: None,
            report,
            trace,
            stop,
            model: None,
            device: on_cpu(),
        })
    }

    fn restarts(&self) -> u32 {
        self.0.restarts()
    }
}
