//! Removes what dead writers left: files with the names that their leases give, in the folders that they give.

use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::attempt::Attempt;
use super::control::{Control, Created, STAGED};
use super::latest::{LATEST_FILE, LATEST_LINK, PointerMove};
use super::lease::Lease;
use super::manifest_names::{ManifestState, join, manifest_path};
use super::place::ParquetSink;
use crate::error::{Error, Result};
use crate::sink::MODEL_FILES;

/// How often a name is looked at while others change what it holds.
const LOOKS: usize = 8;

impl ParquetSink {
    /// Removes what dead writers left, before a run writes and not after: disk that they hold is free for it. Returns
    /// whether one of them had wanted the attempt's own name, which is used up then.
    pub(super) async fn sweep(&self, own: &Attempt) -> Result<bool> {
        let (dead, living) = self.leases_of_others(own).await?;
        let mut is_own_used_up = false;
        for lease in dead {
            // A living writer's commit decides about its own name; a tombstone there would only stop it.
            let is_wanted = living.iter().any(|other| other.commits_as(&lease));
            if !is_wanted || self.is_decided(&lease).await {
                let used_up = self.reap(&lease, own).await;
                is_own_used_up |= used_up && own.lease.commits_as(&lease);
            }
        }
        Ok(is_own_used_up)
    }

    /// Removes what other attempts at this run left, now that it is committed and none of them can be.
    pub(super) async fn reap_others_of(&self, own: &Attempt) -> Result<()> {
        let (dead, _) = self.leases_of_others(own).await?;
        for lease in dead.iter().filter(|lease| lease.run_id == own.lease.run_id) {
            self.reap(lease, own).await;
        }
        Ok(())
    }

    /// Whether the name that an attempt wanted is taken, by whatever it is.
    async fn is_decided(&self, lease: &Lease) -> bool {
        let run = self.run_path(&lease.run_id);
        let state = self.manifest_state(&run, lease.manifest_number).await;
        matches!(state, Ok(ManifestState::Committed(_) | ManifestState::Tombstone { .. }))
    }

    /// Removes what a dead attempt left, and returns whether the name that it wanted is used up. What cannot be removed,
    /// another user's files for instance, stops nobody.
    async fn reap(&self, lease: &Lease, own: &Attempt) -> bool {
        let mut is_used_up = false;
        if let Err(e) = self.try_reap(lease, own, &mut is_used_up).await {
            let (run_id, attempt) = (&lease.run_id, &lease.attempt);
            tracing::warn!(run_id, attempt, error = %e, "what a dead run left could not be removed");
        }
        is_used_up
    }

    /// Removes what a dead attempt left, once it is certain that it is not committed and never will be. The name that it
    /// wanted `is_used_up` even where the files then cannot be removed.
    async fn try_reap(&self, lease: &Lease, own: &Attempt, is_used_up: &mut bool) -> Result<()> {
        let run = self.run_path(&lease.run_id);
        let mut looks = 0;
        loop {
            looks += 1;
            if looks > LOOKS {
                return Err(self.in_the_way(
                    &manifest_path(&run, lease.manifest_number),
                    "a manifest of labelmill",
                ));
            }
            match self.manifest_state(&run, lease.manifest_number).await? {
                ManifestState::Committed(committed)
                    if committed.manifest.attempt == lease.attempt =>
                {
                    // It died between its commit and its end.
                    *is_used_up = true;
                    if let PointerMove::Locked = self.point_latest(&committed, None).await? {
                        return Ok(());
                    }
                    self.remove_staged(lease)?;
                    return self.delete(&self.lease_path(&lease.attempt)).await;
                }
                ManifestState::Committed(_) | ManifestState::Tombstone { .. } => break,
                ManifestState::Absent => {
                    let why = "its writer was taken for dead";
                    match self.put_tombstone(lease, why, &own.path).await? {
                        Created::Yes => break,
                        Created::Exists => {}
                        Created::NotAsked(e) => return Err(e.into()),
                    }
                }
            }
        }
        *is_used_up = true;
        tracing::info!(
            run_id = lease.run_id,
            attempt = lease.attempt,
            "swept what a dead run left"
        );
        self.remove_files(lease).await?;
        self.delete(&self.lease_path(&lease.attempt)).await
    }

    /// Every lease but one: those of dead writers, and those of living ones.
    async fn leases_of_others(&self, own: &Attempt) -> Result<(Vec<Lease>, Vec<Lease>)> {
        let listed = self.place.store.list(Some(&self.leases()));
        let listed: Vec<ObjectMeta> =
            listed.try_collect().await.map_err(|e| Error::from(e).or_at("sink.url"))?;
        let (mut dead, mut living) = (Vec::new(), Vec::new());
        for object in listed {
            let Some(attempt) = object.location.filename().and_then(attempt_of) else { continue };
            if attempt == own.lease.attempt {
                continue;
            }
            let silent = (own.began - object.last_modified).to_std().unwrap_or_default();
            let is_old = silent > Duration::from_secs(self.spec.stale_after_seconds);
            if object.size == 0 && !is_old {
                continue;
            }
            let found = match self.read_control::<Lease>(&object.location).await {
                Ok(found) => found,
                Err(e) => {
                    // It proves nobody dead, and whoever can read it may do so.
                    let file = self.text(&object.location);
                    tracing::warn!(file, error = %e, "the lease of another run cannot be read: it is left alone");
                    continue;
                }
            };
            match found {
                Control::Whole(lease, meta) if lease.attempt == attempt => {
                    let is_dead = lease.is_dead(meta.last_modified, own.began);
                    if is_dead { &mut dead } else { &mut living }.push(lease);
                }
                // Cut short, it names nothing, and its writer has no use for it.
                Control::Damaged(_) if is_old => {
                    if let Err(e) = self.delete(&object.location).await {
                        tracing::warn!(error = %e, "a damaged lease could not be removed");
                    }
                }
                Control::Whole(..) | Control::Damaged(_) | Control::Foreign | Control::Missing => {}
            }
        }
        Ok((dead, living))
    }

    /// Removes every file that a lease names, and the folders that are empty then.
    pub(super) async fn remove_files(&self, lease: &Lease) -> Result<()> {
        if let Some(folder) = self.local(&self.attempt_path(&lease.run_id, &lease.attempt)) {
            return remove_on_disk(&folder, |below| is_own(below, lease));
        }
        let folder = self.attempt_path(&lease.run_id, &lease.attempt);
        let listed = self.place.store.list(Some(&folder));
        let listed: Vec<Path> = listed.map_ok(|o| o.location).try_collect().await?;
        let own = listed.into_iter().filter(|path| {
            let below: Vec<_> = path.prefix_match(&folder).into_iter().flatten().collect();
            let below: Vec<&str> = below.iter().map(AsRef::as_ref).collect();
            is_own(&below, lease)
        });
        self.delete_all(own.collect()).await
    }

    /// Removes the files that a revoked commit named.
    pub(super) async fn remove_revoked(&self, run_id: &str, files: &[String]) -> Result<()> {
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

    /// Removes what a killed writer had on its way to its place, of a run that is committed.
    pub(super) fn remove_staged(&self, lease: &Lease) -> Result<()> {
        match self.local(&self.attempt_path(&lease.run_id, &lease.attempt)) {
            Some(folder) => remove_on_disk(&folder, |below| {
                is_own(below, lease) && below.last().is_some_and(|name| is_staged(name))
            }),
            None => Ok(()),
        }
    }

    async fn delete_all(&self, paths: Vec<Path>) -> Result<()> {
        let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut deleted = self.place.store.delete_stream(paths);
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(Error::from(e).or_at("sink.url")),
            }
        }
        Ok(())
    }

    pub(super) async fn delete(&self, path: &Path) -> Result<()> {
        match self.place.store.delete(path).await {
            Err(object_store::Error::NotFound { .. }) | Ok(()) => Ok(()),
            Err(e) => Err(Error::from(e).or_at("sink.url")),
        }
    }
}

/// The attempt that a lease's file name names.
fn attempt_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|attempt| is_attempt(attempt))
}

/// Whether this is the name of an attempt.
pub(super) fn is_attempt(name: &str) -> bool {
    name.len() == 16 && name.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
}

/// Whether a path below an attempt's folder has a name that the attempt gives: anything else is somebody else's.
fn is_own(below: &[&str], lease: &Lease) -> bool {
    match below {
        [name] => is_control(name),
        ["model", file] | ["model", _, file] => MODEL_FILES.contains(&unstaged(file)),
        [table, file] => lease.tables.iter().any(|t| t == table) && is_part(unstaged(file)),
        _ => false,
    }
}

fn is_control(name: &str) -> bool {
    name.starts_with(STAGED) || [LATEST_FILE, LATEST_LINK].contains(&name)
}

fn is_staged(name: &str) -> bool {
    name.starts_with(STAGED) || name == LATEST_LINK || unstaged(name) != name
}

/// The name of a file whose upload to local disk was cut short ends in `#` and a number.
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

/// Whether a folder on the way to a file of a run was replaced by a link: what lies behind it is somebody else's.
fn leads_elsewhere(run: &FilePath, file: &str) -> bool {
    let folders = FilePath::new(file).ancestors().skip(1).filter(|f| !f.as_os_str().is_empty());
    folders.map(|folder| run.join(folder)).any(|folder| folder.is_symlink())
}

/// Removes the files below a folder that `is_meant`, then the folders in which they lay, itself and the one above it,
/// as far as they are empty.
fn remove_on_disk(folder: &FilePath, is_meant: impl Fn(&[&str]) -> bool) -> Result<()> {
    let fails = |path: &FilePath, e: std::io::Error| {
        Error::store(format!("cannot remove what a dead run left: {e}"))
            .at(path.display().to_string())
    };
    if folder.is_symlink() {
        return Ok(());
    }
    let mut files = Vec::new();
    walk(folder, &mut files);
    for file in files {
        let below: Option<Vec<&str>> =
            file.strip_prefix(folder).ok().map(|p| p.iter().filter_map(|c| c.to_str()).collect());
        if below.is_some_and(|below| is_meant(&below)) {
            match fs::remove_file(&file) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fails(&file, e)),
                _ => {}
            }
        }
    }
    remove_empty(folder);
    if let Some(run) = folder.parent() {
        let _ = fs::remove_dir(run);
    }
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

/// Removes a folder of an attempt and the folders in it, as far as they are empty.
fn remove_empty(folder: &FilePath) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
