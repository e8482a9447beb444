//! The requests that a job sends to S3, how it reacts to the answers, and the places that its errors name.

use crate::job::assert_says;
use crate::s3_job::{job, latest, run_id, server, summary};
use crate::s3_server::{Fault, Server};
use crate::support::{committed, stderr, write_crowd};

/// The job that reads this source, with more arguments.
fn reading<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["aggregate", "--model", "majority_vote", "--output", "s3://crowd/out"];
    fixed.iter().chain(&["--annotations", url]).chain(more).copied().collect()
}

/// Runs a command, which must fail with this code, and returns its message.
fn fails(server: &Server, args: &[&str], code: i32) -> String {
    let output = server.run(args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{message}");
    message
}

const ONE_RETRY: [&str; 2] = ["--set", "store.max_retries=1"];

#[test]
fn a_store_that_fails_while_a_source_is_looked_for_is_asked_once() {
    for url in ["s3://crowd/in", "s3://crowd/in/part-*.parquet", "s3://crowd/i*/part-*.parquet"] {
        let server = server();
        // A request fails, and so does its retry; then the store is well again.
        server.fault(Fault::Busy, "HeadObject", 0, 2);
        server.fault(Fault::Busy, "ListObjectsV2", 0, 2);
        assert_says(&fails(&server, &reading(url, &ONE_RETRY), 5), &[url, "help:"]);
        assert_eq!(server.count(""), 2, "{url}");
    }
}

#[test]
fn a_client_that_may_not_list_reads_a_file() {
    let server = server();
    server.fault(Fault::Denied, "ListObjectsV2 prefix=in", 0, 1_000);
    server.run_ok(&reading("s3://crowd/in/part-0.parquet", &[]));
    assert!(server.count("ListObjectsV2 prefix=in") > 0);
}

/// A list request names the folder that it lists, or stops at the first level of the bucket, which may hold millions of
/// objects in other folders.
#[test]
fn a_pattern_lists_only_the_folders_that_it_reaches() {
    let server = server();
    write_crowd(&server.bucket().join("other/x.parquet"), &[("i1", "a1", "yes")]);
    server.run_ok(&reading("s3://crowd/i*/part-*.parquet", &[]));
    let n = server.count("ListObjectsV2");
    let lines: Vec<String> = (0..n).map(|n| server.line_of("ListObjectsV2", n)).collect();
    let stays = |line: &String| line.contains("delimiter=") || line.contains("prefix=");
    assert!(n > 1 && lines.iter().all(stays), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("prefix=other")), "{lines:?}");
    let message = fails(&server, &reading("s3://crowd/j*/part-*.parquet", &[]), 8);
    assert_says(&message, &["`j*/part-*.parquet` matches none of the "]);
}

#[test]
fn a_part_of_a_table_is_refused_unless_its_log_may_not_be_seen() {
    let server = Server::start();
    write_crowd(&server.bucket().join("table/part/x.parquet"), &[("i1", "a1", "yes")]);
    std::fs::create_dir(server.bucket().join("table/_delta_log")).unwrap();
    std::fs::write(server.bucket().join("table/_delta_log/0.json"), "{}").unwrap();
    let args = reading("s3://crowd/table/part/", &ONE_RETRY);
    assert_says(&fails(&server, &args, 3), &["is a Delta table, or a part of one"]);
    server.fault(Fault::Busy, "ListObjectsV2 _delta_log", 0, 2);
    assert_says(&fails(&server, &args, 5), &["s3://crowd/table/part/"]);
    assert_eq!(server.forget_faults(), 0);
    // A client that may list one folder only.
    server.fault(Fault::Denied, "ListObjectsV2 _delta_log", 0, 1_000);
    server.run_ok(&args);
}

#[test]
fn a_mistyped_source_is_a_missing_file_to_a_client_that_may_read_other_folders_only() {
    for (url, asked) in [("s3://crowd/typo/annotations/", 1), ("s3://crowd/typo/*.csv", 0)] {
        let server = server();
        server.fault(Fault::Denied, "GetObject /typo/", 0, 1_000);
        server.fault(Fault::Denied, "HeadObject /typo/", 0, 1_000);
        let message = fails(&server, &reading(url, &[]), 8);
        assert_says(&message, &["there is no such file", url]);
        assert!(!message.contains("sink.url"), "{message}");
        assert_eq!(server.count("GetObject"), asked, "for a run that was published at {url}");
    }
}

#[test]
fn a_run_that_may_not_be_read_is_named_beside_the_missing_file() {
    let server = server();
    summary(&server, &[]);
    server.fault(Fault::Denied, "GetObject /out/latest.json", 0, 1_000);
    let fixed = ["aggregate", "--model", "majority_vote", "--output", "s3://crowd/elsewhere"];
    let args = [&fixed[..], &["--annotations", "s3://crowd/out/labels/"]].concat();
    let message = fails(&server, &args, 8);
    let denial = "found: nothing; the store denies the search for a run at `s3://crowd/out`: ";
    assert_says(&message, &["there is no such file", denial, "latest.json"]);
}

#[test]
fn the_errors_of_a_command_name_its_own_options() {
    let server = server();
    let nowhere = "s3://nowhere/x";
    let simulate = ["simulate", "--output", nowhere, "--recipe", "conal-synthetic"];
    let predict = ["predict", "--features", "s3://crowd/in", "--output", "s3://crowd/out"];
    let cases = [
        (vec!["sql", "-c", "select 1", "--run", nowhere], "where: --run s3://nowhere/x\n"),
        (
            vec!["evaluate", "--truth", "s3://crowd/in", "--run", nowhere],
            "where: --run s3://nowhere/x\n",
        ),
        ([&predict[..], &["--model", nowhere]].concat(), "where: --model\n"),
        (
            [&simulate[..], &["--set", "instances=40", "--set", "annotated=1"]].concat(),
            "where: --output\n",
        ),
    ];
    for (args, location) in cases {
        let message = fails(&server, &args, 5);
        assert_says(&message, &["the bucket `nowhere` does not exist", location]);
        assert!(!message.contains("sink.url"), "{message}");
    }
}

#[test]
fn a_model_that_the_store_does_not_answer_for_is_not_a_missing_one() {
    let server = server();
    let fixed = ["predict", "--features", "s3://crowd/in", "--output", "s3://crowd/out"];
    let args = [&fixed[..], &["--model", "s3://crowd/in"]].concat();
    assert_says(&fails(&server, &args, 3), &["there is no committed run here", "--model"]);
    // An answer that is not repeated, and that says nothing about the object.
    server.fault(Fault::Unmatched, "HeadObject model.json", 0, 1);
    assert_says(&fails(&server, &args, 5), &["where: --model\n", "help:"]);
}

#[test]
fn a_job_that_was_forced_before_lists_no_files_of_its_earlier_runs() {
    let server = server();
    let first = run_id(&summary(&server, &[]));
    let requests = |n: usize| {
        server.forget_requests();
        let forced = run_id(&summary(&server, &["--force"]));
        assert_eq!((&forced, &latest(&server)), (&format!("{first}-{n}"), &forced));
        ["ListObjectsV2", "GetObject latest.json"].map(|request| server.count(request))
    };
    let second = requests(2);
    for n in 3..=6 {
        assert_eq!(requests(n), second, "{n}");
    }
}

// keys: sink.keep_runs
#[test]
fn the_manifests_among_which_keep_runs_counts_are_read_at_once() {
    let server = server();
    let ids = ["other-1", "other-2", "other-3"];
    for id in ids {
        summary(&server, &["--set", "name=other", "--set", &format!("sink.run_id={id}")]);
    }
    server.forget_requests();
    server.fault(Fault::Hold, "GetObject /other- manifest.json", 0, ids.len());
    let mine = ["-q", "--set", "name=mine", "--set", "sink.keep_runs=1"];
    let mut child = server.labelmill(&job(&mine)).spawn().unwrap();
    server.wait_for("GetObject /other- manifest.json", ids.len());
    server.release();
    assert!(child.wait().unwrap().success());
    for id in ids {
        assert!(committed(&server.bucket().join("out/runs").join(id)).is_some(), "{id}");
    }
}

/// One put creates the lease that tries the store, the next one must not replace it, and the third one renews it.
#[test]
fn a_store_that_replaces_nothing_on_condition_is_refused_before_the_rows_are_read() {
    // On a store with weak ETags no version matches. Once alone, the answer to an earlier put may have been lost.
    for (fault, times, is_refused) in [
        (Fault::Denied, 1, true),
        (Fault::NotImplemented, 1, true),
        (Fault::Unmatched, 2, true),
        (Fault::Unmatched, 1, false),
    ] {
        let server = server();
        server.fault(fault, "PutObject /out/_leases/", 2, times);
        let output = server.run(&job(&[]));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(if is_refused { 2 } else { 0 }), "{message}");
        assert_eq!(server.forget_faults(), 0, "{fault:?}");
        assert_eq!(message.contains("If-Match"), is_refused, "{fault:?}, {times} times: {message}");
        assert_eq!(server.count("GetObject /in/") == 0, is_refused);
        assert_eq!(crate::s3_job::leases(&server), Vec::<std::path::PathBuf>::new());
    }
}
