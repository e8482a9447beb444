//! `classes`: one row per class, in the order by which ties are broken.

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array};

use super::{COUNT, ColumnType, OutcomeTable, QuestionResult, REAL, column, nullable};

pub(super) static CLASSES: OutcomeTable = OutcomeTable {
    name: "classes",
    columns: &[
        column("class", ColumnType::Label, "the class"),
        column("index", COUNT, "index of the class, from 0; ties go to the lowest"),
        nullable("prior", REAL, "P(class), where the model has one"),
    ],
    blocks: |result| result.frame.annotations.dims().classes,
    rows: |outcome, question, blocks| {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        let prior = |k: usize| fitted.report.prior.as_ref().map(|p| p[k]);
        Ok(vec![
            frame.labels.range(blocks.clone()),
            Arc::new(blocks.clone().map(|k| i64::try_from(k).ok()).collect::<Int64Array>()),
            Arc::new(blocks.map(prior).collect::<Float64Array>()),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};
