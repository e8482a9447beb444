//! Stores that lack a feature, inputs that are missing, and files that vanish: each ends at once, with a fitting code.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::job::{Job, VOTE_KIND, assert_says, cells, rows_read, vote};
use crate::s3_job::{job, latest, leases, run_folder, run_id, server, summary};
use crate::s3_server::{Fault, KEY_ID, SECRET};
use crate::support::{labelmill, read_table, run, run_ok, stderr, stdout, write_crowd};
use crate::web_server::WebServer;

const ROWS: &str = "instance_id,annotator_id,label\ni1,a1,yes\ni1,a2,yes\ni2,a1,no\n";

#[test]
fn a_store_that_creates_nothing_on_condition_is_refused_at_once() {
    // MinIO of September 2024 answers 404.
    for fault in [Fault::NotImplemented, Fault::NoSuchKey] {
        let server = server();
        server.fault(fault, "PutObject /out/_leases/", 0, 1_000);
        let began = Instant::now();
        let output = server.run(&job(&[]));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        let what = "cannot create an object only where there is none";
        assert_says(&message, &[what, "sink.url", "If-None-Match", "use another store"]);
        assert_eq!((server.count("PutObject"), server.count("GetObject /in/")), (1, 0));
        assert!(began.elapsed() < Duration::from_secs(30), "{fault:?} was retried");
    }
}

#[test]
fn a_request_that_the_store_does_not_know_is_final_while_an_input_is_looked_for() {
    let server = server();
    server.fault(Fault::NotImplemented, "GetObject /in/", 0, 1_000);
    let output = server.run(&job(&[]));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_says(&stderr(&output), &["does not know a request", "501", "source.annotations"]);
    assert_eq!(server.count("GetObject /in/"), 1);
}

#[test]
fn objects_are_deleted_one_by_one_where_the_store_does_not_delete_many() {
    let server = server();
    server.fault(Fault::NotImplemented, "DeleteObjects", 0, 1_000);
    summary(&server, &[]);
    assert_eq!(leases(&server), Vec::<PathBuf>::new());
    assert_eq!(server.count("DeleteObjects"), 1, "it is asked once");
    assert!(server.count("DeleteObject /") >= 2);
}

#[test]
fn the_newer_variable_for_the_endpoint_is_read_and_the_pipeline_comes_first() {
    let server = server();
    let run = |variables: &[(&str, String)], more: &[&str]| {
        let mut command = labelmill();
        command.args(job(more)).env_remove("AWS_ENDPOINT_URL").envs(variables.to_vec());
        let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)];
        let output = command.envs(keys).env("AWS_REGION", "us-east-1").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    };
    let (nowhere, here) = ("http://127.0.0.1:9".to_owned(), server.endpoint());
    run(&[("AWS_ENDPOINT_URL_S3", here.clone())], &[]);
    run(&[("AWS_ENDPOINT_URL_S3", here.clone()), ("AWS_ENDPOINT_URL", nowhere.clone())], &[]);
    let set = format!("store.endpoint={here}");
    run(&[("AWS_ENDPOINT_URL_S3", nowhere)], &["--set", &set]);
}

#[test]
fn absent_credentials_are_named_and_not_the_request_for_them() {
    let server = server();
    let mut command = server.labelmill(&job(&["--set", "store.max_retries=0"]));
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("AWS_PROFILE", "work").env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
    let output = command.output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    let parts =
        ["no credentials: AWS_ACCESS_KEY_ID", "profiles (AWS_PROFILE, ~/.aws) are not read"];
    assert_says(&message, &parts);
    assert_says(&message, &["no instance role", "source.annotations", "(work)", "help: set AWS_"]);
    assert!(!message.contains("latest/api/token"), "{message}");
}

#[test]
fn half_of_the_credentials_names_the_other_half() {
    let server = server();
    for missing in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        let mut command = server.labelmill(&job(&["--set", "store.max_retries=0"]));
        let output = command.env_remove(missing).output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        let lack = format!("the credentials lack a half: {missing} is not set");
        assert_says(
            &message,
            &[&lack, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY were looked at"],
        );
    }
}

/// A server of one file that ignores ranges and lists nothing, as `python -m http.server` does.
fn plain_web_server(file: Vec<u8>) -> WebServer {
    WebServer::start(move |head| match head.split(' ').next() {
        Some("GET" | "HEAD") if head.contains("/in.") => {
            ("200 OK\r\nlast-modified: Mon, 01 Jan 2024 00:00:00 GMT".to_owned(), file.clone())
        }
        Some("GET" | "HEAD") => ("404 Not Found".to_owned(), Vec::new()),
        _ => ("501 Unsupported method".to_owned(), Vec::new()),
    })
}

#[test]
fn a_web_server_without_ranges_sends_each_parquet_file_once() {
    let job = Job::new();
    write_crowd(
        &job.path("in.parquet"),
        &[("i1", "a1", "yes"), ("i1", "a2", "yes"), ("i2", "a1", "no")],
    );
    let server = plain_web_server(std::fs::read(job.path("in.parquet")).unwrap());
    let url = format!("http://127.0.0.1:{}/in.parquet", server.port);
    let run = job.run(&format!("source.annotations = '{url}'\n{VOTE_KIND}"));
    let labels = cells(&read_table(&run, "labels"), &["instance_id", "label"]);
    assert_eq!(labels, ["i1 yes", "i2 no"]);
    // The first request is for a part, the second one for the whole, and each further one is for a part.
    let begun = run_ok(&[
        "sql",
        "--table",
        &format!("t={url}"),
        "-c",
        "select count(*) n from t",
        "--json",
    ]);
    assert_eq!(stdout(&begun).trim(), r#"{"n":3}"#);
}

/// Some servers know no HEAD, and links that are signed for GET refuse it.
// keys: source.on_missing
#[test]
fn a_web_server_that_refuses_head_is_asked_by_get() {
    let job = Job::new();
    let pipeline = |server: &WebServer, more: &str| {
        let url = format!("http://127.0.0.1:{}/in.csv", server.port);
        format!("source.annotations = '{url}'\n{VOTE_KIND}store.max_retries = 0\n{more}")
    };
    let date = "last-modified: Mon, 01 Jan 2024 00:00:00 GMT";
    for (n, status) in ["405 x", "501 x", "400 x", "403 x"].into_iter().enumerate() {
        let server = WebServer::start(move |head| {
            if head.starts_with("HEAD ") {
                (status.to_owned(), Vec::new())
            } else if n % 2 == 0 && head.contains("bytes=0-0") {
                let headers = format!("content-range: bytes 0-0/{}\r\n{date}", ROWS.len());
                (format!("206 x\r\n{headers}"), ROWS.as_bytes()[..1].to_vec())
            } else {
                (format!("200 OK\r\n{date}"), ROWS.as_bytes().to_vec())
            }
        });
        let run = job.run(&pipeline(&server, &format!("sink.run_id = 'r{n}'")));
        assert_eq!(rows_read(&run), "3 3", "{status}");
    }
    // Only these two say that there is no such file.
    for (status, code) in [("404 x", 8), ("410 x", 8), ("405 x", 2), ("403 x", 5), ("400 x", 5)] {
        let server = WebServer::start(move |_| (status.to_owned(), Vec::new()));
        job.ends(&pipeline(&server, ""), &[], code);
        let skipped = if code == 8 { 0 } else { code };
        job.ends(&pipeline(&server, "source.on_missing = 'skip'"), &[], skipped);
    }
}

#[test]
fn a_web_server_without_a_listing_is_said_to_have_none() {
    let job = Job::new();
    let server = plain_web_server(Vec::new());
    for path in ["days/", "days/*.csv"] {
        let url = format!("http://127.0.0.1:{}/{path}", server.port);
        let message = job.fails(&format!("source.annotations = '{url}'\n{VOTE_KIND}"), 2);
        assert_says(&message, &["has no listing", "source.annotations", "name each file"]);
    }
    assert!(server.count("PROPFIND") <= 4, "{}", server.count("PROPFIND"));
}

#[test]
fn a_listing_that_never_ends_is_an_error() {
    let page = |token: &str| {
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><Prefix>in/</Prefix><KeyCount>0</KeyCount>\
             <IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
        )
    };
    let server = WebServer::start(move |_| ("200 OK".to_owned(), page("a&amp;b/=").into_bytes()));
    let mut command = labelmill();
    command.args(job(&["--set", "store.max_retries=0"]));
    command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", server.port));
    let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    let output = command.envs(keys).env("AWS_REGION", "us-east-1").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_says(&stderr(&output), &["listing never ends", "source.annotations", "help:"]);
    assert!(server.count("GET") <= 4, "{}", server.count("GET"));
}

// keys: source.on_missing
#[test]
fn a_missing_or_empty_input_has_a_code_of_its_own_or_is_skipped() {
    let job = Job::new();
    job.write("empty.csv", "");
    job.write("header.csv", "instance_id,annotator_id,label\n");
    job.write("folder/notes.txt", "");
    job.write("in.csv", ROWS);
    for file in ["none.csv", "none/", "folder/*.csv", "empty.csv", "header.csv"] {
        job.fails(&vote(file, ""), 8);
        let skip = vote(file, "source.on_missing = 'skip'");
        let said = job.ends(&skip, &[], 0);
        assert_says(&said, &["nothing to do", "source.annotations", "source.on_missing"]);
        assert!(!job.path("out/latest").exists(), "{file}");
    }
    let gold = "source.on_missing = 'skip'\nsource.gold = '{dir}none.csv'";
    assert_says(&job.ends(&vote("in.csv", gold), &[], 0), &["nothing to do", "source.gold"]);
    // Bad data is not skipped, and no run is made again for the key alone.
    job.write("bad.csv", "instance_id,label\ni,x\n");
    job.fails(&vote("bad.csv", "source.on_missing = 'skip'"), 3);
    job.run(&vote("in.csv", ""));
    let again = job.ends(&vote("in.csv", "source.on_missing = 'skip'"), &[], 0);
    assert_says(&again, &["this very job was committed"]);
    let output = run(&[
        "run",
        &job.url("pipeline.toml"),
        "--json",
        "--set",
        &format!("sink.url={}", job.url("out")),
        "--set",
        &format!("source.annotations={}", job.url("none.csv")),
    ]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&json["no_op"], &json["run_id"]), (&Value::Bool(true), &Value::Null));
    assert_says(&json["skipped"][0].to_string(), &["there is no such file"]);
}

#[test]
fn a_missing_prefix_has_the_code_of_a_missing_input() {
    let server = server();
    for url in ["s3://crowd/none/", "s3://crowd/none/*.csv", "s3://crowd/none.csv"] {
        let args = ["aggregate", "--model", "majority_vote", "--output", "s3://crowd/out"];
        let args = [&args[..], &["--annotations", url]].concat();
        assert_eq!(server.run(&args).status.code(), Some(8), "{url}");
        let skipped = server.run(&[&args[..], &["--set", "source.on_missing=skip"]].concat());
        assert!(skipped.status.success(), "{}", stderr(&skipped));
        assert_says(&stderr(&skipped), &["nothing to do", url]);
    }
}

#[test]
fn files_that_vanish_before_the_commit_are_noticed() {
    let server = server();
    // The first listing is of the lease that tried the store.
    server.fault(Fault::Hold, "ListObjectsV2 runs%2Fmine", 1, 1);
    let args = job(&["--set", "sink.run_id=mine"]);
    let mut child = server.labelmill(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    server.wait_for("ListObjectsV2 runs%2Fmine", 2);
    std::fs::remove_dir_all(server.bucket().join("out/runs")).unwrap();
    server.release();
    let mut message = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut message).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{message}");
    assert_says(
        &message,
        &["vanished before its commit", "annotators/part-00000.parquet", "help:"],
    );
    assert!(!server.bucket().join("out/latest.json").exists());
    assert_eq!(server.count("PutObject manifest"), 0);
    summary(&server, &["--set", "sink.run_id=mine"]);
}

#[test]
fn not_found_while_writing_is_an_error_of_the_store() {
    let server = server();
    server.fault(Fault::NoSuchKey, "PutObject labels/", 0, 1_000);
    let output = server.run(&job(&[]));
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
}

#[test]
fn a_job_that_was_forced_often_sends_no_more_requests() {
    let server = server();
    let keep = ["--set", "name=p", "--set", "sink.keep_runs=1"];
    let first = run_id(&summary(&server, &keep));
    let mut requests = Vec::new();
    for n in 2..=14 {
        server.forget_requests();
        let forced = run_id(&summary(&server, &[&keep[..], &["--force"]].concat()));
        assert_eq!((&forced, &latest(&server)), (&format!("{first}-{n}"), &forced));
        requests.push(server.count(""));
    }
    assert_eq!(requests[1], requests[12], "{requests:?}");
}

/// The plain run comes back to one id each time, and leaves one more name there that is used up.
#[test]
fn a_run_that_is_collected_and_made_again_often_reads_few_of_its_names() {
    let server = server();
    let keep = ["--set", "name=p", "--set", "sink.keep_runs=1", "--set", "sink.run_id=mine"];
    summary(&server, &keep);
    for _ in 0..20 {
        // Another run takes its place; its id is the later one of the same second.
        let other = ["--set", "name=p", "--set", "sink.keep_runs=1", "--set", "seed=2"];
        summary(&server, &[&other[..], &["--set", "sink.run_id=other", "--force"]].concat());
        server.forget_requests();
        let done = summary(&server, &keep);
        assert_eq!(
            (latest(&server), run_folder(&server, &done).is_dir()),
            ("mine".to_owned(), true)
        );
    }
    let names = std::fs::read_dir(server.bucket().join("out/runs/mine")).unwrap();
    let names =
        names.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("manifest"));
    assert_eq!(names.count(), 21);
    let reads = server.count("GetObject mine/manifest");
    assert!(reads <= 40, "{reads} reads of 21 names");
}
