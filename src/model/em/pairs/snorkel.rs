//! The generative model of data programming: each annotator, or labelling function, has one weight, and may abstain.
//!
//! ```text
//! z[i] ~ uniform;  P(y | z[i] = k, r) ~ exp(theta[r]) if y = k, exp(-theta[r]) for any other class     C classes
//! accuracy[r] = exp(theta[r]) / (exp(theta[r]) + (C - 1) exp(-theta[r]));   a label that is no class is an abstention: 1
//! LL = sum_i ln( 1/C sum_k product over the annotations (r, y) of i of P(y | k, r) )
//! ```
//! A vote of r adds 2 theta\[r\] to the log-odds of its class against any other: theta 0 is chance, a negative one inverts.
//!
//! 1. theta\[r\] = 1. 2. E: T from theta. 3. M: theta\[r\] at the maximum of (right - wrong) theta - m ln Z(theta) - m l2
//!    theta^2 / 2, where right is the sum of T\[i\]\[y\] over r's m annotations, wrong the rest, and Z the denominator of the
//!    accuracy; clamped to accuracies of [`MIN_ACCURACY`] to 1 - [`MIN_ACCURACY`]. 4. Repeat until LL minus the pull
//!    converges.
//!
//! The trace shows LL; its change is that of LL minus the pull, which cannot fall.
//!
//! A. Ratner, S. H. Bach, H. Ehrenberg, J. Fries, S. Wu, C. Re: Snorkel: Rapid Training Data Creation with Weak
//! Supervision. VLDB 2017. arXiv:1711.10160
//!
//! Differs from Snorkel up to 0.7 in that it finds the maximum of the marginal likelihood by EM, where Snorkel takes steps
//! of 1e-4 along sampled gradients for a few epochs, and so may stop anywhere before; and in that it has no propensities of
//! abstention and no dependencies. The pull is that of its sampler, which shrinks a weight at every annotation: a constant
//! share of the evidence, and not a prior that many annotations outweigh. Not meant for annotators who err more in one class
//! than in another, or together.
//!
//! # Why
//! Accuracy in percent and log-loss without a pull, with a pull of 0.1 once for each annotator, and for each annotation:
//!
//! ```text
//!              none        once        each annotation
//! adult2       76.3/3.31   76.3/3.28   76.3/2.73
//! bluebirds    72.2/4.54   72.2/4.54   72.2/3.96
//! face         62.8/3.99   62.8/3.98   62.8/3.47
//! labelme      77.3/1.26   77.2/1.24   77.5/1.07
//! mozafari     68.9/2.08   68.9/2.05   69.0/1.62
//! music        79.6/1.40   79.6/1.39   79.3/1.20
//! rte          92.5/.41    92.5/.41    92.8/.30
//! web          83.9/.44    83.9/.43    83.8/.43
//! zencrowd_us  85.6/.50    85.6/.50    85.9/.40
//! ```
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, Snorkel}};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 and 1 agree; annotator 2 agrees with them on two of four instances.
//! let rows: Vec<_> = (0..12).map(|n| (n / 3, n % 3, (n / 3 + u32::from(n % 3 == 2 && n > 5)) % 2)).collect();
//! let fitted = PairEm(Snorkel::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.report.skill[0] > 0.9 && (fitted.report.skill[2] - 0.5).abs() < 0.05);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::confusion::{Cells, Confusion};
use crate::model::em::kernels::{Estimator, PairCounts, n_groups};
use crate::model::em::{ClassPrior, PairFit, PairModel, StopRule};
use crate::model::fitted::Report;
use crate::model::{Capabilities, Spec};

/// Snorkel's generative model: one weight for each annotator, who may abstain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Snorkel {
    /// The pull of each weight theta towards 0, which is chance: half of it times theta^2 is subtracted from the
    /// log-likelihood for every annotation. Raising it trusts all annotators less, and alike; 0 is maximum likelihood.
    #[schemars(range(min = 0.0))]
    pub l2: f64,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for Snorkel {
    fn default() -> Self {
        Self { l2: 0.1, stop: StopRule::default() }
    }
}

/// The least accuracy of an annotator, and what the largest one lacks.
const MIN_ACCURACY: f64 = 0.01;

impl Spec for Snorkel {
    const KIND: &'static str = "snorkel";
    const SUMMARY: &'static str =
        "data programming: one weight for each annotator, drawn to chance; other labels abstain";
    const SOURCE: &'static str = "Ratner et al. 2017, arXiv:1711.10160";
    const CAPABILITIES: Capabilities = Capabilities { annotator_prior: true, ..Capabilities::EM };
}

impl PairModel for Snorkel {
    type Rows = ThetaEstimator;

    fn estimator(&self, a: &Annotations) -> ThetaEstimator {
        ThetaEstimator { l2: self.l2, wrong: a.dims().classes.saturating_sub(1) as f64 }
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        ClassPrior::Uniform
    }

    fn start(&self, a: &Annotations, _: u32, _: &JobContext) -> Option<Vec<f64>> {
        Some(vec![1.0; a.dims().annotators])
    }

    fn report(&self, a: &Annotations, fit: PairFit<ThetaEstimator>) -> Report {
        let theta: Vec<f64> = (0..a.dims().annotators).map(|r| fit.state_of(a, r)[0]).collect();
        let skill: Vec<f64> = theta.iter().map(|theta| fit.estimator.accuracy(*theta)).collect();
        // The matrix of an annotator who abstains has no column for it.
        let never_abstains = a.dims().labels == a.dims().classes;
        let expected_count = fit.expected_count;
        let confusion = never_abstains
            .then(|| Confusion { cells: Cells::Accuracy(skill.clone()), expected_count });
        let annotator_parameters = vec![("theta".to_owned(), theta)];
        Report { skill, confusion, annotator_parameters, ..Report::default() }
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }
}

/// Estimates the weight theta of each annotator; it is his state.
pub struct ThetaEstimator {
    l2: f64,
    /// The number of wrong classes.
    wrong: f64,
}

impl ThetaEstimator {
    fn accuracy(&self, theta: f64) -> f64 {
        1.0 / (1.0 + self.wrong * (-2.0 * theta).exp())
    }

    fn theta(&self, accuracy: f64) -> f64 {
        (accuracy / (1.0 - accuracy) * self.wrong).ln() / 2.0
    }

    /// The maximum, within the bounds, of the penalised likelihood of this many right annotations of all.
    fn maximum(&self, right: f64, all: f64) -> f64 {
        if all <= 0.0 || self.wrong == 0.0 {
            return 0.0;
        }
        let share = right / all;
        let [mut low, mut high] = [MIN_ACCURACY, 1.0 - MIN_ACCURACY].map(|a| self.theta(a));
        // Half of the slope for each annotation, which falls.
        let slope = |theta: f64| share - self.accuracy(theta) - self.l2 * theta / 2.0;
        if slope(low) <= 0.0 {
            return low;
        }
        if slope(high) >= 0.0 {
            return high;
        }
        let mut theta = self.theta(share.clamp(MIN_ACCURACY, 1.0 - MIN_ACCURACY));
        // Newton's steps, or halves of the interval where they leave it.
        for _ in 0..MAX_STEPS {
            let slope = slope(theta);
            if slope > 0.0 {
                low = theta;
            } else {
                high = theta;
            }
            let accuracy = self.accuracy(theta);
            let next = theta + slope / (2.0 * accuracy * (1.0 - accuracy) + self.l2 / 2.0);
            let next = if low <= next && next <= high { next } else { f64::midpoint(low, high) };
            if (next - theta).abs() <= 1e-15 * theta.abs() {
                return next;
            }
            theta = next;
        }
        theta
    }
}

/// The most steps to the maximum: more than halving takes.
const MAX_STEPS: u32 = 100;

impl Estimator for ThetaEstimator {
    fn state_len(&self) -> usize {
        1
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, .. } = own;
        let (mut right, mut all) = (0.0, 0.0);
        for (row, label) in own.rows.chunks_exact(n_groups::<W>(n_classes)).zip(labels) {
            let counts = &row.as_flattened()[..n_classes];
            // An abstention is no annotation.
            if let Some(own) = counts.get(*label as usize) {
                right += own;
                all += counts.iter().sum::<f64>();
            }
        }
        let theta = self.maximum(right, all);
        own.state[0] = theta;
        self.start(own);
        -all * self.l2 * theta * theta / 2.0
    }

    #[inline(always)]
    fn start<const W: usize>(&self, own: PairCounts<'_, W>) {
        let PairCounts { labels, n_classes, state, rows, .. } = own;
        let accuracy = self.accuracy(state[0]);
        let each_wrong = (1.0 - accuracy) / self.wrong.max(1.0);
        for (row, label) in rows.chunks_exact_mut(n_groups::<W>(n_classes)).zip(labels) {
            let own = *label as usize;
            row.fill([if own < n_classes { each_wrong } else { 1.0 }; W]);
            if own < n_classes {
                row.as_flattened_mut()[own] = accuracy;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::em::pairs::pair_em::StepFrom;
    use crate::model::posterior::Posterior;
    use crate::testing::{assert_close, erring_half, fit, iterations, tiny};

    /// T0 = (1, 0), T1 = (1/2, 1/2). Annotator 0: right 1.5 of 2, theta = ln 3 / 2. Annotator 1: right 1/2 of 1, theta 0.
    #[test]
    fn without_a_pull_an_accuracy_is_the_share_of_right_annotations() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
        let spec = Snorkel { l2: 0.0, ..Snorkel::default() };
        let report = StepFrom::new(&spec, &a, &Posterior::from_votes(&a)).report;
        assert_close(&report.skill, &[0.75, 0.5], 1e-12, "accuracy");
        let theta = &report.annotator_parameters[0].1;
        assert_close(theta, &[3.0_f64.ln() / 2.0, 0.0], 1e-12, "theta");
    }

    /// Where theta = ln 3 / 2 is the maximum, the accuracy of two classes is 3/4, and share - 3/4 = l2 theta / 2.
    // keys: snorkel.l2
    #[test]
    fn a_pull_is_balanced_by_the_slope_of_the_likelihood() {
        let theta = 3.0_f64.ln() / 2.0;
        for (wrong, accuracy) in [(1.0, 0.75), (3.0, 0.5)] {
            let estimator = ThetaEstimator { l2: 0.2, wrong };
            let share = accuracy + 0.1 * theta;
            assert!((estimator.maximum(7.0 * share, 7.0) - theta).abs() < 1e-14, "{wrong}");
        }
        let [low, high] = [0.0, 1.0].map(|share| {
            let free = ThetaEstimator { l2: 0.0, wrong: 1.0 };
            free.accuracy(free.maximum(share, 1.0))
        });
        assert_close(&[low, high], &[0.01, 0.99], 1e-12, "bounds");
    }

    /// Two votes to one: log-odds of 2 theta, with theta = 1.
    #[test]
    fn the_first_posteriors_follow_from_a_theta_of_one() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1)]);
        let fitted = fit(Snorkel { stop: iterations(0), ..Snorkel::default() }, &a);
        let p = 1.0 / (1.0 + (-2.0_f64).exp());
        assert_close(&fitted.posterior.row(0), &[p, 1.0 - p], 1e-12, "T0");
    }

    /// Label 2 is no class. Of annotator 1, it tells nothing; annotator 2 has no other.
    #[test]
    fn a_label_that_is_no_class_is_an_abstention() {
        let rows = [(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1), (2, 0, 0), (2, 1, 0)];
        let with: Vec<_> = rows.into_iter().chain([(0, 2, 2), (1, 2, 2), (3, 1, 2)]).collect();
        let spec = Snorkel { stop: iterations(20), ..Snorkel::default() };
        let (without, with) = (fit(spec.clone(), &tiny(2, &rows)), fit(spec, &tiny(2, &with)));
        for i in 0..3 {
            assert_close(&with.posterior.row(i), &without.posterior.row(i), 1e-12, "T");
        }
        assert_close(&with.posterior.row(3), &[0.5, 0.5], 1e-12, "T3");
        assert_close(&with.report.skill[..2], &without.report.skill, 1e-12, "accuracy");
        assert_eq!((with.report.skill[2], with.report.confusion), (0.5, None));
    }

    #[test]
    fn the_penalised_likelihood_never_falls() {
        for l2 in [0.0, 0.1, 3.0] {
            let fitted = fit(Snorkel { l2, stop: iterations(40) }, &erring_half());
            for row in &fitted.trace {
                assert!(row.change.is_none_or(|c| c > -1e-9), "{l2} {row:?}");
            }
        }
    }
}
