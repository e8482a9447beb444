//! The likelihood of confusion matrices that a table gives.

use std::sync::Arc;

use super::estimator::{Estimator, PairCounts, n_groups};
use crate::frame::{Annotations, GivenConfusion};

/// The likelihood of a pair is the cell of a given matrix, whatever the counts.
pub struct GivenRows(pub(crate) Option<Arc<GivenConfusion>>);

impl GivenRows {
    /// The matrices that go with these annotations.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        Self(a.given.confusion.clone())
    }
}

impl Estimator for GivenRows {
    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        self.start(own);
        0.0
    }

    #[inline(always)]
    fn start<const W: usize>(&self, own: PairCounts<'_, W>) {
        let PairCounts { index, labels, n_classes, rows, .. } = own;
        let Some(given) = &self.0 else { return };
        for (row, label) in rows.chunks_exact_mut(n_groups::<W>(n_classes)).zip(labels) {
            for (k, cell) in row.as_flattened_mut()[..n_classes].iter_mut().enumerate() {
                *cell = given.cell(index as usize, k, *label as usize);
            }
        }
    }
}
