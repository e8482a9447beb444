//! The manifest: what a committed run holds. Its presence is the commit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The run's id.
    pub run_id: String,
    /// The attempt that wrote the files.
    #[serde(default)]
    pub attempt: String,
    /// The pipeline that the run belongs to: `sink.keep_runs` counts the runs of one pipeline.
    #[serde(default)]
    pub pipeline: String,
    /// The digest of spec and inputs: two runs with the same one are the same job.
    pub digest: String,
    /// The version of labelmill that wrote it.
    pub labelmill: String,
    /// The version of the tables' schemas.
    pub schema_version: u32,
    /// When it was committed, RFC 3339.
    pub committed_at: String,
    /// The files of each table, by path below the run's folder.
    pub tables: BTreeMap<String, Vec<FileEntry>>,
    /// The files of trained classifiers; `rows` is 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<FileEntry>,
    /// What gates look at: see [`Measures`](crate::gate::Measures).
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub measures: serde_json::Value,
}

impl Manifest {
    /// Every file of the run.
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.tables.values().flatten().chain(&self.model)
    }
}

/// One file of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The path below the run's folder.
    pub path: String,
    /// Rows in it.
    pub rows: usize,
    /// Its size.
    pub bytes: usize,
}

/// Which of a run's manifest names is meant: 1 is `manifest.json`.
pub(super) type ManifestNumber = u32;

/// Takes the place of a manifest that must never be written, or that no longer holds: whoever finds it knows that this
/// name will never hold a commit. It is never deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tombstone {
    /// The run that was not committed under this name.
    pub(super) run_id: String,
    /// The attempt that was stopped, or whose commit was revoked.
    pub(super) attempt: String,
    /// Why: for people.
    #[serde(rename = "tombstone")]
    pub(super) reason: String,
    /// When it was written, RFC 3339.
    pub(super) written_at: String,
    /// None: for programs that only look for tables.
    pub(super) tables: BTreeMap<String, Vec<FileEntry>>,
    /// Of a commit that was revoked, the files that it had named, by path below the run's folder: they may be deleted.
    #[serde(default)]
    pub(super) revoked: Vec<String>,
    /// Of an attempt that was stopped, the tables that it wrote. What it had sent may arrive when its other files are
    /// gone: who comes next deletes it by this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) stopped_tables: Vec<String>,
}

/// The content of `latest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Latest {
    /// The newest committed run.
    pub(super) run_id: String,
    /// The attempt that was committed.
    #[serde(default)]
    pub(super) attempt: String,
    /// When the store says that this run was committed, RFC 3339: between concurrent commits, the newer one stays.
    #[serde(default)]
    pub(super) committed: String,
    /// When its writer says so: it decides where a store's times are no finer than seconds.
    #[serde(default)]
    pub(super) committed_at: String,
    /// When it became the newest, RFC 3339.
    pub(super) since: String,
}

impl Latest {
    /// Whether this run was committed after another one, as far as clocks tell.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        (&self.committed, &self.committed_at) > (&other.committed, &other.committed_at)
    }
}
