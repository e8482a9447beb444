//! The last stage: finished tables are published as one run, or not at all.
//!
//! Commands use only [`Sink`]: they ask which runs are committed, and publish. [`parquet`] describes the layout of a
//! run on disk or in a store, and what happens when writers die.

pub mod model_files;
pub mod parquet;
pub mod run_tables;
mod typed_values;

use std::future::Future;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Problem, Result};
use crate::job_context::JobContext;
use crate::spec::Problems;
use crate::tables::{Table, find_table};
pub use model_files::MODEL_FILES;
pub use parquet::{Compression, FileEntry, Manifest, ParquetSink, PublishedRun};
pub use run_tables::{RunTables, register_run};

/// A place where runs are published.
pub trait Sink: Sync {
    /// The URL of a run's folder, as shown to users.
    fn folder(&self, run_id: &str) -> String;

    /// The run that was committed under this id, if any.
    fn committed(&self, run_id: &str) -> impl Future<Output = Result<Option<CommittedRun>>> + Send;

    /// The first of the ids `run_id`, `run_id-2`, `run_id-3`, ... under which no run is committed.
    fn next_free(&self, run_id: &str) -> impl Future<Output = Result<String>> + Send;

    /// The id of the newest committed run.
    fn latest(&self) -> impl Future<Output = Result<Option<String>>> + Send;

    /// Completes the commit of a run if its writer could not: moves `latest` to it.
    fn finish_commit(&self, manifest: &Manifest) -> impl Future<Output = Result<()>> + Send;

    /// Makes sure that a run can be committed here, as far as that can be known before the work is done.
    ///
    /// # Errors
    /// When the place cannot hold a commit, or cannot be written to.
    fn expect_commits(&self, run_id: &str) -> impl Future<Output = Result<()>> + Send;

    /// Writes the contents of a run and commits them. If another writer has committed the same job in the meantime,
    /// returns its run.
    ///
    /// # Errors
    /// When the store fails, another job took the id, or the run is cancelled. Nothing is published then, unless the
    /// message says otherwise: the run may be committed although `latest` did not move, or it may be unknown whether it
    /// is committed.
    fn publish(
        &self,
        run_id: &str,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> impl Future<Output = Result<Manifest>> + Send;

    /// Decides whether a job must run, and under which id. A job that was done before is not done again, unless some of
    /// its files are missing, or `force` is set: then it gets a numbered id.
    ///
    /// # Errors
    /// When the id belongs to another job, or the store cannot be read.
    fn begin(
        &self,
        identity: &JobIdentity,
        force: bool,
    ) -> impl Future<Output = Result<BeginOutcome>> + Send {
        async move {
            let mut run_id =
                identity.run_id.clone().unwrap_or_else(|| identity.digest[..16].to_owned());
            if force {
                run_id = self.next_free(&run_id).await?;
            } else if let Some(CommittedRun { manifest, missing }) = self.committed(&run_id).await?
            {
                if manifest.digest != identity.digest {
                    return Err(another_job(&manifest, identity.command));
                }
                let Some(first) = missing.first() else {
                    return Ok(BeginOutcome::Done(Box::new(manifest)));
                };
                tracing::warn!(
                    run_id,
                    missing = missing.len(),
                    first = first.path,
                    "files of a committed run are missing or have another size: the run is made again"
                );
            }
            self.expect_commits(&run_id).await?;
            Ok(BeginOutcome::New(run_id))
        }
    }

    /// The result of a command whose job was done before.
    ///
    /// # Errors
    /// When the store fails.
    fn done_before<T: Send>(
        &self,
        manifest: Manifest,
    ) -> impl Future<Output = Result<Published<T>>> + Send {
        async move {
            self.finish_commit(&manifest).await?;
            Ok(self.published(manifest, None).await)
        }
    }

    /// The result of a command, with the run that `latest` names now.
    fn published<T: Send>(
        &self,
        manifest: Manifest,
        outcome: Option<T>,
    ) -> impl Future<Output = Published<T>> + Send {
        async move {
            let latest = self.latest().await.ok().flatten();
            Published { folder: self.folder(&manifest.run_id), latest, manifest, outcome }
        }
    }
}

/// A committed run, and which of its files are missing.
pub struct CommittedRun {
    /// The run's manifest.
    pub manifest: Manifest,
    /// Its files that are missing or have another size.
    pub missing: Vec<FileEntry>,
}

/// How a command that publishes ended.
pub struct Published<T> {
    /// The manifest of the committed run.
    pub manifest: Manifest,
    /// The URL of the run's folder, as shown to users.
    pub folder: String,
    /// The run that `latest` names, where that is known.
    pub latest: Option<String>,
    /// The command's own result; `None` if the same job had been done before.
    pub outcome: Option<T>,
}

fn another_job(manifest: &Manifest, command: JobCommand) -> Error {
    Error::spec("the run id belongs to another job")
        .at(command.location_of_run_id())
        .found(format!("`{}`, committed {}", manifest.run_id, manifest.committed_at))
        .help(command.help_if_taken())
}

/// The identity of a job.
#[derive(Debug, Clone)]
pub struct JobIdentity {
    /// The digest of everything that can change a byte of the tables: two runs with the same one are the same job.
    pub digest: String,
    /// The id that the user chose; else the digest's first 16 letters.
    pub run_id: Option<String>,
    /// The pipeline that the run belongs to: `sink.keep_runs` counts the runs of one pipeline.
    pub pipeline: String,
    /// The command that publishes it.
    pub command: JobCommand,
}

/// The commands that publish runs. Each has its own options, which the help lines of errors name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobCommand {
    /// `run` and `aggregate`, which take every key of a pipeline file.
    Run,
    /// `predict`, which chooses the run id itself.
    Predict,
    /// `simulate`, which publishes one run per folder.
    Simulate,
}

impl JobCommand {
    pub(crate) fn location_of_run_id(self) -> &'static str {
        match self {
            Self::Run => "sink.run_id",
            Self::Predict | Self::Simulate => "--output",
        }
    }

    /// The key or the option that names the folder of the runs.
    pub(crate) fn location_of_sink(self) -> &'static str {
        match self {
            Self::Run => "sink.url",
            Self::Predict | Self::Simulate => "--output",
        }
    }

    /// The help line of the error that another job has the run id.
    pub(crate) fn help_if_taken(self) -> &'static str {
        match self {
            Self::Run => "choose another run id, or pass --force to publish under a numbered one",
            Self::Predict => {
                "choose another folder, or pass --force to publish under another run id"
            }
            Self::Simulate => "choose another folder",
        }
    }

    /// What to do where another job took the run id at the same time, so that `--force` did not help.
    pub(crate) fn help_if_taken_meanwhile(self) -> &'static str {
        match self {
            Self::Run => {
                "choose another run id; with --force, run it again: it takes the next number"
            }
            other => other.help_if_taken(),
        }
    }

    /// What to do where the writer was considered dead.
    pub(crate) fn help_if_swept(self) -> &'static str {
        match self {
            Self::Run => "run the job again, with a larger sink.stale_after_seconds",
            Self::Predict | Self::Simulate => {
                "run the command again, on a machine that does not suspend it"
            }
        }
    }
}

/// The SHA-256 of bytes, in hexadecimal. It identifies jobs and inputs.
pub(crate) fn digest(bytes: impl AsRef<[u8]>) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// The result of [`Sink::begin`].
pub enum BeginOutcome {
    /// The job was done before.
    Done(Box<Manifest>),
    /// The job must run, under this id.
    New(String),
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
