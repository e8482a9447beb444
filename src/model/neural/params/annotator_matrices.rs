//! One confusion matrix for each annotator, the same for all instances, and the E-step by the EM kernels with the
//! networks' output as the prior of each instance.

use crate::frame::{Annotations, MemoryEstimate, QuestionSizes, dense_memory_estimate};
use crate::model::em::kernels::{Estimator, Likelihood, PairCounts, Prior, n_groups, stride};
use crate::model::neural::numerics::{MIN_PROBABILITY, at_least};
use crate::model::numerics::{MIN_LIKELIHOOD, normalise};
use crate::model::posterior::Posterior;

/// The memory of a fit with such E-steps: the pairs, and the prior beside the posteriors; and the targets of the best
/// epoch.
pub(in crate::model::neural) fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
    let dense = dense_memory_estimate(sizes)?;
    let pairs = sizes.pairs.checked_mul(stride(sizes.dims.classes))?;
    let pairs = pairs.checked_mul(size_of::<f64>())?;
    let matrices = dense.matrices.checked_add(pairs)?;
    Some(MemoryEstimate { matrices, working: dense.posteriors.checked_mul(2)?, ..dense })
}

/// The confusion matrices of all annotators, in a table of parameters.
#[derive(Debug, Clone, Copy)]
pub struct AnnotatorMatrices<'a> {
    /// The table, `[annotator, class * labels + label]`.
    pub table: &'a [f32],
    /// Added to each cell.
    pub added: f64,
    /// The number of labels.
    pub labels: usize,
}

impl AnnotatorMatrices<'_> {
    /// The factor by which an annotation changes the posterior of a class, given the cell of the table.
    #[must_use]
    pub fn likelihood(&self, cell: f64) -> f64 {
        at_least(cell + self.added, MIN_PROBABILITY)
    }

    /// The posteriors of all instances, given P(class) of each before its annotations. Trusted rows are one-hot; the row
    /// of an instance without annotations is its prior.
    pub(in crate::model::neural) fn posteriors(
        &self,
        a: &Annotations,
        mut prior: Posterior,
    ) -> Posterior {
        for row in prior.values_mut().chunks_exact_mut(a.dims().classes.max(1)) {
            normalise(row, |p| at_least(p, MIN_LIKELIHOOD));
        }
        Likelihood::estimated(a, &[], self).posteriors(a, Prior::Instance(prior.values()))
    }
}

/// Reads the likelihood from the table: it depends on no counts.
impl Estimator for AnnotatorMatrices<'_> {
    #[inline(always)]
    fn estimate<const W: usize>(
        &self,
        PairCounts { index, labels, n_classes, rows, .. }: PairCounts<'_, W>,
    ) -> f64 {
        let matrix = &self.table[index as usize * n_classes * self.labels..];
        for (row, label) in rows.chunks_exact_mut(n_groups::<W>(n_classes)).zip(labels) {
            for (k, cell) in row.as_flattened_mut()[..n_classes].iter_mut().enumerate() {
                *cell = self.likelihood(matrix[k * self.labels + *label as usize].into());
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;

    /// Of one million instances and five classes, in rows of 8 numbers for each of 60 pairs.
    #[test]
    fn the_memory_of_a_fit_has_columns_and_two_more_rows_for_each_instance() {
        let dims = Dims { instances: 1_000_000, annotators: 12, classes: 5, labels: 5 };
        let gold_roles = Vec::new();
        let sizes = QuestionSizes { dims, annotations: 5_000_000, pairs: 60, gold_roles };
        let posteriors = 40_000_000;
        let matrices = 60 * 8 * 8 + 25 * 8;
        let want = MemoryEstimate { posteriors, matrices, working: 2 * posteriors };
        assert_eq!(memory_estimate(&sizes), Some(want));
    }
}
