//! `metrics`: scores against trusted classes that the model did not see; [`crate::metrics`] computes them.

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, StringArray};

use super::{COUNT, OutcomeTable, REAL, TEXT, column, nullable};

/// One score.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// The metric's name; for a classifier's metrics it begins with `prediction_`.
    pub name: String,
    /// The instances that it is computed on: a gold role, `truth`, or `annotations`.
    pub split: &'static str,
    /// The bin of a reliability table, from 1; `None` for other metrics.
    pub bin: Option<u32>,
    /// The value; `None` where it is not defined.
    pub value: Option<f64>,
}

pub(super) static METRICS: OutcomeTable = OutcomeTable {
    name: "metrics",
    columns: &[
        column("name", TEXT, "name of the measure; those of a classifier begin with `prediction_`"),
        column(
            "split",
            TEXT,
            "the scored instances: a gold role, or `annotations` that were held out to calibrate",
        ),
        nullable(
            "bin",
            COUNT,
            "the bin of a reliability table, from 1 to 15; null for other measures",
        ),
        nullable("value", REAL, "the value; null where it is not defined"),
    ],
    blocks: |_| 1,
    rows: |outcome, question, _| {
        let of_question = outcome.metrics.iter().filter(|(q, _)| *q == question);
        let rows: Vec<&Metric> = of_question.map(|(_, metric)| metric).collect();
        Ok(vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|m| &m.name))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|m| m.split))),
            Arc::new(rows.iter().map(|m| m.bin.map(i64::from)).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|m| m.value).collect::<Float64Array>()),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};
