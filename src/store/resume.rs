//! A download that breaks off goes on where it stopped.
//!
//! # Why
//! `object_store` counts retries and their time from the first byte asked for: a download of hours that breaks twice
//! would fail. Here every byte that arrives buys another attempt, of the same version of the object, and only a store
//! that gives nothing new is given up.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{BoxStream, try_unfold};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A store whose downloads resume.
#[derive(Debug)]
pub(super) struct Resuming {
    store: Arc<dyn ObjectStore>,
}

impl Resuming {
    pub(super) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store }
    }
}

impl fmt::Display for Resuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// What is left of a download.
struct Rest {
    store: Arc<dyn ObjectStore>,
    location: Path,
    /// As asked for, but of this version only.
    options: GetOptions,
    bytes: BoxStream<'static, Result<Bytes>>,
    range: Range<u64>,
    /// Whether bytes came since the last attempt.
    moved: bool,
}

impl Rest {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        loop {
            match self.bytes.next().await {
                Some(Ok(bytes)) => {
                    self.range.start += bytes.len() as u64;
                    self.moved |= !bytes.is_empty();
                    return Ok(Some((bytes, self)));
                }
                None => return Ok(None),
                Some(Err(e)) if !self.moved || self.range.is_empty() => return Err(e),
                Some(Err(error)) => {
                    let at = self.range.start;
                    tracing::info!(%error, object = %self.location, at, "a download goes on");
                    let options = GetOptions {
                        range: Some(GetRange::Bounded(self.range.clone())),
                        ..self.options.clone()
                    };
                    let again = self.store.get_opts(&self.location, options).await?;
                    self.bytes = again.into_stream();
                    self.moved = false;
                }
            }
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Resuming {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.store.get_opts(location, options.clone()).await?;
        let GetResult { payload, meta, range, attributes } = found;
        let payload = match (payload, meta.e_tag.clone()) {
            // Without a tag, what comes next could be of another version.
            (GetResultPayload::Stream(bytes), Some(tag)) if !options.head => {
                let rest = Rest {
                    store: Arc::clone(&self.store),
                    location: location.clone(),
                    options: GetOptions { if_match: Some(tag), ..options },
                    bytes,
                    range: range.clone(),
                    moved: false,
                };
                GetResultPayload::Stream(try_unfold(rest, Rest::next).boxed())
            }
            (payload, _) => payload,
        };
        Ok(GetResult { payload, meta, range, attributes })
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
