//! E-step rows for which the plain product is not enough: many annotations, weights other than 1, or a trusted class.

use std::f64::consts::LN_2;

use super::log_domain::write_row;
use super::logarithms::take_exponent;
use super::padded_matrix::stride;
use crate::frame::{InstanceRange, WeightSlice};

/// So many factors of at least `MIN_LIKELIHOOD` (2^-66.5), times a prior of at least 1e-27 (2^-90) or a mantissa, stay
/// above the least normal f64 (2^-1022).
pub(super) const MAX_FACTORS: usize = 14;

/// The exponent of a class that the prior excludes: less than the exponent of any product.
const NEVER: i64 = i64::MIN / 2;

/// How the product of an instance's row is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowPath {
    /// As the plain product of the prior and all factors.
    Plain,
    /// In runs of [`MAX_FACTORS`] factors.
    Long,
    /// With weights other than 1: as powers, or in the log domain.
    Weighted,
    /// In the log domain; the row is the trusted class.
    Trusted,
}

impl RowPath {
    /// The path of an instance with this many annotations; `is_weighted` says that one of them has a weight other than 1.
    #[inline(always)]
    pub(super) fn of(is_trusted: bool, is_weighted: bool, n_annotations: usize) -> Self {
        if is_trusted {
            Self::Trusted
        } else if is_weighted {
            Self::Weighted
        } else if n_annotations > MAX_FACTORS {
            Self::Long
        } else {
            Self::Plain
        }
    }
}

/// Computes the rows of instances with long products, weights other than 1, or a trusted class.
pub(super) struct SpecialRows<'a> {
    /// The positions of the remaining weights other than 1, if the weights are `Few`; else empty.
    pending: &'a [usize],
    start: usize,
    /// The previous posterior of the instance.
    previous: Vec<f64>,
    factors: Vec<f64>,
    logs: Vec<f64>,
    exponents: Vec<i64>,
}

impl<'a> SpecialRows<'a> {
    pub(super) fn new(n: usize, weights: WeightSlice<'a>) -> Self {
        let (pending, start) = match weights {
            WeightSlice::Few { start, positions, .. } => (positions, start),
            _ => (&[][..], 0),
        };
        let buffer = || vec![0.0; n];
        let factors = vec![0.0; stride(n)];
        Self { pending, start, previous: buffer(), factors, logs: buffer(), exponents: vec![0; n] }
    }

    /// Whether an annotation of the next instance, whose annotations end at `end`, has a weight other than 1.
    #[inline(always)]
    pub(super) fn is_next(&mut self, end: usize) -> bool {
        let mut is_weighted = false;
        while let [position, rest @ ..] = self.pending
            && *position < self.start + end
        {
            self.pending = rest;
            is_weighted = true;
        }
        is_weighted
    }

    /// The position in the range of the next annotation with a weight other than 1, if there is one.
    #[inline(always)]
    pub(super) fn next_weight(&self) -> Option<usize> {
        self.pending.first().map(|position| position - self.start)
    }

    /// `row` = `prior` times the factors of many columns, divided by a common 2^e; returns ln(2^e).
    pub(super) fn long_row(
        &mut self,
        columns: &[u32],
        prior: &[f64],
        write: impl Fn(u32, f64, &[f64], &mut [f64]),
        row: &mut [f64],
    ) -> f64 {
        self.previous.copy_from_slice(row);
        self.exponents.fill(0);
        row.copy_from_slice(prior);
        for run in columns.chunks(MAX_FACTORS) {
            for column in run {
                write(*column, 1.0, &self.previous, &mut self.factors);
                row.iter_mut().zip(&self.factors).for_each(|(p, f)| *p *= f);
            }
            for (p, e) in row.iter_mut().zip(&mut self.exponents) {
                if *p > 0.0 {
                    *e += take_exponent(p);
                } else {
                    *e = NEVER;
                }
            }
        }
        let max = self.exponents.iter().copied().max().unwrap_or_default();
        for (p, e) in row.iter_mut().zip(&self.exponents) {
            // The greatest entry is at least 1: next to it, entries below the least normal number are negligible.
            *p *= if max - e < 1022 {
                f64::from_bits((1023 - (max - e)).cast_unsigned() << 52)
            } else {
                0.0
            };
        }
        max as f64 * LN_2
    }

    /// `row` = `prior` times factor^weight for every column, with weights of at most 1.
    #[cold]
    pub(super) fn weighted_row(
        &mut self,
        columns: &[u32],
        weights: WeightSlice<'_>,
        prior: &[f64],
        write: impl Fn(u32, f64, &[f64], &mut [f64]),
        row: &mut [f64],
    ) {
        self.previous.copy_from_slice(row);
        row.copy_from_slice(prior);
        for (at, column) in columns.iter().enumerate() {
            let weight = weights.get(at);
            write(*column, weight, &self.previous, &mut self.factors);
            let pairs = row.iter_mut().zip(&self.factors);
            match weight {
                1.0 => pairs.for_each(|(p, f)| *p *= f),
                // The most frequent weight: two different repeated answers share one annotation.
                0.5 => pairs.for_each(|(p, f)| *p *= f.sqrt()),
                _ => pairs.for_each(|(p, f)| *p *= f.powf(weight)),
            }
        }
    }

    /// The general case, in the log domain, with any weights and a trusted class. Returns the instance's term of the
    /// log-likelihood.
    #[cold]
    pub(super) fn row(
        &mut self,
        range: &InstanceRange<'_>,
        i: usize,
        prior: &[f64],
        write: impl Fn(u32, f64, &[f64], &mut [f64]),
        are_logs: bool,
        row: &mut [f64],
    ) -> f64 {
        let positions = range.positions(i);
        let (columns, weights) =
            (&range.columns[positions.clone()], range.weights.slice(positions));
        self.previous.copy_from_slice(row);
        self.logs.iter_mut().zip(prior).for_each(|(log, p)| *log = p.ln());
        for (at, column) in columns.iter().enumerate() {
            let weight = weights.get(at);
            write(*column, weight, &self.previous, &mut self.factors);
            for (log, factor) in self.logs.iter_mut().zip(&self.factors) {
                *log += weight * if are_logs { *factor } else { factor.ln() };
            }
        }
        write_row(&self.logs, range.trusted_class(i), !columns.is_empty(), row)
    }
}

/// Whether the product of the weighted factors of these columns is sure not to underflow.
pub(super) fn product_stays_in_range(columns: &[u32], weights: WeightSlice<'_>) -> bool {
    columns.len() <= MAX_FACTORS && (0..columns.len()).all(|at| weights.get(at) <= 1.0)
}
