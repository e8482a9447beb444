//! The section `[sink]` of a pipeline file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parquet::Compression;
use crate::error::Problem;
use crate::spec::Problems;
use crate::tables::find_table;

/// Where and how the tables are written.
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
    /// Seconds without a sign of life after which a process on another machine may consider this run dead.
    #[schemars(range(min = 1))]
    pub stale_after_seconds: u64,
    /// Whether files on local disk are synced before the commit, so that a committed run survives a power loss.
    pub sync: bool,
    /// How many committed runs of this pipeline are kept; older ones are deleted after a commit. Left out, all.
    #[schemars(range(min = 1))]
    pub keep_runs: Option<u32>,
}

impl Default for SinkSpec {
    fn default() -> Self {
        Self {
            url: "labelmill-out".to_owned(),
            run_id: None,
            tables: None,
            compression: Compression::default(),
            stale_after_seconds: 600,
            sync: true,
            keep_runs: None,
        }
    }
}

/// The most bytes of a run id: file systems allow names of 255 bytes, and a forced rerun appends its number.
const MAX_RUN_ID_BYTES: usize = 200;

impl SinkSpec {
    /// Adds the spec's problems to `problems`.
    pub fn check(&self, location: &str, problems: &mut Problems) {
        for (i, name) in self.tables.iter().flatten().enumerate() {
            if let Err(problem) = find_table(name) {
                problems.push(problem.at(format!("{location}: sink.tables[{i}]")));
            }
        }
        if let Some(id) = &self.run_id {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
            if !(1..=MAX_RUN_ID_BYTES).contains(&id.len())
                || id.starts_with('.')
                || !id.chars().all(plain)
            {
                problems.push(
                    Problem::new(
                        "a run id names a folder: up to 200 letters, digits, - _ . = only",
                    )
                    .at(format!("{location}: sink.run_id"))
                    .found(format!("`{id}`")),
                );
            }
        }
    }

    /// Whether the table of that name is written.
    #[must_use]
    pub fn writes(&self, table: &str) -> bool {
        self.tables.as_ref().is_none_or(|names| names.iter().any(|n| n == table))
    }
}
