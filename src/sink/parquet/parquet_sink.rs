//! A location where runs are published, and the paths in it.

use std::path::{Path as FilePath, PathBuf};

use object_store::path::Path;

use crate::error::Result;
use crate::sink::SinkSpec;
use crate::store::{StoreLocation, StoreSpec, open, parse_url};

/// The file in an attempt's folder on local disk that `latest.json` leads to while `latest` links to this folder.
pub(super) const LATEST_FILE: &str = "_latest.json";

/// The temporary name of a link on local disk, next to `latest`, before it is renamed. It is not made below `runs`,
/// which may be on another disk: a rename cannot move a file between disks.
pub(super) const LATEST_LINK: &str = "_latest";

/// The lock file in the folder of leases on local disk. The process that moves the pointer `latest` holds the lock.
pub(super) const LOCK: &str = "latest.lock";

/// A location where runs are published as Parquet files.
#[derive(Debug, Clone)]
pub struct ParquetSink {
    pub(super) location: StoreLocation,
    pub(super) spec: SinkSpec,
}

impl ParquetSink {
    /// Opens the location; sends nothing yet.
    ///
    /// # Errors
    /// When the URL is invalid, or its store cannot be opened.
    pub fn open(spec: &SinkSpec, stores: &StoreSpec) -> Result<Self> {
        let url = parse_url(&spec.url).map_err(|e| e.or_at("sink.url"))?;
        Ok(Self { location: open(&url, stores)?, spec: spec.clone() })
    }

    /// The location's URL, as shown to users.
    #[must_use]
    pub fn url(&self) -> &str {
        self.spec.url.trim_end_matches('/')
    }

    pub(super) fn runs(&self) -> Path {
        self.location.path.clone().join("runs")
    }

    pub(super) fn run_path(&self, run_id: &str) -> Path {
        self.runs().join(run_id)
    }

    pub(super) fn attempt_path(&self, run_id: &str, attempt: &str) -> Path {
        self.run_path(run_id).join(attempt)
    }

    pub(super) fn leases(&self) -> Path {
        self.location.path.clone().join("_leases")
    }

    pub(super) fn lease_path(&self, attempt: &str) -> Path {
        self.leases().join(format!("{attempt}.json"))
    }
}

/// The target of the link `latest.json`.
pub(super) fn through_latest() -> PathBuf {
    FilePath::new("latest").join(LATEST_FILE)
}

/// Whether this is the name of an attempt.
pub(super) fn is_attempt(name: &str) -> bool {
    name.len() == 16 && name.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
}
