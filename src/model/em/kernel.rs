//! The two sweeps of every model whose likelihood is a product of confusion columns.
//!
//! ```text
//! E   T[i][k]      ~ prior[k] * product over the columns c said of i of likelihood[c][k]
//! M   counts[c][k] = sum over the instances i of which c was said of T[i][k]
//! ```
//! # Why
//! Sums of logarithms need a logarithm a cell and an exponential a class. Products need neither, and are exact when no
//! partial product leaves the range of f64: with likelihoods of at least [`LEAST`], [`SAFE`] factors cannot. Longer
//! products are taken in runs of [`SAFE`], after each of which every class's power of two is moved into an integer of
//! its own, which rounds nothing. Ten thousand annotators on one instance, for and against, come out as they should.
//! Fractional weights are powers, and take the logarithm's way for their instance alone.
//!
//! Blocks of instances and whole annotators are the units of work: each output cell has one owner, each sum one order,
//! so that the result does not depend on the number of threads. Class counts up to 10 have kernels of their own, in
//! which a row is an array in registers.

use std::f64::consts::LN_2;
use std::ops::Range;

use rayon::prelude::*;

use crate::frame::{Annotations, BLOCK, split_by};
use crate::model::fitted::Posterior;

/// The least expected count in a confusion matrix, and the least probability in a prior.
pub const FLOOR: f64 = 1e-10;

/// The least probability in a confusion column: [`FLOOR`] over the annotations of ten billion.
pub const LEAST: f64 = 1e-20;

/// Factors of at least [`LEAST`] (2^-66.5), times a prior of at least [`FLOOR`] (2^-33.3) or a mantissa, that stay above
/// the least normal f64 (2^-1022).
const SAFE: usize = 14;

/// Runs `$body` with `K` = the number of classes where a kernel of its own exists, else with `K` = 0.
macro_rules! for_classes {
    ($n:expr, $k:ident => $body:expr) => {
        for_classes!(@ $n, $k => $body, 2 3 4 5 6 7 8 9 10)
    };
    (@ $n:expr, $k:ident => $body:expr, $($literal:literal)*) => {
        match $n {
            $($literal => { const $k: usize = $literal; $body })*
            _ => { const $k: usize = 0; $body }
        }
    };
}

/// Posteriors from likelihood columns, `[column, class]`; returns the marginal log-likelihood.
///
/// Rows of trusted instances become one-hot and count with the log-joint of their class; rows without annotations
/// become the prior and count nothing.
pub fn e_sweep(a: &Annotations, prior: &[f64], likelihood: &[f64], t: &mut Posterior) -> f64 {
    let n_classes = a.dims().classes;
    let blocks: Vec<f64> = t
        .values_mut()
        .par_chunks_mut(BLOCK * n_classes.max(1))
        .enumerate()
        .map(|(block, rows)| {
            for_classes!(n_classes, K => e_block::<K>(a, prior, likelihood, block * BLOCK, rows))
        })
        .collect();
    blocks.iter().sum()
}

fn e_block<const K: usize>(
    a: &Annotations,
    prior: &[f64],
    likelihood: &[f64],
    first: usize,
    rows: &mut [f64],
) -> f64 {
    let n_classes = prior.len();
    let mut product = LogProduct::default();
    let mut sum = 0.0;
    for (offset, row) in rows.chunks_exact_mut(width::<K>(n_classes)).enumerate() {
        let i = first + offset;
        let said = a.said_of(i);
        row.copy_from_slice(&prior[..row.len()]);
        if said.len() <= SAFE && a.weights_of(i).is_none() && a.trusted_class(i).is_none() {
            multiply::<K>(row, said, likelihood);
            let total: f64 = row.iter().sum();
            let scale = 1.0 / total;
            row.iter_mut().for_each(|p| *p *= scale);
            if !said.is_empty() {
                product.push(total);
            }
        } else {
            sum += careful(a, i, likelihood, row);
        }
    }
    sum + product.ln()
}

/// A row's length, known to the compiler where the kernel has its own.
#[inline]
const fn width<const K: usize>(n_classes: usize) -> usize {
    if K == 0 { n_classes } else { K }
}

#[inline]
fn multiply<const K: usize>(row: &mut [f64], said: &[u32], likelihood: &[f64]) {
    if K == 0 {
        let n = row.len();
        for column in said {
            let start = *column as usize * n;
            let factors = &likelihood[start..start + n];
            row.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
        }
    } else if let Ok(row) = <&mut [f64; K]>::try_from(row) {
        let mut product = *row;
        let columns = likelihood.as_chunks::<K>().0;
        for column in said {
            let factors = &columns[*column as usize];
            for k in 0..K {
                product[k] *= factors[k];
            }
        }
        *row = product;
    }
}

/// The general case: long products, weights, trust. Starts from the prior in `row`; returns the log-likelihood.
#[cold]
fn careful(a: &Annotations, i: usize, likelihood: &[f64], row: &mut [f64]) -> f64 {
    let n = row.len();
    let mut exponents = vec![0_i64; n];
    let mut logs = vec![0.0; n];
    let weights = a.weights_of(i);
    for (run, columns) in a.said_of(i).chunks(SAFE).enumerate() {
        for (offset, column) in columns.iter().enumerate() {
            let factors = &likelihood[*column as usize * n..(*column as usize + 1) * n];
            match weights.map_or(1.0, |w| w[run * SAFE + offset]) {
                1.0 => row.iter_mut().zip(factors).for_each(|(p, f)| *p *= f),
                weight => logs.iter_mut().zip(factors).for_each(|(l, f)| *l += weight * f.ln()),
            }
        }
        for (p, e) in row.iter_mut().zip(&mut exponents) {
            *e += take_exponent(p);
        }
    }
    #[allow(clippy::cast_precision_loss)]
    for k in 0..n {
        logs[k] += row[k].ln() + exponents[k] as f64 * LN_2;
    }
    if let Some(class) = a.trusted_class(i) {
        row.fill(0.0);
        row[class as usize] = 1.0;
        return if a.said_of(i).is_empty() { 0.0 } else { logs[class as usize] };
    }
    softmax(&logs, row)
}

/// `out = softmax(logs)`; returns `logsumexp(logs)`.
pub fn softmax(logs: &[f64], out: &mut [f64]) -> f64 {
    let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    out.iter_mut().zip(logs).for_each(|(p, l)| *p = (l - max).exp());
    let sum: f64 = out.iter().sum();
    out.iter_mut().for_each(|p| *p /= sum);
    max + sum.ln()
}

/// Moves the power of two of a positive normal number out of it: what stays is in [1, 2).
#[inline]
#[allow(clippy::cast_possible_wrap)]
fn take_exponent(p: &mut f64) -> i64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = p.to_bits();
    *p = f64::from_bits((bits & MANTISSA) | (1023 << 52));
    (bits >> 52) as i64 - 1023
}

/// The logarithm of a product of many positive numbers, with one call of `ln` at the end.
struct LogProduct {
    mantissa: f64,
    exponent: i64,
}

impl Default for LogProduct {
    fn default() -> Self {
        Self { mantissa: 1.0, exponent: 0 }
    }
}

impl LogProduct {
    #[inline]
    fn push(&mut self, factor: f64) {
        self.mantissa *= factor;
        self.exponent += take_exponent(&mut self.mantissa);
    }

    #[allow(clippy::cast_precision_loss)]
    fn ln(&self) -> f64 {
        self.mantissa.ln() + self.exponent as f64 * LN_2
    }
}

/// The M-step's sweep, with what it needs between iterations.
///
/// # Why
/// Where annotations are many times the columns, posterior rows are read in order and added to tables of counts that
/// fit the cache, one for each of a fixed number of instance ranges; the tables are then summed in order. Else every
/// column gathers its own posterior rows. Which way is taken depends on the data alone.
pub struct MSweep {
    ranges: usize,
    tables: Vec<f64>,
}

/// A range's table is worth its zeroing and summing when so many annotations are added to each of its columns.
const ANNOTATIONS_PER_CELL: usize = 12;

/// More ranges than this keep no more processors busy.
const MOST_RANGES: usize = 32;

/// Fewer ranges than this leave processors idle.
const LEAST_RANGES: usize = 4;

/// Annotators in one unit of parallel work.
const ANNOTATORS: usize = 16;

impl MSweep {
    /// Chooses the way for these annotations, and allocates once for all iterations.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let worth = a.len() / (ANNOTATIONS_PER_CELL * a.n_columns()).max(1);
        let ranges = if worth < LEAST_RANGES { 0 } else { worth.min(MOST_RANGES) };
        Self { ranges, tables: vec![0.0; ranges * a.n_columns() * a.dims().classes] }
    }

    /// Sums the posterior rows behind every column into `columns`, `[column, class]`, then hands each annotator's to
    /// `finish(annotator, counts, scratch)`, which may turn them into probabilities in place. `scratch` makes what a
    /// worker keeps between annotators.
    pub fn run<S>(
        &mut self,
        a: &Annotations,
        t: &Posterior,
        columns: &mut [f64],
        scratch: impl Fn() -> S + Sync + Send,
        finish: impl Fn(usize, &mut [f64], &mut S) + Sync + Send,
    ) {
        let n_classes = a.dims().classes;
        self.fill_tables(a, t);
        let tables = &self.tables;
        let cells = columns.len();
        let offsets: Vec<usize> = a.column_offsets().iter().map(|c| c * n_classes).collect();
        let parts = split_by(columns, &offsets, ANNOTATORS);
        parts.into_par_iter().for_each_init(scratch, |scratch, (annotators, mut columns)| {
            for r in annotators {
                let (own, rest) = columns.split_at_mut(offsets[r + 1] - offsets[r]);
                if tables.is_empty() {
                    let first = a.columns_of(r).start;
                    for_classes!(n_classes, K => gather::<K>(a, t.values(), first, own, n_classes));
                } else {
                    add_tables(tables, cells, offsets[r], own);
                }
                finish(r, own, scratch);
                columns = rest;
            }
        });
    }

    fn fill_tables(&mut self, a: &Annotations, t: &Posterior) {
        let (n_classes, ranges) = (a.dims().classes, self.ranges);
        let cells = (a.n_columns() * n_classes).max(1);
        self.tables.par_chunks_exact_mut(cells).enumerate().for_each(|(range, table)| {
            let bound = |n: usize| n * t.len() / ranges;
            table.fill(0.0);
            for_classes!(n_classes, K => scatter::<K>(a, t, bound(range)..bound(range + 1), table));
        });
    }
}

/// Adds the posterior row of every instance of a range to the columns said of it.
fn scatter<const K: usize>(a: &Annotations, t: &Posterior, range: Range<usize>, table: &mut [f64]) {
    for i in range {
        let row = t.row(i);
        let weights = a.weights_of(i);
        match (weights, <&[f64; K]>::try_from(row)) {
            (None, Ok(row)) if K > 0 => {
                let columns = table.as_chunks_mut::<K>().0;
                for column in a.said_of(i) {
                    let counts = &mut columns[*column as usize];
                    for k in 0..K {
                        counts[k] += row[k];
                    }
                }
            }
            _ => {
                for (at, column) in a.said_of(i).iter().enumerate() {
                    let weight = weights.map_or(1.0, |w| w[at]);
                    let start = *column as usize * row.len();
                    let counts = &mut table[start..start + row.len()];
                    counts.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
                }
            }
        }
    }
}

/// `own` = the sum over the tables of the cells from `first` on, in the order of the tables.
fn add_tables(tables: &[f64], cells: usize, first: usize, own: &mut [f64]) {
    own.fill(0.0);
    for table in tables.chunks_exact(cells) {
        own.iter_mut().zip(&table[first..]).for_each(|(c, p)| *c += p);
    }
}

#[inline]
fn gather<const K: usize>(
    a: &Annotations,
    t: &[f64],
    first: usize,
    counts: &mut [f64],
    n_classes: usize,
) {
    for (offset, count) in counts.chunks_exact_mut(width::<K>(n_classes)).enumerate() {
        count_column::<K>(a.instances_of(first + offset), a.column_weights_of(first + offset), t, count);
    }
}

#[inline]
fn count_column<const K: usize>(instances: &[u32], weights: Option<&[f64]>, t: &[f64], count: &mut [f64]) {
    match (weights, <&mut [f64; K]>::try_from(&mut *count)) {
        (None, Ok(count)) if K > 0 => {
            let rows = t.as_chunks::<K>().0;
            let mut sum = [0.0; K];
            for i in instances {
                let row = &rows[*i as usize];
                for k in 0..K {
                    sum[k] += row[k];
                }
            }
            *count = sum;
        }
        _ => {
            let n = count.len();
            count.fill(0.0);
            for (at, i) in instances.iter().enumerate() {
                let weight = weights.map_or(1.0, |w| w[at]);
                let row = &t[*i as usize * n..(*i as usize + 1) * n];
                count.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
            }
        }
    }
}

/// The mean posterior row over annotated instances, floored and normalised: the prior's M-step.
///
/// Uniform where no instance is annotated.
pub fn mean_posterior(a: &Annotations, t: &Posterior, prior: &mut [f64]) {
    let n_classes = prior.len();
    let blocks: Vec<Vec<f64>> = t
        .values()
        .par_chunks(BLOCK * n_classes.max(1))
        .enumerate()
        .map(|(block, rows)| {
            let mut sum = vec![0.0; n_classes];
            for (offset, row) in rows.chunks_exact(n_classes).enumerate() {
                if !a.said_of(block * BLOCK + offset).is_empty() {
                    sum.iter_mut().zip(row).for_each(|(s, p)| *s += p);
                }
            }
            sum
        })
        .collect();
    prior.fill(0.0);
    for block in &blocks {
        prior.iter_mut().zip(block).for_each(|(p, s)| *p += s);
    }
    normalise(prior, |p| p.max(FLOOR));
}

/// Divides by the sum, applies `change`, and divides by the sum again; uniform where the sum is zero.
pub fn normalise(values: &mut [f64], change: impl Fn(f64) -> f64) {
    let sum: f64 = values.iter().sum();
    #[allow(clippy::cast_precision_loss)]
    let uniform = 1.0 / values.len() as f64;
    values.iter_mut().for_each(|v| *v = change(if sum > 0.0 { *v / sum } else { uniform }));
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn taking_the_exponent_rounds_nothing() {
        for value in [1.0, 0.75, 3.0e-300, f64::MIN_POSITIVE, 1.5e300] {
            let mut mantissa = value;
            let exponent = take_exponent(&mut mantissa);
            assert!((1.0..2.0).contains(&mantissa));
            assert_eq!(mantissa * 2_f64.powi(i32::try_from(exponent).unwrap()), value);
        }
    }

    #[test]
    fn ten_thousand_for_and_as_many_against_cancel() {
        // One instance; 10 000 annotators say class 0, then 10 000 say class 1, each with likelihoods FLOOR and 1.
        let rows: Vec<(u32, u32, u32)> = (0..20_000).map(|r| (0, r, u32::from(r >= 10_000))).collect();
        let a = tiny(2, &rows);
        let likelihood: Vec<f64> =
            (0..20_000).flat_map(|r| if r < 10_000 { [1.0, FLOOR] } else { [FLOOR, 1.0] }).collect();
        let mut t = Posterior::zeros(1, 2);
        let objective = e_sweep(&a, &[0.25, 0.75], &likelihood, &mut t);
        assert!((t.row(0)[0] - 0.25).abs() < 1e-9 && (t.row(0)[1] - 0.75).abs() < 1e-9, "{:?}", t.row(0));
        assert!((objective - 10_000.0 * FLOOR.ln()).abs() < 1e-6 * objective.abs());
    }

    #[test]
    fn every_way_to_count_gives_the_same_counts() {
        for n_classes in [2_u32, 5, 10, 11] {
            let rows: Vec<(u32, u32, u32)> =
                (0..6000).map(|n| (n / 6, n % 6, (n * n / 7) % n_classes)).collect();
            let a = tiny(n_classes as usize, &rows);
            let (n, t) = (n_classes as usize, Posterior::from_votes(&a));
            let count = |mut sweep: MSweep| {
                let mut counts = vec![0.0; a.n_columns() * n];
                sweep.run(&a, &t, &mut counts, || (), |_, _, ()| {});
                counts
            };
            let by_range = MSweep::new(&a);
            assert!(by_range.ranges >= LEAST_RANGES, "the test means to take this way");
            let by_range = count(by_range);
            let by_column = count(MSweep { ranges: 0, tables: Vec::new() });
            let mut general = vec![0.0; by_column.len()];
            gather::<0>(&a, t.values(), 0, &mut general, n);
            for cell in 0..general.len() {
                assert!((by_column[cell] - general[cell]).abs() < 1e-12, "{cell}");
                assert!((by_range[cell] - general[cell]).abs() < 1e-9, "{cell}");
            }
        }
    }
}
