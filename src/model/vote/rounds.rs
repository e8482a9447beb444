//! The loop of the weighted votes: vote, compare each annotator with the labels, weigh annotators, vote again.
//!
//! # Why
//! The references break a tie of classes, by the lowest index or at random, and compare annotators with the class that won:
//! he who voted for it gains weight, so that the tie is decided by the order of the classes. Here each of `k` tied classes
//! counts as 1 / k of a label, and a tie that nothing breaks stays one.

use std::ops::Range;

use rayon::prelude::*;

use super::shares::VoteShares;
use crate::error::Result;
use crate::frame::{
    Annotations, Dims, ITEMS_PER_BLOCK, MAX_RANGES, MemoryEstimate, QuestionSizes,
    ranges_of_instances,
};
use crate::job_context::JobContext;
use crate::model::fitted::fitted_posterior::FittedPosterior;
use crate::model::fitted::{Fitted, Report, Stop, TraceRow, on_cpu};
use crate::model::posterior::{best, least_tied};

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
    pub(super) loss: Option<fn(&Annotations, &VoteShares) -> Vec<f64>>,
    /// The next weights: `(round from 1, agreement, or one minus the loss, of each annotator, his weight so far)`.
    pub(super) weigh: Weigh<'a>,
}

/// The memory of a fit: the labels of two rounds, and sums of every annotator for each range of instances.
pub(super) fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
    let labels = sizes.dims.instances.checked_mul(2 * size_of::<Option<u32>>())?;
    let sums = sizes.dims.annotators.checked_mul(MAX_RANGES * size_of::<[f64; 2]>())?;
    Some(MemoryEstimate { working: labels.checked_add(sums)?, ..MemoryEstimate::default() })
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
        let mut votes = VoteShares::weighted(&weights);
        let mut labels = self.stops_when_stable.then(|| labels_of(a, &votes));
        let (mut trace, mut agreed, mut converged) = (Vec::new(), vec![1.0; n], false);
        job.progress.begin(self.kind, Some(u64::from(self.max_steps)));
        for step in 1..=self.max_steps {
            job.cancel.check()?;
            let began = job.clock.seconds();
            agreed = match self.loss {
                None => agreement(a, &votes),
                Some(loss) => loss(a, &votes).into_iter().map(|loss| 1.0 - loss).collect(),
            };
            weights = (self.weigh)(step, &agreed, &weights);
            votes = VoteShares::weighted(&weights);
            // Labels that no rule reads are not looked for.
            let next = labels.is_some().then(|| labels_of(a, &votes));
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
            posterior: FittedPosterior::on_demand(a, votes),
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

/// The share of each annotator's annotations, by weight, that equal the label of their instance; each of `k` tied classes
/// counts 1 / k.
fn agreement(a: &Annotations, votes: &VoteShares) -> Vec<f64> {
    mean_by_annotator(
        a,
        votes,
        |_, row| {
            let least = least_tied(row);
            Some((least, 1.0 / row.iter().filter(|p| **p >= least).count().max(1) as f64))
        },
        |(least, share), p| if p.is_some_and(|p| *p >= *least) { *share } else { 0.0 },
    )
}

/// The mean over each annotator's annotations, by weight, of the value of a label; 0 for an annotator without any. `of_row`
/// says of an instance and the shares of its votes what the values of its labels have in common, and leaves it out with
/// `None`; `value` follows from that and the share of the label, where it is a class.
pub(super) fn mean_by_annotator<S>(
    a: &Annotations,
    votes: &VoteShares,
    of_row: impl Fn(usize, &[f64]) -> Option<S> + Sync,
    value: impl Fn(&S, Option<&f64>) -> f64 + Sync,
) -> Vec<f64> {
    let Dims { instances, annotators, classes, .. } = a.dims();
    let n_ranges = (a.len() / (2 * annotators).max(1)).clamp(1, MAX_RANGES);
    let sums_of = |instances: Range<usize>| {
        let (mut sums, mut row) = (vec![[0.0; 2]; annotators], vec![0.0; classes]);
        for i in instances {
            row.fill(0.0);
            votes.write_row(a, i, &mut row);
            let Some(common) = of_row(i, &row) else { continue };
            for (annotator, label, weight) in a.triples_of_instance(i) {
                let [sum, all] = &mut sums[annotator as usize];
                *sum += weight * value(&common, row.get(label as usize));
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
fn labels_of(a: &Annotations, votes: &VoteShares) -> Vec<Option<u32>> {
    let mut labels = vec![None; a.dims().instances];
    labels.par_chunks_mut(ITEMS_PER_BLOCK).enumerate().for_each(|(block, labels)| {
        let mut row = vec![0.0; a.dims().classes];
        for (i, label) in
            (block * ITEMS_PER_BLOCK..).zip(labels).filter(|(i, _)| a.has_evidence(*i))
        {
            row.fill(0.0);
            votes.write_row(a, i, &mut row);
            *label = best(&row).map(|(class, _)| class as u32);
        }
    });
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn negative_weights_count_as_none_and_without_any_weight_votes_are_equal() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (0, 2, 1), (1, 1, 1), (1, 2, 0)]);
        let votes = |weights: &[f64]| FittedPosterior::on_demand(&a, VoteShares::weighted(weights));
        assert_eq!(votes(&[3.0, 1.0, -5.0]).dense().values(), [0.75, 0.25, 0.0, 1.0]);
        assert_eq!(*votes(&[0.0, 0.0, -1.0]).row(1), [0.5, 0.5]);
    }
}
