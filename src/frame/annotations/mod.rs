//! Annotations in two sparse (CSR) views: by instance for E-steps, by confusion column for M-steps.
//!
//! ```text
//! a column     = one (annotator, label) pair that occurs: "annotator 7 chose `cat`", one column of 7's confusion matrix
//! by instance    offsets[i] .. offsets[i+1]  ->  the columns of the annotations of instance i, ascending
//! by column      offsets[c] .. offsets[c+1]  ->  the instances of the annotations in column c, ascending
//! by slot        offsets[s] .. offsets[s+1]  ->  the columns of the annotator in slot s, by label
//! ```
//! # Why
//! Dense confusion matrices have annotators x classes x labels cells, most of which have no count. At most as many
//! columns occur as there are annotations, so time and memory of every kernel are proportional to the annotations. An
//! E-step multiplies one contiguous column (one number per class) for each annotation and adds the posterior to the
//! counts of the same columns. Each annotation takes four bytes; four more if the view by column is used, which is
//! built on first use; and a weight if it differs from 1.
//!
//! A slot is the position of an annotator in the order of the columns: by index, but those with a single annotation come
//! after all others, so that the sums of an instance begin with the annotators that are known best.

pub(super) mod blocks;
mod build;
mod by_column;
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
use by_column::ByColumn;
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
    columns: Arc<Vec<u32>>,
    weights: Arc<Weights>,
    /// The slot of each annotator.
    slots: Arc<Vec<u32>>,
    /// The annotator in each slot.
    in_slots: Arc<Vec<u32>>,
    by_slot: Arc<Vec<usize>>,
    /// The label of each column.
    labels: Arc<Vec<u32>>,
    /// The annotator of each column.
    annotators: Arc<Vec<u32>>,
    by_column: Arc<OnceLock<ByColumn>>,
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

    /// Bytes of the views, with that by column, which is built when it is first read.
    pub(in crate::frame) fn bytes(&self) -> usize {
        let Dims { instances, annotators, .. } = self.dims;
        let of_annotation = size_of::<u32>() + self.weights.bytes_each();
        let offset_and_count = size_of::<usize>() + size_of::<u32>();
        self.len() * 2 * of_annotation
            + instances * offset_and_count
            + annotators * (offset_and_count + 2 * size_of::<u32>())
            + self.n_columns() * (size_of::<usize>() + 2 * size_of::<u32>())
    }

    /// How many annotations are stored, after repeated answers were resolved.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there are no annotations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// How many (annotator, label) pairs occur.
    #[must_use]
    pub fn n_columns(&self) -> usize {
        self.labels.len()
    }

    /// The columns of the annotations of instance `i`, ascending, so that those of one annotator are
    /// adjacent.
    #[inline]
    #[must_use]
    pub fn columns_of_instance(&self, i: usize) -> &[u32] {
        &self.columns[self.by_instance[i]..self.by_instance[i + 1]]
    }

    /// Whether an instance has annotations of two annotators.
    #[must_use]
    pub fn has_overlap(&self) -> bool {
        (0..self.dims.instances).any(|i| {
            // Those of one annotator are adjacent.
            let columns = self.columns_of_instance(i);
            let of = |column: Option<&u32>| column.map(|c| self.annotator_of(*c));
            of(columns.first()) != of(columns.last())
        })
    }

    /// The weights that go with [`Annotations::columns_of_instance`].
    #[inline]
    #[must_use]
    pub fn weights_of(&self, i: usize) -> WeightSlice<'_> {
        self.weights.slice(self.by_instance[i]..self.by_instance[i + 1])
    }

    /// (column, weight) of every annotation of instance `i`.
    #[must_use]
    pub fn annotations_of(&self, i: usize) -> impl ExactSizeIterator<Item = (u32, f64)> {
        let weights = self.weights_of(i);
        self.columns_of_instance(i).iter().enumerate().map(move |(n, c)| (*c, weights.get(n)))
    }

    /// (annotator, label, weight) of every annotation of instance `i`.
    #[must_use]
    pub fn triples_of(&self, i: usize) -> impl ExactSizeIterator<Item = (u32, u32, f64)> {
        let of_column = |c: u32| (self.annotators[c as usize], self.labels[c as usize]);
        self.annotations_of(i).map(move |(column, weight)| {
            let (annotator, label) = of_column(column);
            (annotator, label, weight)
        })
    }

    /// The annotations of adjacent instances, as an E-step kernel reads them.
    #[must_use]
    pub fn range(&self, instances: Range<usize>) -> InstanceRange<'_> {
        let (first, last) = (self.by_instance[instances.start], self.by_instance[instances.end]);
        InstanceRange {
            offsets: &self.by_instance[instances.start..=instances.end],
            columns: &self.columns[first..last],
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

    /// The label of a column.
    #[inline]
    #[must_use]
    pub fn label_of(&self, column: u32) -> u32 {
        self.labels[column as usize]
    }

    /// The annotator of a column.
    #[inline]
    #[must_use]
    pub fn annotator_of(&self, column: u32) -> u32 {
        self.annotators[column as usize]
    }

    /// The columns of annotator `r`, ascending by label.
    #[inline]
    #[must_use]
    pub fn columns_of(&self, r: usize) -> Range<usize> {
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

    /// The labels that annotator `r` used, ascending: one for each of its columns.
    #[inline]
    #[must_use]
    pub fn labels_of(&self, r: usize) -> &[u32] {
        &self.labels[self.columns_of(r)]
    }

    /// The column of annotator `r` and a label, if `r` ever chose it.
    #[must_use]
    pub fn column_of(&self, r: usize, label: usize) -> Option<usize> {
        let found = self.labels_of(r).binary_search_by_key(&label, |l| *l as usize).ok()?;
        Some(self.columns_of(r).start + found)
    }

    /// The first column of each slot, and one past the last.
    #[must_use]
    pub fn column_offsets(&self) -> &[usize] {
        &self.by_slot
    }

    /// The labels of a range of columns.
    #[inline]
    #[must_use]
    pub fn labels_in(&self, columns: Range<usize>) -> &[u32] {
        &self.labels[columns]
    }

    /// The instances of a column's annotations, ascending.
    #[inline]
    #[must_use]
    pub fn instances_of(&self, column: usize) -> &[u32] {
        let by_column = self.by_column();
        &by_column.instances[by_column.offsets[column]..by_column.offsets[column + 1]]
    }

    /// The weights that go with [`Annotations::instances_of`].
    #[inline]
    #[must_use]
    pub fn column_weights_of(&self, column: usize) -> WeightSlice<'_> {
        let by_column = self.by_column();
        by_column.weights.slice(by_column.offsets[column]..by_column.offsets[column + 1])
    }

    /// The view by column, built on first use.
    #[inline]
    fn by_column(&self) -> &ByColumn {
        self.by_column.get_or_init(|| self.transposed())
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
        let names_class = |c: &u32| labels == classes || (self.label_of(*c) as usize) < classes;
        self.trusted_class(i).is_some() || self.columns_of_instance(i).iter().any(names_class)
    }
}

/// The annotations of adjacent instances: the input of an E-step kernel, independent of where the instances are stored.
#[derive(Debug, Clone, Copy)]
pub struct InstanceRange<'a> {
    /// Where the annotations of each instance begin, and one past the last; the first need not be 0.
    pub offsets: &'a [usize],
    /// The column of every annotation.
    pub columns: &'a [u32],
    /// The weight of every annotation.
    pub weights: WeightSlice<'a>,
    /// The class of each instance that is trusted, where any is.
    pub trusted: Option<&'a [Option<u32>]>,
    /// The label of every column of the question.
    pub labels: &'a [u32],
    /// The annotator of every column of the question.
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

    /// The positions in `columns` of the annotations of the `i`-th instance.
    #[inline]
    #[must_use]
    pub fn positions(&self, i: usize) -> Range<usize> {
        self.offsets[i] - self.offsets[0]..self.offsets[i + 1] - self.offsets[0]
    }

    /// (annotator, label, weight) of every annotation of the `i`-th instance.
    pub fn triples(&self, i: usize) -> impl Iterator<Item = (u32, u32, f64)> {
        let positions = self.positions(i);
        let weights = self.weights.slice(positions.clone()).iter();
        self.columns[positions].iter().zip(weights).map(|(column, weight)| {
            (self.annotators[*column as usize], self.labels[*column as usize], weight)
        })
    }

    /// The trusted class of the `i`-th instance.
    #[inline]
    #[must_use]
    pub fn trusted_class(&self, i: usize) -> Option<u32> {
        self.trusted.and_then(|trusted| trusted[i])
    }
}
