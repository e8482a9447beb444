//! Runs as folders of Parquet files, on local disk or an object store.
//!
//! ```text
//! <url>/_leases/<attempt>.json                               who is writing, and what is theirs
//! <url>/runs/<run_id>/<attempt>/<table>/part-00000.parquet   an attempt's own files: nobody else writes there
//! <url>/runs/<run_id>/<attempt>/model/                       trained classifiers
//! <url>/runs/<run_id>/manifest.json                          created last: the commit; it names the attempt's files
//! <url>/latest.json                                          points to the newest committed run
//! <url>/latest -> runs/<run_id>/<attempt>                    the same on local disk, switched by rename
//! ```
//! # Why
//! No store can replace many objects at once, but every store can create one object where there is none, and let only
//! one of two writers do it. The protocol rests on this alone, and on no clock:
//!
//! 1. Every attempt writes into a folder of its own, so that two writers of one run never mix their files.
//! 2. The commit creates the manifest, which lists exactly the attempt's files. It is never changed afterwards: a
//!    forced rerun gets an id of its own.
//! 3. Nobody deletes the files of an attempt that could still commit. Who takes a writer for dead first creates a
//!    tombstone under the manifest's name (`manifest_names.rs`), even of a process that is gone: its last request may not be.
//! 4. A writer whose commit was answered by nothing asks what is there. A writer that finds its tombstone, or its lease
//!    gone, writes its tables again as a new attempt. The tombstone names the tables of the attempt that it stopped:
//!    files of it that arrive late are deleted by the next run of that id.
//! 5. Only what a manifest or a lease names is ever deleted. Whatever else lies there belongs to somebody else.
//!
//! `protocol/` enumerates every order of two writers, a sweeper, crashes and suspensions, and finds no commit without
//! files and no second commit of a run.

mod attempt;
mod commit;
mod control;
mod disk;
mod encode;
mod folders;
mod latest;
mod lease;
mod manifest;
mod manifest_names;
mod obstacles;
mod place;
#[cfg(test)]
mod protocol;
mod published;
mod removal;
mod retention;
mod sweep;
mod write;

use super::{CommittedRun, Contents, Job, Sink};
use crate::error::Result;
use crate::run::Run;
use control::Control;
pub use encode::Compression;
use latest::PointerMove;
use lease::Lease;
pub use manifest::{FileEntry, Manifest};
use manifest_names::RunState;
pub use place::ParquetSink;
pub use published::PublishedRun;

impl Sink for ParquetSink {
    fn folder(&self, run_id: &str) -> String {
        format!("{}/runs/{run_id}", self.url())
    }

    async fn committed(&self, run_id: &str) -> Result<Option<CommittedRun>> {
        // Reported before anything is read, and not when the run is committed.
        self.refuse_what_is_in_the_way(run_id)?;
        self.latest().await?;
        let folder = self.run_path(run_id);
        let RunState::Committed(committed) = self.run_state(&folder).await? else {
            return Ok(None);
        };
        let missing = self.missing(&folder, &committed.manifest).await?;
        Ok(Some(CommittedRun { manifest: committed.manifest, missing }))
    }

    async fn latest(&self) -> Result<Option<String>> {
        match self.read_latest().await? {
            Control::Whole(latest, _) => Ok(Some(latest.run_id)),
            Control::Missing | Control::Damaged(_) => Ok(None),
            Control::Foreign => Err(self.in_the_way(&self.latest_path(), "a pointer of labelmill")),
        }
    }

    async fn finish_commit(&self, manifest: &Manifest) -> Result<()> {
        if let Control::Missing | Control::Damaged(_) = self.read_latest().await?
            && let Some(newest) = self.newest_commit().await?
            && let PointerMove::Locked = self.point_latest(&newest, None).await?
        {
            return Ok(());
        }
        // The lease outlives the commit until `latest` has moved; whoever comes next moves it then.
        if manifest.attempt.is_empty() {
            return Ok(());
        }
        let path = self.lease_path(&manifest.attempt);
        let Control::Whole(lease, _) = self.read_control::<Lease>(&path).await? else {
            return Ok(());
        };
        if let RunState::Committed(committed) =
            self.run_state(&self.run_path(&manifest.run_id)).await?
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
        job: &Job,
        contents: &Contents<'_>,
        run: &Run,
    ) -> Result<Manifest> {
        self.publish_attempts(run_id, job, contents, run).await
    }
}
