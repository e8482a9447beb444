//! The EM loop, once: start, M-step, E-step, until the objective stands still; restarts; trusted rows; the trace.
//!
//! A model brings [`EmSteps`]; the loop owns the order of things. Parameters and posteriors are allocated once before
//! the loop and updated in place.

pub mod columns;
pub mod counts;
mod dawid_skene;
pub mod e_sweep;
pub mod fetched;
pub mod gather;
pub mod kernel;
pub mod notes;
pub mod sparse;
pub mod whole;

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::{Annotations, Evidence};
use crate::model::fitted::{Fitted, Posterior, Report, Stop, TraceRow, on_cpu};
use crate::model::{Model, Spec};
use crate::run::Run;
pub use dawid_skene::DawidSkene;

/// When the loop stops.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopRule {
    /// Iterations at most.
    #[schemars(range(min = 1))]
    pub max_iter: u32,
    /// Stop when the objective changes by less than this for each annotation; 0 runs all iterations.
    #[schemars(range(min = 0.0))]
    pub tol: f64,
    /// What to do when the iterations run out first.
    pub on_exhausted: OnExhausted,
}

impl Default for StopRule {
    fn default() -> Self {
        Self { max_iter: 100, tol: 1e-5, on_exhausted: OnExhausted::Warn }
    }
}

/// What to do when the iterations run out before the objective stands still.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// Say so and publish.
    #[default]
    Warn,
    /// Fail, and publish nothing.
    Fail,
}

/// The steps that make an EM model.
pub trait EmSteps: Spec {
    /// What the M-step estimates.
    type Params: Send;
    /// Room for the parameters.
    fn params(&self, a: &Annotations) -> Self::Params;
    /// The posterior before the first M-step.
    fn start(&self, a: &Annotations) -> Posterior {
        Posterior::from_votes(a)
    }
    /// Expected counts of posteriors that the last E-step did not make: a start, or a kept result.
    fn count(&self, a: &Annotations, t: &Posterior, params: &mut Self::Params);
    /// Parameters from posteriors and their expected counts.
    fn m_step(&self, a: &Annotations, t: &Posterior, params: &mut Self::Params);
    /// Posteriors from parameters, rows of trusted instances one-hot, and their expected counts; returns the objective.
    /// `t` comes with the posteriors that the parameters were estimated from.
    fn e_step(&self, a: &Annotations, params: &mut Self::Params, t: &mut Posterior) -> f64;
    /// What the fitted parameters, and the posteriors and counts behind them, say.
    fn report(&self, a: &Annotations, t: &Posterior, params: Self::Params) -> Report;
    /// What a person should know before trusting this model with these annotations.
    fn caution(&self, _a: &Annotations) -> Option<String> {
        None
    }
    /// When to stop.
    fn stop(&self) -> &StopRule;
    /// How many more times to start, from votes mixed with noise; the best objective wins.
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

impl<E: EmSteps> Model for Em<E> {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let (steps, a) = (&self.0, evidence.annotations);
        let stop = steps.stop();
        run.progress.begin(E::KIND, Some(u64::from(stop.max_iter)));
        if let Some(caution) = steps.caution(a) {
            run.warn(caution);
        }
        let mut params = steps.params(a);
        let mut trace = Vec::new();
        let mut kept = climb(steps, a, steps.start(a), &mut params, "em", &mut trace, run)?;
        for restart in 1..=steps.restarts() {
            let start = perturbed(a, steps.start(a), restart, run);
            let phase = format!("restart {restart}");
            let next = climb(steps, a, start, &mut params, &phase, &mut trace, run)?;
            if next.objective > kept.objective {
                kept = next;
            }
        }
        if steps.restarts() > 0 {
            steps.count(a, &kept.posterior, &mut params);
        }
        steps.m_step(a, &kept.posterior, &mut params);
        run.progress.end();
        exhausted(stop, kept.stop, run)?;
        let report = steps.report(a, &kept.posterior, params);
        let posterior = kept.posterior;
        Ok(Fitted {
            posterior,
            predictions: None,
            report,
            trace,
            stop: kept.stop,
            model: None,
            device: on_cpu(),
        })
    }
}

struct Climb {
    posterior: Posterior,
    objective: f64,
    stop: Stop,
}

/// One run of the loop from a start.
fn climb<E: EmSteps>(
    steps: &E,
    a: &Annotations,
    mut t: Posterior,
    params: &mut E::Params,
    phase: &str,
    trace: &mut Vec<TraceRow>,
    run: &Run,
) -> Result<Climb> {
    let rule = steps.stop();
    let standstill = rule.tol * a.len() as f64;
    let mut last: Option<f64> = None;
    steps.count(a, &t, params);
    for step in 1..=rule.max_iter {
        run.cancel.check()?;
        let began = run.clock.seconds();
        steps.m_step(a, &t, params);
        let objective = steps.e_step(a, params, &mut t);
        let change = last.map(|last| objective - last);
        let seconds = run.clock.seconds() - began;
        tracing::debug!(phase, step, objective, change, seconds, "iteration");
        run.progress.at(u64::from(step), &format!("objective {objective:.3}"));
        trace.push(TraceRow { phase: phase.to_owned(), step, objective, change, seconds });
        if change.is_some_and(|c| c.abs() < standstill) {
            return Ok(Climb {
                posterior: t,
                objective,
                stop: Stop { converged: true, iterations: step },
            });
        }
        last = Some(objective);
    }
    let stop = Stop { converged: false, iterations: rule.max_iter };
    Ok(Climb { posterior: t, objective: last.unwrap_or(f64::NEG_INFINITY), stop })
}

/// A start for one more run: every row that is not trusted is mixed half and half with a random one.
fn perturbed(a: &Annotations, mut t: Posterior, restart: u32, run: &Run) -> Posterior {
    let mut rng = run.rng(&format!("restart/{restart}"));
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

fn exhausted(rule: &StopRule, stop: Stop, run: &mut Run) -> Result<()> {
    if stop.converged || rule.tol == 0.0 {
        return Ok(());
    }
    let what = format!("the fit had not converged after {} iterations", stop.iterations);
    match rule.on_exhausted {
        OnExhausted::Warn => {
            run.warn(format!("{what}: raise model.stop.max_iter or model.stop.tol"));
            Ok(())
        }
        OnExhausted::Fail => Err(Error::fit(what)
            .at("model.stop")
            .help("raise max_iter or tol, or set on_exhausted = \"warn\"")),
    }
}
