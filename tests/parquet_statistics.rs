//! Results do not depend on what the metadata of a Parquet file claims about its values.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Float64Type;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;

use crate::job::{Job, assert_says, cells, rows_read};
use crate::support::{read_table, restate, run_ok, stdout, write_parquet};

const NAN: f64 = f64::NAN;
const VOTE: &str = "source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'\n";

fn text(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn floats(values: &[Option<f64>]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

/// Six instances with one annotation each: one annotator id, label and weight per instance.
fn crowd(path: &Path, annotators: ArrayRef, labels: ArrayRef, weights: ArrayRef) {
    let instances = ["i0", "i1", "i2", "i3", "i4", "i5"].map(Some);
    write_parquet(
        path,
        vec![
            ("instance_id", text(&instances)),
            ("annotator_id", annotators),
            ("label", labels),
            ("weight", weights),
        ],
    );
}

/// Removes the null counts, which are optional, from the column statistics.
fn forget_nulls(path: &Path) {
    restate(path, |column| {
        let statistics = match column.statistics() {
            Some(Statistics::Double(all)) => {
                let (least, most) = (all.min_opt().copied(), all.max_opt().copied());
                Statistics::double(least, most, None, None, false)
            }
            Some(Statistics::ByteArray(all)) => {
                let (least, most) = (all.min_opt().cloned(), all.max_opt().cloned());
                Statistics::byte_array(least, most, None, None, false)
            }
            _ => return column.clone(),
        };
        column.clone().into_builder().set_statistics(statistics).build().unwrap()
    });
}

/// The result of a query over the file as the table `t`: one JSON object per line.
fn asked(job: &Job, query: &str) -> String {
    let table = format!("t={}", job.path("in.parquet").display());
    stdout(&run_ok(&["sql", "--json", "--table", &table, "-c", query]))
}

fn rejected(run: &Path) -> Vec<String> {
    cells(&read_table(run, "rejects"), &["reason", "count"])
}

#[test]
fn nan_among_equal_numbers_stays_nan() {
    let same = |text: &'static str| self::text(&[Some(text); 6]);
    let weights = [1.0, NAN, 1.0, NAN, 1.0, 1.0].map(Some);
    let job = Job::new();
    crowd(&job.path("in.parquet"), same("a"), same("x"), floats(&weights));
    let run = job.run(VOTE);
    assert_eq!(rows_read(&run), "6 4");
    assert_eq!(rejected(&run), ["bad_weight 2"]);

    let job = Job::new();
    crowd(&job.path("in.parquet"), floats(&weights), same("x"), floats(&[Some(1.0); 6]));
    let run = job.run(VOTE);
    assert_eq!(rows_read(&run), "6 4");
    assert_eq!(rejected(&run), ["null_annotator 2"]);
}

#[test]
fn nan_among_equal_features_is_refused() {
    let job = Job::new();
    let rows = (0..40).map(|n| format!("i{n},a{},{}", n % 3, if n % 2 == 0 { "x" } else { "y" }));
    let rows: Vec<String> = rows.collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{}\n", rows.join("\n")));
    let ids: Vec<String> = (0..40).map(|n| format!("i{n}")).collect();
    let pipeline = "source.annotations = '{dir}in.csv'\nsource.features = '{dir}f.parquet'\n\
                    model.kind = 'dl'\nmodel.train.epochs = 1\n";
    let columns = |second: ArrayRef| {
        let ids = Arc::new(StringArray::from(ids.clone())) as ArrayRef;
        vec![("instance_id", ids), ("features", second)]
    };
    let numbers: Vec<Option<f64>> = (0..40).map(|n| Some(if n == 7 { NAN } else { 5.0 })).collect();
    write_parquet(&job.path("f.parquet"), columns(floats(&numbers)));
    assert_says(&job.fails(pipeline, 3), &["NaN", "`i7`"]);
    let lists = numbers.into_iter().map(|number| Some(vec![number]));
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>(lists);
    write_parquet(&job.path("f.parquet"), columns(Arc::new(lists)));
    assert_says(&job.fails(pipeline, 3), &["NaN", "`i7`"]);
}

#[test]
fn a_null_that_nobody_counted_stays_null() {
    let job = Job::new();
    let labels = [Some("x"), None, Some("x"), None, Some("x"), Some("x")];
    let weights = [Some(1.0), Some(1.0), None, Some(1.0), Some(1.0), Some(1.0)];
    crowd(&job.path("in.parquet"), text(&[Some("a"); 6]), text(&labels), floats(&weights));
    forget_nulls(&job.path("in.parquet"));
    let run = job.run(VOTE);
    assert_eq!(rejected(&run), ["null_label 2", "bad_weight 1"]);
    let null = asked(&job, "select instance_id from t where label is null order by 1");
    assert_eq!(null, "{\"instance_id\":\"i1\"}\n{\"instance_id\":\"i3\"}\n");
    assert_eq!(asked(&job, "select count(label) as n from t"), "{\"n\":4}\n");
}

#[test]
fn queries_see_values_and_not_their_bounds() {
    let job = Job::new();
    let weights = [1.0, NAN, 1.0, 1.0, 1.0, 1.0].map(Some);
    let a = text(&[Some("a"); 6]);
    crowd(&job.path("in.parquet"), Arc::clone(&a), a, floats(&weights));
    // DataFusion orders NaN after every other number.
    for (query, answer) in [
        ("select instance_id as i from t where weight > 2", "i1"),
        ("select instance_id as i from t where weight > 2 or label = 'b'", "i1"),
        ("select instance_id as i from t order by weight desc limit 1", "i1"),
        ("select instance_id as i from t where weight = (select max(weight) from t)", "i1"),
        (
            "select s.instance_id as i from t join t as s on t.weight = s.weight where t.weight > 2",
            "i1",
        ),
        ("select cast(count(*) as varchar) as i from t where weight = 1", "5"),
        ("select cast(isnan(max(weight)) as varchar) as i from t", "true"),
        ("select cast(count(*) as varchar) as i from t", "6"),
    ] {
        assert_eq!(asked(&job, query), format!("{{\"i\":\"{answer}\"}}\n"), "{query}");
    }
}

#[test]
fn an_order_that_a_file_claims_is_not_believed() {
    let job = Job::new();
    let values = text(&["c", "a", "d", "b"].map(Some));
    let batch = RecordBatch::try_from_iter([("v", values)]).unwrap();
    let sorted = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
    let claim = WriterProperties::builder().set_sorting_columns(Some(vec![sorted])).build();
    let file = std::fs::File::create(job.path("in.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(claim)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let ordered = asked(&job, "select v from t order by v");
    assert_eq!(ordered, "{\"v\":\"a\"}\n{\"v\":\"b\"}\n{\"v\":\"c\"}\n{\"v\":\"d\"}\n");
    let first = "select v from (select v, row_number() over (order by v) as n from t) where n = 1";
    assert_eq!(asked(&job, first), "{\"v\":\"a\"}\n");
}
