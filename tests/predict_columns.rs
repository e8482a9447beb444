//! Prediction from columns of features, which are found by the names that the model learned from.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, StringArray};

use crate::job::{Job, assert_says};
use crate::network_job::{WIDTH, features, ids, job, list, pipeline};
use crate::predict::{predicts, refuses};
use crate::support::{read_table, write_parquet};

/// Writes the features as columns of these names.
fn write_columns(job: &Job, file: &str, names: &[&str]) {
    write_parquet(&job.path(file), columns(names));
}

/// The features as columns of these names: `a` is the first number, `b` the second, ..., `f` the first again.
fn columns<'a>(names: &[&'a str]) -> Vec<(&'a str, ArrayRef)> {
    let values = features();
    let column = |name: &str| {
        let k = name.bytes().next().map_or(0, |b| usize::from(b - b'a'));
        let own = values.iter().skip(k % WIDTH).step_by(WIDTH);
        Arc::new(Float64Array::from_iter_values(own.map(|v| f64::from(*v)))) as ArrayRef
    };
    let mut columns = vec![("instance_id", ids(200))];
    columns.extend(names.iter().map(|name| (*name, column(name))));
    columns
}

#[test]
fn columns_are_found_by_their_names() {
    let job = job();
    write_columns(&job, "features.parquet", &["a", "b", "c", "d", "e"]);
    let run = job.run(&pipeline("kind = 'crowd_layer'"));
    let model = run.display().to_string();
    write_columns(&job, "shuffled.parquet", &["d", "f", "b", "a", "e", "c"]);
    predicts(&job, &model, "shuffled.parquet", &[]);
    let expected = read_table(&run, "predictions");
    assert_eq!(read_table(&job.path("predicted/latest"), "predictions"), expected);
    write_columns(&job, "fewer.parquet", &["d", "b", "a", "e", "f"]);
    let stderr = refuses(&job, &model, "fewer.parquet", &[], 3);
    assert_says(&stderr, &["columns that the model learned from are missing", "--features", "c"]);
    let mut others = columns(&["d", "b", "a", "e"]);
    others.push(("c", Arc::new(StringArray::from(vec![""; 200]))));
    write_parquet(&job.path("others.parquet"), others);
    let stderr = refuses(&job, &model, "others.parquet", &[], 3);
    assert_says(
        &stderr,
        &["columns that the model learned from do not hold numbers alone", "found: `c`"],
    );
    assert!(!stderr.contains("are missing"), "{stderr}");
}

#[test]
fn columns_that_the_model_learned_from_come_before_a_list() {
    let job = job();
    let names = ["a", "b", "c", "d", "e"];
    write_columns(&job, "features.parquet", &names);
    let run = job.run(&pipeline("kind = 'crowd_layer'"));
    let (model, expected) = (run.display().to_string(), read_table(&run, "predictions"));
    let mut backwards = features();
    backwards.reverse();
    let mut both = columns(&names);
    both.push(("features", list(&backwards, WIDTH)));
    write_parquet(&job.path("both.parquet"), both);
    let stderr = predicts(&job, &model, "both.parquet", &[]);
    assert!(!stderr.contains("warning"), "{stderr}");
    assert_eq!(read_table(&job.path("predicted/latest"), "predictions"), expected);
    // An option goes before the names.
    let stderr = predicts(&job, &model, "both.parquet", &["--features-column", "features"]);
    assert_says(&stderr, &["learned from columns", "not checked", "in the order of `a`, `b`"]);
    assert_ne!(read_table(&job.path("predicted/latest"), "predictions"), expected);
}

#[test]
fn lists_and_columns_that_cannot_be_compared_by_name_give_a_warning() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'"));
    let (model, expected) = (run.display().to_string(), read_table(&run, "predictions"));
    write_columns(&job, "columns.parquet", &["a", "b", "c", "d", "e"]);
    let stderr = predicts(&job, &model, "columns.parquet", &[]);
    assert_says(&stderr, &["warning: the model learned from lists", "not checked", "`a`, `b`"]);
    assert_eq!(read_table(&job.path("predicted/latest"), "predictions"), expected);
    let stderr = predicts(&job, &model, "features.parquet", &[]);
    assert!(!stderr.contains("warning"), "{stderr}");
}
