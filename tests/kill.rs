//! Whenever a writer dies, readers see the last run or the new one, complete, and the next run cleans up.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use labelmill::job_context::JobContext;
use rand::Rng;

use crate::job::{Job, assert_says, vote};
use crate::s3_server::{Fault, Server};
use crate::support::{read_table, send_signal, text};
use crate::writers_place::{INSTANCES, WritersPlace};

/// Kills this many rounds at seeded random moments, spread over the time that an undisturbed round takes: measured anew
/// where no kill came while tables were written, because the machine had other work in one of the two times.
fn survives_kills(location: &WritersPlace, rounds: usize) {
    let mut moments = JobContext::new(7).rng("kills");
    let (mut new, mut torn, mut round) = (0, 0, 0);
    for _ in 0..4 {
        let whole = location.run(round, &[]).max(location.run(round + 1, &[]));
        round += 2;
        for n in 0..rounds {
            let before = location.seen();
            let mut child = location.spawn(round, &[]);
            let share = (n as f64 + moments.random::<f64>()) / rounds as f64;
            std::thread::sleep(whole.mul_f64(share));
            child.kill().unwrap();
            child.wait().unwrap();
            torn += usize::from(!location.unfinished().is_empty());
            new += usize::from(location.assert_old_or_new(round, &before));
            round += 1;
        }
        eprintln!("{rounds} kills within {whole:?}: {torn} while writing, {new} after the commit");
        if torn > 0 {
            break;
        }
    }
    assert!(torn > 0, "no kill came while tables were written");
    location.run(round, &[]);
    assert_eq!(location.published().unwrap().1, location.instances(round));
    location.assert_clean();
}

#[test]
fn a_kill_at_any_moment_leaves_the_last_run_or_the_new_one_on_disk() {
    survives_kills(&WritersPlace::new(None, INSTANCES, 55), 25);
}

#[test]
fn a_kill_at_any_moment_leaves_the_last_run_or_the_new_one_on_s3() {
    survives_kills(&WritersPlace::new(Some(Server::start()), INSTANCES.map(|n| n / 2), 55), 15);
}

#[test]
fn a_kill_at_each_request_to_s3_leaves_the_last_run_or_the_new_one() {
    let location = WritersPlace::new(Some(Server::start()), [40, 30], 3);
    location.run(0, &[]);
    let new = location.survives_a_kill_at_each_request(|_| ());
    assert!(new[0].starts_with("PutObject /crowd/out/latest.json"), "{new:?}");
}

#[test]
fn a_kill_at_each_request_to_s3_of_a_run_that_takes_over_leaves_nothing() {
    let location = WritersPlace::new(Some(Server::start()), [40, 30], 3);
    location.run(0, &[]);
    location.survives_a_kill_at_each_request(|round| {
        let lived = location.killed_at("PutObject /crowd/out/runs", 3, round);
        assert!(!lived && !location.unfinished().is_empty(), "round {round}");
    });
}

#[test]
fn a_kill_at_each_step_of_the_commit_on_disk_leaves_the_last_run_or_the_new_one() {
    let location = WritersPlace::new(None, [40, 30], 3);
    location.run(0, &[]);
    for round in 1..25 {
        let before = location.seen();
        let steps = ["labels", "manifest.json", "run/part-00000.parquet", "_latest.json"];
        let mut child = location.spawn(3 * round, &[]);
        let run = location.out().join("runs").join(WritersPlace::id(3 * round));
        let is_there = || {
            let attempts = std::fs::read_dir(&run).into_iter().flatten().flatten();
            attempts
                .map(|e| e.path())
                .chain([run.clone()])
                .any(|f| f.join(steps[round % 4]).exists())
        };
        while !is_there() && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        location.assert_old_or_new(3 * round, &before);
    }
    location.run(100, &[]);
    location.assert_clean();
}

/// The exit code, or the shell's code for death by a signal: a program cannot catch signals before it runs.
fn shell_code(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

#[test]
fn a_signal_stops_the_job_with_its_code_and_leaves_nothing() {
    let location = WritersPlace::new(None, INSTANCES, 55);
    let whole = location.run(0, &[]);
    let before = location.published();
    // A fit that never ends, so that even on a slow machine no signal comes after the commit.
    let endless = ["--set", "model.stop.max_iter=1000000000", "--set", "model.stop.tol=0"];
    for (n, (signal, code)) in [("TERM", 143), ("INT", 130)].into_iter().cycle().take(6).enumerate()
    {
        let mut child = location.spawn(3, &endless);
        std::thread::sleep(whole.mul_f64(0.2 * n as f64));
        assert_eq!(child.try_wait().unwrap(), None, "attempt {n} ended by itself");
        send_signal(child.id(), signal);
        assert_eq!(shell_code(child.wait().unwrap()), Some(code), "SIG{signal}, attempt {n}");
        assert_eq!(location.published(), before);
        location.assert_clean();
    }
}

#[test]
fn a_signal_between_two_uploads_to_s3_leaves_nothing() {
    let location = WritersPlace::new(Some(Server::start()), [40, 30], 3);
    let server = location.server.as_ref().unwrap();
    location.run(0, &[]);
    let before = location.published();
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        server.forget_requests();
        server.fault(Fault::Hold, "PutObject posteriors/", 0, 1);
        let mut child = location.spawn(3, &[]);
        server.wait_for("PutObject posteriors/", 1);
        send_signal(child.id(), signal);
        // The process must receive the signal before the upload ends.
        std::thread::sleep(Duration::from_millis(50));
        server.release();
        assert_eq!(child.wait().unwrap().code(), Some(code), "SIG{signal}");
        assert_eq!(location.published(), before);
        location.assert_clean();
    }
}

// keys: engine.checkpoints
#[test]
fn checkpoints_that_a_kill_after_the_commit_left_go_with_the_next_run() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,x\n");
    let pipeline = vote("in.csv", "engine.checkpoints = '{dir}checkpoints'");
    let id = text(&read_table(&job.run(&pipeline), "run")[0], "run_id");
    let own = ["0.checkpoint", "12.checkpoint", "0.checkpoint.x7.unfinished"];
    for name in own {
        job.write(&format!("checkpoints/{id}-{name}"), "state");
    }
    let foreign = [
        "0000000000000000-0.checkpoint".to_owned(),
        format!("{id}-01.checkpoint"),
        format!("{id}-0.checkpoint.bak"),
        format!("{id}.checkpoint"),
    ];
    for name in &foreign {
        job.write(&format!("checkpoints/{name}"), "state");
    }
    assert_says(&job.ends(&pipeline, &[], 0), &["nothing to do"]);
    let left = std::fs::read_dir(job.path("checkpoints")).unwrap();
    let left: BTreeSet<String> =
        left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, BTreeSet::from(foreign));
}
