//! Who holds the annotations of a question.

use std::ops::Range;

use super::e_step::{Likelihood, Prior, Sweep};
use super::statistics::{Statistics, add};
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK};

/// The annotations of a question, wherever they are, as [`PairKernel`](super::PairKernel) sees them: sums over a range of
/// instances, and posteriors when somebody reads them.
///
/// # Why
/// [`Annotations`], in memory or in mapped scratch files, sweep in this process. Another process that has the annotations
/// of a range can do it instead: it needs the likelihood and the prior, and returns one row of Arrow
/// ([`tables::sweep_statistics`](crate::tables::sweep_statistics)). As ranges are merged in their order, the fit is the same
/// to the bit. What estimators and reports read of a crowd (its pairs, and how many annotations there are) they read of
/// [`Annotations`].
pub trait Crowd: Sync {
    /// The sizes of every axis.
    fn dims(&self) -> Dims;

    /// Counts posteriors of a start into `part`, whose sums are zero, for the instances that it covers. `write` writes those
    /// of adjacent instances, `[instance, class]`, into zeros.
    fn count(&self, write: &(dyn Fn(Range<usize>, &mut [f64]) + Sync), part: &mut Statistics);

    /// The E-step: counts the posteriors of the instances that `part` covers, or their assignments where `part` says so,
    /// into `part`, whose sums are zero. The prior is that of these instances.
    fn sweep(&self, likelihood: &Likelihood, prior: Prior<'_>, part: &mut Statistics);

    /// Writes the posteriors of adjacent instances, `[instance, class]`. The prior is that of these instances.
    fn posteriors(
        &self,
        likelihood: &Likelihood,
        prior: Prior<'_>,
        instances: Range<usize>,
        rows: &mut [f64],
    );
}

impl Crowd for Annotations {
    fn dims(&self) -> Dims {
        self.dims()
    }

    fn count(&self, write: &(dyn Fn(Range<usize>, &mut [f64]) + Sync), part: &mut Statistics) {
        let n = self.dims().classes.max(1);
        let (all, mut rows) = (part.instances.clone(), Vec::new());
        for start in all.clone().step_by(ITEMS_PER_BLOCK) {
            let instances = start..(start + ITEMS_PER_BLOCK).min(all.end);
            rows.clear();
            rows.resize(instances.len() * n, 0.0);
            write(instances.clone(), &mut rows);
            let stride = part.counts.stride();
            for (i, row) in instances.zip(rows.chunks_exact(n)) {
                for (pair, weight) in self.annotations_of_instance(i) {
                    let counts = &mut part.counts.cells_mut()[pair as usize * stride..][..n];
                    counts.iter_mut().zip(row).for_each(|(count, p)| *count += weight * p);
                }
                if !self.pairs_of_instance(i).is_empty() {
                    add(&mut part.class_counts, row);
                }
            }
        }
    }

    fn sweep(&self, likelihood: &Likelihood, prior: Prior<'_>, part: &mut Statistics) {
        let range = self.range(part.instances.clone());
        Sweep { range, prior, likelihood }.run(self.dims().classes, Some(part), None);
    }

    fn posteriors(
        &self,
        likelihood: &Likelihood,
        prior: Prior<'_>,
        instances: Range<usize>,
        rows: &mut [f64],
    ) {
        let range = self.range(instances);
        Sweep { range, prior, likelihood }.run(self.dims().classes, None, Some(rows));
    }
}
