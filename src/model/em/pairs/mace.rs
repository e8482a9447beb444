//! MACE: with some probability an annotator knows the class, else he spams, by a distribution of labels of his own.
//!
//! ```text
//! z[i] ~ uniform;  P(y | z[i] = k, r) = knows[r] 1[y = k] + spams[r] xi[r][y],  spams = 1 - knows
//! T[i][k] ~ product over the annotations (r, y) of i of P(y | k, r)
//! an annotation y of an instance of class y was known with knows / (knows + spams xi[y]); any other was spam
//! K1[r], K0[r]: the expected numbers of annotations that were known, and spam;  S[r][y]: of the latter with label y
//! em   (spams, knows) ~ (K0 + s, K1 + s),  xi ~ S + s,  s = 0.01 / L                            L labels
//! vb   spams = exp(digamma(K0 + a) - digamma(K0 + K1 + a + b)), knows likewise with b,
//!      xi[l] = exp(digamma(S[l] + 10) - digamma(sum S + 10 L));  a = b = 0.5
//! ```
//! 1. Parameters: the first start has knows = 1/2 and xi uniform; further ones are random, the same for each seed.
//! 2. E: T. 3. M: K and S from T and the parameters before, then new ones. 4. Repeat.
//!
//! Of all starts the one with the best objective is kept.
//!
//! The objective of `em` is the log-likelihood plus the log-prior of the pseudo-counts, that of `vb` the evidence lower
//! bound; neither falls. A skill is `knows`; `spam_0`, `spam_1` and so on are the probabilities of the labels, by their
//! index, when the annotator spams.
//!
//! D. Hovy, T. Berg-Kirkpatrick, A. Vaswani, E. Hovy: Learning Whom to Trust with MACE. NAACL 2013, 1120-1130.
//!
//! Differs from the authors' program and crowd-kit's `MACE` in that the first start is not random and, by default, the only
//! one, since random ones break ties; in the objective by which starts are compared, to which theirs does not add the prior;
//! and from crowd-kit 1.4 in that each start has noise of its own. An adversary cannot be inverted: `knows` is not below 0.
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, Mace}};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0, 1 and 2 agree on eight instances; annotator 3 always says 0.
//! let rows: Vec<_> = (0..32).map(|n| (n / 4, n % 4, if n % 4 == 3 { 0 } else { n / 4 % 2 })).collect();
//! let fitted = PairEm(Mace::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.report.skill[0] > 0.8 && fitted.report.skill[3] < 0.5);
//! ```

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::{Annotations, Dims, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::em::kernels::{DirichletParameter, Estimator, PairCounts, n_groups};
use crate::model::em::{ClassPrior, Objective, PairFit, PairModel, StopRule, kernels};
use crate::model::fitted::Report;
use crate::model::{Capabilities, Spec};

/// MACE: an annotator knows the class or spams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mace {
    /// How parameters are estimated.
    pub method: MaceMethod,
    /// How many more times to start, from random parameters; the best objective wins. A later start must be better by more
    /// than `stop.tol` for each annotation.
    pub restarts: u32,
    /// When to stop.
    pub stop: StopRule,
}

/// How MACE estimates its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaceMethod {
    /// By variational Bayes: annotators with few annotations stay near the prior.
    #[default]
    Vb,
    /// By maximum likelihood, nearly.
    Em,
}

impl Default for Mace {
    fn default() -> Self {
        let stop = StopRule { max_iter: 200, tol: 1e-7, ..StopRule::default() };
        Self { method: MaceMethod::Vb, restarts: 0, stop }
    }
}

impl Spec for Mace {
    const KIND: &'static str = "mace";
    const SUMMARY: &'static str = "an annotator knows the class, or spams by a habit of his own";
    const SOURCE: &'static str = "Hovy et al. 2013, NAACL";
    const CAPABILITIES: Capabilities = Capabilities { annotator_prior: true, ..Capabilities::EM };
}

impl PairModel for Mace {
    type Rows = MaceEstimator;

    fn estimator(&self, a: &Annotations) -> MaceEstimator {
        MaceEstimator::new(self.method, a.dims().labels)
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        ClassPrior::Uniform
    }

    /// Each of (spams, knows) and xi is drawn from U\[1, 1.5\] and normalised.
    fn start(&self, a: &Annotations, attempt: u32, job: &JobContext) -> Option<Vec<f64>> {
        let Dims { annotators, labels, .. } = a.dims();
        let mut rng = job.rng(&format!("start/{attempt}"));
        let mut state = Vec::with_capacity(annotators * (labels + 2));
        for _ in 0..annotators {
            for n in [2, labels] {
                let begin = state.len();
                let noise = if attempt == 0 { 0.0 } else { 0.5 };
                state.extend((0..n).map(|_| 1.0 + noise * rng.random::<f64>()));
                let sum: f64 = state[begin..].iter().sum();
                state[begin..].iter_mut().for_each(|x| *x /= sum);
            }
        }
        Some(state)
    }

    fn objective(&self, log_likelihood: f64, terms: f64) -> Objective {
        (log_likelihood + terms).into()
    }

    fn report(&self, a: &Annotations, fit: PairFit<MaceEstimator>) -> Report {
        let Dims { annotators, labels, .. } = a.dims();
        // The factors of variational Bayes do not sum to 1.
        let of = |r: usize| fit.state_of(a, r).split_at(2);
        let spam_sums: Vec<f64> = (0..annotators).map(|r| of(r).1.iter().sum()).collect();
        // With a single label, every annotation is right.
        let knows = |r: usize| {
            let kinds = of(r).0;
            if labels < 2 { 1.0 } else { kinds[1] / (kinds[0] + kinds[1]) }
        };
        let skill = (0..annotators).map(knows).collect();
        let spam = |l: usize| (0..annotators).map(|r| of(r).1[l] / spam_sums[r]).collect();
        let annotator_parameters =
            (0..labels.min(MAX_REPORTED_LABELS)).map(|l| (format!("spam_{l}"), spam(l))).collect();
        Report { skill, annotator_parameters, prior: None, ..Report::default() }
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }

    /// That of other models of pairs, and the state of every annotator, once more at a start.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let own = kernels::memory_estimate(sizes)?;
        let state = sizes.dims.annotators.checked_mul(sizes.dims.labels.checked_add(2)?)?;
        let state = state.checked_mul(2 * size_of::<f64>())?;
        Some(MemoryEstimate { working: own.working.checked_add(state)?, ..own })
    }
}

/// The most labels whose shares of spam are reported.
const MAX_REPORTED_LABELS: usize = 100;

/// The state of an annotator: spams, knows, then xi `[label]`.
pub struct MaceEstimator {
    method: MaceMethod,
    n_labels: usize,
    /// The pseudo-counts of `em`.
    added: f64,
    /// The parameters of the Beta prior of (spams, knows), its sum, those of the Dirichlet prior of xi, and its sum.
    priors: [DirichletParameter; 4],
}

impl MaceEstimator {
    fn new(method: MaceMethod, n_labels: usize) -> Self {
        let priors = [0.5, 1.0, 10.0, 10.0 * n_labels as f64].map(DirichletParameter::new);
        Self { method, n_labels, added: 0.01 / n_labels as f64, priors }
    }

    /// Replaces the counts of alternatives by their new probabilities or factors; returns the term of the objective.
    fn replace(
        &self,
        counts: &mut [f64],
        of_each: DirichletParameter,
        of_sum: DirichletParameter,
    ) -> f64 {
        let sum: f64 = counts.iter().sum();
        if self.method == MaceMethod::Vb {
            let (digamma_of_sum, mut term) = of_sum.digamma_and_term(sum);
            term = -term;
            // Most labels have no count, where there are many.
            let without = (of_each.digamma_and_term(0.0).0 - digamma_of_sum).exp();
            for count in counts {
                if *count == 0.0 {
                    *count = without;
                    continue;
                }
                let (digamma, own) = of_each.digamma_and_term(*count);
                term += own;
                *count = (digamma - digamma_of_sum).exp();
            }
            return term;
        }
        let n = counts.len() as f64;
        let mut term = 0.0;
        for count in counts {
            *count = (*count + self.added) / (sum + n * self.added);
            // Relative to the mode, at which all are the same.
            term += self.added * (*count * n).ln();
        }
        term
    }
}

impl Estimator for MaceEstimator {
    fn state_len(&self) -> usize {
        2 + self.n_labels
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, .. } = own;
        let (kinds, xi) = own.state.split_at_mut(2);
        let (spams, knows) = (kinds[0], kinds[1]);
        let (mut n_spam, mut n_known, mut used) = (0.0, 0.0, 0..0);
        let pairs = own.rows.chunks_exact(n_groups::<W>(n_classes)).zip(labels);
        for (row, label) in pairs {
            let (counts, l) = (&row.as_flattened()[..n_classes], *label as usize);
            let all: f64 = counts.iter().sum();
            let right = counts.get(l).copied().unwrap_or_default();
            let not_spam = right * knows / (knows + spams * xi[l]);
            n_known += not_spam;
            n_spam += all - not_spam;
            // Labels ascend: those between two of them have no annotations.
            xi[used.end..l].fill(0.0);
            xi[l] = all - not_spam;
            used.end = l + 1;
        }
        xi[used.end..].fill(0.0);
        kinds.copy_from_slice(&[n_spam, n_known]);
        let [of_kind, of_kinds, of_label, of_labels] = self.priors;
        let terms = self.replace(kinds, of_kind, of_kinds) + self.replace(xi, of_label, of_labels);
        self.start(own);
        terms
    }

    #[inline(always)]
    fn start<const W: usize>(&self, own: PairCounts<'_, W>) {
        let PairCounts { labels, n_classes, state, rows, .. } = own;
        let (kinds, xi) = state.split_at(2);
        for (row, label) in rows.chunks_exact_mut(n_groups::<W>(n_classes)).zip(labels) {
            row.fill([kinds[0] * xi[*label as usize]; W]);
            if let Some(own) = row.as_flattened_mut()[..n_classes].get_mut(*label as usize) {
                *own += kinds[1];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, erring_half, fit, iterations, tiny};

    /// From knows = 1/2 and xi = (1/2, 1/2): P(y = k) = 3/4, else 1/4. T of instance 0 (labels 0, 0) is (.9, .1), of
    /// instance 1 (labels 1, 0) a half each. Known given the class is the label: 2/3. Annotator 0: labels 0 and 1, K1 =
    /// (.9 + .5) 2/3, K0 = 2 - K1, S = (1 - .6, 1 - 1/3).
    #[test]
    fn an_iteration_is_the_one_worked_out_by_hand() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 0)]);
        // The report is of the M-step after the last E-step, which here is that of the start.
        let spec = Mace { method: MaceMethod::Em, restarts: 0, stop: iterations(0) };
        let fitted = fit(spec, &a);
        assert_close(&fitted.posterior.row(0), &[0.9, 0.1], 1e-12, "T0");
        assert_close(&fitted.posterior.row(1), &[0.5, 0.5], 1e-12, "T1");
        let (known, s) = (1.4 * 2.0 / 3.0, 0.005);
        assert_close(&fitted.report.skill[..1], &[(known + s) / (2.0 + 2.0 * s)], 1e-12, "knows");
        let spam = [1.0 - 0.6, 1.0 - 1.0 / 3.0];
        let xi = (spam[0] + s) / (spam[0] + spam[1] + 2.0 * s);
        assert_close(&fitted.report.annotator_parameters[0].1[..1], &[xi], 1e-12, "xi");
    }

    // keys: mace.method, mace.restarts
    #[test]
    fn the_objective_never_falls() {
        for method in [MaceMethod::Vb, MaceMethod::Em] {
            let stop = StopRule { max_iter: 60, tol: 0.0, ..StopRule::default() };
            let fitted = fit(Mace { method, restarts: 3, stop }, &erring_half());
            for row in &fitted.trace {
                assert!(row.change.is_none_or(|c| c > -1e-9), "{method:?} {row:?}");
            }
        }
    }

    #[test]
    fn a_spammer_shows_his_habit_and_no_skill() {
        let label = |i: u32, r: u32| {
            if r == 4 { 2 } else { (i + u32::from(r == 3 && i.is_multiple_of(4))) % 3 }
        };
        let rows: Vec<_> = (0..150).map(|n| (n / 5, n % 5, label(n / 5, n % 5))).collect();
        let fitted = fit(Mace::default(), &tiny(3, &rows));
        let skill = &fitted.report.skill;
        assert!(skill[0] > 0.9 && skill[3] > 0.5 && skill[3] < 0.9 && skill[4] < 0.1, "{skill:?}");
        assert!(fitted.report.annotator_parameters[2].1[4] > 0.5);
        for i in 0..30 {
            assert!(fitted.posterior.row(i)[i % 3] > 0.9);
        }
    }

    #[test]
    fn a_single_label_and_a_label_that_is_no_class_are_no_obstacle() {
        let one = fit(Mace::default(), &tiny(1, &[(0, 0, 0), (1, 0, 0), (1, 1, 0)]));
        assert_eq!(*one.posterior.row(0), [1.0]);
        let other = fit(Mace::default(), &tiny(2, &[(0, 0, 0), (0, 1, 2), (1, 0, 1)]));
        assert!(other.posterior.row(0)[0] > 0.5 && other.not_finite().is_none());
    }
}
