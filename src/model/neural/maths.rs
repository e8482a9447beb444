//! Small numerics of the losses, on the host in f64, and their derivatives.

pub use crate::model::em::e_sweep::softmax;

/// `-ln` of probabilities below this is not taken: B9 of Tanno et al.'s sample code clamps there too.
pub const LEAST_PROBABILITY: f64 = 1e-10;

/// Adds to `d_logits` what `d_p`, the gradient with respect to `p = softmax(logits)`, means for the logits.
pub fn softmax_backward(p: &[f64], d_p: &[f64], d_logits: &mut [f64]) {
    let mean: f64 = p.iter().zip(d_p).map(|(p, d)| p * d).sum();
    for ((d, p), d_p) in d_logits.iter_mut().zip(p).zip(d_p) {
        *d += p * (d_p - mean);
    }
}

/// `-ln p`, clamped as [`LEAST_PROBABILITY`] says, and its derivative, which is zero where it is clamped.
pub fn negative_log(p: f64) -> (f64, f64) {
    if p > LEAST_PROBABILITY { (-p.ln(), -1.0 / p) } else { (-LEAST_PROBABILITY.ln(), 0.0) }
}

/// `ln(1 + e^x)`, without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `1 / (1 + e^-x)`, without overflow.
pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
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

/// A matrix `[class, label]` with this diagonal and these other cells.
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
pub enum Rows {
    /// Softplus, then each row divided by its sum (Tanno et al.'s sample code).
    Softplus,
    /// Softmax of each row.
    Softmax,
}

impl Rows {
    /// `out` = the matrix of the parameters `rho`, `[class, label]` both.
    pub fn forward(self, rho: &[f64], n_labels: usize, out: &mut [f64]) {
        for (rho, out) in rho.chunks_exact(n_labels).zip(out.chunks_exact_mut(n_labels)) {
            match self {
                Self::Softmax => {
                    softmax(rho, out);
                }
                Self::Softplus => {
                    out.iter_mut().zip(rho).for_each(|(o, r)| *o = softplus(*r));
                    let sum: f64 = out.iter().sum();
                    out.iter_mut().for_each(|o| *o /= sum);
                }
            }
        }
    }

    /// Adds to `d_rho` what the gradient with respect to the matrix `pi` means for the parameters.
    pub fn backward(
        self,
        rho: &[f64],
        pi: &[f64],
        d_pi: &[f64],
        n_labels: usize,
        d_rho: &mut [f64],
    ) {
        let rows = rho.chunks_exact(n_labels).zip(pi.chunks_exact(n_labels));
        let grads = d_pi.chunks_exact(n_labels).zip(d_rho.chunks_exact_mut(n_labels));
        for ((rho, pi), (d_pi, d_rho)) in rows.zip(grads) {
            match self {
                Self::Softmax => softmax_backward(pi, d_pi, d_rho),
                Self::Softplus => {
                    let sum: f64 = rho.iter().map(|r| softplus(*r)).sum();
                    let mean: f64 = pi.iter().zip(d_pi).map(|(p, d)| p * d).sum();
                    for ((d_rho, rho), d_pi) in d_rho.iter_mut().zip(rho).zip(d_pi) {
                        *d_rho += (d_pi - mean) / sum * sigmoid(*rho);
                    }
                }
            }
        }
    }
}

/// A vector and its direction.
pub struct Direction {
    /// `None` where the vector itself is taken for its direction.
    norm: Option<f64>,
    /// The vector over its length.
    pub unit: Vec<f64>,
}

impl Direction {
    /// The direction of a vector.
    pub fn of(vector: &[f64]) -> Self {
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        Self { norm: Some(norm), unit: vector.iter().map(|x| x / norm).collect() }
    }

    /// A vector that is taken for its direction.
    pub fn as_it_is(vector: &[f64]) -> Self {
        Self { norm: None, unit: vector.to_vec() }
    }

    /// Adds what the gradient by the direction means for the vector.
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
