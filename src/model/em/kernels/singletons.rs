//! The columns of singleton annotators, which the E-step recomputes.
//!
//! # Why
//! The column of an annotator with a single annotation follows from the posterior of that one instance, which an E-step
//! has in its registers. Recomputing it there costs less than reading it from memory.

use std::ops::Range;

use super::dense;
use super::estimate::{SingletonEstimator, SingletonInput, SingletonRows, WeightedSingletons};
use super::logarithms::floor_likelihoods;
use super::padded_matrix::{prefetch_span, stride};
use super::posterior_rows::chunk_len;
use super::row_arithmetic::VECTOR;
use super::width::width;
use crate::frame::InstanceRange;
use crate::prefetch::prefetch;

/// The factors of the columns of singleton annotators, computed for some adjacent instances together.
///
/// # Why
/// An estimate is a chain of dependent operations. The processor overlaps the chains of several columns, but not the
/// operations of one chain. Also, one call per batch of columns can go through a pointer, so that the kernels are compiled
/// once and not for every estimator.
pub(super) struct SingletonFactors<'a> {
    estimator: &'a dyn SingletonEstimator,
    n_classes: usize,
    input: SingletonInput,
    /// The factors, `[row, class]`; there may be space for more rows.
    factors: Vec<f64>,
    /// The annotator, the label and the number of annotators of each row, as in [`SingletonRows`].
    annotators: Vec<u32>,
    labels: Vec<u32>,
    repeats: Vec<u32>,
    /// The first row of each instance.
    starts: Vec<usize>,
}

impl<'a> SingletonFactors<'a> {
    pub(super) fn new(n_classes: usize, estimator: &'a dyn SingletonEstimator) -> Self {
        let input = estimator.input();
        let (factors, starts) = (Vec::new(), Vec::new());
        let (annotators, labels, repeats) = (Vec::new(), Vec::new(), Vec::new());
        Self { estimator, n_classes, input, factors, annotators, labels, repeats, starts }
    }

    /// Computes the factors of the columns that are not stored, for the instances from `first` on, whose previous
    /// posteriors are in `rows`. Skips instances for which `is_special` is true. Returns the columns' terms of the
    /// objective.
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
            prefetch_next(row, rows.len());
            let positions = begin..range.offsets[i + 1] - range.offsets[0];
            begin = positions.end;
            let (_, singletons) = split_stored::<K>(n, cells, &range.columns[positions.clone()]);
            if singletons.is_empty() || is_special(i, positions) {
                continue;
            }
            // If only the posterior matters, the instance's columns are equal: one is computed.
            let (prepared, sharers) = if *input > SingletonInput::Posterior {
                (singletons, 1)
            } else {
                (&singletons[..1], singletons.len() as u32)
            };
            if *input >= SingletonInput::Annotator {
                annotators.extend(prepared.iter().map(|column| range.annotators[*column as usize]));
            }
            if *input >= SingletonInput::Label {
                labels.extend(prepared.iter().map(|column| range.labels[*column as usize]));
            }
            let own = repeats.len() * n..(repeats.len() + prepared.len()) * n;
            repeats.resize(repeats.len() + prepared.len(), sharers);
            if factors.len() < own.end {
                factors.resize(own.end, 0.0);
            }
            let counts = factors[own].chunks_exact_mut(n);
            counts.for_each(|counts| counts.copy_from_slice(row));
        }
        annotators.resize(repeats.len(), 0);
        labels.resize(repeats.len(), 0);
        let rows = SingletonRows { annotators, labels, repeats };
        let terms = self.estimator.estimate_rows(rows, n, factors);
        floor_likelihoods(&mut factors[..labels.len() * n]);
        terms
    }

    /// Like [`dense::multiply`], with the prepared factors of the columns that are not stored; `at` is the index of the
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
            dense::multiply::<K>(row, prior, cells, stored);
            // The product stays in registers until the last annotation.
            let mut product = *row;
            for factors in recomputed {
                (0..K).for_each(|k| product[k] *= factors[k]);
            }
            *row = product;
            return;
        }
        dense::multiply_rows(row, prior, dense::stored_rows(cells, stored, n), recomputed);
    }
}

/// The weighted logarithms of the columns of singleton annotators, summed for one instance after the other.
pub(super) struct SingletonLogs<'a> {
    estimator: &'a dyn SingletonEstimator,
    n_classes: usize,
    input: SingletonInput,
    /// The rows of an instance, as in [`SingletonRows`]; longer if an earlier instance had more. Each has one annotator.
    annotators: Vec<u32>,
    labels: Vec<u32>,
    repeats: Vec<u32>,
    /// The previous posteriors of a chunk of instances, each as in [`WeightedSingletons`].
    previous: Vec<f64>,
}

impl<'a> SingletonLogs<'a> {
    pub(super) fn new(n_classes: usize, estimator: &'a dyn SingletonEstimator) -> Self {
        Self {
            estimator,
            n_classes,
            input: estimator.input(),
            annotators: Vec::new(),
            labels: Vec::new(),
            repeats: Vec::new(),
            previous: vec![0.0; chunk_len(n_classes) * n_classes.max(VECTOR)],
        }
    }

    /// Keeps the posteriors of a chunk of instances, which their new posteriors will replace. Prefetches what the estimator
    /// reads of their columns.
    #[inline(always)]
    pub(super) fn keep_posteriors<const K: usize>(
        &mut self,
        range: &InstanceRange<'_>,
        columns: &[u32],
        rows: &[f64],
    ) {
        let n = width::<K>(self.n_classes);
        let previous = self.previous.chunks_exact_mut(n.max(VECTOR));
        for (previous, row) in previous.zip(rows.chunks_exact(n)) {
            prefetch_next(row, rows.len());
            previous[..n].copy_from_slice(row);
        }
        if self.input >= SingletonInput::Label {
            columns.iter().for_each(|column| prefetch(range.labels, *column as usize));
        }
        if self.input >= SingletonInput::Annotator {
            columns.iter().for_each(|column| prefetch(range.annotators, *column as usize));
        }
    }

    /// Like [`dense::add_logs`], also for columns that are not stored; `at` is the index of the instance in the chunk.
    /// Returns the terms of the objective of the columns that are not stored.
    #[inline(always)]
    pub(super) fn add<const K: usize>(
        &mut self,
        range: &InstanceRange<'_>,
        at: usize,
        (row, prior): (&mut [f64], &[f64]),
        cells: &[f64],
        (columns, weights): (&[u32], &[f64]),
    ) -> f64 {
        let n = width::<K>(self.n_classes);
        let (stored, singletons) = split_stored::<K>(n, cells, columns);
        dense::add_logs::<K>(row, prior, cells, stored, weights);
        if singletons.is_empty() {
            return 0.0;
        }
        let (lanes, n_rows) = (n.max(VECTOR), singletons.len());
        self.read(range, singletons);
        let rows = SingletonRows {
            annotators: &self.annotators[..n_rows],
            labels: &self.labels[..n_rows],
            repeats: &self.repeats[..n_rows],
        };
        let posterior = &self.previous[at * lanes..(at + 1) * lanes];
        let weights = &weights[stored.len()..];
        let singletons = WeightedSingletons { rows, weights, posterior, n_classes: n };
        if n >= VECTOR {
            return self.estimator.add_row_logs(&singletons, row);
        }
        let mut padded = [0.0; VECTOR];
        let terms = self.estimator.add_row_logs(&singletons, &mut padded);
        row.iter_mut().zip(padded).for_each(|(sum, logs)| *sum += logs);
        terms
    }

    /// Reads the annotators and labels of these columns, as far as the estimator needs them.
    #[inline(always)]
    fn read(&mut self, range: &InstanceRange<'_>, columns: &[u32]) {
        if self.labels.len() < columns.len() {
            self.annotators.resize(columns.len(), 0);
            self.labels.resize(columns.len(), 0);
            self.repeats.resize(columns.len(), 1);
        }
        let read = |of_columns: &[u32], to: &mut [u32]| {
            to.iter_mut().zip(columns).for_each(|(to, column)| *to = of_columns[*column as usize]);
        };
        if self.input >= SingletonInput::Annotator {
            read(range.annotators, &mut self.annotators);
        }
        if self.input >= SingletonInput::Label {
            read(range.labels, &mut self.labels);
        }
    }
}

/// Prefetches the posterior row that `row` has in the next chunk, which is `chunk` numbers long: the processor's own
/// prefetching ends with a page of memory, and a chunk is about as long.
#[inline(always)]
fn prefetch_next(row: &[f64], chunk: usize) {
    prefetch_span(row, chunk, row.len());
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
        let mut singletons = SingletonFactors::new(2, &smoothing);
        singletons.prepare::<0>(&a.range(0..2), 0, (&[0.5; 4], &[]), |i, _| i == 0);
        assert_eq!((singletons.factors.len(), singletons.starts), (2, vec![0, 0]));
    }
}
