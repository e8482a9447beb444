//! `labelmill sql --write` uses the store of the URL in a statement; the error for a missing bucket names it.

use crate::job::{Job, assert_says};
use crate::s3_job::server;
use crate::support::{run_fails, stderr, stdout};

#[test]
fn statements_reach_the_store_that_they_name() {
    let server = server();
    let copy = "copy (select 7 as n) to 's3://crowd/made/x.parquet'";
    let external = "create external table e stored as parquet location 's3://crowd/made/x.parquet'";
    let done = server.run_ok(&[
        "sql",
        "--write",
        "--json",
        "-c",
        &format!("{copy}; {external}; select n from e"),
    ]);
    assert!(stdout(&done).ends_with("{\"n\":7}\n"), "{}", stdout(&done));
    assert!(server.bucket().join("made/x.parquet").exists());
}

#[test]
fn a_location_that_cannot_be_reached_is_an_error_before_anything_is_sent() {
    let sql = |location: &str| {
        let query = format!("copy (select 1) to '{location}' stored as csv");
        run_fails(&["sql", "--write", "-c", &query], 2)
    };
    assert_says(&sql("ftp://host/x.csv"), &["cannot open the store", "help:"]);
    let second = "select 1; copy (select 1) to 'ftp://host/x.csv' stored as csv";
    let error = run_fails(&["sql", "--write", "-c", second], 2);
    assert_says(&error, &["cannot open the store", "where: ftp://host/x.csv\n"]);
    let message = sql("s3://AKIA0:hunter2@bucket/x.csv");
    assert!(message.contains("is refused") && !message.contains("hunter2"), "{message}");
    let message = sql("https://host/x.csv?sig=hunter2");
    assert!(message.contains("is refused") && !message.contains("hunter2"), "{message}");
}

/// DataFusion reports the failure as a defect of its own.
#[test]
fn a_text_file_that_cannot_be_written_is_no_defect() {
    let job = Job::new();
    let file = job.write("file", "x");
    for name in ["w.csv", "w.json"] {
        let query = format!("copy (select 1 as a) to '{file}/{name}'");
        let error = run_fails(&["sql", "--write", "-c", &query], 5);
        assert_says(&error, &["a file cannot be written to the end", "help: check the path"]);
    }
}

#[test]
fn a_bucket_that_does_not_exist_is_named() {
    let server = server();
    let job = Job::new();
    let crowd = job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let local = job.url("out");
    for (from, to) in [
        ("s3://nowhere/in", local.as_str()),
        ("s3://nowhere/in/", &local),
        ("s3://nowhere/in/*.parquet", &local),
        ("s3://nowhere/in/x.parquet", &local),
        (&crowd, "s3://nowhere/out"),
    ] {
        let args = ["aggregate", "--model", "majority_vote", "--annotations", from, "--output", to];
        let output = server.run(&args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{from} {to}\n{message}");
        assert_says(&message, &["the bucket `nowhere` does not exist", "help: check its name"]);
        assert!(!message.contains("<?xml"), "{message}");
    }
}
