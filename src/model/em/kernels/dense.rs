//! Confusion columns with a cell for every class. If the M-step gathers counts, singleton annotators have no stored
//! column: `singletons` recomputes it.
//!
//! If every annotation has a weight, cells hold logarithms: a weighted factor is a power, and a weighted sum of
//! logarithms costs one multiplication per cell.

use std::iter::empty;

use super::estimate::{SingletonEstimator, SingletonRows};
use super::logarithms::floor_likelihoods;
use super::padded_matrix::{self, PaddedMatrix, stride};
use super::row_arithmetic::fold_rows;
use crate::frame::InstanceRange;

/// The stored columns.
pub struct DenseColumns {
    /// P(label of the column given class), or its logarithm. Columns beyond its end are those of singleton annotators,
    /// which the E-step recomputes.
    pub cells: PaddedMatrix,
    /// Whether cells hold logarithms.
    pub are_logs: bool,
}

impl DenseColumns {
    /// Whether the columns of all annotations of the question are stored.
    pub(super) fn stores_all(&self, range: &InstanceRange<'_>) -> bool {
        range.labels.len() <= self.cells.n_columns()
    }

    /// Whether all these columns are stored.
    #[inline(always)]
    pub(super) fn all_stored(&self, columns: &[u32]) -> bool {
        // Without an early exit, so that several are compared at once.
        columns.iter().fold(0, |last, column| last.max(*column)) < self.cells.n_columns() as u32
            || columns.is_empty()
    }

    /// Writes the factors of a column, or their logarithms, into `factors`, as long as a row of a [`PaddedMatrix`]. If
    /// the column is not stored, it computes them from `previous`, the posterior of the column's one instance in the
    /// last M-step, and from the annotation's weight, and returns the column's term of the objective; otherwise it
    /// returns 0.
    pub(super) fn write(
        &self,
        (column, weight): (u32, f64),
        range: &InstanceRange<'_>,
        estimator: &dyn SingletonEstimator,
        previous: &[f64],
        factors: &mut [f64],
    ) -> f64 {
        let start = column as usize * factors.len();
        if let Some(cells) = self.cells.cells().get(start..start + factors.len()) {
            factors.copy_from_slice(cells);
            return 0.0;
        }
        factors.iter_mut().zip(previous).for_each(|(count, p)| *count = weight * p);
        let (annotator, label) = (range.annotators[column as usize], range.labels[column as usize]);
        let row = SingletonRows { annotators: &[annotator], labels: &[label], repeats: &[1] };
        if self.are_logs {
            return estimator.estimate_row_logs(row, previous.len(), factors);
        }
        let term = estimator.estimate_rows(row, previous.len(), factors);
        floor_likelihoods(factors);
        term
    }
}

/// `row` = `prior` times the factors of every column; all columns are stored.
#[inline(always)]
pub(super) fn multiply<const K: usize>(
    row: &mut [f64],
    prior: &[f64],
    cells: &[f64],
    columns: &[u32],
) {
    if K > 0
        && let (Ok(row), Ok(prior)) =
            (<&mut [f64; K]>::try_from(&mut *row), <&[f64; K]>::try_from(prior))
    {
        let mut product = *prior;
        for column in columns {
            let factors = padded_matrix::row::<K>(cells, *column);
            (0..K).for_each(|k| product[k] *= factors[k]);
        }
        *row = product;
        return;
    }
    multiply_rows(row, prior, stored_rows(cells, columns, prior.len()), empty());
}

/// `row` = `prior`, in the log domain, plus the weighted log-factors of every column; all columns are stored.
#[inline(always)]
pub(super) fn add_logs<const K: usize>(
    row: &mut [f64],
    prior: &[f64],
    cells: &[f64],
    columns: &[u32],
    weights: &[f64],
) {
    if K > 0
        && let (Ok(row), Ok(prior)) =
            (<&mut [f64; K]>::try_from(&mut *row), <&[f64; K]>::try_from(prior))
    {
        let mut sums = *prior;
        for (column, weight) in columns.iter().zip(weights) {
            let logs = padded_matrix::row::<K>(cells, *column);
            (0..K).for_each(|k| sums[k] += weight * logs[k]);
        }
        *row = sums;
        return;
    }
    let logs = stored_rows(cells, columns, prior.len()).zip(weights.iter().copied());
    fold_rows(
        row,
        prior,
        (&logs, &empty()),
        #[inline(always)]
        |sum, log, weight| *sum += weight * log,
    );
}

/// The rows, `n` numbers long, that hold these columns.
#[inline(always)]
pub(super) fn stored_rows<'a>(
    cells: &'a [f64],
    columns: &'a [u32],
    n: usize,
) -> impl Iterator<Item = &'a [f64]> + Clone {
    let starts = columns.iter().map(move |column| *column as usize * stride(n));
    starts.map(move |start| &cells[start..start + n])
}

/// `row` = `prior` times all factors.
#[inline(always)]
pub(super) fn multiply_rows<'a>(
    row: &mut [f64],
    prior: &[f64],
    stored: impl Iterator<Item = &'a [f64]> + Clone,
    recomputed: impl Iterator<Item = &'a [f64]> + Clone,
) {
    let unweighted = |factors: &'a [f64]| (factors, 1.0);
    fold_rows(
        row,
        prior,
        (&stored.map(unweighted), &recomputed.map(unweighted)),
        #[inline(always)]
        |p, factor, _| *p *= factor,
    );
}
