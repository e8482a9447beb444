//! [`PseudoCounts`] as an estimator: shares of counts with pseudo-counts that differ by cell; and [`RowPrior`], either form.

use super::estimate::{
    Annotator, Estimator, SingletonInput, SingletonRows, SparseCell, WeightedSingletons,
};
use super::padded_matrix::{stride, with_buffer};
use super::pseudo_counts::log_prior_term;
use super::width::width;
use crate::model::confusion::{PseudoCounts, Smoothing};

/// The likelihood is the share of each label; the terms are the log-prior of the rows, relative to its mode.
impl Estimator for PseudoCounts {
    #[inline(always)]
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        let n = width::<K>(annotator.n_classes);
        let lanes = stride(n);
        with_buffer::<K>(
            n,
            #[inline(always)]
            |sums| {
                sums[..n].fill(0.0);
                let mut log_prior = 0.0;
                for (cells, label) in cells.chunks_exact(lanes).zip(annotator.labels) {
                    let added = &self.of_label(*label as usize)[..n];
                    for k in 0..n {
                        sums[k] += cells[k];
                        log_prior += log_prior_term(cells[k], added[k]);
                    }
                }
                for (sum, added) in sums[..n].iter_mut().zip(self.of_rows()) {
                    log_prior -= log_prior_term(*sum, *added);
                    *sum = 1.0 / (*sum + added);
                }
                for (cells, label) in cells.chunks_exact_mut(lanes).zip(annotator.labels) {
                    let added = &self.of_label(*label as usize)[..n];
                    for k in 0..n {
                        cells[k] = (cells[k] + added[k]) * sums[k];
                    }
                }
                log_prior
            },
        )
    }

    /// A cell without a count has another likelihood for each label.
    fn allows_sparse_columns(&self) -> bool {
        false
    }
}

/// The pseudo-counts of an M-step: the same for all labels, or a matrix.
pub(crate) enum RowPrior {
    Smoothing(Smoothing),
    Matrix(PseudoCounts),
}

/// Calls a method of whichever estimator it is.
macro_rules! either {
    ($prior:expr, $estimator:ident => $call:expr) => {
        match $prior {
            RowPrior::Smoothing($estimator) => $call,
            RowPrior::Matrix($estimator) => $call,
        }
    };
}

impl Estimator for RowPrior {
    #[inline(always)]
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        either!(self, estimator => estimator.estimate::<K>(annotator, cells))
    }

    #[inline(always)]
    fn estimate_logs<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        either!(self, estimator => estimator.estimate_logs::<K>(annotator, cells))
    }

    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64 {
        either!(self, estimator => estimator.estimate_sparse(annotator, ends, cells, unused))
    }

    fn allows_sparse_columns(&self) -> bool {
        either!(self, estimator => estimator.allows_sparse_columns())
    }

    fn estimate_singletons(
        &self,
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        either!(self, estimator => estimator.estimate_singletons(rows, n_classes, cells))
    }

    fn add_singleton_logs(&self, singletons: &WeightedSingletons<'_>, sums: &mut [f64]) -> f64 {
        either!(self, estimator => estimator.add_singleton_logs(singletons, sums))
    }

    fn singleton_input(&self) -> SingletonInput {
        either!(self, estimator => estimator.singleton_input())
    }
}
