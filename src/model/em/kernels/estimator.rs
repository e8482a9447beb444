//! The M-step of a model of pairs: expected counts of an annotator become the likelihood of his pairs.

use rayon::prelude::*;

use super::pair_rows::PairRows;
use crate::frame::{Annotations, ITEMS_PER_BLOCK};

/// The annotator whose counts an [`Estimator`] gets.
#[derive(Debug, Clone, Copy)]
pub struct Annotator<'a> {
    /// The index of the annotator.
    pub index: u32,
    /// The label of each of his pairs, ascending.
    pub labels: &'a [u32],
    /// The number of classes.
    pub n_classes: usize,
}

/// Turns the expected counts of an annotator into P(label given class) of his pairs.
pub trait Estimator: Send + Sync {
    /// How many numbers of each annotator pass from one iteration to the next, such as the spam share of MACE.
    fn state_len(&self) -> usize {
        0
    }

    /// Reads the counts of all annotators, before those of each: for priors that they share.
    fn pool(&mut self, _counts: &PooledCounts<'_>) {}

    /// Replaces the expected counts in `rows` by the likelihood; returns the annotator's term of the objective, such as a
    /// log-prior. Smaller likelihoods than [`MIN_LIKELIHOOD`](crate::model::numerics::MIN_LIKELIHOOD) are raised to it
    /// afterwards.
    ///
    /// # Shapes
    /// `rows`: `[pair, group]`, groups of `W` classes; as many groups for each pair as [`n_groups`] says. The padding of
    /// counts is 0, that of the likelihood is ignored. `state`: `[state_len]`.
    fn estimate<const W: usize>(
        &self,
        annotator: Annotator<'_>,
        state: &mut [f64],
        rows: &mut [[f64; W]],
    ) -> f64;

    /// Writes the likelihood that follows from a state alone, for models that start at one; shapes as in
    /// [`Estimator::estimate`].
    fn start<const W: usize>(
        &self,
        _annotator: Annotator<'_>,
        _state: &[f64],
        _rows: &mut [[f64; W]],
    ) {
    }
}

/// The groups of a row.
#[inline(always)]
#[must_use]
pub fn n_groups<const W: usize>(n_classes: usize) -> usize {
    n_classes.div_ceil(W).max(1)
}

/// The counts of all annotators.
pub struct PooledCounts<'a> {
    pub(super) a: &'a Annotations,
    pub(super) rows: &'a PairRows,
}

impl PooledCounts<'_> {
    /// The numbers of classes and of labels.
    #[must_use]
    pub fn axes(&self) -> (usize, usize) {
        (self.a.dims().classes, self.a.dims().labels)
    }

    /// How often all annotators together are expected to have met each class and given each label, `[label, class]`.
    #[must_use]
    pub fn by_label(&self) -> Vec<f64> {
        let (n, n_labels) = self.axes();
        self.sum_blocks(n_labels * n, |label, counts, sums| {
            let sums = &mut sums[label as usize * n..(label as usize + 1) * n];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        })
    }

    /// The expected number of right annotations of all annotators together, and the number of all, by weight.
    #[must_use]
    pub fn right(&self) -> [f64; 2] {
        let n = self.a.dims().classes;
        let sums = self.sum_blocks(2, |label, counts, sums| {
            sums[0] += counts[..n].get(label as usize).copied().unwrap_or_default();
            sums[1] += counts[..n].iter().sum::<f64>();
        });
        [sums[0], sums[1]]
    }

    /// Adds up `add(label, counts, sums)` of all pairs, in an order that does not depend on the number of threads.
    fn sum_blocks(&self, n_sums: usize, add: impl Fn(u32, &[f64], &mut [f64]) + Sync) -> Vec<f64> {
        let pairs_per_block = ITEMS_PER_BLOCK.max(8 * n_sums);
        let blocks = self.rows.cells().par_chunks(pairs_per_block * self.rows.stride());
        let of_blocks: Vec<Vec<f64>> = blocks
            .enumerate()
            .map(|(block, rows)| {
                let mut sums = vec![0.0; n_sums];
                let pairs = block * pairs_per_block..;
                for (pair, counts) in pairs.zip(rows.chunks_exact(self.rows.stride())) {
                    add(self.a.label_of(pair as u32), counts, &mut sums);
                }
                sums
            })
            .collect();
        let mut all = vec![0.0; n_sums];
        for sums in of_blocks {
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        all
    }
}
