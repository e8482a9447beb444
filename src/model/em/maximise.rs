//! The loop of all EM models: start, M-step, E-step, until the objective converges; restarts; the trace; checkpoints.
//!
//! Parameters and posteriors are allocated once before the loop and updated in place; a fit that starts several times
//! keeps those of the best start beside them.

use super::stop::check_converged;
use super::{EmSteps, Objective};
use crate::error::Result;
use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::fitted::{Stop, TraceRow};
use crate::model::saved::snapshot::Snapshot;

/// The result of one attempt.
pub(crate) struct Optimum<P> {
    /// The parameters, with what the last E-step made of them.
    pub(crate) params: P,
    maximised: f64,
    pub(crate) stop: Stop,
}

/// The least gain for each annotation by which a further start replaces an earlier one, with a tolerance of 0: objectives
/// that differ by less differ by rounding.
const MIN_GAIN: f64 = 1e-9;

/// The best attempt of all starts, and the steps of all attempts. Of starts whose objectives are equal, within the tolerance
/// of the loop, the earliest is kept.
///
/// # Why
/// The objective of a solution with exchanged classes is the same but for rounding, and two attempts that reach one optimum end
/// within the tolerance. The first start, at the votes, keeps the classes in their places; a start with noise may not.
///
/// # Errors
/// When the settings do not fit the annotations, the run is cancelled, a step fails, a checkpoint cannot be read or written, or the loop does not converge and the
/// spec calls that a failure.
pub(crate) fn maximise<E: EmSteps>(
    steps: &E,
    kind: &str,
    a: &Annotations,
    job: &mut JobContext,
) -> Result<(Optimum<E::Params>, Vec<TraceRow>)> {
    steps.check_data(a, job)?;
    let stop = steps.stop();
    job.progress.begin(kind, Some(u64::from(stop.max_iter)));
    if let Some(caution) = steps.caution(a, job) {
        job.warn(caution);
    }
    let mut params = steps.params(a);
    let resumed = steps.resume(a, &mut params, job)?;
    let (mut best, mut trace) = run_em(steps, a, 0, params, resumed, job)?;
    let min_gain = stop.tol.max(MIN_GAIN) * a.len() as f64;
    let mut spare = None;
    for attempt in 1..=steps.restarts() {
        let params = spare.take().unwrap_or_else(|| steps.params(a));
        let (mut next, mut of_next) = run_em(steps, a, attempt, params, None, job)?;
        trace.append(&mut of_next);
        if next.maximised > best.maximised + min_gain {
            std::mem::swap(&mut best, &mut next);
        }
        spare = Some(next.params);
    }
    drop(spare);
    job.progress.end();
    check_converged(stop, best.stop, job)?;
    Ok((best, trace))
}

/// One attempt, from a start or from the state of an interrupted one; and its steps.
fn run_em<E: EmSteps>(
    steps: &E,
    a: &Annotations,
    attempt: u32,
    mut params: E::Params,
    resumed: Option<LoopState>,
    job: &JobContext,
) -> Result<(Optimum<E::Params>, Vec<TraceRow>)> {
    let phase = if attempt == 0 { "em".to_owned() } else { format!("restart {attempt}") };
    let rule = steps.stop();
    let min_change = rule.tol * a.len() as f64;
    let mut state = match resumed {
        Some(state) => state,
        None => LoopState {
            maximised: steps.start(a, attempt, &mut params, job),
            ..LoopState::default()
        },
    };
    while !state.converged && state.iterations < rule.max_iter {
        state.iterations += 1;
        job.cancel.check()?;
        let began = job.clock.seconds();
        steps.m_step(a, &mut params, &job.cancel)?;
        let Objective { maximised, traced: objective } = steps.e_step(a, &mut params);
        let last = state.maximised.filter(|_| !steps.has_new_objective(&params));
        let change = last.map(|last| maximised - last);
        let (step, seconds) = (state.iterations, job.clock.seconds() - began);
        tracing::debug!(phase, step, objective, change, seconds, "iteration");
        job.progress.at(u64::from(step), &format!("objective {objective:.3}"));
        let phase = phase.clone();
        let row = TraceRow { phase, step, objective, change, seconds, ..TraceRow::default() };
        state.trace.push(row);
        state.maximised = Some(maximised);
        let stands_still = change.is_some_and(|c| c.abs() < min_change);
        state.converged = stands_still && !steps.is_in_training(&params);
        if attempt == 0 {
            steps.checkpoint(&state, &params)?;
        }
    }
    let LoopState { maximised, iterations, converged, trace } = state;
    let maximised = maximised.unwrap_or(f64::NEG_INFINITY);
    let objective = trace.last().map(|row| row.objective);
    let stop = Stop { converged, iterations, objective, planned: None };
    Ok((Optimum { params, maximised, stop }, trace))
}

/// The state of an attempt between two iterations, without the parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopState {
    /// What EM maximises, after the last E-step; `None` before the first one.
    maximised: Option<f64>,
    iterations: u32,
    converged: bool,
    /// One row for each iteration.
    trace: Vec<TraceRow>,
}

impl LoopState {
    /// Adds the state to a snapshot.
    pub(crate) fn save(&self, to: &mut Snapshot) {
        to.f64s("maximised".to_owned(), self.maximised.into_iter().collect());
        to.u32s("iterations".to_owned(), vec![self.iterations, u32::from(self.converged)]);
        TraceRow::save(&self.trace, to);
    }

    /// The state in a snapshot.
    ///
    /// # Errors
    /// When the snapshot is that of another fit.
    pub(crate) fn saved(from: &Snapshot) -> Result<Self> {
        let iterations = from.take_u32s("iterations", 2)?;
        Ok(Self {
            maximised: from.take_f64s("maximised")?.first().copied(),
            iterations: iterations[0],
            converged: iterations[1] != 0,
            trace: TraceRow::saved(from)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::job_context::Cancel;
    use crate::model::em::{Em, EmModel, EmResult, StopRule};
    use crate::model::fitted::{Fitted, Report};
    use crate::model::posterior::Posterior;
    use crate::model::{Model as _, Spec};
    use crate::testing::{iterations, tiny};

    /// Attempt n ends at the n-th objective, and its posterior holds n. The trace shows the opposite of the objective.
    #[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
    struct Scripted {
        objectives: Vec<f64>,
        from_parameters: bool,
        /// Whether there is a checkpoint of the first iteration.
        resumes: bool,
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
            a: &Annotations,
            attempt: u32,
            params: &mut Self::Params,
            _: &JobContext,
        ) -> Option<f64> {
            *params = (attempt, vec!["start"]);
            self.from_parameters.then(|| self.e_step(a, params).maximised)
        }

        fn m_step(&self, _: &Annotations, params: &mut Self::Params, _: &Cancel) -> Result<()> {
            params.1.push("m");
            Ok(())
        }

        fn e_step(&self, _: &Annotations, params: &mut Self::Params) -> Objective {
            params.1.push("e");
            let maximised = self.objectives[params.0 as usize];
            Objective { maximised, traced: -maximised }
        }

        fn resume(
            &self,
            _: &Annotations,
            _: &mut Self::Params,
            _: &mut JobContext,
        ) -> Result<Option<LoopState>> {
            let state = LoopState { iterations: 1, ..LoopState::default() };
            Ok(self.resumes.then_some(state))
        }

        fn stop(&self) -> &StopRule {
            &self.stop
        }

        fn restarts(&self) -> u32 {
            self.objectives.len() as u32 - 1
        }
    }

    impl EmModel for Scripted {
        fn finish(&self, _: &Annotations, params: Self::Params, _: &Cancel) -> Result<EmResult> {
            let mut t = Posterior::zeros(1, 2);
            t.row_mut(0)[0] = f64::from(params.0);
            let names = params.1.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
            let skill = vec![f64::from(params.0)];
            Ok((t.into(), Report { skill, annotator_parameters: names, ..Report::default() }))
        }
    }

    fn fit(objectives: &[f64], from_parameters: bool) -> Fitted {
        let stop = iterations(2);
        let objectives = objectives.to_vec();
        let spec = Scripted { objectives, from_parameters, resumes: false, stop };
        Em(spec).fit((&tiny(2, &[(0, 0, 1)])).into(), &mut JobContext::new(0)).unwrap()
    }

    /// The names of the steps that made the reported parameters, in order.
    fn steps(fitted: Fitted) -> Vec<String> {
        fitted.report.annotator_parameters.into_iter().map(|(name, _)| name).collect()
    }

    /// Posteriors and parameters are those of the best attempt; no step of a later attempt is among them.
    #[test]
    fn the_start_with_the_best_objective_is_kept_whatever_the_trace_shows() {
        for (objectives, best) in
            [([-3.0, -1.0, -2.0], 1.0), ([-1.0, -2.0, -3.0], 0.0), ([-3.0, -2.0, -1.0], 2.0)]
        {
            for (from_parameters, start) in [(false, &["start"][..]), (true, &["start", "e"])] {
                let fitted = fit(&objectives, from_parameters);
                assert_eq!(fitted.posterior.row(0)[0], best, "{objectives:?}");
                assert_eq!(fitted.report.skill, [best], "{objectives:?}");
                assert_eq!(fitted.stop.objective, Some(1.0), "{objectives:?}");
                let phases: Vec<&str> = fitted.trace.iter().map(|row| row.phase.as_str()).collect();
                assert_eq!(
                    phases,
                    ["em", "em", "restart 1", "restart 1", "restart 2", "restart 2"]
                );
                assert_eq!(steps(fitted), [start, &["m", "e", "m", "e"]].concat());
            }
        }
    }

    /// With one annotation, a gain has to exceed the tolerance, and in any case what rounding can add.
    #[test]
    fn of_starts_that_end_equally_well_the_earliest_is_kept() {
        for (tol, gain, best) in [
            (1e-5, 1e-9, 0.0),
            (1e-5, 9e-6, 0.0),
            (1e-5, 2e-5, 1.0),
            (0.0, 1e-12, 0.0),
            (0.0, 1e-6, 1.0),
        ] {
            let stop = StopRule { tol, ..iterations(2) };
            let objectives = vec![-1.0, -1.0 + gain];
            let spec = Scripted { objectives, from_parameters: false, resumes: false, stop };
            let fitted =
                Em(spec).fit((&tiny(2, &[(0, 0, 1)])).into(), &mut JobContext::new(0)).unwrap();
            assert_eq!(fitted.report.skill, [best], "{tol} {gain}");
        }
    }

    /// One of two iterations is left.
    #[test]
    fn a_resumed_run_makes_no_start() {
        let stop = iterations(2);
        let spec = Scripted { objectives: vec![0.0], from_parameters: false, resumes: true, stop };
        let fitted =
            Em(spec).fit((&tiny(2, &[(0, 0, 1)])).into(), &mut JobContext::new(0)).unwrap();
        assert_eq!((fitted.stop.iterations, steps(fitted)), (2, vec!["m".into(), "e".into()]));
    }
}
