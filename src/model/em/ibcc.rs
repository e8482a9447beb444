//! Dawid-Skene with Dirichlet priors: class shares and confusion matrices have distributions, found by variational Bayes.
//!
//! ```text
//! q ~ Dirichlet(prior_class, ..., prior_class);  pi[r][k] ~ Dirichlet(a0[k])
//! a0[k][l] = prior_diagonal if k = l, else prior_off_diagonal, by default min(1, prior_diagonal / (L - 1)), L labels
//! z[i] ~ Categorical(q);  y | z[i] = k, r ~ Categorical(pi[r][k])
//! nu[k] = prior_class + sum_i T[i][k];  al[r][k][l] = a0[k][l] + n[r][k][l]                  n: expected counts
//! L[i][k] = E ln q[k] + sum over the annotations (r, y) of i of E ln pi[r][k][y];  T = softmax_k L
//! E ln q[k] = digamma(nu[k]) - digamma(sum nu), E ln pi likewise by rows of al
//! ELBO = sum_i logsumexp_k L[i][k] - KL(Dir(nu) | Dir(prior_class)) - sum over r, k of KL(Dir(al[r][k]) | Dir(a0[k]))
//! ```
//! 1. T = the shares of the votes (trusted rows one-hot).
//! 2. nu and al from T; 3. T from nu and al; 4. repeat until the ELBO converges.
//!
//! The tables show the posterior means of q and pi; the posterior of an instance without annotations is nu over its sum,
//! the mean of q. A skill is the mean diagonal of pi; its interval is 1.96 standard
//! deviations to either side, with the diagonal cells as independent Betas.
//!
//! H.-C. Kim, Z. Ghahramani: Bayesian Classifier Combination. AISTATS 2012, PMLR 22:619-627. E. Simpson, S. Roberts,
//! I. Psorakis, A. Smith: Dynamic Bayesian Combination of Multiple Imperfect Classifiers. 2013.
//! doi:10.1007/978-3-642-36406-8_1
//!
//! Differs from wrench's `IBCC`, which stops when no posterior moves by 1e-3, starts with 1e-8 added to each vote count,
//! and gives no ELBO.
//!
//! ```
//! use labelmill::model::{Model, em::{ColumnEm, Ibcc}};
//! use labelmill::testing::tiny;
//!
//! // One annotation proves little: the prior alone says that annotators are right in 4 of 6 cases of three classes.
//! let fitted = ColumnEm(Ibcc::default()).fit((&tiny(3, &[(0, 0, 1)])).into(), &mut labelmill::run::Run::new(0)).unwrap();
//! assert!(fitted.posterior.row(0)[1] > 0.66 && fitted.posterior.row(0)[1] < 0.99);
//! ```

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kernels::Dirichlet;
use super::{ClassPrior, Objective, PairFit, PairModel, StopRule};
use crate::frame::Annotations;
use crate::model::confusion::{Cells, Confusion, Smoothing};
use crate::model::fitted::Report;
use crate::model::{Capabilities, Spec};

/// The smallest Dirichlet parameter. It keeps exp(E ln pi) of a label that the annotator never used above the least
/// likelihood of the kernels, [`MIN_LIKELIHOOD`](crate::model::numerics::MIN_LIKELIHOOD), up to ten billion annotations. The
/// default is smaller beyond 80 labels, and then raised to the floor by the kernels.
const MIN_PARAMETER: f64 = 0.05;

/// Independent Bayesian classifier combination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ibcc {
    /// The Dirichlet parameter of every class's share. Raising it pulls the shares towards uniform.
    #[schemars(range(min = MIN_PARAMETER))]
    pub prior_class: f64,
    /// The Dirichlet parameter of right answers. Raising it trusts annotators with few annotations.
    #[schemars(range(min = MIN_PARAMETER))]
    pub prior_diagonal: f64,
    /// The Dirichlet parameter of each wrong answer. By default 1, or less where there are so many labels that all wrong
    /// answers together would outweigh the right one. Raising it expects more errors.
    #[schemars(range(min = MIN_PARAMETER))]
    pub prior_off_diagonal: Option<f64>,
    /// How many more times to start, from votes mixed with noise; the best ELBO wins. A later
    /// start must be better by more than `stop.tol` for each annotation.
    pub restarts: u32,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for Ibcc {
    fn default() -> Self {
        // The bound is flatter than a likelihood: at the usual tolerance the posteriors still move.
        let stop = StopRule { max_iter: 500, tol: 1e-8, ..StopRule::default() };
        Self { prior_class: 1.0, prior_diagonal: 4.0, prior_off_diagonal: None, restarts: 0, stop }
    }
}

impl Ibcc {
    /// The Dirichlet parameter of each wrong answer: as given, or such that those of a row sum to at most that of the right
    /// answer.
    ///
    /// # Why
    /// With 100 labels and a parameter of 1 each, the prior expects 99 wrong answers for 4 right ones, and one annotation
    /// an instance cannot refute it: all labels became one class. Up to 5 labels the defaults are not changed by it.
    /// Rows drawn to the crowd's mean, as those of `dawid_skene` are, were tried in its place: over 17 crowds their
    /// accuracy is the same (81.5 and 81.1 to 81.6 %), and their log-loss larger (1.54 and 1.50 to 1.58), because
    /// exp(digamma) of small parameters is far below their share.
    fn off_diagonal(&self, n_labels: usize) -> f64 {
        let largest = self.prior_diagonal / n_labels.saturating_sub(1).max(1) as f64;
        self.prior_off_diagonal.unwrap_or(largest.min(1.0))
    }
}

impl Spec for Ibcc {
    const KIND: &'static str = "ibcc";
    const SUMMARY: &'static str =
        "a confusion matrix for each annotator with a prior, by variational Bayes";
    const SOURCE: &'static str =
        "Kim and Ghahramani 2012; Simpson et al. 2013, doi:10.1007/978-3-642-36406-8_1";
    const CAPABILITIES: Capabilities =
        Capabilities { annotator_prior: true, intervals: true, ..Capabilities::LABELS };

    fn estimates_prior(&self) -> bool {
        true
    }
}

impl PairModel for Ibcc {
    type Rows = Dirichlet;

    fn estimator(&self, a: &Annotations) -> Dirichlet {
        let n_labels = a.dims().labels;
        Dirichlet::new(self.prior_diagonal, self.off_diagonal(n_labels), n_labels)
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        ClassPrior::Dirichlet(self.prior_class)
    }

    /// The evidence lower bound.
    fn objective(&self, marginal: f64, terms: f64) -> Objective {
        (marginal + terms).into()
    }

    fn report(&self, a: &Annotations, fit: PairFit<Dirichlet>) -> Report {
        let n = a.dims().classes;
        let PairFit { prior, expected_count, .. } = fit;
        // The posterior mean of a Dirichlet is the smoothed share.
        let off_diagonal = self.off_diagonal(a.dims().labels);
        let added = Smoothing::new(a, off_diagonal, self.prior_diagonal - off_diagonal);
        let confusion = Confusion { cells: Cells::Counted(added), expected_count };
        let skill = confusion.skill(a);
        let deviation = |sums: &mut Vec<f64>, r: usize| {
            let matrix = confusion.of(a, r, sums);
            let variance = |k: usize| {
                let mean = matrix.cell(k, k, a.column_of(r, k)).0;
                mean * (1.0 - mean) / (matrix.row_sum(k) + 1.0)
            };
            (0..n).map(variance).sum::<f64>().sqrt() / n as f64
        };
        let deviations: Vec<f64> =
            (0..skill.len()).into_par_iter().map_init(Vec::new, deviation).collect();
        let interval = |(s, d): (&f64, &f64)| ((s - 1.96 * d).max(0.0), (s + 1.96 * d).min(1.0));
        let skill_interval = Some(skill.iter().zip(&deviations).map(interval).collect());
        let (prior, confusion) = (Some(prior), Some(confusion));
        Report { prior, skill, skill_interval, confusion, ..Report::default() }
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }
}

#[cfg(test)]
mod tests {
    use statrs::function::gamma::{digamma, ln_gamma};

    use super::*;
    use crate::frame::Dims;
    use crate::model::em::column_em::StepFrom;
    use crate::model::numerics::MIN_LIKELIHOOD;
    use crate::model::posterior::Posterior;
    use crate::testing::{annotations, fit, iterations, tiny};

    /// The bound of the given posteriors by its definition, term by term: E ln p(y, z, q, pi) - E ln r(z) r(q) r(pi),
    /// where r(q) and r(pi) are the Dirichlets that follow from `t`, and r(z) the posteriors that follow from these.
    fn bound(spec: &Ibcc, a: &Annotations, t: &Posterior) -> f64 {
        let d = a.dims();
        let mut nu = vec![spec.prior_class; d.classes];
        let off_diagonal = spec.off_diagonal(d.labels);
        let prior = |k, l| if k == l { spec.prior_diagonal } else { off_diagonal };
        let row = |k| (0..d.labels).map(|l| prior(k, l)).collect::<Vec<_>>();
        let mut al: Vec<Vec<Vec<f64>>> = vec![(0..d.classes).map(row).collect(); d.annotators];
        for i in 0..d.instances {
            for k in 0..d.classes {
                nu[k] += t.row(i)[k];
                for (r, l, w) in a.triples_of(i) {
                    al[r as usize][k][l as usize] += w * t.row(i)[k];
                }
            }
        }
        let log_means = |a: &[f64]| -> Vec<f64> {
            a.iter().map(|x| digamma(*x) - digamma(a.iter().sum())).collect()
        };
        let log_density = |prior: &[f64], log_means: &[f64]| {
            ln_gamma(prior.iter().sum()) - prior.iter().map(|a| ln_gamma(*a)).sum::<f64>()
                + prior.iter().zip(log_means).map(|(a, m)| (a - 1.0) * m).sum::<f64>()
        };
        let against = |posterior: &[f64], prior: &[f64]| {
            let means = log_means(posterior);
            log_density(prior, &means) - log_density(posterior, &means)
        };
        let mut bound = against(&nu, &vec![spec.prior_class; d.classes]);
        for matrix in &al {
            for (k, posterior) in matrix.iter().enumerate() {
                bound += against(posterior, &row(k));
            }
        }
        for i in 0..d.instances {
            let logs: Vec<f64> = (0..d.classes)
                .map(|k| {
                    let own = a.triples_of(i);
                    let terms = own.map(|(r, l, w)| w * log_means(&al[r as usize][k])[l as usize]);
                    log_means(&nu)[k] + terms.sum::<f64>()
                })
                .collect();
            let sum: f64 = logs.iter().map(|l| l.exp()).sum();
            for log in &logs {
                let p = log.exp() / sum;
                bound += p * (log - p.ln());
            }
        }
        bound
    }

    /// 40 instances with one annotation each, of 30 labels by four annotators.
    #[test]
    fn many_labels_with_one_annotation_an_instance_do_not_become_one_class() {
        let rows: Vec<_> = (0..120).map(|i| (i, i % 4, i * 7 % 30)).collect();
        let fitted = fit(Ibcc::default(), &tiny(30, &rows));
        for (i, _, label) in rows {
            let (best, _) =
                crate::model::posterior::best(&fitted.posterior.row(i as usize)).unwrap();
            assert_eq!(best, label as usize, "instance {i}");
        }
    }

    /// A parameter that is given is used, however many labels there are.
    #[test]
    fn only_the_default_of_wrong_answers_follows_the_number_of_labels() {
        let of = |prior_off_diagonal| Ibcc { prior_off_diagonal, ..Ibcc::default() };
        assert_eq!([2, 5, 9].map(|labels| of(None).off_diagonal(labels)), [1.0, 1.0, 0.5]);
        assert_eq!(of(Some(3.0)).off_diagonal(9), 3.0);
    }

    // keys: ibcc.prior_class, ibcc.prior_diagonal, ibcc.prior_off_diagonal
    #[test]
    fn the_objective_is_the_bound_by_its_definition() {
        let rows: Vec<_> =
            (0..60).map(|n| (n / 4, n % 4 + n / 30, (n / 4 + n * n % 5 / 3) % 3)).collect();
        let spec = Ibcc {
            prior_class: 0.5,
            prior_diagonal: 3.0,
            prior_off_diagonal: Some(0.7),
            ..Ibcc::default()
        };
        for n_classes in [2, 3] {
            let a = tiny(n_classes, &rows);
            let mut t = Posterior::from_votes(&a);
            for _ in 0..4 {
                let want = bound(&spec, &a, &t);
                let step = StepFrom::new(&spec, &a, &t);
                let got = step.objective.maximised;
                assert!((got - want).abs() < 1e-10 * want.abs(), "{got} is not {want}");
                t = step.posterior;
            }
        }
    }

    /// The bounds of three iterations by their definition, from the shares of the votes, computed with 320 digits by
    /// mpmath.
    #[test]
    fn the_bound_of_large_parameters_does_not_cancel() {
        let a = tiny(
            2,
            &[
                (0, 0, 0),
                (0, 1, 0),
                (0, 2, 1),
                (1, 0, 1),
                (1, 1, 1),
                (1, 2, 1),
                (2, 0, 0),
                (2, 1, 1),
            ],
        );
        for (prior_class, prior_diagonal, prior_off_diagonal, want) in [
            (
                2e3,
                4e3,
                1e3,
                [-5.706_344_742_756_222, -5.706_310_618_708_993, -5.706_310_618_687_607],
            ),
            (
                1e12,
                3e11,
                1e11,
                [-5.560_925_801_455_027, -5.560_925_801_454_915, -5.560_925_801_454_915],
            ),
            (
                1.0,
                4e16,
                1e16,
                [-6.205_407_525_324_16, -6.205_390_788_237_811, -6.205_387_428_507_428],
            ),
        ] {
            let stop = iterations(3);
            let prior_off_diagonal = Some(prior_off_diagonal);
            let spec = Ibcc { prior_class, prior_diagonal, prior_off_diagonal, stop, restarts: 0 };
            let fitted = fit(spec, &a);
            for (row, want) in fitted.trace.iter().zip(want) {
                let got = row.objective;
                assert!((got - want).abs() < 1e-11, "{prior_diagonal}: {got} is not {want}");
            }
        }
    }

    #[test]
    fn an_annotator_with_one_annotation_stays_near_the_prior() {
        let rows: Vec<_> = (0..30).map(|n| (n / 3, n % 3, n / 3 % 2)).chain([(0, 3, 1)]).collect();
        let fitted = fit(Ibcc::default(), &tiny(2, &rows));
        // Class 0: (4, 1) and one wrong answer, 4 / 6; class 1: 4 / 5.
        let want = f64::midpoint(4.0 / 6.0, 4.0 / 5.0);
        assert!((fitted.report.skill[3] - want).abs() < 1e-3, "{:?}", fitted.report.skill);
        // Variances of the diagonal: 4/6 2/6 / 7 and 4/5 1/5 / 6.
        let deviation = (2.0 / 63.0 + 2.0 / 75.0_f64).sqrt() / 2.0;
        let (low, high) = fitted.report.skill_interval.unwrap()[3];
        assert!((low - (want - 1.96 * deviation)).abs() < 2e-3, "{low}");
        assert!((high - (want + 1.96 * deviation)).abs() < 2e-3, "{high}");
    }

    /// nu is (1 + 2, 1 + 0). exp(E ln q) would be as exp(1 + 1/2) to 1: digamma(3) is so much more than digamma(1).
    #[test]
    fn an_instance_without_annotations_has_the_mean_of_the_class_shares() {
        let dims = Dims { instances: 4, annotators: 2, classes: 2, labels: 2 };
        let mut a = annotations(dims, &[(0, 0, 0), (0, 1, 0), (2, 0, 0)]);
        a.trusted = Some(vec![None, None, None, Some(1)]);
        let stop = iterations(1);
        let spec = Ibcc { stop, ..Ibcc::default() };
        let fitted = fit(spec, &a);
        assert_eq!(*fitted.posterior.row(1), [0.75, 0.25]);
        assert_eq!(*fitted.posterior.row(3), [0.0, 1.0]);
    }

    /// Beside 1e10 annotations, exp(E ln pi) is exp(digamma(parameter)) / 1e10: 1.2e-19 of .05, and 8e-22 of .04.
    #[test]
    fn the_smallest_parameter_keeps_the_likelihood_above_its_floor() {
        let least = |parameter: f64| (digamma(parameter) - digamma(1e10)).exp();
        assert!(least(MIN_PARAMETER) > MIN_LIKELIHOOD && least(0.04) < MIN_LIKELIHOOD);
    }
}
