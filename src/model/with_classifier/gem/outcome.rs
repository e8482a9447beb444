//! What a fit makes of its posteriors: counts for the next M-step, and a round to return to.

use std::ops::Range;

use super::Params;
use crate::frame::Annotations;

impl<E> Params<E> {
    /// Counts the posteriors.
    pub(super) fn count(&mut self, a: &Annotations) {
        let (t, n) = (&self.t, self.t.n_classes());
        let write = |instances: Range<usize>, rows: &mut [f64]| {
            rows.copy_from_slice(&t.values()[instances.start * n..instances.end * n]);
        };
        self.kernel.count(a, write);
    }
}
