//! Resumes interrupted downloads, and says what is missing: a bucket, credentials, or a server's support of ranges.
//!
//! # Why
//! `object_store` counts retries and their time from the start of a request: a download of hours that breaks off twice
//! would fail. Here a download is resumed as long as each request delivers new bytes, and always of the same version of
//! the object. A weak entity tag may stand for several byte sequences, and no store answers a range request that must
//! match one: with a weak tag or none, an interrupted download fails.
//!
//! Stores answer "not found" for a missing bucket as for a missing object. A job that took a missing bucket for one
//! without a manifest would fail only at its last step.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetRange, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result,
};
use url::Url;

use super::delete::DeleteOne;
use super::denied::METADATA_HOST;
use super::whole_files::{WholeFiles, is_whole_answer};
use crate::error::Error;

/// A store whose downloads resume.
#[derive(Debug)]
pub(super) struct Resuming {
    store: Arc<dyn ObjectStore>,
    bucket: String,
    delete: Option<DeleteOne>,
    whole_files: WholeFiles,
}

impl Resuming {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        bucket: &str,
        delete: Option<DeleteOne>,
    ) -> Self {
        Self { store, bucket: bucket.to_owned(), delete, whole_files: WholeFiles::default() }
    }

    /// Names the bucket in the error if the bucket itself was not found.
    fn named(&self, error: StoreError) -> StoreError {
        named(error, &self.bucket)
    }
}

/// The texts by which stores report a missing bucket or container.
const MISSING_BUCKET: [&str; 3] =
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"];

fn named(error: StoreError, bucket: &str) -> StoreError {
    // Not every request maps "not found" to `NotFound`: look at the text instead.
    let text = error.to_string();
    if text.split_whitespace().any(is_of_metadata) {
        let source = Box::new(no_credentials(&text));
        return StoreError::Generic { store: "no credentials", source };
    }
    if !MISSING_BUCKET.iter().any(|code| text.contains(code)) {
        return error;
    }
    let own = Error::store(format!("the bucket `{bucket}` does not exist"))
        .help("check its name, and the endpoint and the region that it is asked at; or make it");
    StoreError::Generic { store: MISSING, source: Box::new(own) }
}

/// The beginnings of the metadata service's paths, which an object of a bucket may have too.
const METADATA_PATHS: [&str; 2] = ["/latest/api/token", "/latest/meta-data/"];

/// Whether a word of an error is the URL of a request to the metadata service, which may have another host by a variable.
fn is_of_metadata(word: &str) -> bool {
    let Ok(url) = Url::parse(word.trim_matches(|c: char| !c.is_alphanumeric() && c != '/')) else {
        return false;
    };
    let own = std::env::var("AWS_METADATA_ENDPOINT").ok().and_then(|url| Url::parse(&url).ok());
    let is_host = url.host_str() == Some(METADATA_HOST)
        || own.is_some_and(|own| own.origin() == url.origin());
    is_host && METADATA_PATHS.iter().any(|path| url.path().starts_with(path))
}

/// The error of a request to the metadata service, which is asked only where no variable gives credentials.
fn no_credentials(text: &str) -> Error {
    let profile = std::env::var("AWS_PROFILE").map_or(String::new(), |name| format!(" ({name})"));
    Error::spec(
        "no credentials: AWS_ACCESS_KEY_ID and AWS_WEB_IDENTITY_TOKEN_FILE are not set, profiles (AWS_PROFILE, ~/.aws) \
         are not read, and there is no instance role",
    )
    .found(format!("the metadata service of the instance gave none{profile}: {}", reason(text)))
    .help(
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (with a profile: eval \"$(aws configure export-credentials \
         --format env)\"), or AWS_SKIP_SIGNATURE=true for a public bucket",
    )
}

/// The last part of a store's error, without the request.
fn reason(text: &str) -> String {
    let reason = text.lines().next().unwrap_or_default();
    let reason = reason.rsplit_once(" - ").map_or(reason, |(_, reason)| reason);
    // The status must not be taken for one of the store.
    reason.replace("Server returned non-2xx status code: ", "")
}

/// Marks the error of a missing bucket.
const MISSING: &str = "a missing bucket";

impl fmt::Display for Resuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// The rest of a download.
struct RemainingDownload {
    store: Arc<dyn ObjectStore>,
    location: Path,
    /// The caller's options, for this version of the object only.
    options: GetOptions,
    bytes: BoxStream<'static, Result<Bytes>>,
    range: Range<u64>,
    /// Whether bytes arrived since the last request.
    moved: bool,
}

impl RemainingDownload {
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
        let mut found = self.store.get_opts(location, options.clone()).await;
        if let (Err(e), Some(range)) = (&found, &options.range)
            && is_whole_answer(e)
        {
            let (store, options) = (self.store.as_ref(), options.clone());
            found = self.whole_files.part(store, location, options, range).await;
        }
        let found = found.map_err(|e| self.named(e))?;
        let GetResult { payload, meta, range, attributes } = found;
        let payload = match (payload, meta.e_tag.clone().filter(|tag| is_strong(tag))) {
            // Without a strong tag, the next bytes could be of another version.
            (GetResultPayload::Stream(bytes), Some(tag)) if !options.head => {
                let rest = RemainingDownload {
                    store: Arc::clone(&self.store),
                    location: location.clone(),
                    options: GetOptions { if_match: Some(tag), ..options },
                    bytes,
                    range: range.clone(),
                    moved: false,
                };
                GetResultPayload::Stream(try_unfold(rest, RemainingDownload::next).boxed())
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
        self.store.put_opts(location, payload, options).await.map_err(|e| self.named(e))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await.map_err(|e| self.named(e))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = Arc::clone(&self.store);
        let deleted = match self.delete.clone() {
            Some(delete) => delete.stream(store, locations),
            None => store.delete_stream(locations),
        };
        let bucket = self.bucket.clone();
        deleted.map_err(move |e| named(e, &bucket)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let bucket = self.bucket.clone();
        self.store.list(prefix).map_err(move |e| named(e, &bucket)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let bucket = self.bucket.clone();
        self.store.list_with_offset(prefix, offset).map_err(move |e| named(e, &bucket)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await.map_err(|e| self.named(e))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await.map_err(|e| self.named(e))
    }
}

/// Whether this is a strong entity tag, which stands for exactly one byte sequence.
fn is_strong(tag: &str) -> bool {
    !tag.starts_with("W/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::{Attributes, ObjectStoreExt};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Breaks off every response after five bytes, and counts the requests that must match a tag.
    #[derive(Debug)]
    struct Breaking {
        inner: InMemory,
        tag: &'static str,
        matched: AtomicUsize,
    }

    impl fmt::Display for Breaking {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("breaking")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for Breaking {
        async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
            self.matched
                .fetch_add(usize::from(options.if_match.take().is_some()), Ordering::SeqCst);
            let found = self.inner.get_opts(location, options).await?;
            let meta = ObjectMeta { e_tag: Some(self.tag.to_owned()), ..found.meta.clone() };
            let range = found.range.clone();
            let bytes = found.bytes().await?;
            let broken = || StoreError::Generic { store: "test", source: "it broke off".into() };
            let first = Ok(bytes.slice(..bytes.len().min(5)));
            let rest = (bytes.len() > 5).then(|| Err(broken()));
            let stream = futures::stream::iter(std::iter::once(first).chain(rest)).boxed();
            let payload = GetResultPayload::Stream(stream);
            Ok(GetResult { payload, meta, range, attributes: Attributes::default() })
        }

        async fn put_opts(&self, at: &Path, what: PutPayload, o: PutOptions) -> Result<PutResult> {
            self.inner.put_opts(at, what, o).await
        }

        async fn put_multipart_opts(
            &self,
            at: &Path,
            options: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.inner.put_multipart_opts(at, options).await
        }

        fn delete_stream(
            &self,
            locations: BoxStream<'static, Result<Path>>,
        ) -> BoxStream<'static, Result<Path>> {
            self.inner.delete_stream(locations)
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.inner.list(prefix)
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            self.inner.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.inner.copy_opts(from, to, options).await
        }
    }

    async fn download(tag: &'static str) -> (Result<String>, usize) {
        let inner = InMemory::new();
        let path = Path::from("x");
        inner.put(&path, PutPayload::from("eighteen bytes of it")).await.unwrap();
        let breaking = Arc::new(Breaking { inner, tag, matched: AtomicUsize::new(0) });
        let store = Resuming::new(Arc::clone(&breaking) as Arc<dyn ObjectStore>, "b", None);
        let stream = store.get(&path).await.unwrap().into_stream();
        let bytes: Result<Vec<Bytes>> = stream.try_collect().await;
        let text = bytes.map(|bytes| String::from_utf8(bytes.concat()).unwrap());
        (text, breaking.matched.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn a_download_goes_on_by_a_strong_tag_and_never_by_a_weak_one() {
        let (text, matched) = download("\"1\"").await;
        assert_eq!((text.unwrap().as_str(), matched), ("eighteen bytes of it", 3));
        let (text, matched) = download("W/\"1\"").await;
        assert!(text.unwrap_err().to_string().contains("it broke off"));
        assert_eq!(matched, 0);
    }

    #[test]
    fn an_object_with_the_path_of_the_metadata_service_is_none_of_its_requests() {
        let stage = |url: &str| {
            let source = format!("Error performing GET {url} in 1ms, after 0 retries - HTTP error");
            let error = StoreError::Generic { store: "S3", source: source.into() };
            Error::from(named(error, "crowd")).exit_code()
        };
        assert_eq!(stage("http://169.254.169.254/latest/api/token"), 2);
        assert_eq!(stage("http://169.254.169.254/latest/meta-data/iam/x"), 2);
        for other in [
            "http://127.0.0.1:9000/crowd/latest/meta-data/a.csv",
            "https://crowd.s3.amazonaws.com/latest/meta-data/a.csv",
            "https://crowd.s3.amazonaws.com/169.254.169.254/latest/api/token",
        ] {
            assert_eq!(stage(other), 5, "{other}");
        }
    }

    #[test]
    fn a_missing_bucket_is_told_from_a_missing_object() {
        let error = |text: &str| {
            let error = StoreError::NotFound { path: "x".to_owned(), source: text.into() };
            named(error, "crowd")
        };
        assert!(matches!(error("404: <Code>NoSuchKey</Code>"), StoreError::NotFound { .. }));
        let missing = error("404: <Code>NoSuchBucket</Code>");
        assert!(matches!(missing, StoreError::Generic { store: MISSING, .. }));
        let shown = Error::from(missing);
        assert_eq!(shown.exit_code(), 5);
        assert!(shown.to_string().contains("the bucket `crowd` does not exist"), "{shown}");
    }
}
