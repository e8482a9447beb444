//! Stores and networks fail: the job on S3 succeeds all the same, or its error says why it could not.

use labelmill::testing::synth::CrowdShape;
use serde_json::Value;

use crate::s3_job::{
    assert_equals_local_run, assert_same_files, job, latest, leases, run_folder, run_id, server,
    summary,
};
use crate::s3_server::{Fault, KEY_ID, SECRET, Server};
use crate::support::{stderr, stdout, write_numbers};

#[test]
fn a_busy_store_is_asked_again() {
    let first = ["HeadObject", "ListObjectsV2 in", "GetObject /in/", "PutObject _lease"];
    let last = [
        "PutObject labels/",
        "PutObject manifest",
        "GetObject latest",
        "PutObject latest",
        "DeleteObject",
    ];
    // At the same time, because jobs wait before they send a request again.
    std::thread::scope(|scope| {
        for patterns in [&first[..], &last[..]] {
            scope.spawn(move || succeeds_where_requests_meet_a_busy_store(patterns));
        }
    });
}

fn succeeds_where_requests_meet_a_busy_store(patterns: &[&str]) {
    let server = server();
    for pattern in patterns {
        server.fault(Fault::Busy, pattern, 0, 2);
    }
    let done = summary(&server, &[]);
    assert_eq!(server.forget_faults(), 0, "not every fault was met: {patterns:?}");
    assert_equals_local_run(&server, &done, &[]);
    assert_eq!(latest(&server), run_id(&done));
}

/// Each request in turn meets the fault, and the job must succeed as if there had been no fault. The even requests meet it
/// on one server, and the odd ones on another at the same time, because jobs wait before they send a request again.
fn survives_at_every_request(fault: Fault) {
    let [even, odd] = std::thread::scope(|scope| {
        let both = [0, 1].map(|first| scope.spawn(move || survives_at_requests(fault, first, 2)));
        both.map(|requests| requests.join().unwrap())
    });
    assert_eq!(even, odd, "no request is left out");
}

/// The requests `first`, `first + step` and so on meet the fault. Returns how many requests an undisturbed job sends.
fn survives_at_requests(fault: Fault, first: usize, step: usize) -> usize {
    let server = server();
    let undisturbed = summary(&server, &[]);
    let requests = server.count("");
    let mut older = None;
    for n in (first..requests).step_by(step) {
        let seed = format!("seed={}", n + 1);
        server.forget_requests();
        server.fault(fault, "", n, 1);
        let output = server.run(&job(&["--set", &seed, "--json"]));
        let what = format!("{fault:?} at request {n}: {}", server.line(n));
        assert!(output.status.success(), "{what}\n{}", stderr(&output));
        assert_eq!(server.forget_faults(), 0, "{what}");
        let done: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(latest(&server), run_id(&done), "{what}");
        assert_same_files(&run_folder(&server, &done), &run_folder(&server, &undisturbed));
        // With few runs, listings take the server less time: for each it walks through all files.
        let run = server.bucket().join("out/runs").join(run_id(&done));
        if let Some(older) = older.replace(run) {
            std::fs::remove_dir_all(older).unwrap();
        }
    }
    requests
}

#[test]
fn a_connection_reset_before_any_request_is_mended() {
    survives_at_every_request(Fault::Reset);
}

#[test]
fn an_answer_lost_after_any_request_is_mended() {
    survives_at_every_request(Fault::Cut(0));
}

#[test]
fn an_answer_broken_off_in_its_middle_is_mended() {
    let server = Server::start();
    let crowd = CrowdShape { instances: 20_000, ..CrowdShape::default() };
    write_numbers(&server.bucket().join("in/crowd.parquet"), &crowd.draw(1).rows);
    server.fault(Fault::Cut(20_000), "GetObject /in/", 0, 2);
    let done = summary(&server, &[]);
    assert_eq!(server.forget_faults(), 0);
    assert_equals_local_run(&server, &done, &[]);
}

#[test]
fn a_store_that_stays_busy_ends_the_job_with_code_5_and_leaves_the_last_run() {
    // At the same time, because jobs wait before they send a request again.
    std::thread::scope(|scope| {
        for pattern in ["PutObject labels/", "PutObject manifest", "PutObject latest"] {
            scope.spawn(move || ends_where_the_store_stays_busy(pattern));
        }
    });
}

fn ends_where_the_store_stays_busy(pattern: &str) {
    let server = server();
    let first = run_id(&summary(&server, &[]));
    server.fault(Fault::Busy, pattern, 0, 1_000);
    let id = ["--set", "sink.run_id=busy"];
    let output = server.run(&job(&[&id[..], &["--set", "store.max_retries=1"]].concat()));
    server.forget_faults();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{pattern}\n{message}");
    assert!(message.contains("help:"), "{message}");
    assert_eq!(latest(&server), first, "{pattern}");
    let committed = server.bucket().join("out/runs/busy/manifest.json").exists();
    assert_eq!(committed, pattern == "PutObject latest");
    assert_eq!(message.contains("the run is committed"), committed, "{message}");
    // The same job again runs only if nothing was committed, and in both cases it repairs the pointer.
    let again = summary(&server, &id);
    assert_eq!(again["no_op"], committed, "{pattern}");
    assert_eq!(latest(&server), run_id(&again), "{pattern}");
    assert_eq!(leases(&server), Vec::<std::path::PathBuf>::new(), "{pattern}");
}

#[test]
fn an_upload_that_fails_leaves_no_pieces() {
    let server = Server::start();
    let crowd =
        CrowdShape { instances: 5_000, classes: 90, redundancy: 2, ..CrowdShape::default() };
    write_numbers(&server.bucket().join("in/crowd.parquet"), &crowd.draw(1).rows);
    server.fault(Fault::Busy, "UploadPart partNumber=1", 0, 1_000);
    // Two pieces of 7 MiB.
    let small = ["sink.compression=none", "store.piece_size=5MiB"];
    let more = [&small[..], &["model.stop.max_iter=2", "store.max_retries=1"]].concat();
    let sets: Vec<&str> = more.iter().flat_map(|set| ["--set", set]).collect();
    let output = server.run(&job(&sets));
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert_eq!(server.count("CreateMultipartUpload"), 1);
    assert_eq!(server.count("AbortMultipartUpload"), 1);
    assert_eq!(server.count("PutObject manifest"), 0);
}

#[test]
fn a_wrong_secret_is_code_5_and_no_key_is_printed() {
    let server = server();
    let wrong = "notTheSecret/0123456789abcdef";
    let jobs =
        [job(&["-vv"]), vec!["sql", "-c", "select * from labels", "--run", "s3://crowd/out"]];
    for args in jobs {
        let output = server.labelmill(&args).env("AWS_SECRET_ACCESS_KEY", wrong).output().unwrap();
        let printed = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(5), "{printed}");
        assert!(printed.contains("credentials"), "{printed}");
        for secret in [wrong, SECRET, KEY_ID] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }
    assert!(!server.bucket().join("out").exists());
}

#[test]
fn an_object_that_changes_after_it_was_listed_is_not_read() {
    let server = server();
    // Holds the request that reads the footer of the object; a later one reads its rows.
    server.fault(Fault::Hold, "GetObject /in/", 0, 1);
    let child = server
        .labelmill(&job(&[]))
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    server.wait_for("GetObject /in/", 1);
    let other = [("i9", "a9", "yes"), ("i9", "a8", "no")];
    crate::support::write_crowd(&server.bucket().join("in/part-0.parquet"), &other);
    server.release();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let printed = stderr(&output);
    assert!(printed.contains("an input changed after it was listed"), "{printed}");
    assert!(printed.contains("s3://crowd/in/part-0.parquet"), "{printed}");
    assert!(!server.bucket().join("out/latest.json").exists());
}

#[test]
fn the_files_of_a_run_on_s3_are_recorded_with_their_bucket() {
    let server = server();
    let run = run_folder(&server, &summary(&server, &[]));
    let inputs = crate::job::cells(&crate::support::read_table(&run, "run"), &["inputs"]);
    assert!(inputs[0].contains("\"path\":\"s3://crowd/in/part-0.parquet\""), "{}", inputs[0]);
}

#[test]
fn a_lease_outlives_an_upload_whose_answer_was_lost() {
    let server = server();
    server.fault(Fault::Hold, "PutObject labels/", 0, 100);
    let impatient = ["--set", "store.max_retries=0", "--set", "store.idle_seconds=1"];
    let output = server.run(&job(&impatient));
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert_eq!(leases(&server).len(), 1, "nobody would look for a file that comes late");
    server.forget_faults();
    // The file arrives late, and the next run removes it together with the lease.
    let lease: Value =
        serde_json::from_slice(&std::fs::read(&leases(&server)[0]).unwrap()).unwrap();
    let [id, attempt] = ["run_id", "attempt"].map(|key| lease[key].as_str().unwrap());
    let folder = server.bucket().join("out/runs").join(id).join(attempt);
    std::fs::create_dir_all(folder.join("labels")).unwrap();
    std::fs::write(folder.join("labels/part-00000.parquet"), "late").unwrap();
    let done = summary(&server, &[]);
    assert_eq!(leases(&server), Vec::<std::path::PathBuf>::new());
    assert!(!folder.join("labels/part-00000.parquet").exists());
    assert_eq!(latest(&server), run_id(&done));
}

#[test]
fn a_writer_has_a_lease_from_its_first_file_until_latest_has_moved() {
    let server = server();
    summary(&server, &[]);
    let lines: Vec<String> = (0..server.count("")).map(|n| server.line(n)).collect();
    // Before the job reads rows, it writes another lease to find out whether the store can hold a commit.
    let read = lines.iter().position(|line| line.contains("GetObject") && line.contains("/in/"));
    let (before, lines) = lines.split_at(read.unwrap());
    let tried = |request: &str| {
        before.iter().any(|line| line.contains(request) && line.contains("/out/_leases/"))
    };
    assert!(tried("PutObject"), "{before:#?}");
    assert!(before.last().is_some_and(|line| line.contains("DeleteObject")), "{before:#?}");
    let location = |words: &[&str]| {
        let fits = |line: &&String| words.iter().all(|word| line.contains(word));
        lines
            .iter()
            .position(|line| fits(&line))
            .unwrap_or_else(|| panic!("{words:?} of {lines:#?}"))
    };
    let order = [
        location(&["PutObject", "/out/_leases/"]),
        location(&["PutObject", "/out/runs/"]),
        location(&["PutObject", "manifest.json"]),
        location(&["PutObject", "latest.json"]),
        location(&["DeleteObject"]),
    ];
    assert!(order.is_sorted(), "{order:?}: {lines:#?}");
}

#[test]
fn the_files_of_a_writer_that_is_about_to_commit_are_not_swept() {
    let server = server();
    server.fault(Fault::Hold, "PutObject manifest", 0, 1);
    let mine = ["--set", "sink.run_id=held", "--set", "sink.stale_after_seconds=3600"];
    let held = server.labelmill(&job(&mine)).spawn().unwrap();
    server.wait_for("PutObject manifest", 1);
    // Another writer, which promises only one second of silence itself, checks every lease.
    let other =
        ["--set", "sink.run_id=other", "--set", "seed=2", "--set", "sink.stale_after_seconds=1"];
    summary(&server, &other);
    server.release();
    let ended = held.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", stderr(&ended));
    let run = server.bucket().join("out/runs/held");
    let manifest = crate::support::manifest(&run);
    let files =
        manifest["tables"].as_object().unwrap().values().flat_map(|f| f.as_array().unwrap());
    for file in files {
        let found = std::fs::metadata(run.join(file["path"].as_str().unwrap())).unwrap();
        assert_eq!(found.len(), file["bytes"].as_u64().unwrap(), "{file}");
    }
    assert!(run.join("manifest.json").exists(), "committed under its first name");
}
