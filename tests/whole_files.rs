//! All rows of all files are read, however files are cut, named or ordered; an error names a file that cannot be read.

use std::fmt::Write as _;

use arrow::array::{ArrayRef, StringArray};
use std::sync::Arc;

use crate::job::{Job, assert_says, cells, rows_read, vote, write_as};
use crate::support::{read_table, run_ok, table_files};

/// A CSV text of more than `bytes` bytes, in which quoted comments hold lines that look like annotations.
fn commented(bytes: usize) -> (String, usize) {
    let mut text = String::from("instance_id,annotator_id,label,comment\n");
    let mut rows = 0;
    while text.len() < bytes {
        let _ = writeln!(text, "i{},a{},x,\"fine", rows % 1000, rows % 7);
        for line in 0..20 {
            let _ = writeln!(text, "i{},mallory,y,\"\"injected\"\"", line * 50);
        }
        text.push_str("\"\n");
        rows += 1;
    }
    (text, rows)
}

#[test]
fn line_breaks_in_quotes_make_no_records_on_any_number_of_threads() {
    let job = Job::new();
    let (text, rows) = commented(12 << 20);
    job.write("in.csv", &text);
    for threads in [1, 4] {
        let run = job.run(&vote(
            "in.csv",
            &format!(
                "frame.duplicates = 'keep'\nengine.threads = {threads}\nsink.run_id = 't{threads}'"
            ),
        ));
        assert_eq!(rows_read(&run), format!("{rows} {rows}"), "{threads} threads");
        assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["x"], "{threads} threads");
    }
}

#[test]
fn a_quote_that_is_never_closed_is_an_error() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\nj,a,\"x\nk,a,y\nl,a,y\n");
    let error = job.fails(&vote("in.csv", ""), 3);
    assert_says(&error, &["a quote is never closed", "after 1 others", "in.csv"]);
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,\"x\ny\"\nj,a,\"x\"\"\"");
    let labels = read_table(&job.run(&vote("in.csv", "")), "labels");
    assert_eq!(cells(&labels, &["label"]), ["x\ny", "x\""]);
}

#[test]
fn columns_of_csv_files_are_found_by_their_names() {
    let job = Job::new();
    job.write("in/a.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,x\n");
    job.write(
        "in/b.csv",
        "label,note,instance_id,annotator_id\ny,n,j,a\n"
            .replace("note,", "")
            .replace("n,", "")
            .as_str(),
    );
    let run = job.run(&vote("in/", ""));
    assert_eq!(cells(&read_table(&run, "labels"), &["instance_id", "label"]), ["i x", "j y"]);
    assert_eq!(cells(&read_table(&run, "annotators"), &["annotator_id"]), ["a", "b"]);
}

#[test]
fn a_csv_file_with_other_columns_is_named() {
    let job = Job::new();
    job.write("in/a.csv", "instance_id,annotator_id,label\ni,a,x\n");
    job.write("in/b.csv", "instance_id,annotator,label,note\ni,b,x,n\n");
    let error = job.fails(&vote("in/", ""), 3);
    assert_says(
        &error,
        &[
            "different columns",
            "in/b.csv",
            "it lacks `annotator_id`; it alone has `annotator`, `note`",
            "in/a.csv",
        ],
    );
    job.write("in/b.csv", "instance_id,label,annotator_id,label\ni,x,a,x\n");
    assert_says(&job.fails(&vote("in/", ""), 3), &["names a column twice", "`label`", "in/b.csv"]);
}

#[test]
fn every_file_of_a_folder_is_read_or_named() {
    let gz = |text: &str| {
        let job = Job::new();
        job.write("plain", text);
        std::process::Command::new("gzip").arg("-c").arg(job.path("plain")).output().unwrap().stdout
    };
    let job = Job::new();
    job.write("in/a.csv", "instance_id,annotator_id,label\ni,a,x\n");
    std::fs::write(job.path("in/b.csv.gz"), gz("instance_id,annotator_id,label\ni,b,x\n")).unwrap();
    job.write("in/c.tsv", "label\tinstance_id\tannotator_id\nx\ti\tc\n");
    assert_eq!(rows_read(&job.run(&vote("in/", ""))), "3 3");
    let job = Job::new();
    let line =
        |a: &str| format!("{{\"instance_id\":\"i\",\"annotator_id\":\"{a}\",\"label\":\"x\"}}\n");
    for (name, annotator) in [("json", "a"), ("ndjson", "b"), ("jsonl", "c")] {
        job.write(&format!("in/x.{name}"), &line(annotator));
    }
    assert_eq!(rows_read(&job.run(&vote("in/", ""))), "3 3");
    let job = Job::new();
    job.write("in/a.csv", "instance_id,annotator_id,label\ni,a,x\n");
    job.write("in/b.xlsx", "no rows that anyone here can read");
    job.write("in/part-0001", "i,b,x\n");
    let error = job.fails(&vote("in/", ""), 3);
    assert_says(&error, &["cannot be read as rows", "`b.xlsx`, `part-0001`", "by a pattern"]);
    assert_eq!(rows_read(&job.run(&vote("in/*.csv", ""))), "1 1");
}

#[test]
fn a_quote_within_a_name_of_a_header_opens_nothing() {
    let job = Job::new();
    let rows = "i1,a1,yes,x\ni2,a1,yes,x\ni3,a1,no,6\"\ni4,a1,no,x\ni4,a2,no,x\n";
    for name in ["size 5\"", "\"si\"\"ze\"", "\"si\nze\""] {
        job.write("in.csv", &format!("instance_id,annotator_id,label,{name}\n{rows}"));
        assert_eq!(rows_read(&job.run(&vote("in.csv", ""))), "5 5", "{name}");
    }
}

#[test]
fn arrow_files_with_their_columns_in_another_order_are_read_by_name() {
    let batch = |names: [&str; 3], values: [&str; 3]| {
        let column = |v: &str| Arc::new(StringArray::from(vec![v])) as ArrayRef;
        arrow::array::RecordBatch::try_from_iter(names.into_iter().zip(values.map(column))).unwrap()
    };
    let job = Job::new();
    write_as(
        &job.path("in/a.arrow"),
        &batch(["instance_id", "annotator_id", "label"], ["i", "a", "x"]),
    );
    write_as(
        &job.path("in/b.arrow"),
        &batch(["label", "instance_id", "annotator_id"], ["y", "j", "b"]),
    );
    let run = job.run(&vote("in", ""));
    assert_eq!(cells(&read_table(&run, "labels"), &["instance_id", "label"]), ["i x", "j y"]);
}

#[test]
fn a_query_that_changed_in_its_file_is_another_job() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,y\n");
    let pipeline = vote("in.csv", "source.sql.annotations = '{dir}q.sql'");
    job.write("q.sql", "select * from annotations where label = 'x'");
    let first = job.run(&pipeline);
    job.write("q.sql", "select * from annotations where label = 'y'");
    let second = job.run(&pipeline);
    assert_ne!(first, second);
    assert_eq!(cells(&read_table(&second, "labels"), &["label"]), ["y"]);
    assert_eq!(table_files(&first).len(), table_files(&second).len());
}

#[test]
fn paths_that_go_up_and_names_with_the_characters_of_patterns_are_read() {
    let job = Job::new();
    let rows = "instance_id,annotator_id,label\ni,a,x\n";
    for name in ["in[1].csv", "in*.csv", "what?.csv", "in1.csv"] {
        job.write(name, rows);
    }
    job.write("odd [folder]/in.csv", rows);
    let urls = ["in[1].csv", "in*.csv", "what?.csv", "odd [folder]", "sub/../in1.csv"];
    for (n, url) in urls.into_iter().enumerate() {
        let more = format!("sink.run_id = 'r{n}'");
        assert_eq!(rows_read(&job.run(&vote(url, &more))), "1 1", "{url}");
    }
    assert_eq!(rows_read(&job.run(&vote("i?[0-9]*.csv", "sink.run_id = 'p'"))), "1 1");
}

#[test]
fn a_sink_inside_a_source_folder_is_refused_by_check_and_run() {
    let job = Job::new();
    job.write("in/a.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let pipeline = vote("in", "sink.url = '{dir}in/out'");
    let file = job.write("p.toml", &pipeline);
    for verb in ["check", "run"] {
        let error = crate::support::run_fails(&[verb, &file], 2);
        assert_says(
            &error,
            &["the sink is inside a folder that is read", "sink.url", "source.annotations"],
        );
    }
    assert!(!job.path("in/out").exists());
    let file = job.write("p.toml", &vote("in/*.csv", "sink.url = '{dir}in/out'"));
    run_ok(&["run", &file]);
    run_ok(&["run", &file]);
}

/// The sources of a pipeline over the job's folder `in`.
fn listed(job: &Job, runtime: &tokio::runtime::Runtime) -> labelmill::source::Source {
    let spec = labelmill::source::SourceSpec {
        annotations: Some(labelmill::source::Location::Url(job.url("in"))),
        ..Default::default()
    };
    runtime
        .block_on(labelmill::source::Source::list(
            &spec,
            &Default::default(),
            &labelmill::sink::RunTables,
            &mut labelmill::job_context::JobContext::new(0),
        ))
        .unwrap()
}

#[test]
fn a_file_that_comes_after_the_listing_is_not_read_and_one_that_changes_is_an_error() {
    for extension in ["csv", "parquet", "ndjson", "arrow"] {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let column = |v: &str| Arc::new(StringArray::from(vec![v, "other"])) as ArrayRef;
        let batch = |v: &str| {
            let columns = ["instance_id", "annotator_id", "label"].map(|name| (name, column(v)));
            arrow::array::RecordBatch::try_from_iter(columns).unwrap()
        };
        let job = Job::new();
        write_as(&job.path(&format!("in/a.{extension}")), &batch("a"));
        let source = listed(&job, &runtime);
        write_as(&job.path(&format!("in/late.{extension}")), &batch("late"));
        let ctx = labelmill::engine::EngineSpec::default().session().unwrap();
        let count = |ctx: &datafusion::prelude::SessionContext| {
            runtime.block_on(async {
                let frame = ctx.table("annotations").await?;
                Ok::<_, labelmill::error::Error>(frame.count().await?)
            })
        };
        runtime.block_on(source.open(&ctx, labelmill::source::InferenceScope::Whole)).unwrap();
        assert_eq!(count(&ctx).unwrap(), 2, "{extension}");
        // The file changes between planning and reading.
        let path = job.path(&format!("in/a.{extension}"));
        std::fs::remove_file(&path).unwrap();
        write_as(&path, &batch("another"));
        let read = runtime.block_on(async {
            let frame = ctx.table("annotations").await?;
            Ok::<_, labelmill::error::Error>(frame.collect().await?)
        });
        let error = read.err().unwrap_or_else(|| panic!("{extension} was read"));
        assert_eq!(error.exit_code(), 5, "{error}");
        assert_says(
            &error.to_string(),
            &["an input changed after it was listed", "was written again"],
        );
        // The file has changed between listing and planning.
        let ctx = labelmill::engine::EngineSpec::default().session().unwrap();
        let error = runtime
            .block_on(source.open(&ctx, labelmill::source::InferenceScope::Whole))
            .unwrap_err();
        assert_eq!(error.exit_code(), 5, "{error}");
        std::fs::remove_file(&path).unwrap();
        let error = runtime
            .block_on(source.open(&ctx, labelmill::source::InferenceScope::Whole))
            .unwrap_err();
        assert_says(&error.to_string(), &["was removed"]);
    }
}
