//! The last stage: finished tables are published as one run, or not at all.
//!
//! Commands [`open`] a location and use only [`Publisher`]: they ask which runs are committed, and publish. [`parquet`]
//! describes the layout of a run on disk or in a store, and what happens when writers die.

mod committed_run;
mod job;
pub mod model_files;
pub mod parquet;
mod publisher;
pub mod run_tables;
mod sink_spec;
mod typed_values;

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::store::StoreSpec;
pub use committed_run::{CommittedRun, FileEntry};
pub use job::{Advice, Contents, JobIdentity};
pub use model_files::MODEL_FILES;
pub use parquet::Compression;
use parquet::ParquetSink;
pub use publisher::{BeginOutcome, Published, Publisher};
pub use run_tables::{RunTables, register_run};
pub use sink_spec::SinkSpec;

/// Opens the location that a spec names; sends nothing yet.
///
/// # Errors
/// When the URL is invalid, or its store cannot be opened.
pub fn open(spec: &SinkSpec, stores: &StoreSpec) -> Result<Box<dyn Publisher>> {
    Ok(Box::new(ParquetSink::open(spec, stores)?))
}

/// The SHA-256 of bytes, in hexadecimal. It identifies jobs and inputs.
pub(crate) fn digest(bytes: impl AsRef<[u8]>) -> String {
    format!("{:x}", Sha256::digest(bytes))
}
