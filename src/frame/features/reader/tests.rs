use arrow::array::{Float64Array, ListArray, StringArray};
use arrow::datatypes::Float64Type;
use datafusion::common::stats::Precision;

use super::*;

fn error(ids: &[&str], numbers: ArrayRef) -> String {
    let ids: ArrayRef = Arc::new(StringArray::from(ids.to_vec()));
    let columns = [("instance_id", ids, true), ("features", numbers, true)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut reader = FeatureReader::new(&batch.schema(), Scratch::default());
    let read = reader.push(&batch).and_then(|()| reader.finish().map(drop));
    read.unwrap_err().to_string()
}

#[test]
fn the_query_that_can_leave_out_rows_is_that_of_the_relation() {
    let of_annotators = |ids: [Option<&str>; 2], values: [f64; 2]| {
        let ids: ArrayRef = Arc::new(StringArray::from(ids.to_vec()));
        let numbers: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let columns = [("annotator_id", ids, true), ("age", numbers, true)];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let mut reader = FeatureReader::new(&batch.schema(), Scratch::default());
        let read = reader.push(&batch).and_then(|()| reader.finish().map(drop));
        read.unwrap_err().to_string()
    };
    for (ids, values) in [
        ([Some("a"), Some("a")], [0.0, 1.0]),
        ([Some("a"), Some("b")], [0.0, f64::NAN]),
        ([Some("a"), None], [0.0, 1.0]),
    ] {
        let error = of_annotators(ids, values);
        assert!(error.ends_with("source.sql.annotator_features can"), "{error}");
    }
    let error = error(&["a", "a"], Arc::new(Float64Array::from(vec![0.0, 1.0])));
    assert!(error.ends_with("source.sql.features can"), "{error}");
}

#[test]
fn an_id_with_several_rows_is_named_and_no_other() {
    let numbers = Arc::new(Float64Array::from(vec![0.0; 6]));
    let error = error(&["a", "b", "a", "c", "d", "c"], numbers);
    assert!(error.contains("an id has several rows of features"), "{error}");
    assert!(error.contains("found: `a`, `c`\n"), "{error}");
}

#[test]
fn the_numbers_of_a_part_of_a_batch_are_those_of_its_own_rows() {
    let ids: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let lists = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]].map(|row| Some(row.map(Some)));
    let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(lists);
    let columns = [("instance_id", ids), ("features", Arc::new(lists) as ArrayRef)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut reader = FeatureReader::new(&batch.schema(), Scratch::default());
    reader.push(&batch.slice(1, 2)).unwrap();
    let (matrix, mut row) = (reader.finish().unwrap().matrix, [0.0; 2]);
    matrix.read(1, &mut row);
    assert_eq!((matrix.len(), row), (2, [5.0, 6.0]));
}

/// Rows of 8 bytes, of which 100 may be in memory.
#[test]
fn memory_for_all_rows_is_reserved_before_the_first_batch_is_read() {
    let ids: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let number: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.0]));
    let columns = [("instance_id", ids), ("x", Arc::clone(&number)), ("y", number)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let reader = |rows| {
        let scratch = Scratch { budget: Some(800), rows, ..Scratch::default() };
        FeatureReader::new(&batch.schema(), scratch)
    };
    // All rows go to the file.
    let of_ids = reader(Precision::Exact(101)).bytes(&batch);
    for (rows, bytes, n_ids) in [
        (Precision::Exact(101), 0, 2),
        (Precision::Exact(100), 800, 100),
        (Precision::Inexact(100), 16, 2),
        (Precision::Absent, 16, 2),
    ] {
        let mut reader = reader(rows);
        assert_eq!(reader.bytes(&batch), of_ids + bytes, "{rows:?}");
        assert_eq!(reader.ids_after(&batch), n_ids, "{rows:?}");
        reader.push(&batch).unwrap();
        let more = if n_ids == 100 { 100 } else { 4 };
        assert_eq!(reader.ids_after(&batch), more, "{rows:?}");
    }
}

#[test]
fn unusable_numbers_are_counted_over_all_batches_and_their_column_is_named() {
    let ids = |from: usize| -> ArrayRef {
        Arc::new((from..from + 4).map(|n| Some(format!("i{n}"))).collect::<StringArray>())
    };
    let read = |values: [Option<f64>; 4]| {
        let column: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let ones: ArrayRef = Arc::new(Float64Array::from(vec![1.0; 4]));
        let batch = |from| {
            let columns = [
                ("instance_id", ids(from), true),
                ("x", Arc::clone(&ones), true),
                ("age", Arc::clone(&column), true),
            ];
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        let mut reader = FeatureReader::new(&batch(0).schema(), Scratch::default());
        [0, 4].into_iter().for_each(|from| reader.push(&batch(from)).unwrap());
        reader.finish().err().unwrap().to_string()
    };
    let error = read([None; 4]);
    let found = "found: null in column `age` of 8 rows: `i0`, `i1`, `i2`, `i3`, `i4` and others\n";
    assert!(error.contains(found), "{error}");
    let error = read([Some(f64::NAN), Some(1.0), Some(f64::NAN), Some(2.0)]);
    let found = "found: NaN in column `age` of 4 rows: `i0`, `i2`, `i4`, `i6`\n";
    assert!(error.contains(found) && error.contains("not a finite number"), "{error}");
}

#[test]
fn different_numbers_that_are_too_large_are_of_one_column() {
    let ids: Vec<String> = (0..40).map(|n| format!("i{n:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let numbers: Float64Array = (0..40).map(|n| Some(1e300 + f64::from(n) * 1e290)).collect();
    let error = error(&ids, Arc::new(numbers));
    let found = "found: 1e300 in column `features` of 40 rows: `i00`, `i01`, `i02`, `i03`, `i04` and others\n";
    assert!(error.contains(found), "{error}");
    assert!(!error.contains("more columns"), "{error}");
}

#[test]
fn a_list_that_is_null_is_missing_and_not_of_another_length() {
    let lists = [None, Some(vec![Some(1.0), Some(2.0)]), Some(vec![Some(3.0), Some(4.0)])];
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>(lists);
    let error = error(&["a", "b", "c"], Arc::new(lists));
    assert!(error.contains("a row of features is missing"), "{error}");
    assert!(error.contains("found: null for `a`\n"), "{error}");
}
