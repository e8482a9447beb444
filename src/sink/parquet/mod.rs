//! Runs as folders of Parquet files, on local disk or an object store.
//!
//! ```text
//! <url>/_leases/<attempt>.json                               the lease: who writes, and which files are its own
//! <url>/runs/<run_id>/<attempt>/<table>/part-00000.parquet   the files of one attempt; no other process writes there
//! <url>/runs/<run_id>/<attempt>/model/                       trained classifiers
//! <url>/runs/<run_id>/manifest.json                          created last: the commit; it lists the attempt's files
//! <url>/latest.json                                          points to the newest committed run
//! <url>/latest -> runs/<run_id>/<attempt>                    the same on local disk, switched by rename
//! ```
//! # Why
//! No object store can replace many objects atomically. But a store can create an object only if it does not exist yet,
//! and of two writers that try, only one succeeds. The protocol relies on this operation alone, and on no clock:
//!
//! 1. Every attempt writes into a folder of its own, so two writers of one run never mix their files.
//! 2. The commit creates the manifest, which lists exactly the attempt's files. No other commit ever replaces it: a
//!    forced rerun gets its own run id.
//! 3. No process deletes the files of an attempt that could still commit. A process that considers a writer dead first
//!    creates a tombstone under the manifest name that the writer wanted (`manifest_names.rs`), even if the writer's
//!    process no longer exists: its last request may still arrive.
//! 4. A writer that gets no answer to its commit request reads the manifest name to find out. A writer that finds a
//!    tombstone there, or that its lease is gone, writes its tables again as a new attempt. The tombstone names the
//!    tables of the attempt that it stopped: the next run with that id deletes files of that attempt that arrive late.
//! 5. labelmill deletes only files that a manifest, a tombstone or a lease names. All other files belong to someone
//!    else.
//!
//! The tests in `protocol/` visit every order of steps of two writers and a sweeper, with crashes and suspensions, and
//! find no commit without its files and no second commit of a run.

mod control;
mod lease;
mod manifest;
mod obstacles;
mod parquet_sink;
#[cfg(test)]
mod protocol;
mod publish;
#[cfg(test)]
mod testing;

use async_trait::async_trait;

use super::{CommittedRun, Contents, JobIdentity, Publisher};
use crate::error::Result;
use crate::job_context::JobContext;
use control::ControlFile;
use lease::Lease;
use manifest::latest::PointerMove;
use manifest::manifest_names::RunState;
pub(super) use manifest::published::PublishedRun;
pub(super) use parquet_sink::ParquetSink;
pub use publish::encode::Compression;

#[async_trait]
impl Publisher for ParquetSink {
    fn folder(&self, run_id: &str) -> String {
        format!("{}/runs/{run_id}", self.url())
    }

    async fn committed(&self, run_id: &str) -> Result<Option<CommittedRun>> {
        // Report obstacles before anything is read, not only at the commit.
        self.check_obstacles(run_id)?;
        self.latest().await?;
        let folder = self.run_path(run_id);
        let RunState::Committed(committed) = self.run_state(&folder).await? else {
            return Ok(None);
        };
        let missing = self.missing(&folder, &committed.manifest).await?;
        Ok(Some(CommittedRun { missing, ..committed.manifest }))
    }

    /// A job may have been forced a thousand times. The run that `latest` names is almost always the last of them, so
    /// the next number is tried first; then the numbers are searched in steps that double. An id is not used again, even
    /// if its run was collected: each use would leave one more manifest name that is used up.
    async fn next_free(&self, run_id: &str) -> Result<String> {
        self.check_obstacles(run_id)?;
        let latest = self.latest().await?;
        let number = latest.and_then(|latest| number_of(&latest, run_id)).unwrap_or(0);
        // The last number that is known to be used, and the first one that is known to be free.
        let (first, mut used, mut free) = (number, number, None);
        loop {
            let n = match free {
                Some(free) if free - used == 1 => return Ok(numbered(run_id, free)),
                Some(free) => used + (free - used) / 2,
                None => (first + 2 * (used - first)).max(used + 1),
            };
            let candidate = numbered(run_id, n);
            self.check_obstacles(&candidate)?;
            match self.run_state(&self.run_path(&candidate)).await? {
                RunState::Open(1) => free = Some(n),
                RunState::Open(_) | RunState::Committed(_) => used = n,
            }
        }
    }

    async fn latest(&self) -> Result<Option<String>> {
        match self.read_latest().await? {
            ControlFile::Whole(latest, _) => Ok(Some(latest.run_id)),
            ControlFile::Missing | ControlFile::Damaged(_) => Ok(None),
            ControlFile::Foreign => {
                Err(self.obstacle_error(&self.latest_path(), "a pointer of labelmill"))
            }
        }
    }

    async fn finish_commit(&self, run: &CommittedRun) -> Result<()> {
        if let ControlFile::Missing | ControlFile::Damaged(_) = self.read_latest().await?
            && let Some(newest) = self.newest_commit().await?
            && let PointerMove::Locked = self.point_latest(&newest, None).await?
        {
            return Ok(());
        }
        // A writer deletes its lease only after it has moved `latest`. If the lease still exists, move `latest` here.
        if run.attempt.is_empty() {
            return Ok(());
        }
        let path = self.lease_path(&run.attempt);
        let ControlFile::Whole(lease, _) = self.read_control::<Lease>(&path).await? else {
            return Ok(());
        };
        if let RunState::Committed(committed) = self.run_state(&self.run_path(&run.run_id)).await?
            && let PointerMove::Locked = self.point_latest(&committed, None).await?
        {
            return Ok(());
        }
        if lease.process.is_gone() {
            let removed = self.remove_staged(&lease);
            if let Err(e) = removed.and(self.delete(&path).await) {
                let file = self.text(&path);
                tracing::warn!(file, error = %e, "what the writer of this run left could not be removed");
            }
        }
        Ok(())
    }

    async fn expect_commits(&self, run_id: &str) -> Result<()> {
        self.try_to_commit(run_id).await
    }

    async fn publish(
        &self,
        run_id: &str,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> Result<CommittedRun> {
        self.publish_attempts(run_id, identity, contents, job).await
    }

    fn refuse_taken_names(&self, tables: &[&str]) -> Result<()> {
        self.refuse_names(tables)
    }

    fn link_tables(&self, run: &CommittedRun) -> Option<String> {
        self.link_names(run)
    }
}

/// The number of an id that [`numbered`] gave.
fn number_of(id: &str, run_id: &str) -> Option<usize> {
    match id.strip_prefix(run_id)? {
        "" => Some(1),
        rest => rest.strip_prefix('-')?.parse().ok().filter(|n| numbered(run_id, *n) == id),
    }
}

/// The n-th id of a job that is forced to run again.
fn numbered(run_id: &str, n: usize) -> String {
    if n == 1 { run_id.to_owned() } else { format!("{run_id}-{n}") }
}
