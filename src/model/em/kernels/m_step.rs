//! The M-step: the counts of every annotator, brought together and turned into the likelihood.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::counts::{Statistics, add_row};
use super::dense::DenseColumns;
use super::estimate::{Annotator, Estimator};
use super::log_domain::ln_all;
use super::padded_matrix::{PaddedMatrix, prefetch_span, stride};
use super::sparse::SparseColumns;
use super::sparse_rows::SparseRows;
use super::strategy::CountStrategy;
use super::width::{for_classes, width};
use crate::frame::{Annotations, ColumnRange, split_by};
use crate::model::confusion::Smoothing;
use crate::model::numerics::MIN_LIKELIHOOD;
use crate::model::posterior::Posterior;

/// The likelihood of every column, dense or without the cells that nothing stands behind.
pub enum Columns {
    /// For few classes, or where columns are few.
    Dense(DenseColumns),
    /// For many classes.
    Sparse(SparseColumns),
}

impl Columns {
    /// Room for the columns of these annotations.
    #[must_use]
    pub fn new(a: &Annotations, strategy: CountStrategy) -> Self {
        if strategy == CountStrategy::SparseGather {
            return Self::Sparse(SparseColumns::new(a));
        }
        let cells = PaddedMatrix::zeros(strategy.kept_columns(a), a.dims().classes);
        Self::Dense(DenseColumns { cells, are_logs: a.are_weighted() })
    }

    /// The likelihood from the expected counts of `t`; returns the sum of the estimator's terms.
    pub fn estimate(
        &mut self,
        a: &Annotations,
        t: &Posterior,
        parts: &[Statistics],
        estimator: &impl Estimator,
    ) -> f64 {
        match self {
            Self::Sparse(columns) => {
                let rows: Vec<&SparseRows> =
                    parts.iter().flat_map(Statistics::sparse_rows).collect();
                columns.estimate(a, &rows, estimator)
            }
            Self::Dense(DenseColumns { cells, are_logs }) => {
                let (finish, step) = (Some((estimator, *are_logs)), stride(a.dims().classes));
                gather(a, t, parts, (cells.cells_mut(), step), finish)
            }
        }
    }

    /// Room for a number a cell of every column, `[column, class]`, whatever they are.
    #[must_use]
    pub fn into_room(self, a: &Annotations) -> Vec<f64> {
        let mut room = match self {
            Self::Dense(columns) => columns.cells.into_buffer(),
            Self::Sparse(_) => Vec::new(),
        };
        room.resize(a.n_columns() * a.dims().classes, 0.0);
        room
    }
}

/// How often each column is expected to have met each class by these posteriors, `[column, class]`.
#[must_use]
pub fn expected_counts_of(a: &Annotations, t: &Posterior) -> Vec<f64> {
    let mut counts = vec![0.0; a.n_columns() * a.dims().classes];
    // Once, so that nothing kept on the way would pay.
    expected_counts(a, t, &[], &mut counts);
    counts
}

/// Writes the expected counts of `t` into `counts`, `[column, class]`.
pub fn expected_counts(a: &Annotations, t: &Posterior, parts: &[Statistics], counts: &mut [f64]) {
    gather::<Smoothing>(a, t, parts, (counts, a.dims().classes), None);
}

/// Of so many annotators, those in one unit of parallel work: few enough to share out evenly, many enough to be worth
/// handing over.
fn at_once(annotators: usize) -> usize {
    (annotators / 512).clamp(8, 4096)
}

/// Puts the counts of as many columns as there is room for into `columns`, so many numbers from one column to the next;
/// with an estimator they become the likelihood, or its logarithm. Returns the sum of the estimator's terms.
fn gather<E: Estimator>(
    a: &Annotations,
    t: &Posterior,
    parts: &[Statistics],
    (columns, step): (&mut [f64], usize),
    finish: Option<(&E, bool)>,
) -> f64 {
    let (arch, n_classes) = (Arch::new(), a.dims().classes);
    let room = columns.len() / step.max(1);
    let annotators = a.column_offsets()[..a.dims().annotators].partition_point(|c| *c < room);
    let offsets = &a.column_offsets()[..=annotators];
    let tables: Vec<&[f64]> = parts.iter().filter_map(Statistics::table).collect();
    let tables = tables.as_slice();
    let work = split_by(columns, offsets, step, at_once(annotators));
    let terms: Vec<f64> = work
        .into_par_iter()
        .map(|(slots, columns)| {
            for_classes!(n_classes, K => {
                arch.dispatch(Gather::<K, E> { a, t, tables, finish, slots, columns, step })
            })
        })
        .collect();
    terms.iter().sum()
}

/// Counts the columns of the annotators in some neighbouring slots.
struct Gather<'a, const K: usize, E> {
    a: &'a Annotations,
    t: &'a Posterior,
    /// The counts of all columns by each range, where the E-step has scattered them.
    tables: &'a [&'a [f64]],
    /// The estimator, and whether logarithms are wanted.
    finish: Option<(&'a E, bool)>,
    slots: Range<usize>,
    /// Theirs, `step` numbers from one to the next.
    columns: &'a mut [f64],
    step: usize,
}

impl<const K: usize, E: Estimator> WithSimd for Gather<'_, K, E> {
    type Output = f64;

    // Inlined with all that is called, for the vectors of the processor at hand.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { a, t, tables, finish, slots, columns: all, step } = self;
        let n = width::<K>(t.n_classes()).max(1);
        let offsets = a.column_offsets();
        let (first, last) = (offsets[slots.start], offsets[slots.end]);
        if let [table, others @ ..] = tables {
            let own = first * stride(n)..last * stride(n);
            let counts = table[own.clone()].chunks_exact(stride(n));
            for (to, from) in all.chunks_exact_mut(step).zip(counts) {
                to[..n].copy_from_slice(&from[..n]);
            }
            for table in others {
                let counts = table[own.clone()].chunks_exact(stride(n));
                for (sums, counts) in all.chunks_exact_mut(step).zip(counts) {
                    add_row::<K>(&mut sums[..n], &counts[..n]);
                }
            }
        } else {
            sum_rows::<K>(a.column_range(first..last), t, all, step);
        }
        let Some((estimator, to_logs)) = finish else { return 0.0 };
        // In a loop of its own, so that the sums wait for memory together and not each for an estimate.
        let (mut terms, mut columns) = (0.0, &mut *all);
        for slot in slots {
            let own = offsets[slot]..offsets[slot + 1];
            if own.is_empty() {
                continue;
            }
            let (cells, rest) = columns.split_at_mut(own.len() * stride(n));
            let annotator = Annotator { labels: a.labels_in(own), n_classes: n };
            terms += estimator.estimate::<K>(annotator, cells);
            cells.iter_mut().for_each(|cell| *cell = cell.max(MIN_LIKELIHOOD));
            columns = rest;
        }
        if to_logs {
            ln_all(all);
        }
        terms
    }
}

/// Annotations between asking for a row and adding it.
const AHEAD: usize = 64;

/// Sums the rows of the instances of each column.
#[inline(always)]
fn sum_rows<const K: usize>(
    range: ColumnRange<'_>,
    t: &Posterior,
    columns: &mut [f64],
    step: usize,
) {
    let n = width::<K>(t.n_classes()).max(1);
    let rows = t.values();
    let mut last = range.instances.len();
    last -= usize::from(last > 0);
    let mut weights = range.weights.iter();
    for (column, counts) in columns.chunks_exact_mut(step).enumerate() {
        let counts = &mut counts[..n];
        let mut sum = [0.0; K];
        if K == 0 {
            counts.fill(0.0);
        }
        for position in range.positions(column) {
            let ahead = range.instances[(position + AHEAD).min(last)] as usize;
            prefetch_span(rows, ahead * n, n);
            let i = range.instances[position] as usize;
            let row = &rows[i * n..(i + 1) * n];
            let weight = weights.next().unwrap_or(1.0);
            if K > 0 {
                (0..K).for_each(|k| sum[k] += weight * row[k]);
            } else {
                counts.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
            }
        }
        if K > 0 {
            counts.copy_from_slice(&sum);
        }
    }
}
