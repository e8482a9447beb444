//! Files of data that queries spill to disk. They have no name in their folder, so that the system frees them when the
//! process ends, however it ends.
//!
//! # Why
//! DataFusion's own spill files lie in a folder that a killed process leaves behind: a job that is out of memory and is
//! started again and again would fill the disk. Its bound of 100 GB on all of them does not hold here: the disk is the
//! bound, and a full one is an error that names it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};

use super::scratch_folder::ScratchFolder;

/// Bytes that are read at once, as many as DataFusion's own files read. Arrow counts the whole chunk as the memory of each
/// batch that lies in it.
const CHUNK: u64 = 128 << 10;

/// Creates the spill files of a session.
pub(super) struct SpillFolder(pub(super) ScratchFolder);

impl TempFileFactory for SpillFolder {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>, DataFusionError> {
        let file = Arc::new(self.0.file()?);
        Ok(Arc::new(UnnamedFile { file, written: Arc::default() }))
    }
}

/// A file that is written at its end and read at any place.
struct UnnamedFile {
    file: Arc<File>,
    written: Arc<AtomicU64>,
}

impl SpillFile for UnnamedFile {
    fn size(&self) -> Option<u64> {
        Some(self.written.load(Ordering::Relaxed))
    }

    fn read_stream(
        &self,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes, DataFusionError>> + Send>>, DataFusionError>
    {
        // A reader has its own place in the file, because a query may read a file several times.
        let all = self.written.load(Ordering::Relaxed);
        let chunks =
            stream::try_unfold((Arc::clone(&self.file), 0), move |(file, at)| async move {
                if at == all {
                    return Ok(None);
                }
                let len = CHUNK.min(all - at);
                let read = tokio::task::spawn_blocking(move || (chunk_at(&file, at, len), file));
                let (chunk, file) = read.await.map_err(|e| DataFusionError::External(e.into()))?;
                Ok(Some((chunk?, (file, at + len))))
            });
        Ok(Box::pin(chunks))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>, DataFusionError> {
        Ok(Box::new(UnnamedFileWriter {
            file: Arc::clone(&self.file),
            written: Arc::clone(&self.written),
        }))
    }
}

/// These bytes of the file.
fn chunk_at(file: &File, at: u64, len: u64) -> io::Result<Bytes> {
    let mut chunk = vec![0; len as usize];
    file.read_exact_at(&mut chunk, at)?;
    Ok(chunk.into())
}

struct UnnamedFileWriter {
    file: Arc<File>,
    written: Arc<AtomicU64>,
}

impl io::Write for UnnamedFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = (&*self.file).write(bytes)?;
        self.written.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for UnnamedFileWriter {
    fn finish(&mut self) -> Result<(), DataFusionError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use futures::TryStreamExt as _;

    use super::*;

    async fn read(file: &Arc<dyn SpillFile>) -> Vec<u8> {
        let chunks: Vec<Bytes> = file.read_stream().unwrap().try_collect().await.unwrap();
        chunks.concat()
    }

    /// Two and a half chunks, in two writes.
    #[tokio::test]
    async fn a_spill_file_is_read_as_often_as_asked_and_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let spills = SpillFolder(ScratchFolder(Some(folder.path().to_owned())));
        let file = spills.create_temp_file("a test").unwrap();
        let bytes: Vec<u8> = (0..5 * CHUNK as usize / 2).map(|n| (n * 31 % 251) as u8).collect();
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&bytes[..1000]).unwrap();
        assert!(read(&file).await == bytes[..1000], "the file while it is written");
        writer.write_all(&bytes[1000..]).unwrap();
        writer.finish().unwrap();
        assert_eq!(file.size(), Some(bytes.len() as u64));
        assert!(read(&file).await == bytes && read(&file).await == bytes);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
