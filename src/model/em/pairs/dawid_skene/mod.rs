//! Each annotator has a confusion matrix; labels, matrices and class shares are found together by maximum likelihood.
//!
//! ```text
//! z[i] ~ Categorical(q)                    the true class of instance i
//! y | z[i] = k, r ~ Categorical(pi[r][k])  what annotator r chooses
//! LL = sum_i logsumexp_k ( ln q[k] + sum over the annotations (r, y) of i of ln pi[r][k][y] )
//! ```
//! 1. T = the shares of the votes (trusted rows one-hot).
//! 2. M: q = the mean of T over annotated instances, or uniform where these have fewer than 1.5 annotations on average
//!    (smoothed shares would draw a class that nobody names towards the others); pi is drawn to the crowd's mean row
//!    (`crowd_rows.rs`). With `prior = "none"`, the model of 1979: q = the mean of T, floored and renormalised;
//!    pi[r][k][l] = n[r][k][l] + smoothing + diagonal [k = l], floored, over the sum of its row, where n are the expected
//!    counts. The floor is [`MIN_PROBABILITY`](crate::model::numerics::MIN_PROBABILITY); a row without any mass becomes
//!    uniform.
//! 3. E: T = softmax of the terms of LL.
//! 4. Repeat until LL + LP converges; return T of the last E-step, and q, pi of the M-step that follows it.
//!
//! LP is the log-prior: with it, step 2 is a maximum a posteriori (MAP) step. Each row of pi has a Dirichlet prior with the
//! parameters a[l] + 1, where a[l] = strength m[k][l] + smoothing + diagonal [k = l], m is the crowd's mean row, and
//!
//! ```text
//! LP = sum over r, k, l of a[l] ln pi[r][k][l]                up to a constant; 0 without any prior
//! ```
//! LL alone may fall from step to step; LL + LP cannot, except that the crowd's row moves between steps. So LL + LP decides
//! when the loop stops and which start wins. The trace shows LL as the objective and the growth of LL + LP as its change.
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
//! use labelmill::model::{Model, em::{DawidSkene, PairEm}};
//! use labelmill::testing::tiny;
//!
//! // (instance, annotator, label): two agree on everything; the third gives the opposite, which the model inverts.
//! let row = |i: u32, r: u32| (i, r, if r == 2 { 1 - i % 2 } else { i % 2 });
//! let rows: Vec<_> = (0..12).map(|n| row(n / 3, n % 3)).collect();
//! let a = tiny(2, &rows);
//! let fitted = PairEm(DawidSkene::default()).fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.posterior.row(1)[1] > 0.9);
//! assert!(fitted.report.skill[2] < 0.5);
//! ```

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::crowd_rows::RowEstimator;
use crate::frame::{Annotations, ITEMS_PER_BLOCK};
use crate::job_context::{JobContext, WarningCode};
use crate::model::confusion::{Confusion, Smoothing};
use crate::model::em::{ClassPrior, PairFit, PairModel, StopRule};
use crate::model::fitted::Report;
use crate::model::{Capabilities, Spec};

/// Dawid-Skene: a confusion matrix for each annotator, drawn to that of the crowd.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DawidSkene {
    /// What an annotator's rows are drawn to.
    pub prior: MatrixPrior,
    /// With how many annotations a row is drawn to the crowd's. Raising it makes annotators with few annotations alike.
    #[schemars(range(min = 0.01))]
    pub strength: f64,
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

/// What the rows of confusion matrices are drawn to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatrixPrior {
    /// The mean row of all annotators, with the weight of `strength` annotations.
    #[default]
    Crowd,
    /// Nothing: maximum likelihood, as in 1979.
    None,
}

impl Default for DawidSkene {
    fn default() -> Self {
        Self { prior: MatrixPrior::Crowd, ..Self::maximum_likelihood() }
    }
}

impl DawidSkene {
    /// The model of 1979: without any prior.
    #[must_use]
    pub fn maximum_likelihood() -> Self {
        Self {
            prior: MatrixPrior::None,
            strength: 2.0,
            smoothing: 0.0,
            diagonal: 0.0,
            fixed_prior: false,
            restarts: 0,
            stop: StopRule::default(),
        }
    }
}

impl Spec for DawidSkene {
    const KIND: &'static str = "dawid_skene";
    const SUMMARY: &'static str =
        "a confusion matrix for each annotator, drawn to that of the crowd";
    const SOURCE: &'static str = "Dawid and Skene 1979, doi:10.2307/2346806";
    const CAPABILITIES: Capabilities = Capabilities { annotator_prior: true, ..Capabilities::EM };

    fn estimates_prior(&self) -> bool {
        !self.fixed_prior
    }
}

impl PairModel for DawidSkene {
    type Rows = RowEstimator;

    fn estimator(&self, a: &Annotations) -> RowEstimator {
        let strength = match self.prior {
            MatrixPrior::Crowd => self.strength,
            MatrixPrior::None => 0.0,
        };
        RowEstimator::new(Smoothing::new(a, self.smoothing, self.diagonal), strength)
    }

    fn class_prior(&self, a: &Annotations) -> ClassPrior {
        let can_tell_shares = self.prior == MatrixPrior::None || is_redundant(a);
        if self.fixed_prior || !can_tell_shares { ClassPrior::Uniform } else { ClassPrior::Shares }
    }

    fn report(&self, a: &Annotations, fit: PairFit<RowEstimator>) -> Report {
        let PairFit { prior, estimator, expected_count, .. } = fit;
        let confusion = Confusion { cells: estimator.into_cells(), expected_count };
        let skill = confusion.skill(a);
        Report { skill, prior: Some(prior), confusion: Some(confusion), ..Report::default() }
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        match self.prior {
            MatrixPrior::Crowd => None,
            MatrixPrior::None => few_annotations(a, self.smoothing, self.diagonal, job),
        }
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }
}

/// Whether one and a half annotators or more have labelled an instance, on average. A soft annotation is one opinion, however
/// many labels it has.
///
/// # Why
/// Where they have one, a class that annotators confuse with another and a class that is rare look alike: learned shares
/// take a class from its annotations in each step, until a crowd of 100 classes and one annotation an instance has 2 % of
/// its labels right, where the vote has 60 %. Uniform shares keep the vote.
pub(in crate::model::em) fn is_redundant(a: &Annotations) -> bool {
    let opinions = |i: usize| {
        // The pairs of an annotator are adjacent.
        let pairs = a.pairs_of_instance(i);
        pairs.chunk_by(|one, next| a.annotator_of_pair(*one) == a.annotator_of_pair(*next)).count()
    };
    let (opinions, annotated) = (0..a.dims().instances)
        .into_par_iter()
        .with_min_len(ITEMS_PER_BLOCK)
        .map(|i| (opinions(i), usize::from(!a.pairs_of_instance(i).is_empty())))
        .reduce(|| (0, 0), |one, other| (one.0 + other.0, one.1 + other.1));
    2 * opinions >= 3 * annotated
}

/// Maximum likelihood without pseudo-counts is unreliable below this number of annotations per annotator and class.
const FEW_PER_CLASS: usize = 5;

/// The warning that annotators have few annotations for matrices with these pseudo-counts. There is none where a
/// pseudo-count outweighs an annotation: below that, a single annotation nearly sets a whole row of the annotator's matrix,
/// and so confirms itself.
pub(crate) fn few_annotations(
    a: &Annotations,
    smoothing: f64,
    diagonal: f64,
    job: &JobContext,
) -> Option<String> {
    let mut rows: Vec<u32> = (0..a.dims().annotators).map(|r| a.rows_of_annotator(r)).collect();
    if rows.is_empty() || a.dims().classes < 2 || smoothing + diagonal >= 1.0 {
        return None;
    }
    let middle = rows.len() / 2;
    let median = *rows.select_nth_unstable(middle).1;
    let enough = FEW_PER_CLASS * a.dims().classes;
    // The same words for a fit of other annotations, such as of those that are not held out: one warning in all.
    ((median as usize) < enough).then(|| {
        format!(
            "half of the annotators have fewer than {enough} annotations, few for a {n} x {n} confusion matrix: \
             use dawid_skene with its default prior, which draws their rows to the crowd's, or ibcc or one_coin, or \
             compare with majority_vote; {smoothing} below 1 does not help [{code}]",
            n = a.dims().classes,
            smoothing = job.model_key("smoothing"),
            code = WarningCode::FewAnnotations.name()
        )
    })
}

#[cfg(test)]
mod tests;
