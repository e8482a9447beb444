//! The M-step: sums the expected counts of every annotator and turns them into the likelihood.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::dense::DenseColumns;
use super::estimate::{Annotator, Estimator};
use super::logarithms::floor_likelihoods;
use super::padded_matrix::{PaddedMatrix, prefetch_span, stride};
use super::prefetcher::{LIST_DISTANCE, PREFETCH_DISTANCE};
use super::row_arithmetic::{add_row, write_scaled, zip_rows};
use super::sparse::SparseColumns;
use super::sparse_rows::SparseRows;
use super::statistics::Statistics;
use super::strategy::CountStrategy;
use super::width::{for_classes, width};
use crate::frame::{Annotations, ColumnRange, InstanceRange, split_by};
use crate::model::confusion::Smoothing;
use crate::model::posterior::Posterior;
use crate::prefetch::prefetch;

/// The likelihood of every column, dense or sparse.
pub enum Columns {
    /// The columns of [`CountStrategy::Scatter`] and [`CountStrategy::Gather`], and of every estimator that does not
    /// allow sparse columns.
    Dense(DenseColumns),
    /// The columns of [`CountStrategy::SparseGather`].
    Sparse(SparseColumns),
}

impl Columns {
    /// Allocates the columns of these annotations.
    #[must_use]
    pub fn new(a: &Annotations, strategy: CountStrategy) -> Self {
        if strategy == CountStrategy::SparseGather {
            return Self::Sparse(SparseColumns::new(a));
        }
        let cells = PaddedMatrix::zeros(strategy.stored_columns(a), a.dims().classes);
        Self::Dense(DenseColumns { cells, are_logs: a.are_weighted() })
    }

    /// Whether the columns of all annotations of the question are stored.
    pub(super) fn stores_all(&self, range: &InstanceRange<'_>) -> bool {
        match self {
            Self::Dense(columns) => columns.stores_all(range),
            Self::Sparse(_) => true,
        }
    }

    /// Computes the likelihood from the expected counts of `t`; returns the sum of the estimator's terms.
    pub fn estimate(
        &mut self,
        a: &Annotations,
        t: &Posterior,
        parts: &[Statistics],
        estimator: &impl Estimator,
    ) -> f64 {
        if matches!(self, Self::Sparse(_)) && !estimator.allows_sparse_columns() {
            *self = Self::new(a, CountStrategy::Gather);
        }
        match self {
            Self::Sparse(columns) => {
                let rows: Vec<&SparseRows> =
                    parts.iter().flat_map(Statistics::sparse_rows).collect();
                columns.estimate(a, &rows, estimator)
            }
            Self::Dense(DenseColumns { cells, are_logs }) => {
                let (finish, row_stride) = (Some((estimator, *are_logs)), stride(a.dims().classes));
                count_columns(a, t, parts, (cells.cells_mut(), row_stride), finish)
            }
        }
    }

    /// A buffer with one number for each cell, `[column, class]`, with unspecified content.
    #[must_use]
    pub fn into_buffer(self, a: &Annotations) -> Vec<f64> {
        let mut buffer = match self {
            Self::Dense(columns) => columns.cells.into_buffer(),
            Self::Sparse(_) => Vec::new(),
        };
        let n_cells = a.n_columns() * a.dims().classes;
        // To its size and no further: the counts may be the largest part of the result.
        buffer.reserve_exact(n_cells.saturating_sub(buffer.len()));
        buffer.resize(n_cells, 0.0);
        buffer
    }
}

/// The expected counts of these posteriors, `[column, class]`.
#[must_use]
pub fn expected_counts_of(a: &Annotations, t: &Posterior) -> Vec<f64> {
    let mut counts = vec![0.0; a.n_columns() * a.dims().classes];
    // For a single pass, it does not pay off to compute statistics first.
    expected_counts(a, t, &[], &mut counts);
    counts
}

/// Writes the expected counts of `t` into `counts`, `[column, class]`.
pub fn expected_counts(a: &Annotations, t: &Posterior, parts: &[Statistics], counts: &mut [f64]) {
    count_columns::<Smoothing>(a, t, parts, (counts, a.dims().classes), None);
}

/// The number of annotators in one unit of parallel work: few enough for an even distribution, many enough that the
/// cost of scheduling is small.
fn at_once(annotators: usize) -> usize {
    (annotators / 512).clamp(8, 4096)
}

/// Writes the counts of the first columns into `columns`, as many as fit; one column begins `row_stride` numbers after
/// the other. `finish` is an estimator, which turns the counts into the likelihood, and whether to take its logarithm.
/// Returns the sum of the estimator's terms.
fn count_columns<E: Estimator>(
    a: &Annotations,
    t: &Posterior,
    parts: &[Statistics],
    (columns, row_stride): (&mut [f64], usize),
    finish: Option<(&E, bool)>,
) -> f64 {
    let (arch, n_classes) = (Arch::new(), a.dims().classes);
    let n_columns = columns.len() / row_stride.max(1);
    let annotators = a.column_offsets()[..a.dims().annotators].partition_point(|c| *c < n_columns);
    let offsets = &a.column_offsets()[..=annotators];
    let tables: Vec<&[f64]> = parts.iter().filter_map(Statistics::table).collect();
    let tables = tables.as_slice();
    let work = split_by(columns, offsets, row_stride, at_once(annotators));
    let terms: Vec<f64> = work
        .into_par_iter()
        .map(|(slots, columns)| {
            for_classes!(n_classes, K => {
                arch.dispatch(ColumnCounter::<K, E> { a, t, tables, finish, slots, columns, row_stride })
            })
        })
        .collect();
    terms.iter().sum()
}

/// Counts the columns of the annotators in a range of slots.
struct ColumnCounter<'a, const K: usize, E> {
    a: &'a Annotations,
    t: &'a Posterior,
    /// For each range of instances, its counts of all columns, if the strategy is `Scatter`; else empty.
    tables: &'a [&'a [f64]],
    /// The estimator, and whether to take logarithms.
    finish: Option<(&'a E, bool)>,
    slots: Range<usize>,
    /// The columns of these slots; one begins `row_stride` numbers after the other.
    columns: &'a mut [f64],
    row_stride: usize,
}

impl<const K: usize, E: Estimator> WithSimd for ColumnCounter<'_, K, E> {
    type Output = f64;

    // Inlined with all callees, so that they are compiled for the vector instructions of this processor.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { a, t, tables, finish, slots, columns: all, row_stride } = self;
        let n = width::<K>(t.n_classes()).max(1);
        let offsets = a.column_offsets();
        let (first, last) = (offsets[slots.start], offsets[slots.end]);
        if let [table, others @ ..] = tables {
            let span = first * stride(n)..last * stride(n);
            let counts = table[span.clone()].chunks_exact(stride(n));
            for (to, from) in all.chunks_exact_mut(row_stride).zip(counts) {
                to[..n].copy_from_slice(&from[..n]);
            }
            for table in others {
                let counts = table[span.clone()].chunks_exact(stride(n));
                for (sums, counts) in all.chunks_exact_mut(row_stride).zip(counts) {
                    add_row::<K>(&mut sums[..n], &counts[..n]);
                }
            }
        } else {
            sum_rows::<K>(a.column_range(first..last), t, all, row_stride);
        }
        let Some((estimator, to_logs)) = finish else { return 0.0 };
        // In a loop of its own: above, the memory reads of many columns overlap; an estimate in between would delay
        // them.
        let (mut terms, mut columns) = (0.0, &mut *all);
        for slot in slots {
            let columns_of_slot = offsets[slot]..offsets[slot + 1];
            if columns_of_slot.is_empty() {
                continue;
            }
            let (cells, rest) = columns.split_at_mut(columns_of_slot.len() * stride(n));
            let index = a.annotator_of(columns_of_slot.start as u32);
            let annotator = Annotator { index, labels: a.labels_in(columns_of_slot), n_classes: n };
            if to_logs {
                terms += estimator.estimate_logs::<K>(annotator, cells);
            } else {
                terms += estimator.estimate::<K>(annotator, cells);
                floor_likelihoods(cells);
            }
            columns = rest;
        }
        terms
    }
}

/// Sums the weighted posterior rows of the instances of each column.
#[inline(always)]
fn sum_rows<const K: usize>(
    range: ColumnRange<'_>,
    t: &Posterior,
    columns: &mut [f64],
    row_stride: usize,
) {
    if K > 0 {
        return sum_short_rows::<K>(range, t, columns, row_stride);
    }
    let (n, rows) = (t.n_classes().max(1), t.values());
    let mut weights = range.weights.iter();
    for (column, counts) in columns.chunks_exact_mut(row_stride).enumerate() {
        let counts = &mut counts[..n];
        let positions = range.positions(column);
        debug_assert!(!positions.is_empty());
        for position in positions.clone() {
            prefetch_row_of_instance(&range, position, rows, n);
            let i = range.instances[position] as usize;
            let weight = weights.next().unwrap_or(1.0);
            // Each column has an annotation, as `sum_short_rows` says.
            if position == positions.start {
                write_scaled(counts, &rows[i * n..(i + 1) * n], weight);
                continue;
            }
            zip_rows(counts, &rows[i * n..(i + 1) * n], move |count, p| *count += weight * p);
        }
    }
}

/// [`sum_rows`] of `K` classes, with one loop over the annotations of all columns.
///
/// # Why
/// Most columns have a few annotations, and the processor cannot predict how many: the end of a loop over the
/// annotations of one column would often be mispredicted, which costs more than the sum itself. Here the sum is stored
/// after every annotation, and dropped, by a factor of 0, after the last one of its column.
#[inline(always)]
fn sum_short_rows<const K: usize>(
    range: ColumnRange<'_>,
    t: &Posterior,
    columns: &mut [f64],
    row_stride: usize,
) {
    let (rows, base) = (t.values(), range.offsets[0]);
    let mut weights = range.weights.iter();
    let (mut column, mut sum, mut kept) = (0, [0.0; K], 0.0);
    for (position, i) in range.instances.iter().enumerate() {
        prefetch_row_of_instance(&range, position, rows, K);
        let row = &rows[*i as usize * K..][..K].as_chunks::<K>().0[0];
        let weight = weights.next().unwrap_or(1.0);
        (0..K).for_each(|k| sum[k] = kept * sum[k] + weight * row[k]);
        columns[column * row_stride..][..K].as_chunks_mut::<K>().0[0] = sum;
        // No column is empty: columns are numbered from the annotations, and each keeps at least one of them.
        let is_last = range.offsets[column + 1] == base + position + 1;
        column += usize::from(is_last);
        kept = if is_last { 0.0 } else { 1.0 };
    }
}

/// Prefetches the posterior row of the annotation `PREFETCH_DISTANCE` after `position`, and the list of instances.
#[inline(always)]
fn prefetch_row_of_instance(range: &ColumnRange<'_>, position: usize, rows: &[f64], n: usize) {
    prefetch(range.instances, position + LIST_DISTANCE);
    let last = range.instances.len() - 1;
    let ahead = range.instances[(position + PREFETCH_DISTANCE).min(last)] as usize;
    prefetch_span(rows, ahead * n, n);
}
