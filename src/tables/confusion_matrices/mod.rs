//! `confusion_matrices`: P(label given class) of every annotator, one row per cell.
//!
//! # Why
//! An annotator with at least as many annotations as there are labels has the whole matrix. For one with fewer, only
//! the labels that the annotator used are written, and only for classes with an expected count of at least 0.5:
//! otherwise a hundred thousand annotators with one annotation each would fill the table with cells that no annotation
//! supports. A cell that is left out is unknown, not zero: `sql/confusion_error.sql` takes this into account.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::array::{Float64Array, Int64Array, StringArray};

use super::rows::cut::{longest_row, rows_of_batch};
use super::{
    BlockSpans, COUNT, ColumnType, OutcomeTable, QuestionResult, REAL, TEXT, UnitSpan, column,
    nullable,
};
use crate::frame::Annotations;
use crate::model::confusion::{CommonConfusion, Confusion, MIN_OBSERVED_COUNT};

#[derive(Default)]
struct CellRows {
    annotator: Vec<Option<u32>>,
    cluster: Vec<Option<i64>>,
    class: Vec<Option<u32>>,
    label: Vec<Option<u32>>,
    probability: Vec<f64>,
    expected_count: Vec<f64>,
    /// The current annotator's labels, each with its column.
    columns: Vec<(usize, Option<usize>)>,
    /// A buffer for [`Confusion::of_classes`].
    sums: Vec<f64>,
}

pub(super) static CONFUSION_MATRICES: OutcomeTable = OutcomeTable {
    name: "confusion_matrices",
    columns: &[
        column("scope", TEXT, "`annotator`, `common` or `cluster`"),
        nullable(
            "annotator_id",
            ColumnType::Annotator,
            "the annotator; null where the scope is another",
        ),
        column("class", ColumnType::Label, "the true class: the matrix's row"),
        column("label", ColumnType::Label, "the label given: the matrix's column"),
        column("probability", REAL, "P(label given class); a whole row sums to 1"),
        column(
            "expected_count",
            REAL,
            "expected number of the annotator's annotations with this class and label",
        ),
        nullable(
            "cluster",
            COUNT,
            "the cluster, as the parameter `cluster` of its annotators; null where the scope is another",
        ),
    ],
    // A block is the row of a class: first those of shared matrices, then those of each annotator.
    blocks: |result| {
        let report = &result.fitted.report;
        let annotators = report.confusion.as_ref().map_or(0, |_| result.frame.annotators.len());
        (annotators + report.shared().count()) * result.frame.annotations.dims().classes
    },
    rows_per_block: |result| result.frame.annotations.dims().labels,
    block_spans: |result| Some(block_spans(result)),
    rows: |outcome, question, blocks| {
        let result = &outcome.results[question];
        let mut cells = CellRows::default();
        let report = &result.fitted.report;
        let shared: Vec<&CommonConfusion> = report.shared().collect();
        let n_common = usize::from(report.common.is_some());
        let n = result.frame.annotations.dims().classes.max(1);
        for matrix in blocks.start / n..blocks.end.div_ceil(n) {
            let first = matrix * n;
            let classes = blocks.start.max(first) - first..blocks.end.min(first + n) - first;
            match shared.get(matrix) {
                Some(common) => {
                    cells.add_shared(result, common, matrix.checked_sub(n_common), classes);
                }
                None => cells.add(result, matrix - shared.len(), classes),
            }
        }
        let scope = |(r, cluster): (&Option<u32>, &Option<i64>)| match (r, cluster) {
            (Some(_), _) => "annotator",
            (None, Some(_)) => "cluster",
            (None, None) => "common",
        };
        let scopes = cells.annotator.iter().zip(&cells.cluster).map(scope).collect::<Vec<_>>();
        let (annotators, labels) = (&result.frame.annotators, &result.frame.labels);
        Ok(vec![
            Arc::new(StringArray::from_iter_values(scopes)),
            annotators.rows(cells.annotator.into_iter())?,
            labels.rows(cells.class.into_iter())?,
            labels.rows(cells.label.into_iter())?,
            Arc::new(Float64Array::from(cells.probability)),
            Arc::new(Float64Array::from(cells.expected_count)),
            Arc::new(Int64Array::from(cells.cluster)),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};

/// A matrix of no more rows than a batch is not cut, so that time follows the rows and not the blocks, most of which
/// have no row where annotators have few annotations.
///
/// A class counts as observed from an expected count of 0.5 on, and an annotator's expected counts sum to the weights
/// of the annotations: at most twice as many classes as the total weight are observed.
fn block_spans(result: &QuestionResult) -> BlockSpans<'_> {
    let (a, report) = (&result.frame.annotations, &result.fitted.report);
    let (dims, shared) = (a.dims(), report.shared().count());
    let (room, weights) = (rows_of_batch(longest_row(&result.frame)), OnceLock::new());
    let whole = UnitSpan { blocks: dims.classes, rows: dims.classes * dims.labels };
    Box::new(move |block| {
        let (matrix, class) = (block / dims.classes, block % dims.classes);
        let few = matrix.checked_sub(shared).filter(|r| !is_whole(a, *r));
        let (Some(r), Some(confusion)) = (few, &report.confusion) else {
            let row = UnitSpan { blocks: 1, rows: dims.labels };
            return if whole.rows <= room { whole } else { row };
        };
        let labels = a.labels_of_annotator(r).len().max(1);
        let weight = weights.get_or_init(|| weights_of_annotators(a))[r];
        // The weight is never negative, and the cast saturates.
        #[allow(clippy::cast_sign_loss)]
        let observed = ((2.0 * weight).ceil() as usize).min(dims.classes);
        if observed * labels <= room {
            return UnitSpan { rows: observed * labels, ..whole };
        }
        let blocks = (room / labels).clamp(1, dims.classes - class);
        let observed =
            (class..class + blocks).filter(|k| has_observed(confusion, a, r, *k)).count();
        UnitSpan { blocks, rows: observed * labels }
    })
}

/// The sum of the weights of each annotator's annotations.
fn weights_of_annotators(a: &Annotations) -> Vec<f64> {
    let dims = a.dims();
    let rows = (0..dims.annotators).map(|r| a.rows_of_annotator(r));
    let n_rows: usize = rows.clone().map(|n| n as usize).sum();
    // No annotations were merged, and none has a weight of its own.
    if n_rows == a.len() && a.range(0..dims.instances).weights.is_ones() {
        return rows.map(f64::from).collect();
    }
    let mut weights = vec![0.0; dims.annotators];
    for i in 0..dims.instances {
        a.triples_of_instance(i).for_each(|(r, _, weight)| weights[r as usize] += weight);
    }
    weights
}

/// Whether annotator `r` has the whole matrix.
fn is_whole(a: &Annotations, r: usize) -> bool {
    a.rows_of_annotator(r) as usize >= a.dims().labels
}

/// Whether annotator `r` counts as having observed class `k`.
fn has_observed(confusion: &Confusion, a: &Annotations, r: usize, k: usize) -> bool {
    let n = a.dims().classes;
    a.pairs_of_annotator(r).map(|column| confusion.expected_count[column * n + k]).sum::<f64>()
        >= MIN_OBSERVED_COUNT
}

impl CellRows {
    /// Adds the rows of some classes of a matrix that all annotators share, or those of a cluster.
    fn add_shared(
        &mut self,
        result: &QuestionResult,
        common: &CommonConfusion,
        cluster: Option<usize>,
        classes: Range<usize>,
    ) {
        let n = result.frame.annotations.dims().labels;
        for cell in classes.start * n..classes.end * n {
            self.annotator.push(None);
            self.cluster.push(cluster.and_then(|cluster| i64::try_from(cluster).ok()));
            self.class.push(Some((cell / n) as u32));
            self.label.push(Some((cell % n) as u32));
            self.probability.push(common.probability[cell]);
            self.expected_count.push(common.expected_count[cell]);
        }
    }

    /// Adds the rows of some classes of the matrix of annotator `r`.
    fn add(&mut self, result: &QuestionResult, r: usize, classes: Range<usize>) {
        let a = &result.frame.annotations;
        let Some(confusion) = &result.fitted.report.confusion else { return };
        let is_whole = is_whole(a, r);
        let mut own = a
            .labels_of_annotator(r)
            .iter()
            .map(|l| *l as usize)
            .zip(a.pairs_of_annotator(r))
            .peekable();
        self.columns.clear();
        if is_whole {
            self.columns.extend((0..a.dims().labels).map(|label| {
                (label, own.next_if(|(own, _)| *own == label).map(|(_, column)| column))
            }));
        } else {
            self.columns.extend(own.map(|(label, column)| (label, Some(column))));
        }
        let matrix = confusion.of_classes(a, r, classes.clone(), &mut self.sums);
        for k in classes.filter(|k| is_whole || has_observed(confusion, a, r, *k)) {
            for (label, column) in &self.columns {
                let (probability, count) = matrix.cell(k, *label, *column);
                self.annotator.push(Some(r as u32));
                self.cluster.push(None);
                self.class.push(Some(k as u32));
                self.label.push(Some(*label as u32));
                self.probability.push(probability);
                self.expected_count.push(count);
            }
        }
    }
}

#[cfg(test)]
mod tests;
