//! What a command gives to a sink: who the job is, and what it publishes.

use crate::tables::Table;

/// The identity of a job.
#[derive(Debug, Clone)]
pub struct JobIdentity {
    /// The digest of everything that can change a byte of the tables: two runs with the same one are the same job.
    pub digest: String,
    /// The id that the user chose; else the digest's first 16 letters.
    pub run_id: Option<String>,
    /// The pipeline that the run belongs to: `sink.keep_runs` counts the runs of one pipeline.
    pub pipeline: String,
    /// What errors advise.
    pub advice: Advice,
}

/// What errors advise where a run cannot be published: each command has its own options.
#[derive(Debug, Clone, Copy)]
pub struct Advice {
    /// Another job has the run id.
    pub taken: &'static str,
    /// Another job took the run id at the same time.
    pub taken_meanwhile: &'static str,
    /// The writer was considered dead.
    pub swept: &'static str,
}

/// Everything that a run publishes.
#[derive(Default)]
pub struct Contents<'a> {
    /// Its tables.
    pub tables: Vec<&'a dyn Table>,
    /// The files of its trained classifiers, by path below the run's files.
    pub model: Vec<(String, Vec<u8>)>,
    /// The values that gates check.
    pub measures: serde_json::Value,
}
