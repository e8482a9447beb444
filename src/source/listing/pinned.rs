//! A read-only view of a store, pinned to the files and versions of one listing.
//!
//! # Why
//! Minutes may pass between the listing, whose sizes and versions form the job's digest, and the last read. A file that
//! appears in between must not be read, and a change of a listed file must be an error: otherwise the table `run` would
//! name other inputs than those that were read.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, GetOptions, GetRange, GetResult,
    GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use url::Url;

use super::Files;
use super::format::Format;
use crate::error::{DAMAGED_HELP, Error};
use crate::store::shown;

/// Serves the listed objects only, each in its listed version; every write is an error.
#[derive(Debug)]
pub(in crate::source) struct PinnedStore {
    inner: Arc<dyn ObjectStore>,
    objects: HashMap<Path, ObjectMeta>,
    /// The location of the store, for messages.
    url: Url,
}

impl PinnedStore {
    pub(in crate::source) fn new(
        inner: Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
        url: &Url,
    ) -> Self {
        let objects = objects.iter().map(|o| (o.location.clone(), o.clone())).collect();
        Self { inner, objects, url: url.clone() }
    }

    /// The error for a range beyond the end of the file, which only a wrong length inside the file can cause.
    fn damaged(&self, location: &Path, range: &Range<u64>) -> StoreError {
        let error = Error::data("the file refers to bytes that it does not have")
            .at(shown(&self.url, location))
            .found(format!("bytes {} to {}", range.start, range.end))
            .help(DAMAGED_HELP);
        StoreError::Generic { store: "source", source: Box::new(error) }
    }

    /// The error for a file that is not as it was listed.
    async fn changed(&self, listed: &ObjectMeta) -> StoreError {
        let how = match self.inner.head(&listed.location).await {
            Ok(now) if now.size != listed.size => {
                let (before, now) = (listed.size, now.size);
                format!("was written again: {before} bytes when it was listed, {now} now")
            }
            Err(StoreError::NotFound { .. }) => "was removed".to_owned(),
            _ => "was written again".to_owned(),
        };
        let error = changed(&format!("`{}` {how}", shown(&self.url, &listed.location)));
        StoreError::Generic { store: "source", source: Box::new(error) }
    }

    /// Reads a range of a local file that was opened in its listed version.
    ///
    /// # Why
    /// Another process may cut the file short, or write into it, between the opening and the last byte. A file that only
    /// lost its name to a new one meanwhile is still the listed one.
    async fn read_range(&self, listed: &ObjectMeta, opened: GetResult) -> Result<GetResult> {
        let GetResultPayload::File(file, _) = &opened.payload else { return Ok(opened) };
        let file = file.try_clone().map_err(unreadable)?;
        let (meta, range) = (opened.meta.clone(), opened.range.clone());
        let attributes = opened.attributes.clone();
        let read = opened.bytes().await;
        let now = file.metadata().map_err(unreadable)?;
        let is_as_opened =
            now.modified().is_ok_and(|at| meta.last_modified == DateTime::<Utc>::from(at));
        if now.len() != meta.size || !is_as_opened {
            return Err(self.changed(listed).await);
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(read?)]).boxed());
        Ok(GetResult { payload, meta, range, attributes })
    }

    fn listed(&self, location: &Path) -> Result<&ObjectMeta> {
        self.objects.get(location).ok_or_else(|| StoreError::NotFound {
            path: location.to_string(),
            source: "it was not there when the files were listed".into(),
        })
    }
}

impl fmt::Display for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listed objects of {}", self.objects.len(), self.inner)
    }
}

#[async_trait]
impl ObjectStore for PinnedStore {
    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        let listed = self.listed(location)?;
        if options.head {
            return Ok(GetResult {
                payload: GetResultPayload::Stream(stream::empty().boxed()),
                meta: listed.clone(),
                range: 0..0,
                attributes: Attributes::default(),
            });
        }
        if let Some(GetRange::Bounded(range)) = &options.range
            && (range.start >= range.end || range.start >= listed.size)
        {
            return Err(self.damaged(location, range));
        }
        options.version = options.version.or_else(|| listed.version.clone());
        // A weak ETag never satisfies `If-Match`; the tag of the answer is compared below.
        options.if_match = listed.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        let is_part = options.range.is_some();
        match self.inner.get_opts(location, options).await {
            Ok(found) if is_same(listed, &found.meta) => match found.payload {
                GetResultPayload::File(..) if is_part => self.read_range(listed, found).await,
                _ => Ok(found),
            },
            Ok(_) | Err(StoreError::Precondition { .. } | StoreError::NotFound { .. }) => {
                Err(self.changed(listed).await)
            }
            // The range is in the object that was listed. Some stores look at it before they compare the tag.
            Err(other) if is_part && other.to_string().contains("416 Range Not Satisfiable") => {
                Err(self.changed(listed).await)
            }
            Err(other) => Err(other),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let is_below = |o: &&ObjectMeta| prefix.is_none_or(|p| o.location.prefix_matches(p));
        let mut objects: Vec<ObjectMeta> =
            self.objects.values().filter(is_below).cloned().collect();
        objects.sort_by(|a, b| a.location.cmp(&b.location));
        stream::iter(objects.into_iter().map(Ok)).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(read_only("list_with_delimiter"))
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only("put"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only("put_multipart"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::iter([Err(read_only("delete"))]).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only("copy"))
    }
}

/// Checks, after the rows were read, that the local Arrow files are as they were listed.
///
/// # Why
/// DataFusion reads an Arrow file whole from the opened file, unless it is large and the threads share it: nothing else
/// would notice a change while it is read. Every other read is checked on its own.
pub(in crate::source) async fn check_unchanged(
    Files { location, format, objects }: &Files,
) -> Result<()> {
    if *format != Format::Arrow || location.local().is_none() {
        return Ok(());
    }
    let pinned = PinnedStore::new(Arc::clone(&location.store), &[], &location.url);
    for listed in objects {
        if !pinned.inner.head(&listed.location).await.is_ok_and(|now| is_same(listed, &now)) {
            return Err(pinned.changed(listed).await);
        }
    }
    Ok(())
}

/// The error for a file that changed after it was listed.
pub(in crate::source) fn changed(found: &str) -> Error {
    Error::store("an input changed after it was listed")
        .found(found)
        .help("run the job again once its inputs are complete: nothing was published")
}

/// Whether both are the same version: equal sizes, and equal ETags, or equal times where one has no ETag. A listing may
/// give a more precise time than a header, and a proxy that compresses makes an ETag weak.
fn is_same(listed: &ObjectMeta, found: &ObjectMeta) -> bool {
    let tag = |object: &ObjectMeta| {
        object.e_tag.as_deref().map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_owned())
    };
    let same = match (tag(listed), tag(found)) {
        (Some(a), Some(b)) => a == b,
        _ => listed.last_modified.timestamp() == found.last_modified.timestamp(),
    };
    same && listed.size == found.size
}

/// The error for an opened file whose state the system does not give.
fn unreadable(error: std::io::Error) -> StoreError {
    StoreError::Generic { store: "LocalFileSystem", source: error.into() }
}

fn read_only(operation: &str) -> StoreError {
    StoreError::NotImplemented {
        operation: operation.to_owned(),
        implementer: "a source".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path as FilePath, PathBuf};

    use super::*;
    use futures::TryStreamExt;
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;

    async fn stored(files: &[(&str, &str)]) -> (Arc<InMemory>, Vec<ObjectMeta>) {
        let store = Arc::new(InMemory::new());
        for (path, text) in files {
            store.put(&Path::from(*path), PutPayload::from((*text).to_owned())).await.unwrap();
        }
        let objects = store.list(None).try_collect().await.unwrap();
        (store, objects)
    }

    fn message(error: StoreError) -> String {
        Error::from(error).to_string()
    }

    #[tokio::test]
    async fn a_length_that_leads_out_of_a_file_is_its_damage() {
        let (store, objects) = stored(&[("a", "sixteen bytes...")]).await;
        let url = Url::parse("s3://bucket/folder").unwrap();
        let pinned = PinnedStore::new(store as Arc<dyn ObjectStore>, &objects, &url);
        let a = Path::from("a");
        assert_eq!(pinned.get_range(&a, 8..99).await.unwrap().len(), 8);
        for (from, to) in [(16, 20), (8, 8), (u64::MAX - 4, 8)] {
            let error = Error::from(pinned.get_range(&a, from..to).await.unwrap_err());
            assert_eq!(error.exit_code(), 3, "{error}");
            assert!(error.to_string().contains("where: s3://bucket/a"), "{error}");
        }
    }

    #[tokio::test]
    async fn only_what_was_listed_is_given_and_only_as_it_was() {
        let (store, objects) = stored(&[("a", "one"), ("b", "two"), ("c", "three")]).await;
        let pinned = PinnedStore::new(
            Arc::clone(&store) as Arc<dyn ObjectStore>,
            &objects,
            &Url::parse("s3://bucket/folder").unwrap(),
        );
        let (late, b, c) = (Path::from("late"), Path::from("b"), Path::from("c"));
        store.put(&late, PutPayload::from("late")).await.unwrap();
        store.put(&b, PutPayload::from("TWO")).await.unwrap();
        store.delete(&c).await.unwrap();
        assert_eq!(
            pinned.get(&Path::from("a")).await.unwrap().bytes().await.unwrap().as_ref(),
            b"one"
        );
        assert_eq!(pinned.list(None).try_collect::<Vec<_>>().await.unwrap(), objects);
        assert!(matches!(pinned.get(&late).await, Err(StoreError::NotFound { .. })));
        let again = message(pinned.get(&b).await.unwrap_err());
        assert!(
            again.contains("an input changed")
                && again.contains("`s3://bucket/b` was written again")
        );
        let gone = message(pinned.get_range(&c, 0..1).await.unwrap_err());
        assert!(gone.contains("`s3://bucket/c` was removed"), "{gone}");
    }

    /// A local store with the file `a` of sixteen bytes, the path of the file, and the store pinned to it.
    async fn on_disk(folder: &FilePath) -> (PathBuf, PinnedStore, ObjectMeta) {
        let file = folder.join("a");
        std::fs::write(&file, "sixteen bytes...").unwrap();
        let store = Arc::new(LocalFileSystem::new_with_prefix(folder).unwrap());
        let objects: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        let url = Url::from_directory_path(folder).unwrap();
        (file, PinnedStore::new(store, &objects, &url), objects[0].clone())
    }

    /// Opens a range of the file `a`, which is read later.
    async fn opened(pinned: &PinnedStore) -> GetResult {
        let range = GetOptions { range: Some((8..16).into()), ..GetOptions::default() };
        pinned.inner.get_opts(&Path::from("a"), range).await.unwrap()
    }

    #[tokio::test]
    async fn a_local_file_that_changes_while_a_range_is_read_is_an_error_worth_another_try() {
        for (later, wanted) in [
            ("four", "16 bytes when it was listed, 4 now"),
            ("sixteen and more bytes", "16 bytes when it was listed, 22 now"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let (file, pinned, listed) = on_disk(folder.path()).await;
            let a = Path::from("a");
            assert_eq!(pinned.get_range(&a, 8..16).await.unwrap().as_ref(), b"bytes...");
            let opened = opened(&pinned).await;
            std::fs::write(&file, later).unwrap();
            let error = Error::from(pinned.read_range(&listed, opened).await.unwrap_err());
            assert_eq!(error.exit_code(), 5, "{error}");
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }

    #[tokio::test]
    async fn a_range_of_a_file_that_was_opened_before_another_took_its_name_is_as_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pinned, listed) = on_disk(folder.path()).await;
        let before = opened(&pinned).await;
        std::fs::write(folder.path().join("b"), "another version.").unwrap();
        std::fs::rename(folder.path().join("b"), &file).unwrap();
        let read = pinned.read_range(&listed, before).await.unwrap();
        assert_eq!(read.bytes().await.unwrap().as_ref(), b"bytes...");
        let again = message(pinned.get_range(&Path::from("a"), 8..16).await.unwrap_err());
        assert!(again.contains("was written again"), "{again}");
    }
}
