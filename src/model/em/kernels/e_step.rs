//! The E-step over a range of instances: computes posteriors as products of confusion columns, and counts them.
//!
//! # Why
//! Sums of logarithms need one logarithm per cell and one exponential per class. Products need neither, and do not
//! underflow with up to `MAX_FACTORS` factors, because likelihoods are at least [`MIN_LIKELIHOOD`]. Longer products are
//! computed in runs of `MAX_FACTORS` factors; after each run the binary exponent of every class is added to an
//! integer, which is exact. Weights are exponents of factors: if few annotations have one, only their instances take a
//! slower path; if every annotation has one, columns hold logarithms.
//!
//! Columns and their counts are read in random order, so a [`Prefetcher`] loads them before their use.
//!
//! [`MIN_LIKELIHOOD`]: crate::model::numerics::MIN_LIKELIHOOD

use std::cell::Cell;
use std::ops::Range;

use pulp::{Arch, Scalar, Simd, WithSimd};

use super::dense::{self, DenseColumns};
use super::estimate::{SingletonEstimator, SparseCell};
use super::gather_buffer::GatherBuffer;
use super::logarithms::{LogProduct, exp_all, shift};
use super::m_step::Columns;
use super::plain_rows::{plain_rows, plain_run};
use super::posterior_rows::{MAX_CHUNK, PosteriorRows, chunk_len};
use super::prefetcher::{LIST_DISTANCE, Prefetcher};
use super::prior::{LogPrior, Prior};
use super::ranges::{for_each_range, log_likelihood};
use super::row_arithmetic::normalise_row;
use super::singletons::{SingletonFactors, SingletonLogs};
use super::sparse::SparseColumns;
use super::special_rows::{MAX_FACTORS, RowPath, SpecialRows, product_stays_in_range};
use super::statistics::Statistics;
use super::sums::Sums;
use super::width::{for_classes, width};
use crate::frame::{Annotations, InstanceRange, WeightSlice};
use crate::model::posterior::Posterior;
use crate::prefetch::prefetch;

/// Computes the posteriors of all instances, and the statistics of each range in `parts`; returns the log-likelihood.
/// Without `t` the posteriors are counted, but not stored.
pub fn e_step(
    a: &Annotations,
    prior: Prior<'_>,
    columns: &Columns,
    estimator: &dyn SingletonEstimator,
    t: Option<&mut Posterior>,
    parts: &mut [Statistics],
) -> f64 {
    let n = a.dims().classes;
    for_each_range(a, t, parts, |instances, range, rows, statistics| {
        let step = EStep { range, prior: prior.range(&instances, n), estimator };
        step.run(columns, rows, statistics);
    });
    log_likelihood(parts)
}

/// The annotations, prior and estimator of a range of instances.
pub struct EStep<'a> {
    /// The annotations of the instances.
    pub range: InstanceRange<'a>,
    /// The prior of the instances.
    pub prior: Prior<'a>,
    /// The estimator that computed the columns.
    pub estimator: &'a dyn SingletonEstimator,
}

impl EStep<'_> {
    /// Replaces `rows`, `[instance, class]`, the posteriors from which the M-step computed the columns, by the new
    /// posteriors, and adds these to `statistics`, whose strategy must be that of the columns. Without `rows` all columns
    /// must be stored: the others are computed from the old posteriors.
    pub fn run(self, columns: &Columns, rows: Option<&mut [f64]>, statistics: &mut Statistics) {
        debug_assert!(
            rows.is_some() || columns.stores_all(&self.range),
            "old posteriors are missing"
        );
        debug_assert!(self.prior.is_usable(), "a probability that is neither 0 nor at least 1e-27");
        // A copy in memory of this thread, as the class sums: see `Statistics::clear`.
        let own;
        let prior = match self.prior {
            Prior::Class(prior) => {
                own = prior.to_vec();
                Prior::Class(&own)
            }
            Prior::Instance(_) => self.prior,
        };
        let step = EStep { prior, ..self };
        let arch = Arch::new();
        let rows = PosteriorRows::new(rows, statistics.classes().len());
        match columns {
            // Columns have few stored cells: SIMD costs more here than it gains.
            Columns::Sparse(columns) => {
                SparseSweep { step, columns, rows, statistics, arch }.with_simd(Scalar::new());
            }
            Columns::Dense(columns) => for_classes!(statistics.classes().len(), K => {
                arch.dispatch(DenseSweep::<K> { step, columns, rows, statistics });
            }),
        }
    }
}

/// The sweep over dense columns.
struct DenseSweep<'a, const K: usize> {
    step: EStep<'a>,
    columns: &'a DenseColumns,
    rows: PosteriorRows<'a>,
    statistics: &'a mut Statistics,
}

impl<const K: usize> WithSimd for DenseSweep<'_, K> {
    type Output = ();

    // All callees are inlined too; otherwise they would not be compiled for the vector instructions of this processor.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (classes, table) = self.statistics.sums_and_table();
        let prefetcher =
            Prefetcher { columns: self.step.range.columns, cells: self.columns.cells.cells() };
        let Self { step, columns, rows, .. } = self;
        // Columns hold logarithms where every annotation has a weight of its own.
        let (log_likelihood, prior_terms) = match step.range.weights {
            WeightSlice::All(w) => {
                step.in_log_domain::<K>(w, columns, prefetcher, rows, classes, table)
            }
            _ => step.by_products::<K>(columns, prefetcher, rows, classes, table),
        };
        self.statistics.add_objective(log_likelihood, prior_terms);
    }
}

/// The columns of the annotations of adjacent instances of a range.
#[inline(always)]
fn chunk_columns<'a>(range: &InstanceRange<'a>, start: usize, instances: usize) -> &'a [u32] {
    let base = range.offsets[0];
    &range.columns[range.offsets[start] - base..range.offsets[start + instances] - base]
}

impl EStep<'_> {
    /// Computes and counts posteriors as products; returns the log-likelihood, and the estimator's terms of the
    /// objective of recomputed columns.
    #[inline(always)]
    fn by_products<const K: usize>(
        self,
        columns: &DenseColumns,
        prefetcher: Prefetcher<'_>,
        mut rows: PosteriorRows<'_>,
        classes: &mut [f64],
        table: &mut [f64],
    ) -> (f64, f64) {
        let n = width::<K>(classes.len()).max(1);
        let Self { range, prior, estimator } = self;
        let mut sums = Sums { classes, table, likelihood: LogProduct::default() };
        let (mut special, mut terms) = (SpecialRows::new(n, range.weights), 0.0);
        let mut singletons = SingletonFactors::new(n, estimator);
        // Saves a look at the columns of each chunk.
        let range_is_stored = columns.stores_all(&range);
        let prior_terms = Cell::new(0.0);
        let add_prior_term = |term: f64| prior_terms.set(prior_terms.get() + term);
        let write = |column: u32, weight: f64, previous: &[f64], factors: &mut [f64]| {
            add_prior_term(columns.write((column, weight), &range, estimator, previous, factors));
        };
        let is_special = |i: usize, positions: Range<usize>| {
            let (is_trusted, n_columns) = (range.trusted_class(i).is_some(), positions.len());
            let is_weighted = !range.weights.slice(positions).is_ones();
            RowPath::of(is_trusted, is_weighted, n_columns) != RowPath::Plain
        };
        for start in (0..range.len()).step_by(chunk_len(n)) {
            let rows = rows.chunk(start, range.len());
            let chunk_is_stored =
                range_is_stored || columns.all_stored(chunk_columns(&range, start, rows.len() / n));
            if !chunk_is_stored {
                let prepared = (rows as &[f64], prefetcher.cells);
                add_prior_term(singletons.prepare::<K>(&range, start, prepared, is_special));
            }
            let (mut next, instances) = (0, rows.len() / n);
            while next < instances {
                let (at, i) = (next, start + next);
                if K > 0 && chunk_is_stored {
                    let n_plain = plain_run(&range, &special, i, instances - at);
                    next += n_plain;
                    if n_plain > 0 {
                        let (plain, rows) = (i..i + n_plain, &mut rows[at * n..next * n]);
                        plain_rows::<K>(&range, prior, prefetcher, plain, rows, &mut sums);
                        continue;
                    }
                }
                next += 1;
                let (row, positions) = (&mut rows[at * n..next * n], range.positions(i));
                prefetcher.prefetch(positions.clone(), sums.table, n);
                let (own, prior) = (&range.columns[positions.clone()], prior.of(i, n));
                let is_weighted = special.is_next(positions.end);
                let path = RowPath::of(range.trusted_class(i).is_some(), is_weighted, own.len());
                let weights =
                    if is_weighted { range.weights.slice(positions) } else { WeightSlice::Ones };
                match path {
                    // Only without a kernel for this number of classes.
                    RowPath::Plain if chunk_is_stored => {
                        dense::multiply::<K>(row, prior, prefetcher.cells, own);
                    }
                    RowPath::Plain => {
                        singletons.multiply::<K>(at, row, prior, prefetcher.cells, own);
                    }
                    RowPath::Long => terms += special.long_row(own, prior, write, row),
                    RowPath::Weighted if product_stays_in_range(own, weights) => {
                        special.weighted_row(own, weights, prior, write, row);
                    }
                    RowPath::Weighted | RowPath::Trusted => {
                        terms += special.row(&range, i, prior, write, false, row);
                        sums.add_normalised::<K>(row, own, weights);
                        continue;
                    }
                }
                sums.add::<K>(row, own, weights);
            }
        }
        (terms + sums.likelihood.ln(), prior_terms.get())
    }

    /// Computes and counts posteriors in the log domain, in three passes over [`chunk_len`] rows: sums of logarithms, all
    /// exponentials, counts. Returns what [`Self::by_products`] returns.
    #[inline(always)]
    fn in_log_domain<const K: usize>(
        self,
        weights: &[f64],
        columns: &DenseColumns,
        prefetcher: Prefetcher<'_>,
        mut rows: PosteriorRows<'_>,
        classes: &mut [f64],
        table: &mut [f64],
    ) -> (f64, f64) {
        let n = width::<K>(classes.len()).max(1);
        let Self { range, prior, estimator } = self;
        let mut sums = Sums { classes, table, likelihood: LogProduct::default() };
        let (mut special, mut terms) = (SpecialRows::new(n, WeightSlice::Ones), 0.0);
        let mut log_prior = LogPrior::new(prior, n);
        let mut singletons = SingletonLogs::new(n, estimator);
        // Saves a look at the columns of each chunk.
        let range_is_stored = columns.stores_all(&range);
        let prior_terms = Cell::new(0.0);
        let add_prior_term = |term: f64| prior_terms.set(prior_terms.get() + term);
        let write = |column: u32, weight: f64, previous: &[f64], factors: &mut [f64]| {
            add_prior_term(columns.write((column, weight), &range, estimator, previous, factors));
        };
        let base = range.offsets[0];
        for start in (0..range.len()).step_by(chunk_len(n)) {
            let rows = rows.chunk(start, range.len());
            let (mut shifts, ends) = ([0.0; MAX_CHUNK], &range.offsets[start + 1..]);
            let first = range.offsets[start] - base;
            let own_columns = chunk_columns(&range, start, rows.len() / n);
            let chunk_is_stored = range_is_stored || columns.all_stored(own_columns);
            if !chunk_is_stored {
                singletons.keep_posteriors::<K>(&range, own_columns, rows);
            }
            let mut begin = first;
            for (at, (row, end)) in rows.chunks_exact_mut(n).zip(ends).enumerate() {
                let (i, positions) = (start + at, begin..end - base);
                begin = positions.end;
                prefetcher.prefetch(positions.clone(), sums.table, n);
                prefetch(weights, positions.end + LIST_DISTANCE);
                let (own, weights) = (&range.columns[positions.clone()], &weights[positions]);
                if let Some(class) = range.trusted_class(i) {
                    terms += special.row(&range, i, prior.of(i, n), write, true, row);
                    row.fill(f64::NEG_INFINITY);
                    row[class as usize] = 0.0;
                    continue;
                }
                let prior = log_prior.of(i);
                if chunk_is_stored {
                    dense::add_logs::<K>(row, prior, prefetcher.cells, own, weights);
                } else {
                    add_prior_term(singletons.add::<K>(
                        &range,
                        at,
                        (&mut *row, prior),
                        prefetcher.cells,
                        (own, weights),
                    ));
                }
                shifts[at] = shift::<K>(row);
            }
            exp_all(rows);
            begin = first;
            for ((row, end), shift) in rows.chunks_exact_mut(n).zip(ends).zip(shifts) {
                let positions = begin..end - base;
                begin = positions.end;
                let (own, weights) = (&range.columns[positions.clone()], &weights[positions]);
                // After the exponentials, the row of a trusted instance is one-hot; its sum is 1.
                sums.add::<K>(row, own, WeightSlice::All(weights));
                terms += if own.is_empty() { 0.0 } else { shift };
            }
        }
        (terms + sums.likelihood.ln(), prior_terms.get())
    }
}

/// The sweep over sparse columns.
struct SparseSweep<'a> {
    step: EStep<'a>,
    columns: &'a SparseColumns,
    rows: PosteriorRows<'a>,
    statistics: &'a mut Statistics,
    /// Only the exponentials, one per class, use SIMD.
    arch: Arch,
}

impl WithSimd for SparseSweep<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { step: EStep { range, prior, .. }, columns, mut rows, statistics, arch } = self;
        let n = statistics.classes().len().max(1);
        let are_logs = columns.are_logs();
        let (mut likelihood, mut terms) = (LogProduct::default(), 0.0);
        let mut special = SpecialRows::new(n, range.weights);
        let mut log_prior = LogPrior::new(prior, n);
        let mut gathered = GatherBuffer::<SparseCell>::default();
        for start in (0..range.len()).step_by(chunk_len(n)) {
            let rows = rows.chunk(start, range.len());
            columns.gather(&range, start..start + rows.len() / n, &mut gathered);
            for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                let i = start + at;
                let positions = range.positions(i);
                let (own_columns, prior) = (&range.columns[positions.clone()], prior.of(i, n));
                let weights = range.weights.slice(positions.clone());
                let write = |column: u32, _: f64, _: &[f64], factors: &mut [f64]| {
                    columns.write(column, factors);
                };
                if special.is_next(positions.end) || range.trusted_class(i).is_some() {
                    terms += special.row(&range, i, prior, write, are_logs, row);
                } else {
                    if are_logs {
                        columns.add_logs(
                            row,
                            log_prior.of(i),
                            own_columns,
                            weights,
                            gathered.group(at),
                        );
                        let shift = shift::<0>(row);
                        arch.dispatch(|| exp_all(row));
                        terms += if own_columns.is_empty() { 0.0 } else { shift };
                    } else if own_columns.len() > MAX_FACTORS {
                        terms += special.long_row(own_columns, prior, write, row);
                    } else {
                        columns.multiply(row, prior, own_columns, gathered.group(at));
                    }
                    let total = normalise_row::<0>(row);
                    if !own_columns.is_empty() {
                        likelihood.push(total);
                    }
                }
                statistics.add(i, row, !own_columns.is_empty());
            }
        }
        statistics.add_objective(terms + likelihood.ln(), 0.0);
    }
}
