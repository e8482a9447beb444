//! `annotator_parameters`: one row an annotator and name, the numbers that only some models have.

use std::ops::Range;

use datafusion::arrow::array::ArrayRef;

use super::{Answer, Column, Kind, Outcome, REAL, TEXT, Table, column};
use crate::error::Result;

pub(super) struct AnnotatorParameters;

impl Table for AnnotatorParameters {
    fn name(&self) -> &'static str {
        "annotator_parameters"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("annotator_id", Kind::Annotator, "the annotator"),
            column("name", TEXT, "what it is; the model's description says more"),
            column("value", REAL, "how much of it"),
        ];
        COLUMNS
    }

    fn units(&self, answer: &Answer) -> usize {
        let named = !answer.fitted.report.annotator_parameters.is_empty();
        if named { answer.frame.annotators.len() } else { 0 }
    }

    fn rows_per_unit(&self, answer: &Answer) -> usize {
        answer.fitted.report.annotator_parameters.len()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let Answer { frame, fitted, .. } = &outcome.answers[question];
        super::named_rows(&frame.annotators, &fitted.report.annotator_parameters, units)
    }
}
