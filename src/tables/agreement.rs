//! `agreement`: how far annotators agree beyond chance, by each statistic, with intervals.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

use super::{COUNT, OutcomeTable, QuestionResult, REAL, TEXT, column, nullable};
use crate::agreement::AgreementRow;

pub(super) static AGREEMENT: OutcomeTable = OutcomeTable {
    name: "agreement",
    columns: &[
        column("statistic", TEXT, "name of the statistic"),
        column(
            "group",
            TEXT,
            "`all`, or `class=...`: the agreement on one class against all others",
        ),
        nullable(
            "value",
            REAL,
            "the value; null where it is not defined, as where nobody shares an instance or every answer is the same",
        ),
        nullable("low", REAL, "lower end of its 95 % interval, a bootstrap by instance"),
        nullable("high", REAL, "upper end of the interval"),
        column("n", COUNT, "number of instances that it comes from, with two annotators or more"),
    ],
    blocks: |result| result.diagnosis.statistics.len(),
    rows: |outcome, question, blocks| {
        let QuestionResult { frame, diagnosis, .. } = &outcome.results[question];
        let rows = &diagnosis.statistics[blocks];
        let reals = |of: fn(&AgreementRow) -> Option<f64>| -> ArrayRef {
            Arc::new(rows.iter().map(of).collect::<Float64Array>())
        };
        let class = |row: &AgreementRow| row.class.map(|class| frame.labels.text(class as usize));
        Ok(vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.statistic))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| group_of(class(row))))),
            reals(|row| row.value),
            reals(|row| row.low),
            reals(|row| row.high),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.n.cast_signed()))),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};

/// The group of a row about one class, or about all.
pub(crate) fn group_of(class: Option<String>) -> String {
    class.map_or_else(|| "all".to_owned(), |class| format!("class={class}"))
}
