//! Dawid-Skene by classification EM: each step assigns every instance to its most probable class, and so needs few steps.
//!
//! ```text
//! z[i] ~ Categorical(q);  y | z[i] = k, r ~ Categorical(pi[r][k])
//! J[i][k] = ln q[k] + sum over the annotations (r, y) of i of ln pi[r][k][y]
//! CLL     = sum_i max_k J[i][k]
//! ```
//! 1. T = one-hot at the winner of the vote; winners that tie share the instance equally (trusted rows one-hot).
//! 2. M: q = the mean of T over annotated instances; `pi[r][k][l] = n[r][k][l] + smoothing + diagonal [k = l]`, floored as
//!    for `dawid_skene`, over the sum of its row, where n are the counts of T.
//! 3. E: J. C: T = one-hot at the largest J\[i\], classes that tie share the instance.
//! 4. Repeat until CLL plus the log-prior of the pseudo-counts stays, which with `stop.tol` near 0 is when no label changes.
//!
//! With `start = "dawid_skene"`, the hybrid, step 1 takes the shares of the votes and steps have T = softmax of J, as long as
//! q changes by more than `soft_until`; from then on they assign. The objective of the trace is LL, then CLL, which is
//! smaller: the row of the first assignment has no change.
//!
//! The posterior is the softmax of J before the last assignment. A one-hot row would claim to be certain of every label,
//! and say nothing of the second best class. As of every hard assignment, its certainty is overstated.
//!
//! V. B. Sinha, S. Rao, V. N. Balasubramanian: Fast Dawid-Skene: A Fast Vote Aggregation Scheme for Sentiment
//! Classification. KDD workshop WISDOM 2018. arXiv:1803.02781
//!
//! Differs from the authors' code in ties, which it breaks by chance (with the lowest class instead, this model has their
//! accuracies); in the floor, without which all classes of an instance may be impossible; and in that the loop goes on
//! until the labels stay, where the code stops at a change of q below 1e-4. Not meant for few annotations of each annotator:
//! an assignment confirms itself even more than a posterior does.
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, FastDawidSkene}};
//! use labelmill::testing::tiny;
//!
//! // (instance, annotator, label): two agree on everything; the third gives the opposite, which the model inverts.
//! let row = |i: u32, r: u32| (i, r, if r == 2 { 1 - i % 2 } else { i % 2 });
//! let rows: Vec<_> = (0..12).map(|n| row(n / 3, n % 3)).collect();
//! let fitted = PairEm(FastDawidSkene::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.posterior.row(1)[1] > 0.9 && fitted.report.skill[2] < 0.5);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::confusion::{Cells, Confusion, Smoothing};
use crate::model::em::{ClassPrior, PairFit, PairModel, StopRule, few_annotations};
use crate::model::fitted::Report;
use crate::model::{Capabilities, Spec};

/// Fast Dawid-Skene: classification EM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FastDawidSkene {
    /// What the first steps do.
    pub start: FastStart,
    /// With `start = "dawid_skene"`: instances are assigned once the class shares change by no more than this in an
    /// iteration, summed over the classes. Raising it assigns them sooner.
    #[schemars(range(min = 0.0))]
    pub soft_until: f64,
    /// Added to every cell of a confusion matrix before its rows are normalised. Raising it pulls annotators with few
    /// annotations towards chance; 0.01 to 0.1 suits sparse data.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// Added to the diagonal cells in addition to `smoothing`. Raising it trusts annotators with few annotations.
    #[schemars(range(min = 0.0))]
    pub diagonal: f64,
    /// When to stop.
    pub stop: StopRule,
}

/// What the first steps of fast Dawid-Skene do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FastStart {
    /// Assign each instance to the winner of its vote.
    #[default]
    Votes,
    /// The steps of `dawid_skene` with `prior = "none"`, from the shares of the votes: the hybrid.
    DawidSkene,
}

impl Default for FastDawidSkene {
    fn default() -> Self {
        // Labels that stay leave the objective as it is.
        let stop = StopRule { tol: 1e-9, ..StopRule::default() };
        Self { start: FastStart::Votes, soft_until: 0.005, smoothing: 0.0, diagonal: 0.0, stop }
    }
}

impl Spec for FastDawidSkene {
    const KIND: &'static str = "fast_dawid_skene";
    const SUMMARY: &'static str =
        "Dawid-Skene with every instance assigned to one class in each step; few steps";
    const SOURCE: &'static str = "Sinha, Rao and Balasubramanian 2018, arXiv:1803.02781";
    const CAPABILITIES: Capabilities = Capabilities::EM;

    fn estimates_prior(&self) -> bool {
        true
    }
}

impl PairModel for FastDawidSkene {
    type Rows = Smoothing;

    fn estimator(&self, a: &Annotations) -> Smoothing {
        Smoothing::new(a, self.smoothing, self.diagonal)
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        ClassPrior::Shares
    }

    fn assigns_below(&self) -> Option<f64> {
        Some(match self.start {
            FastStart::Votes => f64::INFINITY,
            FastStart::DawidSkene => self.soft_until,
        })
    }

    fn report(&self, a: &Annotations, fit: PairFit<Smoothing>) -> Report {
        let PairFit { prior, estimator, expected_count, .. } = fit;
        let confusion = Confusion { cells: Cells::Counted(estimator), expected_count };
        let skill = confusion.skill(a);
        Report { skill, prior: Some(prior), confusion: Some(confusion), ..Report::default() }
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        few_annotations(a, self.smoothing, self.diagonal, job)
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::em::DawidSkene;
    use crate::testing::{assert_close, erring_half, fit, iterations, objectives, tiny};

    /// Instance 0 goes to class 0, instance 1 to class 1, instance 2 is shared by both. q = (1/2, 1/2). Annotator 0 gave
    /// 0, 1, 0: n = [1.5, .5] for label 0, [0, 1] for label 1, so that pi[0] = [1, 0], [1/3, 2/3]. Annotator 1 gave 0 and 1:
    /// pi[1] = [2/3, 1/3], [0, 1] from n = [1, 0], [.5, .5]. Annotator 2 gave 1 once: pi[2] = [., 1], [., 1] by the
    /// floor.
    #[test]
    fn an_iteration_is_the_one_worked_out_by_hand() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 2, 1), (2, 0, 0), (2, 1, 1)]);
        let fitted = fit(FastDawidSkene { stop: iterations(1), ..FastDawidSkene::default() }, &a);
        // J: ln(1/2 1 2/3), ln(1/2 2/3 1), and of instance 2 ln(1/2 1 1/3) for both classes.
        let want = (1.0_f64 / 3.0).ln() * 2.0 + (1.0_f64 / 6.0).ln();
        assert_close(&objectives(&fitted), &[want], 1e-8, "CLL");
        assert_close(&fitted.posterior.row(2), &[0.5, 0.5], 1e-9, "T2");
        assert_close(&fitted.report.prior.unwrap(), &[0.5, 0.5], 1e-9, "q");
        let column = fitted.report.confusion.unwrap().column(&a, 0, 0);
        assert_close(&column, &[1.0, 1.0 / 3.0], 1e-9, "pi[0][.][0]");
    }

    /// The matrices count assignments; the posterior says how sure they are.
    #[test]
    fn the_posterior_is_not_one_hot_where_the_assignment_is() {
        let rows: Vec<_> =
            (0..40).map(|n| (n / 4, n % 4, (n / 4 + u32::from(n % 7 == 3)) % 2)).collect();
        let a = tiny(2, &rows);
        let fitted = fit(FastDawidSkene { smoothing: 0.5, ..FastDawidSkene::default() }, &a);
        assert!(fitted.stop.converged);
        let confusion = fitted.report.confusion.unwrap();
        assert!(confusion.expected_count.iter().all(|count| count.fract() == 0.0));
        let largest = (0..10).map(|i| fitted.posterior.row(i)[0].max(fitted.posterior.row(i)[1]));
        assert!(largest.fold(1.0, f64::min) < 0.999);
    }

    // keys: fast_dawid_skene.start, fast_dawid_skene.soft_until
    #[test]
    fn the_hybrid_assigns_once_the_shares_change_little() {
        let a = erring_half();
        let of = |soft_until| {
            let start = FastStart::DawidSkene;
            fit(FastDawidSkene { start, soft_until, ..FastDawidSkene::default() }, &a)
        };
        // The second M-step has a change; the third step is the first that can assign.
        for (soft_until, first) in [(1.0, 3), (1e-3, 4)] {
            let fitted = of(soft_until);
            let without: Vec<u32> =
                fitted.trace.iter().filter(|r| r.change.is_none()).map(|r| r.step).collect();
            assert_eq!(without[0], 1);
            assert!(without.len() == 2 && without[1] >= first, "{soft_until}: {without:?}");
            assert!(fitted.trace.iter().all(|row| row.change.is_none_or(|c| c > -1e-9)));
            let confusion = fitted.report.confusion.unwrap();
            assert!(confusion.expected_count.iter().all(|count| count.fract() == 0.0));
        }
        // With posteriors to the end, the steps are those of Dawid-Skene.
        let stop = iterations(4);
        let dawid_skene = DawidSkene { stop: stop.clone(), ..DawidSkene::maximum_likelihood() };
        let start = FastStart::DawidSkene;
        let soft = FastDawidSkene { start, soft_until: 0.0, stop, ..FastDawidSkene::default() };
        assert_eq!(objectives(&fit(soft, &a)), objectives(&fit(dawid_skene, &a)));
    }

    // keys: fast_dawid_skene.smoothing, fast_dawid_skene.diagonal
    #[test]
    fn pseudo_counts_are_added_to_the_counts_of_assignments() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)]);
        let spec = FastDawidSkene { smoothing: 0.5, diagonal: 1.0, ..FastDawidSkene::default() };
        let confusion = fit(spec, &a).report.confusion.unwrap();
        assert_close(&confusion.column(&a, 0, 0), &[2.5 / 3.0, 0.5 / 3.0], 1e-12, "pi[0][.][0]");
    }
}
