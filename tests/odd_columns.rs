//! Duplicate fields and columns, and ids without a usable value: the file is refused, or the rows are rejected.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int32Array, RecordBatch, RunArray, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};

use crate::job::{Job, assert_says, cells, rows_read, vote};
use crate::support::{read_table, write_batch, write_parquet};

#[test]
fn a_field_that_stands_twice_in_a_line_is_refused() {
    let job = Job::new();
    let line = "{\"instance_id\":\"i\",\"annotator_id\":\"a\",\"label\":\"x\"}\n";
    let twice = line.replace("}", ",\"label\":\"y\"}");
    job.write("in.ndjson", &format!("{line}{twice}"));
    let error = job.fails(&vote("in.ndjson", ""), 3);
    assert_says(&error, &["a line gives a field twice", "`label` in line 2", "in.ndjson"]);
}

#[test]
fn a_column_that_stands_twice_in_a_typed_file_is_refused() {
    let names = ["instance_id", "annotator_id", "label", "label"];
    let fields = names.map(|name| Field::new(name, DataType::Utf8, true));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let column = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    let columns = ["i", "a", "x", "y"].map(column).to_vec();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let job = Job::new();
    write_batch(&job.path("in.parquet"), &batch);
    let file = std::fs::File::create(job.path("in.arrow")).unwrap();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(file, &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let file = std::fs::File::create(job.path("stream.arrow")).unwrap();
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(file, &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    for name in ["in.parquet", "in.arrow", "stream.arrow"] {
        let error = job.fails(&vote(name, ""), 3);
        assert_says(&error, &["names a column twice", "`label`", name]);
    }
}

#[test]
fn floats_that_are_no_numbers_are_rejected_as_ids_and_labels() {
    let column = |values: &[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    let job = Job::new();
    write_parquet(
        &job.path("in.parquet"),
        vec![
            ("instance_id", column(&[1.0, f64::NAN, -0.0, 0.0, 1.0, 1.0, f64::NEG_INFINITY])),
            ("annotator_id", column(&[1.0, 2.0, 3.0, 4.0, 5.0, f64::NEG_INFINITY, f64::NAN])),
            ("label", column(&[1.5, 1.5, 2.5, 2.5, f64::INFINITY, 1.5, 1.5])),
        ],
    );
    let run = job.run(&vote("in.parquet", ""));
    assert_eq!(rows_read(&run), "7 3");
    let labels = read_table(&run, "labels");
    assert_eq!(
        cells(&labels, &["instance_id", "label", "n_annotations"]),
        ["0.0 2.5 2", "1.0 1.5 1"]
    );
    let rejects = |run: &Path| cells(&read_table(run, "rejects"), &["reason", "count", "values"]);
    let all = ["null_instance 2 [-inf, NaN]", "null_annotator 1 [-inf]", "null_label 1 [inf]"];
    assert_eq!(rejects(&run), all);

    // A null has no value of its own: the row's instance is shown.
    let text = |values: [&str; 3]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let halves = Arc::new(Float64Array::from(vec![Some(1.5), Some(f64::NAN), None])) as ArrayRef;
    let columns = |question: ArrayRef, label: ArrayRef| {
        vec![
            ("instance_id", text(["i", "j", "k"])),
            ("annotator_id", text(["a"; 3])),
            ("label", label),
            ("question", question),
        ]
    };
    write_parquet(&job.path("in.parquet"), columns(text(["q"; 3]), Arc::clone(&halves)));
    assert_eq!(rejects(&job.run(&vote("in.parquet", ""))), ["null_label 2 [NaN, k]"]);
    write_parquet(&job.path("in.parquet"), columns(halves, text(["x"; 3])));
    assert_eq!(rejects(&job.run(&vote("in.parquet", ""))), ["null_question 2 [NaN, k]"]);
}

#[test]
fn halves_that_are_no_numbers_and_nulls_behind_run_ends_are_rejected() {
    let job = Job::new();
    let halves = Arc::new(Float32Array::from(vec![1.5, f32::NAN, -0.0, 0.0, f32::INFINITY]));
    let halves = cast(&(halves as ArrayRef), &DataType::Float16).unwrap();
    let ids = |prefix: &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..5).map(|n| format!("{prefix}{n}"))))
    };
    write_parquet(
        &job.path("in.parquet"),
        vec![("instance_id", ids("i")), ("annotator_id", ids("a")), ("label", halves)],
    );
    let run = job.run(&vote("in.parquet", ""));
    assert_eq!(rows_read(&run), "5 3");
    assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["0", "1.5"]);

    let job = Job::new();
    let values = StringArray::from(vec![Some("x"), None]);
    let labels = RunArray::try_new(&Int32Array::from(vec![2, 5]), &values).unwrap();
    let columns =
        [("instance_id", ids("i")), ("annotator_id", ids("a")), ("label", Arc::new(labels))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = std::fs::File::create(job.path("in.arrow")).unwrap();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(file, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let run = job.run(&vote("in.arrow", ""));
    assert_eq!(rows_read(&run), "5 2");
    assert_eq!(cells(&read_table(&run, "rejects"), &["reason", "count"]), ["null_label 3"]);
}

#[test]
fn a_column_that_some_files_lack_is_an_error_unless_a_query_says_what_stands_for_it() {
    let text = |values: [&str; 2]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let job = Job::new();
    let columns = |labels: [&'static str; 2]| {
        vec![
            ("instance_id", text(["i", "j"])),
            ("annotator_id", text(["a", labels[0]])),
            ("label", text(labels)),
        ]
    };
    let weights = Arc::new(Float64Array::from(vec![2.0, 2.0])) as ArrayRef;
    let weighted = columns(["x", "y"]).into_iter().chain([("weight", weights)]);
    write_parquet(&job.path("in/a.parquet"), weighted.collect());
    write_parquet(&job.path("in/b.parquet"), columns(["z", "z"]));
    let error = job.fails(&vote("in/", ""), 3);
    let names = ["in/a.parquet`", "in/b.parquet"];
    assert_says(&error, &["some files of a table lack the column `weight`", names[0], names[1]]);
    let query = "source.sql.annotations = 'SELECT instance_id, annotator_id, label, coalesce(weight, 1) AS weight FROM annotations'\n";
    let run = job.run(&format!("{}{query}", vote("in/", "")));
    let found = cells(&read_table(&run, "labels"), &["instance_id", "label", "n_annotations"]);
    assert_eq!(found, ["i x 2", "j y 2"]);
}

#[test]
fn bytes_of_two_widths_are_one_column() {
    let job = Job::new();
    for (file, width) in
        [("in/a.parquet", DataType::Binary), ("in/b.parquet", DataType::LargeBinary)]
    {
        let ids = StringArray::from(vec!["i", "j", file]);
        write_parquet(
            &job.path(file),
            vec![
                ("instance_id", cast(&ids, &width).unwrap()),
                ("annotator_id", Arc::new(StringArray::from(vec![file; 3])) as ArrayRef),
                ("label", Arc::new(StringArray::from(vec!["x"; 3])) as ArrayRef),
            ],
        );
    }
    let labels = read_table(&job.run(&vote("in/", "")), "labels");
    let mut answers = cells(&labels, &["n_annotations"]);
    answers.sort();
    assert_eq!(answers, ["1", "1", "2", "2"]);
}
