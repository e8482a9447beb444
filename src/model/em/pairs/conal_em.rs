//! Annotators who share mistakes: an annotation follows one confusion matrix of the whole crowd, or the annotator's own.
//!
//! ```text
//! z[i] ~ Categorical(q);  s ~ Bernoulli(om[r])            s: whether r's annotation follows the common matrix
//! P(y | z[i] = k, r) = om[r] pg[k][y] + (1 - om[r]) pi[r][k][y]
//! LL = sum_i ln sum_k q[k] product over the annotations (r, y) of i of P(y | k, r)
//! ```
//! om\[r\] is the share of r's annotations that are explained by what the crowd does, right or wrong: `common_share`.
//!
//! 1. T = the shares of the votes (trusted rows one-hot); pg from all counts, pi\[r\] from those of r, om = 1/2.
//! 2. E: T. Of the expected counts n of (r, y, k), the share c = om pg / (om pg + (1 - om) pi) follows pg, where c depends on
//!    annotator, label and class alone. So the exact M-step takes counts, and no loop over annotations:
//! 3. M: q = the mean of T, or uniform where instances have few annotations, as for `dawid_skene`; om\[r\] = the sum of n c
//!    over the sum of n, within 1e-6 of 0 and 1; `pg[k][l] ~ sum_r n c + smoothing`; `pi[r][k][l] ~ n (1 - c) +
//!    smoothing`.
//! 4. Repeat until LL plus the log-prior of the pseudo-counts converges, which cannot fall. The trace shows LL.
//!
//! The reported matrix of an annotator is that of the expected counts, which the mixture fits; `common` is pg. A skill is the
//! mean of the matrix's diagonal.
//!
//! Z. Chu, J. Ma, H. Wang: Learning from Crowds by Modeling Common Confusions. AAAI 2021, appendix B. arXiv:2012.13052
//!
//! Differs from the paper in that an annotator has one om, where the paper has one for each annotation, which then runs to 0
//! or 1; and in that E-steps have the joint posterior of z and s, which the paper updates one after the other. On public
//! crowds its labels are nearly those of Dawid-Skene without a prior. Not meant for few annotations of each annotator: the
//! authors call the EM unstable there.
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, ConalEm}};
//! use labelmill::testing::tiny;
//!
//! // (instance, annotator, label): all agree but for the last, who always says 0.
//! let rows: Vec<_> = (0..40).map(|n| (n / 4, n % 4, if n % 4 == 3 { 0 } else { n / 4 % 2 })).collect();
//! let fitted = PairEm(ConalEm::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! let common = &fitted.report.annotator_parameters[0].1;
//! assert!(fitted.posterior.row(1)[1] > 0.99 && common[3] < common[0]);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::dawid_skene::is_redundant;
use crate::frame::{Annotations, Dims, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::confusion::{Cells, CommonConfusion, Confusion, Smoothing};
use crate::model::em::kernels::{Estimator, PairCounts, PairRows, PooledCounts, n_groups};
use crate::model::em::{ClassPrior, PairFit, PairModel, StopRule, few_annotations, kernels};
use crate::model::fitted::Report;
use crate::model::{Capabilities, Spec};

/// CoNAL's EM without features: a common confusion matrix, and one for each annotator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConalEm {
    /// Added to every cell of a confusion matrix, common or not, before its rows are normalised. Raising it pulls annotators
    /// with few annotations towards chance, and so towards the common matrix.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for ConalEm {
    fn default() -> Self {
        Self { smoothing: 0.01, stop: StopRule::default() }
    }
}

impl Spec for ConalEm {
    const KIND: &'static str = "conal_em";
    const SUMMARY: &'static str = "a confusion matrix that all annotators share and one for each, mixed in a share of the annotator";
    const SOURCE: &'static str = "Chu, Ma and Wang 2021, arXiv:2012.13052, appendix B";
    const CAPABILITIES: Capabilities = Capabilities::EM;

    fn estimates_prior(&self) -> bool {
        true
    }
}

impl PairModel for ConalEm {
    type Rows = MixtureEstimator;

    fn estimator(&self, a: &Annotations) -> MixtureEstimator {
        MixtureEstimator::new(Smoothing::new(a, self.smoothing, 0.0))
    }

    fn class_prior(&self, a: &Annotations) -> ClassPrior {
        if is_redundant(a) { ClassPrior::Shares } else { ClassPrior::Uniform }
    }

    fn report(&self, a: &Annotations, fit: PairFit<MixtureEstimator>) -> Report {
        let common_share = (0..a.dims().annotators).map(|r| fit.state_of(a, r)[0]).collect();
        let PairFit { prior, estimator, expected_count, .. } = fit;
        Report { prior: Some(prior), ..estimator.into_report(a, common_share, expected_count) }
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        few_annotations(a, self.smoothing, 0.0, job)
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    /// That of other models of pairs, the state, and the common matrix in the steps and the report.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let own = kernels::memory_estimate(sizes)?;
        let Dims { annotators, classes, labels, .. } = sizes.dims;
        let state = sizes.pairs.checked_mul(classes)?.checked_add(annotators)?;
        let common = labels.checked_mul(classes)?.checked_mul(4)?;
        let more = state.checked_add(common)?.checked_mul(size_of::<f64>())?;
        Some(MemoryEstimate { working: own.working.checked_add(more)?, ..own })
    }
}

/// Estimates the common matrix, and the share and the matrix of each annotator. His state is om, and c of his pairs,
/// `[pair, class]`.
pub struct MixtureEstimator {
    smoothing: Smoothing,
    /// pg, `[label, class]`; `None` before the first M-step.
    common: Option<PairRows>,
    /// The log-prior of the common matrix.
    term: f64,
}

/// The least share of the common matrix, and what the largest one lacks.
const MIN_SHARE: f64 = 1e-6;

impl MixtureEstimator {
    pub(crate) fn new(smoothing: Smoothing) -> Self {
        Self { smoothing, common: None, term: 0.0 }
    }

    /// The report, but for the prior of the classes.
    pub(crate) fn into_report(
        self,
        a: &Annotations,
        common_share: Vec<f64>,
        expected_count: Vec<f64>,
    ) -> Report {
        let Dims { classes, labels, .. } = a.dims();
        let common = self.common.map(|common| {
            let of_class = |k: usize| (0..labels).map(move |label| (k, label));
            let cells = (0..classes).flat_map(of_class);
            let probability = cells.map(|(k, label)| common.row(label)[k]).collect();
            CommonConfusion::new(a, probability, &expected_count)
        });
        let confusion = Confusion { cells: Cells::Counted(self.smoothing), expected_count };
        let skill = confusion.skill(a);
        let annotator_parameters = vec![("common_share".to_owned(), common_share)];
        let confusion = Some(confusion);
        Report { skill, confusion, common, annotator_parameters, ..Report::default() }
    }
}

impl Estimator for MixtureEstimator {
    fn state_len(&self) -> usize {
        1
    }

    fn pair_state_len(&self, n_classes: usize) -> usize {
        n_classes
    }

    fn pool(&mut self, counts: &PooledCounts<'_>) {
        let of_common =
            if counts.is_first() { counts.by_label() } else { counts.shares_by_label() };
        let (common, term) = self.smoothing.shares_of(counts.axes().0, &of_common);
        (self.common, self.term) = (Some(common), term);
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, rows, .. } = own;
        let m = n_groups::<W>(n_classes);
        let (om, shares) = own.state.split_at_mut(1);
        let (mut of_common, mut all) = (0.0, 0.0);
        for (row, shares) in rows.chunks_exact_mut(m).zip(shares.chunks_exact(n_classes.max(1))) {
            for (count, share) in row.as_flattened_mut().iter_mut().zip(shares) {
                let common = *count * share;
                all += *count;
                of_common += common;
                *count -= common;
            }
        }
        let term = self.smoothing.estimate(PairCounts { state: &mut [], rows: &mut *rows, ..own });
        let is_first = om[0] == 0.0;
        om[0] = if is_first || all <= 0.0 { 0.5 } else { of_common / all };
        om[0] = om[0].clamp(MIN_SHARE, 1.0 - MIN_SHARE);
        let Some(common) = &self.common else { return term };
        let pairs = rows.chunks_exact_mut(m).zip(shares.chunks_exact_mut(n_classes.max(1)));
        for ((row, shares), label) in pairs.zip(labels) {
            let common = common.row(*label as usize);
            for ((own, share), common) in row.as_flattened_mut().iter_mut().zip(shares).zip(common)
            {
                let from_common = om[0] * common;
                *own = from_common + (1.0 - om[0]) * *own;
                *share = from_common / *own;
            }
        }
        term
    }

    fn shared_term(&self) -> f64 {
        self.term
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, erring_half, fit, iterations, tiny};

    /// Votes: T0 = (1, 0), T1 = (1/2, 1/2). Counts of (label, class): annotator 0: (0, 0) 1, (0, 1) 0, (1, 0) 1/2, (1, 1)
    /// 1/2; annotator 1: (0, 0) 3/2, (0, 1) 1/2. With smoothing 1/2: pg[0] = (2.5 + .5, .5 + .5) / 4 = (3/4, 1/4), pg[1] =
    /// (.5 + .5, .5 + .5) / 2; pi[0][0] = (1.5, 1) / 2.5, pi[0][1] = (.5, 1) / 1.5; pi[1][0] = (2, .5) / 2.5, pi[1][1] =
    /// (1, .5) / 1.5. P(y | k) of (0, label 0): (3/4 + 3/5, 1/2 + 1/3) / 2, (0, label 1): (1/4 + 2/5, 1/2 + 2/3) / 2, (1,
    /// label 0): (3/4 + 4/5, 1/2 + 2/3) / 2. q = (3/4, 1/4).
    #[test]
    fn the_first_iteration_is_the_one_worked_out_by_hand() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 0)]);
        let fitted = fit(ConalEm { smoothing: 0.5, stop: iterations(1) }, &a);
        let joint = |label: [f64; 2]| {
            let p = [0.75 * label[0] * 1.55 / 4.0, 0.25 * label[1] * (0.5 + 2.0 / 3.0) / 4.0];
            p.map(|x| x / (p[0] + p[1]))
        };
        assert_close(&fitted.posterior.row(0), &joint([1.35, 0.5 + 1.0 / 3.0]), 1e-12, "T0");
        assert_close(&fitted.posterior.row(1), &joint([0.65, 0.5 + 2.0 / 3.0]), 1e-12, "T1");
        // The M-step that follows: c of (1, label 0) is 3/4 / 1.55 in class 0, and 1/2 / (1/2 + 2/3) in class 1.
        let counts = [0, 1].map(|i| fitted.posterior.row(i).to_vec());
        let (n0, n1) = (counts[0][0] + counts[1][0], counts[0][1] + counts[1][1]);
        let share = f64::midpoint(n0 * 0.75 / 1.55, n1 * 0.5 / (0.5 + 2.0 / 3.0));
        let common = &fitted.report.annotator_parameters[0];
        assert_eq!(common.0, "common_share");
        assert_close(&common.1[1..], &[share], 1e-12, "om");
    }

    // keys: conal_em.smoothing
    #[test]
    fn the_penalised_likelihood_never_falls() {
        for smoothing in [0.0, 0.01, 0.5, 5.0] {
            let fitted = fit(ConalEm { smoothing, stop: iterations(60) }, &erring_half());
            for row in &fitted.trace {
                assert!(row.change.is_none_or(|c| c > -1e-9), "{smoothing} {row:?}");
            }
            assert!(fitted.not_finite().is_none(), "{smoothing}");
        }
    }

    #[test]
    fn rows_of_the_common_matrix_sum_to_one() {
        let common = fit(ConalEm::default(), &erring_half()).report.common.unwrap();
        for row in common.probability.chunks_exact(3) {
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{row:?}");
        }
        assert!((common.expected_count.iter().sum::<f64>() - 240.0).abs() < 1e-9);
    }

    /// Annotators 0 to 3 say 1 for every fourth instance of class 0, annotators 4 and 5 are at odds with them.
    #[test]
    fn annotators_who_follow_the_crowd_have_a_larger_common_share() {
        let label = |i: u32, r: u32| match r {
            0..4 => u32::from(i % 2 == 1 || i % 8 == 4 + r % 2 * 2),
            _ => (i + r) % 2,
        };
        let rows: Vec<_> = (0..480).map(|n| (n / 6, n % 6, label(n / 6, n % 6))).collect();
        let fitted = fit(ConalEm::default(), &tiny(2, &rows));
        let share = &fitted.report.annotator_parameters[0].1;
        assert!(share[..4].iter().all(|own| *own > share[4] + 0.05), "{share:?}");
    }
}
