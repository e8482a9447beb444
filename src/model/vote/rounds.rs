//! The loop of the weighted votes: vote, compare each annotator with the labels, weigh annotators, vote again.
//!
//! # Why
//! The references break a tie of classes, by the lowest index or at random, and compare annotators with the class that won:
//! he who voted for it gains weight, so that the tie is decided by the order of the classes. Here each of `k` tied classes
//! counts as 1 / k of a label, and a tie that nothing breaks stays one.

use rayon::prelude::*;

use crate::error::Result;
use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::fitted::{Fitted, Report, Stop, TraceRow, on_cpu};
use crate::model::posterior::{Posterior, best, least_tied};

/// The weight of every annotator after a step.
type Weigh<'a> = &'a dyn Fn(u32, &[f64], &[f64]) -> Vec<f64>;

/// How a model weighs annotators by how far they agree with the current labels.
pub(super) struct Rounds<'a> {
    /// The name of the model, for progress.
    pub(super) kind: &'static str,
    /// The weight of every annotator in the first vote.
    pub(super) start: f64,
    /// The most rounds.
    pub(super) max_steps: u32,
    /// Whether the loop ends once a round changes no label.
    pub(super) stops_when_stable: bool,
    /// The loss of every annotator, from 0 to 1 or more, in place of one minus his agreement with the labels.
    pub(super) loss: Option<fn(&Annotations, &Posterior) -> Vec<f64>>,
    /// The next weights: `(round from 1, agreement, or one minus the loss, of each annotator, his weight so far)`.
    pub(super) weigh: Weigh<'a>,
}

impl Rounds<'_> {
    /// Runs the loop. The report's skill is `skill` of the last weights; the trace shows the mean agreement of the
    /// annotators with the labels, which may fall.
    ///
    /// # Errors
    /// When the run is cancelled.
    pub(super) fn fit(
        &self,
        a: &Annotations,
        job: &mut JobContext,
        skill: impl Fn(&[f64], Vec<f64>) -> Vec<f64>,
    ) -> Result<Fitted> {
        let n = a.dims().annotators;
        let mut weights = vec![self.start; n];
        let mut posterior = weighted_vote(a, &weights);
        let mut labels = labels_of(a, &posterior);
        let (mut trace, mut agreed, mut converged) = (Vec::new(), vec![1.0; n], false);
        job.progress.begin(self.kind, Some(u64::from(self.max_steps)));
        for step in 1..=self.max_steps {
            job.cancel.check()?;
            let began = job.clock.seconds();
            agreed = match self.loss {
                None => agreement(a, &posterior),
                Some(loss) => loss(a, &posterior).into_iter().map(|loss| 1.0 - loss).collect(),
            };
            weights = (self.weigh)(step, &agreed, &weights);
            posterior = weighted_vote(a, &weights);
            let next = labels_of(a, &posterior);
            let is_stable = next == labels;
            labels = next;
            let objective = agreed.iter().sum::<f64>() / n.max(1) as f64;
            let seconds = job.clock.seconds() - began;
            job.progress.at(u64::from(step), &format!("agreement {objective:.3}"));
            trace.push(TraceRow {
                phase: "vote".to_owned(),
                step,
                objective,
                seconds,
                ..TraceRow::default()
            });
            if self.stops_when_stable && is_stable {
                converged = true;
                break;
            }
        }
        job.progress.end();
        let stop = Stop {
            // A number of rounds that is part of the model is its end.
            converged: converged || !self.stops_when_stable,
            iterations: trace.len() as u32,
            objective: trace.last().map(|row| row.objective),
            planned: None,
        };
        let annotator_parameters = vec![("weight".to_owned(), weights.clone())];
        Ok(Fitted {
            posterior: posterior.into(),
            predictions: None,
            report: Report {
                skill: skill(&weights, agreed),
                annotator_parameters,
                ..Report::default()
            },
            trace,
            stop,
            model: None,
            device: on_cpu(),
        })
    }
}

/// The share of each class among an instance's votes, each weighted with its annotation and its annotator. A negative
/// weight counts as 0, and where all are 0 the votes count equally.
///
/// # Shapes
/// `weights` is `[annotator]`.
pub(super) fn weighted_vote(a: &Annotations, weights: &[f64]) -> Posterior {
    let mut posterior = Posterior::from_votes(a);
    posterior.par_rows_mut(|i, row| {
        if a.trusted_class(i).is_some() || !a.has_evidence(i) {
            return;
        }
        let mut votes = vec![0.0; row.len()];
        for (annotator, label, weight) in a.triples_of(i) {
            if let Some(vote) = votes.get_mut(label as usize) {
                *vote += weight * weights[annotator as usize].max(0.0);
            }
        }
        let sum: f64 = votes.iter().sum();
        if sum > 0.0 {
            row.iter_mut().zip(votes).for_each(|(p, vote)| *p = vote / sum);
        }
    });
    posterior
}

/// The share of each annotator's annotations, by weight, that equal the label of their instance; each of `k` tied classes
/// counts 1 / k.
fn agreement(a: &Annotations, posterior: &Posterior) -> Vec<f64> {
    let tied = |i: usize| {
        let least = least_tied(posterior.row(i));
        let n = posterior.row(i).iter().filter(|p| **p >= least).count();
        (least, 1.0 / n.max(1) as f64)
    };
    let tied: Vec<(f64, f64)> = (0..posterior.len()).into_par_iter().map(tied).collect();
    let share = |r: usize| {
        let (mut agreed, mut all) = (0.0, 0.0);
        for (column, label) in a.columns_of(r).zip(a.labels_of(r)) {
            let instances = a.instances_of(column).iter();
            for (i, weight) in instances.zip(a.column_weights_of(column).iter()) {
                let i = *i as usize;
                let p = posterior.row(i).get(*label as usize).copied().unwrap_or_default();
                let (least, share) = tied[i];
                all += weight;
                agreed += if a.has_evidence(i) && p >= least { weight * share } else { 0.0 };
            }
        }
        if all > 0.0 { agreed / all } else { 0.0 }
    };
    (0..a.dims().annotators).into_par_iter().map(share).collect()
}

/// The label of every instance; `None` without evidence.
fn labels_of(a: &Annotations, posterior: &Posterior) -> Vec<Option<usize>> {
    let label = |i: usize| best(posterior.row(i)).map(|(class, _)| class);
    (0..posterior.len()).map(|i| label(i).filter(|_| a.has_evidence(i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn negative_weights_count_as_none_and_without_any_weight_votes_are_equal() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (0, 2, 1), (1, 1, 1), (1, 2, 0)]);
        let posterior = weighted_vote(&a, &[3.0, 1.0, -5.0]);
        assert_eq!(posterior.values(), [0.75, 0.25, 0.0, 1.0]);
        assert_eq!(weighted_vote(&a, &[0.0, 0.0, -1.0]).row(1), [0.5, 0.5]);
    }
}
