//! `latest`: the pointer to the newest committed run.
//!
//! # Why
//! A writer may be suspended between its commit and this step, for a day perhaps. So the pointer moves only from an
//! older commit to a newer one, by the store's own times, and only if it still is what was read: by a conditional put
//! on a store, under a file lock on local disk. There, `latest.json` is a link through `latest`, which one rename
//! switches: the two cannot disagree.

use std::fs::{self, File};
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use object_store::path::Path;
use object_store::{ObjectMeta, PutMode};

use super::ParquetSink;
use super::control::{Control, json, replace_on_disk, sync, version_of};
use super::manifest::{Latest, Manifest};
use super::slot::Committed;
use super::sweep::is_attempt;
use crate::error::{Error, Result};

/// In an attempt's folder on local disk: what `latest.json` shows while `latest` leads here.
pub(super) const LATEST_FILE: &str = "_latest.json";

/// In an attempt's folder on local disk: a link on its way to `latest`.
pub(super) const LATEST_LINK: &str = "_latest";

/// How often a lost race for the pointer, or a lost answer about it, is run again.
const ATTEMPTS: u32 = 8;

impl ParquetSink {
    /// What `latest.json` says.
    pub(super) async fn read_latest(&self) -> Result<Control<Latest>> {
        self.read_control(&self.latest_path()).await
    }

    /// Lets `latest` point to a commit, unless it points to a newer one.
    pub(super) async fn point_latest(&self, committed: &Committed) -> Result<()> {
        self.refuse_what_is_in_the_way()?;
        let manifest = &committed.manifest;
        let mut failed = Error::store("other writers keep changing latest.json");
        for n in 0..ATTEMPTS {
            let now = self.read_latest().await?;
            if let Control::Foreign = now {
                return Err(self.in_the_way(&self.latest_path(), "a pointer of labelmill"));
            }
            if let Control::Whole(latest, _) = &now
                && (latest.committed > time_of(committed)
                    || (&latest.run_id, &latest.attempt) == (&manifest.run_id, &manifest.attempt))
            {
                return Ok(());
            }
            let latest = Latest {
                run_id: manifest.run_id.clone(),
                attempt: manifest.attempt.clone(),
                committed: time_of(committed),
                since: Utc::now().to_rfc3339(),
            };
            let moved = match self.place.local() {
                Some(root) => self.switch_link(&root, committed, &latest),
                None => self.put_latest(now, &latest).await,
            };
            match moved {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => failed = e,
            }
            tokio::time::sleep(Duration::from_millis(20 << n)).await;
        }
        Err(failed.or_at("latest.json"))
    }

    /// Replaces the object if it still is what was read; `false` where another writer was faster.
    async fn put_latest(&self, now: Control<Latest>, latest: &Latest) -> Result<bool> {
        let seen: Option<ObjectMeta> = match now {
            Control::Whole(_, meta) | Control::Damaged(meta) => Some(meta),
            Control::Missing | Control::Foreign => None,
        };
        let mode = seen.map_or(PutMode::Create, |meta| PutMode::Update(version_of(&meta)));
        match self.put(&self.latest_path(), json(latest), mode).await {
            Ok(_) => Ok(true),
            Err(
                object_store::Error::Precondition { .. }
                | object_store::Error::AlreadyExists { .. },
            ) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Switches the link on local disk; `false` where another writer is at it, or has been.
    fn switch_link(&self, root: &FilePath, committed: &Committed, latest: &Latest) -> Result<bool> {
        let manifest = &committed.manifest;
        // The files of a run that an older version wrote lie in the run's own folder.
        let target = PathBuf::from("runs").join(&manifest.run_id).join(&manifest.attempt);
        let folder = root.join(&target);
        let switch = || -> io::Result<bool> {
            let leases = root.join("_leases");
            fs::create_dir_all(&leases)?;
            // What takes long is done before the lock is taken.
            let (file, link) = (folder.join(LATEST_FILE), folder.join(LATEST_LINK));
            replace_on_disk(&file, &json(latest), &folder, self.spec.sync)?;
            let lock = lock_file(&leases.join("latest.lock"))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Ok(false),
                Err(fs::TryLockError::Error(e)) => return Err(e),
            }
            if newer_is_named(root, latest) {
                return Ok(false);
            }
            relink(&target, &link, &root.join("latest"))?;
            let through = FilePath::new("latest").join(LATEST_FILE);
            let pointer = root.join("latest.json");
            if fs::read_link(&pointer).ok().as_ref() != Some(&through) {
                relink(&through, &link, &pointer)?;
            }
            drop(lock);
            if self.spec.sync {
                sync(root)?;
            }
            Ok(true)
        };
        switch().map_err(|e| {
            Error::store(format!("cannot switch the link `latest`: {e}"))
                .at(root.display().to_string())
        })
    }

    /// On local disk, nobody else's file may have the link's name.
    pub(super) fn refuse_what_is_in_the_way(&self) -> Result<()> {
        let Some(root) = self.place.local() else { return Ok(()) };
        if root.join("latest.json").is_dir() {
            return Err(self.in_the_way(&self.latest_path(), "a pointer of labelmill"));
        }
        let link = root.join("latest");
        let found = match fs::symlink_metadata(&link) {
            Ok(found) if found.is_symlink() => match fs::read_link(&link) {
                Ok(target) if leads_to_a_run(&root, &target) => return Ok(()),
                _ => "a link that leads elsewhere",
            },
            Ok(found) if found.is_dir() => "a folder",
            Ok(_) => "a file",
            Err(_) => return Ok(()),
        };
        Err(Error::spec("what labelmill did not write is where the link `latest` belongs")
            .at(format!("sink.url: {}/latest", self.url()))
            .found(found)
            .help("labelmill leaves it alone: move it away, or choose another sink.url"))
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

    pub(super) fn latest_path(&self) -> Path {
        self.place.path.clone().join("latest.json")
    }
}

/// Whether a link leads to the files of an attempt, or to a run that an older version wrote.
fn leads_to_a_run(root: &FilePath, target: &FilePath) -> bool {
    let parts: Vec<&str> = target.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        ["runs", _, attempt] => is_attempt(attempt),
        ["runs", _] => root.join(target).join("manifest.json").is_file(),
        _ => false,
    }
}

/// The lock goes with the process, however it ends. Another user's file can be locked without being written.
fn lock_file(path: &FilePath) -> io::Result<File> {
    match File::options().create(true).append(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

/// When the store says that a commit was made, in a form that sorts.
fn time_of(committed: &Committed) -> String {
    committed.at().to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// Whether another writer has moved the pointer to a newer commit since it was read.
fn newer_is_named(root: &FilePath, latest: &Latest) -> bool {
    let named = fs::read(root.join("latest.json")).ok();
    let named = named.and_then(|bytes| serde_json::from_slice::<Latest>(&bytes).ok());
    named.is_some_and(|named| named.committed > latest.committed)
}

/// Replaces `place` by a link to `target` in one step.
fn relink(target: &FilePath, staged: &FilePath, place: &FilePath) -> io::Result<()> {
    match fs::remove_file(staged) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    symlink(target, staged)?;
    fs::rename(staged, place)
}

fn symlink(target: &FilePath, link: &FilePath) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_dir(target, link);
}
