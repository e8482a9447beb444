//! Annotations as two sparse views of one list: by instance for E-steps, by confusion column for M-steps.
//!
//! ```text
//! a column     = one (annotator, label) pair that occurs: "annotator 7 said `cat`", one column of 7's confusion matrix
//! by instance    offsets[i] .. offsets[i+1]  ->  columns: what was said of instance i, ascending
//! by column      offsets[c] .. offsets[c+1]  ->  instances: of which instances this was said, ascending
//! by seat        offsets[s] .. offsets[s+1]  ->  the columns of the annotator in seat s, by label
//! ```
//! # Why
//! A dense confusion matrix has annotators x classes x labels cells, most of which nobody ever fills. Columns that
//! occur are at most as many as annotations, so every kernel's time and memory follows the annotations. An E-step
//! multiplies one contiguous column (one number a class) for each annotation; an M-step sums posterior rows into one
//! column, which only one thread owns. Two words of four bytes an annotation, two of eight more where weights differ
//! from 1.
//!
//! Annotators sit in the order of their numbers, but those with a single annotation, the lone ones, behind all others.
//! A lone annotator's matrix follows from the posterior of one instance: a kernel that has this at hand can do without
//! the column, and a long tail of annotators who came once costs it nothing. In the seats such columns are one range.

use std::ops::Range;

/// Instances, or annotators, handled as one unit of parallel work. Fixed, so that sums do not depend on threads.
pub const BLOCK: usize = 2048;

/// The sizes of every axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Instances, with or without annotations.
    pub instances: usize,
    /// Annotators, each with at least one annotation.
    pub annotators: usize,
    /// Classes: what can be true.
    pub classes: usize,
    /// Labels: what can be said. The first `classes` of them are the classes.
    pub labels: usize,
}

/// The sparse annotations of one question.
#[derive(Debug, Clone)]
pub struct Annotations {
    pub(super) dims: Dims,
    pub(super) by_instance: Vec<usize>,
    pub(super) columns: Vec<u32>,
    pub(super) weights: Option<Vec<f64>>,
    /// The seat of each annotator.
    pub(super) seats: Vec<u32>,
    pub(super) by_seat: Vec<usize>,
    /// The first column of a lone annotator.
    pub(super) first_lone: usize,
    pub(super) labels: Vec<u32>,
    pub(super) by_column: Vec<usize>,
    pub(super) instances: Vec<u32>,
    pub(super) column_weights: Option<Vec<f64>>,
    pub(super) rows_of_instance: Vec<u32>,
    pub(super) rows_of_annotator: Vec<u32>,
    /// The class of each instance that is trusted, where any is.
    pub trusted: Option<Vec<Option<u32>>>,
}

impl Annotations {
    /// The sizes of every axis.
    #[must_use]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// How many annotations are stored: says after repeated answers were settled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// How many (annotator, label) pairs occur.
    #[must_use]
    pub fn n_columns(&self) -> usize {
        self.labels.len()
    }

    /// What was said of instance `i`: columns, ascending, so that an annotator's are side by side.
    #[inline]
    #[must_use]
    pub fn said_of(&self, i: usize) -> &[u32] {
        &self.columns[self.by_instance[i]..self.by_instance[i + 1]]
    }

    /// The weights that go with [`Annotations::said_of`]; `None` where all are 1.
    #[inline]
    #[must_use]
    pub fn weights_of(&self, i: usize) -> Option<&[f64]> {
        self.weights.as_ref().map(|w| &w[self.by_instance[i]..self.by_instance[i + 1]])
    }

    /// The label of a column.
    #[inline]
    #[must_use]
    pub fn label_of(&self, column: u32) -> u32 {
        self.labels[column as usize]
    }

    /// The columns of annotator `r`, ascending by label.
    #[inline]
    #[must_use]
    pub fn columns_of(&self, r: usize) -> Range<usize> {
        let seat = self.seats[r] as usize;
        self.by_seat[seat]..self.by_seat[seat + 1]
    }

    /// The labels that annotator `r` used, ascending: one for each of its columns.
    #[inline]
    #[must_use]
    pub fn labels_of(&self, r: usize) -> &[u32] {
        &self.labels[self.columns_of(r)]
    }

    /// The column of what annotator `r` said, if `r` ever said it.
    #[must_use]
    pub fn column_of(&self, r: usize, label: usize) -> Option<usize> {
        let found = self.labels_of(r).binary_search_by_key(&label, |l| *l as usize).ok()?;
        Some(self.columns_of(r).start + found)
    }

    /// The first column of each annotator in the order they sit, and one past the last.
    #[must_use]
    pub fn column_offsets(&self) -> &[usize] {
        &self.by_seat
    }

    /// The labels of neighbouring columns.
    #[inline]
    #[must_use]
    pub fn labels_in(&self, columns: Range<usize>) -> &[u32] {
        &self.labels[columns]
    }

    /// Columns from this one on are of annotators with a single annotation, which counts 1.
    #[must_use]
    pub fn first_lone(&self) -> usize {
        self.first_lone
    }

    /// Of which instances a column was said, ascending.
    #[inline]
    #[must_use]
    pub fn instances_of(&self, column: usize) -> &[u32] {
        &self.instances[self.by_column[column]..self.by_column[column + 1]]
    }

    /// The weights that go with [`Annotations::instances_of`]; `None` where all are 1.
    #[inline]
    #[must_use]
    pub fn column_weights_of(&self, column: usize) -> Option<&[f64]> {
        let range = self.by_column[column]..self.by_column[column + 1];
        self.column_weights.as_ref().map(|w| &w[range])
    }

    /// Input rows behind instance `i`, repeated answers counted each.
    #[must_use]
    pub fn rows_of_instance(&self, i: usize) -> u32 {
        self.rows_of_instance[i]
    }

    /// Input rows behind annotator `r`, repeated answers counted each.
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

    /// Whether anything speaks for a class of instance `i`: an annotation of a class, or trust.
    #[must_use]
    pub fn has_evidence(&self, i: usize) -> bool {
        self.trusted_class(i).is_some()
            || self.said_of(i).iter().any(|c| (self.label_of(*c) as usize) < self.dims.classes)
    }
}
