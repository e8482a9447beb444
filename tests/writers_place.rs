//! A place that many writers publish to, and what must hold there whatever happens to the writers.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use labelmill::testing::synth::CrowdShape;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

use crate::s3_server::{Fault, Server};
use crate::support::{committed, files_of, labelmill, manifest, read_batches, write_numbers};

/// The sizes of the two inputs, which differ so that a mixture of two runs would show.
pub const INSTANCES: [u32; 2] = [4_000, 3_900];

/// The requests that change what a server stores. The others are named `Get...`, `Head...` and `List...`.
const CHANGES: &str = "Put|Delete|Upload";

/// Annotations per instance.
pub const REDUNDANCY: u32 = 10;

/// A place to publish to, and the input files of the jobs that publish there.
pub struct WritersPlace {
    pub folder: PathBuf,
    pub server: Option<Server>,
    _temporary: tempfile::TempDir,
}

/// The published run and the committed runs that readers see at one moment.
pub struct Seen {
    /// The run that readers see and its number of labels.
    published: Option<(String, usize)>,
    /// When each run was committed, by id.
    committed: BTreeMap<String, String>,
}

impl WritersPlace {
    /// On local disk, or on a server.
    pub fn new(server: Option<Server>, instances: [u32; 2], classes: u32) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let folder = server.as_ref().map_or(temporary.path().to_path_buf(), Server::bucket);
        for (n, instances) in instances.into_iter().enumerate() {
            let crowd =
                CrowdShape { instances, classes, redundancy: REDUNDANCY, ..CrowdShape::default() };
            write_numbers(&folder.join(format!("in-{n}/crowd.parquet")), &crowd.draw(1).rows);
        }
        Self { folder, server, _temporary: temporary }
    }

    /// Starts the job of a round, always with --force: rounds alternate between the two inputs.
    pub fn spawn(&self, round: usize, more: &[&str]) -> Child {
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

    /// The run id of a round: three rounds share one, so that the later ones get a number behind it.
    pub fn id(round: usize) -> String {
        format!("job-{}", round / 3)
    }

    pub fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    /// Runs a round undisturbed and returns how long it took.
    pub fn run(&self, round: usize, more: &[&str]) -> Duration {
        let start = Instant::now();
        assert!(self.spawn(round, more).wait().unwrap().success());
        start.elapsed()
    }

    /// The run that readers see: its id and its number of labels. Asserts that the run is complete.
    pub fn published(&self) -> Option<(String, usize)> {
        let text = std::fs::read(self.out().join("latest.json")).ok()?;
        let latest: Value = serde_json::from_slice(&text).unwrap();
        let id = latest["run_id"].as_str().unwrap().to_owned();
        let labels = assert_whole(&self.out().join("runs").join(&id));
        if self.server.is_none() {
            let link = self.out().join("latest").canonicalize().unwrap();
            assert_eq!(link, files_of(&self.out().join("runs").join(&id)).canonicalize().unwrap());
        }
        Some((id, labels))
    }

    /// The run that readers see, and every committed run with its time.
    pub fn seen(&self) -> Seen {
        let runs = std::fs::read_dir(self.out().join("runs")).into_iter().flatten().flatten();
        let at = |run: PathBuf| Some(committed(&run)?["committed_at"].as_str()?.to_owned());
        let name = |run: &Path| run.file_name().unwrap().to_string_lossy().into_owned();
        let runs = runs.filter_map(|run| Some((name(&run.path()), at(run.path())?)));
        Seen { published: self.published(), committed: runs.collect() }
    }

    /// After a kill in a round, readers must see the run that they saw before or the run of this round; or, if the
    /// killed writer had moved `latest` to a run whose own writer was killed right after its commit, that run. Returns
    /// whether they see the run of this round.
    pub fn assert_old_or_new(&self, round: usize, before: &Seen) -> bool {
        let now = self.published();
        if now == before.published {
            return false;
        }
        let (id, labels) = now.unwrap();
        if let Some(at) = before.committed.get(&id) {
            let shown = before.published.as_ref().and_then(|(id, _)| before.committed.get(id));
            assert!(shown.is_none_or(|shown| shown < at), "round {round} goes back to {id}");
            return false;
        }
        assert!(id.starts_with(&Self::id(round)), "round {round} shows {id}");
        assert_eq!(labels, self.instances(round), "round {round} shows {id}");
        true
    }

    pub fn instances(&self, round: usize) -> usize {
        let path = self.folder.join(format!("in-{}/crowd.parquet", round % 2));
        rows(&path) / REDUNDANCY as usize
    }

    /// Runs a round whose writer is killed at a matching request, after the first `skip`; returns whether it survived
    /// because it sent no such request.
    pub fn killed_at(&self, requests: &str, skip: usize, round: usize) -> bool {
        let server = self.server.as_ref().unwrap();
        server.forget_requests();
        server.fault(Fault::KillAfter, requests, skip, 1);
        let mut child = self.spawn(round, &[]);
        server.set_victim(Some(child.id()));
        let lived = child.wait().unwrap().success();
        assert_eq!(server.forget_faults(), usize::from(lived), "request {skip}");
        lived
    }

    /// Kills a run at its first request, another at the first request that changes what the server stores, the next at
    /// the second such request, and so on, until a run survives because it sends fewer. A kill at any other request
    /// leaves what a kill at the change before it leaves. Calls `prepare` with the round before each. Returns the
    /// requests after whose kill readers saw the new run.
    pub fn survives_a_kill_at_each_request(&self, prepare: impl Fn(usize)) -> Vec<String> {
        let mut new = Vec::new();
        let changes = (0..).map(|n| (CHANGES, n));
        for (n, (requests, skip)) in std::iter::once(("", 0)).chain(changes).enumerate() {
            let round = 3 * (n + 1);
            prepare(round);
            let before = self.seen();
            let lived = self.killed_at(requests, skip, round);
            if self.assert_old_or_new(round, &before) {
                new.push(self.server.as_ref().unwrap().line_of(requests, skip));
            }
            if lived {
                let [all, changes, others] = ["", CHANGES, "Get|Head|List"]
                    .map(|requests| self.server.as_ref().unwrap().count(requests));
                assert_eq!(all, changes + others, "each request changes something or only reads");
                break;
            }
            self.run(round + 1, &[]);
            self.assert_clean();
            self.remove_older_runs();
        }
        new
    }

    /// Removes every run but the published one, so that listings take the server less time: for each it walks through all
    /// files.
    fn remove_older_runs(&self) {
        let (published, _) = self.published().unwrap();
        for run in std::fs::read_dir(self.out().join("runs")).unwrap().map(Result::unwrap) {
            if run.file_name() != *published {
                std::fs::remove_dir_all(run.path()).unwrap();
            }
        }
    }

    /// The files below runs/ that no manifest lists.
    pub fn unfinished(&self) -> Vec<PathBuf> {
        let runs = std::fs::read_dir(self.out().join("runs")).into_iter().flatten();
        let mut unfinished = Vec::new();
        for run in runs.map(|e| e.unwrap().path()) {
            let listed: Vec<PathBuf> = committed(&run).map_or(Vec::new(), |manifest| {
                let tables = manifest["tables"].as_object().unwrap().values();
                let files = tables.flat_map(|files| files.as_array().unwrap().clone());
                files.map(|file| run.join(file["path"].as_str().unwrap())).collect()
            });
            let is_control = |path: &PathBuf| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with("manifest") || name == "_latest.json"
            };
            let files = files(&run).into_iter();
            unfinished.extend(files.filter(|f| !listed.contains(f) && !is_control(f)));
        }
        unfinished
    }

    /// Asserts that only files of committed runs are left.
    pub fn assert_clean(&self) {
        assert_eq!(self.unfinished(), Vec::<PathBuf>::new());
        let names = ["latest.json", "_latest.json", "latest.lock"];
        let strange = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            !names.contains(&&*name) && !name.starts_with("manifest") && !name.ends_with(".parquet")
        };
        let strays: Vec<PathBuf> = files(&self.out()).into_iter().filter(strange).collect();
        assert_eq!(strays, Vec::<PathBuf>::new());
    }
}

/// Changes the leases in a sink's folder as if their writers ran on another machine: then nobody can check whether the
/// processes exist, and only a long silence shows that a writer is dead. Each lease keeps its length and its time.
pub fn move_to_another_machine(out: &Path) {
    for (file, modified) in leases(out) {
        let text = std::io::read_to_string(&file).unwrap();
        let Some(at) = text.find("\"pid_namespace\": \"") else { continue };
        let first = at + "\"pid_namespace\": \"".len();
        file.write_all_at(b"~", first as u64).unwrap();
        file.set_modified(modified).unwrap();
    }
}

/// Sets the leases in a sink's folder back in time, as if their writers had not touched them for this much longer. The
/// writers must be dead or suspended: a living one soon touches its lease again.
pub fn age_leases(out: &Path, silent: Duration) {
    for (lease, modified) in leases(out) {
        lease.set_modified(modified - silent).unwrap();
    }
}

/// Makes all committed runs in a sink's folder look older, because the times of a store have a resolution of a second.
pub fn age_runs(out: &Path) {
    for run in std::fs::read_dir(out.join("runs")).unwrap() {
        for file in std::fs::read_dir(run.unwrap().path()).unwrap().map(|e| e.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "json") {
                let manifest = File::options().write(true).open(file).unwrap();
                let modified = manifest.metadata().unwrap().modified().unwrap();
                manifest.set_modified(modified - Duration::from_secs(2)).unwrap();
            }
        }
    }
}

/// The leases in a sink's folder and their times, without those that vanish meanwhile: a server still carries out what
/// a writer asked for before it was suspended.
fn leases(out: &Path) -> Vec<(File, SystemTime)> {
    let entries = std::fs::read_dir(out.join("_leases")).into_iter().flatten().flatten();
    let files = entries.filter_map(|e| File::options().read(true).write(true).open(e.path()).ok());
    let with_time = |file: File| {
        let modified = file.metadata().unwrap().modified().unwrap();
        (file, modified)
    };
    files.map(with_time).collect()
}

/// Every file below a folder; links are not followed, and the link `latest` is left out.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_type().unwrap().is_symlink() || entry.file_name() != "latest")
        .flat_map(|entry| match entry.file_type().unwrap().is_dir() {
            true => files(&entry.path()),
            false => vec![entry.path()],
        })
        .collect()
}

pub fn rows(path: &Path) -> usize {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap()
}

/// Asserts that every file in the manifest exists with its size and number of rows; returns the number of labels.
pub fn assert_whole(run: &Path) -> usize {
    let manifest = manifest(run);
    let tables = manifest["tables"].as_object().unwrap();
    assert_eq!(tables.len(), labelmill::tables::TABLES.len());
    for file in tables.values().flat_map(|files| files.as_array().unwrap()) {
        let path = run.join(file["path"].as_str().unwrap());
        let bytes =
            std::fs::metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).len();
        assert_eq!(Some(bytes), file["bytes"].as_u64(), "{}", path.display());
        assert_eq!(Some(rows(&path) as u64), file["rows"].as_u64(), "{}", path.display());
    }
    read_batches(&files_of(run), "labels").iter().map(|batch| batch.num_rows()).sum()
}
