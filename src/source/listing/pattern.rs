//! Glob patterns in source locations: splits a location into its base folder and its pattern, and lists the files of
//! the folders that the pattern can reach.

use std::path::Path as FilePath;

use futures::{StreamExt, TryStreamExt, stream};
use glob::Pattern;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::format::TABLE_LOGS;
use crate::error::{Error, Result};
use crate::redact::redacted;
use crate::store::{StoreLocation, StoreSpec, is_absent, open, parse_url};

/// Splits `text` into a location and the pattern below it, if any. Glob characters in the name of an existing file or
/// folder are a part of that name, not a pattern.
pub(super) async fn located<'a>(
    text: &'a str,
    stores: &StoreSpec,
) -> Result<(StoreLocation, Option<&'a str>)> {
    let Some((base, pattern)) = split_glob(text) else {
        return Ok((open(&parse_url(text)?, stores)?, None));
    };
    let (base, pattern) = match behind_parents(text).filter(|at| *at > base.len()) {
        Some(at) => (&text[..at], &text[at..]),
        None => (base, pattern),
    };
    // The operating system resolves `..` in a local path; the URL parser resolves it in a URL.
    if split_glob(base).is_some() && !base.contains("://") && !FilePath::new(base).is_dir() {
        return Err(Error::spec("a pattern cannot go up by `..`")
            .found(format!("`{}`", redacted(text)))
            .help(
                "nobody knows which of the folders that fit is meant: write the path without `..`",
            ));
    }
    let mut base = open(&parse_url(base)?, stores)?;
    let Some(named) = below(&base, pattern.trim_end_matches('/')) else {
        return Ok((base, Some(pattern)));
    };
    let is_literal = split_glob(pattern).is_none();
    if is_literal || is_folder(&named).await? || is_file(&named).await? {
        return Ok((named, None));
    }
    let mut pattern = pattern;
    while let Some((first, rest)) = pattern.split_once('/').filter(|(_, rest)| !rest.is_empty()) {
        let Some(folder) = below(&base, first) else { break };
        if !is_folder(&folder).await? {
            break;
        }
        (base, pattern) = (folder, rest);
    }
    Ok((base, Some(pattern)))
}

/// The byte offset of the text after the last `..` of a location.
fn behind_parents(text: &str) -> Option<usize> {
    if text.ends_with("/..") {
        return Some(text.len());
    }
    text.rfind("/../").map(|at| at + "/../".len())
}

/// The location at the path `names` below `base`; `None` where a name is not valid in a store.
fn below(base: &StoreLocation, names: &str) -> Option<StoreLocation> {
    let mut location = base.clone();
    // Parsed, not joined: `join` would escape characters of the names.
    location.path = Path::parse(format!("{}/{names}", base.path)).ok()?;
    if let Ok(mut segments) = location.url.path_segments_mut() {
        segments.pop_if_empty().extend(names.split('/'));
    }
    Some(location)
}

/// Splits a location at its first glob character: `data/2026-*/part-*.parquet` is the folder `data/` and a pattern
/// below it.
pub(super) fn split_glob(text: &str) -> Option<(&str, &str)> {
    let at = text.find(['*', '?', '['])?;
    let cut = text[..at].rfind('/').map_or(0, |slash| slash + 1);
    Some((if cut == 0 { "./" } else { &text[..cut] }, &text[cut..]))
}

/// Whether the location is a folder; its URL need not end with `/`.
///
/// # Errors
/// When the store fails or the bucket is missing. The next request would fail in the same way and take all its retries
/// too; or it would succeed, and a folder would count as a missing file.
pub(super) async fn is_folder(location: &StoreLocation) -> Result<bool> {
    if let Some(path) = location.local() {
        return Ok(path.is_dir());
    }
    if location.url.path().ends_with('/') {
        return Ok(true);
    }
    if location.is_web() {
        // A server that cannot list has no folders.
        return Ok(!is_file(location).await? && has_files(location).await.unwrap_or(false));
    }
    // The listing comes first: unlike the answer to HEAD, its error has a text that says what is wrong.
    Ok(has_files(location).await? && !is_file(location).await?)
}

/// Whether an object has the location's own path.
async fn is_file(location: &StoreLocation) -> Result<bool> {
    match location.store.head(&location.path).await {
        Ok(_) => Ok(true),
        // What is wrong with a local path is reported when its folder is listed.
        Err(e) if is_absent(&e) || location.local().is_some() => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Whether there are objects below the location. A client that may not list may still read a file.
async fn has_files(location: &StoreLocation) -> Result<bool> {
    match location.store.list(Some(&location.path)).try_next().await {
        Ok(first) => Ok(first.is_some()),
        Err(e) if is_absent(&e) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The folders that can hold files of a location.
pub(super) struct ReachableFolders {
    /// The folder parts of the pattern; `None` without a pattern, when every folder is within reach.
    folders: Option<Vec<Pattern>>,
}

impl ReachableFolders {
    pub(super) fn new(pattern: Option<&str>) -> Result<Self> {
        let folders = |pattern: &str| {
            let (folders, _) = pattern.rsplit_once('/').unwrap_or_default();
            let names = folders.split('/').filter(|name| !name.is_empty());
            names.map(Pattern::new).collect::<Result<Vec<_>, _>>()
        };
        let folders = pattern.map(folders).transpose().map_err(|e| {
            Error::spec(format!("not a pattern: {e}")).help("a pattern may hold *, ? and [a-z]")
        })?;
        Ok(Self { folders })
    }

    /// Whether a folder is within reach, given its path below the location, name by name.
    pub(super) fn contains<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> bool {
        let Some(folders) = &self.folders else { return true };
        for folder in folders {
            match names.next() {
                // `**` spans any number of folders.
                _ if folder.as_str() == "**" => return true,
                Some(name) if !folder.matches(name) => return false,
                Some(_) => {}
                None => return true,
            }
        }
        names.next().is_none()
    }

    /// Whether every folder is within reach.
    fn is_everything(&self) -> bool {
        self.folders.as_ref().is_none_or(|f| f.first().is_some_and(|name| name.as_str() == "**"))
    }
}

/// The largest number of folders of a store that are listed by themselves.
const MAX_LISTED_FOLDERS: usize = 64;

/// How many folders of a store are listed at the same time.
const LISTINGS_AT_ONCE: usize = 8;

/// Lists every file in the folder and in the subfolders that the pattern reaches.
///
/// # Why
/// On a local disk each folder has to be opened, and a folder outside the pattern may be endless or unreadable for this
/// user. An object store lists a thousand names a request, whatever folders they are in: below the first level, where
/// a pattern such as `s3://bucket/2026-*/` leaves out most of a bucket, a folder is listed whole.
pub(super) async fn files_in(
    location: &StoreLocation,
    reach: &ReachableFolders,
) -> object_store::Result<Vec<ObjectMeta>> {
    let whole = |folder: &Path| location.store.list(Some(folder)).try_collect::<Vec<_>>();
    if location.is_web() || reach.is_everything() {
        return whole(&location.path).await;
    }
    let (mut files, mut folders) = reached(location, reach, &location.path).await?;
    if location.local().is_none() {
        if folders.len() > MAX_LISTED_FOLDERS {
            return whole(&location.path).await;
        }
        let listings = stream::iter(&folders).map(whole).buffered(LISTINGS_AT_ONCE);
        files.extend(listings.try_concat().await?);
        return Ok(files);
    }
    while let Some(folder) = folders.pop() {
        let (more_files, more_folders) = reached(location, reach, &folder).await?;
        files.extend(more_files);
        folders.extend(more_folders);
    }
    Ok(files)
}

/// The files directly in a folder, and its subfolders that the pattern reaches.
async fn reached(
    location: &StoreLocation,
    reach: &ReachableFolders,
    folder: &Path,
) -> object_store::Result<(Vec<ObjectMeta>, Vec<Path>)> {
    let found = location.store.list_with_delimiter(Some(folder)).await?;
    let is_reached = |folder: &Path| {
        let names: Vec<_> = folder.prefix_match(&location.path).into_iter().flatten().collect();
        // The log folder of a table format shows that the files next to it belong to such a table.
        let is_log = |name: &str| TABLE_LOGS.iter().any(|(log, _)| *log == name);
        reach.contains(names.iter().map(AsRef::as_ref)) || folder.filename().is_some_and(is_log)
    };
    Ok((found.objects, found.common_prefixes.into_iter().filter(is_reached).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_is_cut_at_its_last_plain_folder() {
        assert_eq!(split_glob("s3://b/x/2026-*/p?.csv"), Some(("s3://b/x/", "2026-*/p?.csv")));
        assert_eq!(split_glob("*.csv"), Some(("./", "*.csv")));
        assert_eq!(split_glob("a/b.csv"), None);
    }

    #[test]
    fn a_pattern_reaches_the_folders_on_its_way() {
        let holds = |pattern: &str, folder: &str| {
            let names = folder.split('/').filter(|name| !name.is_empty());
            ReachableFolders::new(Some(pattern)).unwrap().contains(names)
        };
        assert!(holds("*.csv", "") && !holds("*.csv", "a"));
        assert!(holds("2026-*/x.csv", "2026-01") && !holds("2026-*/x.csv", "2025"));
        assert!(!holds("2026-*/x.csv", "2026-01/a") && holds("a/**/x.csv", "a/b/c"));
        assert!(!holds("a/**/x.csv", "b/c") && holds("**/x.csv", "b/c"));
        assert!(ReachableFolders::new(None).unwrap().contains(["a", "b"].into_iter()));
    }
}
