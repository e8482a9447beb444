//! A sink in a temporary folder, with leases and commits of any age, for the tests of the protocol's steps.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use chrono::Utc;
use tempfile::TempDir;

use super::control::json;
use super::lease::{Lease, Process};
use super::manifest::manifest_names::{Committed, RunState};
use super::parquet_sink::ParquetSink;
use super::publish::attempt::Attempt;
use crate::sink::{CommittedRun, FileEntry, SinkSpec};
use crate::store::StoreSpec;

/// The pipeline of every commit.
pub(super) const PIPELINE: &str = "p";

/// Silence after which a writer on another machine counts as dead, in seconds.
const STALE_AFTER: u64 = 60;

/// A sink on local disk.
pub(super) struct TestSink {
    pub(super) sink: ParquetSink,
    folder: TempDir,
}

impl TestSink {
    pub(super) fn new(keep_runs: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = SinkSpec {
            url: folder.path().display().to_string(),
            stale_after_seconds: STALE_AFTER,
            sync: false,
            keep_runs,
            ..SinkSpec::default()
        };
        Self { sink: ParquetSink::open(&spec, &StoreSpec::default()).unwrap(), folder }
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    /// Writes a file that was last modified so many seconds ago.
    pub(super) fn write(&self, below: &str, content: &[u8], seconds_ago: u64) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        self.age(below, seconds_ago);
    }

    pub(super) fn age(&self, below: &str, seconds_ago: u64) {
        let at = Utc::now() - Duration::from_secs(seconds_ago);
        let file = File::options().write(true).open(self.path(below)).unwrap();
        file.set_modified(at.into()).unwrap();
    }

    /// The attempt of this process, at the run `own`.
    pub(super) async fn begin(&self) -> Attempt {
        self.sink.begin_attempt("own", 1, tables(), "").await.unwrap()
    }

    /// Writes the lease and a file of a writer on another machine, which showed itself so many seconds ago.
    pub(super) fn writer_elsewhere(&self, name: char, run_id: &str, seconds_ago: u64) -> Lease {
        let lease = Lease {
            attempt: attempt(name),
            run_id: run_id.to_owned(),
            manifest_number: 1,
            tables: tables(),
            made_folder: false,
            silence_seconds: STALE_AFTER,
            process: Process::elsewhere(),
        };
        self.write(&lease_file(name), &json(&lease), seconds_ago);
        self.write(&part(run_id, name), b"rows", 0);
        lease
    }

    /// Commits a run: so many seconds ago by the store's clock, and at `committed_at` by its writer's.
    pub(super) async fn commit(
        &self,
        run_id: &str,
        attempt: &str,
        seconds_ago: u64,
        committed_at: &str,
    ) -> Committed {
        let path = [attempt, "labels/part-00000.parquet"].join("/");
        let path = path.trim_start_matches('/').to_owned();
        self.write(&format!("runs/{run_id}/{path}"), b"rows", 0);
        let manifest = CommittedRun {
            run_id: run_id.to_owned(),
            attempt: attempt.to_owned(),
            pipeline: PIPELINE.to_owned(),
            digest: run_id.to_owned(),
            labelmill: String::new(),
            schema_version: 1,
            committed_at: committed_at.to_owned(),
            tables: BTreeMap::from([(
                "labels".to_owned(),
                vec![FileEntry { path, rows: 1, bytes: 4 }],
            )]),
            model: Vec::new(),
            measures: serde_json::Value::Null,
            missing: Vec::new(),
        };
        self.write(&format!("runs/{run_id}/manifest.json"), &json(&manifest), seconds_ago);
        let RunState::Committed(committed) =
            self.sink.run_state(&self.sink.run_path(run_id)).await.unwrap()
        else {
            panic!("{run_id} is not committed")
        };
        *committed
    }

    /// Whether each run is committed.
    pub(super) async fn are_committed<const N: usize>(&self, run_ids: [&str; N]) -> [bool; N] {
        let states = self.sink.run_states(&run_ids.map(str::to_owned)).await;
        let are: Vec<bool> =
            states.iter().map(|s| matches!(s, Ok(RunState::Committed(_)))).collect();
        are.try_into().unwrap()
    }
}

pub(super) fn attempt(name: char) -> String {
    name.to_string().repeat(16)
}

/// The lease of an attempt, below the sink's folder.
pub(super) fn lease_file(name: char) -> String {
    format!("_leases/{}.json", attempt(name))
}

/// A file of an attempt, below the sink's folder.
pub(super) fn part(run_id: &str, name: char) -> String {
    format!("runs/{run_id}/{}/labels/part-00000.parquet", attempt(name))
}

fn tables() -> Vec<String> {
    vec!["labels".to_owned()]
}
