//! The log-prior of a confusion matrix whose shares are smoothed by pseudo-counts.
//!
//! The prior of a row is the Dirichlet density with parameters a\[l\] + 1, for the pseudo-counts a. From the shares
//! p\[l\] = (n\[l\] + a\[l\]) / (N + A), with the sums N and A,
//!
//! ```text
//! sum_l a[l] ln(p[l] A / a[l]) = sum_l a[l] ln(1 + n[l] / a[l]) - A ln(1 + N / A)
//! ```
//! which is the log-density minus that of its mode, p\[l\] = a\[l\] / A. There is no difference of large numbers, and a
//! label without counts has no term.

use super::logarithms::{larger, ln_1p_ratio};
use super::row_arithmetic::sum_of_terms;
use crate::model::confusion::Smoothing;
use crate::model::numerics::MIN_PROBABILITY;

/// `added` ln(1 + `count` / `added`), or 0 if the pseudo-count `added` is ignored.
#[inline(always)]
pub(super) fn log_prior_term(count: f64, added: f64) -> f64 {
    let factor = if added >= MIN_PROBABILITY { added } else { 0.0 };
    factor * ln_1p_ratio(count, larger(MIN_PROBABILITY, added))
}

/// The sum of [`log_prior_term`] of all counts.
#[inline(always)]
pub(super) fn sum_of_log_prior_terms(counts: &[f64], added: f64) -> f64 {
    if added < MIN_PROBABILITY {
        return 0.0;
    }
    sum_of_terms(
        counts,
        #[inline(always)]
        |count| log_prior_term(count, added),
    )
}

impl Smoothing {
    /// Whether the smoothed shares are the mode of a prior that is not flat. Pseudo-counts below the floor of counts are
    /// ignored.
    #[inline(always)]
    pub(super) fn has_pseudo_counts(self) -> bool {
        self.everywhere >= MIN_PROBABILITY || self.diagonal >= MIN_PROBABILITY
    }

    /// The pseudo-count of a cell of the diagonal, or of another cell.
    #[inline(always)]
    pub(super) fn added(self, is_diagonal: bool) -> f64 {
        self.everywhere + if is_diagonal { self.diagonal } else { 0.0 }
    }

    /// The sum of the pseudo-counts of a row.
    #[inline(always)]
    pub(super) fn added_to_row(self) -> f64 {
        self.n_labels as f64 * self.everywhere + self.diagonal
    }
}
