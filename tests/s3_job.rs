//! A job from S3 to S3, its writers that die or are suspended, and what the store then holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::s3_server::{Fault, Server};
use crate::support::{
    Row, files_of, read_table, run_ok, send_signal, stdout, table_files, write_crowd,
};
use crate::writers_place::{age_leases, move_to_another_machine};

/// A silence longer than the second that some writers promise, though the times of the store have a resolution of a
/// second.
pub const SILENT: Duration = Duration::from_millis(2_500);

const ROWS: &[(&str, &str, &str)] = &[
    ("i1", "a1", "yes"),
    ("i1", "a2", "yes"),
    ("i1", "a3", "no"),
    ("i2", "a1", "no"),
    ("i2", "a2", "no"),
    ("i2", "a3", "no"),
    ("i3", "a1", "yes"),
    ("i3", "a3", "yes"),
    ("i4", "a2", "no"),
    ("i4", "a3", "yes"),
];

/// A server with a small crowd at s3://crowd/in/.
pub fn server() -> Server {
    let server = Server::start();
    write_crowd(&server.bucket().join("in/part-0.parquet"), ROWS);
    server
}

/// The job from s3://crowd/in to s3://crowd/out, with more arguments.
pub fn job<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "aggregate",
        "--annotations",
        "s3://crowd/in",
        "--model",
        "dawid_skene",
        "--output",
        "s3://crowd/out",
    ];
    fixed.iter().chain(more).copied().collect()
}

/// Runs the job, which must end well, and returns its summary.
pub fn summary(server: &Server, more: &[&str]) -> Value {
    let args: Vec<&str> = job(more).into_iter().chain(["--json"]).collect();
    serde_json::from_str(&stdout(&server.run_ok(&args))).unwrap()
}

pub fn run_id(summary: &Value) -> String {
    summary["run_id"].as_str().unwrap().to_owned()
}

/// The folder with the files of a run.
pub fn run_folder(server: &Server, summary: &Value) -> PathBuf {
    files_of(&server.bucket().join("out/runs").join(run_id(summary)))
}

/// The leases of all writers, running or dead.
pub fn leases(server: &Server) -> Vec<PathBuf> {
    let leases = std::fs::read_dir(server.bucket().join("out/_leases")).into_iter().flatten();
    leases.map(|e| e.unwrap().path()).collect()
}

pub fn latest(server: &Server) -> String {
    let text = std::fs::read(server.bucket().join("out/latest.json")).unwrap();
    run_id(&serde_json::from_slice(&text).unwrap())
}

/// Asserts that the same job from the same files on local disk writes the same bytes as the job on S3.
pub fn assert_equals_local_run(server: &Server, summary: &Value, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (server.bucket().join("in"), folder.path().display().to_string());
    let input = input.display().to_string();
    let fixed =
        ["aggregate", "--annotations", &input, "--model", "dawid_skene", "--output", &output];
    run_ok(&fixed.iter().chain(more).copied().collect::<Vec<_>>());
    assert_same_files(&run_folder(server, summary), &folder.path().join("latest"));
}

/// Asserts that every table but `run` has the same bytes. Of `trace`, which holds wall times, it compares the other
/// columns.
pub fn assert_same_files(got: &Path, want: &Path) {
    let steps = |run: &Path| -> Vec<Row> {
        let mut rows = read_table(run, "trace");
        rows.iter_mut().for_each(|row| row.insert("seconds".to_owned(), None).map_or((), drop));
        rows
    };
    assert_eq!(steps(got), steps(want));
    let timeless = |run: &Path| -> BTreeMap<String, Vec<u8>> {
        table_files(run).into_iter().filter(|(name, _)| !name.starts_with("trace/")).collect()
    };
    let (got, want) = (timeless(got), timeless(want));
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    assert!(want.len() >= 7, "{:?}", want.keys());
    for (name, bytes) in &want {
        assert!(got[name] == *bytes, "{name} differs");
    }
}

/// Starts the job with one more setting.
pub fn spawn(server: &Server, set: &str) -> Child {
    server.labelmill(&job(&["-q", "--set", set])).spawn().unwrap()
}

/// Starts the job with these settings, and waits until its first request that matches the pattern is held.
pub fn held_at(server: &Server, pattern: &str, sets: &[&str]) -> Child {
    server.fault(Fault::Hold, pattern, 0, 1);
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> = ["-q"].into_iter().chain(sets).collect();
    let child = server.labelmill(&job(&args)).spawn().unwrap();
    server.wait_for(pattern, 1);
    child
}

/// Starts the job and kills it after the server has carried out the first request that matches the pattern.
pub fn die_after(server: &Server, pattern: &str, set: &str) {
    server.fault(Fault::KillAfter, pattern, 0, 1);
    let mut dead = spawn(server, set);
    server.set_victim(Some(dead.id()));
    assert!(!dead.wait().unwrap().success());
}

/// Suspends a writer before its commit, with this many of its requests held, until another run has swept it: its lease
/// looks like one of another machine, so that the other run takes it for dead.
pub fn swept_before_its_commit(server: &Server, held: &str, times: usize) -> Child {
    server.fault(Fault::Hold, held, 0, times);
    let slow = server
        .labelmill(&job(&["--set", "sink.run_id=slow", "--set", "sink.stale_after_seconds=1"]))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for(held, times);
    send_signal(slow.id(), "STOP");
    // Even on a busy machine, requests that were sent before the suspension arrive first.
    std::thread::sleep(Duration::from_secs(1));
    let out = server.bucket().join("out");
    move_to_another_machine(&out);
    age_leases(&out, SILENT);
    summary(server, &["--set", "sink.run_id=quick"]);
    // Awake, it may write further files before it finds that its lease is gone.
    assert_eq!(attempts(server, "slow").len(), 0, "it was not swept");
    send_signal(slow.id(), "CONT");
    slow
}

/// The attempts at a run of which files exist.
pub fn attempts(server: &Server, run_id: &str) -> Vec<String> {
    let run = std::fs::read_dir(server.bucket().join("out/runs").join(run_id));
    let entries = run.into_iter().flatten().map(Result::unwrap);
    let folders = entries.filter(|e| e.path().is_dir() && !table_files(&e.path()).is_empty());
    folders.map(|e| e.file_name().into_string().unwrap()).collect()
}

/// Asserts that the tables of the run can be read and that its labels and posteriors belong together.
pub fn assert_readable(server: &Server, run_id: &str) {
    let run = format!("s3://crowd/out/runs/{run_id}");
    let query = "select count(*) n from labels l join posteriors p using (instance_id)";
    let answer = stdout(&server.run_ok(&["sql", "--json", "--run", &run, "-c", query]));
    assert_eq!(answer.trim(), r#"{"n":8}"#);
}
