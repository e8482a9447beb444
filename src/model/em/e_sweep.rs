//! The E-step's sweep: posteriors from products of confusion columns, counted as they are made.
//!
//! # Why
//! Sums of logarithms need a logarithm a cell and an exponential a class. Products need neither, and are exact when no
//! partial product leaves the range of f64: with likelihoods of at least [`LEAST`](super::kernel::LEAST), `SAFE` factors cannot. Longer
//! products are taken in runs of `SAFE`, after each of which every class's power of two is moved into an integer of
//! its own, which rounds nothing. Ten thousand annotators on one instance, for and against, come out as they should.
//! Fractional weights are powers, and take the logarithm's way for their instance alone.

use std::f64::consts::LN_2;

use super::counts::{Counts, Part};
use super::kernel::{for_classes, width};
use crate::frame::{Annotations, BLOCK};
use crate::model::fitted::Posterior;

/// Factors of at least [`LEAST`](super::kernel::LEAST) (2^-66.5), times a prior of at least [`FLOOR`](super::kernel::FLOOR) (2^-33.3) or a mantissa, that stay above
/// the least normal f64 (2^-1022).
const SAFE: usize = 14;

/// Posteriors from likelihood columns, `[column, class]`, and their expected counts on the way; returns the marginal
/// log-likelihood.
///
/// Rows of trusted instances become one-hot and count with the log-joint of their class; rows without annotations
/// become the prior and count nothing.
pub fn e_sweep(
    a: &Annotations,
    prior: &[f64],
    likelihood: &[f64],
    t: &mut Posterior,
    counts: &mut Counts,
) -> f64 {
    let n_classes = a.dims().classes;
    counts.fill(
        t,
        |part, rows| for_classes!(n_classes, K => e_range::<K>(a, prior, likelihood, part, rows)),
    )
}

fn e_range<const K: usize>(
    a: &Annotations,
    prior: &[f64],
    likelihood: &[f64],
    part: &mut Part,
    rows: &mut [f64],
) -> f64 {
    let n_classes = prior.len();
    let mut product = LogProduct::default();
    let mut sum = 0.0;
    let (instances, n) = (part.instances(), width::<K>(n_classes).max(1));
    // A block's rows stay in the cache until they are counted; row by row, the likelihoods and the counts would push each
    // other out of it.
    for (start, rows) in instances.step_by(BLOCK).zip(rows.chunks_mut(BLOCK * n)) {
        for (i, row) in (start..).zip(rows.chunks_exact_mut(n)) {
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
        for (i, row) in (start..).zip(rows.chunks_exact(n)) {
            part.add::<K>(a, i, row);
        }
    }
    sum + product.ln()
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

    fn ln(&self) -> f64 {
        self.mantissa.ln() + self.exponent as f64 * LN_2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::em::kernel::FLOOR;
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
        let mut t = Posterior::zeros(1, 2);
        let objective = e_sweep(&a, &[0.25, 0.75], &likelihood, &mut t, &mut Counts::new(&a));
        assert!(
            (t.row(0)[0] - 0.25).abs() < 1e-9 && (t.row(0)[1] - 0.75).abs() < 1e-9,
            "{:?}",
            t.row(0)
        );
        assert!((objective - 10_000.0 * FLOOR.ln()).abs() < 1e-6 * objective.abs());
    }
}
