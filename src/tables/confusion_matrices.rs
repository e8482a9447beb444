//! `confusion_matrices`: P(label given class) of every annotator, one row per cell.
//!
//! # Why
//! An annotator with at least as many annotations as there are labels has the whole matrix. For one with fewer, only
//! the labels that the annotator used are written, and only for classes with an expected count of at least 0.5:
//! otherwise a hundred thousand annotators with one annotation each would fill the table with cells that no annotation
//! supports. A cell that is left out is unknown, not zero: `sql/confusion_error.sql` takes this into account.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, Float64Array, StringArray};

use super::{
    Column, ColumnType, Outcome, OutcomeTable, QuestionResult, REAL, RowsOfUnit, TEXT, column,
    nullable,
};
use crate::error::Result;
use crate::frame::Annotations;

pub(super) struct ConfusionMatricesTable;

/// The least expected count of a class that an annotator counts as having met.
pub(crate) const MET: f64 = 0.5;

#[derive(Default)]
struct CellRows {
    annotator: Vec<Option<u32>>,
    class: Vec<Option<u32>>,
    label: Vec<Option<u32>>,
    probability: Vec<f64>,
    expected_count: Vec<f64>,
    /// The current annotator's labels, each with its column.
    columns: Vec<(usize, Option<usize>)>,
    /// A buffer for [`Confusion::of`](crate::model::confusion::Confusion::of).
    sums: Vec<f64>,
}

impl OutcomeTable for ConfusionMatricesTable {
    fn name(&self) -> &'static str {
        "confusion_matrices"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("scope", TEXT, "`annotator`, `common` or `cluster`"),
            nullable(
                "annotator_id",
                ColumnType::Annotator,
                "the annotator; null where the scope is `common`",
            ),
            column("class", ColumnType::Label, "the true class: the matrix's row"),
            column("label", ColumnType::Label, "the label given: the matrix's column"),
            column("probability", REAL, "P(label given class); a whole row sums to 1"),
            column(
                "expected_count",
                REAL,
                "expected number of the annotator's annotations with this class and label",
            ),
        ];
        COLUMNS
    }

    fn units(&self, answer: &QuestionResult) -> usize {
        let report = &answer.fitted.report;
        let annotators = report.confusion.as_ref().map_or(0, |_| answer.frame.annotators.len());
        annotators + usize::from(report.common.is_some())
    }

    fn rows_per_unit(&self, answer: &QuestionResult) -> usize {
        let dims = answer.frame.annotations.dims();
        dims.classes * dims.labels
    }

    /// A class counts as met from an expected count of 0.5 on, and an annotator's expected counts sum to the weights of
    /// the annotations: at most twice as many classes as the total weight are met.
    fn rows_of_unit<'a>(&self, answer: &'a QuestionResult) -> Option<RowsOfUnit<'a>> {
        let (a, report) = (&answer.frame.annotations, &answer.fitted.report);
        let (dims, common) = (a.dims(), usize::from(report.common.is_some()));
        let weights = OnceLock::new();
        Some(Box::new(move |unit| {
            let Some(r) = unit.checked_sub(common) else { return dims.classes * dims.labels };
            let annotations = a.rows_of_annotator(r) as usize;
            if annotations >= dims.labels {
                return dims.classes * dims.labels;
            }
            let weight = weights.get_or_init(|| weights_of_annotators(a))[r];
            // The weight is never negative, and the cast saturates.
            #[allow(clippy::cast_sign_loss)]
            let met = ((2.0 * weight).ceil() as usize).min(dims.classes);
            met * a.labels_of(r).len()
        }))
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let answer = &outcome.answers[question];
        let mut cells = CellRows::default();
        let common = usize::from(answer.fitted.report.common.is_some());
        for unit in units {
            match unit.checked_sub(common) {
                Some(r) => cells.add(answer, r),
                None => cells.add_common(answer),
            }
        }
        let scope = |r: &Option<u32>| if r.is_some() { "annotator" } else { "common" };
        let scopes = cells.annotator.iter().map(scope).collect::<Vec<_>>();
        let (annotators, labels) = (&answer.frame.annotators, &answer.frame.labels);
        Ok(vec![
            Arc::new(StringArray::from_iter_values(scopes)),
            annotators.rows(cells.annotator.into_iter())?,
            labels.rows(cells.class.into_iter())?,
            labels.rows(cells.label.into_iter())?,
            Arc::new(Float64Array::from(cells.probability)),
            Arc::new(Float64Array::from(cells.expected_count)),
        ])
    }
}

/// The sum of the weights of each annotator's annotations.
fn weights_of_annotators(a: &Annotations) -> Vec<f64> {
    let mut weights = vec![0.0; a.dims().annotators];
    for i in 0..a.dims().instances {
        a.triples_of(i).for_each(|(r, _, weight)| weights[r as usize] += weight);
    }
    weights
}

impl CellRows {
    /// Adds the matrix that all annotators share.
    fn add_common(&mut self, answer: &QuestionResult) {
        let dims = answer.frame.annotations.dims();
        let Some(common) = &answer.fitted.report.common else { return };
        let cells = common.probability.iter().zip(&common.expected_count).enumerate();
        for (cell, (probability, count)) in cells {
            self.annotator.push(None);
            self.class.push(Some((cell / dims.labels) as u32));
            self.label.push(Some((cell % dims.labels) as u32));
            self.probability.push(*probability);
            self.expected_count.push(*count);
        }
    }

    fn add(&mut self, answer: &QuestionResult, r: usize) {
        let a = &answer.frame.annotations;
        let dims = a.dims();
        let Some(confusion) = &answer.fitted.report.confusion else { return };
        let is_whole = a.rows_of_annotator(r) as usize >= dims.labels;
        let labels = if is_whole { dims.labels } else { a.labels_of(r).len() };
        self.columns.clear();
        self.columns.extend((0..labels).map(|n| {
            if is_whole {
                (n, a.column_of(r, n))
            } else {
                (a.labels_of(r)[n] as usize, Some(a.columns_of(r).start + n))
            }
        }));
        let matrix = confusion.of(a, r, &mut self.sums);
        for k in 0..dims.classes {
            let counts = a.columns_of(r).map(|c| confusion.expected_count[c * dims.classes + k]);
            if !is_whole && counts.sum::<f64>() < MET {
                continue;
            }
            for (label, column) in &self.columns {
                let (probability, count) = matrix.cell(k, *label, *column);
                self.annotator.push(Some(r as u32));
                self.class.push(Some(k as u32));
                self.label.push(Some(*label as u32));
                self.probability.push(probability);
                self.expected_count.push(count);
            }
        }
    }
}
