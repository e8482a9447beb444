//! Writes a run's tables and commits them; see [`super`] for the protocol.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use chrono::Utc;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::SinkSpec;
use super::encode::encode;
use super::lease::Lease;
use super::manifest::{FileEntry, Manifest};
use crate::classifier;
use crate::error::{Error, Result};
use crate::run::Run;
use crate::store::{Place, StoreSpec, open, parse_url};
use crate::tables::{Outcome, Part, SCHEMA_VERSION, TABLES, Table, parts};

/// Larger files are uploaded in pieces of this size.
const UPLOAD_PIECE: usize = 8 << 20;

/// Parts that are encoded and uploaded at once: enough to keep the cores and the network busy, few enough for memory.
const WRITERS: usize = 4;

/// Pieces of one file that are on their way at once.
const PIECES: usize = 4;

/// A place where runs are published.
#[derive(Debug, Clone)]
pub struct Sink {
    pub(super) place: Place,
    pub(super) spec: SinkSpec,
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
    /// Only when the very last step fails is the run committed and `latest` not moved; the message says so.
    pub async fn publish(
        &self,
        outcome: Arc<Outcome>,
        digest: &str,
        run: &Run,
    ) -> Result<Manifest> {
        let run_id = outcome.run.run_id.clone();
        let lease = self.take_lease(&run_id).await?;
        let twin = self.committed(&run_id).await;
        if !matches!(twin, Ok(None)) {
            self.drop_lease(&run_id).await;
            return self.join_twin(twin?, digest).await;
        }
        let heart = self.beat(&run_id, lease.clone());
        let written = self.write(outcome, digest, &lease, run).await;
        heart.abort();
        match written {
            Ok(manifest) => {
                let pointed = self.point_latest(&run_id).await;
                self.drop_lease(&run_id).await;
                pointed.map(|()| manifest).map_err(|e| {
                    e.help("the run is committed, but `latest` does not point to it: run the job again")
                })
            }
            Err(e) => {
                // A failed run leaves nothing; if even that fails, the next run sweeps.
                if self.holds(&run_id, &lease).await {
                    let _ = self.remove(&run_id).await;
                }
                Err(e)
            }
        }
    }

    /// Another process committed this run while this one was at work: what is committed is never touched again.
    async fn join_twin(&self, twin: Option<Manifest>, digest: &str) -> Result<Manifest> {
        match twin {
            Some(twin) if twin.digest == digest => {
                self.point_latest(&twin.run_id).await?;
                Ok(twin)
            }
            _ => Err(Error::store("another job took this run id at the same time")
                .at(self.spec.url.clone())
                .help("choose another run id, or run the job again with --force")),
        }
    }

    async fn write(
        &self,
        outcome: Arc<Outcome>,
        digest: &str,
        lease: &Lease,
        run: &Run,
    ) -> Result<Manifest> {
        let run_id = outcome.run.run_id.clone();
        self.sweep(&run_id).await?;
        let model = self.write_model(&outcome).await?;
        let tables = self.write_tables(outcome, run).await?;
        let manifest = Manifest {
            run_id: run_id.clone(),
            digest: digest.to_owned(),
            labelmill: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: SCHEMA_VERSION,
            committed_at: Utc::now().to_rfc3339(),
            tables,
            model,
        };
        self.check_whole(&manifest, lease).await?;
        run.cancel.check()?;
        self.put_json(&self.path(&run_id, "manifest.json"), &manifest, PutMode::Overwrite).await?;
        run.progress.end();
        Ok(manifest)
    }

    async fn write_model(&self, outcome: &Outcome) -> Result<Vec<FileEntry>> {
        let mut written = Vec::new();
        for (path, bytes) in classifier::files(outcome)? {
            written.push(FileEntry { path: path.clone(), rows: 0, bytes: bytes.len() });
            let place = self.path(&outcome.run.run_id, &path);
            upload(&self.place.store, &place, bytes.into())
                .await
                .map_err(|e| Error::from(e).or_at(&path))?;
        }
        Ok(written)
    }

    async fn write_tables(
        &self,
        outcome: Arc<Outcome>,
        run: &Run,
    ) -> Result<BTreeMap<String, Vec<FileEntry>>> {
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
                match places.acquire().await {
                    Ok(_place) => sink.write_part(table, n, part, outcome, &run).await.map(Some),
                    Err(_closed) => Ok(None),
                }
            });
        }
        let (mut tables, mut written) = (BTreeMap::<String, Vec<FileEntry>>::new(), 0);
        let mut failed = None;
        // After a failure no part begins, and those under way end: a file that came after the clean-up would stay.
        while let Some(part) = writers.join_next().await {
            match part.map_err(|e| Error::bug(format!("a writer broke: {e}"))).flatten() {
                Ok(Some((table, entry))) => {
                    tables.entry(table.to_owned()).or_default().push(entry);
                    written += 1;
                    run.progress.at(written, table);
                }
                Ok(None) => {}
                Err(e) => {
                    places.close();
                    failed.get_or_insert(e);
                }
            }
        }
        tables.values_mut().for_each(|files| files.sort_by(|a, b| a.path.cmp(&b.path)));
        failed.map_or(Ok(tables), Err)
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
        let encode = || encode(table, &outcome, &part, self.spec.compression);
        let (bytes, rows) = tokio::task::block_in_place(|| run.pool().install(encode))?;
        let path = format!("{}/part-{n:05}.parquet", table.name());
        let entry = FileEntry { path: path.clone(), rows, bytes: bytes.len() };
        upload(&self.place.store, &self.path(&outcome.run.run_id, &path), bytes.into())
            .await
            .map_err(|e| Error::from(e).or_at(&path))?;
        Ok((table.name(), entry))
    }

    /// A writer that was silent for too long may have been swept, and finds out here.
    async fn check_whole(&self, manifest: &Manifest, lease: &Lease) -> Result<()> {
        let listed = self.place.store.list(Some(&self.path(&manifest.run_id, "")));
        let listed: HashMap<Path, u64> =
            listed.map_ok(|o| (o.location, o.size)).try_collect().await?;
        let is_there = |file: &FileEntry| {
            listed.get(&self.path(&manifest.run_id, &file.path)) == Some(&(file.bytes as u64))
        };
        if manifest.tables.values().flatten().chain(&manifest.model).all(is_there)
            && self.holds(&manifest.run_id, lease).await
        {
            return Ok(());
        }
        Err(Error::store("another process took this run for dead and swept what it wrote")
            .at(self.folder(&manifest.run_id))
            .help("run the job again, with a larger sink.stale_after_seconds"))
    }

    pub(super) fn path(&self, run_id: &str, rest: &str) -> Path {
        rest.split('/').filter(|part| !part.is_empty()).fold(self.runs().join(run_id), Path::join)
    }

    /// The folder of all runs.
    pub(super) fn runs(&self) -> Path {
        self.place.path.clone().join("runs")
    }

    pub(super) async fn put_json(
        &self,
        path: &Path,
        value: &impl serde::Serialize,
        mode: PutMode,
    ) -> Result<(), object_store::Error> {
        let text = serde_json::to_vec_pretty(value).unwrap_or_default();
        let options = PutOptions { mode, ..PutOptions::default() };
        self.place.store.put_opts(path, text.into(), options).await.map(|_| ())
    }
}

/// Writes an object, a large one in pieces.
pub(crate) async fn upload(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    bytes: Bytes,
) -> Result<(), object_store::Error> {
    if bytes.len() <= UPLOAD_PIECE {
        return store.put(path, bytes.into()).await.map(|_| ());
    }
    let mut upload = store.put_multipart(path).await?;
    let pieces = (0..bytes.len()).step_by(UPLOAD_PIECE);
    let pieces = pieces.map(|at| bytes.slice(at..(at + UPLOAD_PIECE).min(bytes.len())));
    let sent: Vec<_> = pieces.map(|piece| upload.put_part(PutPayload::from(piece))).collect();
    let sent: Result<Vec<()>, _> = stream::iter(sent).buffered(PIECES).try_collect().await;
    let done = match sent {
        Ok(_) => upload.complete().await.map(|_| ()),
        Err(e) => Err(e),
    };
    if done.is_err() {
        // Pieces without an end stay in a store for good, and are paid for.
        let _ = upload.abort().await;
    }
    done
}
