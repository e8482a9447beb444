//! The class that most annotators chose.
//!
//! ```text
//! v[i][l] = sum of the weights of the annotations of i with label l
//! soft      T[i] = v[i] / sum(v[i])
//! hard      T[i] = one-hot(argmax v[i]); tied classes share it equally, so that the tie stays visible
//! skill     s[r] = share of r's annotations (by weight) that equal the label of their instance
//! ```
//! Ties break to the lowest class. A weighted vote is the same model: weights come with the annotations. An instance
//! for which nobody chose a class keeps a uniform row and gets no label.
//!
//! Differs from crowd-kit's `MajorityVote`: ties there go to the first pair of a pivoted table, whose order depends
//! on the version of pandas; here to the lowest class, whatever the order of the rows.
//!
//! ```
//! use labelmill::model::{Model, vote::MajorityVote};
//! use labelmill::testing::tiny;
//!
//! let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (0, 2, 1)]); // (instance, annotator, label)
//! let fitted = MajorityVote::default().fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert_eq!(*fitted.posterior.row(0), [1.0 / 3.0, 2.0 / 3.0]);
//! assert_eq!(fitted.report.skill, [0.0, 1.0, 1.0]);
//! ```

use std::ops::Range;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shares::VoteShares;
use crate::error::Result;
use crate::frame::{
    Annotations, Dims, Evidence, MAX_RANGES, MemoryEstimate, QuestionSizes, ranges_of_instances,
};
use crate::job_context::JobContext;
use crate::model::fitted::fitted_posterior::FittedPosterior;
use crate::model::fitted::{Fitted, Report, Stop};
use crate::model::{Capabilities, Model, Spec};

/// Majority vote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MajorityVote {
    /// Whether the posterior holds the shares of the votes, or the winner alone.
    pub vote: VoteMode,
}

/// The content of the posterior of a vote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VoteMode {
    /// The share of each class among the votes.
    #[default]
    Soft,
    /// 1 for the winner; tied winners share it equally.
    Hard,
}

impl Spec for MajorityVote {
    const KIND: &'static str = "majority_vote";
    const SUMMARY: &'static str = "the class that most annotators chose, by weight";
    const SOURCE: &'static str = "folklore";
    const CAPABILITIES: Capabilities = Capabilities { gold: false, ..Capabilities::LABELS };
}

impl Model for MajorityVote {
    fn fit(&self, evidence: Evidence<'_>, _job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let shares = FittedPosterior::on_demand(a, VoteShares::default());
        let skill = agreement(a, |i| shares.entries(i).best());
        let posterior = match self.vote {
            VoteMode::Soft => shares,
            VoteMode::Hard => {
                FittedPosterior::on_demand(a, VoteShares { is_hard: true, ..VoteShares::default() })
            }
        };
        let stop = Stop { converged: true, iterations: 1, objective: None, planned: None };
        Ok(Fitted { stop, ..Fitted::new(posterior, Report { skill, ..Report::default() }) })
    }

    /// Nothing: its posteriors are computed when they are read.
    fn memory_estimate(_: &QuestionSizes) -> Option<MemoryEstimate> {
        Some(MemoryEstimate::default())
    }
}

/// The share of each annotator's annotations that equal the label of their instance; `best` gives the most probable
/// class of an instance.
pub(crate) fn agreement(
    a: &Annotations,
    best: impl Fn(usize) -> Option<(usize, bool)> + Sync,
) -> Vec<f64> {
    let Dims { instances, annotators, .. } = a.dims();
    let ranges = (a.len() / (ANNOTATIONS_PER_SUM * annotators.max(1))).clamp(1, MAX_RANGES);
    let ranges = ranges_of_instances(instances, ranges).with_max_len(1);
    let sums: Vec<Vec<[f64; 2]>> = ranges.map(|range| agreed_of_all(a, &best, range)).collect();
    let share = |r: usize| {
        let of = |n: usize| sums.iter().map(|sums| sums[r][n]).sum::<f64>();
        if of(1) > 0.0 { of(0) / of(1) } else { 0.0 }
    };
    (0..annotators).map(share).collect()
}

/// A range of instances has sums of its own for every annotator: with fewer annotations per sum than this, the sums are
/// not worth their memory.
const ANNOTATIONS_PER_SUM: usize = 8;

/// The summed weights of each annotator's annotations of these instances: of those that equal the label, and of all.
fn agreed_of_all(
    a: &Annotations,
    best: impl Fn(usize) -> Option<(usize, bool)>,
    instances: Range<usize>,
) -> Vec<[f64; 2]> {
    let mut sums = vec![[0.0; 2]; a.dims().annotators];
    let (first, range) = (instances.start, a.range(instances));
    for i in 0..range.len() {
        let own = range.positions(i);
        let class = best(first + i).filter(|_| a.has_evidence(first + i));
        let label = class.map(|(class, _)| class as u32);
        let weights = range.weights.slice(own.clone());
        for (at, pair) in range.pairs[own].iter().enumerate() {
            let weight = if weights.is_ones() { 1.0 } else { weights.get(at) };
            let [agreed, all] = &mut sums[a.annotator_of_pair(*pair) as usize];
            *all += weight;
            // Without a branch, which no processor could predict.
            *agreed += if Some(range.labels[*pair as usize]) == label { weight } else { 0.0 };
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{AnnotationRows, Duplicates};
    use crate::testing::tiny;

    /// Three annotators; instance 0: 2 x class 1; instance 1: a tie of classes 0 and 1; instance 2: one vote.
    fn crowd() -> Annotations {
        tiny(2, &[(0, 0, 1), (0, 1, 1), (0, 2, 0), (1, 0, 0), (1, 1, 1), (2, 2, 0)])
    }

    // keys: majority_vote.vote
    #[test]
    fn a_hard_vote_keeps_the_tie_visible() {
        let spec = MajorityVote { vote: VoteMode::Hard };
        let fitted = spec.fit((&crowd()).into(), &mut JobContext::new(0)).unwrap();
        assert_eq!(fitted.posterior.dense().values(), [0.0, 1.0, 0.5, 0.5, 1.0, 0.0]);
    }

    /// .1 + .2 for class 0 is more than .3 for class 1 by one bit.
    #[test]
    fn sums_of_weights_that_differ_by_rounding_are_a_tie() {
        let rows = AnnotationRows {
            instance: vec![0; 3],
            annotator: vec![0, 1, 2],
            label: vec![0, 0, 1],
            weight: vec![0.1, 0.2, 0.3],
        };
        let dims = Dims { instances: 1, annotators: 3, classes: 2, labels: 2 };
        let a = Annotations::build(dims, rows, Duplicates::Share).unwrap();
        let soft = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
        assert!(soft.posterior.row(0)[0] > soft.posterior.row(0)[1]);
        let hard = MajorityVote { vote: VoteMode::Hard };
        let fitted = hard.fit((&a).into(), &mut JobContext::new(0)).unwrap();
        assert_eq!(*fitted.posterior.row(0), [0.5, 0.5]);
    }

    #[test]
    fn skill_weighs_annotations() {
        let rows = AnnotationRows {
            instance: vec![0, 0, 1, 1],
            annotator: vec![0, 1, 0, 1],
            label: vec![0, 0, 1, 0],
            weight: vec![3.0, 1.0, 1.0, 2.0],
        };
        let dims = Dims { instances: 2, annotators: 2, classes: 2, labels: 2 };
        let a = Annotations::build(dims, rows, Duplicates::Share).unwrap();
        let fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
        // labels 0 and 0: annotator 0 is right with 3 of 4, annotator 1 with 3 of 3
        assert_eq!(fitted.report.skill, [0.75, 1.0]);
    }

    #[test]
    fn skill_is_counted_over_all_ranges_of_instances() {
        let label = |i: u32, r: u32| if r < 2 || i.is_multiple_of(5) { i % 2 } else { 1 - i % 2 };
        let rows: Vec<_> = (0..300).map(|n| (n / 3, n % 3, label(n / 3, n % 3))).collect();
        let fitted =
            MajorityVote::default().fit((&tiny(2, &rows)).into(), &mut JobContext::new(0)).unwrap();
        assert_eq!(fitted.report.skill, [1.0, 1.0, 0.2]);
    }

    #[test]
    fn skill_is_agreement_with_the_label_ties_to_the_lowest_class() {
        let fitted =
            MajorityVote::default().fit((&crowd()).into(), &mut JobContext::new(0)).unwrap();
        // labels 1, 0, 0: annotator 0 gave 1 and 0; annotator 1 gave 1 and 1; annotator 2 gave 0 and 0
        assert_eq!(fitted.report.skill, [1.0, 0.5, 0.5]);
    }
}
