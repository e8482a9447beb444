//! A batch: some instances with the flat list of their annotations.

use crate::frame::{Cursors, JointQuestion, count, prefix_sum};

/// One annotation of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchAnnotation {
    /// The annotator: an index of [`Batch::annotators`].
    pub annotator: u32,
    /// The label given.
    pub label: u32,
    /// The weight of the annotation.
    pub weight: f64,
}

/// Some rows of features with the annotations of their instances.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The feature row of each row of the batch.
    pub rows: Vec<u32>,
    /// The instance of each row; the largest u32 for a row of features that belongs to no instance.
    pub instances: Vec<u32>,
    /// The row of each row's instance in tables of instances, which an instance of several questions has but once.
    pub table_rows: Vec<u32>,
    /// The rows of all instances in tables of instances, ascending, each once.
    pub distinct_table_rows: Vec<u32>,
    /// The question of each row; empty where the crowd has one.
    pub questions: Vec<JointQuestion>,
    /// The offset of each row's first annotation in `annotations`, followed by the length of `annotations`.
    pub offsets: Vec<usize>,
    /// The annotations, row after row.
    pub annotations: Vec<BatchAnnotation>,
    /// The annotators of the batch, ascending.
    pub annotators: Vec<u32>,
    /// The share of each annotator's penalty that this batch adds. The shares of an annotator over the batches of an
    /// epoch have the mean 1.
    pub share: Vec<f64>,
    /// The target of the classifier, `[row, class]`; empty for models that learn from annotations.
    pub targets: Vec<f64>,
    /// The trusted class of each row.
    pub trusted: Vec<Option<u32>>,
    /// The share of the loss of each row's trusted class that the row adds: one over the number of the instance's rows
    /// in an epoch.
    pub trusted_share: Vec<f64>,
}

impl Batch {
    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The annotations of row `b`.
    #[must_use]
    pub fn annotations_of_instance(&self, b: usize) -> &[BatchAnnotation] {
        &self.annotations[self.offsets[b]..self.offsets[b + 1]]
    }

    /// The question of row `b`, where the crowd has several.
    #[must_use]
    pub fn question(&self, b: usize) -> Option<JointQuestion> {
        self.questions.get(b).copied()
    }

    /// The annotations grouped by annotator.
    pub(crate) fn by_annotator(&self) -> ByAnnotator {
        let annotators: Vec<u32> = self.annotations.iter().map(|a| a.annotator).collect();
        let offsets = prefix_sum(&count(&annotators, self.annotators.len()));
        let mut positions = Cursors(offsets);
        let mut all = vec![AnnotatorEntry { row: 0, annotation: 0 }; annotators.len()];
        for b in 0..self.len() {
            for n in self.offsets[b]..self.offsets[b + 1] {
                let entry = AnnotatorEntry { row: b as u32, annotation: n as u32 };
                all[positions.next(annotators[n])] = entry;
            }
        }
        ByAnnotator { offsets: positions.offsets(), all }
    }
}

/// One annotation in the list of its annotator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnnotatorEntry {
    /// The row of the batch.
    pub row: u32,
    /// The index in [`Batch::annotations`].
    pub annotation: u32,
}

/// The annotations of a batch, sorted by annotator and then by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ByAnnotator {
    /// The offset of each annotator's first entry in `all`, followed by the length of `all`.
    pub offsets: Vec<usize>,
    /// All entries.
    pub all: Vec<AnnotatorEntry>,
}

impl ByAnnotator {
    /// The entries of one annotator, by its index in [`Batch::annotators`].
    pub(crate) fn entries(&self, annotator: usize) -> &[AnnotatorEntry] {
        &self.all[self.offsets[annotator]..self.offsets[annotator + 1]]
    }
}
