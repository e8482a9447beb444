//! Lists the files of a source URL. No file is silently left out.
//!
//! ```text
//! data/crowd.csv           the file
//! data/                    every file in the folder and in those below it
//! s3://b/x/2026-*/p?.csv   the files below `s3://b/x/` whose paths fit the pattern
//! ```
//! Files and folders whose names begin with `_` or `.` are hidden files of other tools (`_SUCCESS`, `.part.crc`,
//! `_temporary/`). They are no data, unless a pattern spells that character: `_*.csv`. Any other file of a folder is
//! read, or an error names it.

pub(super) mod format;
pub(super) mod nested;
pub(super) mod pattern;
pub(super) mod pinned;
pub(super) mod published;
pub(super) mod unread;

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::error::{Error, Result, nearest, offenders};
use crate::job_context::JobContext;
use crate::store::{StoreLocation, StoreSpec, is_temporary, shown};
use format::{Encoding, Format, help_for};
use pattern::{ReachableFolders, files_in, is_folder, located, split_glob};
use published::{PublishedTables, TableSearch};
use unread::{
    empty, no_listing, of_other_formats, refuse_circles, refuse_part_of_a_table, refuse_special,
    refuse_table_formats, refuse_unlisted, refuse_unrecognised, warn_of_empty,
};

/// The files of a source URL.
#[derive(Debug, Clone)]
pub struct Files {
    /// The store, and the file or folder that the URL names.
    pub location: StoreLocation,
    /// The format of all files.
    pub format: Format,
    /// The files as they were listed, in the order of their paths.
    pub objects: Vec<ObjectMeta>,
}

impl Files {
    /// Lists the files at `text`: a file, a folder, or a pattern. `format` is `source.format`, where it is set. Warns of
    /// files that hold no rows or are left out.
    ///
    /// # Errors
    /// When there is no file, when files of the folder would stay unread, when all are empty, and when the store
    /// cannot be reached.
    pub async fn list(
        text: &str,
        format: Option<Format>,
        stores: &StoreSpec,
        runs: &dyn PublishedTables,
        job: &mut JobContext,
    ) -> Result<Self> {
        let (location, pattern) = located(text, stores).await?;
        // `**` at the end of a pattern stands for every file below.
        let pattern = pattern.map(|pattern| match pattern {
            "**" => Cow::Borrowed("**/*"),
            _ if pattern.ends_with("/**") => Cow::Owned(format!("{pattern}/*")),
            _ => Cow::Borrowed(pattern),
        });
        let pattern = pattern.as_deref();
        if let Some(file) = location.local().filter(|_| pattern.is_none()) {
            refuse_special(&file)?;
        }
        let is_folder = pattern.is_some() || is_folder(&location).await?;
        let reach = ReachableFolders::new(pattern)?;
        if let Some(folder) = location.local().filter(|_| is_folder) {
            refuse_circles(&folder, &reach)?;
        }
        let all = objects(&location, is_folder.then_some(&reach)).await?;
        if is_folder {
            refuse_part_of_a_table(&location).await?;
        }
        let (meant, format) = if is_folder {
            of_folder(&all, &location, (pattern, &reach), format, job)?
        } else {
            let encoding_of = all.iter().find_map(encoding_of);
            (all.clone(), format.or(encoding_of.map(|(_, encoding)| encoding.format)))
        };
        if meant.is_empty() {
            if let Some(pattern) = pattern {
                // The error also suggests names that the pattern does not reach.
                let near = location.store.list(Some(&location.path)).take(MAX_SUGGESTED);
                let mut near: Vec<ObjectMeta> = near.try_collect().await.unwrap_or(all);
                near.sort_by(|a, b| a.location.cmp(&b.location));
                if !near.is_empty() {
                    return Err(no_match(pattern, &near));
                }
            }
            // No table has a pattern for its name.
            let is_name = pattern.is_none_or(|pattern| split_glob(pattern).is_none());
            let mut found = nothing_there(&location);
            if is_name {
                match runs.find(text, stores).await? {
                    TableSearch::Found(location, objects) => {
                        return Ok(Self { location, format: Format::Parquet, objects });
                    }
                    TableSearch::Missing => {}
                    TableSearch::Denied(denial) => found = format!("{found}; {denial}"),
                }
            }
            return Err(Error::no_input("there is no such file, or nothing in that folder")
                .found(found)
                .help("check the path; a folder is read whole, a pattern may hold * and ?"));
        }
        if meant.iter().all(|o| o.size == 0) {
            return Err(empty());
        }
        warn_of_empty(&location, &meant, job);
        let format = format.ok_or_else(|| {
            Error::data("the file name does not show the format")
                .found(offenders(meant.iter().map(|o| shown(&location.url, &o.location))))
                .help(help_for(meant.iter().filter_map(|o| o.location.filename())))
        })?;
        Ok(Self { location, format, objects: meant })
    }

    /// The size of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|o| o.size).sum()
    }
}

/// The most files that are listed for the error of a pattern: a store's bucket may have millions.
const MAX_SUGGESTED: usize = 1000;

/// The error for a pattern that matches no file, given the first of the files there.
fn no_match(pattern: &str, near: &[ObjectMeta]) -> Error {
    let names = near.iter().filter_map(|o| o.location.filename());
    let first = if near.len() < MAX_SUGGESTED { "" } else { "first " };
    let count = near.len();
    Error::no_input(format!("the pattern `{pattern}` matches none of the {first}{count} files there"))
        .found(offenders(names))
        .help(
            "a * or ? stays within one folder, ** goes over several, and a name that begins with _ or . is matched by \
             a pattern that begins so too",
        )
}

/// The file at the location or, with `reach`, every file of the folder that is within reach.
async fn objects(
    location: &StoreLocation,
    reach: Option<&ReachableFolders>,
) -> Result<Vec<ObjectMeta>> {
    let found = if let Some(reach) = reach {
        files_in(location, reach).await
    } else {
        location.store.head(&location.path).await.map(|object| vec![object])
    };
    match found {
        Ok(mut objects) => {
            objects.sort_by(|a, b| a.location.cmp(&b.location));
            if let Some(object) = objects.iter().find(|o| has_no_version(o)) {
                return Err(Error::data("the server reports no version of a file")
                    .at(shown(&location.url, &object.location))
                    .found("neither an ETag nor a Last-Modified header: a change would not be seen")
                    .help("let the server send one of them, or download the file"));
            }
            Ok(objects)
        }
        Err(e) if reach.is_some() && location.is_web() && !is_temporary(&e) => Err(no_listing(&e)),
        Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
        Err(e) => Err(e.into()),
    }
}

/// Whether nothing distinguishes this object from a later one of the same size; a store that knows no time gives the
/// epoch.
fn has_no_version(object: &ObjectMeta) -> bool {
    object.e_tag.is_none() && object.version.is_none() && object.last_modified.timestamp() == 0
}

/// Selects the files of a folder that are to be read, and their one format.
fn of_folder(
    all: &[ObjectMeta],
    location: &StoreLocation,
    (pattern, reach): (Option<&str>, &ReachableFolders),
    given: Option<Format>,
    job: &mut JobContext,
) -> Result<(Vec<ObjectMeta>, Option<Format>)> {
    let folder = &location.path;
    let pattern = pattern.map(Pattern::new).transpose().map_err(|e| {
        Error::spec(format!("not a pattern: {e}")).help("a pattern may hold *, ? and [a-z]")
    })?;
    let is_meant =
        |below: &str| pattern.as_ref().is_none_or(|p| p.matches_with(below, ONE_FOLDER_A_STAR));
    if let Some(folder) = location.local() {
        refuse_unlisted(&folder, reach, is_meant, |name| is_hidden(name, pattern.as_ref()))?;
    }
    let fits = |object: &&ObjectMeta| is_meant(&below(object, folder).join("/"));
    let is_hidden = |object: &&ObjectMeta| {
        below(object, folder).iter().any(|name| is_hidden(name, pattern.as_ref()))
    };
    let (hidden, meant): (Vec<&ObjectMeta>, Vec<&ObjectMeta>) =
        all.iter().filter(fits).partition(is_hidden);
    refuse_table_formats(location, all, &meant)?;
    warn_of_hidden(&hidden, job);
    let of_format = |format: Format| -> Vec<ObjectMeta> {
        let is_of = |o: &&&ObjectMeta| encoding_of(o).is_some_and(|(_, e)| e.format == format);
        meant.iter().filter(is_of).map(|o| (*o).clone()).collect()
    };
    // An object of 0 bytes, such as the marker that some consoles create for a folder, holds no rows.
    let unrecognised: Vec<ObjectMeta> = meant
        .iter()
        .filter(|o| encoding_of(o).is_none() && o.size > 0)
        .map(|o| (*o).clone())
        .collect();
    if let Some(format) = given {
        let named = of_format(format);
        let is_other = |o: &&&ObjectMeta| encoding_of(o).is_some_and(|(_, e)| e.format != format);
        let others: Vec<&ObjectMeta> = meant.iter().filter(is_other).copied().collect();
        if !others.is_empty() {
            of_other_formats(format, &others, named.is_empty(), job)?;
        }
        if named.is_empty() {
            return Ok((unrecognised, given));
        }
        refuse_unrecognised(&unrecognised)?;
        return Ok((named, given));
    }
    let names: Vec<(&str, Encoding)> = meant.iter().filter_map(|o| encoding_of(o)).collect();
    let Some((_, first)) = names.first() else { return Ok((unrecognised, None)) };
    if names.iter().any(|(_, encoding)| encoding.format != first.format) {
        let extensions: BTreeSet<&str> = names.iter().map(|(extension, _)| *extension).collect();
        return Err(Error::data("the folder holds files of several formats")
            .found(offenders(extensions))
            .help("name one by a pattern, such as folder/*.parquet, or a table of a published run, such as folder/labels; in a pipeline, source.format can choose too"));
    }
    refuse_unrecognised(&unrecognised)?;
    Ok((of_format(first.format), Some(first.format)))
}

/// The path of the object below `folder`, name by name.
fn below(object: &ObjectMeta, folder: &Path) -> Vec<String> {
    let parts = object.location.prefix_match(folder).into_iter().flatten();
    parts.map(|part| part.as_ref().to_owned()).collect()
}

/// Whether the name is one of a hidden file, and no part of the pattern spells its first character.
fn is_hidden(name: &str, pattern: Option<&Pattern>) -> bool {
    let spells = |part: &str| {
        part.starts_with(['_', '.']) && Pattern::new(part).is_ok_and(|part| part.matches(name))
    };
    name.starts_with(['_', '.']) && !pattern.is_some_and(|p| p.as_str().split('/').any(spells))
}

/// Warns where a hidden file, which is left out, has the name of a file with rows.
fn warn_of_hidden(hidden: &[&ObjectMeta], job: &mut JobContext) {
    let like_rows: Vec<&str> = hidden
        .iter()
        .filter(|o| o.size > 0)
        .filter_map(|o| encoding_of(o).and(o.location.filename()))
        .collect();
    if !like_rows.is_empty() {
        job.warn(format!(
            "files whose names, or whose folders' names, begin with _ or . are not read (a pattern such as _* names \
             them): {}",
            offenders(like_rows)
        ));
    } else if !hidden.is_empty() {
        tracing::info!(files = hidden.len(), "hidden files of other tools are not read");
    }
}

/// The encoding that the object's name implies, with its extension.
fn encoding_of(object: &ObjectMeta) -> Option<(&str, Encoding)> {
    Encoding::of_name(object.location.filename()?)
}

/// As in a shell, `*` ends at a slash.
const ONE_FOLDER_A_STAR: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// An empty folder, or the name of the file next to it that the user most likely meant.
fn nothing_there(location: &StoreLocation) -> String {
    let Some(path) = location.local() else { return "nothing".to_owned() };
    if path.is_dir() {
        return "a folder without files to read".to_owned();
    }
    let neighbour = || {
        let entries = std::fs::read_dir(path.parent()?).ok()?;
        let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
        let names: Vec<String> = names.collect();
        nearest(path.file_name()?.to_str()?, names.iter().map(String::as_str)).map(str::to_owned)
    };
    neighbour().map_or("nothing".to_owned(), |name| format!("a file `{name}` beside it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_data_where_the_pattern_spells_it() {
        let is_hidden =
            |name, pattern: &str| is_hidden(name, Some(&Pattern::new(pattern).unwrap()));
        assert!(is_hidden("_x.csv", "*.csv") && is_hidden(".x.csv", "?x.csv"));
        assert!(!is_hidden("_x.csv", "_*.csv") && !is_hidden(".x", "a/.*/b"));
        assert!(is_hidden("_y", "_x*") && !is_hidden("x", "_x"));
    }
}
