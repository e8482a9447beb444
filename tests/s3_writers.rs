//! Several writers to one place on S3: dead, running and suspended ones, and two of the same run.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crate::s3_job::{
    SILENT, assert_readable, attempts, die_after, held_at, job, latest, leases, run_folder, run_id,
    server, spawn, summary, swept_before_its_commit,
};
use crate::s3_server::Fault;
use crate::support::{committed, manifest, send_signal, stderr, table_files};
use crate::writers_place::{age_leases, age_runs, move_to_another_machine};

#[test]
fn the_next_run_sweeps_what_a_dead_one_left_and_spares_a_living_one() {
    let server = server();
    die_after(&server, "PutObject labels/", "sink.run_id=dead");
    assert_eq!((attempts(&server, "dead").len(), leases(&server).len()), (1, 1));
    let mut living = held_at(&server, "PutObject living/ metrics/", &["sink.run_id=living"]);
    let third = summary(&server, &["--set", "seed=3"]);
    assert_eq!((attempts(&server, "dead").len(), leases(&server).len()), (0, 1));
    assert_eq!(attempts(&server, "living").len(), 1);
    assert_eq!(latest(&server), run_id(&third));
    server.release();
    assert!(living.wait().unwrap().success());
    assert_eq!(leases(&server), Vec::<PathBuf>::new());
    assert_eq!(latest(&server), "living");
    // The dead writer might still commit as `manifest.json`, so that name is used up and the job takes the next one.
    assert_eq!(run_id(&summary(&server, &["--set", "sink.run_id=dead"])), "dead");
    assert!(server.bucket().join("out/runs/dead/manifest-2.json").exists());
    assert_readable(&server, "dead");
}

#[test]
fn a_name_is_used_up_though_the_files_of_its_dead_writer_cannot_be_removed() {
    let server = server();
    die_after(&server, "PutObject labels/", "sink.run_id=same");
    server.forget_requests();
    server.fault(Fault::Busy, "DeleteObjects", 0, 1_000);
    let args = ["--set", "sink.run_id=same", "--set", "store.max_retries=0"];
    let output = server.run(&job(&args));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(server.count("PutObject labels/"), 1, "the tables are written once");
    let message = stderr(&output);
    assert!(message.contains("what a dead run left could not be removed"), "{message}");
    assert!(!message.contains("took this run for dead"), "{message}");
    server.forget_faults();
    assert_readable(&server, "same");
}

#[test]
fn a_lease_that_cannot_be_read_stops_nobody() {
    let server = server();
    let name = "0123456789abcdef.json";
    std::fs::create_dir_all(server.bucket().join("out/_leases")).unwrap();
    std::fs::write(server.bucket().join("out/_leases").join(name), "{\"another\": 1}").unwrap();
    server.fault(Fault::Busy, &format!("GetObject {name}"), 0, 1_000);
    let output = server.run(&job(&["--set", "store.max_retries=0"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.contains("cannot be read: it is left alone") && message.contains(name),
        "{message}"
    );
    server.forget_faults();
    assert!(server.bucket().join("out/_leases").join(name).exists());
}

#[test]
fn the_same_job_runs_beside_its_dead_writer_and_beside_a_living_one() {
    let server = server();
    die_after(&server, "PutObject labels/", "sink.run_id=same");
    server.forget_requests();
    let mut slow = held_at(&server, "PutObject same/ metrics/", &["sink.run_id=same"]);
    let quick = summary(&server, &["--set", "sink.run_id=same"]);
    assert_eq!(attempts(&server, "same").len(), 2, "the dead one is gone, the slow one is there");
    let committed = manifest(&server.bucket().join("out/runs/same"));
    server.release();
    assert!(slow.wait().unwrap().success());
    assert_eq!(manifest(&server.bucket().join("out/runs/same")), committed);
    assert_eq!(attempts(&server, "same"), [committed["attempt"].as_str().unwrap()]);
    assert_eq!((latest(&server), run_id(&quick)), ("same".to_owned(), "same".to_owned()));
    assert_eq!(leases(&server), Vec::<PathBuf>::new());
}

#[test]
fn a_writer_that_died_after_its_commit_keeps_its_run_and_loses_its_lease() {
    let server = server();
    die_after(&server, "PutObject manifest", "sink.run_id=committed");
    let run = server.bucket().join("out/runs/committed");
    assert_eq!(leases(&server).len(), 1);
    let tables = table_files(&run);
    // The next job moves `latest` to the run of the dead writer.
    let again = summary(&server, &["--set", "sink.run_id=committed"]);
    assert_eq!((&again["no_op"], &again["latest"]), (&true.into(), &"committed".into()));
    summary(&server, &["--set", "sink.run_id=next"]);
    assert_eq!((leases(&server), table_files(&run)), (Vec::new(), tables));
    assert_eq!(latest(&server), "next");
}

#[test]
fn a_concurrent_commit_is_left_as_it_is_by_a_writer_that_comes_late() {
    let server = server();
    // The late writer has checked that the run does not exist yet, and now waits for its input.
    server.fault(Fault::Hold, "GetObject /in/", 1, 1);
    let mut late = spawn(&server, "seed=0");
    server.wait_for("GetObject /in/", 2);
    let first = summary(&server, &[]);
    let run = server.bucket().join("out/runs").join(run_id(&first));
    let (files, before) = (table_files(&run), manifest(&run));
    server.release();
    assert!(late.wait().unwrap().success());
    assert_eq!((table_files(&run), manifest(&run)), (files, before));
    assert_eq!(latest(&server), run_id(&first));
}

#[test]
fn a_signal_while_the_commit_is_under_way_waits_for_the_answer_and_tells_what_is_true() {
    for (signals, code, message) in [
        (1, 0, "waiting for the store"),
        (2, 143, "while the store was asked to commit: the run may be committed"),
    ] {
        let server = server();
        server.fault(Fault::Hold, "PutObject held/manifest.json", 0, 1);
        let mut writer = server.labelmill(&job(&["--set", "sink.run_id=held"]));
        let writer = writer.stderr(Stdio::piped()).spawn().unwrap();
        server.wait_for("PutObject held/manifest.json", 1);
        for _ in 0..signals {
            send_signal(writer.id(), "TERM");
            std::thread::sleep(Duration::from_millis(500));
        }
        server.release();
        let output = writer.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        if code == 0 {
            assert_readable(&server, "held");
            assert_eq!((latest(&server), leases(&server)), ("held".to_owned(), Vec::new()));
        }
    }
}

#[test]
fn a_writer_that_was_swept_while_it_was_suspended_writes_its_tables_again() {
    let server = server();
    let slow = swept_before_its_commit(&server, "PutObject slow/ metrics/", 1);
    server.release();
    let output = slow.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("took this run for dead"), "{}", stderr(&output));
    assert_readable(&server, "slow");
    assert_eq!(attempts(&server, "slow").len(), 1, "what it wrote late is gone");
    assert_eq!((latest(&server), leases(&server)), ("slow".to_owned(), Vec::new()));
}

#[test]
fn a_commit_that_arrives_after_its_writer_was_swept_is_none() {
    let server = server();
    let mut slow = swept_before_its_commit(&server, "PutObject slow/manifest.json", 1);
    slow.kill().unwrap();
    slow.wait().unwrap();
    // The held request to commit arrives now.
    server.release();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(committed(&server.bucket().join("out/runs/slow")), None);
    assert_eq!(run_id(&summary(&server, &["--set", "sink.run_id=slow"])), "slow");
    assert_readable(&server, "slow");
}

#[test]
fn a_living_writer_is_spared_for_as_long_as_it_promised_whatever_the_sweeper_thinks() {
    let server = server();
    let mut patient = held_at(&server, "PutObject patient/ metrics/", &["sink.run_id=patient"]);
    send_signal(patient.id(), "STOP");
    let out = server.bucket().join("out");
    move_to_another_machine(&out);
    age_leases(&out, SILENT);
    summary(&server, &["--set", "sink.stale_after_seconds=1"]);
    assert_eq!((attempts(&server, "patient").len(), leases(&server).len()), (1, 1));
    send_signal(patient.id(), "CONT");
    server.release();
    assert!(patient.wait().unwrap().success());
    assert!(server.bucket().join("out/runs/patient/manifest.json").exists());
}

#[test]
fn a_writer_on_this_machine_is_spared_however_long_it_is_suspended() {
    let server = server();
    let sets = ["sink.run_id=hasty", "sink.stale_after_seconds=1"];
    let mut hasty = held_at(&server, "PutObject hasty/ metrics/", &sets);
    send_signal(hasty.id(), "STOP");
    age_leases(&server.bucket().join("out"), SILENT);
    summary(&server, &["--set", "sink.stale_after_seconds=1"]);
    assert_eq!((attempts(&server, "hasty").len(), leases(&server).len()), (1, 1));
    send_signal(hasty.id(), "CONT");
    server.release();
    assert!(hasty.wait().unwrap().success());
    assert!(server.bucket().join("out/runs/hasty/manifest.json").exists());
}

// keys: sink.stale_after_seconds
#[test]
fn a_living_writer_renews_its_lease_within_its_silence() {
    let server = server();
    let sets = ["sink.run_id=hasty", "sink.stale_after_seconds=2"];
    let mut hasty = held_at(&server, "PutObject hasty/ metrics/", &sets);
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        let touched = std::fs::metadata(&leases(&server)[0]).unwrap().modified().unwrap();
        assert!(touched.elapsed().unwrap() < Duration::from_secs(2));
    }
    move_to_another_machine(&server.bucket().join("out"));
    summary(&server, &["--set", "sink.run_id=other"]);
    assert_eq!((attempts(&server, "hasty").len(), leases(&server).len()), (1, 1));
    server.release();
    assert!(hasty.wait().unwrap().success());
    assert!(server.bucket().join("out/runs/hasty/manifest.json").exists());
}

#[test]
fn a_writer_that_was_suspended_after_its_commit_does_not_take_latest_back() {
    let server = server();
    let mut old = held_at(&server, "PutObject latest.json", &["sink.run_id=old"]);
    age_runs(&server.bucket().join("out"));
    summary(&server, &["--set", "sink.run_id=new"]);
    server.release();
    assert!(old.wait().unwrap().success());
    assert_eq!(latest(&server), "new");
    assert_readable(&server, "old");
}

// keys: name, sink.keep_runs
#[test]
fn older_runs_of_the_same_pipeline_are_collected_and_nothing_else_is() {
    let server = server();
    let other = ["--set", "sink.run_id=other", "--set", "name=other"];
    summary(&server, &other);
    let foreign = server.bucket().join("out/runs/exp1/best.pt");
    std::fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    std::fs::write(&foreign, "weights").unwrap();
    let mut strange = PathBuf::new();
    for n in 1..=4 {
        let id = format!("sink.run_id=day-{n}");
        let kept = ["--set", "name=days", "--set", "sink.keep_runs=2"];
        let day = summary(&server, &[&["--set", &id][..], &kept].concat());
        if n == 1 {
            strange = run_folder(&server, &day).join("labels/notes.txt");
            std::fs::write(&strange, "mine").unwrap();
        }
        age_runs(&server.bucket().join("out"));
    }
    let is_kept = |id: &str| committed(&server.bucket().join("out/runs").join(id)).is_some();
    assert_eq!(
        ["day-1", "day-2", "day-3", "day-4", "other"].map(is_kept),
        [false, false, true, true, true]
    );
    assert_eq!(table_files(&server.bucket().join("out/runs/day-2")).len(), 0);
    assert!(foreign.exists() && strange.exists());
    assert_eq!(latest(&server), "day-4");
    // A job whose run was collected can run again.
    assert_eq!(summary(&server, &["--set", "sink.run_id=day-1"])["no_op"], false);
    assert_readable(&server, "day-1");
}

#[test]
fn a_writer_that_fails_lets_its_other_uploads_end_before_it_cleans_up() {
    let server = server();
    server.fault(Fault::Hold, "PutObject posteriors/", 0, 1);
    // The labels fail only after the upload of the posteriors began: after a failure the writer starts no more uploads.
    server.fault(Fault::BusyAfter("PutObject posteriors/"), "PutObject labels/", 0, 1);
    let args = ["-q", "--set", "store.max_retries=0", "--set", "sink.run_id=failing"];
    let mut failing = server.labelmill(&job(&args)).spawn().unwrap();
    server.wait_for("PutObject posteriors/", 1);
    server.wait_for("PutObject labels/", 1);
    // Time for a wrong clean-up that does not wait; an upload that ended after it would leave its file behind.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(failing.try_wait().unwrap(), None);
    assert_eq!(server.count("DeleteObjects"), 1, "of the lease that tried the store");
    server.release();
    assert_eq!(failing.wait().unwrap().code(), Some(5));
    assert_eq!(attempts(&server, "failing"), Vec::<String>::new());
    // A store that failed may still carry out a request, so the lease stays; the next run checks again and removes it.
    assert_eq!(leases(&server).len(), 1);
    summary(&server, &[]);
    assert_eq!(leases(&server), Vec::<PathBuf>::new());
}
