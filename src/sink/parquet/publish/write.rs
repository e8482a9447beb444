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
use super::encode::encode;
use crate::error::{Error, Result};
use crate::job_context::{Cancel, JobContext};
use crate::sink::parquet::control::disk::{not_synced, sync, sync_if_readable};
use crate::sink::parquet::control::write_error;
use crate::sink::parquet::manifest::manifest_names::join;
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::sink::{Contents, FileEntry};
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
    fn new(attempt: &Attempt) -> Self {
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
        job: &JobContext,
    ) -> Result<WrittenFiles> {
        let mut model = Vec::new();
        for (path, bytes) in &contents.model {
            job.cancel.check()?;
            let bytes = Bytes::from(bytes.clone());
            model.push(self.upload_file(&Target::new(attempt), path, 0, bytes).await?);
        }
        let tables = self.write_tables(attempt, &contents.tables, job).await?;
        if self.spec.sync {
            let files = tables.values().flatten().chain(&model);
            self.sync_folders(attempt, files, &job.cancel).await?;
        }
        Ok(WrittenFiles { tables, model })
    }

    async fn write_tables(
        &self,
        attempt: &Attempt,
        tables: &[&dyn Table],
        job: &JobContext,
    ) -> Result<BTreeMap<String, Vec<FileEntry>>> {
        let parts: Vec<(&dyn Table, usize)> =
            tables.iter().flat_map(|t| (0..t.n_parts()).map(|part| (*t, part))).collect();
        job.progress.begin("writing", Some(parts.len() as u64));
        let failed = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel(1);
        let uploads = tokio::spawn(self.clone().upload_all(
            Target::new(attempt),
            receive,
            Arc::clone(&failed),
            Arc::clone(&job.progress),
        ));
        block_in_place(|| self.encode_all(&parts, &send, &failed, job));
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
        job: &JobContext,
    ) {
        let next = AtomicUsize::new(0);
        let encode_next = || {
            while let Some((table, part)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let encoded = job.cancel.check().and_then(|()| {
                    let (bytes, rows) = encode(*table, *part, self.spec.compression, &job.cancel)?;
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
        job.pool().in_place_scope(|scope| {
            (0..WRITERS).for_each(|_| scope.spawn(|_| encode_next()));
        });
    }

    /// Uploads parts as they arrive, and lists their files by table.
    async fn upload_all(
        self,
        target: Target,
        mut receive: mpsc::Receiver<Result<Encoded>>,
        failed: Arc<AtomicBool>,
        progress: Arc<dyn crate::job_context::Progress>,
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
        let location = join(target.folder.clone(), path);
        if target.lost_lease.load(Ordering::Relaxed) {
            return Err(Error::store("the lease of this attempt is gone").at(self.text(&location)));
        }
        let sent = self.location.upload(&location, bytes).await;
        // On local disk no answer is lost.
        if sent.is_err() && self.location.local().is_none() {
            target.lost_uploads.store(true, Ordering::Relaxed);
        }
        sent.map_err(|e| write_error(e).or_at(&self.text(&location)))?;
        if let Some(file) = self.local(&location).filter(|_| self.spec.sync) {
            sync_in_background(file.clone()).await.map_err(|e| not_synced(&file, &e))?;
        }
        Ok(entry)
    }

    /// Syncs the folders of an attempt's files, up to the sink's root, so that the names of the files are durable; then
    /// those above, which may be new too.
    async fn sync_folders<'a>(
        &self,
        attempt: &Attempt,
        files: impl Iterator<Item = &'a FileEntry>,
        cancel: &Cancel,
    ) -> Result<()> {
        let (Some(root), Some(run)) =
            (self.location.local(), self.local(&self.run_path(&attempt.lease.run_id)))
        else {
            return Ok(());
        };
        let mut folders = BTreeSet::new();
        for file in files {
            let below = run.join(&file.path);
            let within = below.ancestors().skip(1).take_while(|f| f.starts_with(&root));
            folders.extend(within.map(FilePath::to_owned));
        }
        self.sync_all_folders(folders, cancel).await?;
        for folder in root.ancestors().skip(1) {
            cancel.check()?;
            if let Err(e) = block_in_place(|| sync_if_readable(folder)) {
                let folder = folder.display();
                tracing::warn!(%folder, error = %e, "the names in a folder may not survive a power loss");
            }
        }
        Ok(())
    }

    /// Syncs these folders.
    ///
    /// # Why
    /// Several at once: one sync waits for the disk, and the disk writes the names of all folders together.
    async fn sync_all_folders(&self, folders: BTreeSet<PathBuf>, cancel: &Cancel) -> Result<()> {
        let sync_folder = |folder: PathBuf| async move {
            cancel.check()?;
            sync_in_background(folder.clone()).await.map_err(|e| not_synced(&folder, &e))
        };
        let synced = stream::iter(folders).map(sync_folder).buffer_unordered(WRITERS);
        synced.try_collect().await
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
    use crate::sink::parquet::control::disk::tests::{SYNCED, UNSYNCED};
    use crate::sink::{CommittedRun, Publisher, SinkSpec};
    use crate::store::StoreSpec;
    use crate::tables::ComputedTable;
    use crate::testing::publishing::test_job;

    /// Publishes a table and a model below `root`; returns the files that the commit names, and the synced paths in
    /// order.
    async fn publish(root: &FilePath, sync: bool) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let manifest = try_to_publish(root, sync).await.unwrap();
        let named = manifest.files().map(|file| root.join("runs/r").join(&file.path)).collect();
        let synced = SYNCED.lock().unwrap();
        (named, synced.iter().filter(|file| file.starts_with(root)).cloned().collect())
    }

    async fn try_to_publish(root: &FilePath, sync: bool) -> Result<CommittedRun> {
        let spec = SinkSpec { url: root.display().to_string(), sync, ..SinkSpec::default() };
        let sink = ParquetSink::open(&spec, &StoreSpec::default()).unwrap();
        let schema = Arc::new(Schema::empty());
        let empty = RecordBatch::new_empty(Arc::clone(&schema));
        let table = ComputedTable::new("labels", schema, (1, 1), move |_| Ok(empty.clone()));
        let model = vec![("model/model.json".to_owned(), b"{}".to_vec())];
        let contents = Contents { tables: vec![&table], model, ..Contents::default() };
        let identity = test_job("d");
        sink.begin(&identity, false).await?;
        sink.publish("r", &identity, &contents, &JobContext::new(0)).await
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

    /// A folder inside the root, and the root itself: nothing is published, and nothing stays. A folder above the root,
    /// which was there before: a warning.
    #[tokio::test(flavor = "multi_thread")]
    async fn folders_that_cannot_be_synced_are_an_error_inside_the_root_and_a_warning_above() {
        let folder = tempfile::tempdir().unwrap();
        let above = folder.path().canonicalize().unwrap();
        for name in ["out", "out/_leases", "out/runs/r", "out/runs"] {
            UNSYNCED.lock().unwrap().push(above.join(name));
            let error = try_to_publish(&above.join("out"), true).await.unwrap_err().to_string();
            UNSYNCED.lock().unwrap().retain(|path| !path.starts_with(&above));
            assert!(error.contains("Input/output error"), "{name}: {error}");
            let left: Vec<_> = walk(&above).into_iter().filter(|path| path.is_file()).collect();
            assert_eq!(left, Vec::<PathBuf>::new(), "{name}");
        }
        UNSYNCED.lock().unwrap().push(above.clone());
        let published = try_to_publish(&above.join("out"), true).await;
        UNSYNCED.lock().unwrap().retain(|path| !path.starts_with(&above));
        assert!(published.is_ok(), "{published:?}");
        assert!(SYNCED.lock().unwrap().contains(&above));
    }

    /// All files and folders below a folder.
    fn walk(folder: &FilePath) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries
            .flat_map(|path| {
                let below = if path.is_dir() { walk(&path) } else { Vec::new() };
                std::iter::once(path).chain(below)
            })
            .collect()
    }
}
