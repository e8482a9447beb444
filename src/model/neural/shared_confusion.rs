//! Confusion matrices that all instances share, and the E-step by the EM kernels with the networks' output as the prior
//! of each instance.

use super::numerics::{MIN_PROBABILITY, at_least};
use crate::frame::{Annotations, Dims};
use crate::model::em::kernels::{
    Annotator, ColumnModel, CountStrategy, Estimator, Prior, SingletonInput, stride,
};
use crate::model::numerics::{MIN_LIKELIHOOD, normalise};
use crate::model::posterior::Posterior;

/// The confusion matrices of all annotators, in a table of parameters.
#[derive(Debug, Clone, Copy)]
pub struct SharedConfusion<'a> {
    /// The table, `[annotator, class * labels + label]`.
    pub table: &'a [f32],
    /// Added to each cell.
    pub added: f64,
    /// The number of labels.
    pub labels: usize,
}

impl SharedConfusion<'_> {
    /// The factor by which an annotation changes the posterior of a class, given the cell of the table.
    #[must_use]
    pub fn likelihood(&self, cell: f64) -> f64 {
        at_least(cell + self.added, MIN_PROBABILITY)
    }

    /// The posteriors of all instances, given P(class) of each before its annotations. Trusted rows are one-hot; the row
    /// of an instance without annotations is its prior.
    pub(super) fn posteriors(&self, a: &Annotations, mut prior: Posterior) -> Posterior {
        let Dims { instances, classes, .. } = a.dims();
        for row in prior.values_mut().chunks_exact_mut(classes.max(1)) {
            normalise(row, |p| at_least(p, MIN_LIKELIHOOD));
        }
        let mut posterior = Posterior::zeros(instances, classes);
        // The M-step sums the counts of the new posteriors, so that the E-step need not.
        let mut columns = ColumnModel::with_strategy(a, CountStrategy::Gather);
        columns.m_step(a, &posterior, self);
        columns.e_step(a, Prior::Instance(prior.values()), self, &mut posterior);
        posterior
    }
}

/// Reads the likelihood from the table: it depends on no counts.
impl Estimator for SharedConfusion<'_> {
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        let Annotator { index, labels, n_classes } = annotator;
        let matrix = &self.table[index as usize * n_classes * self.labels..];
        for (column, label) in cells.chunks_exact_mut(stride(n_classes)).zip(labels) {
            for (k, cell) in column[..n_classes].iter_mut().enumerate() {
                *cell = self.likelihood(matrix[k * self.labels + *label as usize].into());
            }
        }
        0.0
    }

    fn allows_sparse_columns(&self) -> bool {
        false
    }

    fn singleton_input(&self) -> SingletonInput {
        SingletonInput::Annotator
    }
}
