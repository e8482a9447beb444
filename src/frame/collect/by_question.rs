//! Sorts the rows of a batch by question.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Schema};

use crate::error::Result;

/// A question's number, and its rows in a batch that is sorted by question.
pub(super) type RowsOfQuestion = (u32, Range<usize>);

/// The batch sorted by question, and the rows of each question in it.
pub(super) fn by_question(
    batch: &RecordBatch,
    numbers: &[u32],
) -> Result<(RecordBatch, Vec<RowsOfQuestion>)> {
    let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
    order.sort_by_key(|row| numbers[*row as usize]);
    let mut questions: Vec<RowsOfQuestion> = Vec::new();
    for (at, row) in order.iter().enumerate() {
        let question = numbers[*row as usize];
        match questions.last_mut() {
            Some((last, rows)) if *last == question => rows.end = at + 1,
            _ => questions.push((question, at..at + 1)),
        }
    }
    let plain = if questions.len() > 1 { without_dictionaries(batch)? } else { batch.clone() };
    Ok((take_record_batch(&plain, &UInt32Array::from(order))?, questions))
}

/// The batch with its dictionaries decoded: a slice of a batch would otherwise hold each dictionary whole.
fn without_dictionaries(batch: &RecordBatch) -> Result<RecordBatch> {
    let plain = |column: &ArrayRef| match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values),
        _ => Ok(Arc::clone(column)),
    };
    let columns = batch.columns().iter().map(plain).collect::<Result<Vec<_>, _>>()?;
    let schema = batch.schema();
    let fields = schema.fields().iter().zip(&columns);
    let fields = fields
        .map(|(field, column)| field.as_ref().clone().with_data_type(column.data_type().clone()));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, DictionaryArray, Int64Array};
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;
    use crate::frame::ids::NULL;

    #[test]
    fn a_batch_is_cut_by_question_and_its_rows_keep_their_order() {
        let labels: DictionaryArray<Int32Type> =
            vec!["x", "y", "x", "z", "y"].into_iter().collect();
        let rows = Int64Array::from(vec![0, 1, 2, 3, 4]);
        let batch = RecordBatch::try_from_iter([
            ("row", Arc::new(rows) as ArrayRef),
            ("label", Arc::new(labels) as ArrayRef),
        ])
        .unwrap();
        let (sorted, questions) = by_question(&batch, &[7, NULL, 2, 7, 2]).unwrap();
        assert_eq!(questions, [(2, 0..2), (7, 2..4), (NULL, 4..5)]);
        assert_eq!(sorted.column(0).as_primitive::<Int64Type>().values(), &[2, 4, 0, 3, 1]);
        let labels: Vec<_> = sorted.column(1).as_string::<i32>().iter().flatten().collect();
        assert_eq!(labels, ["x", "y", "x", "z", "y"]);
    }
}
