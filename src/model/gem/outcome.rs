//! What a fit makes of its posteriors: counts for the next M-step, and the report.

use std::ops::Range;

use super::Params;
use crate::frame::Annotations;
use crate::model::confusion::{Cells, Confusion};
use crate::model::fitted::Report;

impl Params {
    /// Counts the posteriors.
    pub(super) fn count(&mut self, a: &Annotations) {
        let (t, n) = (&self.t, self.t.n_classes());
        let write = |instances: Range<usize>, rows: &mut [f64]| {
            rows.copy_from_slice(&t.values()[instances.start * n..instances.end * n]);
        };
        self.kernel.count(a, write);
    }

    pub(super) fn report(&self, a: &Annotations, expected_count: Vec<f64>) -> Report {
        let confusion = Confusion { cells: Cells::Counted(self.smoothing), expected_count };
        let (skill, prior) = (confusion.skill(a), Some(self.t.mean_of_annotated(a)));
        Report { skill, prior, confusion: Some(confusion), ..Report::default() }
    }
}
