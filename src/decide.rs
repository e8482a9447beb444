//! Decides the label of each instance from its posterior: ties, abstention, trusted classes. No other module does.

use std::ops::Range;

use rand::Rng as _;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::{Annotations, Frame, ITEMS_PER_BLOCK};
use crate::job_context;
use crate::model::fitted::Fitted;
use crate::model::fitted::fitted_posterior::RowEntries;
use crate::model::posterior::{Top, tied};

/// How labels are chosen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DecideSpec {
    /// How to choose between equally probable classes.
    pub ties: Ties,
    /// Abstain where the best class is less probable than this.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_confidence: f64,
}

/// How to choose between equally probable classes. The `decision` column says `tied`; with `abstain`, `abstained`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// The lowest class.
    #[default]
    LowestIndex,
    /// The class with the largest prior, then the lowest.
    ByPrior,
    /// One of them at random, by the seed.
    Random,
    /// No label.
    Abstain,
}

/// How a label was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// One class was the most probable.
    Decided,
    /// Several classes were equally probable.
    Tied,
    /// The class was trusted from the start.
    Gold,
    /// There is no label: no annotation names a class, the confidence is too low, or ties abstain.
    Abstained,
}

impl Decision {
    /// The word in the `labels` table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Tied => "tied",
            Self::Gold => "gold",
            Self::Abstained => "abstained",
        }
    }
}

/// The label of one instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decided {
    /// The class index; `None` without a label.
    pub class: Option<u32>,
    /// The posterior of the best class; `None` where no annotation names a class and none is trusted.
    pub confidence: Option<f64>,
    /// The best posterior minus the second best; `None` where there is no confidence.
    pub margin: Option<f64>,
    /// How the label was decided.
    pub decision: Decision,
}

impl DecideSpec {
    /// The label of instance `i`.
    #[must_use]
    pub fn decide(&self, a: &Annotations, fitted: &Fitted, seed: TieSeed, i: usize) -> Decided {
        self.decide_row(a, fitted, seed, i, &fitted.posterior.entries(i))
    }

    /// The labels of adjacent instances.
    #[must_use]
    pub fn decide_all(
        &self,
        a: &Annotations,
        fitted: &Fitted,
        seed: TieSeed,
        instances: Range<usize>,
    ) -> Vec<Decided> {
        let mut decided = Vec::with_capacity(instances.len());
        fitted.posterior.for_each(instances, |i, row| {
            decided.push(self.decide_row(a, fitted, seed, i, &row));
        });
        decided
    }

    fn decide_row(
        &self,
        a: &Annotations,
        fitted: &Fitted,
        seed: TieSeed,
        i: usize,
        row: &RowEntries<'_>,
    ) -> Decided {
        let Some(Top { class: lowest, is_tied, largest: confidence, second }) =
            Top::from_row(&row.values).filter(|_| a.has_evidence(i))
        else {
            return Decided {
                class: None,
                confidence: None,
                margin: None,
                decision: Decision::Abstained,
            };
        };
        let decision = match (a.trusted_class(i), is_tied) {
            (Some(_), _) => Decision::Gold,
            _ if confidence < self.min_confidence => Decision::Abstained,
            (None, true) if self.ties == Ties::Abstain => Decision::Abstained,
            (None, true) => Decision::Tied,
            (None, false) => Decision::Decided,
        };
        let class = match decision {
            Decision::Abstained => None,
            Decision::Tied => Some(self.break_tie(row, fitted, seed, i)),
            Decision::Decided | Decision::Gold => Some(row.class(lowest)),
        };
        // Tied classes have a margin of 0, even where they differ by rounding.
        let margin = if is_tied { 0.0 } else { confidence - second.max(0.0) };
        let class = class.map(|c| c as u32);
        Decided { class, confidence: Some(confidence), margin: Some(margin), decision }
    }

    fn break_tie(&self, row: &RowEntries<'_>, fitted: &Fitted, seed: TieSeed, i: usize) -> usize {
        let equal: Vec<usize> = tied(&row.values).map(|at| row.class(at)).collect();
        let lowest = equal[0];
        match (self.ties, &fitted.report.prior) {
            (Ties::Random, _) => {
                let n = job_context::rng(seed.0, &format!("tie/{i}")).random_range(0..equal.len());
                equal[n]
            }
            (Ties::ByPrior, Some(prior)) => {
                let priors: Vec<f64> = equal.iter().map(|k| prior[*k]).collect();
                tied(&priors).next().map_or(lowest, |at| equal[at])
            }
            _ => lowest,
        }
    }
}

/// The seed by which random ties of one question are broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TieSeed(u64);

impl TieSeed {
    /// The seed of the frame's question in a run with this `seed`: the same seed where no questions are declared.
    #[must_use]
    pub fn new(frame: &Frame, seed: u64) -> Self {
        Self(match &frame.question {
            Some(question) => {
                job_context::seed_of_part(seed, &format!("question {}", question.text(0)))
            }
            None => seed,
        })
    }
}

/// The number of instances by decision, and by the class of their label.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Instances whose most probable class is unique.
    pub decided: u64,
    /// Instances with several equally probable classes.
    pub tied: u64,
    /// Instances with a trusted class.
    pub gold: u64,
    /// Instances without a label.
    pub abstained: u64,
    /// The number of labels of each class.
    pub of_class: Vec<u64>,
}

impl Tally {
    /// Counts the decisions on all instances.
    #[must_use]
    pub fn count(spec: &DecideSpec, a: &Annotations, fitted: &Fitted, seed: TieSeed) -> Self {
        let none = || Self { of_class: vec![0; a.dims().classes], ..Self::default() };
        let add = |mut tally: Self, start: usize| {
            let block = start..(start + ITEMS_PER_BLOCK).min(a.dims().instances);
            for decided in spec.decide_all(a, fitted, seed, block) {
                *match decided.decision {
                    Decision::Decided => &mut tally.decided,
                    Decision::Tied => &mut tally.tied,
                    Decision::Gold => &mut tally.gold,
                    Decision::Abstained => &mut tally.abstained,
                } += 1;
                if let Some(class) = decided.class {
                    tally.of_class[class as usize] += 1;
                }
            }
            tally
        };
        let blocks = (0..a.dims().instances).into_par_iter().step_by(ITEMS_PER_BLOCK);
        blocks.fold(none, add).reduce(none, |a, b| a.and(&b))
    }

    /// The sum of both tallies.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.decided += other.decided;
        self.tied += other.tied;
        self.gold += other.gold;
        self.abstained += other.abstained;
        self.of_class.iter_mut().zip(&other.of_class).for_each(|(a, b)| *a += b);
        self
    }

    /// The number of all instances.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.decided + self.tied + self.gold + self.abstained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::job_context::JobContext;
    use crate::model::{Model, vote::MajorityVote, vote::VoteMode};
    use crate::testing::{tiny, weighted};

    const SEED: TieSeed = TieSeed(7);

    fn decide(spec: &DecideSpec, rows: &[(u32, u32, u32)]) -> Decided {
        let a = tiny(2, rows);
        let fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
        spec.decide(&a, &fitted, SEED, 0)
    }

    #[test]
    fn a_tie_goes_to_the_lowest_class_and_says_so() {
        let tie = [(0, 0, 1), (0, 1, 0)];
        let decided = decide(&DecideSpec::default(), &tie);
        assert_eq!(
            (decided.class, decided.decision, decided.margin),
            (Some(0), Decision::Tied, Some(0.0))
        );
        let abstain = DecideSpec { ties: Ties::Abstain, ..DecideSpec::default() };
        assert_eq!(decide(&abstain, &tie).class, None);
        let random = DecideSpec { ties: Ties::Random, ..DecideSpec::default() };
        assert_eq!(decide(&random, &tie).class, decide(&random, &tie).class);
    }

    /// The decision on one instance with this posterior and this prior.
    fn decided(spec: &DecideSpec, row: &[f64], prior: &[f64]) -> Decided {
        let rows: Vec<_> = (0..row.len() as u32).map(|l| (0, l, l)).collect();
        let a = tiny(row.len(), &rows);
        let mut fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
        fitted.posterior.change(|rows| rows.row_mut(0).copy_from_slice(row));
        fitted.report.prior = Some(prior.to_vec());
        spec.decide(&a, &fitted, SEED, 0)
    }

    // keys: decide.ties
    #[test]
    fn classes_that_differ_by_rounding_are_tied_and_the_prior_chooses_the_larger() {
        let by_prior = DecideSpec { ties: Ties::ByPrior, ..DecideSpec::default() };
        let third = 1.0 / 3.0;
        // The last is larger by one bit, so that it would win alone.
        let row = [third, third, third + f64::EPSILON / 4.0];
        assert!(row[2] > row[1]);
        // Of the last priors, the third is larger than the second by rounding.
        for (prior, want) in [
            ([0.2, 0.5, 0.3], 1),
            ([0.5, 0.3, 0.2], 0),
            ([0.3, 0.35, 0.35], 1),
            ([0.2, 0.4, 0.4 + f64::EPSILON], 1),
        ] {
            let decided = decided(&by_prior, &row, &prior);
            assert_eq!(
                (decided.class, decided.decision),
                (Some(want), Decision::Tied),
                "{prior:?}"
            );
        }
        // The prior breaks ties only.
        assert_eq!(decided(&by_prior, &[0.5, 0.3, 0.2], &[0.1, 0.1, 0.8]).class, Some(0));
    }

    /// .1 + .2 for one class is more than .3 for the other by one bit: the larger share is .5.
    // keys: decide.min_confidence
    #[test]
    fn the_confidence_of_a_tie_is_the_largest_share_of_its_classes() {
        let dims = Dims { instances: 1, annotators: 3, classes: 2, labels: 2 };
        let spec = DecideSpec { min_confidence: 0.5, ..DecideSpec::default() };
        for (one, other) in [(0, 1), (1, 0)] {
            let rows = [(0, 0, one), (0, 1, other), (0, 2, other)];
            let a = weighted(dims, &rows, vec![0.3, 0.1, 0.2]);
            let fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
            let share = |class: u32| fitted.posterior.row(0)[class as usize];
            assert!(share(one) < share(other));
            let decided = spec.decide(&a, &fitted, SEED, 0);
            assert_eq!((decided.class, decided.confidence), (Some(0), Some(0.5)), "{one}");
            assert_eq!((decided.decision, decided.margin), (Decision::Tied, Some(0.0)));
        }
    }

    #[test]
    fn a_random_tie_may_go_to_any_of_the_equal_classes() {
        let random = DecideSpec { ties: Ties::Random, ..DecideSpec::default() };
        let rows: Vec<_> = (0..200).flat_map(|i| [(i, 0, 0), (i, 1, 1)]).collect();
        let a = tiny(3, &rows);
        let mut fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
        let mut won = [0; 3];
        for i in 0..200 {
            fitted.posterior.change(|rows| rows.row_mut(i)[1] += f64::EPSILON / 2.0);
            let decided = random.decide(&a, &fitted, SEED, i);
            won[decided.class.unwrap() as usize] += 1;
        }
        assert!(won[0] > 60 && won[1] > 60 && won[2] == 0, "{won:?}");
    }

    #[test]
    fn votes_for_few_of_many_classes_are_decided_as_dense_rows_are() {
        let votes = |i: u32| [(i, 0, 80 + i % 7), (i, 1, 80 + i % 5), (i, 2, 99 - i % 5)];
        let rows: Vec<_> = (0..60).flat_map(votes).collect();
        let a = tiny(100, &rows);
        for vote in [VoteMode::Soft, VoteMode::Hard] {
            let spec = MajorityVote { vote };
            let mut sparse = spec.fit((&a).into(), &mut JobContext::new(0)).unwrap();
            sparse.report.prior = Some((0..100).map(|k| f64::from(k % 9)).collect());
            assert!(sparse.posterior.entries(0).values.len() < 100);
            let mut dense = sparse.clone();
            dense.posterior.change(|_| ());
            for ties in [Ties::LowestIndex, Ties::ByPrior, Ties::Random, Ties::Abstain] {
                let spec = DecideSpec { ties, ..DecideSpec::default() };
                for i in 0..60 {
                    let decided = spec.decide(&a, &sparse, SEED, i);
                    assert_eq!(decided, spec.decide(&a, &dense, SEED, i), "{ties:?} {i}");
                }
            }
        }
    }

    // keys: decide.min_confidence
    #[test]
    fn the_least_confidence_itself_is_enough() {
        let votes = [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 0)];
        for (min_confidence, want) in [(0.75, Some(1)), (0.750_001, None)] {
            let spec = DecideSpec { min_confidence, ..DecideSpec::default() };
            assert_eq!(decide(&spec, &votes).class, want, "{min_confidence}");
        }
    }

    #[test]
    fn no_vote_for_a_class_is_no_label() {
        let decided = decide(&DecideSpec::default(), &[(0, 0, 2)]);
        assert_eq!((decided.class, decided.confidence), (None, None));
    }
}
