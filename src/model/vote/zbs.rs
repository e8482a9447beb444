//! A vote weighted by skills that start at chance and move towards agreement with the labels, in ever smaller steps.
//!
//! ```text
//! s[r] = 1/C + 1e-5
//! for t = 1..100:   lab = argmax of the vote with s;   s[r] += lr (share of r's annotations that equal lab - s[r])
//! ```
//! `lr` is 1 at first and halves every 20 steps: with a rate of 1 the steps are those of [`Iwmv`](super::Iwmv) by shares,
//! which may cycle; the halving ends the cycle.
//!
//! Zero-based skill, as crowd-kit's `ZeroBasedSkill`: all steps are made, whether or not the labels still change.
//!
//! Differs from it in ties, which it breaks: of k classes with equally many votes, each is the label by 1/k.
//!
//! ```
//! use labelmill::model::{Model, vote::ZeroBasedSkill};
//! use labelmill::testing::tiny;
//!
//! let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 0, 1), (1, 2, 1)]); // (instance, annotator, label)
//! let fitted = ZeroBasedSkill::default().fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert_eq!(fitted.report.skill, [1.0, 1.0, 0.5]);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rounds::{self, Rounds};
use crate::error::Result;
use crate::frame::{Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::{Model, Spec};

/// Zero-based skill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ZeroBasedSkill {
    /// The number of steps.
    #[schemars(range(min = 1))]
    pub n_steps: u32,
    /// The rate of the first steps: how far a skill moves towards the agreement.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lr: f64,
    /// After how many steps the rate halves.
    #[schemars(range(min = 1))]
    pub halve_every: u32,
}

impl Default for ZeroBasedSkill {
    fn default() -> Self {
        Self { n_steps: 100, lr: 1.0, halve_every: 20 }
    }
}

impl Spec for ZeroBasedSkill {
    const KIND: &'static str = "zbs";
    const SUMMARY: &'static str =
        "a vote weighted by skills that move from chance towards agreement with its labels";
    const SOURCE: &'static str = "Toloka; crowd-kit's ZeroBasedSkill";
}

/// How far above chance a skill starts.
const ABOVE_CHANCE: f64 = 1e-5;

impl Model for ZeroBasedSkill {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let rate = |step: u32| self.lr * 0.5_f64.powi((step / self.halve_every).cast_signed());
        let rounds = Rounds {
            kind: Self::KIND,
            start: 1.0 / evidence.annotations.dims().classes.max(1) as f64 + ABOVE_CHANCE,
            max_steps: self.n_steps,
            stops_when_stable: false,
            loss: None,
            weigh: &|step, agreement, skill| {
                let moved = |(agreed, s): (&f64, &f64)| s + rate(step) * (agreed - s);
                agreement.iter().zip(skill).map(moved).collect()
            },
        };
        rounds.fit(evidence.annotations, job, |weights, _| weights.to_vec())
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        rounds::memory_estimate(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    // keys: zbs.n_steps, zbs.lr, zbs.halve_every
    #[test]
    fn skills_move_by_the_rate_which_halves() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0)]);
        let skill = |n_steps, lr, halve_every| {
            let spec = ZeroBasedSkill { n_steps, lr, halve_every };
            spec.fit((&a).into(), &mut JobContext::new(0)).unwrap().report.skill[0]
        };
        let start = 0.5 + ABOVE_CHANCE;
        assert!((skill(1, 0.5, 20) - (start + 0.5 * (1.0 - start))).abs() < 1e-12);
        // The rate of the second step is a quarter: of what is left after the first, three quarters remain.
        assert!((skill(2, 0.5, 2) - (1.0 - 0.75 * 0.5 * (1.0 - start))).abs() < 1e-12);
    }
}
