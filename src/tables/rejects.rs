//! `rejects`: one row per reason why input rows were not used. Rows read = rows used + the sum of these counts.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, ListBuilder, StringArray, StringBuilder};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field};

use super::{COUNT, Column, ColumnType, Outcome, OutcomeTable, QuestionResult, TEXT, column};
use crate::error::Result;
use crate::frame::Rejects;

pub(super) struct RejectsTable;

impl OutcomeTable for RejectsTable {
    fn name(&self) -> &'static str {
        "rejects"
    }

    fn columns(&self) -> &'static [Column] {
        static COLUMNS: std::sync::LazyLock<Vec<Column>> = std::sync::LazyLock::new(|| {
            let item = Arc::new(Field::new_list_field(DataType::Utf8, true));
            let values = "up to five offending values, `...` ends one that was cut after 1000 characters; where the \
                          value is null, the row's instance";
            vec![
                column("reason", TEXT, "the reason of the rejection"),
                column("count", COUNT, "number of rows that were rejected for it"),
                column("values", ColumnType::Fixed(DataType::List(item)), values),
            ]
        });
        &COLUMNS
    }

    fn blocks(&self, result: &QuestionResult) -> usize {
        result.frame.all_rejects().map(|rejects| rejects.iter().count()).sum()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        blocks: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
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
    }

    fn questions(&self, result: &QuestionResult, blocks: Range<usize>) -> Result<Option<ArrayRef>> {
        let Some(own) = &result.frame.question else { return Ok(None) };
        let left_out = result.frame.left_out.iter().map(|question| &question.question);
        let of_rows = std::iter::once(own).chain(left_out).zip(result.frame.all_rejects());
        let of_rows = of_rows.flat_map(|(question, all)| all.iter().map(move |_| question));
        let values = of_rows.skip(blocks.start).take(blocks.len());
        let values: Vec<&dyn Array> = values.map(|question| question.values().as_ref()).collect();
        Ok(Some(concat(&values)?))
    }
}
