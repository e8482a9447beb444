//! The M-step: the counts of every annotator, brought together and turned into the likelihood.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::counts::{CountStrategy, RangeCounts, Statistics};
use super::dense::DenseColumns;
use super::estimate::{Annotator, Estimator};
use super::log_domain::ln_all;
use super::sparse::SparseColumns;
use super::{MIN_LIKELIHOOD, for_classes, prefetch, width};
use crate::frame::{Annotations, ColumnRange, WeightSlice, split_by};
use crate::model::fitted::Posterior;

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
        let cells = vec![0.0; strategy.kept_columns(a) * a.dims().classes];
        Self::Dense(DenseColumns { cells, are_logs: a.are_weighted() })
    }

    /// The likelihood from the expected counts of `t`; returns the sum of the estimator's terms.
    pub fn estimate(
        &mut self,
        a: &Annotations,
        t: &Posterior,
        parts: &[Statistics],
        estimator: &dyn Estimator,
    ) -> f64 {
        match self {
            Self::Sparse(columns) => columns.estimate(a, parts, estimator),
            Self::Dense(DenseColumns { cells, are_logs }) => {
                let finish = Finish::Estimate { estimator, to_logs: *are_logs };
                gather(a, t, parts, cells, finish)
            }
        }
    }

    /// Room for a number a cell of every column, `[column, class]`, whatever they are.
    #[must_use]
    pub fn into_room(self, a: &Annotations) -> Vec<f64> {
        let mut room = match self {
            Self::Dense(columns) => columns.cells,
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
    gather(a, t, parts, counts, Finish::Leave);
}

/// What becomes of an annotator's counts when they are there.
#[derive(Clone, Copy)]
enum Finish<'a> {
    /// They stay what they are.
    Leave,
    /// They become the likelihood, or its logarithm.
    Estimate { estimator: &'a dyn Estimator, to_logs: bool },
}

/// Of so many annotators, those in one unit of parallel work: few enough to share out evenly, many enough to be worth
/// handing over.
fn at_once(annotators: usize) -> usize {
    (annotators / 512).clamp(8, 4096)
}

/// Puts the counts of as many columns as there is room for into `columns`, `[column, class]`, each annotator's finished;
/// returns the sum of the estimator's terms.
fn gather(
    a: &Annotations,
    t: &Posterior,
    parts: &[Statistics],
    columns: &mut [f64],
    finish: Finish<'_>,
) -> f64 {
    let (arch, n_classes) = (Arch::new(), a.dims().classes);
    let room = columns.len() / n_classes.max(1);
    let annotators = a.column_offsets()[..a.dims().annotators].partition_point(|c| *c < room);
    let offsets = &a.column_offsets()[..=annotators];
    let table = match parts.first().map(Statistics::counts) {
        Some(RangeCounts::Scatter(table)) => Some(table.as_slice()),
        _ => None,
    };
    let work = split_by(columns, offsets, n_classes, at_once(annotators));
    let terms: Vec<f64> = work
        .into_par_iter()
        .map(|(slots, columns)| {
            for_classes!(n_classes, K => {
                arch.dispatch(Gather::<K> { a, t, table, finish, slots, columns })
            })
        })
        .collect();
    terms.iter().sum()
}

/// Counts the columns of the annotators in some neighbouring slots.
struct Gather<'a, const K: usize> {
    a: &'a Annotations,
    t: &'a Posterior,
    /// The counts of all columns, where the E-step has scattered them.
    table: Option<&'a [f64]>,
    finish: Finish<'a>,
    slots: Range<usize>,
    /// Theirs, `[column, class]`.
    columns: &'a mut [f64],
}

impl<const K: usize> WithSimd for Gather<'_, K> {
    type Output = f64;

    // Inlined with all that is called, for the vectors of the processor at hand.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { a, t, table, finish, slots, columns: all } = self;
        let n = width::<K>(t.n_classes()).max(1);
        let offsets = a.column_offsets();
        let (first, last) = (offsets[slots.start], offsets[slots.end]);
        match table {
            Some(table) => all.copy_from_slice(&table[first * n..last * n]),
            None => sum_rows::<K>(a.column_range(first..last), t, all),
        }
        let Finish::Estimate { estimator, to_logs } = finish else { return 0.0 };
        // In a loop of its own, so that the sums wait for memory together and not each for an estimate.
        let (mut terms, mut columns) = (0.0, &mut *all);
        for slot in slots {
            let own = offsets[slot]..offsets[slot + 1];
            if own.is_empty() {
                continue;
            }
            let (cells, rest) = columns.split_at_mut(own.len() * n);
            terms += estimator.estimate(Annotator { labels: a.labels_in(own) }, cells);
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
const AHEAD: usize = 24;

/// Sums the rows of the instances of each column.
#[inline(always)]
fn sum_rows<const K: usize>(range: ColumnRange<'_>, t: &Posterior, columns: &mut [f64]) {
    let n = width::<K>(t.n_classes()).max(1);
    let rows = t.values();
    let mut last = range.instances.len();
    last -= usize::from(last > 0);
    for (column, counts) in columns.chunks_exact_mut(n).enumerate() {
        let mut sum = [0.0; K];
        if K == 0 {
            counts.fill(0.0);
        }
        for position in range.positions(column) {
            let ahead = range.instances[(position + AHEAD).min(last)] as usize;
            prefetch(rows, ahead * n, n);
            let i = range.instances[position] as usize;
            let row = &rows[i * n..(i + 1) * n];
            let weight = match range.weights {
                WeightSlice::Ones => 1.0,
                weights => weights.get(position),
            };
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
