//! A vote whose weights and labels are found in turn, until the labels stay.
//!
//! ```text
//! lab[i] = argmax of the vote with the weights so far (at first 1)
//! s[r]   = share of r's annotations (by weight) that equal lab
//! w[r]   = s[r]              (share)
//!          C s[r] - 1        (linear: 0 at chance; below it an annotator does not count)
//! ```
//! H. Li and B. Yu, Error Rate Bounds and Iterative Weighted Majority Voting for Crowdsourcing, arXiv:1411.4086.
//!
//! Differs from the paper: a negative weight counts as 0, because shares of votes are probabilities; and of k classes with
//! equally many votes, each is the label by 1/k.
//!
//! ```
//! use labelmill::model::{Model, vote::Iwmv};
//! use labelmill::testing::tiny;
//!
//! let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 0, 1), (1, 2, 1)]); // (instance, annotator, label)
//! let fitted = Iwmv::default().fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert_eq!(*fitted.posterior.row(0), [1.0, 0.0]); // annotator 2 is at chance
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rounds::{self, Rounds};
use crate::error::Result;
use crate::frame::{Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::{Model, Spec};

/// Iterative weighted majority vote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Iwmv {
    /// How agreement with the labels becomes a weight.
    pub weight: AgreementWeight,
    /// The most rounds; fewer where the labels stay.
    #[schemars(range(min = 1))]
    pub max_rounds: u32,
}

/// How agreement with the labels becomes a weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgreementWeight {
    /// The share of equal labels.
    Share,
    /// The number of classes times the share, minus 1: nothing at chance.
    #[default]
    Linear,
}

impl Default for Iwmv {
    fn default() -> Self {
        Self { weight: AgreementWeight::default(), max_rounds: 10 }
    }
}

impl Spec for Iwmv {
    const KIND: &'static str = "iwmv";
    const SUMMARY: &'static str = "a vote whose weights follow from agreement with its own labels, repeated until the labels stay";
    const SOURCE: &'static str = "Li and Yu 2014, arXiv:1411.4086";
}

impl Model for Iwmv {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let n_classes = evidence.annotations.dims().classes as f64;
        let weight = |share: &f64| match self.weight {
            AgreementWeight::Share => *share,
            AgreementWeight::Linear => n_classes * share - 1.0,
        };
        let rounds = Rounds {
            kind: Self::KIND,
            start: 1.0,
            max_steps: self.max_rounds,
            stops_when_stable: true,
            loss: None,
            weigh: &|_, agreement, _| agreement.iter().map(weight).collect(),
        };
        rounds.fit(evidence.annotations, job, |_, agreement| agreement)
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        rounds::memory_estimate(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    // keys: iwmv.weight, iwmv.max_rounds
    #[test]
    fn an_annotator_at_chance_counts_only_by_share_and_rounds_can_be_few() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 0, 1), (1, 2, 1)]);
        let fit = |spec: Iwmv| spec.fit((&a).into(), &mut JobContext::new(0)).unwrap();
        let share = fit(Iwmv { weight: AgreementWeight::Share, ..Iwmv::default() });
        assert_eq!(*share.posterior.row(0), [0.8, 0.2]);
        assert_eq!((share.stop.iterations, share.stop.converged), (1, true));
        // Annotators 1 and 2 outvote 0 on instance 0, but agree with nobody else: his label wins in the second round.
        let rows = [(0, 0, 1), (0, 1, 0), (0, 2, 0)];
        let others = (1..9).flat_map(|i| [(i, 0, 1), (i, 3, 1), (i, 1 + i % 2, 0)]);
        let a = tiny(2, &rows.into_iter().chain(others).collect::<Vec<_>>());
        let fit = |max_rounds| {
            let spec = Iwmv { max_rounds, ..Iwmv::default() };
            spec.fit((&a).into(), &mut JobContext::new(0)).unwrap()
        };
        assert_eq!(*fit(10).posterior.row(0), [0.0, 1.0]);
        assert_eq!((fit(1).stop.iterations, fit(1).stop.converged), (1, false));
        assert_eq!((fit(10).stop.iterations, fit(10).stop.converged), (2, true));
    }
}
