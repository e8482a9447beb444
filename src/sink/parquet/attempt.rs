//! One attempt to write a run: a folder and a lease of its own, kept alive by a heartbeat.

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

use super::control::{Control, json, version_of};
use super::disk::Created;
use super::disk::{STAGED, is_full, on_disk, sync_folder_of};
use super::lease::{Lease, Process};
use super::manifest::ManifestNumber;
use super::place::ParquetSink;
use crate::error::{Error, Result};
use crate::sink::JobCommand;

/// How often a writer shows that it lives, at least.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How often a free name for an attempt is looked for.
const NAME_TRIES: usize = 4;

/// An attempt under way. The heartbeat ends when it is dropped.
pub(super) struct Attempt {
    pub(super) lease: Lease,
    /// Its folder.
    pub(super) path: Path,
    /// The store's clock when the attempt began.
    pub(super) began: DateTime<Utc>,
    /// Whether a store failed to answer an upload: the file may still arrive.
    pub(super) lost_uploads: Arc<AtomicBool>,
    /// Whether the lease is gone: the writer was taken for dead, and what it uploads from now on would be in nobody's
    /// way and in nobody's care.
    pub(super) lost_lease: Arc<AtomicBool>,
    heartbeat: tokio::task::JoinHandle<()>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Attempt {
    /// Whether a file may still arrive.
    pub(super) fn has_lost_uploads(&self) -> bool {
        self.lost_uploads.load(Ordering::Relaxed)
    }

    /// Whether the writer was taken for dead, as far as it knows.
    pub(super) fn has_lost_lease(&self) -> bool {
        self.lost_lease.load(Ordering::Relaxed)
    }
}

impl ParquetSink {
    /// Begins an attempt to commit a run under one of its names.
    pub(super) async fn begin_attempt(
        &self,
        run_id: &str,
        manifest_number: ManifestNumber,
        tables: Vec<String>,
        command: JobCommand,
    ) -> Result<Attempt> {
        let mut lease = self.new_lease(run_id, manifest_number, tables);
        for _ in 0..NAME_TRIES {
            let version = self.create_lease(&mut lease).await.map_err(|e| e.or_at("sink.url"))?;
            let began = match self.place.store.head(&self.lease_path(&lease.attempt)).await {
                Ok(found) => found.last_modified,
                // It was swept, of a process that was suspended here.
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
        Err(Error::store("the lease of this run was removed again and again")
            .at(self.text(&self.leases()))
            .help(command.help_if_swept()))
    }

    /// Creates a file in the way that a commit does, and removes it: a place that cannot hold a commit, or may not be
    /// written to, says so before the work is done. A store is tried with a lease alone, which may stay where it may
    /// not be deleted.
    pub(super) async fn try_to_commit(&self, run_id: &str) -> Result<()> {
        let (Some(runs), Some(leases)) = (self.local(&self.runs()), self.local(&self.leases()))
        else {
            let mut lease = self.new_lease(run_id, 1, Vec::new());
            self.create_lease(&mut lease).await.map_err(|e| e.or_at("sink.url"))?;
            self.remove_trial(&lease).await;
            return Ok(());
        };
        let mut made: Vec<&FilePath> = leases.ancestors().chain(runs.ancestors().take(1)).collect();
        made.retain(|folder| !folder.exists());
        // The longest first: a folder goes before the one in which it lies.
        made.sort_by_key(|folder| std::cmp::Reverse(folder.as_os_str().len()));
        let expected = self.try_to_create(run_id).await;
        // A job that fails leaves nothing; another writer's folder is not empty.
        made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        expected
    }

    async fn try_to_create(&self, run_id: &str) -> Result<()> {
        let mut lease = self.new_lease(run_id, 1, Vec::new());
        self.create_lease(&mut lease).await.map_err(|e| e.or_at("sink.url"))?;
        let folder = self.attempt_path(run_id, &lease.attempt);
        // The lease names the folder, and the file is one of those that go with it.
        let probe = folder.clone().join(format!("{STAGED}probe"));
        let created = self.create(&probe, &lease, &folder).await;
        self.remove_trial(&lease).await;
        match created {
            Ok(Created::Yes) => Ok(()),
            Ok(Created::Refused(e)) => Err(e),
            Ok(Created::Exists) => Err(Error::bug("two attempts have one name")),
            Err(e) => Err(Error::from(e).or_at("sink.url")),
        }
    }

    /// Removes what was made to try the place.
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

    /// Creates the lease under a name that nobody has. If the answer is lost, another name is tried: the first lease may
    /// exist; it names no files, and is swept once this process has ended.
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
                    // Who died may have filled the disk.
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
                Err(object_store::Error::NotImplemented { .. }) => return Err(no_create_only()),
                // A disk's answers are not lost.
                Err(e @ object_store::Error::Generic { .. }) if self.place.local().is_some() => {
                    return Err(e.into());
                }
                Err(
                    e @ (object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. }
                    | object_store::Error::Generic { .. }),
                ) => failed = e.into(),
                Err(e) => return Err(e.into()),
            }
        }
        Err(failed)
    }

    /// A store that replaces what it was asked to create only where there is nothing cannot hold a commit.
    async fn expect_create_only(&self, path: &Path, lease: &Lease) -> Result<()> {
        if self.place.local().is_some() {
            return Ok(());
        }
        // The first put may succeed where a sweeper removed the lease while this process was suspended; a store that
        // ignores the condition accepts every put.
        let mut failed = None;
        for _ in 0..NAME_TRIES {
            match self.put(path, json(lease), PutMode::Create).await {
                Ok(_) => failed = None,
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => return Ok(()),
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.map_or_else(no_create_only, Error::from))
    }

    /// Touches the lease again and again until the task is aborted, or the lease `is_lost`: then the writer was taken
    /// for dead, and uploads no more.
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
                    // It is gone; or the answer to the last touch was lost, and it has a newer version.
                    Err(object_store::Error::Precondition { .. }) => {
                        match sink.read_control::<Lease>(&sink.lease_path(&lease.attempt)).await {
                            Ok(Control::Whole(_, meta)) => version = version_of(&meta),
                            Ok(_) => break,
                            Err(_) => {}
                        }
                    }
                    // The store will be asked again, and has `silence_seconds` to answer.
                    Err(e) => tracing::debug!(attempt = lease.attempt, error = %e, "no heartbeat"),
                }
            }
            is_lost.store(true, Ordering::Relaxed);
        })
    }

    /// Gives the lease a new time, by the store's clock, if it is still there as it was.
    async fn touch(
        &self,
        lease: &Lease,
        version: UpdateVersion,
    ) -> Result<UpdateVersion, object_store::Error> {
        let path = self.lease_path(&lease.attempt);
        if let Some(file) = self.local(&path) {
            // Opened, never created: the same bytes again, so that no reader sees anything else.
            let opened = File::options().write(true).open(&file);
            let written = opened.and_then(|mut file| file.write_all(&json(lease)));
            return written.map(|()| version).map_err(|e| on_disk(&file, e));
        }
        let put = self.put(&path, json(lease), PutMode::Update(version)).await?;
        Ok(UpdateVersion { e_tag: put.e_tag, version: put.version })
    }

    /// Ends an attempt that has nothing left to do; if that fails, the next run does it.
    pub(super) async fn end(&self, attempt: Attempt) {
        attempt.heartbeat.abort();
        let _ = self.place.store.delete(&self.lease_path(&attempt.lease.attempt)).await;
    }
}

fn no_create_only() -> Error {
    Error::spec("the store cannot create an object only where there is none").at("sink.url").help(
        "a commit rests on conditional puts (If-None-Match): switch them on, or use another store",
    )
}

/// Creates a lease under a name of its own. It is written in place: nobody waits for this name, and one that was cut
/// short names nothing.
fn create_new(file: &FilePath, bytes: &[u8], sync: bool) -> io::Result<()> {
    let create = || {
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::options().write(true).create_new(true).open(file)
    };
    // Another writer may just remove a folder that is empty.
    let mut created = match create() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => create()?,
        created => created?,
    };
    let written =
        created.write_all(bytes).and_then(|()| if sync { created.sync_all() } else { Ok(()) });
    if written.is_err() {
        // On a full disk, for instance, not even an empty file stays.
        let _ = fs::remove_file(file);
    }
    written?;
    if sync { sync_folder_of(file) } else { Ok(()) }
}

/// The time between two touches: two may be lost before the silence that was promised is over.
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
