//! Several writers of one place on S3: the dead, the living and the twins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::s3::{job, latest, run_id, server, summary};
use crate::s3_server::{Fault, Server};
use crate::support::{stderr, table_files};

/// Starts the job with one more setting.
fn spawn(server: &Server, set: &str) -> Child {
    server.labelmill(&job(&["-q", "--set", set])).spawn().unwrap()
}

/// Starts the job and kills it when the first request of this pattern was carried out.
fn die_after(server: &Server, pattern: &str, set: &str) {
    server.fault(Fault::KillAfter, pattern, 0, 1);
    let mut dead = spawn(server, set);
    server.set_victim(Some(dead.id()));
    assert!(!dead.wait().unwrap().success());
}

#[test]
fn the_next_run_sweeps_what_a_dead_one_left_and_spares_a_living_one() {
    let server = server();
    die_after(&server, "PutObject labels/", "seed=1");
    let left = folders(&server);
    assert_eq!(left.len(), 1);
    assert!(left[0].join("_lease.json").exists());
    assert!(left[0].join("labels/part-00000.parquet").exists());
    server.fault(Fault::Hold, "PutObject living/annotators/", 0, 1);
    let mut living = spawn(&server, "sink.run_id=living");
    server.wait_for("PutObject living/annotators/", 1);
    let third = summary(&server, &["--set", "seed=3"]);
    let now = folders(&server);
    assert!(!now.contains(&left[0]), "the dead run is still there");
    assert_eq!(now.len(), 2, "{now:?}");
    assert_eq!(latest(&server), run_id(&third));
    server.release();
    assert!(living.wait().unwrap().success());
    assert_eq!(folders(&server).len(), 2);
    assert_eq!(latest(&server), "living");
}

#[test]
fn the_same_job_takes_over_from_its_dead_writer_and_not_from_a_living_one() {
    let server = server();
    die_after(&server, "PutObject same/_lease", "sink.run_id=same");
    server.fault(Fault::Hold, "PutObject same/annotators/", 0, 1);
    let mut heir = spawn(&server, "sink.run_id=same");
    server.wait_for("PutObject same/annotators/", 1);
    let output = server.run(&job(&["--set", "sink.run_id=same"]));
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("another process is writing this very run"));
    server.release();
    assert!(heir.wait().unwrap().success());
    assert_eq!(latest(&server), "same");
}

#[test]
fn a_writer_that_died_after_its_commit_keeps_its_run_and_loses_its_lease() {
    let server = server();
    die_after(&server, "PutObject manifest", "sink.run_id=committed");
    let run = server.bucket().join("out/runs/committed");
    assert!(run.join("_lease.json").exists() && run.join("manifest.json").exists());
    let tables = table_files(&run);
    summary(&server, &["--set", "sink.run_id=next"]);
    assert!(!run.join("_lease.json").exists() && run.join("manifest.json").exists());
    assert_eq!(table_files(&run), tables);
    assert_eq!(summary(&server, &["--set", "sink.run_id=committed"])["no_op"], true);
    assert_eq!(latest(&server), "committed");
}

#[test]
fn a_twin_that_comes_late_leaves_the_committed_run_as_it_is() {
    let server = server();
    // It has asked whether the run is there, and now waits for its input.
    server.fault(Fault::Hold, "GetObject /in/", 1, 1);
    let mut twin = spawn(&server, "seed=0");
    server.wait_for("GetObject /in/", 2);
    let first = summary(&server, &[]);
    let run = server.bucket().join("out/runs").join(run_id(&first));
    let (files, manifest) = (all_files(&run), std::fs::read(run.join("manifest.json")).unwrap());
    server.release();
    assert!(twin.wait().unwrap().success());
    assert_eq!(all_files(&run), files);
    assert_eq!(std::fs::read(run.join("manifest.json")).unwrap(), manifest);
    assert_eq!(latest(&server), run_id(&first));
}

#[test]
fn a_writer_whose_files_were_swept_does_not_commit() {
    let server = server();
    summary(&server, &["--set", "sink.run_id=last"]);
    server.fault(Fault::Hold, "ListObjectsV2 slow", 0, 1);
    let mut slow = server.labelmill(&job(&["--set", "sink.run_id=slow"]));
    let slow = slow.stderr(Stdio::piped()).spawn().unwrap();
    server.wait_for("ListObjectsV2 slow", 1);
    // What another machine does that has heard nothing of this writer for too long.
    std::fs::remove_dir_all(server.bucket().join("out/runs/slow")).unwrap();
    server.release();
    let output = slow.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("took this run for dead"), "{}", stderr(&output));
    assert_eq!(latest(&server), "last");
    assert!(!server.bucket().join("out/runs/slow/manifest.json").exists());
}

#[test]
fn a_writer_that_fails_lets_its_other_uploads_end_before_it_cleans_up() {
    let server = server();
    server.fault(Fault::Hold, "PutObject posteriors/", 0, 1);
    // Not sooner: after a failure no table begins.
    server.fault(Fault::BusyAfter("PutObject posteriors/"), "PutObject labels/", 0, 1);
    let mut failing = spawn(&server, "store.max_retries=0");
    server.wait_for("PutObject posteriors/", 1);
    server.wait_for("PutObject labels/", 1);
    // An upload that came after the clean-up would stay: time enough for a clean-up that does not wait.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(failing.try_wait().unwrap(), None);
    assert_eq!(server.count("DeleteObjects"), 0);
    server.release();
    assert_eq!(failing.wait().unwrap().code(), Some(5));
    assert_eq!(folders(&server), Vec::<PathBuf>::new());
}

/// The tables of a run with `run`, which tells one writing from another.
fn all_files(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = table_files(run);
    files.insert("run".to_owned(), std::fs::read(run.join("run/part-00000.parquet")).unwrap());
    files
}

/// The folders below runs/ that hold an object.
fn folders(server: &Server) -> Vec<PathBuf> {
    let runs = std::fs::read_dir(server.bucket().join("out/runs")).unwrap();
    let mut folders: Vec<PathBuf> = runs.map(|e| e.unwrap().path()).collect();
    folders.retain(|folder| has_file(folder));
    folders.sort();
    folders
}

fn has_file(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().any(|e| {
        let path = e.unwrap().path();
        path.is_file() || has_file(&path)
    })
}
