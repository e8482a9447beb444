//! What annotators do in each state.

use rayon::prelude::*;

use super::effects::{
    A_PRECISION, B_PRECISION, MAGNITUDES, NO_EFFECT, WEIGHTS, sums_over_labels, write_softmax,
};
use crate::frame::{Annotations, Dims};
use crate::model::confusion::Cells;
use crate::model::em::pairs::crowd_rows::POOLED_COUNT;

/// The strength of the rows that start a, what is added to their shares, and the start of b.
const ROW_STRENGTH: f64 = 4.0;
const ADDED: f64 = 1e-3;
const FOLLOWS: f64 = 0.7;

/// The parameters of all annotators, and what an E-step reads of them.
pub(super) struct Annotators {
    pub(super) dims: Dims,
    /// a `[annotator, label, class]`
    pub(super) logits: Vec<f64>,
    /// b `[annotator]`
    pub(super) follows: Vec<f64>,
    /// ln pi `[annotator, label, class]`
    ln_rows: Vec<f64>,
    /// ln(1 + g pi) `[annotator, label, magnitude, class]`
    ln_norms: Vec<f64>,
}

impl Annotators {
    pub(super) fn zeros(dims: Dims) -> Self {
        let cells = || vec![0.0; dims.annotators * dims.labels * dims.classes];
        let ln_norms = [cells(), cells()].concat();
        let follows = vec![FOLLOWS; dims.annotators];
        Self { dims, logits: cells(), follows, ln_rows: cells(), ln_norms }
    }

    /// The cells of a matrix.
    pub(super) fn size(&self) -> usize {
        (self.dims.labels * self.dims.classes).max(1)
    }

    /// ln P(label | class) in the state without an effect, `[class]`.
    pub(super) fn ln_row(&self, r: usize, label: usize) -> &[f64] {
        let n = self.dims.classes;
        &self.ln_rows[(r * self.dims.labels + label) * n..][..n]
    }

    /// ln(1 + g pi) of both magnitudes of a label, `[magnitude, class]`.
    pub(super) fn ln_norms(&self, r: usize, label: usize) -> &[f64] {
        let n = 2 * self.dims.classes;
        &self.ln_norms[(r * self.dims.labels + label) * n..][..n]
    }

    pub(super) fn follows(&self, r: usize) -> f64 {
        self.follows[r]
    }

    pub(super) fn into_follows(self) -> Vec<f64> {
        self.follows
    }

    /// Step 1, from the expected counts of Dawid-Skene, `[pair, class]`.
    pub(super) fn start(&mut self, a: &Annotations, counts: &[f64]) {
        let (Dims { classes: n, labels, .. }, size) = (self.dims, self.size());
        let mut crowd = vec![POOLED_COUNT; labels * n];
        for (pair, counts) in counts.chunks_exact(n.max(1)).enumerate() {
            let row = &mut crowd[a.label_of_pair(pair as u32) as usize * n..][..n];
            row.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let sums = sums_over_labels(&crowd, n);
        crowd.iter_mut().enumerate().for_each(|(at, p)| *p /= sums[at % n]);
        self.follows.fill(FOLLOWS);
        self.logits.par_chunks_mut(size).enumerate().for_each(|(r, logits)| {
            logits.iter_mut().zip(&crowd).for_each(|(cell, p)| *cell = ROW_STRENGTH * p);
            add_counts(a, r, counts, n, logits);
            let sums = sums_over_labels(logits, n);
            let log = |(at, cell): (usize, &mut f64)| *cell = (*cell / sums[at % n] + ADDED).ln();
            logits.iter_mut().enumerate().for_each(log);
            let sums = sums_over_labels(logits, n);
            let centre = |(at, cell): (usize, &mut f64)| *cell -= sums[at % n] / labels as f64;
            logits.iter_mut().enumerate().for_each(centre);
        });
        self.prepare();
    }

    /// The means of the priors: of a, `[label, class]`, and of b.
    pub(super) fn means(&self) -> (Vec<f64>, f64) {
        let (mut mean, all) = (vec![0.0; self.size()], self.dims.annotators.max(1) as f64);
        for logits in self.logits.chunks_exact(self.size()) {
            mean.iter_mut().zip(logits).for_each(|(sum, cell)| *sum += cell);
        }
        mean.iter_mut().for_each(|sum| *sum /= all);
        (mean, (self.follows.iter().sum::<f64>() / all).max(0.0))
    }

    /// ln P(a) + ln P(b), up to a constant.
    pub(super) fn log_prior(&self) -> f64 {
        let (mean_a, mean_b) = self.means();
        let of = |logits: &[f64]| -> f64 {
            logits.iter().zip(&mean_a).map(|(cell, mean)| (cell - mean).powi(2)).sum()
        };
        let a: f64 = self.logits.chunks_exact(self.size()).map(of).sum();
        let b: f64 = self.follows.iter().map(|b| (b - mean_b).powi(2)).sum();
        -(A_PRECISION * a + B_PRECISION * b) / 2.0
    }

    /// Computes what an E-step reads.
    pub(super) fn prepare(&mut self) {
        let (n, size) = (self.dims.classes.max(1), self.size());
        let tables = self.ln_rows.par_chunks_mut(size).zip(self.ln_norms.par_chunks_mut(2 * size));
        let own = self.logits.par_chunks(size).zip(&self.follows);
        tables.zip(own).for_each(|((rows, norms), (logits, follows))| {
            write_softmax(logits, n, rows);
            let gains = MAGNITUDES.map(|m| (follows * m).exp_m1());
            for (row, norms) in rows.chunks_exact_mut(n).zip(norms.chunks_exact_mut(2 * n)) {
                for (norms, gain) in norms.chunks_exact_mut(n).zip(gains) {
                    norms.iter_mut().zip(&*row).for_each(|(norm, p)| *norm = (gain * p).ln_1p());
                }
                row.iter_mut().for_each(|p| *p = p.ln());
            }
        });
    }

    /// P(label | class), averaged over states, `[annotator, class, label]`.
    pub(super) fn cells(&self) -> Cells {
        let (Dims { classes: n, labels, .. }, size) = (self.dims, self.size());
        let mut cells = vec![0.0; self.logits.len()];
        cells.par_chunks_mut(size).enumerate().for_each(|(r, cells)| {
            let gains = MAGNITUDES.map(|m| (self.follows[r] * m).exp_m1());
            // The weight of a state over the norm of its probabilities.
            let weight = |l: usize, m: usize, k: usize| {
                WEIGHTS[m] / labels as f64 * (-self.ln_norms(r, l)[m * n + k]).exp()
            };
            for k in 0..n {
                let all: f64 = (0..labels).map(|l| weight(l, 0, k) + weight(l, 1, k)).sum();
                for y in 0..labels {
                    let own = gains[0] * weight(y, 0, k) + gains[1] * weight(y, 1, k);
                    cells[k * labels + y] = self.ln_row(r, y)[k].exp() * (NO_EFFECT + all + own);
                }
            }
        });
        Cells::Dense(cells)
    }
}

/// Adds the expected counts of an annotator, `[pair, class]`, to `cells`, `[label, class]`.
pub(super) fn add_counts(a: &Annotations, r: usize, counts: &[f64], n: usize, cells: &mut [f64]) {
    for (pair, label) in a.pairs_of_annotator(r).zip(a.labels_of_annotator(r)) {
        let row = &mut cells[*label as usize * n..][..n];
        row.iter_mut().zip(&counts[pair * n..]).for_each(|(sum, count)| *sum += count);
    }
}
