//! Numerical functions that losses use, with their derivatives, on the host in f64.

use std::borrow::Cow;

pub use crate::model::numerics::{MIN_PROBABILITY, at_least, sigmoid, softmax, softplus};

/// `out = ln softmax(logits)`: finite where the softmax itself would be 0.
pub fn log_softmax(logits: &[f64], out: &mut [f64]) {
    let sum = softmax(logits, out);
    out.iter_mut().zip(logits).for_each(|(o, l)| *o = l - sum);
}

/// Propagates `d_p`, the gradient of `p = softmax(logits)`, to the logits: adds the result to `d_logits`.
pub fn softmax_backward(p: &[f64], d_p: &[f64], d_logits: &mut [f64]) {
    let mean: f64 = p.iter().zip(d_p).map(|(p, d)| p * d).sum();
    for ((d, p), d_p) in d_logits.iter_mut().zip(p).zip(d_p) {
        *d += p * (d_p - mean);
    }
}

/// The least probability whose logarithm has a derivative in [`negative_log`]; one over it is far from an overflow.
const MIN_DIFFERENTIABLE: f64 = 1e-290;

/// `-ln max(p, 1e-290)` and its derivative, which is zero where `p` is clamped. NaN gives NaN.
pub fn negative_log(p: f64) -> (f64, f64) {
    if p <= MIN_DIFFERENTIABLE { (-MIN_DIFFERENTIABLE.ln(), 0.0) } else { (-p.ln(), -1.0 / p) }
}

/// `ln(softplus(x))`; for x so small that softplus(x) equals e^x to the last bit, x itself.
fn ln_softplus(x: f64) -> f64 {
    if x < -37.0 { x } else { softplus(x).ln() }
}

/// `out[l] = sum over k of row[k] matrix[k][l]`
pub fn row_times(row: &[f64], matrix: &[f64], out: &mut [f64]) {
    out.fill(0.0);
    for (x, cells) in row.iter().zip(matrix.chunks_exact(out.len())) {
        out.iter_mut().zip(cells).for_each(|(o, m)| *o += x * m);
    }
}

/// The gradients of [`row_times`]: adds `matrix d_out` to `d_row`, and `row` outer `d_out` to `d_matrix`.
pub fn row_times_backward(
    row: &[f64],
    matrix: &[f64],
    d_out: &[f64],
    d_row: &mut [f64],
    d_matrix: &mut [f64],
) {
    let n = d_out.len();
    let cells = matrix.chunks_exact(n).zip(d_matrix.chunks_exact_mut(n));
    for ((x, d_x), (cells, d_cells)) in row.iter().zip(d_row).zip(cells) {
        let mut dot = 0.0;
        for ((m, d), d_m) in cells.iter().zip(d_out).zip(d_cells) {
            dot += m * d;
            *d_m += x * d;
        }
        *d_x += dot;
    }
}

/// A matrix `[class, label]` with `on` on its diagonal and `off` elsewhere.
pub fn diagonal(n_classes: usize, n_labels: usize, on: f32, off: f32) -> Vec<f32> {
    let cells = (0..n_classes).flat_map(|k| (0..n_labels).map(move |l| (k, l)));
    cells.map(|(k, l)| if k == l { on } else { off }).collect()
}

/// The sum of the diagonal of a matrix `[class, label]`.
pub fn trace(matrix: &[f64], n_labels: usize) -> f64 {
    matrix.iter().step_by(n_labels + 1).take(matrix.len() / n_labels.max(1)).sum()
}

/// Row-stochastic matrices from free parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowStochastic {
    /// Softplus, then each row divided by its sum (Tanno et al.'s sample code).
    Softplus,
    /// Softmax of each row.
    Softmax,
}

impl RowStochastic {
    /// The logits: their softmax is a row of the matrix.
    fn logits(self, rho: &[f64]) -> Cow<'_, [f64]> {
        match self {
            Self::Softplus => rho.iter().map(|r| ln_softplus(*r)).collect(),
            Self::Softmax => Cow::Borrowed(rho),
        }
    }

    /// `out` = the matrix of the parameters `rho`; both are `[class, label]`.
    pub fn forward(self, rho: &[f64], n_labels: usize, out: &mut [f64]) {
        for (rho, out) in rho.chunks_exact(n_labels).zip(out.chunks_exact_mut(n_labels)) {
            softmax(&self.logits(rho), out);
        }
    }

    /// `out` = the logarithm of the matrix, finite where the matrix itself would be 0.
    pub fn log_forward(self, rho: &[f64], n_labels: usize, out: &mut [f64]) {
        for (rho, out) in rho.chunks_exact(n_labels).zip(out.chunks_exact_mut(n_labels)) {
            log_softmax(&self.logits(rho), out);
        }
    }

    /// Propagates `d_pi`, the gradient of the matrix `pi`, to the parameters: adds the result to `d_rho`.
    pub fn backward(
        self,
        rho: &[f64],
        pi: &[f64],
        d_pi: &[f64],
        n_labels: usize,
        d_rho: &mut [f64],
    ) {
        let d_log: Vec<f64> = pi.iter().zip(d_pi).map(|(p, d)| p * d).collect();
        self.log_backward(rho, pi, &d_log, n_labels, d_rho);
    }

    /// Propagates `d_log`, the gradient of the logarithm of the matrix `pi`, to the parameters: adds the result to
    /// `d_rho`.
    pub fn log_backward(
        self,
        rho: &[f64],
        pi: &[f64],
        d_log: &[f64],
        n_labels: usize,
        d_rho: &mut [f64],
    ) {
        let rows = rho.chunks_exact(n_labels).zip(pi.chunks_exact(n_labels));
        let grads = d_log.chunks_exact(n_labels).zip(d_rho.chunks_exact_mut(n_labels));
        for ((rho, pi), (d_log, d_rho)) in rows.zip(grads) {
            let sum: f64 = d_log.iter().sum();
            for (((d_rho, rho), pi), d_log) in d_rho.iter_mut().zip(rho).zip(pi).zip(d_log) {
                let slope = match self {
                    Self::Softmax => 1.0,
                    // sigmoid(x) / softplus(x), which is 1 far below zero, where both underflow to 0.
                    Self::Softplus => (-softplus(-rho) - ln_softplus(*rho)).exp(),
                };
                *d_rho += slope * (d_log - pi * sum);
            }
        }
    }
}

/// A vector divided by its length, as CoNAL's embeddings are.
pub struct UnitVector {
    /// The length of the vector; `None` where the vector is used as it is.
    norm: Option<f64>,
    /// The vector over its length.
    pub unit: Vec<f64>,
}

impl UnitVector {
    /// Divides a vector by its length.
    pub fn from_vector(vector: &[f64]) -> Self {
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        let norm = at_least(norm, 1e-12);
        Self { norm: Some(norm), unit: vector.iter().map(|x| x / norm).collect() }
    }

    /// Uses a vector without dividing it by its length.
    pub fn as_it_is(vector: &[f64]) -> Self {
        Self { norm: None, unit: vector.to_vec() }
    }

    /// Propagates the gradient of the unit vector to the vector: adds the result to `d_vector`.
    pub fn backward(&self, d_unit: &[f64], d_vector: &mut [f64]) {
        let Some(norm) = self.norm else {
            d_vector.iter_mut().zip(d_unit).for_each(|(d, d_unit)| *d += d_unit);
            return;
        };
        let along: f64 = self.unit.iter().zip(d_unit).map(|(u, d)| u * d).sum();
        for ((d, d_unit), unit) in d_vector.iter_mut().zip(d_unit).zip(&self.unit) {
            *d += (d_unit - along * unit) / norm;
        }
    }
}
