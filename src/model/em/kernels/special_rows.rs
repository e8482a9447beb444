//! Rows that the plain product does not fit: many annotations, a few weights, trust.

use std::f64::consts::LN_2;

use super::log_domain::take_exponent;
use super::padded_matrix::stride;
use crate::frame::{InstanceRange, WeightSlice};
use crate::model::numerics::softmax;

/// Factors of at least `MIN_LIKELIHOOD` (2^-66.5), times a prior of at least 1e-27 (2^-90) or a mantissa, that stay above
/// the least normal f64 (2^-1022).
pub(super) const SAFE: usize = 14;

/// The exponent of a class that the prior excludes: less than that of any product.
const NEVER: i64 = i64::MIN / 2;

/// Instances that the plain way does not fit: long products, a few weights, trust.
pub(super) struct Special<'a> {
    /// The positions of the weights other than 1 that are still to come, where they are few.
    pending: &'a [usize],
    start: usize,
    last: Vec<f64>,
    factors: Vec<f64>,
    logs: Vec<f64>,
    exponents: Vec<i64>,
}

impl<'a> Special<'a> {
    pub(super) fn new(n: usize, weights: WeightSlice<'a>) -> Self {
        let (pending, start) = match weights {
            WeightSlice::Few { start, positions, .. } => (positions, start),
            _ => (&[][..], 0),
        };
        let room = || vec![0.0; n];
        let factors = vec![0.0; stride(n)];
        Self { pending, start, last: room(), factors, logs: room(), exponents: vec![0; n] }
    }

    /// Whether one of the few weights is among the annotations of the next instance, which end at `end`.
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

    /// `row` = `prior` times the factors of many columns, all over 2^e; returns ln(2^e), and the
    /// terms of the objective of columns made anew.
    pub(super) fn long_row(
        &mut self,
        columns: &[u32],
        prior: &[f64],
        write: impl Fn(u32, f64, &[f64], &mut [f64]) -> f64,
        row: &mut [f64],
    ) -> f64 {
        self.last.copy_from_slice(row);
        self.exponents.fill(0);
        let mut terms = 0.0;
        row.copy_from_slice(prior);
        for run in columns.chunks(SAFE) {
            for column in run {
                terms += write(*column, 1.0, &self.last, &mut self.factors);
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
            // Below the least normal number nothing counts beside a row whose greatest is at least 1.
            *p *= if max - e < 1022 {
                f64::from_bits((1023 - (max - e)).cast_unsigned() << 52)
            } else {
                0.0
            };
        }
        terms + max as f64 * LN_2
    }

    /// `row` = `prior` times the factors of every column, to the powers of weights of at most 1; returns the terms of the
    /// objective of columns made anew.
    #[cold]
    pub(super) fn weighted_row(
        &mut self,
        columns: &[u32],
        weights: WeightSlice<'_>,
        prior: &[f64],
        write: impl Fn(u32, f64, &[f64], &mut [f64]) -> f64,
        row: &mut [f64],
    ) -> f64 {
        self.last.copy_from_slice(row);
        row.copy_from_slice(prior);
        let mut terms = 0.0;
        for (at, column) in columns.iter().enumerate() {
            let weight = weights.get(at);
            terms += write(*column, weight, &self.last, &mut self.factors);
            let pairs = row.iter_mut().zip(&self.factors);
            match weight {
                1.0 => pairs.for_each(|(p, f)| *p *= f),
                // Two different answers share one annotation: nearly all weights there are.
                0.5 => pairs.for_each(|(p, f)| *p *= f.sqrt()),
                _ => pairs.for_each(|(p, f)| *p *= f.powf(weight)),
            }
        }
        terms
    }

    /// The general case, in the log domain: weights and trust. Returns the log-likelihood.
    #[cold]
    pub(super) fn row(
        &mut self,
        range: &InstanceRange<'_>,
        i: usize,
        prior: &[f64],
        write: impl Fn(u32, f64, &[f64], &mut [f64]) -> f64,
        are_logs: bool,
        row: &mut [f64],
    ) -> f64 {
        let own = range.positions(i);
        let (columns, weights) = (&range.columns[own.clone()], range.weights.slice(own));
        self.last.copy_from_slice(row);
        let mut terms = 0.0;
        self.logs.iter_mut().zip(prior).for_each(|(log, p)| *log = p.ln());
        for (at, column) in columns.iter().enumerate() {
            let weight = weights.get(at);
            terms += write(*column, weight, &self.last, &mut self.factors);
            for (log, factor) in self.logs.iter_mut().zip(&self.factors) {
                *log += weight * if are_logs { *factor } else { factor.ln() };
            }
        }
        match range.trusted_class(i) {
            Some(class) => {
                row.fill(0.0);
                row[class as usize] = 1.0;
                if columns.is_empty() { 0.0 } else { terms + self.logs[class as usize] }
            }
            None => terms + softmax(&self.logs, row),
        }
    }
}

/// Whether a product of the weighted factors of these columns stays in the range of f64.
pub(super) fn are_roots(columns: &[u32], weights: WeightSlice<'_>) -> bool {
    columns.len() <= SAFE && (0..columns.len()).all(|at| weights.get(at) <= 1.0)
}
