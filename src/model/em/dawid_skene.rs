//! Each annotator has a confusion matrix; labels, matrices and class shares are found together by maximum likelihood.
//!
//! ```text
//! z[i] ~ Categorical(q)                    the true class of instance i
//! y | z[i] = k, r ~ Categorical(pi[r][k])  what annotator r chooses
//! LL = sum_i logsumexp_k ( ln q[k] + sum over the annotations (r, y) of i of ln pi[r][k][y] )
//! ```
//! 1. T = the shares of the votes (trusted rows one-hot).
//! 2. M: q = the mean of T over annotated instances, floored and renormalised; pi[r][k][l] = n[r][k][l] + smoothing +
//!    diagonal [k = l], floored, over the sum of its row, where n are the expected counts. The floor is
//!    [`MIN_PROBABILITY`](crate::model::numerics::MIN_PROBABILITY); a row without any mass becomes uniform.
//! 3. E: T = softmax of the terms of LL.
//! 4. Repeat until LL + LP converges; return T of the last E-step, and q, pi of the M-step that follows it.
//!
//! LP is the log-prior: `smoothing` and `diagonal` make step 2 a maximum a posteriori (MAP) step. Each row of pi has a
//! Dirichlet prior with the parameters a[l] + 1, where a[l] = smoothing + diagonal [k = l], and
//!
//! ```text
//! LP = sum over r, k, l of a[l] ln pi[r][k][l]                up to a constant; 0 without smoothing and diagonal
//! ```
//! LL alone may fall from step to step; LL + LP cannot. So LL + LP decides when the loop stops and which start wins. The
//! trace shows LL as the objective and the growth of LL + LP as its change.
//!
//! A. P. Dawid, A. M. Skene: Maximum Likelihood Estimation of Observer Error-Rates Using the EM Algorithm. Applied
//! Statistics 28(1), 1979. doi:10.2307/2346806
//!
//! Differs from crowd-kit's `DawidSkene` in the stopping value (LL + LP here), and in that the labels that an annotator
//! never used have the floor too, so that a row without mass is uniform over all labels; from the Matlab code of Zhang
//! et al., which skips zero cells and so treats an impossible answer as a certain one. As in crowd-kit, the floor is one
//! of counts, before the division. With many classes, few annotations and no smoothing it matters: after two steps, a
//! row may consist of nothing but counts near the floor, and another floor gives other posteriors. The matrices start
//! from the votes alone, not from counts of earlier data as crowd-kit's `initial_error` can; and a skill is the plain mean
//! of a matrix's diagonal, whatever the class shares.
//!
//! ```
//! use labelmill::model::{Model, em::{DawidSkene, Em}};
//! use labelmill::testing::tiny;
//!
//! // (instance, annotator, label): two agree on everything; the third gives the opposite, which the model inverts.
//! let row = |i: u32, r: u32| (i, r, if r == 2 { 1 - i % 2 } else { i % 2 });
//! let rows: Vec<_> = (0..12).map(|n| row(n / 3, n % 3)).collect();
//! let a = tiny(2, &rows);
//! let fitted = Em(DawidSkene::default()).fit((&a).into(), &mut labelmill::run::Run::new(0)).unwrap();
//! assert!((fitted.posterior.row(1)[1] - 1.0).abs() < 1e-9);
//! assert!(fitted.report.skill[2] < 1e-9);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kernels::{ColumnModel, Prior};
use super::{EmSteps, Objective, StopRule};
use crate::error::Result;
use crate::frame::Annotations;
use crate::model::Spec;
use crate::model::confusion::{Cells, Confusion, Smoothing};
use crate::model::fitted::Report;
use crate::model::posterior::Posterior;
use crate::run::{Cancel, Run};

/// Dawid-Skene: a confusion matrix for each annotator, by maximum likelihood.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DawidSkene {
    /// Added to every cell of a confusion matrix before its rows are normalised. Raising it pulls annotators with few
    /// annotations towards chance; 0.01 to 0.1 suits sparse data.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// Added to the diagonal cells in addition to `smoothing`. Raising it trusts annotators with few annotations.
    #[schemars(range(min = 0.0))]
    pub diagonal: f64,
    /// Keeps the class shares uniform instead of learning them.
    pub fixed_prior: bool,
    /// How many more times to start, from votes mixed with noise; the best log-likelihood plus log-prior wins. A later
    /// start must be better by more than `stop.tol` for each annotation.
    pub restarts: u32,
    /// When to stop.
    pub stop: StopRule,
}

impl Spec for DawidSkene {
    const KIND: &'static str = "dawid_skene";
    const SUMMARY: &'static str = "a confusion matrix for each annotator, by maximum likelihood";
    const SOURCE: &'static str = "Dawid and Skene 1979, doi:10.2307/2346806";

    fn estimates_prior(&self) -> bool {
        !self.fixed_prior
    }
}

/// Class shares `[class]`, and P(label of the column given class).
pub struct Params {
    prior: Vec<f64>,
    columns: ColumnModel,
    smoothing: Smoothing,
}

impl EmSteps for DawidSkene {
    type Params = Params;

    fn params(&self, a: &Annotations) -> Params {
        let n_classes = a.dims().classes;
        let prior = vec![1.0 / n_classes.max(1) as f64; n_classes];
        let smoothing = Smoothing::new(a, self.smoothing, self.diagonal);
        Params { prior, columns: ColumnModel::new(a), smoothing }
    }

    fn count(&self, a: &Annotations, t: &Posterior, params: &mut Params) {
        params.columns.count(a, t);
    }

    fn m_step(
        &self,
        a: &Annotations,
        t: &Posterior,
        Params { prior, columns, smoothing }: &mut Params,
        _: &Cancel,
    ) -> Result<()> {
        if !self.fixed_prior {
            columns.prior(prior);
        }
        columns.m_step(a, t, smoothing);
        Ok(())
    }

    fn e_step(
        &self,
        a: &Annotations,
        Params { prior, columns, smoothing }: &mut Params,
        t: &mut Posterior,
    ) -> Objective {
        let log_likelihood = columns.e_step_of_counts(a, Prior::Class(prior), smoothing, t);
        Objective::penalised(log_likelihood, columns.prior_terms())
    }

    fn posteriors(&self, a: &Annotations, params: &mut Params, t: &mut Posterior) {
        let Params { prior, columns, smoothing } = params;
        columns.posteriors(a, Prior::Class(prior), smoothing, t);
    }

    fn report(
        &self,
        a: &Annotations,
        t: &Posterior,
        Params { prior, columns, smoothing }: Params,
    ) -> Report {
        let expected_count = columns.into_expected_counts(a, t);
        let confusion = Confusion { cells: Cells::Counted(smoothing), expected_count };
        let skill = confusion.skill(a);
        Report { skill, prior: Some(prior), confusion: Some(confusion), ..Report::default() }
    }

    fn caution(&self, a: &Annotations, run: &Run) -> Option<String> {
        few_annotations(a, self.smoothing, self.diagonal, run)
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }
}

/// Maximum likelihood without pseudo-counts is unreliable below this number of annotations per annotator and class.
const FEW_PER_CLASS: usize = 5;

/// The warning that annotators have few annotations for matrices with these pseudo-counts. There is none with any
/// pseudo-count: without them, a single annotation sets a whole row of the annotator's matrix, and so confirms itself.
pub(crate) fn few_annotations(
    a: &Annotations,
    smoothing: f64,
    diagonal: f64,
    run: &Run,
) -> Option<String> {
    let mut rows: Vec<u32> = (0..a.dims().annotators).map(|r| a.rows_of_annotator(r)).collect();
    if rows.is_empty() || a.dims().classes < 2 || smoothing > 0.0 || diagonal > 0.0 {
        return None;
    }
    let middle = rows.len() / 2;
    let median = *rows.select_nth_unstable(middle).1;
    let enough = FEW_PER_CLASS * a.dims().classes;
    // The same words for a fit of other annotations, such as of those that are not held out: one warning in all.
    ((median as usize) < enough).then(|| {
        format!(
            "half of the annotators have fewer than {enough} annotations, few for a {n} x {n} confusion matrix: set \
             {key} between 0.01 and 0.1, or compare with majority_vote",
            n = a.dims().classes,
            key = run.model_key("smoothing")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model as _;
    use crate::model::em::Em;
    use crate::testing::{assert_close, fit, iterations, tiny, weighted};

    /// The second fit has fewer annotations than the first.
    #[test]
    fn few_annotations_are_cautioned_against_once_for_a_subject() {
        let rows: Vec<_> = (0..9).flat_map(|i| [(i, 0, i % 2), (i, 1, i % 2)]).collect();
        let mut run = Run::new(0);
        for n in [18, 12] {
            let a = tiny(2, &rows[..n]);
            Em(DawidSkene::default()).fit((&a).into(), &mut run).unwrap();
        }
        assert_eq!(run.warnings().len(), 1, "{:?}", run.warnings());
        assert!(run.warnings()[0].contains("fewer than 10 annotations, few for a 2 x 2"));
        let a = tiny(2, &rows);
        for (smoothing, diagonal) in [(0.1, 0.0), (0.0, 0.1)] {
            let spec = DawidSkene { smoothing, diagonal, ..DawidSkene::default() };
            let mut run = Run::new(0);
            Em(spec).fit((&a).into(), &mut run).unwrap();
            assert!(run.warnings().is_empty(), "{smoothing} {diagonal}: {:?}", run.warnings());
        }
    }

    // keys: dawid_skene.smoothing, dawid_skene.diagonal
    #[test]
    fn an_m_step_gives_the_matrices_worked_out_by_hand() {
        // Annotator 0 gives 0 to instance 0 (T = 1, 0) and 1 to instance 1 (T = 0.5, 0.5), annotator 1 gives 0 to the latter.
        // Smoothing 0.1, class 0: counts 1 and 0.5, row sum 1.7: (1.1, 0.6) / 1.7; class 1: counts 0 and 0.5: (0.1, 0.6) /
        // 0.7. With 0.4 more on the diagonal (1.5, 0.6) / 2.1 and (0.1, 1.0) / 1.1.
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
        let plain = [
            (0, 0, [1.1 / 1.7, 0.1 / 0.7]),
            (0, 1, [0.6 / 1.7, 0.6 / 0.7]),
            (1, 1, [0.1 / 0.7, 0.1 / 0.7]),
        ];
        let trusted = [
            (0, 0, [1.5 / 2.1, 0.1 / 1.1]),
            (0, 1, [0.6 / 2.1, 1.0 / 1.1]),
            (1, 1, [0.1 / 1.1, 0.5 / 1.1]),
        ];
        for (diagonal, expected) in [(0.0, plain), (0.4, trusted)] {
            let spec = DawidSkene { smoothing: 0.1, diagonal, ..DawidSkene::default() };
            let (mut params, t) = (spec.params(&a), Posterior::from_votes(&a));
            spec.count(&a, &t, &mut params);
            spec.m_step(&a, &t, &mut params, &Cancel::default()).unwrap();
            let confusion = spec.report(&a, &t, params).confusion.unwrap();
            for (annotator, label, column) in expected {
                for (got, want) in confusion.column(&a, annotator, label).iter().zip(column) {
                    assert!((got - want).abs() < 1e-12, "{annotator} {label}: {got} is not {want}");
                }
            }
        }
    }

    /// One annotator gives class 0, and three give class 1. Each has one label, whose share is 1 in both classes. With these
    /// weights a share that is the product of a count and a rounded reciprocal is 1 - 1e-16 in one of the two.
    #[test]
    fn a_large_weight_does_not_multiply_the_rounding_of_a_share() {
        let instance = |i| [(i, 0, 0), (i, 1, 1), (i, 2, 1), (i, 3, 1)];
        for (diagonal, instances) in [(0.0, 2), (1e-12, 1), (0.0, 1)] {
            for weight in [1.3e9, 2.3e30, 1.4e99] {
                let rows: Vec<_> = (0..instances).flat_map(instance).collect();
                let a = weighted(tiny(3, &rows).dims(), &rows, vec![weight; rows.len()]);
                let stop = iterations(1);
                let fitted = fit(DawidSkene { diagonal, stop, ..DawidSkene::default() }, &a);
                assert_close(
                    &fitted.posterior.row(0),
                    &[0.25, 0.75, 0.0],
                    1e-8,
                    &format!("{weight:e}"),
                );
            }
        }
    }

    /// The matrices are those of the second case above. Compared with its mode, the prior of annotator 0 has the density
    /// ((1.5 / 2.1) / (.5 / .6))^.5 ((.6 / 2.1) / (.1 / .6))^.1 in class 0, and so on. Annotator 1, with a single
    /// annotation, has the count .5 of label 0 in both classes: (1, .1) / 1.1 and (.6, .5) / 1.1.
    #[test]
    fn the_objective_adds_the_log_prior_of_every_matrix() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
        let rows = [
            ([1.5 / 2.1, 0.6 / 2.1], [0.5, 0.1]),
            ([0.1 / 1.1, 1.0 / 1.1], [0.1, 0.5]),
            ([1.0 / 1.1, 0.1 / 1.1], [0.5, 0.1]),
            ([0.6 / 1.1, 0.5 / 1.1], [0.1, 0.5]),
        ];
        let term = |(p, added): (f64, f64)| added * (p / (added / 0.6)).ln();
        let want: f64 =
            rows.iter().flat_map(|(p, added)| p.iter().copied().zip(*added)).map(term).sum();
        let spec = DawidSkene { smoothing: 0.1, diagonal: 0.4, ..DawidSkene::default() };
        let (mut params, mut t) = (spec.params(&a), Posterior::from_votes(&a));
        spec.count(&a, &t, &mut params);
        spec.m_step(&a, &t, &mut params, &Cancel::default()).unwrap();
        let objective = spec.e_step(&a, &mut params, &mut t);
        let got = objective.maximised - objective.traced;
        assert!((got - want).abs() < 1e-12 && want < -0.1, "{got} is not {want}");
    }

    /// T of the votes is (.75, .25) and (1, 0). Annotator 3 answers 1 about instance 0 and 0 about instance 1: the count of
    /// its label 0 in class 1 is the floor, 1e-10, in a row with the sum .25. The class shares are .875 and .125.
    #[test]
    fn the_floor_is_one_of_counts_and_not_of_probabilities() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (1, 3, 0)]);
        let stop = iterations(1);
        let fitted = fit(DawidSkene { stop, ..DawidSkene::default() }, &a);
        let (class_0, class_1) = (0.875 * 1.0 / 1.75, 0.125 * 1e-10 / 0.25);
        let (got, want) = (fitted.posterior.row(1)[1], class_1 / (class_0 + class_1));
        assert!((got / want - 1.0).abs() < 1e-6, "{got}, expected {want}");
    }

    #[test]
    fn a_single_annotators_labels_are_the_result() {
        let fitted = fit(DawidSkene::default(), &tiny(2, &[(0, 0, 0), (1, 0, 1)]));
        assert!(fitted.posterior.row(0)[0] > 0.999 && fitted.posterior.row(1)[1] > 0.999);
    }

    #[test]
    fn a_class_nobody_met_has_a_uniform_row() {
        let a = tiny(3, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)]);
        let (spec, t) = (DawidSkene::default(), Posterior::from_votes(&a));
        let mut params = spec.params(&a);
        spec.count(&a, &t, &mut params);
        spec.m_step(&a, &t, &mut params, &Cancel::default()).unwrap();
        let confusion = spec.report(&a, &t, params).confusion.unwrap();
        for label in 0..3 {
            assert!((confusion.column(&a, 0, label)[2] - 1.0 / 3.0).abs() < 1e-9);
        }
    }
}
