//! `trace`: one row per iteration of the fit.

use std::sync::Arc;

use arrow::array::{BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::datatypes::DataType;

use super::{COUNT, ColumnType, OutcomeTable, REAL, TEXT, column, nullable};
use crate::model::fitted::TraceRow;

const OBJECTIVE: &str = "objective of the step, as the model defines it: the log-likelihood of the labels, the same with a log-prior, an ELBO, or minus a loss";
const CHANGE: &str = "increase of the objective, with its log-prior, since the previous step; null where there is no previous value";
const SCORE: &str = "score of a network's epoch by `train.select`: the accuracy on gold of the role `valid`, plus less than half an instance for its log-loss, or the mean log-likelihood of held-out annotations; null where epochs are not compared";
const KEPT: &str =
    "whether the network of this epoch was kept; null where no network is trained by epochs";

pub(super) static TRACE: OutcomeTable = OutcomeTable {
    name: "trace",
    columns: &[
        column("phase", TEXT, "the part of the fit, such as `em` or `restart 1`"),
        column("step", COUNT, "the iteration, from 1"),
        column("objective", REAL, OBJECTIVE),
        nullable("change", REAL, CHANGE),
        column("seconds", REAL, "the step's wall time"),
        nullable("score", REAL, SCORE),
        nullable("kept", ColumnType::Fixed(DataType::Boolean), KEPT),
    ],
    blocks: |result| result.fitted.trace.len(),
    rows: |outcome, question, blocks| {
        let trace = &outcome.results[question].fitted.trace;
        let is_selected = trace.iter().any(|row| row.is_kept);
        let kept = |row: &TraceRow| is_selected.then_some(row.is_kept);
        let rows = &trace[blocks];
        Ok(vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.phase))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| i64::from(r.step)))),
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.objective))),
            Arc::new(rows.iter().map(|r| r.change).collect::<Float64Array>()),
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.seconds))),
            Arc::new(rows.iter().map(|r| r.score).collect::<Float64Array>()),
            Arc::new(rows.iter().map(kept).collect::<BooleanArray>()),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};
