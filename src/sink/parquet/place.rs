//! A place where runs are published, and the paths in it.

use object_store::path::Path;

use crate::error::Result;
use crate::sink::SinkSpec;
use crate::store::{Place, StoreSpec, open, parse_url};

/// A place where runs are published as Parquet files.
#[derive(Debug, Clone)]
pub struct ParquetSink {
    pub(super) place: Place,
    pub(super) spec: SinkSpec,
}

impl ParquetSink {
    /// Opens the place; sends nothing yet.
    ///
    /// # Errors
    /// When the URL is no place that can be opened.
    pub fn open(spec: &SinkSpec, stores: &StoreSpec) -> Result<Self> {
        let url = parse_url(&spec.url).map_err(|e| e.or_at("sink.url"))?;
        Ok(Self { place: open(&url, stores)?, spec: spec.clone() })
    }

    /// The place, for people.
    #[must_use]
    pub fn url(&self) -> &str {
        self.spec.url.trim_end_matches('/')
    }

    pub(super) fn runs(&self) -> Path {
        self.place.path.clone().join("runs")
    }

    pub(super) fn run_path(&self, run_id: &str) -> Path {
        self.runs().join(run_id)
    }

    pub(super) fn attempt_path(&self, run_id: &str, attempt: &str) -> Path {
        self.run_path(run_id).join(attempt)
    }

    pub(super) fn leases(&self) -> Path {
        self.place.path.clone().join("_leases")
    }

    pub(super) fn lease_path(&self, attempt: &str) -> Path {
        self.leases().join(format!("{attempt}.json"))
    }
}
