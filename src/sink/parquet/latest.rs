//! `latest`: the pointer to the newest committed run.
//!
//! # Why
//! A writer may be suspended between its commit and this step, for a day perhaps. What `latest` named before the commit
//! is older, whatever any clock says: if the pointer still is there, it moves. Where another writer has moved it
//! meanwhile, the store's own times decide. In both cases it moves only if it still is what was read: by a conditional
//! put on a store, under a file lock on local disk. There, `latest.json` is a link through `latest`, which one rename
//! switches: the two cannot disagree.

use std::fs::{self, File};
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use object_store::path::Path;
use object_store::{ObjectMeta, PutMode};
use tokio::task::block_in_place;

use super::control::{Control, json, version_of};
use super::disk::{replace_on_disk, sync};
use super::manifest::{Latest, Manifest};
use super::manifest_names::{Committed, RunState};
use super::obstacles::in_place_of_the_link;
use super::place::{LATEST_FILE, LATEST_LINK, LOCK, ParquetSink, through_latest};
use crate::error::{Error, Result};

/// How often a lost race for the pointer, or a lost answer about it, is run again.
const REQUESTS: u32 = 8;

/// Where the pointer is after a commit.
#[must_use]
pub(super) enum PointerMove {
    /// At this commit, or at a newer one.
    Done,
    /// Where it was: a process that does not move on, suspended perhaps, holds the lock.
    Locked,
}

/// How one request to move the pointer ended.
enum MoveOutcome {
    Yes,
    /// Another writer was faster.
    Changed,
    /// Another writer is at it.
    Locked,
}

impl ParquetSink {
    /// What `latest.json` says.
    pub(super) async fn read_latest(&self) -> Result<Control<Latest>> {
        self.read_control(&self.latest_path()).await
    }

    /// Lets `latest` point to a commit, unless it points to a newer one. What it named `before` the commit is older.
    pub(super) async fn point_latest(
        &self,
        committed: &Committed,
        before: Option<&Latest>,
    ) -> Result<PointerMove> {
        let manifest = &committed.manifest;
        self.refuse_what_is_in_the_way(&manifest.run_id)?;
        let mut failed = Error::store("other writers keep changing latest.json");
        let mut is_locked = false;
        for n in 0..REQUESTS {
            let now = self.read_latest().await?;
            if let Control::Foreign = now {
                return Err(self.in_the_way(&self.latest_path(), "a pointer of labelmill"));
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
            if let Control::Whole(named, _) = &now
                && stays(named)
            {
                return Ok(PointerMove::Done);
            }
            let moved = match self.place.local() {
                Some(root) => block_in_place(|| self.switch_link(&root, committed, &latest, stays)),
                None => self.put_latest(now, &latest).await,
            };
            match moved {
                Ok(MoveOutcome::Yes) => return Ok(PointerMove::Done),
                Ok(MoveOutcome::Changed) => is_locked = false,
                Ok(MoveOutcome::Locked) => is_locked = true,
                Err(e) => (failed, is_locked) = (e, false),
            }
            tokio::time::sleep(Duration::from_millis(20 << n)).await;
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

    /// Replaces the object if it still is what was read.
    async fn put_latest(&self, now: Control<Latest>, latest: &Latest) -> Result<MoveOutcome> {
        let seen: Option<ObjectMeta> = match now {
            Control::Whole(_, meta) | Control::Damaged(meta) => Some(meta),
            Control::Missing | Control::Foreign => None,
        };
        let mode = seen.map_or(PutMode::Create, |meta| PutMode::Update(version_of(&meta)));
        match self.put(&self.latest_path(), json(latest), mode).await {
            Ok(_) => Ok(MoveOutcome::Yes),
            Err(
                object_store::Error::Precondition { .. }
                | object_store::Error::AlreadyExists { .. },
            ) => Ok(MoveOutcome::Changed),
            Err(e) => Err(e.into()),
        }
    }

    /// Switches the link on local disk.
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
            // What takes long is done before the lock is taken.
            replace_on_disk(&folder.join(LATEST_FILE), &json(latest), &folder, self.spec.sync)?;
            let lock = lock_file(&leases.join(LOCK))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Ok(MoveOutcome::Locked),
                Err(fs::TryLockError::Error(e)) => return Err(e),
            }
            // Another writer may have moved the pointer since it was read.
            if named(root).is_some_and(|named| stays(&named)) {
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
            Error::store(format!("cannot switch the link `latest`: {e}"))
                .at(root.display().to_string())
        })
    }

    /// On local disk, links each table's name to the newest run's: `<url>/annotations` is a path that stays. Returns what
    /// to warn of where a name is taken.
    #[must_use]
    pub fn link_tables(&self, manifest: &Manifest) -> Option<String> {
        let root = self.place.local()?;
        let link = |table: &String| {
            let (place, target) = (root.join(table), FilePath::new("latest").join(table));
            if fs::read_link(&place).ok().as_ref() == Some(&target) {
                return None;
            }
            symlink(&target, &place).err().map(|e| format!("`{}`: {e}", place.display()))
        };
        let taken: Vec<String> = manifest.tables.keys().filter_map(link).collect();
        (!taken.is_empty()).then(|| {
            format!(
                "read the tables from {}/latest: {} could not be linked",
                self.url(),
                taken.join(", ")
            )
        })
    }

    /// Whether each table's name is free for [`ParquetSink::link_tables`].
    ///
    /// # Errors
    /// Where something of somebody else has such a name.
    pub fn refuse_taken_names<'a>(&self, tables: impl Iterator<Item = &'a str>) -> Result<()> {
        let Some(root) = self.place.local() else { return Ok(()) };
        for table in tables {
            let place = root.join(table);
            let is_ours =
                fs::read_link(&place).is_ok_and(|to| to == FilePath::new("latest").join(table));
            if !is_ours && fs::symlink_metadata(&place).is_ok() {
                return Err(
                    self.in_the_way(&self.place.path.clone().join(table), "a link of labelmill")
                );
            }
        }
        Ok(())
    }

    /// The newest commit of all runs, by the store's times: what a pointer that was lost named, or should have.
    pub(super) async fn newest_commit(&self) -> Result<Option<Box<Committed>>> {
        let mut manifests: Vec<(ObjectMeta, Path)> = Vec::new();
        for (run_id, folder) in self.run_folders().await? {
            let run = self.run_path(&run_id);
            manifests.extend(folder.manifests.into_iter().map(|object| (object, run.clone())));
        }
        manifests.sort_by_key(|(object, _)| std::cmp::Reverse(object.last_modified));
        for (object, run) in manifests {
            // What is not ours is no commit.
            if let Ok(RunState::Committed(committed)) = self.run_state(&run).await
                && committed.meta.location == object.location
            {
                return Ok(Some(committed));
            }
        }
        Ok(None)
    }

    pub(super) fn latest_path(&self) -> Path {
        self.place.path.clone().join("latest.json")
    }
}

/// The lock goes with the process, however it ends. Another user's file can be locked without being written.
fn lock_file(path: &FilePath) -> io::Result<File> {
    // A pipe would be waited for without an end.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let what = format!("a file is needed at {}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    match File::options().create(true).append(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

/// What the pointer on local disk names.
fn named(root: &FilePath) -> Option<Latest> {
    let path = root.join("latest.json");
    let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
    let bytes = is_file.then(|| fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&bytes).ok()
}

/// Replaces the link of that name by one to `target`, in one step. Who calls it holds the lock.
fn relink(root: &FilePath, target: &FilePath, name: &str) -> io::Result<()> {
    let staged = root.join(LATEST_LINK);
    // What a process left that died between these steps; nothing else is there, as `obstacles.rs` saw.
    match fs::remove_file(&staged) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    symlink(target, &staged)?;
    fs::rename(staged, root.join(name))
}

/// Removes a link that a process left on its way to `latest`, unless somebody is just about to move it there.
pub(super) fn remove_staged_link(root: &FilePath) {
    let lock = lock_file(&root.join("_leases").join(LOCK)).ok();
    let is_locked = lock.as_ref().is_some_and(|lock| lock.try_lock().is_ok());
    if is_locked && in_place_of_the_link(root, LATEST_LINK).is_none() {
        let _ = fs::remove_file(root.join(LATEST_LINK));
    }
}

fn symlink(target: &FilePath, link: &FilePath) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_dir(target, link);
}
