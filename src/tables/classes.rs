//! `classes`: one row per class, in the order by which ties are broken.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array};

use super::{
    COUNT, Column, ColumnType, Outcome, OutcomeTable, QuestionResult, REAL, column, nullable,
};
use crate::error::Result;

pub(super) struct ClassesTable;

impl OutcomeTable for ClassesTable {
    fn name(&self) -> &'static str {
        "classes"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("class", ColumnType::Label, "the class"),
            column("index", COUNT, "index of the class, from 0; ties go to the lowest"),
            nullable("prior", REAL, "P(class), where the model has one"),
        ];
        COLUMNS
    }

    fn blocks(&self, result: &QuestionResult) -> usize {
        result.frame.annotations.dims().classes
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        blocks: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        let prior = |k: usize| fitted.report.prior.as_ref().map(|p| p[k]);
        Ok(vec![
            frame.labels.range(blocks.clone()),
            Arc::new(blocks.clone().map(|k| i64::try_from(k).ok()).collect::<Int64Array>()),
            Arc::new(blocks.map(prior).collect::<Float64Array>()),
        ])
    }
}
