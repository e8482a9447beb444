//! One attempt to write a run. It has its own folder, and its own lease that a heartbeat keeps alive.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, UpdateVersion};
use rand::TryRngCore;
use rand::rngs::OsRng;
use tokio::task::block_in_place;

use crate::error::{Error, Result, is_not_implemented};
use crate::sink::parquet::control::disk::{
    Created, STAGED, create_with_folders, is_full, not_synced, on_disk, sync, sync_folder_of,
};
use crate::sink::parquet::control::{ControlFile, json, version_of, write_error};
use crate::sink::parquet::lease::{Lease, Process};
use crate::sink::parquet::manifest::ManifestNumber;
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::store::is_denied;

/// The longest time between two touches of a lease.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How often a request to create a lease is repeated.
const NAME_TRIES: usize = 4;

/// A running attempt. Dropping it stops the heartbeat.
pub(in crate::sink::parquet) struct Attempt {
    pub(in crate::sink::parquet) lease: Lease,
    /// Its folder.
    pub(in crate::sink::parquet) path: Path,
    /// The store's clock when the attempt began.
    pub(in crate::sink::parquet) began: DateTime<Utc>,
    /// Whether an upload to a store failed: the file may still arrive.
    pub(super) lost_uploads: Arc<AtomicBool>,
    /// Whether the lease is gone: another process considered this writer dead. No process would ever delete a file that
    /// it uploads from now on.
    pub(super) lost_lease: Arc<AtomicBool>,
    heartbeat: tokio::task::JoinHandle<()>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Attempt {
    /// Whether the file of a failed upload may still arrive.
    pub(super) fn has_lost_uploads(&self) -> bool {
        self.lost_uploads.load(Ordering::Relaxed)
    }

    /// Whether the heartbeat found that the lease is gone.
    pub(super) fn has_lost_lease(&self) -> bool {
        self.lost_lease.load(Ordering::Relaxed)
    }
}

impl ParquetSink {
    /// Begins an attempt to commit a run under one of its names.
    pub(in crate::sink::parquet) async fn begin_attempt(
        &self,
        run_id: &str,
        manifest_number: ManifestNumber,
        tables: Vec<String>,
        help_if_swept: &str,
    ) -> Result<Attempt> {
        let mut lease = self.new_lease(run_id, manifest_number, tables);
        for _ in 0..NAME_TRIES {
            let version = self.create_lease(&mut lease).await.map_err(|e| e.or_at("sink.url"))?;
            let began = match self.location.store.head(&self.lease_path(&lease.attempt)).await {
                Ok(found) => found.last_modified,
                // This process was suspended here, and another one swept its lease.
                Err(object_store::Error::NotFound { .. }) => continue,
                Err(e) => return Err(Error::from(e).or_at("sink.url")),
            };
            let lost_lease = Arc::default();
            return Ok(Attempt {
                path: self.attempt_path(run_id, &lease.attempt),
                heartbeat: self.heartbeat(&lease, version, Arc::clone(&lost_lease)),
                began,
                lost_uploads: Arc::default(),
                lost_lease,
                lease,
            });
        }
        Err(self.swept_again_and_again().help(help_if_swept))
    }

    /// Creates a file in the same way as a commit and removes it, so that a location that cannot hold a commit, that is not
    /// writable, or whose folder cannot be synced, fails before the work is done. On a store this creates only a lease,
    /// which stays if it cannot be deleted.
    pub(in crate::sink::parquet) async fn try_to_commit(&self, run_id: &str) -> Result<()> {
        let (Some(runs), Some(leases)) = (self.local(&self.runs()), self.local(&self.leases()))
        else {
            let mut lease = self.new_lease(run_id, 1, Vec::new());
            let version = self.create_lease(&mut lease).await.map_err(|e| e.or_at("sink.url"))?;
            let replaced = self.expect_replace(&lease, version).await;
            self.remove_trial(&lease).await;
            return replaced;
        };
        let mut made: Vec<&FilePath> = leases.ancestors().chain(runs.ancestors().take(1)).collect();
        made.retain(|folder| !folder.exists());
        // The longest path first: a folder is removed before its parent.
        made.sort_by_key(|folder| std::cmp::Reverse(folder.as_os_str().len()));
        let mut expected = self.try_to_create(run_id).await;
        if let Some(root) = self.location.local().filter(|_| self.spec.sync)
            && let Err(e) = block_in_place(|| sync(&root))
            // Another writer that tried the sink at the same time has just removed the folder.
            && e.kind() != io::ErrorKind::NotFound
        {
            expected = expected.and(Err(not_synced(&root, &e)));
        }
        // A failed job leaves no folders. A folder that another writer uses is not empty, and stays.
        made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        expected
    }

    /// Refuses a store that takes no puts on condition of a version (If-Match): no lease could be renewed there, and
    /// `latest` could not move.
    async fn expect_replace(&self, lease: &Lease, version: UpdateVersion) -> Result<()> {
        let mut touched = self.touch(lease, version).await;
        if let Err(object_store::Error::Precondition { .. }) = touched {
            // The answer to an earlier put may have been lost: then the lease has a newer version.
            let read = self.read_control::<Lease>(&self.lease_path(&lease.attempt)).await;
            let Ok(ControlFile::Whole(_, meta)) = read else { return Ok(()) };
            touched = self.touch(lease, version_of(&meta)).await;
        }
        match touched {
            Err(e) if is_denied(&e) || matches!(e, object_store::Error::Precondition { .. }) => {
                let text = e.to_string();
                Err(Error::spec("the store does not let an object be replaced only if it is unchanged")
                    .at("sink.url")
                    .found(text.lines().next().unwrap_or_default())
                    .help(
                        "a lease is renewed, and `latest` moves, by conditional puts (If-Match): allow them, or use \
                         another store",
                    ))
            }
            // The next steps meet the same error, or it has passed.
            _ => Ok(()),
        }
    }

    async fn try_to_create(&self, run_id: &str) -> Result<()> {
        for _ in 0..NAME_TRIES {
            let mut lease = self.new_lease(run_id, 1, Vec::new());
            self.create_lease(&mut lease).await.map_err(|e| e.or_at("sink.url"))?;
            let folder = self.attempt_path(run_id, &lease.attempt);
            // The lease names this folder, and `remove_files_of` removes files with this name from it.
            let probe = folder.clone().join(format!("{STAGED}probe"));
            let created = self.create(&probe, &lease, &folder).await;
            self.remove_trial(&lease).await;
            match created {
                Ok(Created::Yes) => return Ok(()),
                Ok(Created::Refused(e)) => return Err(e),
                Ok(Created::Exists) => return Err(Error::bug("two attempts have one name")),
                // This process was suspended here, and another one swept its lease and its temporary file.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(Error::from(e).or_at("sink.url")),
            }
        }
        Err(self
            .swept_again_and_again()
            .help("run the job again, on a machine that does not suspend it"))
    }

    fn swept_again_and_again(&self) -> Error {
        Error::store("the lease of this run was removed again and again")
            .at(self.text(&self.leases()))
    }

    /// Removes the lease and the file of a trial commit.
    async fn remove_trial(&self, lease: &Lease) {
        let removed = self.remove_files_of(lease).await;
        if let Err(e) = removed.and(self.delete(&self.lease_path(&lease.attempt)).await) {
            let run_id = &lease.run_id;
            tracing::warn!(run_id, error = %e, "a file that was made to try the sink could not be removed");
        }
    }

    fn new_lease(
        &self,
        run_id: &str,
        manifest_number: ManifestNumber,
        tables: Vec<String>,
    ) -> Lease {
        Lease {
            attempt: String::new(),
            run_id: run_id.to_owned(),
            manifest_number,
            tables,
            made_folder: self.local(&self.run_path(run_id)).is_some_and(|run| !run.exists()),
            silence_seconds: self.spec.stale_after_seconds,
            process: Process::own(),
        }
    }

    /// Creates the lease under a new random name. If the store's answer is lost, tries another name: the first lease
    /// may exist then, but no files belong to it, and a later run sweeps it after this process has ended.
    async fn create_lease(&self, lease: &mut Lease) -> Result<UpdateVersion> {
        let mut failed = Error::bug("no free name for an attempt");
        for _ in 0..NAME_TRIES {
            let number = OsRng.try_next_u64();
            let number = number.map_err(|e| Error::bug(format!("no random numbers: {e}")))?;
            lease.attempt = format!("{number:016x}");
            let path = self.lease_path(&lease.attempt);
            let created = if let Some(file) = self.local(&path) {
                let mut created = create_new(&file, &json(lease), self.spec.sync);
                if created.as_ref().is_err_and(|e| is_full(e.kind())) {
                    // The files of dead writers may fill the disk.
                    self.make_room().await?;
                    created = create_new(&file, &json(lease), self.spec.sync);
                }
                created
                    .map(|()| UpdateVersion { e_tag: None, version: None })
                    .map_err(|e| on_disk(&file, e))
            } else {
                let put = self.put(&path, json(lease), PutMode::Create).await;
                put.map(|put| UpdateVersion { e_tag: put.e_tag, version: put.version })
            };
            match created {
                Ok(version) => {
                    if let Err(e) = self.expect_create_only(&path, lease).await {
                        self.remove_trial(lease).await;
                        return Err(e);
                    }
                    return Ok(version);
                }
                Err(e) if is_not_implemented(&e) || is_missing_key(&e) => {
                    return Err(no_create_only().found(e.to_string().lines().next().unwrap_or("")));
                }
                // This process was suspended here, and another one swept its lease and the empty folder of leases.
                Err(e @ object_store::Error::NotFound { .. })
                    if self.location.local().is_some() =>
                {
                    failed = write_error(e);
                }
                // On local disk no answer is lost: the lease was not created.
                Err(e @ object_store::Error::Generic { .. }) if self.location.local().is_some() => {
                    return Err(e.into());
                }
                Err(
                    e @ (object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. }
                    | object_store::Error::Generic { .. }),
                ) => failed = e.into(),
                Err(e) => return Err(write_error(e)),
            }
        }
        Err(failed)
    }

    /// Refuses a store that overwrites an existing object on a create-only put: it cannot hold a commit.
    async fn expect_create_only(&self, path: &Path, lease: &Lease) -> Result<()> {
        if self.location.local().is_some() {
            return Ok(());
        }
        // A put may succeed because a sweeper removed the lease while this process was suspended. A store that ignores
        // the condition accepts every put.
        let mut failed = None;
        for _ in 0..NAME_TRIES {
            match self.put(path, json(lease), PutMode::Create).await {
                Ok(_) => failed = None,
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => return Ok(()),
                Err(e) if is_not_implemented(&e) || is_missing_key(&e) => break,
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.map_or_else(no_create_only, write_error))
    }

    /// Touches the lease at regular intervals until the task is aborted or the lease is gone. Sets `is_lost` in the
    /// second case: another process considered the writer dead, and the writer uploads no more.
    fn heartbeat(
        &self,
        lease: &Lease,
        version: UpdateVersion,
        is_lost: Arc<AtomicBool>,
    ) -> tokio::task::JoinHandle<()> {
        let (sink, lease) = (self.clone(), lease.clone());
        let pause = pause(&lease);
        tokio::spawn(async move {
            let mut version = version;
            loop {
                tokio::time::sleep(pause).await;
                match sink.touch(&lease, version.clone()).await {
                    Ok(newer) => version = newer,
                    Err(object_store::Error::NotFound { .. }) => break,
                    // The lease is gone; or the answer to the last touch was lost, and the lease has a newer version.
                    Err(object_store::Error::Precondition { .. }) => {
                        match sink.read_control::<Lease>(&sink.lease_path(&lease.attempt)).await {
                            Ok(ControlFile::Whole(_, meta)) => version = version_of(&meta),
                            Ok(_) => break,
                            Err(_) => {}
                        }
                    }
                    // The next touch tries again: the lease stays valid for `silence_seconds`.
                    Err(e) => tracing::debug!(attempt = lease.attempt, error = %e, "no heartbeat"),
                }
            }
            is_lost.store(true, Ordering::Relaxed);
        })
    }

    /// Renews the lease's modification time, by the store's clock, if the lease still exists; on a store, only if it is
    /// still this `version`.
    async fn touch(
        &self,
        lease: &Lease,
        version: UpdateVersion,
    ) -> Result<UpdateVersion, object_store::Error> {
        let path = self.lease_path(&lease.attempt);
        if let Some(file) = self.local(&path) {
            // Open the file, never create it, and write the same bytes again: a reader never sees any other content.
            let opened = File::options().write(true).open(&file);
            let written = opened.and_then(|mut file| file.write_all(&json(lease)));
            return written.map(|()| version).map_err(|e| on_disk(&file, e));
        }
        let put = self.put(&path, json(lease), PutMode::Update(version)).await?;
        Ok(UpdateVersion { e_tag: put.e_tag, version: put.version })
    }

    /// Ends an attempt: stops the heartbeat and deletes the lease. If that fails, a later run deletes it.
    pub(super) async fn end(&self, attempt: Attempt) {
        attempt.heartbeat.abort();
        let _ = self.location.store.delete(&self.lease_path(&attempt.lease.attempt)).await;
    }
}

/// Whether the store says that the object which is to be created does not exist: some versions of MinIO do.
fn is_missing_key(error: &object_store::Error) -> bool {
    let is_missing = matches!(error, object_store::Error::NotFound { .. });
    is_missing && error.to_string().contains("NoSuchKey")
}

fn no_create_only() -> Error {
    Error::spec("the store cannot create an object only where there is none").at("sink.url").help(
        "a commit rests on conditional puts (If-None-Match): switch them on, or use another store",
    )
}

/// Creates a lease's file. It is written in place: no other process waits for this name, and a truncated lease names no
/// files.
fn create_new(file: &FilePath, bytes: &[u8], sync: bool) -> io::Result<()> {
    #[cfg(test)]
    crate::sink::parquet::control::disk::tests::fail_as_asked(file)?;
    let mut created = create_with_folders(|| {
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::options().write(true).create_new(true).open(file)
    })?;
    let mut written = created.write_all(bytes);
    if sync {
        written = written.and_then(|()| created.sync_all()).and_then(|()| sync_folder_of(file));
    }
    if written.is_err() {
        // Leave no file behind, for instance on a full disk: the caller takes it for one that was not created.
        let _ = fs::remove_file(file);
    }
    written
}

/// The time between two touches: two of them may fail before `silence_seconds` are over.
fn pause(lease: &Lease) -> Duration {
    HEARTBEAT.min(Duration::from_secs(lease.silence_seconds) / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_shows_itself_three_times_within_the_silence_that_it_promised() {
        for silence_seconds in [1, 10, 60, 600] {
            let lease = Lease {
                attempt: String::new(),
                run_id: String::new(),
                manifest_number: 1,
                tables: Vec::new(),
                made_folder: false,
                silence_seconds,
                process: Process::own(),
            };
            assert!(pause(&lease) * 3 <= Duration::from_secs(silence_seconds));
            assert!(pause(&lease) <= HEARTBEAT);
        }
    }
}
