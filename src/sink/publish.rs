//! Writes a run's tables and commits them; see [`super`] for the protocol.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::encode::encode;
use super::lease::Lease;
use super::manifest::{FileEntry, Latest, Manifest};
use super::{Compression, SinkSpec};
use crate::error::{Error, Result};
use crate::run::Run;
use crate::store::{Place, StoreSpec, open, parse_url};
use crate::tables::{Outcome, Part, SCHEMA_VERSION, TABLES, Table, parts};

/// How often a writer shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// Larger files are uploaded in pieces of this size.
const UPLOAD_PIECE: usize = 8 << 20;

/// Parts that are encoded and uploaded at once: enough to keep the cores and the network busy, few enough for memory.
const WRITERS: usize = 4;

/// How often a lost race for `latest.json` is run again.
const LATEST_ATTEMPTS: usize = 8;

/// A place where runs are published.
#[derive(Debug, Clone)]
pub struct Sink {
    place: Place,
    spec: SinkSpec,
}

impl Sink {
    /// Opens the place; sends nothing yet.
    ///
    /// # Errors
    /// When the URL is no place that can be opened.
    pub fn open(spec: &SinkSpec, stores: &StoreSpec) -> Result<Self> {
        let url = parse_url(&spec.url).map_err(|e| e.or_at("sink.url"))?;
        Ok(Self { place: open(&url, stores)?, spec: spec.clone() })
    }

    /// The manifest of a committed run.
    ///
    /// # Errors
    /// When the store cannot be read, or the manifest is none.
    pub async fn committed(&self, run_id: &str) -> Result<Option<Manifest>> {
        let path = self.path(run_id, "manifest.json");
        match self.place.store.get(&path).await {
            Ok(found) => {
                let bytes = found.bytes().await?;
                let manifest = serde_json::from_slice(&bytes).map_err(|e| {
                    Error::data(format!("not a manifest: {e}")).at(path.to_string())
                })?;
                Ok(Some(manifest))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(Error::from(e).or_at("sink.url")),
        }
    }

    /// The id of the newest committed run.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn latest(&self) -> Result<Option<String>> {
        Ok(self.read_latest().await?.map(|(latest, _)| latest.run_id))
    }

    /// The folder of a run as a URL or a local path, for people.
    #[must_use]
    pub fn folder(&self, run_id: &str) -> String {
        format!("{}/runs/{run_id}", self.spec.url.trim_end_matches('/'))
    }

    /// An id that no committed run has: the wanted one, or with a number behind it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn free_id(&self, wanted: &str) -> Result<String> {
        let mut id = wanted.to_owned();
        let mut n = 1;
        while self.committed(&id).await?.is_some() {
            n += 1;
            id = format!("{wanted}-{n}");
        }
        Ok(id)
    }

    /// Writes every table of a run and commits it. Sweeps what dead runs left, before and not after: disk that they
    /// hold is free for this run.
    ///
    /// # Errors
    /// When the store fails, another process writes the same run, or the run is cancelled; nothing is published then.
    pub async fn publish(
        &self,
        outcome: Arc<Outcome>,
        digest: &str,
        run: &Run,
    ) -> Result<Manifest> {
        let run_id = outcome.run.run_id.clone();
        self.take_lease(&run_id).await?;
        let heart = self.beat(&run_id);
        let written = self.write(outcome, digest, run).await;
        heart.abort();
        match written {
            Ok(manifest) => Ok(manifest),
            Err(e) => {
                // A failed run leaves nothing; if even that fails, the next run sweeps.
                let _ = self.remove(&run_id).await;
                Err(e)
            }
        }
    }

    async fn write(&self, outcome: Arc<Outcome>, digest: &str, run: &Run) -> Result<Manifest> {
        let run_id = outcome.run.run_id.clone();
        self.sweep(&run_id).await?;
        let work: Vec<(&'static dyn Table, usize, Part)> = TABLES
            .iter()
            .filter(|t| self.spec.writes(t.name()))
            .flat_map(|t| {
                parts(*t, &outcome).into_iter().enumerate().map(|(n, part)| (*t, n, part))
            })
            .collect();
        run.progress.begin("writing", Some(work.len() as u64));
        let places = Arc::new(Semaphore::new(WRITERS));
        let mut writers = JoinSet::new();
        for (table, n, part) in work {
            let (sink, outcome, run, places) =
                (self.clone(), Arc::clone(&outcome), run.clone(), Arc::clone(&places));
            writers.spawn(async move {
                let _place = places.acquire().await;
                sink.write_part(table, n, part, outcome, &run).await
            });
        }
        let mut tables: BTreeMap<String, Vec<FileEntry>> = BTreeMap::new();
        let mut written = 0;
        while let Some(part) = writers.join_next().await {
            let (table, entry) = part.map_err(|e| Error::bug(format!("a writer broke: {e}")))??;
            tables.entry(table.to_owned()).or_default().push(entry);
            written += 1;
            run.progress.at(written, table);
        }
        tables.values_mut().for_each(|files| files.sort_by(|a, b| a.path.cmp(&b.path)));
        let manifest = Manifest {
            run_id: run_id.clone(),
            digest: digest.to_owned(),
            labelmill: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: SCHEMA_VERSION,
            committed_at: Utc::now().to_rfc3339(),
            tables,
        };
        run.cancel.check()?;
        self.put_json(&self.path(&run_id, "manifest.json"), &manifest, PutMode::Overwrite).await?;
        self.point_latest(&run_id).await?;
        let _ = self.place.store.delete(&self.path(&run_id, "_lease.json")).await;
        run.progress.end();
        Ok(manifest)
    }

    async fn write_part(
        &self,
        table: &'static dyn Table,
        n: usize,
        part: Part,
        outcome: Arc<Outcome>,
        run: &Run,
    ) -> Result<(&'static str, FileEntry)> {
        run.cancel.check()?;
        let (run_id, compression) = (outcome.run.run_id.clone(), self.compression());
        let encoded =
            tokio::task::spawn_blocking(move || encode(table, &outcome, &part, compression)).await;
        let (bytes, rows) = encoded.map_err(|e| Error::bug(format!("an encoder broke: {e}")))??;
        let path = format!("{}/part-{n:05}.parquet", table.name());
        let entry = FileEntry { path: path.clone(), rows, bytes: bytes.len() };
        let store = Arc::clone(&self.place.store);
        let mut upload = BufWriter::with_capacity(store, self.path(&run_id, &path), UPLOAD_PIECE);
        upload.put(Bytes::from(bytes)).await?;
        tokio::io::AsyncWriteExt::shutdown(&mut upload)
            .await
            .map_err(|e| upload_error(e, &path))?;
        Ok((table.name(), entry))
    }

    fn compression(&self) -> Compression {
        self.spec.compression
    }

    fn path(&self, run_id: &str, rest: &str) -> Path {
        let runs = self.place.path.clone().join("runs").join(run_id);
        rest.split('/').filter(|part| !part.is_empty()).fold(runs, Path::join)
    }

    async fn put_json(
        &self,
        path: &Path,
        value: &impl serde::Serialize,
        mode: PutMode,
    ) -> Result<(), object_store::Error> {
        let text = serde_json::to_vec_pretty(value).unwrap_or_default();
        let options = PutOptions { mode, ..PutOptions::default() };
        self.place.store.put_opts(path, text.into(), options).await.map(|_| ())
    }

    /// Takes the run's folder for this process; what a dead writer left in it goes.
    async fn take_lease(&self, run_id: &str) -> Result<()> {
        let path = self.path(run_id, "_lease.json");
        for _ in 0..2 {
            match self.put_json(&path, &Lease::own(), PutMode::Create).await {
                Ok(()) => return Ok(()),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => {
                    if !self.is_dead(run_id, &self.now().await?).await? {
                        return Err(Error::store("another process is writing this very run")
                            .at(self.folder(run_id))
                            .help("wait for it; a writer that fell silent is given up after sink.stale_after_seconds"));
                    }
                    self.remove(run_id).await?;
                }
                Err(e) => return Err(Error::from(e).or_at("sink.url")),
            }
        }
        Err(Error::store("another process took this run's folder at the same time")
            .at(self.folder(run_id)))
    }

    fn beat(&self, run_id: &str) -> tokio::task::JoinHandle<()> {
        let (sink, path) = (self.clone(), self.path(run_id, "_lease.json"));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                let _ = sink.put_json(&path, &Lease::own(), PutMode::Overwrite).await;
            }
        })
    }

    /// The store's own time: that of an object written now.
    async fn now(&self) -> Result<chrono::DateTime<Utc>> {
        let name = format!("_clock-{}", std::process::id());
        let path = self.place.path.clone().join("runs").join(name);
        self.put_json(&path, &Lease::own(), PutMode::Overwrite).await?;
        let now = self.place.store.head(&path).await?.last_modified;
        self.place.store.delete(&path).await?;
        Ok(now)
    }

    /// Whether an uncommitted run has no living writer.
    async fn is_dead(&self, run_id: &str, now: &chrono::DateTime<Utc>) -> Result<bool> {
        let found = match self.place.store.get(&self.path(run_id, "_lease.json")).await {
            Ok(found) => found,
            // Someone sweeps it at this moment, or it never got as far as a lease.
            Err(object_store::Error::NotFound { .. }) => return self.is_old(run_id, now).await,
            Err(e) => return Err(e.into()),
        };
        let touched = found.meta.last_modified;
        let lease: Option<Lease> = serde_json::from_slice(&found.bytes().await?).ok();
        let patience = self.spec.stale_after();
        Ok(lease.unwrap_or_else(Lease::own).is_dead(touched, *now, patience))
    }

    async fn is_old(&self, run_id: &str, now: &chrono::DateTime<Utc>) -> Result<bool> {
        let objects = self.place.store.list(Some(&self.path(run_id, "")));
        let newest = objects
            .try_fold(None, |newest, o| async move { Ok(newest.max(Some(o.last_modified))) });
        let silent = |at: chrono::DateTime<Utc>| (*now - at).to_std().unwrap_or_default();
        Ok(newest.await?.is_none_or(|at| silent(at) > self.spec.stale_after()))
    }

    /// Removes every uncommitted run without a living writer.
    async fn sweep(&self, own: &str) -> Result<()> {
        let runs = self.place.path.clone().join("runs");
        let listed = self.place.store.list_with_delimiter(Some(&runs)).await?;
        let now = self.place.store.head(&self.path(own, "_lease.json")).await?.last_modified;
        for folder in listed.common_prefixes {
            let Some(run_id) = folder.filename().map(str::to_owned).filter(|id| id != own) else {
                continue;
            };
            if self.committed(&run_id).await?.is_none() && self.is_dead(&run_id, &now).await? {
                tracing::info!(run_id, "swept what a dead run left");
                self.remove(&run_id).await?;
            }
        }
        Ok(())
    }

    /// Removes an uncommitted run, its lease last, so that a sweep cut short is swept again.
    async fn remove(&self, run_id: &str) -> Result<()> {
        if let Some(folder) = self.local_run(run_id) {
            // A killed writer leaves staged files on disk that the store does not list.
            return match std::fs::remove_dir_all(&folder) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::store(format!("cannot remove what a dead run left: {e}"))
                        .at(folder.display().to_string()))
                }
                _ => Ok(()),
            };
        }
        let lease = self.path(run_id, "_lease.json");
        let objects: Vec<Path> = self
            .place
            .store
            .list(Some(&self.path(run_id, "")))
            .map_ok(|o| o.location)
            .try_collect()
            .await?;
        let others: Vec<_> = objects.into_iter().filter(|path| *path != lease).map(Ok).collect();
        let deleted = self.place.store.delete_stream(stream::iter(others).boxed());
        deleted.try_collect::<Vec<_>>().await?;
        match self.place.store.delete(&lease).await {
            Err(object_store::Error::NotFound { .. }) | Ok(()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn local_run(&self, run_id: &str) -> Option<PathBuf> {
        Some(self.place.local()?.join("runs").join(run_id))
    }

    async fn read_latest(&self) -> Result<Option<(Latest, UpdateVersion)>> {
        let found = match self.place.store.get(&self.latest_path()).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let version =
            UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await?;
        let latest = serde_json::from_slice(&bytes)
            .map_err(|e| Error::data(format!("not a pointer to a run: {e}")).at("latest.json"))?;
        Ok(Some((latest, version)))
    }

    fn latest_path(&self) -> Path {
        self.place.path.clone().join("latest.json")
    }

    /// Lets `latest` point to a committed run: conditionally where the store can, so that no writer overlooks another.
    ///
    /// # Errors
    /// When the store fails, or other writers keep winning.
    pub async fn point_latest(&self, run_id: &str) -> Result<()> {
        for _ in 0..LATEST_ATTEMPTS {
            let mode = match self.read_latest().await? {
                Some((latest, _)) if latest.run_id == run_id => return self.link_latest(run_id),
                Some((_, version)) if self.place.local().is_none() => PutMode::Update(version),
                Some(_) => PutMode::Overwrite,
                None => PutMode::Create,
            };
            let latest = Latest { run_id: run_id.to_owned(), since: Utc::now().to_rfc3339() };
            match self.put_json(&self.latest_path(), &latest, mode).await {
                Ok(()) => return self.link_latest(run_id),
                Err(
                    object_store::Error::Precondition { .. }
                    | object_store::Error::AlreadyExists { .. },
                ) => {}
                Err(object_store::Error::NotImplemented { .. }) => {
                    self.put_json(&self.latest_path(), &latest, PutMode::Overwrite).await?;
                    return self.link_latest(run_id);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::store("other writers keep changing latest.json").at(self.spec.url.clone()))
    }

    /// On local disk, switches the symlink `latest` by rename.
    fn link_latest(&self, run_id: &str) -> Result<()> {
        let Some(root) = self.place.local() else { return Ok(()) };
        let fresh = root.join(format!(".latest-{}", std::process::id()));
        let linked = symlink(&PathBuf::from("runs").join(run_id), &fresh)
            .and_then(|()| std::fs::rename(&fresh, root.join("latest")));
        linked.map_err(|e| {
            Error::store(format!("cannot switch the link `latest`: {e}"))
                .at(root.display().to_string())
        })
    }
}

fn symlink(target: &std::path::Path, link: &std::path::Path) -> std::io::Result<()> {
    let _ = std::fs::remove_file(link);
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_dir(target, link);
}

fn upload_error(error: std::io::Error, path: &str) -> Error {
    match error.downcast::<object_store::Error>() {
        Ok(error) => Error::from(error),
        Err(error) => Error::store(format!("the upload broke: {error}")),
    }
    .or_at(path)
}
