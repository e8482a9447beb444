//! Whatever moment a writer dies at, readers see the last run or the new one, whole, and the next run cleans up.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use labelmill::run::Run;
use labelmill::testing::synth::Crowd;
use rand::Rng;
use serde_json::Value;

use crate::s3_server::{Fault, Server};
use crate::support::{labelmill, read_batches, send_signal, write_numbers};

/// Two inputs of different sizes, so that a mixture of two runs would show.
const INSTANCES: [u32; 2] = [20_000, 19_500];

/// Annotations of an instance.
const REDUNDANCY: u32 = 10;

/// A place to publish to and the files that it is published from.
struct Site {
    folder: PathBuf,
    server: Option<Server>,
    _temporary: tempfile::TempDir,
}

impl Site {
    /// On local disk, or on a server.
    fn new(server: Option<Server>, instances: [u32; 2], classes: u32) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let folder = server.as_ref().map_or(temporary.path().to_path_buf(), Server::bucket);
        for (n, instances) in instances.into_iter().enumerate() {
            let crowd = Crowd { instances, classes, redundancy: REDUNDANCY, ..Crowd::default() };
            write_numbers(&folder.join(format!("in-{n}/crowd.parquet")), &crowd.draw(1).rows);
        }
        Self { folder, server, _temporary: temporary }
    }

    /// Starts the job of a round: every one is another job, or the same with --force.
    fn spawn(&self, round: usize, more: &[&str]) -> Child {
        let root = match &self.server {
            Some(_) => "s3://crowd".to_owned(),
            None => self.folder.display().to_string(),
        };
        let (input, output) = (format!("{root}/in-{}", round % 2), format!("{root}/out"));
        let id = format!("sink.run_id={}", Self::id(round));
        let fixed = [
            "aggregate",
            "-q",
            "--annotations",
            &input,
            "--model",
            "dawid_skene",
            "--output",
            &output,
        ];
        let steps = ["--force", "--set", "model.stop.max_iter=3", "--set", &id];
        let args: Vec<&str> = fixed.iter().chain(&steps).chain(more).copied().collect();
        let mut command = match &self.server {
            Some(server) => server.labelmill(&args),
            None => {
                let mut command = labelmill();
                command.args(&args);
                command
            }
        };
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Every third round begins a new id; those between are forced runs beside it.
    fn id(round: usize) -> String {
        format!("job-{}", round / 3)
    }

    fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    /// Runs a round undisturbed and returns how long it took.
    fn run(&self, round: usize, more: &[&str]) -> Duration {
        let start = Instant::now();
        assert!(self.spawn(round, more).wait().unwrap().success());
        start.elapsed()
    }

    /// Runs a round that removes whatever dead ones left. On disk, what no lease names, such as a file staged beside
    /// `latest`, goes only when it is old.
    fn run_that_sweeps(&self, round: usize) {
        if self.server.is_some() {
            self.run(round, &[]);
        } else {
            std::thread::sleep(Duration::from_millis(1_100));
            self.run(round, &["--set", "sink.stale_after_seconds=1"]);
        }
    }

    /// The run that readers see, after every promise of a committed run was checked: its id and its labels.
    fn published(&self) -> Option<(String, usize)> {
        let text = std::fs::read(self.out().join("latest.json")).ok()?;
        let latest: Value = serde_json::from_slice(&text).unwrap();
        let id = latest["run_id"].as_str().unwrap().to_owned();
        let labels = assert_whole(&self.out().join("runs").join(&id));
        if self.server.is_none() {
            // A kill between the two switches leaves them on different runs, each of them whole.
            assert_whole(&self.out().join("latest"));
        }
        Some((id, labels))
    }

    /// After a kill in a round, readers must see what they saw before, or this round's run.
    fn assert_old_or_new(&self, round: usize, before: &Option<(String, usize)>) -> bool {
        let now = self.published();
        if now == *before {
            return false;
        }
        let (id, labels) = now.unwrap();
        assert!(id.starts_with(&Self::id(round)), "round {round} shows {id}");
        assert_eq!(labels, self.instances(round), "round {round} shows {id}");
        true
    }

    fn instances(&self, round: usize) -> usize {
        let path = self.folder.join(format!("in-{}/crowd.parquet", round % 2));
        rows(&path) / REDUNDANCY as usize
    }

    /// Runs a round that is killed once so many requests of a kind were answered; returns whether it met no such request.
    fn killed_at(&self, requests: &str, skip: usize, round: usize) -> bool {
        let server = self.server.as_ref().unwrap();
        server.forget_requests();
        server.fault(Fault::KillAfter, requests, skip, 1);
        let mut child = self.spawn(round, &[]);
        server.set_victim(Some(child.id()));
        let lived = child.wait().unwrap().success();
        assert_eq!(server.forget_faults(), usize::from(lived), "request {skip}");
        lived
    }

    /// Kills a run at its first request, another at its second, and so on, until one has so few that it lives; before
    /// each, `prepare` is given the round. Returns the requests whose kill came after the run could be seen.
    fn survives_a_kill_at_each_request(&self, prepare: impl Fn(usize)) -> Vec<String> {
        let mut new = Vec::new();
        for n in 0.. {
            let round = 3 * (n + 1);
            prepare(round);
            let before = self.published();
            let lived = self.killed_at("", n, round);
            if self.assert_old_or_new(round, &before) {
                new.push(self.server.as_ref().unwrap().line(n));
            }
            if lived {
                break;
            }
            self.run(round + 1, &[]);
            self.assert_clean();
        }
        new
    }

    /// The files of runs that were begun and not committed.
    fn unfinished(&self) -> Vec<PathBuf> {
        let runs = std::fs::read_dir(self.out().join("runs")).into_iter().flatten();
        let folders = runs.map(|e| e.unwrap().path()).filter(|f| !f.join("manifest.json").exists());
        folders.flat_map(|folder| files(&folder)).collect()
    }

    /// Nothing is left that is not part of a committed run.
    fn assert_clean(&self) {
        assert_eq!(self.unfinished(), Vec::<PathBuf>::new());
        let strange = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            !["manifest.json", "latest.json"].contains(&&*name) && !name.ends_with(".parquet")
        };
        let strays: Vec<PathBuf> = files(&self.out()).into_iter().filter(strange).collect();
        assert_eq!(strays, Vec::<PathBuf>::new());
    }
}

/// Every file below a folder; links are not followed.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_type().unwrap().is_symlink() || entry.file_name() != "latest")
        .flat_map(|entry| match entry.file_type().unwrap().is_dir() {
            true => files(&entry.path()),
            false => vec![entry.path()],
        })
        .collect()
}

fn rows(path: &Path) -> usize {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap()
}

/// Every file that the manifest names is there, of its size and with its rows; returns the number of labels.
fn assert_whole(run: &Path) -> usize {
    let manifest = std::fs::read(run.join("manifest.json"))
        .unwrap_or_else(|e| panic!("{}: {e}", run.display()));
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let tables = manifest["tables"].as_object().unwrap();
    assert_eq!(tables.len(), labelmill::tables::TABLES.len());
    for file in tables.values().flat_map(|files| files.as_array().unwrap()) {
        let path = run.join(file["path"].as_str().unwrap());
        let bytes =
            std::fs::metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).len();
        assert_eq!(Some(bytes), file["bytes"].as_u64(), "{}", path.display());
        assert_eq!(Some(rows(&path) as u64), file["rows"].as_u64(), "{}", path.display());
    }
    read_batches(run, "labels").iter().map(|batch| batch.num_rows()).sum()
}

/// Kills so many rounds at seeded moments spread over the time that an undisturbed one takes.
fn survives_kills(site: &Site, rounds: usize) {
    let whole = site.run(0, &[]).max(site.run(1, &[]));
    let mut moments = Run::new(7).rng("kills");
    let (mut new, mut torn) = (0, 0);
    for n in 0..rounds {
        let round = n + 2;
        let before = site.published();
        let mut child = site.spawn(round, &[]);
        std::thread::sleep(whole.mul_f64((n as f64 + moments.random::<f64>()) / rounds as f64));
        child.kill().unwrap();
        child.wait().unwrap();
        torn += usize::from(!site.unfinished().is_empty());
        new += usize::from(site.assert_old_or_new(round, &before));
    }
    eprintln!("{rounds} kills within {whole:?}: {torn} while writing, {new} after the commit");
    assert!(torn > 0, "no kill came while tables were written");
    site.run_that_sweeps(rounds + 2);
    assert_eq!(site.published().unwrap().1, site.instances(rounds + 2));
    site.assert_clean();
}

#[test]
fn a_kill_at_any_moment_leaves_the_last_run_or_the_new_one_on_disk() {
    survives_kills(&Site::new(None, INSTANCES, 55), 25);
}

#[test]
fn a_kill_at_any_moment_leaves_the_last_run_or_the_new_one_on_s3() {
    survives_kills(&Site::new(Some(Server::start()), INSTANCES.map(|n| n / 4), 55), 15);
}

#[test]
fn a_kill_at_each_request_to_s3_leaves_the_last_run_or_the_new_one() {
    let site = Site::new(Some(Server::start()), [40, 30], 3);
    site.run(0, &[]);
    let new = site.survives_a_kill_at_each_request(|_| ());
    // One request moves the pointer; one more ends the lease, and then the run lives.
    assert_eq!(new.len(), 3, "{new:?}");
    assert!(new[0].starts_with("PutObject /crowd/out/latest.json"), "{new:?}");
}

#[test]
fn a_kill_at_each_request_to_s3_of_a_run_that_takes_over_leaves_nothing() {
    let site = Site::new(Some(Server::start()), [40, 30], 3);
    site.run(0, &[]);
    site.survives_a_kill_at_each_request(|round| {
        let lived = site.killed_at("PutObject /crowd/out/runs", 3, round);
        assert!(!lived && !site.unfinished().is_empty(), "round {round}");
    });
}

#[test]
fn a_kill_at_each_step_of_the_commit_on_disk_leaves_the_last_run_or_the_new_one() {
    let site = Site::new(None, [40, 30], 3);
    site.run(0, &[]);
    for round in 1..25 {
        let before = site.published();
        let steps = ["_lease.json", "labels", "manifest.json", "run/part-00000.parquet"];
        let mut child = site.spawn(3 * round, &[]);
        let seen = site.out().join("runs").join(Site::id(3 * round)).join(steps[round % 4]);
        while !seen.exists() && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        site.assert_old_or_new(3 * round, &before);
    }
    site.run_that_sweeps(100);
    site.assert_clean();
}

#[test]
fn a_signal_stops_the_job_with_its_code_and_leaves_nothing() {
    let site = Site::new(None, INSTANCES, 55);
    let whole = site.run(0, &[]);
    let before = site.published();
    for (n, (signal, code)) in [("TERM", 143), ("INT", 130)].into_iter().cycle().take(6).enumerate()
    {
        let mut child = site.spawn(3, &[]);
        std::thread::sleep(whole.mul_f64(0.2 + 0.1 * n as f64));
        send_signal(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "SIG{signal}, attempt {n}");
        assert_eq!(site.published(), before);
        site.assert_clean();
    }
}

#[test]
fn a_signal_between_two_uploads_to_s3_leaves_nothing() {
    let site = Site::new(Some(Server::start()), [40, 30], 3);
    let server = site.server.as_ref().unwrap();
    site.run(0, &[]);
    let before = site.published();
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        server.forget_requests();
        server.fault(Fault::Hold, "PutObject posteriors/", 0, 1);
        let mut child = site.spawn(3, &[]);
        server.wait_for("PutObject posteriors/", 1);
        send_signal(child.id(), signal);
        // The signal must have come before the upload may end.
        std::thread::sleep(Duration::from_millis(50));
        server.release();
        assert_eq!(child.wait().unwrap().code(), Some(code), "SIG{signal}");
        assert_eq!(site.published(), before);
        site.assert_clean();
    }
}
