//! The last stage: tables become Parquet files, published as one.
//!
//! ```text
//! <url>/runs/<run_id>/<table>/part-00000.parquet   written in any order, invisible to readers of `latest`
//! <url>/runs/<run_id>/_lease.json                  who is writing; gone when the run is committed
//! <url>/runs/<run_id>/manifest.json                written last: the commit
//! <url>/runs/_clock-<name>/_lease.json             for a moment: what time the store has
//! <url>/latest.json                                points to the newest committed run
//! <url>/latest -> runs/<run_id>                    the same on local disk, switched by rename
//! ```
//! # Why
//! No store can replace many objects at once, but every store can create one. So a run is a folder that nobody reads
//! until its manifest is there, and it is never changed afterwards: a forced rerun gets an id of its own. Whatever has
//! neither a manifest nor a living writer is what a dead run left, and the next run sweeps it (`lease.rs`).

mod encode;
mod latest;
mod lease;
mod manifest;
mod publish;
mod sweep;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, nearest};
use crate::spec::Problems;
use crate::tables::TABLES;
pub use encode::Compression;
pub(crate) use encode::parquet;
pub use manifest::{FileEntry, Manifest};
pub use publish::Sink;
pub(crate) use publish::upload;

/// Where the tables go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SinkSpec {
    /// A folder on local disk or an object store.
    pub url: String,
    /// The run's id; left out, a digest of spec and inputs, so that the same job has the same id.
    pub run_id: Option<String>,
    /// The tables to write; left out, all.
    pub tables: Option<Vec<String>>,
    /// How the Parquet files are compressed.
    pub compression: Compression,
    /// Seconds without a sign of life after which another machine's unfinished run counts as dead.
    #[schemars(range(min = 1))]
    pub stale_after_seconds: u64,
}

impl Default for SinkSpec {
    fn default() -> Self {
        Self {
            url: "labelmill-out".to_owned(),
            run_id: None,
            tables: None,
            compression: Compression::default(),
            stale_after_seconds: 600,
        }
    }
}

impl SinkSpec {
    /// Adds what is wrong to `problems`.
    pub fn check(&self, place: &str, problems: &mut Problems) {
        for (i, name) in self.tables.iter().flatten().enumerate() {
            let names = TABLES.iter().map(|t| t.name());
            if !names.clone().any(|n| n == name) {
                let help = match nearest(name, names.clone()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("one of {}", names.collect::<Vec<_>>().join(", ")),
                };
                problems.push(
                    Problem::new(format!("there is no table `{name}`"))
                        .at(format!("{place}: sink.tables[{i}]"))
                        .help(help),
                );
            }
        }
        if let Some(id) = &self.run_id {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
            if id.is_empty() || id.starts_with('.') || !id.chars().all(plain) {
                problems.push(
                    Problem::new("a run id names a folder: letters, digits, - _ . = only")
                        .at(format!("{place}: sink.run_id"))
                        .found(format!("`{id}`")),
                );
            }
        }
    }

    fn stale_after(&self) -> Duration {
        Duration::from_secs(self.stale_after_seconds)
    }

    /// Whether the table of that name is written.
    #[must_use]
    pub fn writes(&self, table: &str) -> bool {
        self.tables.as_ref().is_none_or(|names| names.iter().any(|n| n == table))
    }
}
