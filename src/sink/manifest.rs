//! The manifest: what a committed run holds. Its presence is the commit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The run's id.
    pub run_id: String,
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
}

/// One file of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The path below the run's folder.
    pub path: String,
    /// Rows in it.
    pub rows: usize,
    /// Its size.
    pub bytes: usize,
}

/// The content of `latest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Latest {
    /// The newest committed run.
    pub(super) run_id: String,
    /// When it became the newest, RFC 3339.
    pub(super) since: String,
}
