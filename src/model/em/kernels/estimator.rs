//! The M-step of a model of pairs: expected counts of an annotator become the likelihood of his pairs.

use std::ops::Range;

use rayon::prelude::*;

use super::pair_rows::PairRows;
use crate::frame::{Annotations, ITEMS_PER_BLOCK};

/// The pairs of one annotator, with his expected counts, for an [`Estimator`].
#[derive(Debug)]
pub struct PairCounts<'a, const W: usize> {
    /// The index of the annotator.
    pub index: u32,
    /// The label of each of his pairs, ascending.
    pub labels: &'a [u32],
    /// The number of classes.
    pub n_classes: usize,
    /// The annotator's state, `[state_len]`, then `[pair, pair_state_len]`; zeros at first.
    pub state: &'a mut [f64],
    /// `[pair, group]`, groups of `W` classes; as many groups for each pair as [`n_groups`] says. The padding of counts is
    /// 0, that of the likelihood is ignored.
    pub rows: &'a mut [[f64; W]],
}

/// Turns the expected counts of an annotator into P(label given class) of his pairs.
pub trait Estimator: Send + Sync {
    /// How many numbers of each annotator pass from one iteration to the next, such as the spam share of MACE.
    fn state_len(&self) -> usize {
        0
    }

    /// How many numbers of each pair pass from one iteration to the next. They follow the `state_len` numbers of their
    /// annotator, in the order of his pairs.
    ///
    /// # Why
    /// A mixture within an annotation, such as CoNAL's, splits the counts of a pair by the matrices before, which the counts
    /// have replaced. A state of all labels for each annotator would be a dense matrix.
    fn pair_state_len(&self, _n_classes: usize) -> usize {
        0
    }

    /// Reads the counts of all annotators, before those of each: for priors that they share.
    fn pool(&mut self, _counts: &PooledCounts<'_>) {}

    /// Replaces the expected counts by the likelihood; returns the annotator's term of the objective, such as a
    /// log-prior. Smaller likelihoods than [`MIN_LIKELIHOOD`](crate::model::numerics::MIN_LIKELIHOOD) are raised to it
    /// afterwards.
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64;

    /// The term of the objective of what all annotators share, after [`Estimator::pool`].
    fn shared_term(&self) -> f64 {
        0.0
    }

    /// Writes the likelihood that follows from a state alone, for models that start at one.
    fn start<const W: usize>(&self, _own: PairCounts<'_, W>) {}
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
    /// The state of all annotators.
    pub(super) state: &'a [f64],
    pub(super) layout: StateLayout,
}

/// Where the states of annotators lie, which follow one another in the order of the pairs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StateLayout {
    of_annotator: usize,
    of_pair: usize,
}

impl StateLayout {
    pub(super) fn new(estimator: &impl Estimator, n_classes: usize) -> Self {
        let of_pair = estimator.pair_state_len(n_classes);
        Self { of_annotator: estimator.state_len(), of_pair }
    }

    /// Whether annotators have a state.
    pub(super) fn has_any(self) -> bool {
        self.of_annotator + self.of_pair > 0
    }

    /// The state of the annotators of adjacent slots.
    pub(super) fn of_slots(self, a: &Annotations, slots: &Range<usize>) -> Range<usize> {
        let begin = |slot| slot * self.of_annotator + a.pair_offsets()[slot] * self.of_pair;
        begin(slots.start)..begin(slots.end)
    }

    /// The number of numbers.
    pub(super) fn len(self, a: &Annotations) -> usize {
        a.dims().annotators * self.of_annotator + a.n_pairs() * self.of_pair
    }

    /// The numbers of a pair.
    fn of_pair(self, a: &Annotations, pair: usize) -> Range<usize> {
        let slot = a.slot_of(a.annotator_of_pair(pair as u32) as usize);
        let begin = (slot + 1) * self.of_annotator + pair * self.of_pair;
        begin..begin + self.of_pair
    }
}

impl PooledCounts<'_> {
    /// The numbers of classes and of labels.
    #[must_use]
    pub fn axes(&self) -> (usize, usize) {
        (self.a.dims().classes, self.a.dims().labels)
    }

    /// The annotations that were counted.
    #[must_use]
    pub fn annotations(&self) -> &Annotations {
        self.a
    }

    /// The labels that annotator `r` used, ascending, each with its counts, `[class]`.
    pub fn of_annotator(&self, r: usize) -> impl Iterator<Item = (usize, &[f64])> {
        let n = self.a.dims().classes;
        let labels = self.a.labels_of_annotator(r).iter().map(|label| *label as usize);
        labels.zip(self.a.pairs_of_annotator(r).map(move |pair| &self.rows.row(pair)[..n]))
    }

    /// How often all annotators together are expected to have met each class and given each label, `[label, class]`.
    #[must_use]
    pub fn by_label(&self) -> Vec<f64> {
        self.by_cluster(1, |_| &[1.0])
    }

    /// How often the annotators of each cluster are expected to have met each class and given each label,
    /// `[cluster, label, class]`; `membership` gives P(cluster) of an annotator.
    #[must_use]
    pub fn by_cluster<'m>(
        &self,
        n_clusters: usize,
        membership: impl Fn(usize) -> &'m [f64] + Sync,
    ) -> Vec<f64> {
        let (n, n_labels) = self.axes();
        self.sum_blocks(n_clusters * n_labels * n, |pair, counts, sums| {
            let label = self.a.label_of_pair(pair as u32) as usize;
            let shares = membership(self.a.annotator_of_pair(pair as u32) as usize);
            for (share, sums) in shares.iter().zip(sums.chunks_exact_mut((n_labels * n).max(1))) {
                let sums = &mut sums[label * n..(label + 1) * n];
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += share * count);
            }
        })
    }

    /// Whether no M-step has come before: then all states are zeros.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.state.iter().all(|x| *x == 0.0)
    }

    /// As [`PooledCounts::by_label`], each count times the number that the state of its pair has for the class.
    #[must_use]
    pub fn shares_by_label(&self) -> Vec<f64> {
        let (n, n_labels) = self.axes();
        self.sum_blocks(n_labels * n, |pair, counts, sums| {
            let label = self.a.label_of_pair(pair as u32) as usize;
            let sums = &mut sums[label * n..(label + 1) * n];
            let shares = &self.state[self.layout.of_pair(self.a, pair)];
            for ((sum, count), share) in sums.iter_mut().zip(counts).zip(shares) {
                *sum += count * share;
            }
        })
    }

    /// The expected number of right annotations of all annotators together, and the number of all, by weight.
    #[must_use]
    pub fn right(&self) -> [f64; 2] {
        let n = self.a.dims().classes;
        let sums = self.sum_blocks(2, |pair, counts, sums| {
            let label = self.a.label_of_pair(pair as u32) as usize;
            sums[0] += counts[..n].get(label).copied().unwrap_or_default();
            sums[1] += counts[..n].iter().sum::<f64>();
        });
        [sums[0], sums[1]]
    }

    /// Adds up `add(pair, counts, sums)` of all pairs, in an order that does not depend on the number of threads.
    fn sum_blocks(
        &self,
        n_sums: usize,
        add: impl Fn(usize, &[f64], &mut [f64]) + Sync,
    ) -> Vec<f64> {
        let pairs_per_block = ITEMS_PER_BLOCK.max(8 * n_sums);
        let blocks = self.rows.cells().par_chunks(pairs_per_block * self.rows.stride());
        let of_blocks: Vec<Vec<f64>> = blocks
            .enumerate()
            .map(|(block, rows)| {
                let mut sums = vec![0.0; n_sums];
                let pairs = block * pairs_per_block..;
                for (pair, counts) in pairs.zip(rows.chunks_exact(self.rows.stride())) {
                    add(pair, counts, &mut sums);
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
