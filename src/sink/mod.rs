//! The last stage: finished tables are published as one run, or not at all.
//!
//! [`Sink`] is what the commands know of it: they ask what is committed, and publish. How a run lies on disk or in a
//! store, and what happens when writers die, is described in [`parquet`].

pub mod model_files;
pub mod parquet;

use std::future::Future;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Problem, Result, nearest};
use crate::run::Run;
use crate::spec::Problems;
use crate::tables::{TABLES, Table};
pub use model_files::MODEL_FILES;
pub use parquet::{Compression, FileEntry, Manifest, ParquetSink, PublishedRun};

/// A place where runs are published.
pub trait Sink: Sync {
    /// The folder of a run, for people.
    fn folder(&self, run_id: &str) -> String;

    /// What was committed under this id.
    fn committed(&self, run_id: &str) -> impl Future<Output = Result<Option<CommittedRun>>> + Send;

    /// The id of the newest committed run.
    fn latest(&self) -> impl Future<Output = Result<Option<String>>> + Send;

    /// Does for a committed run what its writer could not do any more: lets `latest` point to it.
    fn finish_commit(&self, manifest: &Manifest) -> impl Future<Output = Result<()>> + Send;

    /// Makes sure that a run can be committed here, as far as that can be known before the work is done.
    ///
    /// # Errors
    /// When the place cannot hold a commit, or cannot be written to.
    fn expect_commits(&self, run_id: &str) -> impl Future<Output = Result<()>> + Send;

    /// Writes the contents of a run and commits them. Where another writer committed the same job meanwhile, its run is
    /// returned.
    ///
    /// # Errors
    /// When the store fails, another job took the id, or the run is cancelled. Nothing is published then, unless the
    /// message says otherwise: the run may be committed and only `latest` not have moved, or the store may not have
    /// said whether it is committed.
    fn publish(
        &self,
        run_id: &str,
        job: &Job,
        contents: &Contents<'_>,
        run: &Run,
    ) -> impl Future<Output = Result<Manifest>> + Send;

    /// Whether a job is still to be done, and under which id: a job that was done before is not done again, unless files
    /// of it are missing, or it is forced, under a numbered id then.
    ///
    /// # Errors
    /// When the id belongs to another job, or the store cannot be read.
    fn begin(&self, job: &Job, force: bool) -> impl Future<Output = Result<Begin>> + Send {
        async move {
            let wanted = job.run_id.clone().unwrap_or_else(|| job.digest[..16].to_owned());
            let (mut run_id, mut n) = (wanted.clone(), 1);
            while let Some(CommittedRun { manifest, missing }) = self.committed(&run_id).await? {
                if !force {
                    if manifest.digest != job.digest {
                        return Err(another_job(&manifest, job.command));
                    }
                    let Some(first) = missing.first() else {
                        return Ok(Begin::Done(Box::new(manifest)));
                    };
                    tracing::warn!(
                        run_id,
                        missing = missing.len(),
                        first = first.path,
                        "files of a committed run are missing or have another size: the run is made again"
                    );
                    break;
                }
                n += 1;
                run_id = format!("{wanted}-{n}");
            }
            self.expect_commits(&run_id).await?;
            Ok(Begin::New(run_id))
        }
    }

    /// What a command answers whose job was done before.
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

    /// What a command answers, with the run that `latest` names now.
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

/// A run as it was found.
pub struct CommittedRun {
    /// What was committed.
    pub manifest: Manifest,
    /// The files of it that are not there in their size.
    pub missing: Vec<FileEntry>,
}

/// How a command that publishes ended.
pub struct Published<T> {
    /// What is committed.
    pub manifest: Manifest,
    /// The run's folder, for people.
    pub folder: String,
    /// The run that `latest` names, where that is known.
    pub latest: Option<String>,
    /// What was made; `None` where the same job had been done before.
    pub outcome: Option<T>,
}

fn another_job(manifest: &Manifest, command: JobCommand) -> Error {
    Error::spec("the run id belongs to another job")
        .at(command.place_of_run_id())
        .found(format!("`{}`, committed {}", manifest.run_id, manifest.committed_at))
        .help(command.help_if_taken())
}

/// What makes a run the one that it is.
#[derive(Debug, Clone)]
pub struct Job {
    /// The digest of all that can change a byte of the tables: two runs with the same one are the same job.
    pub digest: String,
    /// The id that the user chose; else the digest's first 16 letters.
    pub run_id: Option<String>,
    /// Runs of the same pipeline replace each other: `sink.keep_runs` counts them.
    pub pipeline: String,
    /// The command that publishes it.
    pub command: JobCommand,
}

/// The commands that publish runs: each has options of its own, which errors advise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobCommand {
    /// `run` and `aggregate`, which take every key of a pipeline file.
    Run,
    /// `predict`, which chooses the run id itself.
    Predict,
    /// `simulate`, which has one run in a folder.
    Simulate,
}

impl JobCommand {
    pub(crate) fn place_of_run_id(self) -> &'static str {
        match self {
            Self::Run => "sink.run_id",
            Self::Predict | Self::Simulate => "--output",
        }
    }

    /// What to do where another job has the run id.
    pub(crate) fn help_if_taken(self) -> &'static str {
        match self {
            Self::Run => "choose another run id, or pass --force to publish under a numbered one",
            Self::Predict => {
                "choose another folder, or pass --force to publish under another run id"
            }
            Self::Simulate => "choose another folder",
        }
    }

    /// The same, where a job took it that ran at the same time: `--force` was of no use then.
    pub(crate) fn help_if_taken_meanwhile(self) -> &'static str {
        match self {
            Self::Run => {
                "choose another run id; with --force, run it again: it takes the next number"
            }
            other => other.help_if_taken(),
        }
    }

    /// What to do where the writer was taken for dead.
    pub(crate) fn help_if_swept(self) -> &'static str {
        match self {
            Self::Run => "run the job again, with a larger sink.stale_after_seconds",
            Self::Predict | Self::Simulate => {
                "run the command again, on a machine that does not suspend it"
            }
        }
    }
}

/// The SHA-256 of bytes, in hexadecimal: what distinguishes jobs and inputs.
pub(crate) fn digest(bytes: impl AsRef<[u8]>) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// What [`Sink::begin`] found.
pub enum Begin {
    /// The job was done before.
    Done(Box<Manifest>),
    /// The job is to be done, under this id.
    New(String),
}

/// All that a run publishes.
#[derive(Default)]
pub struct Contents<'a> {
    /// Its tables.
    pub tables: Vec<&'a dyn Table>,
    /// The files of its trained classifiers, by path below the run's files.
    pub model: Vec<(String, Vec<u8>)>,
    /// What gates look at.
    pub measures: serde_json::Value,
}

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
    /// Seconds without a sign of life after which this run agrees to be taken for dead by a process of another machine.
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

/// File systems take names of 255 bytes; a forced rerun adds its number.
const LONGEST_RUN_ID: usize = 200;

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
            if !(1..=LONGEST_RUN_ID).contains(&id.len())
                || id.starts_with('.')
                || !id.chars().all(plain)
            {
                problems.push(
                    Problem::new(
                        "a run id names a folder: up to 200 letters, digits, - _ . = only",
                    )
                    .at(format!("{place}: sink.run_id"))
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
