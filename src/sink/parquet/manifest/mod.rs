//! The manifest: what a committed run holds. Its presence is the commit.

pub(super) mod latest;
pub(super) mod manifest_names;
pub(super) mod published;

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
    /// The values that gates check: see [`Measures`](crate::gate::Measures).
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
    /// The number of its rows.
    pub rows: usize,
    /// Its size in bytes.
    pub bytes: usize,
}

/// The number of one of a run's manifest names: 1 is `manifest.json`, 2 is `manifest-2.json`.
pub(super) type ManifestNumber = u32;

/// Takes the place of a manifest that must never be written, or that is no longer valid: this name will never hold a
/// commit. A tombstone is never deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tombstone {
    /// The run that was not committed under this name.
    pub(super) run_id: String,
    /// The attempt that was stopped, or whose commit was revoked.
    pub(super) attempt: String,
    /// The reason, for readers of the file.
    #[serde(rename = "tombstone")]
    pub(super) reason: String,
    /// When it was written, RFC 3339.
    pub(super) written_at: String,
    /// Always empty: for programs that only look for tables.
    pub(super) tables: BTreeMap<String, Vec<FileEntry>>,
    /// The files of a revoked commit, by path below the run's folder: they may be deleted.
    #[serde(default)]
    pub(super) revoked: Vec<String>,
    /// The tables of a stopped attempt. Its uploads may arrive after its other files were deleted: the next run deletes
    /// them by this list.
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
    /// When this run was committed by the store's clock, RFC 3339: of concurrent commits, the newer one stays.
    #[serde(default)]
    pub(super) committed: String,
    /// When this run was committed by its writer's clock: it breaks ties, as some stores' times are no finer than
    /// seconds.
    #[serde(default)]
    pub(super) committed_at: String,
    /// When `latest` began to name this run, RFC 3339.
    pub(super) since: String,
}

impl Latest {
    /// Whether this run was committed after another one, by the clocks of their writers.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        (&self.committed, &self.committed_at) > (&other.committed, &other.committed_at)
    }
}
