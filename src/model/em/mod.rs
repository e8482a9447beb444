//! The loop of all EM models: start, M-step, E-step, until the objective converges; restarts; trusted rows; the trace.
//!
//! A model implements [`EmSteps`]; the loop calls its steps in order. Models of confusion columns build their steps
//! from a [`ColumnModel`](kernels::ColumnModel): a prior per class or per instance, and an
//! [`Estimator`](kernels::Estimator) that fills the columns. A model whose likelihood is not a product of columns
//! implements [`LogLikelihood`](kernels::LogLikelihood). A model with a classifier has steps with the data of a fit, and
//! reports with the classifier itself ([`gem`](super::gem)). Parameters and posteriors are allocated once
//! before the loop and updated in place; a fit that starts several times keeps those of the best start beside them.

mod dawid_skene;
mod dirichlet;
mod glad;
mod ibcc;
pub mod kernels;
mod one_coin;
mod stop;

use rand::Rng as _;

use crate::error::Result;
use crate::frame::{Annotations, Evidence};
use crate::model::fitted::{Fitted, Report, Stop, TraceRow, on_cpu};
use crate::model::posterior::Posterior;
use crate::model::{Model, ModelKind, Spec};
use crate::run::{Cancel, Run};
pub use dawid_skene::DawidSkene;
pub use glad::Glad;
pub use ibcc::Ibcc;
pub use one_coin::OneCoin;
use stop::check_converged;
pub use stop::{OnExhausted, StopRule};

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::em::<DawidSkene>(),
    ModelKind::em::<OneCoin>(),
    ModelKind::em::<Ibcc>(),
    ModelKind::em::<Glad>(),
];

/// The starting point of a run of the loop.
pub enum Start {
    /// A posterior: the M-step comes first.
    Posterior(Posterior),
    /// The parameters that [`EmSteps::start`] has set: an E-step comes first.
    Parameters,
}

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
    /// A warning for the user, where this model is unreliable for these annotations.
    fn caution(&self, _a: &Annotations) -> Option<String> {
        None
    }
    /// Whether the parameters are still being trained, so that the loop must go on, however little the objective changes.
    fn is_in_training(&self, _params: &Self::Params) -> bool {
        false
    }
    /// When to stop.
    fn stop(&self) -> &StopRule;
    /// How many more times to start; the best objective wins.
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
            posterior,
            predictions: None,
            report,
            trace,
            stop,
            model: None,
            device: on_cpu(),
        })
    }
}

/// The result of one run of the loop.
pub(crate) struct Optimum<P> {
    pub(crate) posterior: Posterior,
    /// The parameters behind the posterior, with its expected counts.
    pub(crate) params: P,
    maximised: f64,
    pub(crate) stop: Stop,
}

/// The best run of the loop from all starts, with the parameters that an M-step estimates from its posterior; and the
/// steps of all runs.
///
/// # Errors
/// When the run is cancelled, a step fails, or the loop does not converge and the spec calls that a failure.
pub(crate) fn maximise<E: EmSteps>(
    steps: &E,
    kind: &str,
    a: &Annotations,
    run: &mut Run,
) -> Result<(Optimum<E::Params>, Vec<TraceRow>)> {
    let stop = steps.stop();
    run.progress.begin(kind, Some(u64::from(stop.max_iter)));
    if let Some(caution) = steps.caution(a) {
        run.warn(caution);
    }
    let mut trace = Vec::new();
    let mut best = run_em(steps, a, 0, steps.params(a), &mut trace, run)?;
    let mut spare = None;
    for attempt in 1..=steps.restarts() {
        let params = spare.take().unwrap_or_else(|| steps.params(a));
        let mut next = run_em(steps, a, attempt, params, &mut trace, run)?;
        if next.maximised > best.maximised {
            std::mem::swap(&mut best, &mut next);
        }
        spare = Some(next.params);
    }
    drop(spare);
    steps.m_step(a, &best.posterior, &mut best.params, &run.cancel)?;
    run.progress.end();
    check_converged(stop, best.stop, run)?;
    Ok((best, trace))
}

/// One run of the loop from a start.
fn run_em<E: EmSteps>(
    steps: &E,
    a: &Annotations,
    attempt: u32,
    mut params: E::Params,
    trace: &mut Vec<TraceRow>,
    run: &Run,
) -> Result<Optimum<E::Params>> {
    let phase = if attempt == 0 { "em".to_owned() } else { format!("restart {attempt}") };
    let rule = steps.stop();
    let standstill = rule.tol * a.len() as f64;
    let mut last: Option<f64> = None;
    let mut t = match steps.start(a, attempt, &mut params, run) {
        Start::Posterior(t) => {
            steps.count(a, &t, &mut params);
            t
        }
        Start::Parameters => {
            let mut t = Posterior::zeros(a.dims().instances, a.dims().classes);
            last = Some(steps.e_step(a, &mut params, &mut t).maximised);
            t
        }
    };
    let (mut converged, mut iterations) = (false, 0);
    while !converged && iterations < rule.max_iter {
        iterations += 1;
        run.cancel.check()?;
        let began = run.clock.seconds();
        steps.m_step(a, &t, &mut params, &run.cancel)?;
        let Objective { maximised, traced: objective } = steps.e_step(a, &mut params, &mut t);
        let change = last.map(|last| maximised - last);
        let seconds = run.clock.seconds() - began;
        tracing::debug!(phase, step = iterations, objective, change, seconds, "iteration");
        run.progress.at(u64::from(iterations), &format!("objective {objective:.3}"));
        trace.push(TraceRow { phase: phase.clone(), step: iterations, objective, change, seconds });
        last = Some(maximised);
        let stands_still = change.is_some_and(|c| c.abs() < standstill);
        converged = stands_still && !steps.is_in_training(&params);
    }
    steps.posteriors(a, &mut params, &mut t);
    let maximised = last.unwrap_or(f64::NEG_INFINITY);
    Ok(Optimum { posterior: t, params, maximised, stop: Stop { converged, iterations } })
}

/// The start of a further run: every row that is not trusted is mixed half and half with a random one.
fn perturbed(a: &Annotations, mut t: Posterior, attempt: u32, run: &Run) -> Posterior {
    let mut rng = run.rng(&format!("restart/{attempt}"));
    for i in 0..t.len() {
        let row = t.row_mut(i);
        let noise: Vec<f64> = row.iter().map(|_| rng.random::<f64>()).collect();
        let sum: f64 = noise.iter().sum();
        if a.trusted_class(i).is_none() {
            row.iter_mut().zip(&noise).for_each(|(p, n)| *p = 0.5 * *p + 0.5 * n / sum);
        }
    }
    t
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::testing::tiny;

    /// Attempt n ends at the n-th objective, and its posterior holds n. The trace shows the opposite of the objective.
    #[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
    struct Scripted {
        objectives: Vec<f64>,
        from_parameters: bool,
        stop: StopRule,
    }

    impl Spec for Scripted {
        const KIND: &'static str = "scripted";
        const SUMMARY: &'static str = "";
        const SOURCE: &'static str = "";
    }

    impl EmSteps for Scripted {
        type Params = (u32, Vec<&'static str>);

        fn params(&self, _: &Annotations) -> Self::Params {
            (0, Vec::new())
        }

        fn start(
            &self,
            _: &Annotations,
            attempt: u32,
            params: &mut Self::Params,
            _: &Run,
        ) -> Start {
            *params = (attempt, vec!["start"]);
            if self.from_parameters {
                Start::Parameters
            } else {
                Start::Posterior(Posterior::zeros(1, 2))
            }
        }

        fn count(&self, _: &Annotations, _: &Posterior, params: &mut Self::Params) {
            params.1.push("count");
        }

        fn m_step(
            &self,
            _: &Annotations,
            _: &Posterior,
            params: &mut Self::Params,
            _: &Cancel,
        ) -> Result<()> {
            params.1.push("m");
            Ok(())
        }

        fn e_step(
            &self,
            _: &Annotations,
            params: &mut Self::Params,
            t: &mut Posterior,
        ) -> Objective {
            params.1.push("e");
            t.row_mut(0).copy_from_slice(&[f64::from(params.0), 0.0]);
            let maximised = self.objectives[params.0 as usize];
            Objective { maximised, traced: -maximised }
        }

        fn report(&self, _: &Annotations, _: &Posterior, params: Self::Params) -> Report {
            let names = params.1.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
            let skill = vec![f64::from(params.0)];
            Report { skill, annotator_parameters: names, ..Report::default() }
        }

        fn stop(&self) -> &StopRule {
            &self.stop
        }

        fn restarts(&self) -> u32 {
            self.objectives.len() as u32 - 1
        }
    }

    fn fit(objectives: &[f64], from_parameters: bool) -> Fitted {
        let stop = StopRule { max_iter: 2, tol: 0.0, ..StopRule::default() };
        let spec = Scripted { objectives: objectives.to_vec(), from_parameters, stop };
        Em(spec).fit((&tiny(2, &[(0, 0, 1)])).into(), &mut Run::new(0)).unwrap()
    }

    /// The names of the steps that made the reported parameters, in order.
    fn steps(fitted: Fitted) -> Vec<String> {
        fitted.report.annotator_parameters.into_iter().map(|(name, _)| name).collect()
    }

    /// Posteriors and parameters are those of the best attempt, whose steps end with an M-step of its own posteriors;
    /// no step of a later attempt is among them.
    #[test]
    fn the_start_with_the_best_objective_is_kept_whatever_the_trace_shows() {
        for (objectives, best) in
            [([-3.0, -1.0, -2.0], 1.0), ([-1.0, -2.0, -3.0], 0.0), ([-3.0, -2.0, -1.0], 2.0)]
        {
            for (from_parameters, start) in [(false, "count"), (true, "e")] {
                let fitted = fit(&objectives, from_parameters);
                assert_eq!(fitted.posterior.row(0)[0], best, "{objectives:?}");
                assert_eq!(fitted.report.skill, [best], "{objectives:?}");
                let phases: Vec<&str> = fitted.trace.iter().map(|row| row.phase.as_str()).collect();
                assert_eq!(
                    phases,
                    ["em", "em", "restart 1", "restart 1", "restart 2", "restart 2"]
                );
                assert_eq!(steps(fitted), ["start", start, "m", "e", "m", "e", "m"]);
            }
        }
    }

    #[test]
    fn a_start_at_parameters_makes_an_e_step_first() {
        assert_eq!(steps(fit(&[0.0], true)), ["start", "e", "m", "e", "m", "e", "m"]);
        assert_eq!(steps(fit(&[0.0], false)), ["start", "count", "m", "e", "m", "e", "m"]);
    }

    /// The votes for instance 0 are 3 and 1 of 4; instance 1 is trusted.
    #[test]
    fn half_of_another_start_are_the_votes_and_trusted_rows_stay() {
        let mut a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (1, 0, 0)]);
        a.trusted = Some(vec![None, Some(1)]);
        let run = Run::new(5);
        let starts: Vec<Posterior> =
            (1..3).map(|n| perturbed(&a, Posterior::from_votes(&a), n, &run)).collect();
        for t in &starts {
            let row = t.row(0);
            assert!((row[0] + row[1] - 1.0).abs() < 1e-12 && row[0] > 0.375 && row[0] < 0.875);
            assert_eq!(t.row(1), [0.0, 1.0]);
        }
        assert!(starts[0].row(0) != starts[1].row(0));
    }
}
