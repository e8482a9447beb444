//! Parts of files from a server that sends whole files only.
//!
//! # Why
//! Parquet is read from its end, in parts. A plain web server may ignore the range of a request and send the whole
//! file: then it is read once, and its parts are cut from the memory.

use bytes::Bytes;
use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attributes, Error as StoreError, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta,
    ObjectStore, Result,
};
use tokio::sync::Mutex;

use crate::engine::bytes_in_words;
use crate::error::Error;

/// The most bytes that are kept, except for one file alone.
const KEPT_BYTES: usize = 256 << 20;

/// The most bytes of a file that is read whole: they are in memory, beside the limit of the job.
const MAX_WHOLE_BYTES: u64 = 1 << 30;

/// The files that were read last.
#[derive(Debug)]
pub(super) struct WholeFiles {
    files: Mutex<Vec<WholeFile>>,
    max_bytes: u64,
}

impl Default for WholeFiles {
    fn default() -> Self {
        Self { files: Mutex::default(), max_bytes: MAX_WHOLE_BYTES }
    }
}

#[derive(Debug, Clone)]
struct WholeFile {
    location: Path,
    if_match: Option<String>,
    meta: ObjectMeta,
    attributes: Attributes,
    bytes: Bytes,
}

/// Whether the server sent a whole file where a part was asked for.
pub(super) fn is_whole_answer(error: &StoreError) -> bool {
    let text = error.to_string();
    // As the store of web servers says it, and that of S3.
    ["Range request not supported", "non-partial response"].iter().any(|said| text.contains(said))
}

impl WholeFiles {
    /// The part of a file that `options` name; `store` is asked for the whole file, unless it is kept. A very large file is
    /// refused.
    pub(super) async fn part(
        &self,
        store: &dyn ObjectStore,
        location: &Path,
        options: GetOptions,
        range: &GetRange,
    ) -> Result<GetResult> {
        let mut kept = self.files.lock().await;
        let is_it =
            |file: &&WholeFile| file.location == *location && file.if_match == options.if_match;
        let file = if let Some(file) = kept.iter().find(is_it) {
            file.clone()
        } else {
            let whole = GetOptions { range: None, ..options.clone() };
            let found = store.get_opts(location, whole).await?;
            if found.meta.size > self.max_bytes {
                let source = Box::new(too_large(location, found.meta.size));
                return Err(StoreError::Generic { store: "a server without ranges", source });
            }
            let (meta, attributes) = (found.meta.clone(), found.attributes.clone());
            let bytes = found.bytes().await?;
            tracing::info!(file = %location, "the server sends whole files only");
            let (location, if_match) = (location.clone(), options.if_match);
            let file = WholeFile { location, if_match, meta, attributes, bytes };
            kept.push(file.clone());
            let size = |kept: &[WholeFile]| kept.iter().map(|f| f.bytes.len()).sum::<usize>();
            while kept.len() > 1 && size(&kept) > KEPT_BYTES {
                kept.remove(0);
            }
            file
        };
        drop(kept);
        let size = file.bytes.len() as u64;
        let begins_within = match range {
            GetRange::Bounded(range) => range.start < range.end && range.start < size,
            GetRange::Offset(start) => *start < size,
            GetRange::Suffix(_) => true,
        };
        if !begins_within {
            let source = format!("no such range in a file of {size} bytes").into();
            return Err(StoreError::Generic { store: "HTTP", source });
        }
        let range = match range {
            GetRange::Bounded(range) => range.start..range.end.min(size),
            GetRange::Offset(start) => *start..size,
            GetRange::Suffix(length) => size.saturating_sub(*length)..size,
        };
        // Both ends are within the bytes.
        let part = file.bytes.slice(range.start as usize..range.end as usize);
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(part)]).boxed()),
            meta: ObjectMeta { size, ..file.meta },
            range,
            attributes: file.attributes,
        })
    }
}

fn too_large(location: &Path, size: u64) -> Error {
    Error::data("a file is too large to be read whole, and the server does not send parts of it")
        .found(format!("`{location}` has {}", bytes_in_words(size)))
        .help(
            "copy the file to a local disk or to a store first, serve it with support of ranges, or write it in smaller \
             parts",
        )
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt, PutPayload};

    use super::*;

    #[tokio::test]
    async fn a_file_above_the_limit_is_refused_and_not_read() {
        let (store, path) = (InMemory::new(), Path::from("a.parquet"));
        store.put(&path, PutPayload::from("eighteen bytes of it")).await.unwrap();
        let part = |max_bytes| {
            let whole = WholeFiles { max_bytes, ..WholeFiles::default() };
            let (store, path) = (&store, &path);
            async move {
                let range = GetRange::Suffix(2);
                whole.part(store, path, GetOptions::default(), &range).await
            }
        };
        assert_eq!(part(20).await.unwrap().bytes().await.unwrap(), "it");
        let error = Error::from(part(19).await.unwrap_err());
        assert_eq!(error.exit_code(), 3, "{error}");
        assert!(error.to_string().contains("`a.parquet` has 20 bytes"), "{error}");
        assert!(error.to_string().contains("help: copy the file"), "{error}");
    }
}
