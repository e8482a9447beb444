//! Truth discovery: the labels and weights that together make annotators deviate least from the labels.
//!
//! ```text
//! minimise  sum over r of w[r] loss[r]     subject to  sum over r of exp(-w[r]) = 1
//! loss[r]   mean over r's annotations (by weight) of   1 if y differs from the label, else 0     (zero_one)
//!                                                      |T[i] - onehot(y)|^2                     (squared)
//! w[r]      -ln(loss[r] / sum of all losses + 1e-7)                                             (sum)
//!           -ln(loss[r] / largest loss + 1e-7)                                                  (max: PM)
//! T[i]      votes weighted with w, normalised
//! ```
//! Losses are at least 1e-8 and weights at least 1e-7. An annotator without any loss has a weight of 16 and dictates the
//! labels of his instances.
//!
//! Q. Li et al., Resolving Conflicts in Heterogeneous Data by Truth Discovery and Source Reliability Estimation, SIGMOD
//! 2014; with `norm = "max"` B. I. Aydin et al., Crowdsourcing for Multiple-Choice Question Answering, AAAI 2014 (PM).
//!
//! Differs from the paper: the loss is a mean over an annotator's annotations, not a sum, which would punish the prolific
//! ones; `per_annotation = false` is the paper's. Of k classes with equally many votes, each is the label by 1/k.
//!
//! ```
//! use labelmill::model::{Model, vote::Crh};
//! use labelmill::testing::tiny;
//!
//! let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 0, 1), (1, 2, 1)]); // (instance, annotator, label)
//! let fitted = Crh::default().fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.posterior.row(0)[0] > 0.99);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rounds::{self, Rounds, mean_by_annotator};
use super::shares::VoteShares;
use crate::error::Result;
use crate::frame::{Annotations, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::{Model, Spec};

/// Conflict resolution on heterogeneous data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Crh {
    /// How far an annotation is from the label.
    pub loss: VoteLoss,
    /// What losses are divided by.
    pub norm: LossNorm,
    /// Whether a loss is divided by the number of the annotator's annotations.
    pub per_annotation: bool,
    /// The most rounds; fewer where the labels stay.
    #[schemars(range(min = 1))]
    pub max_rounds: u32,
}

/// How far an annotation is from the label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VoteLoss {
    /// 1 where it differs.
    #[default]
    ZeroOne,
    /// The squared distance from the shares of the vote.
    Squared,
}

/// What losses are divided by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossNorm {
    /// The sum of all losses.
    #[default]
    Sum,
    /// The largest loss: the worst annotator does not count.
    Max,
}

impl Default for Crh {
    fn default() -> Self {
        Self {
            loss: VoteLoss::default(),
            norm: LossNorm::default(),
            per_annotation: true,
            max_rounds: 10,
        }
    }
}

impl Spec for Crh {
    const KIND: &'static str = "crh";
    const SUMMARY: &'static str = "truth discovery: weights by how little an annotator deviates from the labels, on a logarithmic scale";
    const SOURCE: &'static str = "Li et al. 2014 (SIGMOD); Aydin et al. 2014 (PM)";
}

const MIN_LOSS: f64 = 1e-8;
/// Added to a loss's share, so that no weight exceeds 16.1.
const MIN_SHARE: f64 = 1e-7;
const MIN_WEIGHT: f64 = 1e-7;

impl Model for Crh {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let all: Vec<f64> = if self.per_annotation {
            vec![1.0; a.dims().annotators]
        } else {
            (0..a.dims().annotators).map(|r| total_weight(a, r)).collect()
        };
        let weigh = |_: u32, agreement: &[f64], _: &[f64]| -> Vec<f64> {
            let loss = |(agreed, n): (&f64, &f64)| (n * (1.0 - agreed)).max(MIN_LOSS);
            let losses: Vec<f64> = agreement.iter().zip(&all).map(loss).collect();
            let norm = match self.norm {
                LossNorm::Sum => losses.iter().sum(),
                LossNorm::Max => losses.iter().copied().fold(MIN_LOSS, f64::max),
            };
            losses.iter().map(|loss| (-(loss / norm + MIN_SHARE).ln()).max(MIN_WEIGHT)).collect()
        };
        let rounds = Rounds {
            kind: Self::KIND,
            start: 1.0,
            max_steps: self.max_rounds,
            stops_when_stable: self.loss == VoteLoss::ZeroOne,
            loss: match self.loss {
                VoteLoss::ZeroOne => None,
                VoteLoss::Squared => Some(squared_losses),
            },
            weigh: &weigh,
        };
        rounds.fit(a, job, |_, agreement| agreement.iter().map(|s| s.clamp(0.0, 1.0)).collect())
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        rounds::memory_estimate(sizes)
    }
}

/// The summed weight of an annotator's annotations.
fn total_weight(a: &Annotations, r: usize) -> f64 {
    let of_pair = |pair| a.weights_of_pair(pair).iter().take(a.instances_of_pair(pair).len());
    a.pairs_of_annotator(r).flat_map(of_pair).sum()
}

/// The mean squared distance of every annotator's annotations from the shares of the vote.
fn squared_losses(a: &Annotations, votes: &VoteShares) -> Vec<f64> {
    mean_by_annotator(
        a,
        votes,
        |i, row| a.has_evidence(i).then(|| row.iter().map(|p| p * p).sum::<f64>()),
        |squares, p| squares - 2.0 * p.copied().unwrap_or_default() + 1.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    fn fit(spec: &Crh) -> Vec<f64> {
        // Annotator 0 deviates in 1 of 4, annotator 1 in 1 of 2, the others never.
        let a = tiny(
            2,
            &[
                (0, 0, 1),
                (0, 1, 0),
                (0, 2, 0),
                (0, 3, 0),
                (1, 0, 0),
                (2, 0, 0),
                (3, 0, 0),
                (1, 1, 1),
                (1, 2, 0),
            ],
        );
        let fitted = spec.fit((&a).into(), &mut JobContext::new(0)).unwrap();
        fitted.report.annotator_parameters[0].1.clone()
    }

    // keys: crh.norm, crh.per_annotation
    #[test]
    fn weights_are_the_logarithms_of_the_losses() {
        let sum = 0.25 + 0.5 + 2.0 * MIN_LOSS;
        let want = [0.25_f64, 0.5, MIN_LOSS, MIN_LOSS].map(|loss| -(loss / sum + MIN_SHARE).ln());
        crate::testing::assert_close(&fit(&Crh::default()), &want, 1e-12, "sum");
        let max = fit(&Crh { norm: LossNorm::Max, ..Crh::default() });
        assert!((max[0] - 2.0_f64.ln()).abs() < 1e-6 && max[1] == MIN_WEIGHT, "{max:?}");
        let whole = fit(&Crh { per_annotation: false, ..Crh::default() });
        assert!((whole[0] - whole[1]).abs() < 1e-12, "each deviates once: {whole:?}");
    }

    // keys: crh.loss, crh.max_rounds
    #[test]
    fn the_squared_loss_is_that_of_the_shares() {
        let one = Crh { loss: VoteLoss::Squared, max_rounds: 1, ..Crh::default() };
        // Instance 0 has the shares .75 and .25, instance 1 the shares 2/3 and 1/3, the others one vote each.
        let losses: [f64; 4] = [
            (2.0 * 0.75 * 0.75 + 2.0 / 9.0) / 4.0,
            f64::midpoint(2.0 * 0.25 * 0.25, 8.0 / 9.0),
            f64::midpoint(2.0 * 0.25 * 0.25, 2.0 / 9.0),
            2.0 * 0.25 * 0.25,
        ];
        let sum: f64 = losses.iter().sum();
        let want = losses.map(|loss| -(loss / sum + MIN_SHARE).ln());
        crate::testing::assert_close(&fit(&one), &want, 1e-12, "squared");
    }
}
