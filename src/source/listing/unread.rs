//! Refuses folders with files or columns that would silently stay unread.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::DirEntry;
use std::path::{Path as FilePath, PathBuf};

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::format::{Format, TABLE_LOGS};
use super::pattern::ReachableFolders;
use crate::error::{Error, Result, offenders};
use crate::job_context::JobContext;
use crate::store::{StoreLocation, is_absent, shown};

/// Refuses files that cannot be read as rows, which would silently be left out.
pub(super) fn refuse_unrecognised(unrecognised: &[ObjectMeta]) -> Result<()> {
    if unrecognised.is_empty() {
        return Ok(());
    }
    Err(Error::data("the folder holds files that cannot be read as rows")
        .found(offenders(unrecognised.iter().map(|o| o.location.filename().unwrap_or_default())))
        .help("name those to read by a pattern, such as folder/*.csv, or move the others away; unpack archives, and save \
               spreadsheets as CSV"))
}

/// Warns of files whose names imply another format than `source.format`, which are not read. It is an error where no
/// file of the folder has the format.
pub(super) fn of_other_formats(
    format: Format,
    others: &[&ObjectMeta],
    are_all: bool,
    job: &mut JobContext,
) -> Result<()> {
    let names = offenders(others.iter().map(|o| o.location.filename().unwrap_or_default()));
    if are_all {
        let format = format!("{format:?}").to_lowercase();
        return Err(Error::data("no file of the folder has the format that is asked for")
            .found(format!("{names}, while source.format is {format}"))
            .help("leave source.format out, or name the files by a pattern or one by one"));
    }
    job.warn(format!("files of another format than source.format are not read: {names}"));
    Ok(())
}

pub(super) fn refuse_table_formats(
    location: &StoreLocation,
    all: &[ObjectMeta],
    meant: &[&ObjectMeta],
) -> Result<()> {
    for object in all {
        let parts: Vec<String> = object.location.parts().map(|p| p.as_ref().to_owned()).collect();
        for (log, format) in TABLE_LOGS {
            let Some(at) = parts.iter().position(|part| part == log) else { continue };
            let table = Path::parse(parts[..at].join("/")).unwrap_or_default();
            if meant.iter().any(|o| o.location.prefix_matches(&table)) {
                return Err(is_a_table(location, &table, log, format));
            }
        }
    }
    Ok(())
}

/// Refuses a folder inside a Delta or Hudi table, such as a partition: the table may have deleted rows of its files.
/// A folder above that this client may not list is passed over; a store that fails is an error.
pub(super) async fn refuse_part_of_a_table(location: &StoreLocation) -> Result<()> {
    let mut above = location.path.clone();
    while let Some(parent) = parent(&above) {
        for (log, format) in TABLE_LOGS {
            let log_path = parent.clone().join(log);
            match location.store.list(Some(&log_path)).try_next().await {
                Ok(None) => {}
                Ok(Some(_)) => return Err(is_a_table(location, &parent, log, format)),
                Err(e) if is_absent(&e) || location.is_web() || location.local().is_some() => {}
                Err(e) => return Err(e.into()),
            }
        }
        above = parent;
    }
    Ok(())
}

fn parent(path: &Path) -> Option<Path> {
    let parts: Vec<_> = path.parts().collect();
    let (_, above) = parts.split_last()?;
    Some(above.iter().cloned().collect())
}

fn is_a_table(location: &StoreLocation, table: &Path, log: &str, format: &str) -> Error {
    let log = shown(&location.url, &table.clone().join(log));
    Error::data(format!("the folder is a {format} table, or a part of one"))
        .found(format!("`{log}`: its files alone also hold rows that were deleted"))
        .help(
            "labelmill does not read this table format: export the table's current rows as Parquet files to a folder of \
             their own, and name that one",
        )
}

/// Refuses folders with names such as `role=holdout`, whose column the files lack: the column would not be read. They lie
/// below the folder, or are the folder itself and those directly above it with such names: these have one value, which a
/// query on the relation can add.
pub(in crate::source) fn refuse_columns_of_folders<'a>(
    folder: &StoreLocation,
    objects: &[ObjectMeta],
    lacking: impl Iterator<Item = &'a str>,
    has_query: bool,
) -> Result<()> {
    let lacking: Vec<&str> = lacking.collect();
    for object in objects {
        let parts: Vec<_> = object.location.parts().collect();
        let below = object.location.prefix_match(&folder.path).map_or(0, Iterator::count);
        // The last part of the location of a single file is the file.
        let above = parts[..parts.len().saturating_sub(below.max(1))].iter().rev();
        let above = above.take_while(|part| !has_query && part.as_ref().contains('='));
        let mut names = parts[parts.len() - below..].iter().chain(above);
        let found = names.find_map(|part| {
            let (name, value) = part.as_ref().split_once('=')?;
            lacking.contains(&name).then(|| format!("{name}={value}"))
        });
        if let Some(name) = found {
            return Err(Error::data("a folder's name holds a column that its files lack")
                .found(format!("`{name}` in `{}`", shown(&folder.url, &object.location)))
                .help(
                    "write the column into the files; or add it in source.sql, where each of several folders needs a name of \
                     its own under source.tables",
                ));
        }
    }
    Ok(())
}

/// Refuses files of a local folder that the object store does not list: names that end in `#` and a number, which it
/// gives to unfinished uploads; broken links; and pipes, sockets and devices. `is_meant` is given the path
/// of a file below the folder and decides whether it is to be read; names that are `is_hidden` are skipped.
pub(super) fn refuse_unlisted(
    folder: &FilePath,
    reach: &ReachableFolders,
    is_meant: impl Fn(&str) -> bool,
    is_hidden: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut folders = vec![(folder.to_path_buf(), String::new())];
    while let Some((next, below)) = folders.pop() {
        for entry in entries_of(&next)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
            let Ok(kind) = entry.file_type() else { continue };
            if is_hidden(&name) {
                continue;
            }
            let below = format!("{below}{name}");
            // Links to folders are followed, as the store follows them.
            if kind.is_dir() || kind.is_symlink() && entry.path().is_dir() {
                if reach.contains(below.split('/')) {
                    folders.push((entry.path(), below + "/"));
                }
                continue;
            }
            if !is_meant(&below) {
                continue;
            }
            let found = match is_plain(&entry.path()) {
                Err(found) => found,
                Ok(()) if name.rsplit_once('#').is_some_and(|(_, n)| is_number(n)) => {
                    "a name that ends in # and a number, as files on their way do"
                }
                Ok(()) => continue,
            };
            return Err(Error::data("the folder holds a file that is not listed")
                .at(entry.path().display().to_string())
                .found(found)
                .help("rename it, or move it away"));
        }
    }
    Ok(())
}

/// Refuses a link to a folder that contains it, with which a listing would never end.
pub(super) fn refuse_circles(folder: &FilePath, reach: &ReachableFolders) -> Result<()> {
    let mut walk = Walk { reach, root: folder, above: Vec::new(), ended: HashSet::new() };
    walk.enter(folder)
}

/// A depth-first walk that visits each folder once, however many links lead to it.
struct Walk<'a> {
    reach: &'a ReachableFolders,
    root: &'a FilePath,
    /// The canonical paths of the folders from the root to the current one.
    above: Vec<PathBuf>,
    /// Folders known to contain no cycle, with their depth below the root, because the reach of a pattern depends on
    /// it.
    ended: HashSet<(PathBuf, usize)>,
}

impl Walk<'_> {
    fn enter(&mut self, folder: &FilePath) -> Result<()> {
        let below = folder.strip_prefix(self.root).unwrap_or(folder);
        let names: Vec<_> = below.iter().map(OsStr::to_string_lossy).collect();
        let Ok(real) = folder.canonicalize() else { return Ok(()) };
        let known = (real, names.len());
        if !self.reach.contains(names.iter().map(AsRef::as_ref)) || self.ended.contains(&known) {
            return Ok(());
        }
        if self.above.iter().any(|above| above.starts_with(&known.0)) {
            return Err(Error::data("a link leads back to a folder above it")
                .at(folder.display().to_string())
                .found(format!("a link to `{}`", known.0.display()))
                .help("remove it, or name the files by a pattern of another folder"));
        }
        self.above.push(known.0.clone());
        for entry in entries_of(folder)? {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() || kind.is_symlink() && path.is_dir() {
                self.enter(&path)?;
            }
        }
        self.above.pop();
        self.ended.insert(known);
        Ok(())
    }
}

/// What is in a folder; nothing if it cannot be listed for another reason than a lack of memory or files: the store,
/// which lists it too, reports that.
fn entries_of(folder: &FilePath) -> Result<Vec<DirEntry>> {
    match std::fs::read_dir(folder).and_then(Iterator::collect) {
        Ok(entries) => Ok(entries),
        Err(e) => match Error::if_exhausted(&e.to_string()) {
            Some(exhausted) => Err(exhausted.at(folder.display().to_string())),
            None => Ok(Vec::new()),
        },
    }
}

/// Refuses a pipe, a socket or a device, which has no size to list and no end.
pub(super) fn refuse_special(file: &FilePath) -> Result<()> {
    match is_plain(file) {
        Err(found) if file.exists() => Err(Error::data("a source is a file or a folder")
            .at(file.display().to_string())
            .found(found)
            .help("write the rows to a file, and name that one")),
        _ => Ok(()),
    }
}

/// Checks that the path is a file or a folder; the error says what it is instead.
fn is_plain(path: &FilePath) -> Result<(), &'static str> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => Ok(()),
        Ok(_) => Err("a pipe, a socket or a device"),
        Err(_) => Err("a link that leads nowhere"),
    }
}

/// The error for a source of 0 bytes.
pub(in crate::source) fn empty() -> Error {
    Error::no_input("the file is empty: 0 bytes")
        .help("an empty table still has a header or a schema; was the upload cut short?")
}

/// The error for a folder of a web server: without a listing, a server may answer a request for one with any status.
pub(super) fn no_listing(error: &object_store::Error) -> Error {
    let text = error.to_string();
    Error::spec("a web server has no listing of its files")
        .found(text.lines().next().unwrap_or_default())
        .help("name each file by a table of its own and join them in source.sql, or download the folder")
}

/// Warns of files of 0 bytes: some tools write them, but an interrupted upload leaves them too.
pub(super) fn warn_of_empty(location: &StoreLocation, meant: &[ObjectMeta], job: &mut JobContext) {
    let empty = meant.iter().filter(|o| o.size == 0);
    let empty: Vec<String> = empty.map(|o| shown(&location.url, &o.location)).collect();
    if !empty.is_empty() {
        job.warn(format!("files of the folder are empty (0 bytes): {}", offenders(empty)));
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn the_names_of_files_of_another_format_are_shown_as_they_are() {
        let file = ObjectMeta {
            location: Path::from("crowd/Answers.CSV"),
            last_modified: DateTime::UNIX_EPOCH,
            size: 1,
            e_tag: None,
            version: None,
        };
        let error = of_other_formats(Format::Parquet, &[&file], true, &mut JobContext::new(0));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`Answers.CSV`, while source.format is parquet\n"), "{error}");
    }
}
