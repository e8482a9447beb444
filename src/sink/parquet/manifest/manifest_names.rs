//! The names under which a run may be committed: `manifest.json`, then `manifest-2.json`, `manifest-3.json`, ...
//!
//! # Why
//! An attempt chooses the first name that can still hold a commit, almost always `manifest.json`, and asks the store to
//! create exactly that object. A process that considers the attempt dead first creates a tombstone under the same name.
//! The store lets only one of the two succeed. A name that holds a tombstone or a damaged manifest is used up for good,
//! and the next attempt takes the next name. As a used-up name is never freed, a run has at most one valid commit,
//! however long any process was suspended. `protocol/` checks every order of events.
//!
//! The names are used in their order, and nothing is committed before a name that is used up. So the last one is found
//! in steps that double, and not one by one: a run whose id is used again and again stays as cheap as a new one.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::Deserialize;

use super::{ManifestNumber, Tombstone};
use crate::error::{Error, Result};
use crate::sink::parquet::control::disk::Created;
use crate::sink::parquet::control::{ControlFile, write_error};
use crate::sink::parquet::lease::Lease;
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::sink::{CommittedRun, FileEntry};
use crate::store::StoreLocation;

/// The number of runs whose manifests are read at once: one after the other, a thousand of them take a minute.
pub(in crate::sink::parquet) const READS_AT_ONCE: usize = 32;

/// The state of one of a run's manifest names.
pub(in crate::sink::parquet) enum ManifestState {
    /// Nothing yet.
    Absent,
    /// A commit.
    Committed(Box<Committed>),
    /// A tombstone, or `None` for a damaged manifest: nothing will ever be committed under this name.
    Tombstone(Option<Box<Tombstone>>),
}

/// Whether a run is committed.
pub(in crate::sink::parquet) enum RunState {
    /// The run is committed.
    Committed(Box<Committed>),
    /// The run is not committed; this is the first name that can still hold its commit.
    Open(ManifestNumber),
}

/// A commit.
pub(in crate::sink::parquet) struct Committed {
    pub(in crate::sink::parquet) manifest: CommittedRun,
    /// The number of its manifest name.
    pub(in crate::sink::parquet) number: ManifestNumber,
    /// The manifest's object.
    pub(in crate::sink::parquet) meta: ObjectMeta,
}

impl Committed {
    /// When it was committed, by the store's clock.
    pub(in crate::sink::parquet) fn at(&self) -> DateTime<Utc> {
        self.meta.last_modified
    }
}

/// The content under a manifest name. Only a manifest has a digest.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Manifest(Box<CommittedRun>),
    Tombstone(Tombstone),
}

impl ParquetSink {
    /// Reads one of a run's manifest names.
    pub(in crate::sink::parquet) async fn manifest_state(
        &self,
        run: &Path,
        number: ManifestNumber,
    ) -> Result<ManifestState> {
        let path = manifest_path(run, number);
        Ok(match self.read_control(&path).await? {
            ControlFile::Missing => ManifestState::Absent,
            ControlFile::Damaged(_) => ManifestState::Tombstone(None),
            ControlFile::Foreign => {
                return Err(self.obstacle_error(&path, "a manifest of labelmill"));
            }
            ControlFile::Whole(Content::Tombstone(tombstone), _) => {
                ManifestState::Tombstone(Some(Box::new(tombstone)))
            }
            ControlFile::Whole(Content::Manifest(manifest), meta) => {
                ManifestState::Committed(Box::new(Committed { manifest: *manifest, number, meta }))
            }
        })
    }

    /// The commit of a run, or the first name that can still hold one.
    pub(in crate::sink::parquet) async fn run_state(&self, run: &Path) -> Result<RunState> {
        // The last name that is known to be used up, and the first one that is known to be absent.
        let (mut used, mut absent) = (0, None);
        loop {
            let number = match absent {
                Some(absent) if absent - used == 1 => return Ok(RunState::Open(absent)),
                Some(absent) => used + (absent - used) / 2,
                None => (2 * used).max(1),
            };
            match self.manifest_state(run, number).await? {
                ManifestState::Absent => absent = Some(number),
                ManifestState::Committed(committed) => return Ok(RunState::Committed(committed)),
                ManifestState::Tombstone(_) => used = number,
            }
        }
    }

    /// The states of the runs, in their order. [`READS_AT_ONCE`] of them at most are read at the same time.
    pub(in crate::sink::parquet) async fn run_states(
        &self,
        run_ids: &[String],
    ) -> Vec<Result<RunState>> {
        let runs: Vec<Path> = run_ids.iter().map(|run_id| self.run_path(run_id)).collect();
        let reads: Vec<_> = runs.iter().map(|run| self.run_state(run)).collect();
        stream::iter(reads).buffered(READS_AT_ONCE).collect().await
    }

    /// Creates a tombstone under the name that an attempt wants. Returns `Exists` if the name is taken, perhaps by the
    /// attempt's commit.
    pub(in crate::sink::parquet) async fn put_tombstone(
        &self,
        lease: &Lease,
        why: &str,
        staging: &Path,
    ) -> Result<Created> {
        let path = manifest_path(&self.run_path(&lease.run_id), lease.manifest_number);
        let mut tombstone = tombstone(&lease.run_id, &lease.attempt, why);
        tombstone.stopped_tables.clone_from(&lease.tables);
        let created = self.create(&path, &tombstone, staging).await;
        created.map_err(|e| write_error(e).or_at("sink.url"))
    }

    /// Replaces a commit by a tombstone, and then deletes the files that the commit listed. If another process replaced
    /// it first, it did so for the same purpose. Files that cannot be deleted stay until a later job tries again.
    pub(in crate::sink::parquet) async fn revoke(
        &self,
        run_id: &str,
        committed: &Committed,
        why: &str,
        staging: &Path,
    ) -> Result<()> {
        let files: Vec<String> = committed.manifest.files().map(|f| f.path.clone()).collect();
        let path = manifest_path(&self.run_path(run_id), committed.number);
        let mut tombstone = tombstone(run_id, &committed.manifest.attempt, why);
        tombstone.revoked.clone_from(&files);
        match self.replace(&path, &tombstone, staging, &committed.meta).await {
            Ok(()) => {}
            // On local disk, the temporary file is missing: another process has removed the files of this commit, or
            // has swept the writer that collects it.
            Err(
                object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. },
            ) => {
                let state = self.manifest_state(&self.run_path(run_id), committed.number).await?;
                // It was refused although no process replaced the commit: the commit stays valid and keeps its files.
                if let ManifestState::Committed(_) = state {
                    return Ok(());
                }
            }
            Err(e) => return Err(Error::from(e).or_at("sink.url")),
        }
        if let Err(e) = self.remove_revoked(run_id, &files).await {
            tracing::warn!(run_id, error = %e, "files of a revoked commit could not be removed");
        }
        Ok(())
    }

    /// The files of a commit that are missing or have another size.
    pub(in crate::sink::parquet) async fn missing(
        &self,
        run: &Path,
        manifest: &CommittedRun,
    ) -> Result<Vec<FileEntry>> {
        let mut found =
            FilesOfRun::list(&self.location, run).await.map_err(|e| e.or_at("sink.url"))?;
        let mut missing = Vec::new();
        for file in manifest.files() {
            if found.find_intact(file).await.map_err(|e| e.or_at("sink.url"))?.is_none() {
                missing.push(file.clone());
            }
        }
        Ok(missing)
    }
}

/// The objects of a run's folder, for readers and writers. On a store one listing finds them; files that it lacks are
/// looked up, as some stores list new objects late. On local disk each file is looked up, so that nothing else in the
/// folder matters.
pub(super) struct FilesOfRun<'a> {
    location: &'a StoreLocation,
    run: &'a Path,
    listed: BTreeMap<Path, ObjectMeta>,
}

impl<'a> FilesOfRun<'a> {
    pub(super) async fn list(location: &'a StoreLocation, run: &'a Path) -> Result<Self> {
        if location.local().is_some() {
            return Ok(Self { location, run, listed: BTreeMap::new() });
        }
        let objects = location.store.list(Some(run)).map_ok(|o| (o.location.clone(), o));
        let listed =
            objects.try_collect().await.map_err(|e| Error::from(e).or_at(location.url.as_str()))?;
        Ok(Self { location, run, listed })
    }

    /// The object of a file that a manifest lists, if it exists and has the listed size.
    pub(super) async fn find_intact(&mut self, file: &FileEntry) -> Result<Option<ObjectMeta>> {
        let path = join(self.run.clone(), &file.path);
        let object = match self.listed.remove(&path) {
            Some(object) => object,
            None => match self.location.store.head(&path).await {
                Ok(object) => object,
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(e) => return Err(Error::from(e).or_at(self.location.url.as_str())),
            },
        };
        Ok(Some(object).filter(|object| object.size == file.bytes as u64))
    }
}

/// The path of a run's manifest under one of its names.
pub(in crate::sink::parquet) fn manifest_path(run: &Path, number: ManifestNumber) -> Path {
    match number {
        1 => run.clone().join("manifest.json"),
        _ => run.clone().join(format!("manifest-{number}.json")),
    }
}

/// A path below a folder.
pub(in crate::sink::parquet) fn join(folder: Path, rest: &str) -> Path {
    rest.split('/').filter(|part| !part.is_empty()).fold(folder, Path::join)
}

fn tombstone(run_id: &str, attempt: &str, why: &str) -> Tombstone {
    Tombstone {
        run_id: run_id.to_owned(),
        attempt: attempt.to_owned(),
        reason: why.to_owned(),
        written_at: Utc::now().to_rfc3339(),
        tables: BTreeMap::new(),
        revoked: Vec::new(),
        stopped_tables: Vec::new(),
    }
}
