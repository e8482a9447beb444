//! The E-step's sweep: posteriors from products of confusion columns, counted as they are made.
//!
//! # Why
//! Sums of logarithms need a logarithm a cell and an exponential a class. Products need neither, and are exact when no
//! partial product leaves the range of f64: with likelihoods of at least [`LEAST`], `SAFE` factors cannot. Longer
//! products are taken in runs of `SAFE`, after each of which every class's power of two is moved into an integer of
//! its own, which rounds nothing. Ten thousand annotators on one instance, for and against, come out as they should.
//! Fractional weights are powers, and take the logarithm's way for their instance alone.
//!
//! [`LEAST`]: super::kernel::LEAST

use std::f64::consts::LN_2;

use pulp::{Arch, Scalar, Simd, WithSimd};

use super::columns::{Columns, Likelihood};
use super::counts::{Counts, Part};
use super::kernel::{for_classes, width};
use super::whole::WholeOf;
use crate::frame::{Annotations, BLOCK};
use crate::model::fitted::Posterior;

/// Factors of at least `LEAST` (2^-66.5), times a prior of at least `FLOOR` (2^-33.3) or a mantissa, that stay above the
/// least normal f64 (2^-1022).
const SAFE: usize = 14;

/// Instances whose factors are fetched together: few enough for the nearest cache.
const FETCHED: usize = 64;

/// Posteriors from confusion columns, and their expected counts on the way; returns the marginal log-likelihood. `t`
/// holds the posteriors behind the columns.
///
/// Rows of trusted instances become one-hot and count with the log-joint of their class; rows without annotations
/// become the prior and count nothing.
pub fn e_sweep(
    a: &Annotations,
    prior: &[f64],
    columns: &Columns,
    t: &mut Posterior,
    counts: &mut Counts,
) -> f64 {
    let arch = Arch::new();
    counts.fill(t, |part, rows| match columns {
        // Its rows are long but few of them are whole: wider vectors cost it more than they bring.
        Columns::Sparse(sparse) => {
            Sweep::<0, _> { a, prior, likelihood: sparse, part, rows }.with_simd(Scalar::new())
        }
        Columns::Whole(whole) => for_classes!(prior.len(), K => {
            let likelihood = &WholeOf::<K> { a, whole };
            arch.dispatch(Sweep::<K, _> { a, prior, likelihood, part, rows })
        }),
    })
}

/// The sweep over one range of instances.
struct Sweep<'a, const K: usize, L> {
    a: &'a Annotations,
    prior: &'a [f64],
    likelihood: &'a L,
    part: &'a mut Part,
    rows: &'a mut [f64],
}

impl<const K: usize, L: Likelihood> WithSimd for Sweep<'_, K, L> {
    type Output = f64;

    // All that is called is inlined too: only so is it compiled for the vectors of the processor at hand.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { a, prior, likelihood, part, rows } = self;
        let n = width::<K>(prior.len()).max(1);
        let mut product = LogProduct::default();
        let mut sum = 0.0;
        let mut near = L::Near::default();
        // A block's rows stay in the cache until they are counted; row by row, the likelihoods and the counts would push
        // each other out of it.
        for (start, rows) in part.instances().step_by(BLOCK).zip(rows.chunks_mut(BLOCK * n)) {
            for (start, rows) in (start..).step_by(FETCHED).zip(rows.chunks_mut(FETCHED * n)) {
                likelihood.fetch(a, start..start + rows.len() / n, &mut near);
                for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                    let i = start + at;
                    let said = a.said_of(i);
                    if said.len() > SAFE
                        || a.weights_of(i).is_some()
                        || a.trusted_class(i).is_some()
                    {
                        sum += careful(a, i, prior, likelihood, row);
                        continue;
                    }
                    likelihood.multiply(row, prior, said, &near, at);
                    let total = sum_of::<K>(row);
                    let scale = 1.0 / total;
                    row.iter_mut().for_each(|p| *p *= scale);
                    if !said.is_empty() {
                        product.push(total);
                    }
                }
            }
            part.add::<K>(a, start, rows);
        }
        sum + product.ln()
    }
}

/// The sum of a row; of a long one in four lanes, so that no addition waits for the one before it.
#[inline(always)]
fn sum_of<const K: usize>(row: &[f64]) -> f64 {
    if K > 0 {
        return row.iter().sum();
    }
    let (fours, rest) = row.as_chunks::<4>();
    let mut lanes = [0.0; 4];
    for four in fours {
        (0..4).for_each(|lane| lanes[lane] += four[lane]);
    }
    lanes.iter().sum::<f64>() + rest.iter().sum::<f64>()
}

/// The general case: long products, weights, trust. Returns the log-likelihood.
#[cold]
fn careful(
    a: &Annotations,
    i: usize,
    prior: &[f64],
    likelihood: &impl Likelihood,
    row: &mut [f64],
) -> f64 {
    let n = row.len();
    let last = row.to_vec();
    row.copy_from_slice(prior);
    let mut factors = vec![0.0; n];
    let mut exponents = vec![0_i64; n];
    let mut logs = vec![0.0; n];
    let weights = a.weights_of(i);
    for (run, columns) in a.said_of(i).chunks(SAFE).enumerate() {
        for (offset, column) in columns.iter().enumerate() {
            likelihood.write(*column, &last, &mut factors);
            match weights.map_or(1.0, |w| w[run * SAFE + offset]) {
                1.0 => row.iter_mut().zip(&factors).for_each(|(p, f)| *p *= f),
                weight => logs.iter_mut().zip(&factors).for_each(|(l, f)| *l += weight * f.ln()),
            }
        }
        for (p, e) in row.iter_mut().zip(&mut exponents) {
            *e += take_exponent(p);
        }
    }
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
#[inline(always)]
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
    #[inline(always)]
    fn push(&mut self, factor: f64) {
        self.mantissa *= factor;
        self.exponent += take_exponent(&mut self.mantissa);
    }

    fn ln(&self) -> f64 {
        self.mantissa.ln() + self.exponent as f64 * LN_2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::em::columns::Smoothing;
    use crate::model::em::kernel::FLOOR;
    use crate::model::em::whole::Whole;
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
        let rows: Vec<(u32, u32, u32)> =
            (0..20_000).map(|r| (0, r, u32::from(r >= 10_000))).collect();
        let a = tiny(2, &rows);
        let likelihood: Vec<f64> = (0..20_000)
            .flat_map(|r| if r < 10_000 { [1.0, FLOOR] } else { [FLOOR, 1.0] })
            .collect();
        let columns = Columns::Whole(Whole { cells: likelihood, smoothing: Smoothing::default() });
        let mut t = Posterior::zeros(1, 2);
        let objective = e_sweep(&a, &[0.25, 0.75], &columns, &mut t, &mut Counts::new(&a));
        assert!(
            (t.row(0)[0] - 0.25).abs() < 1e-9 && (t.row(0)[1] - 0.75).abs() < 1e-9,
            "{:?}",
            t.row(0)
        );
        assert!((objective - 10_000.0 * FLOOR.ln()).abs() < 1e-6 * objective.abs());
    }

    #[test]
    fn lone_annotators_need_no_columns() {
        // Three regulars, and one who came once for each instance; two instances have more of them, one so many that they
        // are multiplied in runs; another is trusted.
        let regular = (0..90).map(|n| (n / 3, n % 3, (n * n / 7 + n / 3) % 4));
        let once = (0..30).map(|i| (i, 10 + i, (i * 5 / 3) % 4));
        let crowd = (0..20).map(|r| (7, 100 + r, r % 3)).chain((0..5).map(|r| (8, 200 + r, r % 4)));
        let rows: Vec<(u32, u32, u32)> = regular.chain(once).chain(crowd).collect();
        let mut a = tiny(4, &rows);
        a.trusted = Some((0..30).map(|i| (i == 4).then_some(2)).collect());
        let (prior, start) = ([0.1, 0.2, 0.3, 0.4], Posterior::from_votes(&a));
        for (everywhere, diagonal) in [(0.0, 0.0), (0.1, 0.0), (0.0, 2.0), (0.1, 1.0)] {
            let smoothing = Smoothing { everywhere, diagonal };
            let mut counts = Counts::by_ranges(&a, 0);
            counts.count(&a, &start);
            let mut cells = vec![0.0; a.n_columns() * 4];
            counts.columns(&a, &start, &mut cells, &smoothing);
            let every = Columns::Whole(Whole { cells, smoothing });
            let mut kept = Columns::new(&a, &counts);
            kept.estimate(&a, &start, &counts, smoothing);
            let mut sweep = |columns: &Columns| {
                let mut t = start.clone();
                let objective = e_sweep(&a, &prior, columns, &mut t, &mut counts);
                (t, objective)
            };
            let ((want, of_every), (got, of_kept)) = (sweep(&every), sweep(&kept));
            let Columns::Whole(kept) = kept else { panic!("four classes have whole columns") };
            assert_eq!(kept.cells.len(), a.first_lone() * 4);
            assert_eq!(a.n_columns() - a.first_lone(), 55);
            for (got, want) in got.values().iter().zip(want.values()) {
                assert!((got - want).abs() < 1e-14, "{got} {want}");
            }
            assert!((of_every - of_kept).abs() < 1e-11 * of_every.abs());
        }
    }
}
