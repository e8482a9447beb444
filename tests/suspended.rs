//! Writers that are suspended for longer than the silence that they promised, and wake up after others have published:
//! on this machine, where others know that they are alive, and on another machine, where others take them for dead.
//!
//! Every test run does ten rounds on disk and ten on S3; `LABELMILL_SUSPENSIONS=200 cargo test suspended` does 200 of
//! each.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::UInt32Type;
use labelmill::job_context::{JobContext, Rng};
use rand::Rng as _;

use crate::s3_server::{Fault, Server};
use crate::support::{committed, files_of, read_batches, send_signal};
use crate::writers_place::{WritersPlace, age_leases, assert_whole, move_to_another_machine};

fn rounds() -> usize {
    let asked = std::env::var("LABELMILL_SUSPENSIONS").ok();
    asked.map_or(10, |rounds| rounds.parse().expect("a number of rounds"))
}

/// The silence that the suspended writer promises, and the silence that others find.
const PROMISED: [&str; 2] = ["--set", "sink.stale_after_seconds=1"];
const SILENT: Duration = Duration::from_millis(2_200);

/// In every round a writer is suspended at a random moment, another writer runs, and the first one wakes up. In even
/// rounds both want the same run id for different inputs, so that a mixture would show. In every third round the
/// suspended writer stays on this machine. On S3 one request of the suspended writer is held until the other writer has
/// ended; in every other pair of rounds this is the request that commits.
fn survives_suspensions(location: &WritersPlace, seed: u64) {
    let mut moments = JobContext::new(seed).rng("suspensions");
    let whole = location.run(0, &[]).max(location.run(1, &[]));
    let (mut suspended, mut late) = (0, 0);
    for n in 0..rounds() {
        let round = 3 * (n + 1);
        let own = WritersPlace::id(round);
        let mut slow = location.spawn(round, &[&PROMISED[..], &["--set", &setting(&own)]].concat());
        suspend(location, &slow, n, whole, &mut moments);
        let other = if n % 2 == 0 { own.clone() } else { format!("beside-{n}") };
        let is_here = n % 3 == 2;
        if !is_here {
            move_to_another_machine(&location.out());
        }
        // The promised silence must be over when the other writer checks the leases. Others know it only by the times
        // of the leases, which the suspended writer does not touch.
        age_leases(&location.out(), SILENT);
        let quick = location.spawn(round + 1, &["--set", &setting(&other)]).wait().unwrap();
        suspended += usize::from(slow.try_wait().unwrap().is_none());
        late += location.server.as_ref().map_or(0, Server::n_held);
        wake(location, &slow);
        let slow = slow.wait().unwrap();
        let shown = assert_all_whole(location);
        // The suspended writer does nothing while the other one runs, so the other one must succeed.
        assert!(quick.success(), "round {round}: {quick}");
        // The suspended writer fails only if the other one took its run id meanwhile.
        let is_taken =
            own == other && shown.contains(&(own.clone(), location.instances(round + 1)));
        let taken = is_taken && slow.code() == Some(5);
        assert!(slow.success() || taken, "round {round}: {slow}");
        for (n, ended, id) in [(round, slow, own), (round + 1, quick, other)] {
            // Forced runs have a number behind their id; the two inputs have different sizes.
            let is_own = |(run, labels): &(String, usize)| {
                (*run == id || run.starts_with(&format!("{id}-")))
                    && *labels == location.instances(n)
            };
            assert!(!ended.success() || shown.iter().any(is_own), "round {n}: `{id}` is not there");
        }
    }
    assert!(suspended > 0, "nobody was suspended while it ran");
    assert!(late > 0 || location.server.is_none(), "no request came late");
    location.run(3 * (rounds() + 2), &[]);
    location.assert_clean();
}

fn setting(run_id: &str) -> String {
    format!("sink.run_id={run_id}")
}

/// Stops the writer at a random moment; on S3 also holds one of its requests until the writer wakes up.
fn suspend(location: &WritersPlace, slow: &Child, n: usize, whole: Duration, moments: &mut Rng) {
    let is_commit = n % 4 < 2;
    if let Some(server) = &location.server {
        server.forget_requests();
        match is_commit {
            true => server.fault(Fault::Hold, "PutObject manifest", 0, 1),
            false => server.fault(Fault::Hold, "PutObject", moments.random_range(0..16), 1),
        }
    }
    std::thread::sleep(whole.mul_f64(moments.random::<f64>()));
    if let Some(server) = location.server.as_ref().filter(|_| is_commit) {
        server.wait_for("PutObject manifest", 1);
    }
    send_signal(slow.id(), "STOP");
    if let Some(server) = &location.server {
        // Requests that were sent before the suspension arrive first.
        std::thread::sleep(Duration::from_millis(100));
        // If the writer has not sent that request yet, the fault must not hit the other writer.
        server.forget_plans();
    }
}

fn wake(location: &WritersPlace, slow: &Child) {
    send_signal(slow.id(), "CONT");
    if let Some(server) = &location.server {
        server.release();
    }
}

/// Asserts that every committed run has its files with their sizes and rows, and that its tables belong together;
/// returns the ids of the runs and their numbers of labels.
fn assert_all_whole(location: &WritersPlace) -> Vec<(String, usize)> {
    let mut ids = Vec::new();
    for run in std::fs::read_dir(location.out().join("runs")).unwrap() {
        let run = run.unwrap();
        if committed(&run.path()).is_none() {
            continue;
        }
        let labels = assert_whole(&run.path());
        let files = files_of(&run.path());
        assert_eq!(instances(&files, "labels"), instances(&files, "posteriors"), "{run:?}");
        assert_eq!(instances(&files, "labels").len(), labels, "{run:?}");
        ids.push((run.file_name().into_string().unwrap(), labels));
    }
    location.published().expect("a run is published");
    ids
}

fn instances(files: &Path, table: &str) -> BTreeSet<u32> {
    let column = |batch: &arrow::array::RecordBatch| {
        let ids = batch.column_by_name("instance_id").unwrap();
        ids.as_primitive::<UInt32Type>().values().to_vec()
    };
    read_batches(files, table).iter().flat_map(column).collect()
}

#[test]
fn writers_that_wake_up_mix_nothing_and_lose_nothing_on_disk() {
    survives_suspensions(&WritersPlace::new(None, [2_000, 1_900], 55), 3);
}

#[test]
fn writers_that_wake_up_mix_nothing_and_lose_nothing_on_s3() {
    survives_suspensions(&WritersPlace::new(Some(Server::start()), [400, 380], 9), 4);
}
