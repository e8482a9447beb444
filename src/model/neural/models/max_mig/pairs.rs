//! The loss over all pairs of a batch's rows, and its derivatives.
//!
//! # Why
//! There are B^2 pairs. For the KL divergence the cost of a pair is K itself, so that the sum over all pairs (i, j) of
//! different rows needs no pair alone:
//!
//! ```text
//! sum_{i != j} K[i][j] = sum_k (sum_i h[i][k]) (sum_j g[j][k]) / prior[k] - sum_i K[i][i]
//! ```
//! The other divergences visit every pair. Ranges of rows are computed in parallel, each with its own gradient of g, whose
//! number is bounded and depends on the rows alone: so memory is proportional to the rows, and threads change no bit.

use rayon::prelude::*;

use super::divergence::FDivergence;
use crate::model::neural::numerics::at_least;

/// K[i][j] is clamped to at least this, since some f need it above zero.
const MIN_SHARED: f64 = 1e-12;

/// The least number of rows of the classifier whose pairs one task computes.
const ROWS_PER_TASK: usize = 64;

/// The largest number of tasks, each with its own gradient of g.
const MAX_TASKS: usize = 16;

/// The outputs of classifier and aggregator for a batch, which the loss compares.
pub(super) struct Pairs<'a> {
    pub(super) divergence: FDivergence,
    /// Added to the diagonal of K.
    pub(super) u: f64,
    /// The classifier's probabilities, `[row, class]`.
    pub(super) h: &'a [f64],
    /// The aggregator's probabilities, `[row, class]`.
    pub(super) g: &'a [f64],
    pub(super) prior: &'a [f64],
}

impl Pairs<'_> {
    /// The loss of all pairs; adds its derivatives with respect to h to `d_h`, and returns those with respect to g.
    pub(super) fn loss(&self, d_h: &mut [f64]) -> (f64, Vec<f64>) {
        match self.divergence {
            FDivergence::Kl => self.in_closed_form(d_h),
            _ => self.one_by_one(d_h),
        }
    }

    /// The weights of a pair of the same row and of a pair of two rows.
    fn weights(&self) -> [f64; 2] {
        let rows = self.h.len() / self.prior.len();
        let pairs = rows * rows.saturating_sub(1);
        [1.0 / rows as f64, if pairs > 0 { 1.0 / pairs as f64 } else { 0.0 }]
    }

    /// K of these rows of h and g.
    fn shared(&self, h: &[f64], g: &[f64]) -> f64 {
        h.iter().zip(g).zip(self.prior).map(|((h, g), prior)| h * g / prior).sum()
    }

    /// The loss for the KL divergence.
    fn in_closed_form(&self, d_h: &mut [f64]) -> (f64, Vec<f64>) {
        let (Self { u, h, g, prior, .. }, classes) = (self, self.prior.len());
        let [same, other] = self.weights();
        let (sum_h, sum_g) = (sum_of_rows(h, classes), sum_of_rows(g, classes));
        let (mut gains, mut trace, mut d_g) = (0.0, 0.0, vec![0.0; g.len()]);
        let rows = h.chunks_exact(classes).zip(g.chunks_exact(classes));
        let gradients = d_h.chunks_exact_mut(classes).zip(d_g.chunks_exact_mut(classes));
        for ((h, g), (d_h, d_g)) in rows.zip(gradients) {
            let shared = self.shared(h, g);
            let (gain, slope) = self.divergence.gain(at_least(shared + u, MIN_SHARED));
            gains += gain;
            trace += shared;
            // The pair of the row with itself is part of both sums.
            let own = -same * slope - other;
            for k in 0..classes {
                d_h[k] += (own * g[k] + other * sum_g[k]) / prior[k];
                d_g[k] += (own * h[k] + other * sum_h[k]) / prior[k];
            }
        }
        (other * (self.shared(&sum_h, &sum_g) - trace) - same * gains, d_g)
    }

    fn one_by_one(&self, d_h: &mut [f64]) -> (f64, Vec<f64>) {
        let classes = self.prior.len();
        let rows = (d_h.len() / classes).div_ceil(MAX_TASKS).max(ROWS_PER_TASK);
        let parts: Vec<(f64, Vec<f64>)> = d_h
            .par_chunks_mut(rows * classes)
            .enumerate()
            .map(|(n, d_h)| self.of_rows(n * rows, d_h))
            .collect();
        let (mut loss, mut d_g) = (0.0, vec![0.0; self.g.len()]);
        for (of_part, d_part) in parts {
            loss += of_part;
            d_g.iter_mut().zip(d_part).for_each(|(sum, d)| *sum += d);
        }
        (loss, d_g)
    }

    /// The loss of all pairs (i, j) with i in the range of rows that starts at `first` and has the length of `d_h`; adds
    /// the gradient of h to `d_h`, and returns the gradient of g for all rows.
    fn of_rows(&self, first: usize, d_h: &mut [f64]) -> (f64, Vec<f64>) {
        let (Self { divergence, u, h, g, prior }, classes) = (self, self.prior.len());
        let [same, other] = self.weights();
        let (mut loss, mut d_g) = (0.0, vec![0.0; g.len()]);
        let rows = h.chunks_exact(classes).enumerate().skip(first);
        for ((i, h), d_h) in rows.zip(d_h.chunks_exact_mut(classes)) {
            let of_rows = g.chunks_exact(classes).zip(d_g.chunks_exact_mut(classes));
            for (j, (g, d_g)) in of_rows.enumerate() {
                let shared = self.shared(h, g);
                let slope = if i == j {
                    let (gain, slope) = divergence.gain(at_least(shared + u, MIN_SHARED));
                    loss -= same * gain;
                    -same * slope
                } else {
                    let (cost, slope) = divergence.cost(at_least(shared, MIN_SHARED));
                    loss += other * cost;
                    other * slope
                };
                for k in 0..classes {
                    d_h[k] += slope * g[k] / prior[k];
                    d_g[k] += slope * h[k] / prior[k];
                }
            }
        }
        (loss, d_g)
    }
}

fn sum_of_rows(rows: &[f64], classes: usize) -> Vec<f64> {
    let mut sum = vec![0.0; classes];
    for row in rows.chunks_exact(classes) {
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::numerics::softmax;

    const PRIOR: [f64; 3] = [0.5, 0.3, 0.2];

    fn probabilities(rows: usize, step: usize) -> Vec<f64> {
        let mut p = vec![0.0; 3 * rows];
        for (n, p) in p.chunks_mut(3).enumerate() {
            let logits = [0, 1, 2].map(|k| ((3 * n + k) * step % 101) as f64 / 20.0 - 2.5);
            softmax(&logits, p);
        }
        p
    }

    /// The formulas pair by pair: the loss, and its derivatives with respect to h and g.
    fn pair_by_pair(pairs: &Pairs<'_>) -> (f64, Vec<f64>, Vec<f64>) {
        let rows = pairs.h.len() / 3;
        let n = rows as f64;
        let (mut d_h, mut d_g) = (vec![0.0; 3 * rows], vec![0.0; 3 * rows]);
        // Row by row, since one sum over a million pairs would round too much.
        let mut of_row = vec![0.0; rows];
        for (i, j) in (0..rows).flat_map(|i| (0..rows).map(move |j| (i, j))) {
            let (h, g) = (&pairs.h[3 * i..3 * i + 3], &pairs.g[3 * j..3 * j + 3]);
            let shared = h[0] * g[0] / 0.5 + h[1] * g[1] / 0.3 + h[2] * g[2] / 0.2;
            let (value, slope) = if i == j {
                let (gain, slope) = pairs.divergence.gain(shared + pairs.u);
                (-gain / n, -slope / n)
            } else {
                let (cost, slope) = pairs.divergence.cost(shared);
                (cost / (n * (n - 1.0)), slope / (n * (n - 1.0)))
            };
            of_row[i] += value;
            for k in 0..3 {
                d_h[3 * i + k] += slope * g[k] / PRIOR[k];
                d_g[3 * j + k] += slope * h[k] / PRIOR[k];
            }
        }
        (of_row.iter().sum(), d_h, d_g)
    }

    fn near(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len(), "{what}");
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (got - want).abs() / want.abs().max(1.0);
            assert!(error < tolerance, "{what}[{at}]: {got}, expected {want}");
        }
    }

    /// One row alone, a few rows, rows of two tasks, and more rows than the tasks take with 64 each. A sum over a million
    /// pairs rounds to 1e-11.
    #[test]
    fn the_loss_of_any_number_of_rows_is_that_of_its_pairs_to_rounding() {
        for (rows, tolerance) in [(1, 1e-14), (2, 1e-14), (5, 1e-14), (70, 1e-12), (1100, 1e-11)] {
            let (h, g) = (probabilities(rows, 37), probabilities(rows, 59));
            for divergence in [FDivergence::Kl, FDivergence::Pearson, FDivergence::JensenShannon] {
                let pairs = Pairs { divergence, u: 5e-5, h: &h, g: &g, prior: &PRIOR };
                let (loss, of_h, of_g) = pair_by_pair(&pairs);
                let mut d_h = vec![0.0; h.len()];
                let (got, d_g) = pairs.loss(&mut d_h);
                let what = format!("{divergence:?}, {rows} rows");
                near(&what, &[got], &[loss], tolerance);
                near(&format!("{what}: h"), &d_h, &of_h, tolerance);
                near(&format!("{what}: g"), &d_g, &of_g, tolerance);
            }
        }
    }

    /// The closed form adds to the derivatives that are there already, as the pairs do.
    #[test]
    fn the_closed_form_is_the_sum_over_pairs() {
        let (h, g) = (probabilities(130, 37), probabilities(130, 59));
        let pairs = Pairs { divergence: FDivergence::Kl, u: 5e-5, h: &h, g: &g, prior: &PRIOR };
        let start: Vec<f64> = (0..h.len()).map(|n| (n as f64).sin()).collect();
        let (mut closed, mut single) = (start.clone(), start);
        let (of_closed, of_single) =
            (pairs.in_closed_form(&mut closed), pairs.one_by_one(&mut single));
        near("loss", &[of_closed.0], &[of_single.0], 1e-12);
        near("h", &closed, &single, 1e-12);
        near("g", &of_closed.1, &of_single.1, 1e-12);
    }
}
