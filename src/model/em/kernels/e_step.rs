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
//! A column and its counts lie anywhere in memory. They are asked for `AHEAD` annotations before they are used, so that
//! memory brings them while other rows are computed.
//!
//! [`MIN_LIKELIHOOD`]: super::MIN_LIKELIHOOD

use std::ops::Range;

use pulp::{Arch, Scalar, Simd, WithSimd};

use super::counts::{Statistics, add_row, for_each_range, scatter};
use super::dense::{self, DenseColumns};
use super::estimate::Estimator;
use super::gather_buffer::GatherBuffer;
use super::log_domain::{LogProduct, exp_all, shift};
use super::m_step::Columns;
use super::sparse::{Cell, SparseColumns};
use super::special_rows::{SAFE, Special, are_roots};
use super::{for_classes, prefetch, width};
use crate::frame::{Annotations, InstanceRange, WeightSlice};
use crate::model::fitted::Posterior;

/// Annotations between asking for a column and using it.
const AHEAD: usize = 64;

/// Instances whose cells are gathered together: few enough for the nearest cache.
const GATHERED: usize = 64;

/// P(class) before any annotation: the same for all instances, or each its own.
#[derive(Debug, Clone, Copy)]
pub enum Prior<'a> {
    /// `[class]`
    Class(&'a [f64]),
    /// `[instance, class]`, such as what a classifier says
    Instance(&'a [f64]),
}

impl<'a> Prior<'a> {
    /// That of the `i`-th instance.
    #[inline(always)]
    pub(super) fn of(self, i: usize, n: usize) -> &'a [f64] {
        match self {
            Self::Class(prior) => prior,
            Self::Instance(rows) => &rows[i * n..(i + 1) * n],
        }
    }

    fn range(self, instances: &Range<usize>, n: usize) -> Self {
        match self {
            Self::Class(prior) => Self::Class(prior),
            Self::Instance(rows) => Self::Instance(&rows[instances.start * n..instances.end * n]),
        }
    }
}

/// Posteriors of all instances, and their merged statistics in the first of `parts`; returns the log-likelihood.
pub fn e_step(
    a: &Annotations,
    prior: Prior<'_>,
    columns: &Columns,
    estimator: &dyn Estimator,
    t: &mut Posterior,
    parts: &mut [Statistics],
) -> f64 {
    let n = t.n_classes();
    for_each_range(a, t, parts, |instances, range, rows, into| {
        let step = EStep { range, prior: prior.range(&instances, n), estimator };
        step.run(columns, rows, into);
    });
    parts.first().map_or(0.0, Statistics::objective)
}

/// What the kernel reads beside the columns.
#[derive(Clone, Copy)]
pub struct EStep<'a> {
    /// The annotations of the instances.
    pub range: InstanceRange<'a>,
    /// Their prior.
    pub prior: Prior<'a>,
    /// What has made the columns.
    pub estimator: &'a dyn Estimator,
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
        let n = width::<K>(self.into.classes().len()).max(1);
        let (sums, table) = self.into.sums_and_table();
        let near = Near { columns: self.step.range.columns, cells: &self.columns.cells };
        let objective = if self.columns.are_logs {
            self.step.in_log_domain::<K>(self.columns, near, self.rows, sums, table)
        } else if self.step.range.labels.len() * n > self.columns.cells.len() {
            self.step.by_products::<K, false, false>(self.columns, near, self.rows, sums, table)
        } else if table.is_empty() {
            self.step.by_products::<K, true, false>(self.columns, near, self.rows, sums, table)
        } else {
            self.step.by_products::<K, true, true>(self.columns, near, self.rows, sums, table)
        };
        self.into.add_objective(objective);
    }
}

/// Columns that are asked for before they are used.
#[derive(Clone, Copy)]
struct Near<'a> {
    columns: &'a [u32],
    cells: &'a [f64],
}

impl Near<'_> {
    /// Asks for the cells and the counts that the annotations after those at `own` will need.
    #[inline(always)]
    fn prefetch(self, own: Range<usize>, table: &[f64], n: usize) {
        let Some(ahead) = self.columns.get(own.start + AHEAD..own.end + AHEAD) else { return };
        for column in ahead {
            let at = *column as usize * n;
            prefetch(self.cells, at, n);
            prefetch(table, at, n);
        }
    }
}

impl EStep<'_> {
    /// Rows as products; returns the objective.
    #[inline(always)]
    fn by_products<const K: usize, const ALL_KEPT: bool, const SCATTER: bool>(
        self,
        columns: &DenseColumns,
        near: Near<'_>,
        rows: &mut [f64],
        sums: &mut [f64],
        table: &mut [f64],
    ) -> f64 {
        let n = width::<K>(sums.len()).max(1);
        let Self { range, prior, estimator } = self;
        let (mut likelihood, mut terms) = (LogProduct::default(), 0.0);
        let mut special = Special::new(n, range.weights);
        let write = |column: u32, last: &[f64], factors: &mut [f64]| {
            columns.write(column, range.labels[column as usize], estimator, last, factors)
        };
        let (mut begin, base) = (0, range.offsets[0]);
        for (i, (row, end)) in rows.chunks_exact_mut(n).zip(&range.offsets[1..]).enumerate() {
            let own = begin..end - base;
            begin = own.end;
            if SCATTER {
                near.prefetch(own.clone(), table, n);
            } else {
                near.prefetch(own.clone(), &[], n);
            }
            let (columns, prior) = (&range.columns[own.clone()], prior.of(i, n));
            let is_weighted = special.is_next(own.end);
            let weights = if is_weighted { range.weights.slice(own) } else { WeightSlice::Ones };
            if range.trusted_class(i).is_some() || is_weighted && !are_roots(columns, weights) {
                terms += special.row(&range, i, prior, write, false, row);
            } else {
                if is_weighted {
                    terms += special.weighted_row(columns, weights, prior, write, row);
                } else if columns.len() > SAFE {
                    terms += special.long_row(columns, prior, write, row);
                } else if ALL_KEPT {
                    dense::multiply::<K>(row, prior, near.cells, columns);
                } else {
                    terms += dense::multiply_with_singletons::<K>(
                        row,
                        prior,
                        near.cells,
                        columns,
                        range.labels,
                        estimator,
                    );
                }
                let total = normalise_row::<K>(row);
                if !columns.is_empty() {
                    likelihood.push(total);
                }
            }
            if !columns.is_empty() {
                add_row::<K>(sums, row);
            }
            if SCATTER {
                scatter::<K>(table, row, columns, weights);
            }
        }
        terms + likelihood.ln()
    }

    /// Rows in three steps over a few of them each: sums of logarithms, all their exponentials at once, counts. Returns
    /// the objective.
    #[inline(always)]
    fn in_log_domain<const K: usize>(
        self,
        columns: &DenseColumns,
        near: Near<'_>,
        rows: &mut [f64],
        sums: &mut [f64],
        table: &mut [f64],
    ) -> f64 {
        let n = width::<K>(sums.len()).max(1);
        let Self { range, prior, estimator } = self;
        let WeightSlice::All(weights) = range.weights else { return 0.0 };
        let (mut likelihood, mut terms) = (LogProduct::default(), 0.0);
        let mut special = Special::new(n, WeightSlice::Ones);
        let mut log_prior = LogPrior::default();
        let write = |column: u32, last: &[f64], factors: &mut [f64]| {
            columns.write(column, range.labels[column as usize], estimator, last, factors)
        };
        for (start, rows) in (0..).step_by(GATHERED).zip(rows.chunks_mut(GATHERED * n)) {
            let mut shifts = [0.0; GATHERED];
            for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                let i = start + at;
                let own = range.positions(i);
                near.prefetch(own.clone(), table, n);
                let (columns, weights) = (&range.columns[own.clone()], &weights[own]);
                let prior = log_prior.of(prior.of(i, n));
                dense::add_logs::<K>(row, prior, near.cells, columns, weights);
                shifts[at] = shift::<K>(row);
            }
            exp_all(rows);
            for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                let i = start + at;
                let own = range.positions(i);
                let (columns, weights) = (&range.columns[own.clone()], &weights[own]);
                if range.trusted_class(i).is_some() {
                    terms += special.row(&range, i, prior.of(i, n), write, true, row);
                } else {
                    let total = normalise_row::<K>(row);
                    if !columns.is_empty() {
                        likelihood.push(total);
                        terms += shifts[at];
                    }
                }
                if !columns.is_empty() {
                    add_row::<K>(sums, row);
                }
                if !table.is_empty() {
                    scatter::<K>(table, row, columns, WeightSlice::All(weights));
                }
            }
        }
        terms + likelihood.ln()
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
        let mut log_prior = LogPrior::default();
        let mut near = GatherBuffer::<Cell>::default();
        for (start, rows) in (0..).step_by(GATHERED).zip(rows.chunks_mut(GATHERED * n)) {
            columns.gather(&range, start..start + rows.len() / n, &mut near);
            for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                let i = start + at;
                let own = range.positions(i);
                let (own_columns, prior) = (&range.columns[own.clone()], prior.of(i, n));
                let weights = range.weights.slice(own.clone());
                let write = |column: u32, _: &[f64], factors: &mut [f64]| {
                    columns.write(column, factors);
                    0.0
                };
                if special.is_next(own.end) || range.trusted_class(i).is_some() {
                    terms += special.row(&range, i, prior, write, are_logs, row);
                } else {
                    if are_logs {
                        columns.add_logs(
                            row,
                            log_prior.of(prior),
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
                into.add(row, own_columns, weights);
            }
        }
        into.add_objective(terms + likelihood.ln());
    }
}

/// The logarithm of the prior, taken again only where the prior is another.
#[derive(Default)]
struct LogPrior {
    prior: Vec<f64>,
    logs: Vec<f64>,
}

impl LogPrior {
    #[inline(always)]
    fn of(&mut self, prior: &[f64]) -> &[f64] {
        if self.prior != prior {
            self.prior.clear();
            self.prior.extend_from_slice(prior);
            self.logs.clear();
            self.logs.extend(prior.iter().map(|p| p.ln()));
        }
        &self.logs
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
