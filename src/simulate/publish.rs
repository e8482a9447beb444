//! Writes a crowd's tables as one.
//!
//! ```text
//! <url>/<table>/part-00000.parquet
//! <url>/manifest.json               written last: the commit
//! ```
//! # Why
//! A crowd is input for other jobs, so its tables lie under names that stay, not in the folder of a run. On local disk
//! they are written into a hidden sibling that is renamed when it is whole; elsewhere the manifest comes last. What is
//! there already is never touched.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use chrono::Utc;
use datafusion::arrow::datatypes::Field;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::tables::Written;
use crate::error::{Error, Result};
use crate::run::Run;
use crate::sink::{Compression, FileEntry, Manifest, parquet, upload};
use crate::store::{Place, StoreSpec, open, parse_url};
use crate::tables::SCHEMA_VERSION;

const MANIFEST: &str = "manifest.json";

/// Rows in a file at most.
const PART_ROWS: usize = 1 << 20;

/// Rows that are turned into arrays at once.
const BATCH_ROWS: usize = 1 << 16;

/// Where a crowd goes.
pub(super) struct Target {
    place: Place,
    url: String,
}

impl Target {
    pub(super) fn open(url: &str, stores: &StoreSpec) -> Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let place = open(&parse_url(&url).map_err(|e| e.or_at("--output"))?, stores)?;
        Ok(Self { place, url })
    }

    /// The place, for people.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The manifest of the same crowd where it is there already.
    ///
    /// # Errors
    /// When something else is there.
    pub(super) async fn same(&self, digest: &str) -> Result<Option<Manifest>> {
        let found = match self.place.store.get(&self.place.path.clone().join(MANIFEST)).await {
            Ok(found) => Some(found.bytes().await?),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(e) => return Err(Error::from(e).or_at("--output")),
        };
        let manifest = found.and_then(|bytes| serde_json::from_slice::<Manifest>(&bytes).ok());
        match manifest {
            Some(manifest) if manifest.digest == digest => Ok(Some(manifest)),
            Some(manifest) => {
                Err(self.taken(&format!("a crowd or a run of {}", manifest.committed_at)))
            }
            None if self.is_empty().await? => Ok(None),
            None => Err(self.taken("files")),
        }
    }

    fn taken(&self, found: &str) -> Error {
        Error::spec("there is something else already")
            .at(format!("--output {}", self.url))
            .found(found.to_owned())
            .help("choose another folder, or remove this one")
    }

    async fn is_empty(&self) -> Result<bool> {
        match self.place.local() {
            Some(path) if path.is_dir() => {
                let first = std::fs::read_dir(&path).map(|mut entries| entries.next().is_none());
                first.map_err(|e| self.unwritable(&e))
            }
            Some(path) => Ok(!path.exists()),
            None => {
                let mut objects = self.place.store.list(Some(&self.place.path));
                Ok(objects.try_next().await?.is_none())
            }
        }
    }

    /// Writes the tables, then the manifest.
    pub(super) async fn publish(
        &self,
        digest: &str,
        tables: &[Written<'_>],
        run: &Run,
    ) -> Result<Manifest> {
        let Some(folder) = self.place.local() else {
            return write(&self.place, digest, tables, run).await;
        };
        let parent = folder.parent().unwrap_or(FilePath::new("/"));
        let fails = |e: std::io::Error| self.unwritable(&e);
        std::fs::create_dir_all(parent).map_err(fails)?;
        // Gone when it goes out of scope, however this ends; what it holds has been moved by then.
        let hidden =
            tempfile::Builder::new().prefix(".labelmill-").tempdir_in(parent).map_err(fails)?;
        let unfinished = hidden.path().join("crowd");
        let url = parse_url(&unfinished.display().to_string())?;
        let manifest = write(&open(&url, &StoreSpec::default())?, digest, tables, run).await?;
        std::fs::rename(&unfinished, &folder).map_err(fails)?;
        Ok(manifest)
    }

    fn unwritable(&self, e: &std::io::Error) -> Error {
        Error::store(format!("the folder cannot be written: {e}"))
            .at(format!("--output {}", self.url))
            .help("nothing was published")
    }
}

async fn write(place: &Place, digest: &str, tables: &[Written<'_>], run: &Run) -> Result<Manifest> {
    let mut written = BTreeMap::new();
    run.progress.begin("writing", Some(tables.len() as u64));
    for (n, table) in (1..).zip(tables) {
        let mut files = Vec::new();
        for start in (0..table.rows.max(1)).step_by(PART_ROWS) {
            run.cancel.check()?;
            let end = (start + PART_ROWS).min(table.rows);
            let encode = || encode(table, start, end);
            let (bytes, rows) = tokio::task::block_in_place(|| run.pool().install(encode))?;
            let path = format!("{}/part-{:05}.parquet", table.name, files.len());
            files.push(FileEntry { path: path.clone(), rows, bytes: bytes.len() });
            let place_of_part = path.split('/').fold(place.path.clone(), Path::join);
            let sent = upload(&place.store, &place_of_part, bytes.into()).await;
            sent.map_err(|e| Error::from(e).or_at(&path))?;
        }
        written.insert(table.name.to_owned(), files);
        run.progress.at(n, table.name);
    }
    let manifest = Manifest {
        run_id: digest[..16].to_owned(),
        digest: digest.to_owned(),
        labelmill: env!("CARGO_PKG_VERSION").to_owned(),
        schema_version: SCHEMA_VERSION,
        committed_at: Utc::now().to_rfc3339(),
        tables: written,
        model: Vec::new(),
    };
    run.cancel.check()?;
    let text = serde_json::to_vec_pretty(&manifest)
        .map_err(|e| Error::bug(format!("a manifest has no JSON form: {e}")))?;
    place.store.put(&place.path.clone().join(MANIFEST), text.into()).await?;
    run.progress.end();
    Ok(manifest)
}

fn encode(table: &Written<'_>, start: usize, end: usize) -> Result<(Vec<u8>, usize)> {
    let schema = (table.batch)(0..0)?.schema();
    let batches = (start..end)
        .step_by(BATCH_ROWS)
        .map(|from| (table.batch)(from..(from + BATCH_ROWS).min(end)));
    let is_instance = |field: &Field| field.name() == "instance_id";
    parquet(table.name, &schema, is_instance, Compression::default(), batches)
}
