//! Estimators: from an annotator's expected counts to the likelihood. [`Smoothing`] is here, others are with their
//! models.

use pulp::Arch;

use super::padded_matrix::stride;
use super::width::width;
use crate::model::confusion::Smoothing;
use crate::model::numerics::{MIN_LIKELIHOOD, MIN_PROBABILITY};

/// The annotator whose counts an estimator receives.
#[derive(Debug, Clone, Copy)]
pub struct Annotator<'a> {
    /// The labels that the annotator used, ascending: one for each column.
    pub labels: &'a [u32],
    /// The number of classes.
    pub n_classes: usize,
}

/// A stored cell of a sparse confusion column.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SparseCell {
    /// The class.
    pub class: u32,
    /// Inside an [`Estimator`], the expected count or the likelihood; in the stored columns, the ratio of the
    /// likelihood to that of a label that the annotator never used, or the logarithm of this ratio.
    pub value: f64,
}

/// Turns the expected counts of one annotator at a time into the likelihood, whose columns the E-step multiplies.
///
/// A likelihood may be below [`MIN_LIKELIHOOD`]: the kernels raise it. Rows of a confusion matrix need not sum to 1.
pub trait Estimator: Sync {
    /// Replaces the expected counts in `cells`, [`stride`](super::stride) numbers for each column, by the
    /// likelihood of the same columns. Returns the annotator's term of the objective, such as minus the KL divergence
    /// from a Dirichlet prior, or 0 if it has none. `K` is the number of classes if there is a specialised kernel for
    /// it, else 0.
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64;

    /// Like [`Estimator::estimate`], for sparse columns. `cells` holds the cells with a count and the diagonal cells,
    /// column by column; the cells of the `n`-th column end at `ends[n]`. The estimator replaces their counts by
    /// likelihoods. It also writes into `unused`, `[class]`, the likelihood of an off-diagonal cell without a count,
    /// which holds for all cells that are not in `cells`.
    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64;

    /// Like [`Estimator::estimate`], for annotators with one annotation each, given their labels: `cells` holds their
    /// counts, `[annotator, class]` without padding, followed by space for one padded row. Returns the sum of their
    /// terms.
    fn estimate_singletons(&self, labels: &[u32], n_classes: usize, cells: &mut [f64]) -> f64 {
        let (n, stride, mut terms) = (n_classes, stride(n_classes), 0.0);
        for (at, label) in labels.iter().enumerate() {
            let annotator = Annotator { labels: &[*label], n_classes: n };
            terms += self.estimate::<0>(annotator, &mut cells[at * n..at * n + stride]);
        }
        terms
    }

    /// Whether the column of a singleton annotator depends on its label, and not only on the posterior. If it does not,
    /// the labels passed to [`Estimator::estimate_singletons`] are arbitrary, and its terms of the objective must be 0.
    fn label_matters(&self) -> bool {
        true
    }
}

/// The part of an [`Estimator`] that the E-step calls, as a trait object.
pub trait SingletonEstimator: Sync {
    /// [`Estimator::estimate_singletons`].
    fn estimate_all(&self, labels: &[u32], n_classes: usize, cells: &mut [f64]) -> f64;
    /// [`Estimator::label_matters`].
    fn label_matters(&self) -> bool;
}

impl<E: Estimator> SingletonEstimator for E {
    fn estimate_all(&self, labels: &[u32], n_classes: usize, cells: &mut [f64]) -> f64 {
        self.estimate_singletons(labels, n_classes, cells)
    }

    fn label_matters(&self) -> bool {
        Estimator::label_matters(self)
    }
}

impl Estimator for Smoothing {
    #[inline(always)]
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        if K > 0 {
            smooth::<K>(*self, annotator.labels, cells, &mut [0.0; K]);
        } else {
            smooth::<0>(*self, annotator.labels, cells, &mut vec![0.0; annotator.n_classes]);
        }
        0.0
    }

    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64 {
        let (never, never_diagonal) = (self.cell(0.0, 0, 1), self.cell(0.0, 0, 0));
        let sums = unused;
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
        0.0
    }

    fn estimate_singletons(&self, labels: &[u32], n_classes: usize, cells: &mut [f64]) -> f64 {
        let (n, stride) = (n_classes, stride(n_classes));
        if self.diagonal != 0.0 {
            for (at, label) in labels.iter().enumerate() {
                let annotator = Annotator { labels: &[*label], n_classes: n };
                self.estimate::<0>(annotator, &mut cells[at * n..at * n + stride]);
            }
            return 0.0;
        }
        let mut others = [0.0];
        self.row_sums(&[0], &mut others);
        Arch::new().dispatch(|| {
            for cell in &mut cells[..labels.len() * n] {
                let count = (*cell + self.everywhere).max(MIN_PROBABILITY);
                *cell = count * (1.0 / (others[0] + count));
            }
        });
        0.0
    }

    fn label_matters(&self) -> bool {
        self.diagonal != 0.0
    }
}

/// Adds the smoothing to an annotator's counts and divides them by the sums of their rows; `sums` is a buffer,
/// `[class]`.
#[inline(always)]
fn smooth<const K: usize>(
    smoothing: Smoothing,
    labels: &[u32],
    cells: &mut [f64],
    sums: &mut [f64],
) {
    let n = width::<K>(sums.len()).max(1);
    let (sums, stride) = (&mut sums[..n], stride(n));
    if smoothing.diagonal != 0.0 {
        for (cells, label) in cells.chunks_exact_mut(stride).zip(labels) {
            if let Some(diagonal) = cells[..n].get_mut(*label as usize) {
                *diagonal += smoothing.diagonal;
            }
        }
    }
    smoothing.row_sums(labels, sums);
    for cells in cells.chunks_exact_mut(stride) {
        for k in 0..n {
            cells[k] = (cells[k] + smoothing.everywhere).max(MIN_PROBABILITY);
            sums[k] += cells[k];
        }
    }
    sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
    for cells in cells.chunks_exact_mut(stride) {
        for k in 0..n {
            cells[k] = (cells[k] * sums[k]).max(MIN_LIKELIHOOD);
        }
    }
}
