//! The crowd as the prior of each annotator: one who has few annotations errs as the crowd does, until his own counts
//! say otherwise.
//!
//! ```text
//! m[k][l]     = (sum_r n[r][k][l] + 0.1) / (sum_l of the same)         the crowd's mean row, anew in each M-step
//! pi[r][k][l] = (n[r][k][l] + s m[k][l]) / (sum_l n[r][k][l] + s)      s: the strength, in annotations
//! LP          = sum_{r,k,l} s m[k][l] ln(pi[r][k][l] / m[k][l])        minus s times the divergence of pi from m
//! ```
//! An empirical Bayes estimate of the Dirichlet kind. m moves with the counts, so that LL + LP may fall a little between
//! two steps; for the m of a step it does not.
//!
//! # Why
//! By maximum likelihood, one annotation sets a whole row of an annotator's matrix, and so confirms itself: on sparse
//! crowds the posteriors are certain and wrong. Accuracy in percent and log-loss, 150 iterations:
//!
//! ```text
//!                 vote        s = 0       s = 2                     vote        s = 0       s = 2
//! adult2          76.0/2.58   74.8/5.86   75.4/2.30    mozafari     69.6/4.15   71.1/2.88   71.4/1.52
//! bluebirds       75.9/.51    89.8/1.64   89.8/1.51    music        71.1/4.85   76.9/4.30   78.3/1.27
//! dog             81.8/.77    84.4/3.22   84.0/1.57    product      89.7/.85    93.9/.39    93.8/.23
//! face            63.9/4.27   64.2/6.15   64.9/3.90    rte          87.5/.35    92.8/1.08   92.8/.37
//! flower          78.0/.43    86.5/1.59   86.5/1.09    temp         93.6/.41    94.2/1.25   94.4/.49
//! labelme         76.9/4.04   79.3/4.55   79.9/1.20    web          77.6/1.16   82.9/2.19   82.2/.59
//! medrel_cause    78.2/2.15   80.3/2.08   80.2/1.81    zencrowd_in  74.0/1.34   76.0/.77    76.2/.75
//! medrel_treat    83.5/.55    93.1/.92    93.2/.67     zencrowd_us  85.4/.72    82.2/.92    82.1/.81
//! ```
//! With s = 5 and 10 the log-loss still falls a little, and crowds of many classes (labelme, web) lose up to 9 points.

use crate::model::confusion::{Cells, Smoothing};
use crate::model::em::kernels::{CellPrior, Estimator, PairCounts, PooledCounts};

/// Added to each pooled count, so that no label is impossible for the crowd.
pub(in crate::model::em) const POOLED_COUNT: f64 = 0.1;

/// The most cells of the crowd's matrix: 8 MB. With more classes the crowd's mean row is made of one accuracy.
const MAX_CELLS: usize = 1 << 20;

/// Estimates rows with pseudo-counts, which may be drawn to the crowd's.
pub struct RowEstimator {
    /// Added to each cell.
    smoothing: Smoothing,
    /// With how many annotations a row is drawn to the crowd's; 0 for none.
    strength: f64,
    /// The pseudo-counts of this M-step.
    added: Added,
}

enum Added {
    /// The same for all labels.
    Smoothing(Smoothing),
    /// A matrix.
    Cells(CellPrior),
}

impl RowEstimator {
    pub(in crate::model::em) fn new(smoothing: Smoothing, strength: f64) -> Self {
        Self { smoothing, strength, added: Added::Smoothing(smoothing) }
    }

    /// How a report computes shares from counts.
    pub(super) fn into_cells(self) -> Cells {
        match self.added {
            Added::Smoothing(smoothing) => Cells::Counted(smoothing),
            Added::Cells(added) => Cells::Drawn(added.counts),
        }
    }
}

impl Estimator for RowEstimator {
    fn pool(&mut self, counts: &PooledCounts<'_>) {
        let (classes, labels) = counts.axes();
        if self.strength == 0.0 || labels < 2 {
            return;
        }
        let Self { smoothing, strength, .. } = *self;
        if classes.saturating_mul(labels) > MAX_CELLS {
            let right = crowd_accuracy(counts);
            let wrong = (1.0 - right) / (labels - 1) as f64;
            self.added = Added::Smoothing(Smoothing {
                everywhere: smoothing.everywhere + strength * wrong,
                diagonal: smoothing.diagonal + strength * (right - wrong),
                ..smoothing
            });
            return;
        }
        let mut cells = counts.by_label();
        let mut sums = vec![0.0; classes];
        for row in cells.chunks_exact_mut(classes) {
            for (sum, count) in sums.iter_mut().zip(row) {
                *count += POOLED_COUNT;
                *sum += *count;
            }
        }
        for (label, row) in cells.chunks_exact_mut(classes).enumerate() {
            for (k, (count, sum)) in row.iter_mut().zip(&sums).enumerate() {
                let own = if k == label { smoothing.diagonal } else { 0.0 };
                *count = strength * *count / sum + smoothing.everywhere + own;
            }
        }
        self.added = Added::Cells(CellPrior::new(classes, cells));
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        match &self.added {
            Added::Smoothing(smoothing) => smoothing.estimate(own),
            Added::Cells(cells) => cells.estimate(own),
        }
    }
}

/// The expected share of right annotations among all.
pub(super) fn crowd_accuracy(counts: &PooledCounts<'_>) -> f64 {
    let [right, all] = counts.right();
    (right + POOLED_COUNT) / (all + 2.0 * POOLED_COUNT)
}
