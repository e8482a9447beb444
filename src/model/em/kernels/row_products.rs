//! Arithmetic with the rows of one instance, in groups of `W` classes: products of factors, in runs or as sums of
//! logarithms, and sums of posteriors.

use std::f64::consts::LN_2;

use super::logarithms::{exp, larger, ln, take_exponent};

/// So many factors of at least `MIN_LIKELIHOOD` (2^-66.5), times a prior of at least 1e-27 (2^-90) or a mantissa, stay
/// above the least normal f64 (2^-1022).
pub(super) const MAX_FACTORS: usize = 14;

/// `row` = `prior` times the factors of every pair.
#[inline(always)]
pub(super) fn multiply<const W: usize>(
    row: &mut [[f64; W]],
    prior: &[[f64; W]],
    factors: &[[f64; W]],
    pairs: &[u32],
) {
    let m = row.len();
    for (group, (to, prior)) in row.iter_mut().zip(prior).enumerate() {
        let mut product = *prior;
        for pair in pairs {
            let factors = &factors[*pair as usize * m + group];
            (0..W).for_each(|k| product[k] *= factors[k]);
        }
        *to = product;
    }
}

/// As [`multiply`], for any number of pairs; the product is divided by a common 2^e. Returns ln(2^e).
#[inline(always)]
pub(super) fn multiply_many<const W: usize>(
    row: &mut [[f64; W]],
    prior: &[[f64; W]],
    factors: &[[f64; W]],
    pairs: &[u32],
    exponents: &mut Vec<[i64; W]>,
) -> f64 {
    /// The exponent of a class that the prior excludes: less than that of any product.
    const NEVER: i64 = i64::MIN / 2;
    let m = row.len();
    row.copy_from_slice(prior);
    exponents.clear();
    exponents.resize(m, [0; W]);
    for run in pairs.chunks(MAX_FACTORS) {
        for group in 0..m {
            let mut product = row[group];
            for pair in run {
                let factors = &factors[*pair as usize * m + group];
                (0..W).for_each(|k| product[k] *= factors[k]);
            }
            for k in 0..W {
                if product[k] > 0.0 {
                    exponents[group][k] += take_exponent(&mut product[k]);
                } else {
                    exponents[group][k] = NEVER;
                }
            }
            row[group] = product;
        }
    }
    let max = exponents.as_flattened().iter().copied().max().unwrap_or_default();
    for (p, e) in row.as_flattened_mut().iter_mut().zip(exponents.as_flattened()) {
        // The greatest entry is at least 1: next to it, entries below the least normal number are negligible.
        let is_normal = max - e < 1022;
        *p *=
            if is_normal { f64::from_bits((1023 - (max - e)).cast_unsigned() << 52) } else { 0.0 };
    }
    // Equal products of so many factors are rounded in different ways, and EM would make a decision of the difference.
    let largest = row.as_flattened().iter().copied().fold(0.0, larger);
    let least_equal = largest * (1.0 - pairs.len() as f64 * f64::EPSILON);
    for p in row.as_flattened_mut() {
        *p = if *p >= least_equal { largest } else { *p };
    }
    max as f64 * LN_2
}

/// A row of logarithms.
#[derive(Default)]
pub(super) struct LogRow<const W: usize> {
    /// The logarithm of the prior; empty until it is needed.
    pub(super) prior: Vec<[f64; W]>,
    pub(super) row: Vec<[f64; W]>,
}

impl<const W: usize> LogRow<W> {
    /// Takes the logarithm of a prior, unless it has; that of its padding, which is 0, is -inf.
    #[inline(always)]
    pub(super) fn set_prior(&mut self, prior: &[[f64; W]]) {
        if self.prior.is_empty() {
            self.prior.extend(prior.iter().map(|group| group.map(f64::ln)));
            self.row.resize(prior.len(), [0.0; W]);
        }
    }

    /// The log-prior plus the weighted logarithms of the factors of every pair.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        factors: &[[f64; W]],
        pairs: &[u32],
        weight: impl Fn(usize) -> f64,
        are_logs: bool,
    ) {
        let m = self.row.len();
        for group in 0..m {
            let mut sums = self.prior[group];
            for (at, pair) in pairs.iter().enumerate() {
                let (mut logs, weight) = (factors[*pair as usize * m + group], weight(at));
                if !are_logs {
                    for log in &mut logs {
                        *log = ln(*log);
                    }
                }
                for k in 0..W {
                    sums[k] += weight * logs[k];
                }
            }
            self.row[group] = sums;
        }
    }

    /// Writes the exponentials of the row, divided by that of its maximum, which is returned.
    #[inline(always)]
    pub(super) fn exp(&self, row: &mut [[f64; W]]) -> f64 {
        let mut lanes = self.row[0];
        for logs in &self.row[1..] {
            for k in 0..W {
                lanes[k] = larger(lanes[k], logs[k]);
            }
        }
        let max = lanes.iter().copied().fold(f64::NEG_INFINITY, larger);
        for (to, logs) in row.iter_mut().zip(&self.row) {
            // In a loop, not a closure, which might not be inlined, and then had no vector instructions.
            for k in 0..W {
                to[k] = exp(logs[k] - max);
            }
        }
        max
    }
}

/// Divides a row by its sum, and returns the sum.
#[inline(always)]
pub(super) fn normalise<const W: usize>(row: &mut [[f64; W]]) -> f64 {
    // One number after the other, as other programs do; of a long row, one group after the other.
    let total: f64 = if row.len() <= 2 {
        row.as_flattened().iter().sum()
    } else {
        let mut sums = [0.0; W];
        row.iter().for_each(|group| (0..W).for_each(|k| sums[k] += group[k]));
        sums.iter().sum()
    };
    let scale = 1.0 / total;
    row.iter_mut().for_each(|group| (0..W).for_each(|k| group[k] *= scale));
    total
}

#[inline(always)]
pub(super) fn add<const W: usize>(sums: &mut [[f64; W]], row: &[[f64; W]]) {
    for (sums, row) in sums.iter_mut().zip(row) {
        (0..W).for_each(|k| sums[k] += row[k]);
    }
}

/// Adds a row, times a weight, to the counts of each pair.
#[inline(always)]
pub(super) fn count<const W: usize>(
    counts: &mut [[f64; W]],
    row: &[[f64; W]],
    pairs: &[u32],
    weight: impl Fn(usize) -> f64,
) {
    let m = row.len();
    for (at, pair) in pairs.iter().enumerate() {
        let weight = weight(at);
        for (sums, row) in counts[*pair as usize * m..][..m].iter_mut().zip(row) {
            (0..W).for_each(|k| sums[k] += weight * row[k]);
        }
    }
}
