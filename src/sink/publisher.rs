//! What commands ask of a sink: which runs are committed, and to publish one.

use async_trait::async_trait;

use super::{CommittedRun, Contents, JobIdentity};
use crate::error::{Error, Result};
use crate::job_context::JobContext;

/// A location where runs are published.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// The URL of a run's folder, as shown to users.
    fn folder(&self, run_id: &str) -> String;

    /// The run that was committed under this id, if any.
    async fn committed(&self, run_id: &str) -> Result<Option<CommittedRun>>;

    /// The first of the ids `run_id`, `run_id-2`, `run_id-3`, ... under which no run is committed.
    async fn next_free(&self, run_id: &str) -> Result<String>;

    /// The id of the newest committed run.
    async fn latest(&self) -> Result<Option<String>>;

    /// Completes the commit of a run if its writer could not: moves `latest` to it.
    async fn finish_commit(&self, run: &CommittedRun) -> Result<()>;

    /// Makes sure that a run can be committed here, as far as that can be known before the work is done.
    ///
    /// # Errors
    /// When the location cannot hold a commit, or cannot be written to.
    async fn expect_commits(&self, run_id: &str) -> Result<()>;

    /// Writes the contents of a run and commits them. If another writer has committed the same job in the meantime,
    /// returns its run.
    ///
    /// # Errors
    /// When the store fails, another job took the id, or the run is cancelled. Nothing is published then, unless the
    /// message says otherwise: the run may be committed although `latest` did not move, or it may be unknown whether it
    /// is committed.
    async fn publish(
        &self,
        run_id: &str,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> Result<CommittedRun>;

    /// Checks that each table's name is free for [`Publisher::link_tables`].
    ///
    /// # Errors
    /// When something of someone else has one of the names.
    fn refuse_taken_names(&self, _tables: &[&str]) -> Result<()> {
        Ok(())
    }

    /// Makes the names of a run's tables, next to `latest`, lead to its tables, where the location has links; returns a
    /// warning where a name is taken.
    fn link_tables(&self, _run: &CommittedRun) -> Option<String> {
        None
    }

    /// Decides whether a job must run, and under which id. A job that was done before is not done again, unless some of
    /// its files are missing, or `force` is set: then it gets a numbered id.
    ///
    /// # Errors
    /// When the id belongs to another job, or the store cannot be read.
    async fn begin(&self, identity: &JobIdentity, force: bool) -> Result<BeginOutcome> {
        let mut run_id =
            identity.run_id.clone().unwrap_or_else(|| identity.digest[..16].to_owned());
        if force {
            run_id = self.next_free(&run_id).await?;
        } else if let Some(run) = self.committed(&run_id).await? {
            if run.digest != identity.digest {
                return Err(Error::spec("the run id belongs to another job")
                    .at("sink.run_id")
                    .found(format!("`{}`, committed {}", run.run_id, run.committed_at))
                    .help(identity.advice.taken));
            }
            let Some(first) = run.missing.first() else {
                return Ok(BeginOutcome::Done(Box::new(run)));
            };
            tracing::warn!(
                run_id,
                missing = run.missing.len(),
                first = first.path,
                "files of a committed run are missing or have another size: the run is made again"
            );
        }
        self.expect_commits(&run_id).await?;
        Ok(BeginOutcome::New(run_id))
    }
}

impl dyn Publisher + '_ {
    /// The result of a command whose job was done before.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn done_before<T>(&self, run: CommittedRun) -> Result<Published<T>> {
        self.finish_commit(&run).await?;
        Ok(self.published(run, None).await)
    }

    /// The result of a command, with the run that `latest` names now.
    pub async fn published<T>(&self, run: CommittedRun, outcome: Option<T>) -> Published<T> {
        let latest = self.latest().await.ok().flatten();
        Published { folder: self.folder(&run.run_id), latest, run, outcome }
    }
}

/// The result of [`Publisher::begin`].
pub enum BeginOutcome {
    /// The job was done before.
    Done(Box<CommittedRun>),
    /// The job must run, under this id.
    New(String),
}

/// How a command that publishes ended.
pub struct Published<T> {
    /// The committed run.
    pub run: CommittedRun,
    /// The URL of the run's folder, as shown to users.
    pub folder: String,
    /// The run that `latest` names, where that is known.
    pub latest: Option<String>,
    /// The command's own result; `None` if the same job had been done before.
    pub outcome: Option<T>,
}
