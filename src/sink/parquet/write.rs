//! Writes the files of an attempt: the run's threads encode parts of tables while other parts are being uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use super::attempt::Attempt;
use super::disk::sync;
use super::encode::encode;
use super::manifest::FileEntry;
use super::manifest_names::join;
use super::parquet_sink::ParquetSink;
use crate::error::{Error, Result};
use crate::run::Run;
use crate::sink::Contents;
use crate::tables::Table;

/// How many parts are encoded at once, and how many are uploaded at once: enough to keep the cores and the network
/// busy, few enough for memory.
const WRITERS: usize = 4;

/// The files of an attempt, as its manifest lists them.
pub(super) struct WrittenFiles {
    pub(super) tables: BTreeMap<String, Vec<FileEntry>>,
    pub(super) model: Vec<FileEntry>,
}

/// Where the files of an attempt go.
#[derive(Clone)]
struct Target {
    attempt: String,
    folder: object_store::path::Path,
    lost_uploads: Arc<AtomicBool>,
    lost_lease: Arc<AtomicBool>,
}

impl Target {
    fn of(attempt: &Attempt) -> Self {
        Self {
            attempt: attempt.lease.attempt.clone(),
            folder: attempt.path.clone(),
            lost_uploads: Arc::clone(&attempt.lost_uploads),
            lost_lease: Arc::clone(&attempt.lost_lease),
        }
    }
}

/// An encoded part of a table.
struct Encoded {
    table: String,
    /// The path below the attempt's folder.
    path: String,
    rows: usize,
    bytes: Bytes,
}

impl ParquetSink {
    /// Writes the model files and the tables; on local disk, syncs them if the spec asks for it.
    pub(super) async fn write(
        &self,
        attempt: &Attempt,
        contents: &Contents<'_>,
        run: &Run,
    ) -> Result<WrittenFiles> {
        let mut model = Vec::new();
        for (path, bytes) in &contents.model {
            run.cancel.check()?;
            let bytes = Bytes::from(bytes.clone());
            model.push(self.upload_file(&Target::of(attempt), path, 0, bytes).await?);
        }
        let tables = self.write_tables(attempt, &contents.tables, run).await?;
        if self.spec.sync {
            let files = tables.values().flatten().chain(&model);
            self.sync_folders(attempt, files).await?;
        }
        Ok(WrittenFiles { tables, model })
    }

    async fn write_tables(
        &self,
        attempt: &Attempt,
        tables: &[&dyn Table],
        run: &Run,
    ) -> Result<BTreeMap<String, Vec<FileEntry>>> {
        let parts: Vec<(&dyn Table, usize)> =
            tables.iter().flat_map(|t| (0..t.n_parts()).map(|part| (*t, part))).collect();
        run.progress.begin("writing", Some(parts.len() as u64));
        let failed = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel(1);
        let uploads = tokio::spawn(self.clone().upload_all(
            Target::of(attempt),
            receive,
            Arc::clone(&failed),
            Arc::clone(&run.progress),
        ));
        block_in_place(|| self.encode_all(&parts, &send, &failed, run));
        // `upload_all` ends when the channel has no sender.
        drop(send);
        // Wait for running uploads even after a failure: a file that arrives after the clean-up would stay.
        uploads.await.map_err(|e| Error::bug(format!("a writer broke: {e}")))?
    }

    /// Encodes the parts, [`WRITERS`] at once, and sends them to the uploads. An error is sent too, and ends the
    /// encoding.
    fn encode_all(
        &self,
        parts: &[(&dyn Table, usize)],
        send: &mpsc::Sender<Result<Encoded>>,
        failed: &AtomicBool,
        run: &Run,
    ) {
        let next = AtomicUsize::new(0);
        let encode_next = || {
            while let Some((table, part)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let encoded = run.cancel.check().and_then(|()| {
                    let (bytes, rows) = encode(*table, *part, self.spec.compression, &run.cancel)?;
                    let path = format!("{}/part-{part:05}.parquet", table.name());
                    Ok(Encoded { table: table.name().to_owned(), path, rows, bytes: bytes.into() })
                });
                let is_last = encoded.is_err();
                let is_taken = send.blocking_send(encoded).is_ok();
                if is_last || !is_taken || failed.load(Ordering::Relaxed) {
                    return;
                }
            }
        };
        run.pool().in_place_scope(|scope| {
            (0..WRITERS).for_each(|_| scope.spawn(|_| encode_next()));
        });
    }

    /// Uploads parts as they arrive, and lists their files by table.
    async fn upload_all(
        self,
        target: Target,
        mut receive: mpsc::Receiver<Result<Encoded>>,
        failed: Arc<AtomicBool>,
        progress: Arc<dyn crate::run::Progress>,
    ) -> Result<BTreeMap<String, Vec<FileEntry>>> {
        let (mut tables, mut error, mut written) = (BTreeMap::new(), None, 0);
        let parts = stream::poll_fn(|context| receive.poll_recv(context));
        let mut uploads = parts
            .map(|part| async {
                let Encoded { table, path, rows, bytes } = part?;
                let entry = self.upload_file(&target, &path, rows, bytes).await?;
                Ok((table, entry))
            })
            .buffer_unordered(WRITERS);
        while let Some(uploaded) = uploads.next().await {
            match uploaded {
                Ok((table, entry)) => {
                    written += 1;
                    progress.at(written, &table);
                    tables.entry(table).or_insert_with(Vec::new).push(entry);
                }
                Err(e) => {
                    failed.store(true, Ordering::Relaxed);
                    error.get_or_insert(e);
                }
            }
        }
        tables.values_mut().for_each(|files: &mut Vec<FileEntry>| {
            files.sort_by(|a, b| a.path.cmp(&b.path));
        });
        error.map_or(Ok(tables), Err)
    }

    /// Writes a file of an attempt; its entry has the path below the run's folder.
    async fn upload_file(
        &self,
        target: &Target,
        path: &str,
        rows: usize,
        bytes: Bytes,
    ) -> Result<FileEntry> {
        let path_in_run = format!("{}/{path}", target.attempt);
        let entry = FileEntry { path: path_in_run, rows, bytes: bytes.len() };
        let place = join(target.folder.clone(), path);
        if target.lost_lease.load(Ordering::Relaxed) {
            return Err(Error::store("the lease of this attempt is gone").at(self.text(&place)));
        }
        let sent = self.place.upload(&place, bytes).await;
        // On local disk no answer is lost.
        if sent.is_err() && self.place.local().is_none() {
            target.lost_uploads.store(true, Ordering::Relaxed);
        }
        sent.map_err(|e| Error::from(e).or_at(&self.text(&place)))?;
        if let Some(file) = self.local(&place).filter(|_| self.spec.sync) {
            let synced = sync_in_background(file).await;
            synced.map_err(|e| Error::store(format!("cannot sync: {e}")).at(self.text(&place)))?;
        }
        Ok(entry)
    }

    /// Syncs the folders of an attempt's files, up to the sink's root, so that the names of the files are durable.
    ///
    /// # Why
    /// Several at once: one sync waits for the disk, and the disk writes the names of all folders together.
    async fn sync_folders<'a>(
        &self,
        attempt: &Attempt,
        files: impl Iterator<Item = &'a FileEntry>,
    ) -> Result<()> {
        let (Some(root), Some(run)) =
            (self.place.local(), self.local(&self.run_path(&attempt.lease.run_id)))
        else {
            return Ok(());
        };
        let mut folders = BTreeSet::new();
        for file in files {
            let below = run.join(&file.path);
            let within = below.ancestors().skip(1).take_while(|f| f.starts_with(&root));
            folders.extend(within.map(FilePath::to_owned));
        }
        let sync_folder = |folder: PathBuf| async {
            let place = folder.display().to_string();
            let synced = sync_in_background(folder).await;
            synced.map_err(|e| Error::store(format!("cannot sync the folder: {e}")).at(place))
        };
        let synced = stream::iter(folders).map(sync_folder).buffer_unordered(WRITERS);
        synced.try_collect::<()>().await?;
        // The parent folders may be new too. A folder that cannot be opened is not new.
        let above = root.ancestors().skip(1).map(FilePath::to_owned);
        let synced = stream::iter(above).map(sync_in_background).buffer_unordered(WRITERS);
        synced.for_each(|_| async {}).await;
        Ok(())
    }
}

/// As [`sync`], in a thread that may wait for the disk.
async fn sync_in_background(path: PathBuf) -> io::Result<()> {
    tokio::task::spawn_blocking(move || sync(&path)).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use arrow::array::RecordBatch;
    use arrow::datatypes::Schema;

    use super::*;
    use crate::sink::parquet::disk::tests::SYNCED;
    use crate::sink::{JobCommand, JobIdentity, Sink, SinkSpec};
    use crate::store::StoreSpec;
    use crate::tables::ComputedTable;

    /// Publishes a table and a model below `root`; returns the files that the commit names, and the synced paths in
    /// order.
    async fn publish(root: &FilePath, sync: bool) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let spec = SinkSpec { url: root.display().to_string(), sync, ..SinkSpec::default() };
        let sink = ParquetSink::open(&spec, &StoreSpec::default()).unwrap();
        let schema = Arc::new(Schema::empty());
        let empty = RecordBatch::new_empty(Arc::clone(&schema));
        let table = ComputedTable::new("labels", schema, (1, 1), move |_| Ok(empty.clone()));
        let model = vec![("model/model.json".to_owned(), b"{}".to_vec())];
        let contents = Contents { tables: vec![&table], model, ..Contents::default() };
        let (digest, command) = ("d".repeat(64), JobCommand::Run);
        let job = JobIdentity { digest, run_id: None, pipeline: String::new(), command };
        let manifest = sink.publish("r", &job, &contents, &Run::new(0)).await.unwrap();
        let named = manifest.files().map(|file| root.join("runs/r").join(&file.path)).collect();
        let synced = SYNCED.lock().unwrap();
        (named, synced.iter().filter(|file| file.starts_with(root)).cloned().collect())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn files_are_synced_then_their_folders_and_then_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (files, synced) = publish(&root, true).await;
        assert_eq!(files.len(), 2);
        let of_files = |path: &FilePath| synced.iter().position(|synced| synced == path);
        let last_file = files.iter().map(|file| of_files(file).expect("a file is synced")).max();
        // The content of a manifest is synced under its temporary name, and its final name by syncing the folder.
        let commit = synced.iter().rposition(|path| path.ends_with("runs/r")).unwrap();
        for file in &files {
            for folder in file.ancestors().skip(1).take_while(|f| f.starts_with(&root)) {
                let after_files = |(at, path): (usize, &PathBuf)| {
                    path == folder && Some(at) > last_file && at < commit
                };
                let is_between = synced.iter().enumerate().any(after_files);
                assert!(is_between, "{} in {synced:#?}", folder.display());
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_synced_where_that_is_not_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        assert_eq!(publish(&root, false).await.1, Vec::<PathBuf>::new());
    }
}
