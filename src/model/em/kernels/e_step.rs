//! The E-step over a range of instances: posteriors from products of confusion columns, counted as they are made.
//!
//! # Why
//! Sums of logarithms need a logarithm a cell and an exponential a class. Products need neither, and are exact when no
//! partial product leaves the range of f64: with likelihoods of at least [`MIN_LIKELIHOOD`], `SAFE` factors cannot.
//! Longer products are taken in runs of `SAFE`, after each of which every class's power of two is moved into an integer
//! of its own, which rounds nothing. Ten thousand annotators on one instance, for and against, come out as they should.
//! Fractional weights are powers: where there are few, their instances alone take the logarithm's way; where every
//! annotation has a weight, columns hold logarithms.
//!
//! A column and its counts lie anywhere in memory. They are prefetched `AHEAD` annotations before they are used, so that
//! memory brings them while other rows are computed.
//!
//! [`MIN_LIKELIHOOD`]: crate::model::numerics::MIN_LIKELIHOOD

use std::ops::Range;

use pulp::{Arch, Scalar, Simd, WithSimd};

use super::counts::{Statistics, add_row, for_each_range, objective, scatter};
use super::dense::{self, DenseColumns, Singletons};
use super::estimate::{SingletonEstimator, SparseCell};
use super::gather_buffer::GatherBuffer;
use super::log_domain::{LogProduct, exp_all, shift};
use super::m_step::Columns;
use super::padded_matrix::{prefetch_row, stride};
use super::prior::{LogPrior, Prior};
use super::sparse::SparseColumns;
use super::special_rows::{SAFE, Special, are_roots};
use super::width::{for_classes, width};
use crate::frame::{Annotations, InstanceRange, WeightSlice};
use crate::model::posterior::Posterior;

/// Annotations between asking for a column and using it.
const AHEAD: usize = 64;

/// Instances whose cells are gathered together: few enough for the nearest cache.
const GATHERED: usize = 64;

/// Posteriors of all instances, and their merged statistics in the first of `parts`; returns the log-likelihood.
pub fn e_step(
    a: &Annotations,
    prior: Prior<'_>,
    columns: &Columns,
    estimator: &dyn SingletonEstimator,
    t: &mut Posterior,
    parts: &mut [Statistics],
) -> f64 {
    let n = t.n_classes();
    for_each_range(a, t, parts, |instances, range, rows, into| {
        let step = EStep { range, prior: prior.range(&instances, n), estimator };
        step.run(columns, rows, into);
    });
    objective(parts)
}

/// What the kernel reads beside the columns.
pub struct EStep<'a> {
    /// The annotations of the instances.
    pub range: InstanceRange<'a>,
    /// Their prior.
    pub prior: Prior<'a>,
    /// What has made the columns.
    pub estimator: &'a dyn SingletonEstimator,
}

impl EStep<'_> {
    /// Turns `rows`, `[instance, class]`, from the posteriors behind the columns into those that follow from them, and
    /// adds them to `into`.
    pub fn run(self, columns: &Columns, rows: &mut [f64], into: &mut Statistics) {
        let arch = Arch::new();
        match columns {
            // Its rows are long but few of their cells are kept: wider vectors cost it more than they bring.
            Columns::Sparse(columns) => {
                SparseSweep { step: self, columns, rows, into, arch }.with_simd(Scalar::new());
            }
            Columns::Dense(columns) => for_classes!(into.classes().len(), K => {
                arch.dispatch(DenseSweep::<K> { step: self, columns, rows, into });
            }),
        }
    }
}

/// The sweep over dense columns.
struct DenseSweep<'a, const K: usize> {
    step: EStep<'a>,
    columns: &'a DenseColumns,
    rows: &'a mut [f64],
    into: &'a mut Statistics,
}

impl<const K: usize> WithSimd for DenseSweep<'_, K> {
    type Output = ();

    // All that is called is inlined too: only so is it compiled for the vectors of the processor at hand.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (sums, table) = self.into.sums_and_table();
        let near =
            Prefetcher { columns: self.step.range.columns, cells: self.columns.cells.cells() };
        let all_kept = self.step.range.labels.len() <= self.columns.cells.n_columns();
        let Self { step, columns, rows, .. } = self;
        // Columns hold logarithms where every annotation has a weight of its own.
        let objective = match (step.range.weights, all_kept) {
            (WeightSlice::All(w), true) => {
                step.in_log_domain::<K, true>(w, columns, near, rows, sums, table)
            }
            (WeightSlice::All(w), false) => {
                step.in_log_domain::<K, false>(w, columns, near, rows, sums, table)
            }
            (_, true) => step.by_products::<K, true>(columns, near, rows, sums, table),
            (_, false) => step.by_products::<K, false>(columns, near, rows, sums, table),
        };
        self.into.add_objective(objective);
    }
}

/// Prefetches columns before they are used.
#[derive(Clone, Copy)]
struct Prefetcher<'a> {
    columns: &'a [u32],
    cells: &'a [f64],
}

impl Prefetcher<'_> {
    /// Prefetches the cells and the counts of the annotations that follow `AHEAD` after those at `own`.
    #[inline(always)]
    fn prefetch<const ALL_KEPT: bool>(self, own: Range<usize>, table: &[f64], n: usize) {
        let Some(ahead) = self.columns.get(own.start + AHEAD..own.end + AHEAD) else { return };
        for column in ahead {
            let at = *column as usize * stride(n);
            // An address behind the table costs a failed walk through the page tables.
            if ALL_KEPT || at < self.cells.len() {
                prefetch_row(self.cells, at, n);
            }
            if !table.is_empty() {
                prefetch_row(table, at, n);
            }
        }
    }
}

impl EStep<'_> {
    /// Rows as products; returns the objective.
    #[inline(always)]
    fn by_products<const K: usize, const ALL_KEPT: bool>(
        self,
        columns: &DenseColumns,
        near: Prefetcher<'_>,
        rows: &mut [f64],
        sums: &mut [f64],
        table: &mut [f64],
    ) -> f64 {
        let n = width::<K>(sums.len()).max(1);
        let Self { range, prior, estimator } = self;
        let mut into = Sums { classes: sums, table, likelihood: LogProduct::default() };
        let (mut special, mut terms) = (Special::new(n, range.weights), 0.0);
        let mut singletons = Singletons::new(n, estimator);
        let write = |column: u32, weight: f64, previous: &[f64], factors: &mut [f64]| {
            let place = (column, range.labels[column as usize], weight);
            columns.write(place, estimator, previous, factors)
        };
        let is_special = |i: usize, own: Range<usize>| {
            range.trusted_class(i).is_some()
                || own.len() > SAFE
                || !range.weights.slice(own).is_ones()
        };
        let (mut begin, base) = (0, range.offsets[0]);
        for (start, rows) in (0..).step_by(GATHERED).zip(rows.chunks_mut(GATHERED * n)) {
            if !ALL_KEPT {
                terms += singletons.prepare::<K>(&range, start, (rows, near.cells), is_special);
            }
            let ends = &range.offsets[start + 1..];
            for (at, (row, end)) in rows.chunks_exact_mut(n).zip(ends).enumerate() {
                let (i, own) = (start + at, begin..end - base);
                begin = own.end;
                near.prefetch::<ALL_KEPT>(own.clone(), into.table, n);
                let (columns, prior) = (&range.columns[own.clone()], prior.of(i, n));
                let is_weighted = special.is_next(own.end);
                let is_trusted = range.trusted_class(i).is_some();
                if K > 0 && ALL_KEPT && !is_weighted && !is_trusted && columns.len() <= SAFE {
                    // In registers until it is counted.
                    let mut product = [0.0; K];
                    dense::multiply::<K>(&mut product, prior, near.cells, columns);
                    into.add::<K>(&mut product, columns, WeightSlice::Ones);
                    row.copy_from_slice(&product);
                    continue;
                }
                let weights =
                    if is_weighted { range.weights.slice(own) } else { WeightSlice::Ones };
                if is_trusted || is_weighted && !are_roots(columns, weights) {
                    terms += special.row(&range, i, prior, write, false, row);
                    into.add_normalised::<K>(row, columns, weights);
                    continue;
                }
                if is_weighted {
                    terms += special.weighted_row(columns, weights, prior, write, row);
                } else if columns.len() > SAFE {
                    terms += special.long_row(columns, prior, write, row);
                } else if ALL_KEPT {
                    dense::multiply::<K>(row, prior, near.cells, columns);
                } else {
                    singletons.multiply::<K>(at, row, prior, near.cells, columns);
                }
                into.add::<K>(row, columns, weights);
            }
        }
        terms + into.likelihood.ln()
    }

    /// Rows in three steps over a few of them each: sums of logarithms, all their exponentials at once, counts. Returns
    /// the objective.
    #[inline(always)]
    fn in_log_domain<const K: usize, const ALL_KEPT: bool>(
        self,
        weights: &[f64],
        columns: &DenseColumns,
        near: Prefetcher<'_>,
        rows: &mut [f64],
        sums: &mut [f64],
        table: &mut [f64],
    ) -> f64 {
        let n = width::<K>(sums.len()).max(1);
        let Self { range, prior, estimator } = self;
        let mut into = Sums { classes: sums, table, likelihood: LogProduct::default() };
        let (mut special, mut terms) = (Special::new(n, WeightSlice::Ones), 0.0);
        let mut log_prior = LogPrior::new(prior, n);
        let mut singletons = Singletons::new(n, estimator);
        let write = |column: u32, weight: f64, last: &[f64], factors: &mut [f64]| {
            let place = (column, range.labels[column as usize], weight);
            columns.write(place, estimator, last, factors)
        };
        let base = range.offsets[0];
        for (start, rows) in (0..).step_by(GATHERED).zip(rows.chunks_mut(GATHERED * n)) {
            let (mut shifts, ends) = ([0.0; GATHERED], &range.offsets[start + 1..]);
            let first = range.offsets[start] - base;
            if !ALL_KEPT {
                let is_trusted = |i: usize, _: Range<usize>| range.trusted_class(i).is_some();
                terms += singletons.prepare::<K>(&range, start, (rows, near.cells), is_trusted);
            }
            let mut begin = first;
            for (at, (row, end)) in rows.chunks_exact_mut(n).zip(ends).enumerate() {
                let (i, own) = (start + at, begin..end - base);
                begin = own.end;
                near.prefetch::<ALL_KEPT>(own.clone(), into.table, n);
                let (columns, weights) = (&range.columns[own.clone()], &weights[own]);
                if let Some(class) = range.trusted_class(i) {
                    terms += special.row(&range, i, prior.of(i, n), write, true, row);
                    row.fill(f64::NEG_INFINITY);
                    row[class as usize] = 0.0;
                    continue;
                }
                let prior = log_prior.of(i);
                if ALL_KEPT {
                    dense::add_logs::<K>(row, prior, near.cells, columns, weights);
                } else {
                    singletons.add_logs::<K>(at, (row, prior), near.cells, columns, weights);
                }
                shifts[at] = shift::<K>(row);
            }
            exp_all(rows);
            begin = first;
            for ((row, end), shift) in rows.chunks_exact_mut(n).zip(ends).zip(shifts) {
                let own = begin..end - base;
                begin = own.end;
                let (columns, weights) = (&range.columns[own.clone()], &weights[own]);
                // The row of a trusted instance becomes one-hot again, over a sum of 1.
                into.add::<K>(row, columns, WeightSlice::All(weights));
                terms += if columns.is_empty() { 0.0 } else { shift };
            }
        }
        terms + into.likelihood.ln()
    }
}

/// What the rows of a range come to.
struct Sums<'a> {
    classes: &'a mut [f64],
    table: &'a mut [f64],
    likelihood: LogProduct,
}

impl Sums<'_> {
    /// Divides a row by its sum, which is the likelihood of its instance, and adds it.
    #[inline(always)]
    fn add<const K: usize>(&mut self, row: &mut [f64], columns: &[u32], weights: WeightSlice<'_>) {
        let total = normalise_row::<K>(row);
        if !columns.is_empty() {
            self.likelihood.push(total);
        }
        self.add_normalised::<K>(row, columns, weights);
    }

    /// Adds a posterior row.
    #[inline(always)]
    fn add_normalised<const K: usize>(
        &mut self,
        row: &[f64],
        columns: &[u32],
        weights: WeightSlice<'_>,
    ) {
        if !columns.is_empty() {
            add_row::<K>(self.classes, row);
        }
        if !self.table.is_empty() {
            scatter::<K>(self.table, row, columns, weights);
        }
    }
}

/// The sweep over columns without the cells that nothing stands behind.
struct SparseSweep<'a> {
    step: EStep<'a>,
    columns: &'a SparseColumns,
    rows: &'a mut [f64],
    into: &'a mut Statistics,
    /// For exponentials, of which a row has one a class.
    arch: Arch,
}

impl WithSimd for SparseSweep<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { step: EStep { range, prior, .. }, columns, rows, into, arch } = self;
        let n = into.classes().len().max(1);
        let are_logs = columns.are_logs();
        let (mut likelihood, mut terms) = (LogProduct::default(), 0.0);
        let mut special = Special::new(n, range.weights);
        let mut log_prior = LogPrior::new(prior, n);
        let mut near = GatherBuffer::<SparseCell>::default();
        for (start, rows) in (0..).step_by(GATHERED).zip(rows.chunks_mut(GATHERED * n)) {
            columns.gather(&range, start..start + rows.len() / n, &mut near);
            for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                let i = start + at;
                let own = range.positions(i);
                let (own_columns, prior) = (&range.columns[own.clone()], prior.of(i, n));
                let weights = range.weights.slice(own.clone());
                let write = |column: u32, _: f64, _: &[f64], factors: &mut [f64]| {
                    columns.write(column, factors);
                    0.0
                };
                if special.is_next(own.end) || range.trusted_class(i).is_some() {
                    terms += special.row(&range, i, prior, write, are_logs, row);
                } else {
                    if are_logs {
                        columns.add_logs(
                            row,
                            log_prior.of(i),
                            own_columns,
                            weights,
                            near.group(at),
                        );
                        let shift = shift::<0>(row);
                        arch.dispatch(|| exp_all(row));
                        terms += if own_columns.is_empty() { 0.0 } else { shift };
                    } else if own_columns.len() > SAFE {
                        terms += special.long_row(own_columns, prior, write, row);
                    } else {
                        columns.multiply(row, prior, own_columns, near.group(at));
                    }
                    let total = normalise_row::<0>(row);
                    if !own_columns.is_empty() {
                        likelihood.push(total);
                    }
                }
                into.add(i, row, own_columns, weights);
            }
        }
        into.add_objective(terms + likelihood.ln());
    }
}

/// Divides a row by its sum, and returns that.
#[inline(always)]
fn normalise_row<const K: usize>(row: &mut [f64]) -> f64 {
    let n = width::<K>(row.len());
    let row = &mut row[..n];
    let total = if K > 0 { row.iter().sum() } else { sum_of(row) };
    let scale = 1.0 / total;
    row.iter_mut().for_each(|p| *p *= scale);
    total
}

/// The sum of a long row, in four lanes, so that no addition waits for the one before it.
#[inline(always)]
fn sum_of(row: &[f64]) -> f64 {
    let (fours, rest) = row.as_chunks::<4>();
    let mut lanes = [0.0; 4];
    for four in fours {
        (0..4).for_each(|lane| lanes[lane] += four[lane]);
    }
    lanes.iter().sum::<f64>() + rest.iter().sum::<f64>()
}
