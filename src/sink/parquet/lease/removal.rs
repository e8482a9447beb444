//! Removes the files of attempts: only files with names that an attempt creates, in the folders that leases, manifests
//! and tombstones name. All other files belong to someone else and stay.

use std::fs;
use std::path::{Path as FilePath, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::Lease;
use crate::error::{Error, Result};
use crate::sink::MODEL_FILES;
use crate::sink::parquet::control::disk::STAGED;
use crate::sink::parquet::manifest::Tombstone;
use crate::sink::parquet::manifest::latest::remove_staged_link;
use crate::sink::parquet::manifest::manifest_names::{ManifestState, join};
use crate::sink::parquet::parquet_sink::{LATEST_FILE, LATEST_LINK, ParquetSink, is_attempt};

impl ParquetSink {
    /// Removes every file that a lease names, and then the empty folders.
    pub(in crate::sink::parquet) async fn remove_files_of(&self, lease: &Lease) -> Result<()> {
        self.remove_files(&lease.run_id, &lease.attempt, &lease.tables).await?;
        if let Some(run) = self.local(&self.run_path(&lease.run_id)).filter(|_| lease.made_folder) {
            // This does nothing if the folder is not empty.
            let _ = fs::remove_dir(run);
        }
        Ok(())
    }

    /// Removes the files of an attempt that wrote these tables, and then its empty folders.
    async fn remove_files(&self, run_id: &str, attempt: &str, tables: &[String]) -> Result<()> {
        let folder = self.attempt_path(run_id, attempt);
        if let Some(folder) = self.local(&folder) {
            return remove_on_disk(&folder, |below| is_own(below, tables));
        }
        let listed = self.location.store.list(Some(&folder));
        let listed: Vec<Path> = listed.map_ok(|o| o.location).try_collect().await?;
        let own = listed.into_iter().filter(|path| {
            let below: Vec<_> = path.prefix_match(&folder).into_iter().flatten().collect();
            let below: Vec<&str> = below.iter().map(AsRef::as_ref).collect();
            is_own(&below, tables)
        });
        self.delete_all(own.collect()).await
    }

    /// Deletes the files that a run's tombstones release and that still exist: files of a revoked commit, if the
    /// process that revoked it was interrupted, and files of a stopped attempt that arrived late. `committed` is the
    /// attempt that is committed: where there are no other files, the tombstones are not read.
    pub(in crate::sink::parquet) async fn remove_leftovers(
        &self,
        run_id: &str,
        committed: Option<&str>,
    ) -> Result<()> {
        let run = self.run_path(run_id);
        let subfolders = self.subfolders(&run).await?;
        if subfolders.iter().all(|name| Some(name.as_str()) == committed) {
            return Ok(());
        }
        for number in 1.. {
            match self.manifest_state(&run, number).await? {
                ManifestState::Tombstone(Some(tombstone)) => {
                    self.remove_released(run_id, &tombstone).await?;
                }
                ManifestState::Tombstone(None) => {}
                ManifestState::Absent | ManifestState::Committed(_) => break,
            }
        }
        Ok(())
    }

    async fn remove_released(&self, run_id: &str, tombstone: &Tombstone) -> Result<()> {
        if !tombstone.revoked.is_empty() {
            return self.remove_revoked(run_id, &tombstone.revoked).await;
        }
        if !is_attempt(&tombstone.attempt) {
            return Ok(());
        }
        self.remove_files(run_id, &tombstone.attempt, &tombstone.stopped_tables).await
    }

    /// Removes the files that a revoked commit listed.
    pub(in crate::sink::parquet) async fn remove_revoked(
        &self,
        run_id: &str,
        files: &[String],
    ) -> Result<()> {
        let run = self.run_path(run_id);
        let on_disk = self.local(&run);
        let is_own =
            |file: &&String| on_disk.as_ref().is_none_or(|run| !leads_elsewhere(run, file));
        let own = files.iter().filter(is_own).map(|file| join(run.clone(), file));
        self.delete_all(own.collect()).await?;
        if let Some(run) = on_disk {
            let attempts: std::collections::BTreeSet<_> =
                files.iter().filter_map(|file| file.split('/').next()).collect();
            for attempt in attempts.into_iter().filter(|name| is_attempt(name)) {
                let is_control = |below: &[&str]| matches!(below, [name] if is_control(name));
                remove_on_disk(&run.join(attempt), is_control)?;
            }
        }
        Ok(())
    }

    /// Removes the temporary files that a killed writer of a committed run left.
    pub(in crate::sink::parquet) fn remove_staged(&self, lease: &Lease) -> Result<()> {
        if let Some(root) = self.location.local() {
            remove_staged_link(&root);
        }
        match self.local(&self.attempt_path(&lease.run_id, &lease.attempt)) {
            Some(folder) => remove_on_disk(&folder, |below| {
                is_own(below, &lease.tables) && below.last().is_some_and(|name| is_staged(name))
            }),
            None => Ok(()),
        }
    }

    async fn delete_all(&self, paths: Vec<Path>) -> Result<()> {
        let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut deleted = self.location.store.delete_stream(paths);
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(Error::from(e).or_at("sink.url")),
            }
        }
        Ok(())
    }

    pub(in crate::sink::parquet) async fn delete(&self, path: &Path) -> Result<()> {
        match self.location.store.delete(path).await {
            Err(object_store::Error::NotFound { .. }) | Ok(()) => Ok(()),
            Err(e) => Err(Error::from(e).or_at("sink.url")),
        }
    }
}

/// Whether a path below an attempt's folder has a name that an attempt creates. All other files belong to someone else.
fn is_own(below: &[&str], tables: &[String]) -> bool {
    match below {
        [name] => is_control(name),
        ["model", file] | ["model", _, file] => MODEL_FILES.contains(&unstaged(file)),
        [table, file] => tables.iter().any(|t| t == table) && is_part(unstaged(file)),
        _ => false,
    }
}

fn is_control(name: &str) -> bool {
    name.starts_with(STAGED) || [LATEST_FILE, LATEST_LINK].contains(&name)
}

fn is_staged(name: &str) -> bool {
    name.starts_with(STAGED) || name == LATEST_LINK || unstaged(name) != name
}

/// The name without the `#<number>` at its end, which an interrupted upload to local disk leaves.
fn unstaged(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((stem, number)) if !number.is_empty() && is_number(number) => stem,
        _ => name,
    }
}

fn is_part(name: &str) -> bool {
    let number = name.strip_prefix("part-").and_then(|rest| rest.strip_suffix(".parquet"));
    number.is_some_and(|number| number.len() >= 5 && is_number(number))
}

fn is_number(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit())
}

/// Whether a folder on the path to a file of a run is a link: the files behind it belong to someone else.
fn leads_elsewhere(run: &FilePath, file: &str) -> bool {
    let folders = FilePath::new(file).ancestors().skip(1).filter(|f| !f.as_os_str().is_empty());
    folders.map(|folder| run.join(folder)).any(|folder| folder.is_symlink())
}

/// Removes the files below `folder` for which `should_remove` is true, then the empty folders below it, and `folder`
/// itself if it is empty.
fn remove_on_disk(folder: &FilePath, should_remove: impl Fn(&[&str]) -> bool) -> Result<()> {
    let fails = |path: &FilePath, e: std::io::Error| {
        let failed = Error::store(format!("cannot remove what a dead run left: {e}"));
        Error::of_io(&e, failed.at(path.display().to_string()))
    };
    if folder.is_symlink() {
        return Ok(());
    }
    let mut files = Vec::new();
    walk(folder, &mut files);
    for file in files {
        let below: Option<Vec<&str>> =
            file.strip_prefix(folder).ok().map(|p| p.iter().filter_map(|c| c.to_str()).collect());
        if below.is_some_and(|below| should_remove(&below)) {
            match fs::remove_file(&file) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fails(&file, e)),
                _ => {}
            }
        }
    }
    remove_empty(folder);
    Ok(())
}

/// Every file and link below a folder; links are not followed.
fn walk(folder: &FilePath, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), files),
            _ => files.push(entry.path()),
        }
    }
}

/// Removes the empty folders below a folder of an attempt, and then the folder itself if it is empty.
fn remove_empty(folder: &FilePath) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
