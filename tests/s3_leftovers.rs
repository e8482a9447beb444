//! What writers on S3 leave behind: files that come late, and objects that may not be deleted or replaced.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::s3_job::{
    assert_readable, attempts, die_after, held_at, job, latest, leases, run_folder, server,
    summary, swept_before_its_commit,
};
use crate::s3_server::{Fault, Server};
use crate::support::{manifest, stderr};
use crate::writers_place::move_to_another_machine;

#[test]
fn a_committed_run_whose_lease_may_not_be_deleted_is_done() {
    let server = server();
    die_after(&server, "PutObject manifest", "sink.run_id=mine");
    server.fault(Fault::Denied, "DeleteObject", 0, 1_000);
    let again = server.run(&job(&["--set", "sink.run_id=mine"]));
    assert!(again.status.success(), "{}", stderr(&again));
    let printed = stderr(&again);
    assert!(
        printed.contains("nothing to do") && printed.contains("could not be removed"),
        "{printed}"
    );
    assert_eq!((latest(&server), leases(&server).len()), ("mine".to_owned(), 1));
    summary(&server, &["--set", "sink.run_id=other"]);
    assert_eq!(leases(&server).len(), 3, "nor may its own, and the one that tried the store");
    server.forget_faults();
    summary(&server, &["--set", "sink.run_id=third"]);
    assert_eq!(leases(&server), Vec::<PathBuf>::new(), "what was left is swept");
    assert_readable(&server, "mine");
}

#[test]
fn a_run_is_made_again_though_the_rest_of_its_files_may_not_be_deleted() {
    let server = server();
    let run = run_folder(&server, &summary(&server, &["--set", "sink.run_id=mine"]));
    std::fs::remove_file(run.join("labels/part-00000.parquet")).unwrap();
    server.fault(Fault::Denied, "DeleteObject", 0, 1_000);
    let again = server.run(&job(&["--set", "sink.run_id=mine"]));
    assert!(again.status.success(), "{}", stderr(&again));
    assert_readable(&server, "mine");
}

#[test]
fn a_manifest_that_the_store_does_not_replace_is_an_error() {
    let server = server();
    let run = run_folder(&server, &summary(&server, &["--set", "sink.run_id=mine"]));
    std::fs::remove_file(run.join("labels/part-00000.parquet")).unwrap();
    server.forget_requests();
    // As on a store with weak ETags, which never match.
    server.fault(Fault::Unmatched, "PutObject mine/manifest.json", 0, 100);
    let refused = server.run(&job(&["--set", "sink.run_id=mine"]));
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("cannot be replaced"), "{}", stderr(&refused));
    assert!(server.count("PutObject mine/manifest.json") < 20);
    assert_eq!(server.count("PutObject labels/"), 0, "no table is written in vain");
    assert!(run.join("posteriors/part-00000.parquet").exists(), "the commit still names it");
}

#[test]
fn a_writer_that_lost_its_lease_uploads_no_more() {
    let server = server();
    // Four uploads of parts are in flight at once.
    let slow = swept_before_its_commit(&server, "PutObject slow/ part-", 4);
    let first = first_attempt(&server);
    // The writer wakes up and finds that its lease is gone.
    std::thread::sleep(Duration::from_millis(1_500));
    server.release();
    let output = slow.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(server.count(&format!("PutObject {first}/ part-")), 4, "of its first attempt");
    assert_readable(&server, "slow");
    assert_eq!(attempts(&server, "slow").len(), 1, "what it wrote late is gone");
    assert_eq!((latest(&server), leases(&server)), ("slow".to_owned(), Vec::new()));
}

#[test]
fn a_file_that_arrives_after_its_writer_was_swept_and_died_goes_with_the_next_run() {
    let server = server();
    let mut slow = swept_before_its_commit(&server, "PutObject slow/ metrics/", 1);
    slow.kill().unwrap();
    slow.wait().unwrap();
    let run = server.bucket().join("out/runs/slow");
    let attempt = first_attempt(&server);
    assert_eq!((run.join(&attempt).join("metrics").exists(), leases(&server).len()), (false, 0));
    // This server drops the request of a client that is gone; another server may still carry it out.
    let late = run.join(&attempt).join("metrics/part-00000.parquet");
    std::fs::create_dir_all(late.parent().unwrap()).unwrap();
    std::fs::write(&late, "late").unwrap();
    summary(&server, &["--set", "sink.run_id=slow"]);
    assert_eq!(attempts(&server, "slow"), [manifest(&run)["attempt"].as_str().unwrap()]);
    assert!(!late.exists());
}

#[test]
fn a_writer_that_shows_itself_while_others_are_swept_is_spared() {
    let server = server();
    let out = server.bucket().join("out");
    for id in ["dead-1", "dead-2"] {
        let set = format!("sink.run_id={id}");
        die_after(&server, &format!("PutObject {id}/ labels/"), &set);
        move_to_another_machine(&out);
    }
    let hour_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for lease in leases(&server) {
        std::fs::File::open(lease).unwrap().set_modified(hour_ago).unwrap();
    }
    server.forget_requests();
    let mut sweeper = held_at(&server, "PutObject dead- manifest.json", &["sink.run_id=next"]);
    // The sweeper listed the leases and took both writers for dead. Now the second one renews its lease.
    let swept = if server.count("PutObject dead-1 manifest.json") == 1 { 1 } else { 2 };
    let spared = format!("dead-{}", 3 - swept);
    for lease in leases(&server) {
        let text = std::fs::read_to_string(&lease).unwrap();
        if text.contains(&spared) {
            std::fs::write(&lease, text).unwrap();
        }
    }
    server.release();
    assert!(sweeper.wait().unwrap().success());
    assert_eq!(attempts(&server, &spared).len(), 1);
    assert!(!out.join("runs").join(&spared).join("manifest.json").exists());
    assert_eq!(attempts(&server, &format!("dead-{swept}")).len(), 0);
    assert_eq!(leases(&server).len(), 1);
}

#[test]
fn a_store_that_cannot_hold_a_commit_is_found_out_before_the_rows_are_read() {
    let server = server();
    let cases = [(Fault::Unconditional, 2, "If-None-Match"), (Fault::Denied, 5, "sink.url")];
    for (fault, code, says) in cases {
        server.fault(fault, "PutObject /out/_leases/", 0, 1_000);
        server.forget_requests();
        let output = server.run(&job(&[]));
        server.forget_faults();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
        assert_eq!(server.count("GetObject /in/"), 0);
        assert_eq!(leases(&server), Vec::<PathBuf>::new());
    }
}

/// The attempt of the run `slow` that wrote the first part.
fn first_attempt(server: &Server) -> String {
    let mut lines = (0..server.count("")).map(|n| server.line(n));
    let first = lines.find(|line| line.contains("/slow/") && line.contains("part-")).unwrap();
    first.split('/').skip_while(|part| *part != "slow").nth(1).unwrap().to_owned()
}
