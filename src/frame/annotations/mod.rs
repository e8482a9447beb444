//! Annotations in two sparse (CSR) views: by instance for E-steps, by pair for M-steps.
//!
//! ```text
//! a pair       = (annotator, label) that occurs: "annotator 7 chose `cat`", one column of 7's confusion matrix
//! by instance    offsets[i] .. offsets[i+1]  ->  the pairs of the annotations of instance i, ascending
//! by pair        offsets[p] .. offsets[p+1]  ->  the instances of the annotations in pair p, ascending
//! by slot        offsets[s] .. offsets[s+1]  ->  the pairs of the annotator in slot s, by label
//! ```
//! # Why
//! Dense confusion matrices have annotators x classes x labels cells, most of which have no count. At most as many
//! pairs occur as there are annotations, so time and memory of every kernel are proportional to the annotations. An
//! E-step multiplies the row of a pair (one number per class) for each annotation and adds the posterior to the
//! counts of the same pairs. Each annotation takes four bytes; four more if the view by pair is used, which is
//! built on first use; and a weight if it differs from 1.
//!
//! A slot is the position of an annotator in the order of the pairs: by index, but those with a single annotation come
//! after all others, so that the sums of an instance begin with the annotators that are known best.

pub(super) mod blocks;
mod build;
mod by_pair;
mod duplicates;
mod group;
pub(super) mod joint;
mod mapped;
pub(super) mod offsets;
mod split;
mod weights;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::given::GivenTables;
use joint::Joint;

pub use build::AnnotationRows;
use by_pair::ByPair;
pub use duplicates::{Duplicates, Repeated};
pub(super) use mapped::{MappedRows, rows_at_once};
use weights::Weights;
pub use weights::{WeightIter, WeightSlice};

/// The sizes of every axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Instances, with or without annotations.
    pub instances: usize,
    /// Annotators, each with at least one annotation, except in the parts of [`Annotations::split`].
    pub annotators: usize,
    /// The number of classes, the possible true values.
    pub classes: usize,
    /// The number of labels that annotators can choose. The first `classes` of them are the classes.
    pub labels: usize,
}

/// The sparse annotations of one question. Clones share their memory, but for the trusted classes.
#[derive(Debug, Clone)]
pub struct Annotations {
    dims: Dims,
    by_instance: Arc<Vec<usize>>,
    pairs: Arc<Vec<u32>>,
    weights: Arc<Weights>,
    /// The slot of each annotator.
    slots: Arc<Vec<u32>>,
    /// The annotator in each slot.
    in_slots: Arc<Vec<u32>>,
    by_slot: Arc<Vec<usize>>,
    /// The label of each pair.
    labels: Arc<Vec<u32>>,
    /// The annotator of each pair.
    annotators: Arc<Vec<u32>>,
    by_pair: Arc<OnceLock<ByPair>>,
    rows_of_instance: Arc<Vec<u32>>,
    rows_of_annotator: Arc<Vec<u32>>,
    /// The class of each instance that is trusted, where any is.
    pub trusted: Option<Vec<Option<u32>>>,
    /// The questions, where these are the annotations of several in one crowd.
    pub joint: Option<Arc<Joint>>,
    /// What tables beside the annotations give.
    pub given: GivenTables,
}

impl Annotations {
    /// The sizes of every axis.
    #[must_use]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// Bytes of the views, with that by pair, which is built when it is first read.
    pub(in crate::frame) fn bytes(&self) -> usize {
        let Dims { instances, annotators, .. } = self.dims;
        let of_annotation = size_of::<u32>() + self.weights.bytes_each();
        let offset_and_count = size_of::<usize>() + size_of::<u32>();
        self.len() * 2 * of_annotation
            + instances * offset_and_count
            + annotators * (offset_and_count + 2 * size_of::<u32>())
            + self.n_pairs() * (size_of::<usize>() + 2 * size_of::<u32>())
    }

    /// How many annotations are stored, after repeated answers were resolved.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no annotations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// How many (annotator, label) pairs occur.
    #[must_use]
    pub fn n_pairs(&self) -> usize {
        self.labels.len()
    }

    /// The pairs of the annotations of instance `i`, ascending, so that those of one annotator are
    /// adjacent.
    #[inline]
    #[must_use]
    pub fn pairs_of_instance(&self, i: usize) -> &[u32] {
        &self.pairs[self.by_instance[i]..self.by_instance[i + 1]]
    }

    /// Whether an instance has annotations of two annotators.
    #[must_use]
    pub fn has_overlap(&self) -> bool {
        (0..self.dims.instances).any(|i| {
            // Those of one annotator are adjacent.
            let pairs = self.pairs_of_instance(i);
            let of = |pair: Option<&u32>| pair.map(|c| self.annotator_of_pair(*c));
            of(pairs.first()) != of(pairs.last())
        })
    }

    /// The weights that go with [`Annotations::pairs_of_instance`].
    #[inline]
    #[must_use]
    pub fn weights_of_instance(&self, i: usize) -> WeightSlice<'_> {
        self.weights.slice(self.by_instance[i]..self.by_instance[i + 1])
    }

    /// (pair, weight) of every annotation of instance `i`.
    #[must_use]
    pub fn annotations_of_instance(&self, i: usize) -> impl ExactSizeIterator<Item = (u32, f64)> {
        let weights = self.weights_of_instance(i);
        self.pairs_of_instance(i).iter().enumerate().map(move |(n, c)| (*c, weights.get(n)))
    }

    /// (annotator, label, weight) of every annotation of instance `i`.
    #[must_use]
    pub fn triples_of_instance(&self, i: usize) -> impl ExactSizeIterator<Item = (u32, u32, f64)> {
        let of_pair = |c: u32| (self.annotators[c as usize], self.labels[c as usize]);
        self.annotations_of_instance(i).map(move |(pair, weight)| {
            let (annotator, label) = of_pair(pair);
            (annotator, label, weight)
        })
    }

    /// The annotations of adjacent instances, as an E-step kernel reads them.
    #[must_use]
    pub fn range(&self, instances: Range<usize>) -> InstanceRange<'_> {
        let (first, last) = (self.by_instance[instances.start], self.by_instance[instances.end]);
        InstanceRange {
            offsets: &self.by_instance[instances.start..=instances.end],
            pairs: &self.pairs[first..last],
            weights: self.weights.slice(first..last),
            trusted: self.trusted.as_ref().map(|t| &t[instances]),
            labels: &self.labels,
            annotators: &self.annotators,
        }
    }

    /// Whether every annotation has a weight of its own.
    #[must_use]
    pub fn are_weighted(&self) -> bool {
        matches!(*self.weights, Weights::All(_))
    }

    /// The label of a pair.
    #[inline]
    #[must_use]
    pub fn label_of_pair(&self, pair: u32) -> u32 {
        self.labels[pair as usize]
    }

    /// The annotator of a pair.
    #[inline]
    #[must_use]
    pub fn annotator_of_pair(&self, pair: u32) -> u32 {
        self.annotators[pair as usize]
    }

    /// The pairs of annotator `r`, ascending by label.
    #[inline]
    #[must_use]
    pub fn pairs_of_annotator(&self, r: usize) -> Range<usize> {
        let slot = self.slots[r] as usize;
        self.by_slot[slot]..self.by_slot[slot + 1]
    }

    /// The annotator in a slot, who may have no annotation.
    #[must_use]
    pub fn annotator_in(&self, slot: usize) -> u32 {
        self.in_slots[slot]
    }

    /// The slot of annotator `r`.
    #[must_use]
    pub fn slot_of(&self, r: usize) -> usize {
        self.slots[r] as usize
    }

    /// The labels that annotator `r` used, ascending: one for each of its pairs.
    #[inline]
    #[must_use]
    pub fn labels_of_annotator(&self, r: usize) -> &[u32] {
        &self.labels[self.pairs_of_annotator(r)]
    }

    /// The pair of annotator `r` and a label, if `r` ever chose it.
    #[must_use]
    pub fn pair_of(&self, r: usize, label: usize) -> Option<usize> {
        let found =
            self.labels_of_annotator(r).binary_search_by_key(&label, |l| *l as usize).ok()?;
        Some(self.pairs_of_annotator(r).start + found)
    }

    /// The first pair of each slot, and one past the last.
    #[must_use]
    pub fn pair_offsets(&self) -> &[usize] {
        &self.by_slot
    }

    /// The labels of a range of pairs.
    #[inline]
    #[must_use]
    pub fn labels_in(&self, pairs: Range<usize>) -> &[u32] {
        &self.labels[pairs]
    }

    /// The instances of a pair's annotations, ascending.
    #[inline]
    #[must_use]
    pub fn instances_of_pair(&self, pair: usize) -> &[u32] {
        let by_pair = self.by_pair();
        &by_pair.instances[by_pair.offsets[pair]..by_pair.offsets[pair + 1]]
    }

    /// The weights that go with [`Annotations::instances_of_pair`].
    #[inline]
    #[must_use]
    pub fn weights_of_pair(&self, pair: usize) -> WeightSlice<'_> {
        let by_pair = self.by_pair();
        by_pair.weights.slice(by_pair.offsets[pair]..by_pair.offsets[pair + 1])
    }

    /// The view by pair, built on first use.
    #[inline]
    fn by_pair(&self) -> &ByPair {
        self.by_pair.get_or_init(|| self.transposed())
    }

    /// The number of input rows of instance `i`, including each repeated answer; in the parts of [`Annotations::split`],
    /// the number of its annotations, after repeated answers were resolved.
    #[must_use]
    pub fn rows_of_instance(&self, i: usize) -> u32 {
        self.rows_of_instance[i]
    }

    /// The number of input rows of annotator `r`, as [`Annotations::rows_of_instance`].
    #[must_use]
    pub fn rows_of_annotator(&self, r: usize) -> u32 {
        self.rows_of_annotator[r]
    }

    /// The trusted class of instance `i`.
    #[inline]
    #[must_use]
    pub fn trusted_class(&self, i: usize) -> Option<u32> {
        self.trusted.as_ref().and_then(|t| t[i])
    }

    /// Whether instance `i` has evidence for a class: an annotation whose label is a class, or a trusted class.
    #[must_use]
    pub fn has_evidence(&self, i: usize) -> bool {
        let Dims { classes, labels, .. } = self.dims;
        // Where every label is a class, none is read: each would be a cache miss.
        let names_class =
            |c: &u32| labels == classes || (self.label_of_pair(*c) as usize) < classes;
        self.trusted_class(i).is_some() || self.pairs_of_instance(i).iter().any(names_class)
    }
}

/// The annotations of adjacent instances: the input of an E-step kernel, independent of where the instances are stored.
#[derive(Debug, Clone, Copy)]
pub struct InstanceRange<'a> {
    /// Where the annotations of each instance begin, and one past the last; the first need not be 0.
    pub offsets: &'a [usize],
    /// The pair of every annotation.
    pub pairs: &'a [u32],
    /// The weight of every annotation.
    pub weights: WeightSlice<'a>,
    /// The class of each instance that is trusted, where any is.
    pub trusted: Option<&'a [Option<u32>]>,
    /// The label of every pair of the question.
    pub labels: &'a [u32],
    /// The annotator of every pair of the question.
    pub annotators: &'a [u32],
}

impl InstanceRange<'_> {
    /// The number of instances.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no instances.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions in `pairs` of the annotations of the `i`-th instance.
    #[inline]
    #[must_use]
    pub fn positions(&self, i: usize) -> Range<usize> {
        self.offsets[i] - self.offsets[0]..self.offsets[i + 1] - self.offsets[0]
    }

    /// (annotator, label, weight) of every annotation of the `i`-th instance.
    pub fn triples(&self, i: usize) -> impl Iterator<Item = (u32, u32, f64)> {
        let positions = self.positions(i);
        let weights = self.weights.slice(positions.clone()).iter();
        self.pairs[positions].iter().zip(weights).map(|(pair, weight)| {
            (self.annotators[*pair as usize], self.labels[*pair as usize], weight)
        })
    }

    /// The trusted class of the `i`-th instance.
    #[inline]
    #[must_use]
    pub fn trusted_class(&self, i: usize) -> Option<u32> {
        self.trusted.and_then(|trusted| trusted[i])
    }
}
