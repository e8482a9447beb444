//! The annotators' confusion matrices, as a fitted model returns them.

use std::ops::Range;

use rayon::prelude::*;

use super::numerics::MIN_PROBABILITY;
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK};

/// P(label given class) of every annotator.
#[derive(Debug, Clone, PartialEq)]
pub struct Confusion {
    /// The probabilities.
    pub cells: Cells,
    /// The expected number of annotations in a pair whose instance has a class, `[pair, class]`, by the pairs of
    /// [`Annotations`].
    pub expected_count: Vec<f64>,
}

/// The least expected count with which a class counts as observed by an annotator, or as one that occurs at all.
pub const MIN_OBSERVED_COUNT: f64 = 0.5;

/// A confusion matrix that annotators share, all or those of a cluster, `[class, label]`.
#[derive(Debug, Clone, PartialEq)]
pub struct CommonConfusion {
    /// P(label given class).
    pub probability: Vec<f64>,
    /// The expected number of annotations with this label whose instance has the class.
    pub expected_count: Vec<f64>,
}

impl CommonConfusion {
    /// The matrix with the sums of the annotators' expected counts, `[pair, class]`.
    #[must_use]
    pub fn new(a: &Annotations, probability: Vec<f64>, expected_counts: &[f64]) -> Self {
        let Dims { classes, labels, .. } = a.dims();
        let all_labels: Vec<u32> = (0..labels as u32).collect();
        let all_classes: Vec<usize> = (0..classes).collect();
        let common = common_counts(a, expected_counts, &all_labels, &all_classes);
        let of_class = |k: usize| (0..labels).map(move |label| label * classes + k);
        let expected_count = (0..classes).flat_map(of_class).map(|cell| common[cell]).collect();
        Self { probability, expected_count }
    }
}

/// The sums of the annotators' expected counts, `[pair, class]`, by label and class: `[label, class]`, for these
/// labels, which ascend, and these classes.
pub(crate) fn common_counts(
    a: &Annotations,
    expected_counts: &[f64],
    labels: &[u32],
    classes: &[usize],
) -> Vec<f64> {
    let mut common = vec![0.0; labels.len() * classes.len()];
    for (pair, counts) in expected_counts.chunks_exact(a.dims().classes.max(1)).enumerate() {
        if let Ok(at) = labels.binary_search(&a.label_of_pair(pair as u32)) {
            let sums = &mut common[at * classes.len()..(at + 1) * classes.len()];
            sums.iter_mut().zip(classes).for_each(|(sum, k)| *sum += counts[*k]);
        }
    }
    common
}

/// The probabilities of confusion matrices.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    /// Smoothed expected counts, each divided by the sum of its row.
    Counted(Smoothing),
    /// As `Counted`, with pseudo-counts that differ by cell.
    Drawn(PseudoCounts),
    /// Each annotator is right with one probability, `[annotator]`, whatever the class; wrong labels are equally likely.
    Accuracy(Vec<f64>),
    /// Each annotator has the matrix of a cluster, or of a table.
    Clustered {
        /// The cluster of every annotator.
        cluster: Vec<u32>,
        /// The matrices, `[cluster, class, label]`.
        cells: Vec<f64>,
    },
    /// Every cell is stored, `[annotator, class, label]`.
    Dense(Vec<f64>),
}

/// The pseudo-counts that an estimate by maximum likelihood adds to the expected counts of a confusion matrix before it
/// normalises the rows. Counts below [`MIN_PROBABILITY`] are raised to it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Smoothing {
    /// The pseudo-count that is added to every cell.
    pub everywhere: f64,
    /// The pseudo-count that is added to the cells of the diagonal as well. It may be negative; its sum with
    /// `everywhere` may not.
    pub diagonal: f64,
    /// The number of labels, including those that no annotator has given.
    pub n_labels: usize,
}

/// Pseudo-counts that differ by cell, such as those of a prior that all annotators share.
#[derive(Debug, Clone, PartialEq)]
pub struct PseudoCounts {
    n_classes: usize,
    /// `[label, class]`, above 0
    cells: Vec<f64>,
    /// Their sums over the labels, `[class]`.
    rows: Vec<f64>,
}

impl PseudoCounts {
    /// The pseudo-counts of these cells, `[label, class]`, each above 0.
    #[must_use]
    pub fn new(n_classes: usize, cells: Vec<f64>) -> Self {
        let mut rows = vec![0.0; n_classes];
        for of_label in cells.chunks_exact(n_classes.max(1)) {
            rows.iter_mut().zip(of_label).for_each(|(sum, added)| *sum += added);
        }
        Self { n_classes, cells, rows }
    }

    /// Those of a label, `[class]`.
    #[inline(always)]
    #[must_use]
    pub fn of_label(&self, label: usize) -> &[f64] {
        &self.cells[label * self.n_classes..(label + 1) * self.n_classes]
    }

    /// Their sums over the labels, `[class]`.
    #[inline(always)]
    #[must_use]
    pub fn of_rows(&self) -> &[f64] {
        &self.rows
    }
}

impl Smoothing {
    /// The smoothing of matrices with the labels of these annotations.
    #[must_use]
    pub fn new(a: &Annotations, everywhere: f64, diagonal: f64) -> Self {
        Self { everywhere, diagonal, n_labels: a.dims().labels }
    }

    /// The smoothed count of a cell.
    #[inline]
    #[must_use]
    pub fn cell(self, count: f64, class: usize, label: usize) -> f64 {
        let diagonal = if class == label { self.diagonal } else { 0.0 };
        self.smoothed(count + diagonal)
    }

    /// The smoothed count of a cell off the diagonal, or of a diagonal cell whose count has `diagonal` on top.
    #[inline(always)]
    #[must_use]
    pub fn smoothed(self, count: f64) -> f64 {
        (count + self.everywhere).max(MIN_PROBABILITY)
    }

    /// Replaces `sums` by the smoothing and floors of the labels that are not in `used`: they have no pair, but are part of
    /// the sum of every row.
    #[inline(always)]
    pub fn row_sums(self, used: &[u32], sums: &mut [f64]) {
        self.row_sums_from(0, used, sums);
    }

    /// As [`Smoothing::row_sums`], for the rows of adjacent classes, the first of which is `first`.
    #[inline(always)]
    pub(crate) fn row_sums_from(self, first: usize, used: &[u32], sums: &mut [f64]) {
        let unused = self.cell(0.0, 0, 1);
        sums.fill((self.n_labels - used.len()) as f64 * unused);
        if self.diagonal != 0.0 {
            for (k, sum) in sums.iter_mut().enumerate() {
                if used.iter().all(|l| *l as usize != first + k) {
                    *sum += self.cell(0.0, 0, 0) - unused;
                }
            }
        }
    }
}

/// The confusion matrix of one annotator, or its rows of adjacent classes.
pub struct AnnotatorMatrix<'a> {
    confusion: &'a Confusion,
    a: &'a Annotations,
    r: usize,
    /// The class of the first row.
    first: usize,
    /// The sum of each row's smoothed counts, `[class]`; used for [`Cells::Counted`] and [`Cells::Drawn`] only.
    sums: &'a [f64],
}

impl Confusion {
    /// The matrix of annotator `r`; `sums` is a buffer for the sums of its rows.
    #[must_use]
    pub fn matrix<'a>(
        &'a self,
        a: &'a Annotations,
        r: usize,
        sums: &'a mut Vec<f64>,
    ) -> AnnotatorMatrix<'a> {
        self.of_classes(a, r, 0..a.dims().classes, sums)
    }

    /// The rows of some classes of the matrix of annotator `r`; `sums` is a buffer for their sums.
    #[must_use]
    pub fn of_classes<'a>(
        &'a self,
        a: &'a Annotations,
        r: usize,
        classes: Range<usize>,
        sums: &'a mut Vec<f64>,
    ) -> AnnotatorMatrix<'a> {
        let (n, first) = (a.dims().classes, classes.start);
        if let Cells::Counted(added) = self.cells {
            sums.resize(classes.len(), 0.0);
            added.row_sums_from(first, a.labels_of_annotator(r), sums);
            for (pair, label) in a.pairs_of_annotator(r).zip(a.labels_of_annotator(r)) {
                let counts = &self.expected_count[pair * n + first..pair * n + classes.end];
                for (k, (sum, count)) in sums.iter_mut().zip(counts).enumerate() {
                    *sum += added.cell(*count, first + k, *label as usize);
                }
            }
        }
        if let Cells::Drawn(added) = &self.cells {
            sums.clear();
            sums.extend_from_slice(&added.of_rows()[classes.clone()]);
            for pair in a.pairs_of_annotator(r) {
                let counts = &self.expected_count[pair * n + first..pair * n + classes.end];
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
        }
        AnnotatorMatrix { confusion: self, a, r, first, sums }
    }

    /// The skill of every annotator: the mean of the diagonal of their confusion matrix.
    #[must_use]
    pub fn skill(&self, a: &Annotations) -> Vec<f64> {
        let annotators = (0..a.dims().annotators).into_par_iter().with_min_len(ITEMS_PER_BLOCK);
        annotators.map_init(Vec::new, |sums, r| self.mean_diagonal(a, r, sums)).collect()
    }

    fn mean_diagonal(&self, a: &Annotations, r: usize, sums: &mut Vec<f64>) -> f64 {
        let (matrix, n) = (self.matrix(a, r, sums), a.dims().classes);
        let mut pairs = a.pairs_of_annotator(r).zip(a.labels_of_annotator(r)).peekable();
        let diagonal = |k: usize| {
            let own = pairs.next_if(|(_, label)| **label as usize == k);
            matrix.cell(k, k, own.map(|(pair, _)| pair)).0
        };
        (0..n).map(diagonal).sum::<f64>() / n as f64
    }

    /// All stored numbers, for a check that they are finite.
    pub(super) fn parts(&self) -> [&[f64]; 2] {
        let cells = match &self.cells {
            Cells::Dense(cells) | Cells::Accuracy(cells) | Cells::Clustered { cells, .. } => {
                cells.as_slice()
            }
            Cells::Drawn(added) => added.cells.as_slice(),
            Cells::Counted(_) => &[],
        };
        [&self.expected_count, cells]
    }
}

impl AnnotatorMatrix<'_> {
    /// The sum of a row's smoothed counts; defined for [`Cells::Counted`] and [`Cells::Drawn`] only.
    #[must_use]
    pub fn row_sum(&self, class: usize) -> f64 {
        self.sums[class - self.first]
    }

    /// P(`label` given `class`) and its expected count, for a class whose row exists; `pair` is the label's
    /// [`Annotations::pair_of`].
    #[must_use]
    pub fn cell(&self, class: usize, label: usize, pair: Option<usize>) -> (f64, f64) {
        let dims = self.a.dims();
        let counts = &self.confusion.expected_count;
        let count = pair.map_or(0.0, |pair| counts[pair * dims.classes + class]);
        let probability = match &self.confusion.cells {
            Cells::Dense(cells) => cells[(self.r * dims.classes + class) * dims.labels + label],
            Cells::Clustered { cluster, cells } => {
                cells[(cluster[self.r] as usize * dims.classes + class) * dims.labels + label]
            }
            Cells::Accuracy(right) if class == label => right[self.r],
            Cells::Accuracy(right) => (1.0 - right[self.r]) / (dims.labels - 1) as f64,
            Cells::Counted(added) => added.cell(count, class, label) / self.row_sum(class),
            Cells::Drawn(added) => (count + added.of_label(label)[class]) / self.row_sum(class),
        };
        (probability, count)
    }
}
