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

impl Smoothing {
    /// Whether the smoothed shares are the mode of a prior that is not flat. Pseudo-counts below the floor of counts are
    /// ignored.
    #[inline(always)]
    pub(super) fn has_pseudo_counts(self) -> bool {
        self.everywhere >= MIN_PROBABILITY || self.diagonal >= MIN_PROBABILITY
    }

    /// The terms of the counts of a column.
    #[inline(always)]
    pub(super) fn log_prior_of_column(self, counts: &[f64], label: u32) -> f64 {
        if self.everywhere < MIN_PROBABILITY {
            let count = counts.get(label as usize).copied().unwrap_or_default();
            return log_prior_term(count, self.added(true));
        }
        let (off_diagonal, diagonal) = (self.added(false), self.added(true));
        sum_of_terms(
            counts,
            #[inline(always)]
            move |k, count| {
                let is_diagonal = k == label as usize;
                log_prior_term(count, if is_diagonal { diagonal } else { off_diagonal })
            },
        )
    }

    /// The terms of the sums of the rows, which are subtracted.
    #[inline(always)]
    pub(super) fn log_prior_of_sums(self, sums: &[f64]) -> f64 {
        let added_to_row = self.added_to_row();
        sum_of_terms(
            sums,
            #[inline(always)]
            move |_, sum| log_prior_term(sum, added_to_row),
        )
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
