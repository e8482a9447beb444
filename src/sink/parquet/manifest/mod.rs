//! The manifest: what a committed run holds. Its presence is the commit.

pub(super) mod latest;
pub(super) mod manifest_names;
pub(super) mod published;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sink::FileEntry;

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
