//! Input that would take too much memory is refused, and the error says how much it would take.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow::datatypes::Int32Type;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;

use crate::job::{Job, assert_says, fit, rows_read, vote};
use crate::network_job::{list, write_features};
use crate::support::{forget_sizes, read_table, write_numbers, write_parquet};

#[test]
fn a_bomb_behind_a_decompressor_is_an_error() {
    let job = Job::new();
    job.write("in.csv", "");
    let mut gzip = std::process::Command::new("gzip")
        .args(["-1", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::fs::File::create(job.path("bomb.csv.gz")).unwrap())
        .spawn()
        .unwrap();
    let mut input = gzip.stdin.take().unwrap();
    input.write_all(b"instance_id,annotator_id,label\ni,a,\"").unwrap();
    for _ in 0..80 {
        input.write_all(&vec![b'x'; 1 << 20]).unwrap();
    }
    drop(input);
    gzip.wait().unwrap();
    let error = job.fails(&vote("bomb.csv.gz", ""), 3);
    assert_says(&error, &["a record is longer than any annotation", "bomb.csv.gz"]);
}

/// Held as a tree of values, a line once took eighty times its text, and this one of 30 MB more than 2 GB.
#[cfg(target_os = "linux")]
#[test]
fn a_line_of_many_small_objects_takes_no_more_than_its_text() {
    let job = Job::new();
    let objects = "{\"a\":1},".repeat(3_700_000);
    let line = "{\"instance_id\":\"i\",\"annotator_id\":\"a\",\"label\":\"x\",\"more\":[";
    job.write("in.ndjson", &format!("{line}{}]}}\n", objects.trim_end_matches(',')));
    let aggregate = format!(
        "ulimit -v {}; exec {} aggregate -q --annotations {} --model majority_vote --output {}",
        2 << 20,
        env!("CARGO_BIN_EXE_labelmill"),
        job.url("in.ndjson"),
        job.url("out"),
    );
    let done = std::process::Command::new("sh").args(["-c", &aggregate]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_column_of_ids_is_no_column_of_labels() {
    let job = Job::new();
    let n = 40_000;
    let column = |prefix: &str| {
        Arc::new(StringArray::from_iter_values((0..n).map(|i| format!("{prefix}{i}")))) as ArrayRef
    };
    let columns =
        vec![("instance_id", column("i")), ("annotator_id", column("a")), ("label", column("l"))];
    write_parquet(&job.path("in.parquet"), columns);
    let error = job.fails(&vote("in.parquet", ""), 3);
    assert_says(
        &error,
        &["40000 distinct labels in `label`: is this a label column?", "source.columns.label"],
    );
    // If the classes are listed, rows with other labels are rejected.
    let run = job.run(&vote("in.parquet", "frame.classes = ['l1', 'l2']"));
    assert_eq!(rows_read(&run), "40000 2");
}

// keys: engine.memory_limit
#[test]
fn what_does_not_fit_into_the_memory_limit_is_refused_and_says_what_it_takes() {
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> = (0..300_000).map(|n| (n, n % 1000, n % 2)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    // The rows go to scratch files; their ids do not.
    let error = job.fails(&vote("in.parquet", "engine.memory_limit = '4MiB'"), 2);
    assert_says(
        &error,
        &[
            "does not fit into the memory",
            "the ids and numbers of the first",
            "engine.memory_limit",
        ],
    );
    // A text file does not state its number of rows, so the job refuses it while it reads.
    let mut text = String::from("instance_id,annotator_id,label\n");
    for n in 0..300_000 {
        let _ = writeln!(text, "an instance with a rather long name {n},a{},x", n % 10);
    }
    job.write("in.csv", &text);
    let error = job.fails(&vote("in.csv", "engine.memory_limit = '24MiB'"), 2);
    assert_says(
        &error,
        &[
            "does not fit into the memory",
            "the ids and numbers of the first",
            ", and the batches of rows in flight (",
            "24 MiB may be taken",
        ],
    );
    // Few rows, but many pairs of annotator and label, each with a number for each class.
    let rows: Vec<(u32, u32, u32)> = (0..20_000).map(|n| (n, n % 10, n % 2000)).collect();
    write_numbers(&job.path("wide.parquet"), &rows);
    let limit = "engine.memory_limit = '64MiB'\nsink.tables = ['labels', 'run']";
    let limited = vote("wide.parquet", limit);
    let error = job.fails(&fit("dawid_skene", "wide.parquet", limit), 2);
    let what = "the fit of 20000 instances and 2000 classes and confusion matrices (92 MiB)";
    // A common matrix, the likelihood and the expected counts of 2000 pairs; and tables of counts.
    assert_says(&error, &[&format!("{what} and working memory (153 MiB) take 2")]);
    // A fit that starts again holds the best one beside it.
    let again = format!("{limit}\nmodel.restarts = 1");
    let error = job.ends(&fit("dawid_skene", "wide.parquet", &again), &[], 2);
    assert_says(&error, &[&format!("{what} and working memory (397 MiB)")]);
    // A vote holds the classes that were chosen, unless it is calibrated: then there are a second vote, and the rows of
    // 4000 instances with held-out annotations.
    assert_eq!(rows_read(&job.run(&limited)), "20000 20000");
    let calibrated = format!("{limited}\ncalibration.method = 'temperature'");
    let error = job.ends(&calibrated, &[], 2);
    let posteriors = "posteriors of 20000 instances and 2000 classes (306 MiB)";
    assert_says(&error, &[&format!("{posteriors} and working memory (2")]);
    // The searches of GLAD take more than its posteriors, and more than a fit by Dawid-Skene.
    let limit = "engine.memory_limit = '48MiB'\nsink.tables = ['labels', 'run']";
    assert_eq!(rows_read(&job.run(&fit("dawid_skene", "in.parquet", limit))), "300000 300000");
    let error = job.ends(&fit("glad", "in.parquet", limit), &[], 2);
    assert_says(
        &error,
        &["posteriors of 300000 instances and 2 classes (", "working memory (53 MiB)"],
    );
    assert_eq!(
        rows_read(&job.run(&vote("in.parquet", "engine.memory_limit = '256MiB'"))),
        "300000 300000"
    );
}

// keys: engine.memory_limit
#[test]
fn the_error_of_features_that_do_not_fit_tells_them_from_the_batches_in_flight() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\n0,a,x\n0,b,x\n1,a,y\n1,b,y\n");
    let values: Vec<f32> = (0..3000 * 400).map(|n| (n % 7) as f32).collect();
    write_features(&job.path("features.parquet"), list(&values, 400));
    // Two threads read more than the first thousand rows of 1600 bytes at once.
    let features = "source.features = '{dir}features.parquet'
                    engine = { memory_limit = '6MiB', threads = 2 }\n";
    let error = job.fails(&fit("gem", "in.csv", features), 2);
    let parts = ["the features of ", " ids (", ") and the batches of rows in flight (", ") take "];
    assert_says(&error, &parts);
}

// keys: engine.memory_limit
#[test]
fn a_job_of_a_few_rows_runs_with_the_least_memory_limit() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,y\ni,c,x\nj,a,y\n");
    job.write("gold.csv", "instance_id,class\nj,y\n");
    let least = "source.annotations = '{dir}in.csv'\nengine.memory_limit = '4KiB'\n";
    for more in
        ["model.kind = 'dawid_skene'", "model.kind = 'dawid_skene'\nsource.gold = '{dir}gold.csv'"]
    {
        assert_eq!(rows_read(&job.run(&format!("{least}{more}"))), "4 4");
    }
}

#[test]
fn a_batch_of_an_arrow_file_that_does_not_fit_is_refused_before_it_is_read() {
    let job = Job::new();
    let texts = |n: usize| -> ArrayRef {
        Arc::new((0..n).map(|i| Some(format!("{i:0>100}"))).collect::<StringArray>())
    };
    let columns = ["instance_id", "annotator_id", "label"].map(|name| (name, texts(120_000)));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for compression in [None, Some(CompressionType::ZSTD)] {
        let file = File::create(job.path("in.arrow")).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut writer = FileWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let error = job.fails(&vote("in.arrow", "engine.memory_limit = '32MiB'"), 2);
        assert_says(&error, &["the rows of one batch of the file take 3", "32 MiB may be taken"]);
    }
}

#[test]
fn a_large_text_that_repeats_takes_its_own_size() {
    let job = Job::new();
    let number = |most: usize| -> ArrayRef {
        Arc::new((0..2000).map(|n| (n % most) as i64).collect::<Int64Array>())
    };
    // Dictionary-encoded in the file, which holds each value once, and read as plain text of 400 MB, in one batch if
    // nothing limits it.
    let large = "z".repeat(400_000);
    let labels: DictionaryArray<Int32Type> =
        (0..2000).map(|n| if n % 2 == 0 { "small" } else { &large }).collect();
    let columns = [
        ("instance_id", number(2000)),
        ("annotator_id", number(10)),
        ("label", Arc::new(labels) as ArrayRef),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for tells_sizes in [true, false] {
        let file = File::create(job.path("in.parquet")).unwrap();
        let plain = ArrowWriterOptions::new().with_skip_arrow_metadata(true);
        let mut writer = ArrowWriter::try_new_with_options(file, batch.schema(), plain).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        if !tells_sizes {
            forget_sizes(&job.path("in.parquet"));
        }
        for batch_size in [50, 8192] {
            let engine =
                format!("engine = {{ memory_limit = '64MiB', batch_size = {batch_size} }}");
            let run = job.run(&vote("in.parquet", &engine));
            assert_eq!(rows_read(&run), "2000 2000");
        }
    }
}

/// A CSV file of `n` questions with one annotation each.
fn questions(n: usize) -> String {
    let mut text = String::from("instance_id,annotator_id,label,question\n");
    (0..n).for_each(|q| writeln!(text, "i{q},a,x,q{q}").unwrap());
    text
}

#[test]
fn a_column_of_ids_is_no_column_of_questions() {
    let job = Job::new();
    job.write("in.csv", &questions(40_000));
    let error = job.fails(&vote("in.csv", "engine.memory_limit = '128MiB'"), 3);
    assert_says(&error, &["distinct questions in `question`: is this a question column?"]);
    // Hundreds of questions take little memory.
    job.write("in.csv", &questions(300));
    job.run(&vote("in.csv", "engine.memory_limit = '16MiB'"));
}

#[test]
fn what_does_not_fit_names_the_annotations_of_all_questions() {
    let job = Job::new();
    let mut text = String::from("instance_id,annotator_id,label,question\n");
    for row in 0..1_000_000 {
        writeln!(text, "i{},a{},x,q{}", row % 7, row % 5, row % 3).unwrap();
    }
    job.write("in.csv", &text);
    // The rows fit while they are read, however many batches are in flight and whichever column has just doubled its
    // capacity (35 MiB at most); the views of the annotations do not fit (42 MiB). More threads have more batches in
    // flight.
    let limit = "engine = { memory_limit = '38MiB', batch_size = 8192, threads = 2 }";
    let error = job.fails(&vote("in.csv", limit), 2);
    assert_says(&error, &["1000000 annotations and their ids take"]);
}

#[test]
fn the_results_of_all_questions_are_in_memory_together() {
    let job = Job::new();
    // The result of a question takes 18 MiB: a matrix of 500 classes, and the likelihood and the expected counts of 2000
    // pairs of annotator and label. Its fit takes 24 MiB more.
    let questions = |n: u32| {
        let column = |f: fn(u32) -> u32| -> ArrayRef {
            Arc::new(UInt32Array::from_iter_values((0..n * 2_000).map(f)))
        };
        let columns = vec![
            ("instance_id", column(|row| row % 2_000)),
            ("annotator_id", column(|row| row % 7)),
            ("label", column(|row| row % 500)),
            ("question", column(|row| row / 2_000)),
        ];
        write_parquet(&job.path("in.parquet"), columns);
    };
    let limit = "engine.memory_limit = '48MiB'\nsink.tables = ['labels', 'run']";
    let limited = fit("one_coin", "in.parquet", limit);
    questions(4);
    let error = job.fails(&limited, 2);
    let what = "the fit of 2000 instances and 500 classes and confusion matrices (18 MiB)";
    let others = "), and the results of another question, take ";
    assert_says(&error, &[what, " and working memory (24 MiB", others, "48 MiB may be taken"]);
    let limited = limited.replace("48MiB", "72MiB");
    questions(2);
    assert_eq!(rows_read(&job.run(&limited)), "4000 4000");
    // There is nothing to tell the only question from.
    questions(1);
    let error = job.ends(&limited.replace("72MiB", "24MiB"), &[], 2);
    assert_says(&error, &[what, " take ", "a limit of at least "]);
    assert!(!error.contains("question `"), "{error}");
}

/// The counts of annotators with a single annotation are allocated after the last iteration alone.
// keys: engine.memory_limit
#[test]
fn expected_counts_that_do_not_fit_are_refused_before_the_fit() {
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> = (0..40_000).map(|n| (n / 2, n, n % 500)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    let limit = "engine.memory_limit = '128MiB'\nsink.tables = ['labels', 'run']";
    let error = job.fails(&fit("dawid_skene", "in.parquet", limit), 2);
    let what = "the fit of 20000 instances and 500 classes and confusion matrices (310 MiB)";
    assert_says(&error, &["does not fit into the memory", what, "128 MiB may be taken"]);
}

/// A million rows take 44 MiB while their views are built, and 12 in scratch files.
// keys: engine.memory_limit, engine.scratch
#[test]
fn annotations_that_do_not_fit_go_to_scratch_files_and_give_the_same_tables() {
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> =
        (0..1_000_000).map(|n| (n % 10_000, n / 10_000, (n ^ (n >> 7)) % 3)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    for kind in ["majority_vote", "dawid_skene"] {
        let run = |limit: &str| {
            let limit =
                format!("engine = {{ memory_limit = '{limit}', scratch = '{{dir}}scratch' }}");
            let run = job.run(&fit(kind, "in.parquet", &limit));
            ["labels", "posteriors", "annotators"].map(|table| read_table(&run, table))
        };
        assert_eq!(run("36MiB"), run("1GiB"), "{kind}");
    }
    // Nothing is left behind, and a folder that cannot be written is named.
    assert_eq!(std::fs::read_dir(job.path("scratch")).unwrap().count(), 0);
    job.write("file", "");
    let limit = "engine = { memory_limit = '36MiB', scratch = '{dir}file/below' }";
    let error = job.ends(&fit("dawid_skene", "in.parquet", limit), &[], 2);
    assert_says(&error, &["engine.scratch"]);
}
