//! Control files (manifests, leases, `latest.json`): small JSON objects that are created or replaced as a whole.
//!
//! # Why
//! A control file must never be visible half-written. On local disk it is written to a temporary file, synced, and then
//! linked or renamed to its final name; then its folder is synced. (A lease alone is written in place.) After a power
//! loss a file can still be empty or truncated, for instance if `sync` was off. Such a file counts as absent, with a
//! warning, so that it blocks no job; such a manifest uses its name up. Any other content that is not labelmill's
//! belongs to someone else: it is an error, and it is never replaced.

pub(super) mod disk;

use std::fs;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::block_in_place;

use super::parquet_sink::ParquetSink;
use crate::error::{Error, Result, Stage};
use disk::{Created, create_on_disk, on_disk, replace_on_disk};

/// The state of a control file.
#[derive(Debug)]
pub(super) enum ControlFile<T> {
    /// There is no file.
    Missing,
    /// A file of ours that is empty or truncated.
    Damaged(ObjectMeta),
    /// A file of someone else.
    Foreign,
    /// The content of the file.
    Whole(T, ObjectMeta),
}

/// The largest size of a control file, in bytes: a manifest needs about a hundred for each file that it lists.
const MAX_BYTES: u64 = 64 << 20;

/// The version of an object, for a conditional put.
pub(super) fn version_of(meta: &ObjectMeta) -> UpdateVersion {
    UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() }
}

/// The error of a request that writes. "Not found" is no error of the data there: a folder or a bucket has vanished.
pub(super) fn write_error(error: object_store::Error) -> Error {
    let is_missing = matches!(error, object_store::Error::NotFound { .. });
    let mut error = Error::from(error);
    if is_missing {
        error.stage = Stage::Store;
        error = error.help(
            "check the URL, and whether its bucket or folder still exists; then run the job again",
        );
    }
    error
}

impl ParquetSink {
    /// Reads a control file.
    pub(super) async fn read_control<T: DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<ControlFile<T>> {
        match self.local(path).map(fs::metadata) {
            // Reading a pipe could block for ever.
            Some(Ok(found)) if !found.is_file() => return Ok(ControlFile::Foreign),
            // A parent of the path is a file: `obstacles.rs` reports this to writers.
            Some(Err(e)) if e.kind() == io::ErrorKind::NotADirectory => {
                return Ok(ControlFile::Missing);
            }
            _ => {}
        }
        let found = match self.location.store.get(path).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(ControlFile::Missing),
            Err(e) => return Err(Error::from(e).or_at("sink.url")),
        };
        let meta = found.meta.clone();
        if meta.size > MAX_BYTES {
            return Ok(ControlFile::Foreign);
        }
        let bytes = found.bytes().await.map_err(|e| Error::from(e).or_at("sink.url"))?;
        match parse(&bytes) {
            Parsed::Whole(value) => Ok(ControlFile::Whole(value, meta)),
            Parsed::Damaged => {
                tracing::warn!(
                    file = %self.text(path),
                    bytes = bytes.len(),
                    "the file is empty or was cut short: it counts as absent"
                );
                Ok(ControlFile::Damaged(meta))
            }
            Parsed::Foreign => Ok(ControlFile::Foreign),
        }
    }

    /// Creates a control file if it does not exist. After an error the object may exist all the same, as the answer of
    /// a store may be lost.
    pub(super) async fn create(
        &self,
        path: &Path,
        content: &impl Serialize,
        staging: &Path,
    ) -> Result<Created, object_store::Error> {
        let bytes = json(content);
        if let (Some(target), Some(staging)) = (self.local(path), self.local(staging)) {
            let created =
                block_in_place(|| create_on_disk(&target, &bytes, &staging, self.spec.sync));
            return created.map_err(|e| on_disk(&target, e));
        }
        match self.put(path, bytes, PutMode::Create).await {
            Ok(_) => Ok(Created::Yes),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => Ok(Created::Exists),
            Err(e) => Err(e),
        }
    }

    /// Replaces a control file atomically; on a store, only if it is still the version that was `seen`.
    pub(super) async fn replace(
        &self,
        path: &Path,
        content: &impl Serialize,
        staging: &Path,
        seen: &ObjectMeta,
    ) -> Result<(), object_store::Error> {
        let bytes = json(content);
        if let (Some(target), Some(staging)) = (self.local(path), self.local(staging)) {
            let replaced =
                block_in_place(|| replace_on_disk(&target, &bytes, &staging, self.spec.sync));
            return replaced.map_err(|e| on_disk(&target, e));
        }
        self.put(path, bytes, PutMode::Update(version_of(seen))).await.map(|_| ())
    }

    pub(super) async fn put(
        &self,
        path: &Path,
        bytes: Bytes,
        mode: PutMode,
    ) -> Result<object_store::PutResult, object_store::Error> {
        let options = PutOptions { mode, ..PutOptions::default() };
        self.location.store.put_opts(path, bytes.into(), options).await
    }

    /// The path of an object's file, if the sink is on local disk.
    pub(super) fn local(&self, path: &Path) -> Option<PathBuf> {
        let root = self.location.local()?;
        let below = path.prefix_match(&self.location.path)?;
        Some(below.fold(root, |file, part| file.join(part.as_ref())))
    }

    /// The URL of an object of this sink, as shown to users.
    pub(super) fn text(&self, path: &Path) -> String {
        let below: Vec<String> = path
            .prefix_match(&self.location.path)
            .into_iter()
            .flatten()
            .map(|part| part.as_ref().to_owned())
            .collect();
        format!("{}/{}", self.url(), below.join("/"))
    }
}

/// The result of parsing a control file.
enum Parsed<T> {
    Whole(T),
    Damaged,
    Foreign,
}

/// A file of ours is damaged if it is truncated, or if it ends in zeros because the disk never got its end. JSON of
/// another shape, and content that is no JSON, is foreign.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Parsed<T> {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    let value = match serde_json::from_slice::<Value>(&bytes[..end]) {
        Ok(value) => value,
        Err(e) if e.is_eof() => return Parsed::Damaged,
        Err(_) => return Parsed::Foreign,
    };
    serde_json::from_value(value).map_or(Parsed::Foreign, Parsed::Whole)
}

pub(super) fn json(content: &impl Serialize) -> Bytes {
    serde_json::to_vec_pretty(content).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Latest;
    use super::*;

    fn parsed(bytes: &[u8]) -> &'static str {
        match parse::<Latest>(bytes) {
            Parsed::Whole(_) => "whole",
            Parsed::Damaged => "damaged",
            Parsed::Foreign => "foreign",
        }
    }

    #[test]
    fn a_file_that_was_cut_short_anywhere_is_damaged_and_another_tool_s_is_foreign() {
        let latest = Latest {
            attempt: "a".into(),
            run_id: "é".into(),
            committed: "c".into(),
            committed_at: "w".into(),
            since: "s".into(),
        };
        let complete = json(&latest);
        assert_eq!(parsed(&complete), "whole");
        for end in 0..complete.len() {
            // A cut inside a two-byte character counts too.
            assert_eq!(parsed(&complete[..end]), "damaged", "cut at {end}");
            let zeros = [&complete[..end], &vec![0; complete.len() - end]].concat();
            assert_eq!(parsed(&zeros), "damaged", "zeros from {end}");
        }
        for foreign in ["{\"best\": 1}", "[]", "7", "<html>", "run_id: 3"] {
            assert_eq!(parsed(foreign.as_bytes()), "foreign", "{foreign}");
        }
    }
}
