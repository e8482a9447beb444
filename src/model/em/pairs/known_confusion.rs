//! The annotators' confusion matrices are known, and a table gives them: labels follow from the annotations.
//!
//! ```text
//! z[i] ~ Categorical(q);  y | z[i] = k, r ~ Categorical(pi[r][k])     pi is given, q is given or estimated
//! T[i][k] ~ q[k] * product over the annotations (r, y) of i of pi[r][k][y]
//! ```
//! 1. q = `class_prior`, and one E-step gives T. Without it, q = the shares of the votes;
//! 2. E: T; 3. M: `q[k]` = the mean of T over annotated instances; 4. repeat until the log-likelihood, which has one
//!    maximum in q, converges.
//!
//! The matrices are those of `source.confusion`. An annotator without one has the mean of the given ones, with a warning
//! that says how many have none. A skill is the mean diagonal of the matrix. No cell is taken for impossible: zeros are
//! raised to the least likelihood of all models of pairs.
//!
//! R. Tanno, A. Saeedi, S. Sankaranarayanan, D. C. Alexander, N. Silberman: Learning From Noisy Labels By Regularized
//! Estimation Of Annotator Confusion. CVPR 2019: the experiments with true confusion matrices.
//! doi:10.1109/CVPR.2019.01150
//!
//! Differs from the paper in that there is no classifier: only the labels of annotated instances follow. The matrices are
//! never estimated, so that they must be those of the same annotators at the same task.
//!
//! ```
//! use std::sync::Arc;
//! use labelmill::frame::GivenConfusion;
//! use labelmill::model::{Model, em::{PairEm, KnownConfusion}};
//! use labelmill::testing::tiny;
//!
//! // Annotator 0 is right in nine of ten cases, and annotator 1 in six; they contradict each other.
//! let mut a = tiny(2, &[(0, 0, 0), (0, 1, 1)]);
//! let cells = vec![0.9, 0.1, 0.1, 0.9, 0.6, 0.4, 0.4, 0.6];
//! a.given.confusion = Some(Arc::new(GivenConfusion::new((2, 2), vec![0, 1], cells)));
//! let model = KnownConfusion { class_prior: Some(vec![0.5, 0.5]), ..KnownConfusion::default() };
//! let fitted = PairEm(model).fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! // 0.9 * 0.4 to 0.1 * 0.6
//! assert!((fitted.posterior.row(0)[0] - 0.36 / 0.42).abs() < 1e-12);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::confusion::{Cells, Confusion};
use crate::model::em::kernels::GivenRows;
use crate::model::em::{ClassPrior, PairFit, PairModel, StopRule};
use crate::model::fitted::Report;
use crate::model::settings::given_prior::{check_number, check_shares, shares_or_uniform};
use crate::model::{Capabilities, FeatureUse, Spec};
use crate::spec::Problems;

/// Known confusion matrices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KnownConfusion {
    /// P(class), one share for each class in the order of the classes. Without it, the shares are estimated.
    pub class_prior: Option<Vec<f64>>,
    /// When to stop.
    pub stop: StopRule,
}

impl Spec for KnownConfusion {
    const KIND: &'static str = "known_confusion";
    const SUMMARY: &'static str = "confusion matrices that a table gives, and class shares";
    const SOURCE: &'static str = "Tanno et al. 2019, doi:10.1109/CVPR.2019.01150";
    const CAPABILITIES: Capabilities = Capabilities {
        confusion: FeatureUse::Needed,
        annotator_prior: true,
        ..Capabilities::LABELS
    };

    fn estimates_prior(&self) -> bool {
        true
    }

    fn check(&self, location: &str, problems: &mut Problems) {
        check_shares(self.class_prior.as_ref(), location, problems);
    }
}

impl PairModel for KnownConfusion {
    type Rows = GivenRows;

    fn estimator(&self, a: &Annotations) -> GivenRows {
        GivenRows::new(a)
    }

    fn class_prior(&self, a: &Annotations) -> ClassPrior {
        let Some(shares) = &self.class_prior else { return ClassPrior::Shares };
        ClassPrior::Given(shares_or_uniform(Some(shares), a.dims().classes))
    }

    fn report(&self, a: &Annotations, fit: PairFit<GivenRows>) -> Report {
        let PairFit { prior, estimator, expected_count, .. } = fit;
        let confusion = estimator.0.map(|given| {
            let (cluster, cells) = (given.matrix_of_annotator().to_vec(), given.cells().to_vec());
            Confusion { cells: Cells::Clustered { cluster, cells }, expected_count }
        });
        let skill = confusion.as_ref().map(|confusion| confusion.skill(a)).unwrap_or_default();
        Report { skill, prior: Some(prior), confusion, ..Report::default() }
    }

    fn check_data(&self, a: &Annotations, job: &JobContext) -> Result<()> {
        check_number(self.class_prior.as_ref(), a, job)?;
        if a.given.confusion.is_some() {
            return Ok(());
        }
        Err(Error::data("there are no confusion matrices")
            .at("source.confusion")
            .help("give the table of this question, or choose a model that estimates matrices, such as dawid_skene"))
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::frame::{Dims, GivenConfusion};
    use crate::model::Model as _;
    use crate::model::em::{DawidSkene, PairEm};
    use crate::testing::{assert_close, fit, iterations, tiny, weighted};

    /// Two annotators with matrices of their own, and a third with that of the first; three labels, of which the last is no
    /// class.
    fn crowd() -> Annotations {
        let dims = Dims { instances: 3, annotators: 3, classes: 2, labels: 3 };
        let rows = [(0, 0, 0), (0, 1, 1), (1, 1, 2), (1, 2, 1), (2, 0, 1), (2, 2, 1)];
        let mut a = weighted(dims, &rows, vec![1.0, 2.0, 1.0, 1.0, 1.0, 0.5]);
        let one = [0.8, 0.1, 0.1, 0.3, 0.6, 0.1];
        let other = [0.5, 0.2, 0.3, 0.25, 0.7, 0.05];
        let cells = [one, other].concat();
        a.given.confusion = Some(Arc::new(GivenConfusion::new((2, 3), vec![0, 1, 0], cells)));
        a
    }

    /// Instance 0: 0.4 * 0.8 * 0.2^2 to 0.6 * 0.3 * 0.7^2. Instance 1: 0.4 * 0.3 * 0.1 to 0.6 * 0.05 * 0.6. Instance 2:
    /// 0.4 * 0.1 * sqrt(0.1) to 0.6 * 0.6 * sqrt(0.6).
    // keys: known_confusion.class_prior
    #[test]
    fn posteriors_are_those_worked_out_by_hand() {
        let spec =
            KnownConfusion { class_prior: Some(vec![0.4, 0.6]), ..KnownConfusion::default() };
        let fitted = fit(spec, &crowd());
        let odds = [
            (0.4 * 0.8 * 0.04, 0.6 * 0.3 * 0.49),
            (0.4 * 0.3 * 0.1, 0.6 * 0.05 * 0.6),
            (0.4 * 0.1 * 0.1_f64.sqrt(), 0.6 * 0.6 * 0.6_f64.sqrt()),
        ];
        for (i, (first, second)) in odds.into_iter().enumerate() {
            let want = first / (first + second);
            assert_close(&fitted.posterior.row(i), &[want, 1.0 - want], 1e-12, "posterior");
        }
        assert_close(&fitted.report.skill, &[0.7, 0.6, 0.7], 1e-12, "skill");
        assert_close(&fitted.report.prior.unwrap(), &[0.4, 0.6], 1e-12, "prior");
        let log_likelihood: f64 = odds.iter().map(|(p, q)| (p + q).ln()).sum();
        assert_close(&[fitted.stop.objective.unwrap()], &[log_likelihood], 1e-12, "objective");
    }

    /// The log-likelihood is concave in the shares: at its maximum no other share is better.
    #[test]
    fn estimated_shares_are_those_of_the_largest_likelihood() {
        let rows: Vec<_> = (0..20).map(|i| (i, 0, u32::from(i > 11) + u32::from(i > 18))).collect();
        let mut a = tiny(2, &rows);
        let cells = vec![0.8, 0.1, 0.1, 0.3, 0.6, 0.1];
        a.given.confusion = Some(Arc::new(GivenConfusion::new((2, 3), vec![0], cells)));
        let stop = StopRule { tol: 1e-14, max_iter: 2000, ..StopRule::default() };
        let best = fit(KnownConfusion { class_prior: None, stop }, &a);
        let share = best.report.prior.unwrap()[0];
        assert!(share > 0.01 && share < 0.99, "{share}");
        let objective = |share: f64| {
            let class_prior = Some(vec![share, 1.0 - share]);
            let spec = KnownConfusion { class_prior, ..KnownConfusion::default() };
            fit(spec, &a).stop.objective.unwrap()
        };
        let at = best.stop.objective.unwrap();
        assert!((objective(share) - at).abs() < 1e-9);
        assert!(objective(share + 0.02) < at && objective(share - 0.02) < at);
    }

    #[test]
    fn a_table_that_is_not_there_and_shares_of_other_classes_are_refused() {
        let fit = |spec: KnownConfusion, a: &Annotations| {
            PairEm(spec).fit(a.into(), &mut JobContext::new(0)).unwrap_err().to_string()
        };
        let error = fit(KnownConfusion::default(), &tiny(2, &[(0, 0, 1)]));
        assert!(error.contains("where: source.confusion"), "{error}");
        let spec = KnownConfusion { class_prior: Some(vec![1.0]), ..KnownConfusion::default() };
        let error = fit(spec, &crowd());
        assert!(error.contains("1 shares, 2 classes"), "{error}");
    }

    /// Two of three annotators always give the other class, which the votes follow and the given matrices do not.
    #[test]
    fn other_models_of_pairs_start_at_the_given_matrices() {
        let row = |i: u32, r: u32| (i, r, if r == 0 { i % 2 } else { 1 - i % 2 });
        let rows: Vec<_> = (0..36).map(|n| row(n / 3, n % 3)).collect();
        let mut a = tiny(2, &rows);
        let spec = DawidSkene { stop: iterations(5), ..DawidSkene::maximum_likelihood() };
        let votes = fit(spec.clone(), &a);
        assert!(votes.posterior.row(0)[1] > 0.99, "{:?}", votes.posterior.row(0));
        let cells = vec![0.7, 0.3, 0.3, 0.7, 0.2, 0.8, 0.8, 0.2];
        a.given.confusion = Some(Arc::new(GivenConfusion::new((2, 2), vec![0, 1, 1], cells)));
        let given = fit(spec, &a);
        assert!(given.posterior.row(0)[0] > 0.99, "{:?}", given.posterior.row(0));
        assert!(given.report.skill[0] > 0.99 && given.report.skill[1] < 0.01);
    }
}
