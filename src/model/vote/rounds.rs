//! The loop of the weighted votes: vote, compare each annotator with the labels, weigh annotators, vote again.
//!
//! # Why
//! The references break a tie of classes, by the lowest index or at random, and compare annotators with the class that won:
//! he who voted for it gains weight, so that the tie is decided by the order of the classes. Here each of `k` tied classes
//! counts as 1 / k of a label, and a tie that nothing breaks stays one.

use std::ops::Range;

use rayon::prelude::*;

use crate::error::Result;
use crate::frame::{Annotations, Dims, MAX_RANGES, ranges_of_instances};
use crate::job_context::JobContext;
use crate::model::fitted::{Fitted, Report, Stop, TraceRow, on_cpu};
use crate::model::posterior::{Posterior, best, least_tied, write_votes};

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
        let mut labels = self.stops_when_stable.then(|| labels_of(a, &posterior));
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
            // Labels that no rule reads are not looked for.
            let next = labels.is_some().then(|| labels_of(a, &posterior));
            let is_stable = next.is_some() && next == labels;
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
            if is_stable {
                converged = true;
                break;
            }
        }
        job.progress.end();
        let objective = trace.last().map(|row| row.objective);
        let stop = if self.stops_when_stable {
            Stop { converged, iterations: trace.len() as u32, objective, planned: None }
        } else {
            Stop::planned(self.max_steps, "round", objective)
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
    if weights.iter().all(|weight| *weight == 1.0) {
        return Posterior::from_votes(a);
    }
    let Dims { instances, classes, .. } = a.dims();
    let mut posterior = Posterior::zeros(instances, classes);
    posterior.par_rows_mut(|i, row| {
        if a.trusted_class(i).is_none() {
            for (annotator, label, weight) in a.triples_of_instance(i) {
                if let Some(vote) = row.get_mut(label as usize) {
                    *vote += weight * weights[annotator as usize].max(0.0);
                }
            }
        }
        let sum: f64 = row.iter().sum();
        if sum > 0.0 {
            row.iter_mut().for_each(|p| *p /= sum);
        } else {
            write_votes(a, i, row);
        }
    });
    posterior
}

/// The share of each annotator's annotations, by weight, that equal the label of their instance; each of `k` tied classes
/// counts 1 / k.
fn agreement(a: &Annotations, posterior: &Posterior) -> Vec<f64> {
    mean_by_annotator(a, |i| {
        let row = posterior.row(i);
        let least = least_tied(row);
        let share = 1.0 / row.iter().filter(|p| **p >= least).count().max(1) as f64;
        Some(move |label: usize| {
            let is_label = row.get(label).is_some_and(|p| *p >= least);
            if is_label { share } else { 0.0 }
        })
    })
}

/// The mean over each annotator's annotations, by weight, of what `of_instance` says of each label of an instance; instances
/// of which it says nothing do not count. 0 for an annotator without any.
pub(super) fn mean_by_annotator<F: Fn(usize) -> f64>(
    a: &Annotations,
    of_instance: impl Fn(usize) -> Option<F> + Sync,
) -> Vec<f64> {
    let Dims { instances, annotators, .. } = a.dims();
    let n_ranges = (a.len() / (2 * annotators).max(1)).clamp(1, MAX_RANGES);
    let sums_of = |instances: Range<usize>| {
        let mut sums = vec![[0.0; 2]; annotators];
        for i in instances {
            let Some(value_of) = of_instance(i) else { continue };
            for (annotator, label, weight) in a.triples_of_instance(i) {
                let [sum, all] = &mut sums[annotator as usize];
                *sum += weight * value_of(label as usize);
                *all += weight;
            }
        }
        sums
    };
    let of_ranges = ranges_of_instances(instances, n_ranges).with_max_len(1).map(sums_of);
    let of_ranges: Vec<Vec<[f64; 2]>> = of_ranges.collect();
    let mean = |r: usize| {
        let add = |[sum, all]: [f64; 2], of: &Vec<[f64; 2]>| [sum + of[r][0], all + of[r][1]];
        let [sum, all] = of_ranges.iter().fold([0.0; 2], add);
        if all > 0.0 { sum / all } else { 0.0 }
    };
    (0..annotators).map(mean).collect()
}

/// The label of every instance; `None` without evidence.
fn labels_of(a: &Annotations, posterior: &Posterior) -> Vec<Option<usize>> {
    let label = |i: usize| {
        let class = best(posterior.row(i)).map(|(class, _)| class);
        class.filter(|_| a.has_evidence(i))
    };
    (0..posterior.len()).into_par_iter().map(label).collect()
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
