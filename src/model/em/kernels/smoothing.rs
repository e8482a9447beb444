//! [`Smoothing`] as an estimator: maximum likelihood with pseudo-counts.

use super::estimate::{
    Annotator, Estimator, SingletonInput, SingletonRows, SparseCell, WeightedSingletons,
    add_logs_of_each, estimate_each,
};
use super::logarithms::{ln, ln_shares};
use super::padded_matrix::{stride, with_buffer};
use super::pseudo_counts::log_prior_term;
use super::row_arithmetic::in_vectors;
use super::smoothed_singletons::SmoothedSingletons;
use super::width::width;
use crate::model::confusion::Smoothing;
use crate::model::numerics::MIN_LIKELIHOOD;

/// The likelihood is the smoothed share of each label; the terms are the log-prior of the rows of the matrix.
impl Estimator for Smoothing {
    #[inline(always)]
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        with_buffer::<K>(
            annotator.n_classes,
            #[inline(always)]
            |sums| {
                let log_prior = smooth::<K>(*self, annotator, cells, sums);
                sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
                for cells in cells.chunks_exact_mut(sums.len()) {
                    cells.iter_mut().zip(&*sums).for_each(|(cell, scale)| *cell *= scale);
                }
                log_prior
            },
        )
    }

    /// # Why
    /// The share of an annotator's only label is 1. Rounded as a product with a reciprocal it may be 1 - 1e-16, and a
    /// weight multiplies the logarithm of that.
    #[inline(always)]
    fn estimate_logs<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        with_buffer::<K>(
            annotator.n_classes,
            #[inline(always)]
            |sums| {
                let log_prior = smooth::<K>(*self, annotator, cells, sums);
                ln_shares(cells, sums, ln(MIN_LIKELIHOOD));
                log_prior
            },
        )
    }

    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64 {
        let sums = unused;
        let mut log_prior = 0.0;
        if self.has_pseudo_counts() {
            sums.fill(0.0);
            let mut first = 0;
            for (label, end) in annotator.labels.iter().zip(ends) {
                for cell in &cells[first..*end] {
                    sums[cell.class as usize] += cell.value;
                    log_prior += log_prior_term(cell.value, self.added(cell.class == *label));
                }
                first = *end;
            }
            log_prior -=
                sums.iter().map(|sum| log_prior_term(*sum, self.added_to_row())).sum::<f64>();
        }
        let (never, never_diagonal) = (self.cell(0.0, 0, 1), self.cell(0.0, 0, 0));
        sums.fill(self.n_labels as f64 * never + (never_diagonal - never));
        let mut first = 0;
        for (label, end) in annotator.labels.iter().zip(ends) {
            for cell in &mut cells[first..*end] {
                let k = cell.class as usize;
                let count = self.cell(cell.value, k, *label as usize);
                sums[k] += count - self.cell(0.0, k, *label as usize);
                cell.value = count;
            }
            first = *end;
        }
        cells.iter_mut().for_each(|cell| cell.value /= sums[cell.class as usize]);
        sums.iter_mut().for_each(|sum| *sum = never / *sum);
        log_prior
    }

    fn estimate_singletons(
        &self,
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        if self.diagonal != 0.0 {
            return estimate_each::<false>(self, rows, n_classes, cells);
        }
        let (singletons, repeats) = (SmoothedSingletons::new(*self), rows.repeats);
        in_vectors(
            cells,
            #[inline(always)]
            move |cells| singletons.estimate(repeats, n_classes, cells),
        )
    }

    fn add_singleton_logs(&self, singletons: &WeightedSingletons<'_>, sums: &mut [f64]) -> f64 {
        if self.diagonal != 0.0 {
            return add_logs_of_each(self, singletons, sums);
        }
        in_vectors(
            sums,
            #[inline(always)]
            move |sums| {
                let smoothed = SmoothedSingletons::new(*self);
                smoothed.add_logs(singletons.posterior, singletons.weights, sums)
            },
        )
    }

    fn allows_sparse_columns(&self) -> bool {
        true
    }

    fn singleton_input(&self) -> SingletonInput {
        if self.diagonal == 0.0 { SingletonInput::Posterior } else { SingletonInput::Label }
    }
}

/// Adds the smoothing to an annotator's counts, and writes the sums of their rows into `sums`, as long as a padded row.
/// Returns the log-prior of the shares.
///
/// # Why
/// Rows are processed with their padding, whose content does not matter: five numbers take two or three operations,
/// eight take one or two.
#[inline(always)]
fn smooth<const K: usize>(
    smoothing: Smoothing,
    Annotator { labels, n_classes, .. }: Annotator<'_>,
    cells: &mut [f64],
    sums: &mut [f64],
) -> f64 {
    let n = width::<K>(n_classes).max(1);
    let lanes = stride(n);
    let sums = &mut sums[..lanes];
    let mut log_prior = 0.0;
    if smoothing.has_pseudo_counts() {
        sums.fill(0.0);
        for (cells, label) in cells.chunks_exact(lanes).zip(labels) {
            for k in 0..lanes {
                sums[k] += cells[k];
            }
            log_prior += smoothing.log_prior_of_column(&cells[..n], *label);
        }
        log_prior -= smoothing.log_prior_of_sums(&sums[..n]);
    }
    if smoothing.diagonal != 0.0 {
        for (cells, label) in cells.chunks_exact_mut(lanes).zip(labels) {
            if let Some(diagonal) = cells[..n].get_mut(*label as usize) {
                *diagonal += smoothing.diagonal;
            }
        }
    }
    smoothing.row_sums(labels, sums);
    for cells in cells.chunks_exact_mut(lanes) {
        for k in 0..lanes {
            cells[k] = smoothing.smoothed(cells[k]);
            sums[k] += cells[k];
        }
    }
    log_prior
}
