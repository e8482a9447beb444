//! Ids and labels of any scalar type go out with the type and the values that they came with.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, FixedSizeBinaryArray,
    Float64Array, Int8Array, Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray,
    StringViewArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::DataType;

use crate::job::{Job, assert_says, cells};
use crate::support::{
    forget_sizes, number, read_batches, read_table, text, write_crowd, write_parquet,
};

/// Publishes a crowd whose instance ids, annotator ids and labels are all these two values, and asserts that they come
/// back. Both annotators give the first label to the first instance and the second label to the second.
fn assert_returned(values: &ArrayRef) {
    for (tells_sizes, has_question) in [(true, false), (false, false), (true, true)] {
        assert_returned_from(values, tells_sizes, has_question);
    }
}

fn assert_returned_from(values: &ArrayRef, tells_sizes: bool, has_question: bool) {
    let job = Job::new();
    let pick = |rows: [u32; 4]| take(values, &UInt32Array::from(rows.to_vec()), None).unwrap();
    let mut columns = vec![
        ("instance_id", pick([1, 0, 1, 0])),
        ("annotator_id", pick([0, 0, 1, 1])),
        ("label", pick([1, 0, 1, 0])),
    ];
    if has_question {
        columns.push(("question", Arc::new(StringArray::from(vec!["q"; 4]))));
    }
    write_parquet(&job.path("in.parquet"), columns);
    if !tells_sizes {
        forget_sizes(&job.path("in.parquet"));
    }
    let run = job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'dawid_skene'");
    let columns = [
        ("labels", "instance_id"),
        ("labels", "label"),
        ("annotators", "annotator_id"),
        ("classes", "class"),
    ];
    for (table, column) in columns {
        let batches = read_batches(&run, table);
        let arrays: Vec<&dyn Array> =
            batches.iter().map(|b| b.column_by_name(column).unwrap().as_ref()).collect();
        let found = concat(&arrays).unwrap();
        assert_eq!(found.data_type(), values.data_type(), "{table}.{column}");
        assert_eq!(&found, values, "{table}.{column}");
    }
    let confusion = &read_batches(&run, "confusion_matrices")[0];
    for column in ["annotator_id", "class", "label"] {
        let found = confusion.column_by_name(column).unwrap().data_type();
        assert_eq!(found, values.data_type(), "confusion_matrices.{column}");
    }
}

fn assert_each_returned(all: Vec<ArrayRef>) {
    all.iter().for_each(assert_returned);
}

fn dictionary(keys: DataType, values: &ArrayRef) -> ArrayRef {
    let of = DataType::Dictionary(Box::new(keys), Box::new(values.data_type().clone()));
    cast(values, &of).unwrap()
}

#[test]
fn text_of_every_layout_is_returned_with_its_type() {
    let long = "z".repeat(10_000);
    let utf8: ArrayRef = Arc::new(StringArray::from(vec!["007", "7"]));
    assert_each_returned(vec![
        dictionary(DataType::Int8, &utf8),
        dictionary(DataType::UInt32, &utf8),
        utf8,
        Arc::new(StringArray::from(vec!["10", "9"])),
        Arc::new(StringArray::from(vec!["", long.as_str()])),
        Arc::new(LargeStringArray::from(vec!["a", "ab"])),
        Arc::new(StringViewArray::from(vec!["more than fifteen bytes", "🦜🏳️‍🌈"])),
    ]);
}

#[test]
fn what_a_query_makes_of_text_is_plain_text() {
    let job = Job::new();
    write_crowd(&job.path("in.parquet"), &[("I", "A", "Yes"), ("J", "A", "No")]);
    forget_sizes(&job.path("in.parquet"));
    let sql = "select instance_id, annotator_id, lower(label) as label from annotations";
    let run = job.run(&format!(
        "source.annotations = '{{dir}}in.parquet'\nsource.sql.annotations = '{sql}'\nmodel.kind = 'majority_vote'"
    ));
    let labels: ArrayRef = Arc::new(StringArray::from(vec!["yes", "no"]));
    assert_eq!(read_batches(&run, "labels")[0].column_by_name("label").unwrap(), &labels);
}

#[test]
fn integers_of_every_width_are_returned_with_their_type() {
    let signed = [DataType::Int8, DataType::Int16, DataType::Int32, DataType::Int64];
    let unsigned = [DataType::UInt8, DataType::UInt16, DataType::UInt32];
    let small = |low: i64, to: &DataType| {
        cast(&(Arc::new(Int64Array::from(vec![low, 100])) as ArrayRef), to).unwrap()
    };
    assert_each_returned(signed.iter().map(|t| small(-100, t)).collect());
    assert_each_returned(unsigned.iter().map(|t| small(9, t)).collect());
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX]));
    let beyond: ArrayRef = Arc::new(UInt64Array::from(vec![i64::MAX as u64, u64::MAX]));
    let coded = dictionary(DataType::Int16, &wide);
    assert_each_returned(vec![wide, beyond, coded]);
}

#[test]
fn bytes_and_uuids_are_returned_with_their_type() {
    let uuids: Vec<[u8; 16]> = vec![[0; 16], [0xfe; 16]];
    assert_each_returned(vec![
        Arc::new(FixedSizeBinaryArray::try_from_iter(uuids.into_iter()).unwrap()),
        Arc::new(BinaryArray::from_vec(vec![b"\x00\xff", b"\xff\xfe"])),
    ]);
}

#[test]
fn truth_values_numbers_and_times_are_returned_with_their_type() {
    let day: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![-1, 86_400_000_000]));
    assert_each_returned(vec![
        Arc::new(BooleanArray::from(vec![false, true])),
        Arc::new(Float64Array::from(vec![-0.5, 2.25])),
        cast(&day, &DataType::Date32).unwrap(),
        day,
        Arc::new(
            Decimal128Array::from(vec![-5, 10_000_000_000_000])
                .with_precision_and_scale(20, 2)
                .unwrap(),
        ),
    ]);
}

#[test]
fn a_csv_keeps_ids_as_they_stand_and_knows_integers() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\n007,10,yes\n7,9,no\n");
    let run = job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'");
    let column = |table: &str, name: &str| {
        let batch = &read_batches(&run, table)[0];
        Arc::clone(batch.column_by_name(name).unwrap())
    };
    let text: ArrayRef = Arc::new(StringArray::from(vec!["007", "7"]));
    let integers: ArrayRef = Arc::new(Int64Array::from(vec![9, 10]));
    assert_eq!(&column("labels", "instance_id"), &text);
    assert_eq!(&column("annotators", "annotator_id"), &integers);
}

/// Twelve instances of two classes with features, and one more instance with features alone.
#[test]
fn text_of_csv_and_integers_are_the_same_ids_in_features_and_gold() {
    for (first, question, are_typed, last) in [
        (1_i64, "", false, "99"),
        // As pandas writes integers beside a missing one.
        (1, "", false, "99.0"),
        (1, "", true, "99"),
        (1, ",q", false, "99"),
        (1, ",q", true, "99"),
        // Too large for packed keys.
        (1_234_567_890_123_456_000, "", true, "99"),
        (1_234_567_890_123_456_000, ",q", false, "new-7"),
    ] {
        let case = format!("{first} `{question}` {are_typed} {last}");
        let job = Job::new();
        let ids: Vec<i64> = (first..first + 12).collect();
        let mut rows = "instance_id,annotator_id,label".to_owned();
        rows += if question.is_empty() { "\n" } else { ",question\n" };
        for (id, annotator) in ids.iter().flat_map(|id| ["a", "b"].map(|a| (id, a))) {
            rows += &format!("{id},{annotator},c{}{question}\n", id % 2);
        }
        job.write("in.csv", &rows);
        let gold = ids.iter().map(|id| format!("{id},c{},holdout\n", id % 2)).collect::<String>();
        job.write("gold.csv", &format!("instance_id,class,role\n{gold}"));
        let (mut file, mut gold) = ("features.csv", "gold.csv");
        if are_typed {
            (file, gold) = ("features.parquet", "gold.parquet");
            let all: Vec<i64> = ids.iter().copied().chain([99]).collect();
            let h = Float64Array::from_iter_values(all.iter().map(|id| (id % 2) as f64));
            let all = Arc::new(Int64Array::from(all)) as ArrayRef;
            write_parquet(&job.path(file), vec![("instance_id", all), ("h", Arc::new(h))]);
            let class: ArrayRef = Arc::new(StringArray::from_iter_values(
                ids.iter().map(|id| format!("c{}", id % 2)),
            ));
            let role: ArrayRef = Arc::new(StringArray::from(vec!["holdout"; 12]));
            let ids: ArrayRef = Arc::new(Int64Array::from(ids));
            let columns = vec![("instance_id", ids), ("class", class), ("role", role)];
            write_parquet(&job.path(gold), columns);
        } else {
            let form = if last.ends_with(".0") { ".0" } else { "" };
            let row = |id: &i64| format!("{id}{form},{}\n", id % 2);
            let rows = ids.iter().map(row).collect::<String>();
            job.write(file, &format!("instance_id,h\n{rows}{last},1\n"));
        }
        let pipeline = format!(
            "source = {{ annotations = '{{dir}}in.csv', features = '{{dir}}{file}', gold = '{{dir}}{gold}' }}
             model = {{ kind = 'dl', train.epochs = 60 }}"
        );
        let run = job.run(&pipeline);
        let ids_of = |table: &str| {
            let ids =
                |batch: &RecordBatch| Arc::clone(batch.column_by_name("instance_id").unwrap());
            let ids: Vec<ArrayRef> = read_batches(&run, table).iter().map(ids).collect();
            let ids: Vec<&dyn Array> = ids.iter().map(AsRef::as_ref).collect();
            concat(&ids).unwrap()
        };
        let (labels, predictions) = (ids_of("labels"), ids_of("predictions"));
        assert_eq!((labels.len(), predictions.len()), (12, 13 * 2), "{case}");
        assert_eq!(labels.data_type(), predictions.data_type(), "{case}");
        // Gold matches instances and features. Instances match features too, because the network learns both classes
        // from its only feature.
        let metrics = read_table(&run, "metrics");
        for (name, value) in
            [("instances", 12.0), ("prediction_instances", 12.0), ("prediction_accuracy", 1.0)]
        {
            let found = metrics.iter().find(|row| text(row, "name") == name);
            assert_eq!(found.map(|row| number(row, "value")), Some(value), "{case}: {name}");
        }
    }
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\n1,a,x\n1,b,x\n2,a,y\n");
    job.write("features.csv", "instance_id,h\n1,0\n2,1\nnew-7,1\n");
    let error = job.fails(
        "source = { annotations = '{dir}in.csv', features = '{dir}features.csv' }\nmodel.kind = 'dl'",
        3,
    );
    assert_says(&error, &["`instance_id` is text here and integers there", "source.features"]);
}

#[test]
fn an_id_of_the_features_that_no_annotation_could_have_is_refused_before_the_fit() {
    let job = Job::new();
    let column = |values: Vec<&str>| Arc::new(StringArray::from(values)) as ArrayRef;
    let rows = vec![
        ("instance_id", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef),
        ("annotator_id", column(vec!["a", "a"])),
        ("label", column(vec!["x", "y"])),
    ];
    write_parquet(&job.path("in.parquet"), rows);
    let features = |ids: Vec<i64>| {
        let h: ArrayRef = Arc::new(Float64Array::from(vec![0.5; ids.len()]));
        let ids: ArrayRef = Arc::new(Int64Array::from(ids));
        write_parquet(&job.path("features.parquet"), vec![("instance_id", ids), ("h", h)]);
    };
    let pipeline =
        "source = { annotations = '{dir}in.parquet', features = '{dir}features.parquet' }
                    model = { kind = 'dl', train.epochs = 1 }";
    features(vec![1, 2, 3_000_000_000]);
    assert_says(&job.fails(pipeline, 3), &["source.features", "`3000000000`", "hold Int32"]);
    features(vec![1, 2, 3]);
    job.run(pipeline);
}

#[test]
fn gold_of_a_csv_means_an_integer_by_its_plain_form_alone() {
    let job = Job::new();
    let texts = |values: Vec<&str>| Arc::new(StringArray::from(values)) as ArrayRef;
    let rows = vec![
        ("instance_id", Arc::new(Int64Array::from(vec![7, 8])) as ArrayRef),
        ("annotator_id", texts(vec!["a", "a"])),
        ("label", texts(vec!["x", "y"])),
    ];
    write_parquet(&job.path("in.parquet"), rows);
    let pipeline = "source = { annotations = '{dir}in.parquet', gold = '{dir}gold.csv' }
                    model.kind = 'majority_vote'";
    job.write("gold.csv", "instance_id,class\n8,x\n007,y\n");
    assert_says(&job.fails(pipeline, 3), &["source.gold", "`007` here, Int64 there"]);
    job.write("gold.csv", "instance_id,class\n8,x\n,y\n");
    let run = job.run(pipeline);
    assert_eq!(cells(&read_table(&run, "labels"), &["instance_id", "label"]), ["7 x", "8 x"]);
}

/// A job and its pipeline: annotations of Int32 instances with Int8 labels, and gold of two rows, the first of which is
/// held out.
fn with_gold_beyond(format: &str, instance: i64, class: i64, role: &str) -> (Job, String) {
    let job = Job::new();
    let rows = vec![
        ("instance_id", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef),
        ("annotator_id", Arc::new(StringArray::from(vec!["a", "a"]))),
        ("label", Arc::new(Int8Array::from(vec![5, 6]))),
    ];
    write_parquet(&job.path("in.parquet"), rows);
    if format == "csv" {
        let rows = format!("1,5,holdout\n{instance},{class},{role}\n");
        job.write("gold.csv", &format!("instance_id,class,role\n{rows}"));
    } else {
        let rows = vec![
            ("instance_id", Arc::new(Int64Array::from(vec![1, instance])) as ArrayRef),
            ("class", Arc::new(Int64Array::from(vec![5, class]))),
            ("role", Arc::new(StringArray::from(vec!["holdout", role]))),
        ];
        write_parquet(&job.path("gold.parquet"), rows);
    }
    let pipeline = format!(
        "source = {{ annotations = '{{dir}}in.parquet', gold = '{{dir}}gold.{format}' }}
         model.kind = 'majority_vote'"
    );
    (job, pipeline)
}

/// Such an instance was published as null, and such a class as a decision without a label.
#[test]
fn an_instance_or_class_of_gold_that_no_annotation_could_have_is_refused_before_the_fit() {
    for format in ["parquet", "csv"] {
        let (job, pipeline) = with_gold_beyond(format, 3_000_000_000, 5, "train");
        let error = job.fails(&pipeline, 3);
        let what = "an instance that the annotations could not have";
        assert_says(&error, &[what, "source.gold", "`3000000000`", "hold Int32"]);
        let (job, pipeline) = with_gold_beyond(format, 2, 300, "train");
        let error = job.fails(&pipeline, 3);
        let what = "a class that the annotations could not have";
        assert_says(&error, &[what, "source.gold", "`300`", "hold Int8"]);
        let (job, pipeline) = with_gold_beyond(format, 2, 300, "calibrate");
        assert_says(&job.fails(&pipeline, 3), &[what, "source.gold", "`300`"]);
    }
}

#[test]
fn gold_that_only_scores_may_have_values_that_no_annotation_could_have() {
    for format in ["parquet", "csv"] {
        for (instance, class, instances, accuracy) in
            [(3_000_000_000, 5, 1.0, 1.0), (2, 300, 2.0, 0.5), (3_000_000_000, 300, 1.0, 1.0)]
        {
            let case = format!("{format} {instance} {class}");
            let (job, pipeline) = with_gold_beyond(format, instance, class, "holdout");
            let run = job.run(&pipeline);
            let labels = cells(&read_table(&run, "labels"), &["instance_id", "label", "decision"]);
            assert_eq!(labels, ["1 5 decided", "2 6 decided"], "{case}");
            let metrics = read_table(&run, "metrics");
            for (name, value) in [("instances", instances), ("accuracy", accuracy)] {
                let found = metrics.iter().find(|row| text(row, "name") == name);
                assert_eq!(found.map(|row| number(row, "value")), Some(value), "{case}: {name}");
            }
        }
        let (job, pipeline) = with_gold_beyond(format, 2, 300, "holdout");
        let error = job.fails(&(pipeline + "\nframe.classes = [5, 6]"), 3);
        assert_says(&error, &["gold has classes that are not listed", "`300`"]);
    }
}

/// An id of -1 was published as 0.
#[test]
fn negative_gold_beside_annotations_above_all_signed_integers_is_refused() {
    let job = Job::new();
    let rows = vec![
        ("instance_id", Arc::new(UInt64Array::from(vec![1, u64::MAX])) as ArrayRef),
        ("annotator_id", Arc::new(StringArray::from(vec!["a", "a"]))),
        ("label", Arc::new(StringArray::from(vec!["x", "y"]))),
    ];
    write_parquet(&job.path("in.parquet"), rows);
    let pipeline = "source = { annotations = '{dir}in.parquet', gold = '{dir}gold.parquet' }
                    model.kind = 'majority_vote'";
    let gold = |role: &str| {
        let rows = vec![
            ("instance_id", Arc::new(Int64Array::from(vec![-1, 1])) as ArrayRef),
            ("class", Arc::new(StringArray::from(vec!["x", "x"]))),
            ("role", Arc::new(StringArray::from(vec![role, role]))),
        ];
        write_parquet(&job.path("gold.parquet"), rows);
    };
    gold("train");
    assert_says(&job.fails(pipeline, 3), &["source.gold", "`-1`", "hold UInt64"]);
    gold("holdout");
    let labels = read_table(&job.run(pipeline), "labels");
    assert_eq!(cells(&labels, &["instance_id", "label"]), ["1 x", "18446744073709551615 y"]);
}

/// Dates of milliseconds came back as timestamps.
#[test]
fn dates_of_milliseconds_come_back_as_dates() {
    let job = Job::new();
    let days: ArrayRef = Arc::new(Int64Array::from(vec![86_400_000, -86_400_000]));
    let dates = cast(&days, &DataType::Date64).unwrap();
    let texts = |values: [&str; 2]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let rows = vec![
        ("instance_id", dates),
        ("annotator_id", texts(["a", "a"])),
        ("label", texts(["x", "y"])),
    ];
    write_parquet(&job.path("in.parquet"), rows);
    let run = job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'");
    let ids = Arc::clone(read_batches(&run, "labels")[0].column_by_name("instance_id").unwrap());
    assert_eq!(ids.data_type(), &DataType::Date32);
    let labels = cells(&read_table(&run, "labels"), &["instance_id", "label"]);
    assert_eq!(labels, ["1969-12-31 y", "1970-01-02 x"]);
}
