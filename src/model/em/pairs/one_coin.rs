//! Each annotator has one accuracy, drawn to that of the crowd; labels and accuracies are found together.
//!
//! ```text
//! z[i] ~ Categorical(q)                                  the true class of instance i
//! P(y | z[i] = k, r) = s[r] if y = k, else (1 - s[r]) / (L - 1)     L labels
//! LL = sum_i logsumexp_k ( ln q[k] + sum over the annotations (r, y) of i of ln P(y | k, r) )
//! ```
//! 1. T = the shares of the votes (trusted rows one-hot).
//! 2. M: q is uniform, or with `fixed_prior = false` the mean of T over annotated instances; s[r] = (right + the sum of
//!    T[i][y] over r's annotations) / (right + wrong + r's annotations), clamped to [`MIN_PROBABILITY`] .. 1 -
//!    [`MIN_PROBABILITY`]. Here right = prior_right + strength m and wrong = prior_wrong + strength (1 - m), where m is the
//!    expected share of right annotations of the whole crowd.
//! 3. E: T = softmax of the terms of LL.
//! 4. Repeat until LL plus the log-prior, sum_r (right ln s[r] + wrong ln(1 - s[r])) relative to its mode, converges.
//!
//! The trace shows LL as the objective and the growth of its sum with the log-prior as its change.
//!
//! # Why
//! With one accuracy for all classes, a share of classes that is learned runs away where annotators err more in one class
//! than in another: the rarer class vanishes. Accuracy in percent and log-loss on the crowds where the rules differ by more
//! than 0.5 points; over 18 crowds, the vote has 76.1, learned shares 76.6, half learned and half uniform 77.9, uniform
//! shares 78.1, and uniform shares with a strength of 2 78.2 (log-losses 2.35, 3.28, 2.69, 2.55, 2.38).
//!
//! ```text
//!              vote      learned    uniform    uniform, strength 2
//! adult2       75.8/2.58 72.1/4.26  76.3/3.42  76.3/3.19
//! bluebirds    75.9/.51  58.3/9.10  72.2/4.55  72.2/4.48
//! face         63.7/4.27 61.1/4.54  62.8/4.06  62.8/3.97
//! flower       78.0/.43  83.0/1.40  86.5/1.17  87.0/.83
//! mozafari     69.6/4.15 67.1/3.27  68.8/2.80  69.4/2.02
//! product      89.7/.85  90.9/.84   92.8/.41   92.8/.34
//! web          73.1/1.16 80.7/.57   83.9/.45   83.9/.43
//! zencrowd_in  74.0/1.34 78.7/.57   77.2/.69   77.1/.68
//! zencrowd_us  86.2/.72  90.1/.48   85.9/.47   86.0/.42
//! ```
//!
//! Y. Zhang, X. Chen, D. Zhou, M. I. Jordan: Spectral Methods Meet EM: A Provably Optimal Algorithm for Crowdsourcing.
//! JMLR 17, 2016 (the homogeneous Dawid-Skene model). arXiv:1406.3824
//!
//! Differs from crowd-kit's `OneCoinDawidSkene` in the stopping value (the marginal likelihood here), and in that labels
//! that are not a class count as wrong.
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, OneCoin}};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 and 1 agree; annotator 2 agrees with them on two of four instances.
//! let rows: Vec<_> = (0..12).map(|n| (n / 3, n % 3, (n / 3 + u32::from(n % 3 == 2 && n > 5)) % 2)).collect();
//! let fitted = PairEm(OneCoin::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.report.skill[0] > 0.9 && (fitted.report.skill[2] - 0.6).abs() < 0.05);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::crowd_rows::crowd_accuracy;
use crate::frame::Annotations;
use crate::model::confusion::{Cells, Confusion};
use crate::model::em::kernels::{Estimator, PairCounts, PooledCounts, n_groups};
use crate::model::em::{ClassPrior, PairFit, PairModel, StopRule};
use crate::model::fitted::Report;
use crate::model::numerics::MIN_PROBABILITY;
use crate::model::{Capabilities, Spec};

/// One-coin Dawid-Skene: one accuracy for each annotator, drawn to that of the crowd.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneCoin {
    /// With how many annotations an accuracy is drawn to that of the crowd; 0 is maximum likelihood. Raising it makes
    /// annotators with few annotations alike.
    #[schemars(range(min = 0.0))]
    pub strength: f64,
    /// Added to each annotator's right answers: a Beta(`prior_right` + 1, `prior_wrong` + 1) prior. Raising it trusts
    /// annotators with few annotations.
    #[schemars(range(min = 0.0))]
    pub prior_right: f64,
    /// Added to each annotator's wrong answers.
    #[schemars(range(min = 0.0))]
    pub prior_wrong: f64,
    /// Keeps the class shares uniform instead of learning them, as by default.
    pub fixed_prior: bool,
    /// How many more times to start, from votes mixed with noise; the best log-likelihood plus log-prior wins. A later
    /// start must be better by more than `stop.tol` for each annotation.
    pub restarts: u32,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for OneCoin {
    fn default() -> Self {
        Self { strength: 2.0, fixed_prior: true, ..Self::maximum_likelihood() }
    }
}

impl OneCoin {
    /// The model without any prior, and with class shares that are learned.
    #[must_use]
    pub fn maximum_likelihood() -> Self {
        Self {
            strength: 0.0,
            prior_right: 0.0,
            prior_wrong: 0.0,
            fixed_prior: false,
            restarts: 0,
            stop: StopRule::default(),
        }
    }
}

impl Spec for OneCoin {
    const KIND: &'static str = "one_coin";
    const SUMMARY: &'static str = "one accuracy for each annotator, drawn to that of the crowd";
    const SOURCE: &'static str = "Zhang et al. 2016, JMLR 17";
    const CAPABILITIES: Capabilities = Capabilities::EM;

    fn estimates_prior(&self) -> bool {
        !self.fixed_prior
    }
}

impl PairModel for OneCoin {
    type Rows = OneCoinEstimator;

    fn estimator(&self, a: &Annotations) -> OneCoinEstimator {
        let Self { strength, prior_right, prior_wrong, .. } = *self;
        let n_labels = a.dims().labels;
        OneCoinEstimator { strength, ..OneCoinEstimator::new(prior_right, prior_wrong, n_labels) }
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        if self.fixed_prior { ClassPrior::Uniform } else { ClassPrior::Shares }
    }

    fn report(&self, a: &Annotations, fit: PairFit<OneCoinEstimator>) -> Report {
        let skill: Vec<f64> = (0..a.dims().annotators).map(|r| fit.state_of(a, r)[0]).collect();
        let PairFit { prior, expected_count, .. } = fit;
        let confusion = Confusion { cells: Cells::Accuracy(skill.clone()), expected_count };
        Report { skill, prior: Some(prior), confusion: Some(confusion), ..Report::default() }
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }
}

/// Estimates one accuracy per annotator, which all classes share; it is the annotator's state.
pub struct OneCoinEstimator {
    /// With how many annotations an accuracy is drawn to that of the crowd.
    strength: f64,
    prior_right: f64,
    prior_wrong: f64,
    /// The pseudo-counts of this M-step.
    right: f64,
    wrong: f64,
    n_labels: usize,
}

impl OneCoinEstimator {
    /// With pseudo-counts, and not drawn to the crowd.
    pub(in crate::model::em) fn new(right: f64, wrong: f64, n_labels: usize) -> Self {
        Self { strength: 0.0, prior_right: right, prior_wrong: wrong, right, wrong, n_labels }
    }

    /// The accuracy of this many right annotations among all.
    fn share(&self, right: f64, all: f64) -> f64 {
        // With a single label, every annotation is right.
        if self.n_labels < 2 {
            return 1.0;
        }
        let all = all + self.right + self.wrong;
        let share = if all > 0.0 { (right + self.right) / all } else { 1.0 / self.n_labels as f64 };
        share.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
    }

    /// The probability of each wrong label at this accuracy.
    fn each_wrong(&self, skill: f64) -> f64 {
        ((1.0 - skill) / (self.n_labels - 1).max(1) as f64).max(MIN_PROBABILITY)
    }

    /// The log-prior of an accuracy, relative to its mode; 0 with a single label, where there is no accuracy to estimate.
    fn term(&self, skill: f64) -> f64 {
        if self.n_labels < 2 {
            return 0.0;
        }
        let all = self.right + self.wrong;
        let term =
            |count: f64, p: f64| if count > 0.0 { count * (p * all / count).ln() } else { 0.0 };
        term(self.right, skill) + term(self.wrong, 1.0 - skill)
    }
}

impl Estimator for OneCoinEstimator {
    fn state_len(&self) -> usize {
        1
    }

    fn pool(&mut self, counts: &PooledCounts<'_>) {
        if self.strength > 0.0 {
            let right = crowd_accuracy(counts);
            self.right = self.prior_right + self.strength * right;
            self.wrong = self.prior_wrong + self.strength * (1.0 - right);
        }
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, state, rows, .. } = own;
        let m = n_groups::<W>(n_classes);
        let (mut right, mut all) = (0.0, 0.0);
        for (row, label) in rows.chunks_exact(m).zip(labels) {
            let counts = &row.as_flattened()[..n_classes];
            right += counts.get(*label as usize).copied().unwrap_or_default();
            all += counts.iter().sum::<f64>();
        }
        let skill = self.share(right, all);
        let wrong = self.each_wrong(skill);
        for (row, label) in rows.chunks_exact_mut(m).zip(labels) {
            row.fill([wrong; W]);
            if let Some(diagonal) = row.as_flattened_mut()[..n_classes].get_mut(*label as usize) {
                *diagonal = skill;
            }
        }
        state[0] = skill;
        self.term(skill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::em::pairs::pair_em::StepFrom;
    use crate::model::posterior::Posterior;
    use crate::testing::{fit, tiny};

    // keys: one_coin.prior_right, one_coin.prior_wrong
    #[test]
    fn an_m_step_gives_the_skills_worked_out_by_hand() {
        // T0 = (1, 0), T1 = (0.5, 0.5). Annotator 0 gives 0 to 0 and 1 to 1: right 1.5 of 2; annotator 1: 0.5 of 1.
        let a = tiny(3, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
        let spec = OneCoin { prior_right: 2.0, prior_wrong: 0.5, ..OneCoin::maximum_likelihood() };
        let report = StepFrom::new(&spec, &a, &Posterior::from_votes(&a)).report;
        for (got, want) in report.skill.iter().zip([3.5 / 4.5, 2.5 / 3.5]) {
            assert!((got - want).abs() < 1e-12, "{:?}", report.skill);
        }
        let column = report.confusion.unwrap().column(&a, 0, 1);
        for (got, want) in column.iter().zip([0.5 / 4.5, 3.5 / 4.5, 0.5 / 4.5]) {
            assert!((got - want).abs() < 1e-12, "{column:?}");
        }
    }

    /// The three annotations are right with an expectation of 2: m = 2.1 / 3.2, and annotator 1 has (0.5 + 2 m) / 3.
    // keys: one_coin.strength
    #[test]
    fn accuracies_are_drawn_to_that_of_the_crowd() {
        let a = tiny(3, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
        let m = 2.1 / 3.2;
        let report = StepFrom::new(&OneCoin::default(), &a, &Posterior::from_votes(&a)).report;
        let want = [(1.5 + 2.0 * m) / 4.0, (0.5 + 2.0 * m) / 3.0];
        crate::testing::assert_close(&report.skill, &want, 1e-12, "skill");
        crate::testing::assert_close(&report.prior.unwrap(), &[1.0 / 3.0; 3], 1e-15, "q");
    }

    #[test]
    fn an_annotator_worse_than_chance_counts_against_its_labels() {
        let row = |i: u32, r: u32| (i, r, if r == 3 { 1 - i % 2 } else { i % 2 });
        let mut rows: Vec<_> = (0..40).map(|n| row(n / 4, n % 4)).collect();
        rows.push((10, 3, 0));
        let stop = StopRule { tol: 0.0, ..StopRule::default() };
        let fitted = fit(OneCoin { stop, ..OneCoin::maximum_likelihood() }, &tiny(2, &rows));
        assert!(fitted.report.skill[3] < 1e-9 && fitted.posterior.row(10)[1] > 0.999);
    }

    #[test]
    fn a_label_that_is_no_class_counts_as_wrong() {
        let fitted = fit(
            OneCoin::maximum_likelihood(),
            &tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 2)]),
        );
        assert!((fitted.report.skill[1] - 0.5).abs() < 1e-6, "{:?}", fitted.report.skill);
    }

    /// With a single label there is no wrong one: all accuracies are 1, and their log-prior is no -inf.
    #[test]
    fn a_single_label_has_an_objective_whatever_the_prior() {
        let spec = OneCoin { prior_right: 2.0, prior_wrong: 0.5, ..OneCoin::maximum_likelihood() };
        let fitted = fit(spec, &tiny(1, &[(0, 0, 0), (1, 0, 0), (1, 1, 0)]));
        assert_eq!(fitted.report.skill, [1.0, 1.0]);
        let objectives: Vec<f64> = fitted.trace.iter().map(|row| row.objective).collect();
        assert_eq!(objectives, [0.0, 0.0]);
        assert!(fitted.stop.converged);
    }
}
