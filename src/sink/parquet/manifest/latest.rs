//! `latest`: the pointer to the newest committed run.
//!
//! # Why
//! A writer may be suspended between its commit and this step, even for a day. The run that `latest` named before the
//! commit is older, whatever any clock says: if `latest` still names that run, the writer moves it. If another writer
//! has moved `latest` in the meantime, the store's modification times decide. In both cases `latest` moves only if it
//! has not changed since it was read: by a conditional put on a store, under a file lock on local disk. On local disk
//! `latest.json` is a link through the link `latest`, which one rename switches, so the two always agree.

use std::fs::{self, File};
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use object_store::path::Path;
use object_store::{ObjectMeta, PutMode};
use tokio::task::block_in_place;

use super::Latest;
use super::manifest_names::{Committed, RunState};
use crate::error::{Error, Result};
use crate::regular_file;
use crate::sink::CommittedRun;
use crate::sink::parquet::control::disk::{replace_on_disk, sync};
use crate::sink::parquet::control::{ControlFile, json, version_of, write_error};
use crate::sink::parquet::obstacles::describe_obstacle_to_link;
use crate::sink::parquet::parquet_sink::{
    LATEST_FILE, LATEST_LINK, LOCK, ParquetSink, through_latest,
};

/// How often a writer tries to move the pointer after a lost race or a lost answer.
const REQUESTS: u32 = 8;

/// The result of moving the pointer after a commit.
#[must_use]
pub(in crate::sink::parquet) enum PointerMove {
    /// The pointer names this commit or a newer one.
    Done,
    /// The pointer did not move: a process that makes no progress, perhaps because it is suspended, holds the lock.
    Locked,
}

/// The outcome of one request to move the pointer.
enum MoveOutcome {
    Yes,
    /// Another writer was faster.
    Changed,
    /// Another writer holds the lock.
    Locked,
}

impl ParquetSink {
    /// Reads `latest.json`.
    pub(in crate::sink::parquet) async fn read_latest(&self) -> Result<ControlFile<Latest>> {
        self.read_control(&self.latest_path()).await
    }

    /// Moves `latest` to a commit, unless it names a newer one. The run that it named `before` the commit counts as
    /// older.
    pub(in crate::sink::parquet) async fn point_latest(
        &self,
        committed: &Committed,
        before: Option<&Latest>,
    ) -> Result<PointerMove> {
        let manifest = &committed.manifest;
        self.check_obstacles(&manifest.run_id)?;
        let mut failed = Error::store("other writers keep changing latest.json");
        let mut is_locked = false;
        for n in 0..REQUESTS {
            if n > 0 {
                tokio::time::sleep(Duration::from_millis(20 << (n - 1))).await;
            }
            let now = self.read_latest().await?;
            if let ControlFile::Foreign = now {
                return Err(self.obstacle_error(&self.latest_path(), "a pointer of labelmill"));
            }
            let latest = Latest {
                run_id: manifest.run_id.clone(),
                attempt: manifest.attempt.clone(),
                committed: committed.at().to_rfc3339_opts(SecondsFormat::Nanos, true),
                committed_at: manifest.committed_at.clone(),
                since: Utc::now().to_rfc3339(),
            };
            let stays = |named: &Latest| {
                let is_this = (&named.run_id, &named.attempt) == (&latest.run_id, &latest.attempt);
                is_this || (Some(named) != before && named.is_newer_than(&latest))
            };
            if let ControlFile::Whole(named, _) = &now
                && stays(named)
            {
                return Ok(PointerMove::Done);
            }
            let moved = match self.location.local() {
                Some(root) => block_in_place(|| self.switch_link(&root, committed, &latest, stays)),
                None => self.put_latest(now, &latest).await,
            };
            match moved {
                Ok(MoveOutcome::Yes) => return Ok(PointerMove::Done),
                Ok(MoveOutcome::Changed) => is_locked = false,
                Ok(MoveOutcome::Locked) => is_locked = true,
                Err(e) => (failed, is_locked) = (e, false),
            }
        }
        if is_locked {
            tracing::warn!(
                run_id = manifest.run_id,
                lock = %self.text(&self.leases().join(LOCK)),
                "another process holds the lock and does not move on: the run is committed, but `latest` does not point \
                 to it before a later job runs"
            );
            return Ok(PointerMove::Locked);
        }
        Err(failed.or_at("latest.json"))
    }

    /// Creates `latest.json` on a store, or replaces it if it has not changed since it was read.
    async fn put_latest(&self, now: ControlFile<Latest>, latest: &Latest) -> Result<MoveOutcome> {
        let seen: Option<ObjectMeta> = match now {
            ControlFile::Whole(_, meta) | ControlFile::Damaged(meta) => Some(meta),
            ControlFile::Missing | ControlFile::Foreign => None,
        };
        let mode = seen.map_or(PutMode::Create, |meta| PutMode::Update(version_of(&meta)));
        match self.put(&self.latest_path(), json(latest), mode).await {
            Ok(_) => Ok(MoveOutcome::Yes),
            Err(
                object_store::Error::Precondition { .. }
                | object_store::Error::AlreadyExists { .. },
            ) => Ok(MoveOutcome::Changed),
            Err(e) => Err(write_error(e)),
        }
    }

    /// Switches the link `latest` on local disk.
    fn switch_link(
        &self,
        root: &FilePath,
        committed: &Committed,
        latest: &Latest,
        stays: impl Fn(&Latest) -> bool,
    ) -> Result<MoveOutcome> {
        let manifest = &committed.manifest;
        // The files of a run that an older version wrote lie in the run's own folder.
        let target = PathBuf::from("runs").join(&manifest.run_id).join(&manifest.attempt);
        let folder = root.join(&target);
        let switch = || -> io::Result<MoveOutcome> {
            let leases = root.join("_leases");
            fs::create_dir_all(&leases)?;
            // Do the slow part before taking the lock.
            replace_on_disk(&folder.join(LATEST_FILE), &json(latest), &folder, self.spec.sync)?;
            let lock = lock_file(&leases.join(LOCK))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Ok(MoveOutcome::Locked),
                Err(fs::TryLockError::Error(e)) => return Err(e),
            }
            // Another writer may have moved the pointer since it was read.
            if named(root)?.is_some_and(|named| stays(&named)) {
                return Ok(MoveOutcome::Changed);
            }
            relink(root, &target, "latest")?;
            let through = through_latest();
            if fs::read_link(root.join("latest.json")).ok().as_ref() != Some(&through) {
                relink(root, &through, "latest.json")?;
            }
            drop(lock);
            if self.spec.sync {
                sync(root)?;
            }
            Ok(MoveOutcome::Yes)
        };
        switch().map_err(|e| {
            let failed = Error::store(format!("cannot switch the link `latest`: {e}"));
            Error::of_io(&e, failed.at(root.display().to_string()))
        })
    }

    /// On local disk, makes a link for each table of the newest run, so that a path such as `<url>/annotations` is
    /// stable. Returns a warning if a name is taken.
    #[must_use]
    pub(in crate::sink::parquet) fn link_names(&self, run: &CommittedRun) -> Option<String> {
        let root = self.location.local()?;
        let link = |table: &String| {
            let (location, target) = (root.join(table), FilePath::new("latest").join(table));
            if fs::read_link(&location).ok().as_ref() == Some(&target) {
                return None;
            }
            symlink(&target, &location).err().map(|e| format!("`{}`: {e}", location.display()))
        };
        let taken: Vec<String> = run.tables.keys().filter_map(link).collect();
        (!taken.is_empty()).then(|| {
            format!(
                "read the tables from {}/latest: {} could not be linked",
                self.url(),
                taken.join(", ")
            )
        })
    }

    /// Checks that each table's name is free for [`ParquetSink::link_names`].
    ///
    /// # Errors
    /// When a file, a folder or a link of someone else has one of the names.
    pub(in crate::sink::parquet) fn refuse_names(&self, tables: &[&str]) -> Result<()> {
        let Some(root) = self.location.local() else { return Ok(()) };
        for &table in tables {
            let location = root.join(table);
            let is_ours =
                fs::read_link(&location).is_ok_and(|to| to == FilePath::new("latest").join(table));
            if !is_ours && fs::symlink_metadata(&location).is_ok() {
                return Err(self.obstacle_error(
                    &self.location.path.clone().join(table),
                    "a link of labelmill",
                ));
            }
        }
        Ok(())
    }

    /// The newest commit of all runs, by the store's modification times: the run that `latest` should name if it was
    /// lost.
    pub(in crate::sink::parquet) async fn newest_commit(&self) -> Result<Option<Box<Committed>>> {
        let mut manifests: Vec<(ObjectMeta, Path)> = Vec::new();
        for (run_id, folder) in self.run_folders().await? {
            let run = self.run_path(&run_id);
            manifests.extend(folder.manifests.into_iter().map(|object| (object, run.clone())));
        }
        manifests.sort_by_key(|(object, _)| std::cmp::Reverse(object.last_modified));
        for (object, run) in manifests {
            // A manifest that is not ours is no commit.
            if let Ok(RunState::Committed(committed)) = self.run_state(&run).await
                && committed.meta.location == object.location
            {
                return Ok(Some(committed));
            }
        }
        Ok(None)
    }

    pub(in crate::sink::parquet) fn latest_path(&self) -> Path {
        self.location.path.clone().join("latest.json")
    }
}

/// Opens the lock file. The system releases the lock when the process ends, however it ends. A file of another user can
/// be locked without permission to write it.
fn lock_file(path: &FilePath) -> io::Result<File> {
    // Opening a pipe could block for ever.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let what = format!("a file is needed at {}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    match File::options().create(true).append(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

/// The content of `latest.json` on local disk; `None` if there is none, or what is there names no run.
///
/// # Errors
/// When it cannot be read: without it, `latest` might be moved back from a newer run.
fn named(root: &FilePath) -> io::Result<Option<Latest>> {
    let path = root.join("latest.json");
    if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    match regular_file::read(&path, regular_file::TEXT_BYTES) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Atomically replaces the link `name` by a link to `target`. The caller holds the lock.
fn relink(root: &FilePath, target: &FilePath, name: &str) -> io::Result<()> {
    let staged = root.join(LATEST_LINK);
    // A process that died between these steps may have left this link. It is nothing else: `obstacles.rs` checked that.
    match fs::remove_file(&staged) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    symlink(target, &staged)?;
    fs::rename(staged, root.join(name))
}

/// Removes the temporary link that a dead process left, unless another process is about to rename it.
pub(in crate::sink::parquet) fn remove_staged_link(root: &FilePath) {
    let lock = lock_file(&root.join("_leases").join(LOCK)).ok();
    let is_locked = lock.as_ref().is_some_and(|lock| lock.try_lock().is_ok());
    if is_locked && describe_obstacle_to_link(root, LATEST_LINK).is_none() {
        let _ = fs::remove_file(root.join(LATEST_LINK));
    }
}

fn symlink(target: &FilePath, link: &FilePath) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_dir(target, link);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::parquet::testing::{TestSink, attempt};

    #[tokio::test(flavor = "multi_thread")]
    async fn latest_is_compared_by_the_store_s_clock_whatever_the_clocks_of_the_writers_say() {
        let test = TestSink::new(None);
        let old = test.commit("old", &attempt('a'), 40, "2999-01-01T00:00:00Z").await;
        let new = test.commit("new", &attempt('b'), 30, "1999-01-01T00:00:00Z").await;
        for committed in [&old, &new, &old] {
            let _ = test.sink.point_latest(committed, None).await.unwrap();
        }
        let ControlFile::Whole(latest, _) = test.sink.read_latest().await.unwrap() else {
            panic!()
        };
        assert_eq!(latest.run_id, "new");
        assert_eq!(latest.committed, new.at().to_rfc3339_opts(SecondsFormat::Nanos, true));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn latest_stays_if_a_newer_commit_took_it_between_the_look_and_the_lock() {
        let test = TestSink::new(None);
        let old = test.commit("old", &attempt('a'), 40, "").await;
        let new = test.commit("new", &attempt('b'), 30, "").await;
        // The writer of the old run has looked: `latest` named nothing. Now another one moves it.
        let _ = test.sink.point_latest(&new, None).await.unwrap();
        let latest = Latest {
            run_id: "old".to_owned(),
            attempt: attempt('a'),
            committed: old.at().to_rfc3339_opts(SecondsFormat::Nanos, true),
            committed_at: String::new(),
            since: String::new(),
        };
        let root = test.sink.location.local().unwrap();
        let stays = |named: &Latest| named.is_newer_than(&latest);
        let moved = test.sink.switch_link(&root, &old, &latest, stays).unwrap();
        assert!(matches!(moved, MoveOutcome::Changed));
        let ControlFile::Whole(named, _) = test.sink.read_latest().await.unwrap() else { panic!() };
        assert_eq!(named.run_id, "new");
    }
}
