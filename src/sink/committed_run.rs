//! What every sink tells of a committed run: the job, and the files of each table.

use std::collections::BTreeMap;

use chrono::Utc;
use serde::{Deserialize, Serialize};

use super::{Contents, JobIdentity};
use crate::tables::SCHEMA_VERSION;

/// What is known of a committed run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommittedRun {
    /// The run's id.
    pub run_id: String,
    /// The attempt that wrote the files: a name of the sink's own.
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
    /// Its files that are missing or have another size.
    #[serde(skip)]
    pub missing: Vec<FileEntry>,
}

impl CommittedRun {
    /// The run that a job commits now, without its files.
    #[must_use]
    pub fn new(run_id: &str, identity: &JobIdentity, contents: &Contents<'_>) -> Self {
        Self {
            run_id: run_id.to_owned(),
            attempt: String::new(),
            pipeline: identity.pipeline.clone(),
            digest: identity.digest.clone(),
            labelmill: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: SCHEMA_VERSION,
            committed_at: Utc::now().to_rfc3339(),
            tables: BTreeMap::new(),
            model: Vec::new(),
            measures: contents.measures.clone(),
            missing: Vec::new(),
        }
    }

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
