//! A table of several files holds every row once, also at the borders between files.

use std::collections::BTreeMap;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, UInt32Type};

use crate::job::Job;
use crate::support::{read_batches, write_numbers};

const INSTANCES: u32 = 3_000;
const CLASSES: u32 = 400;

#[test]
fn no_row_is_lost_or_doubled_where_one_file_ends_and_the_next_begins() {
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> = (0..INSTANCES).map(|i| (i, i % 7, i % CLASSES)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    let run = job.run(
        "source.annotations = '{dir}in.parquet'
         model.kind = 'majority_vote'
         sink.tables = ['labels', 'posteriors', 'run']
         sink.compression = 'none'",
    );
    let batches = read_batches(&run, "posteriors");
    let files = std::fs::read_dir(run.join("posteriors")).unwrap().count();
    assert!(files > 1, "the table must be large enough for several files");
    let mut classes: BTreeMap<u32, (Vec<u32>, f64)> = BTreeMap::new();
    for batch in &batches {
        let number = |name: &str| number(batch, name);
        let p = batch.column_by_name("probability").unwrap().as_primitive::<Float64Type>().values();
        for ((i, k), p) in number("instance_id").iter().zip(number("class")).zip(p) {
            let (seen, sum) = classes.entry(*i).or_default();
            seen.push(*k);
            *sum += p;
        }
    }
    assert_eq!(classes.len(), INSTANCES as usize);
    let all: Vec<u32> = (0..CLASSES).collect();
    for (i, (seen, sum)) in classes {
        assert_eq!(seen, all, "instance {i}");
        assert!((sum - 1.0).abs() < 1e-12, "instance {i}: {sum}");
    }
    let labels: usize = read_batches(&run, "labels").iter().map(RecordBatch::num_rows).sum();
    assert_eq!(labels, INSTANCES as usize);
}

fn number<'a>(batch: &'a RecordBatch, name: &str) -> &'a [u32] {
    batch.column_by_name(name).unwrap().as_primitive::<UInt32Type>().values()
}

#[test]
fn annotators_of_few_annotations_among_many_classes_share_files() {
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> = (0..3_072).map(|i| (i / 3, i % 400, i / 3)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    let run = job.run(
        "source.annotations = '{dir}in.parquet'
         model = { kind = 'dawid_skene', stop.max_iter = 2 }
         sink.tables = ['confusion_matrices', 'run']",
    );
    assert_eq!(std::fs::read_dir(run.join("confusion_matrices")).unwrap().count(), 1);
    let rows: usize =
        read_batches(&run, "confusion_matrices").iter().map(RecordBatch::num_rows).sum();
    assert!(rows > 400, "{rows}");
}

#[test]
fn a_matrix_of_many_classes_has_several_files() {
    const N: u32 = 1_100;
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> = (0..N).map(|i| (i, 0, i)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    let run = job.run(
        "source.annotations = '{dir}in.parquet'
         model.kind = 'dawid_skene'
         sink.tables = ['confusion_matrices', 'run']
         sink.compression = 'none'",
    );
    assert_eq!(std::fs::read_dir(run.join("confusion_matrices")).unwrap().count(), 2);
    let mut next = 0;
    for batch in read_batches(&run, "confusion_matrices") {
        for (class, label) in number(&batch, "class").iter().zip(number(&batch, "label")) {
            assert_eq!((*class, *label), (next / N, next % N));
            next += 1;
        }
    }
    assert_eq!(next, N * N);
}
