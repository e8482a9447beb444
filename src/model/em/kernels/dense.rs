//! Confusion columns with a cell for every class. If the M-step gathers counts, singleton annotators have no stored
//! column.
//!
//! # Why
//! The column of an annotator with a single annotation follows from the posterior of that one instance, which an E-step
//! has in its registers. Recomputing it there costs less than reading it from memory.
//!
//! If every annotation has a weight, cells hold logarithms: a weighted factor is a power, and a weighted sum of
//! logarithms costs one multiplication per cell.

use std::iter::empty;
use std::ops::Range;

use super::estimate::{SingletonEstimator, SingletonInput, SingletonRows};
use super::logarithms::floor_likelihoods;
use super::padded_matrix::{self, PaddedMatrix, prefetch_span, stride};
use super::row_arithmetic::{fold_rows, write_scaled};
use super::width::width;
use crate::frame::{InstanceRange, WeightSlice};

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
    add_weighted(row, prior, stored_rows(cells, columns, prior.len()), empty(), weights);
}

/// The rows, `n` numbers long, that hold these columns.
#[inline(always)]
fn stored_rows<'a>(
    cells: &'a [f64],
    columns: &'a [u32],
    n: usize,
) -> impl ExactSizeIterator<Item = &'a [f64]> + Clone {
    let starts = columns.iter().map(move |column| *column as usize * stride(n));
    starts.map(move |start| &cells[start..start + n])
}

/// `row` = `prior` times all factors.
#[inline(always)]
fn multiply_rows<'a>(
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

/// `row` = `prior` + weight * `logs`, for each row of them; `weights` begins with those of the stored rows.
#[inline(always)]
fn add_weighted<'a>(
    row: &mut [f64],
    prior: &[f64],
    stored: impl ExactSizeIterator<Item = &'a [f64]> + Clone,
    recomputed: impl Iterator<Item = &'a [f64]> + Clone,
    weights: &[f64],
) {
    let (first, others) = weights.split_at(stored.len());
    fold_rows(
        row,
        prior,
        (&stored.zip(first.iter().copied()), &recomputed.zip(others.iter().copied())),
        #[inline(always)]
        |sum, log, weight| *sum += weight * log,
    );
}

/// The columns of singleton annotators for some adjacent instances, computed together.
///
/// # Why
/// An estimate and a logarithm are chains of dependent operations. The processor overlaps the chains of several
/// columns, but not the operations of one chain. Also, one call per batch of columns can go through a pointer, so that
/// the kernels are compiled once and not for every estimator.
pub(super) struct Singletons<'a> {
    estimator: &'a dyn SingletonEstimator,
    n_classes: usize,
    input: SingletonInput,
    /// The factors or their logarithms, `[row, class]`; there may be space for more rows.
    factors: Vec<f64>,
    /// The annotator, the label and the number of annotators of each row, as in [`SingletonRows`].
    annotators: Vec<u32>,
    labels: Vec<u32>,
    repeats: Vec<u32>,
    /// The first row of each instance.
    starts: Vec<usize>,
}

impl<'a> Singletons<'a> {
    pub(super) fn new(n_classes: usize, estimator: &'a dyn SingletonEstimator) -> Self {
        let input = estimator.input();
        let (factors, starts) = (Vec::new(), Vec::new());
        let (annotators, labels, repeats) = (Vec::new(), Vec::new(), Vec::new());
        Self { estimator, n_classes, input, factors, annotators, labels, repeats, starts }
    }

    /// Computes the factors of the columns that are not stored, or their logarithms if every annotation has a weight,
    /// for the instances from `first` on, whose previous posteriors are in `rows`. Skips instances for which
    /// `is_special` is true. Returns the columns' terms of the objective.
    #[inline(always)]
    pub(super) fn prepare<const K: usize>(
        &mut self,
        range: &InstanceRange<'_>,
        first: usize,
        (rows, cells): (&[f64], &[f64]),
        is_special: impl Fn(usize, Range<usize>) -> bool,
    ) -> f64 {
        let n = width::<K>(self.n_classes);
        let Self { input, factors, annotators, labels, repeats, starts, .. } = self;
        annotators.clear();
        labels.clear();
        repeats.clear();
        starts.clear();
        let mut begin = range.offsets[first] - range.offsets[0];
        for (i, row) in (first..).zip(rows.chunks_exact(n)) {
            starts.push(repeats.len());
            // Prefetches the row of the next chunk: the processor's own prefetching ends with a page of memory, and a
            // chunk is about as long.
            prefetch_span(rows, rows.len() + (i - first) * n, n);
            let positions = begin..range.offsets[i + 1] - range.offsets[0];
            begin = positions.end;
            let (stored, singletons) =
                split_stored::<K>(n, cells, &range.columns[positions.clone()]);
            if singletons.is_empty() || is_special(i, positions.clone()) {
                continue;
            }
            let weights = match range.weights {
                WeightSlice::All(weights) => {
                    &weights[positions.start + stored.len()..positions.end]
                }
                _ => &[],
            };
            // If only the posterior matters, the instance's columns are equal: one is computed.
            let (prepared, sharers) = if *input > SingletonInput::Posterior || !weights.is_empty() {
                (singletons, 1)
            } else {
                (&singletons[..1], singletons.len() as u32)
            };
            let read = |of_columns: &[u32], to: &mut Vec<u32>| {
                to.extend(prepared.iter().map(|column| of_columns[*column as usize]));
            };
            if *input >= SingletonInput::Annotator {
                read(range.annotators, annotators);
            }
            if *input >= SingletonInput::Label {
                read(range.labels, labels);
            }
            let own = repeats.len() * n..(repeats.len() + prepared.len()) * n;
            repeats.resize(repeats.len() + prepared.len(), sharers);
            if factors.len() < own.end {
                factors.resize(own.end, 0.0);
            }
            let counts = factors[own].chunks_exact_mut(n);
            if weights.is_empty() {
                counts.for_each(|counts| counts.copy_from_slice(row));
            } else {
                for (counts, weight) in counts.zip(weights.iter().copied()) {
                    write_scaled(counts, row, weight);
                }
            }
        }
        annotators.resize(repeats.len(), 0);
        labels.resize(repeats.len(), 0);
        let rows = SingletonRows { annotators, labels, repeats };
        if matches!(range.weights, WeightSlice::All(_)) {
            return self.estimator.estimate_row_logs(rows, n, factors);
        }
        let terms = self.estimator.estimate_rows(rows, n, factors);
        floor_likelihoods(&mut factors[..labels.len() * n]);
        terms
    }

    /// Like [`multiply`], with the prepared factors of the columns that are not stored; `at` is the index of the
    /// instance among the prepared ones.
    #[inline(always)]
    pub(super) fn multiply<const K: usize>(
        &self,
        at: usize,
        row: &mut [f64],
        prior: &[f64],
        cells: &[f64],
        columns: &[u32],
    ) {
        let n = width::<K>(row.len());
        let (stored, singletons) = split_stored::<K>(n, cells, columns);
        let (start, is_shared) = (self.starts[at], self.input == SingletonInput::Posterior);
        let rows = (0..singletons.len()).map(|nth| start + if is_shared { 0 } else { nth });
        let recomputed = rows.map(|row| &self.factors[row * n..(row + 1) * n]);
        if K > 0
            && let Ok(row) = <&mut [f64; K]>::try_from(&mut *row)
        {
            multiply::<K>(row, prior, cells, stored);
            // The product stays in registers until the last annotation.
            let mut product = *row;
            for factors in recomputed {
                (0..K).for_each(|k| product[k] *= factors[k]);
            }
            *row = product;
            return;
        }
        multiply_rows(row, prior, stored_rows(cells, stored, n), recomputed);
    }

    /// Like [`add_logs`], with the prepared logarithms of the columns that are not stored; `at` is the index of the
    /// instance among the prepared ones.
    #[inline(always)]
    pub(super) fn add_logs<const K: usize>(
        &self,
        at: usize,
        (row, prior): (&mut [f64], &[f64]),
        cells: &[f64],
        columns: &[u32],
        weights: &[f64],
    ) {
        let n = width::<K>(row.len());
        let (stored, singletons) = split_stored::<K>(n, cells, columns);
        let start = self.starts[at] * n;
        let logs = &self.factors[start..start + singletons.len() * n];
        if K > 0
            && let Ok(row) = <&mut [f64; K]>::try_from(&mut *row)
        {
            add_logs::<K>(row, prior, cells, stored, weights);
            let weights = &weights[stored.len()..];
            // As in `multiply`.
            let mut sums = *row;
            for (logs, weight) in logs.as_chunks::<K>().0.iter().zip(weights) {
                (0..K).for_each(|k| sums[k] += weight * logs[k]);
            }
            *row = sums;
            return;
        }
        let stored = stored_rows(cells, stored, n);
        add_weighted(row, prior, stored, logs.chunks_exact(n), weights);
    }
}

/// Splits an instance's columns into the stored ones and those of singleton annotators, which come last.
#[inline(always)]
fn split_stored<'a, const K: usize>(
    n_classes: usize,
    cells: &[f64],
    columns: &'a [u32],
) -> (&'a [u32], &'a [u32]) {
    let stored = (cells.len() / stride(width::<K>(n_classes)).max(1)) as u32;
    columns.split_at(columns.iter().position(|c| *c >= stored).unwrap_or(columns.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::confusion::Smoothing;
    use crate::testing::tiny;

    /// Thirty annotators of the first instance, which is special, and one of the second have a single annotation each.
    #[test]
    fn only_columns_that_are_prepared_take_memory() {
        let triples: Vec<_> = (0..30).map(|r| (0, r, 0)).chain([(1, 30, 1)]).collect();
        let a = tiny(2, &triples);
        let smoothing = Smoothing::new(&a, 0.0, 0.5);
        let mut singletons = Singletons::new(2, &smoothing);
        singletons.prepare::<0>(&a.range(0..2), 0, (&[0.5; 4], &[]), |i, _| i == 0);
        assert_eq!((singletons.factors.len(), singletons.starts), (2, vec![0, 0]));
    }
}
