//! `rejects`: one row per reason why input rows were not used. Rows read = rows used + the sum of these counts.

use std::sync::Arc;

use arrow::array::{Array, Int64Array, ListBuilder, StringArray, StringBuilder};
use arrow::compute::concat;

use super::{COUNT, ColumnType, OutcomeTable, TEXT, column};
use crate::frame::Rejects;

const VALUES: &str = "up to five offending values, `...` ends one that was cut after 1000 characters; where the value is null, the row's instance";

pub(super) static REJECTS: OutcomeTable = OutcomeTable {
    name: "rejects",
    columns: &[
        column("reason", TEXT, "the reason of the rejection"),
        column("count", COUNT, "number of rows that were rejected for it"),
        column("values", ColumnType::Texts, VALUES),
    ],
    blocks: |result| result.frame.all_rejects().map(|rejects| rejects.iter().count()).sum(),
    rows: |outcome, question, blocks| {
        let all = outcome.results[question].frame.all_rejects().flat_map(Rejects::iter);
        let rows: Vec<_> = all.skip(blocks.start).take(blocks.len()).collect();
        let mut values = ListBuilder::new(StringBuilder::new());
        for (_, _, offenders) in &rows {
            values.append_value(offenders.iter().map(Some));
        }
        Ok(vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.0.word()))),
            Arc::new(rows.iter().map(|r| i64::try_from(r.1).ok()).collect::<Int64Array>()),
            Arc::new(values.finish()),
        ])
    },
    questions: |result, blocks| {
        let Some(own) = &result.frame.question else { return Ok(None) };
        let left_out = result.frame.left_out.iter().map(|question| &question.question);
        let of_rows = std::iter::once(own).chain(left_out).zip(result.frame.all_rejects());
        let of_rows = of_rows.flat_map(|(question, all)| all.iter().map(move |_| question));
        let values = of_rows.skip(blocks.start).take(blocks.len());
        let values: Vec<&dyn Array> = values.map(|question| question.values().as_ref()).collect();
        Ok(Some(concat(&values)?))
    },
    ..OutcomeTable::OF_QUESTIONS
};
