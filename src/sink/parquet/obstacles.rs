//! What somebody else put where a run is published: an error that names it, before anything is written.

use std::fs;
use std::io;
use std::path::Path as FilePath;

use object_store::path::Path;

use super::latest::LOCK;
use super::place::ParquetSink;
use super::sweep::is_attempt;
use crate::error::{Error, Result};

impl ParquetSink {
    /// The error where a file or folder of somebody else has the name of a file of ours. `what` says what it should
    /// have been.
    pub(super) fn in_the_way(&self, path: &Path, what: &str) -> Error {
        obstacle(&format!("a file that is not {what} is in the way"), &self.text(path))
    }

    /// On local disk, nothing of another kind may have the name of a folder, of a lock or of a link of ours.
    pub(super) fn refuse_what_is_in_the_way(&self, run_id: &str) -> Result<()> {
        let Some(root) = self.place.local() else { return Ok(()) };
        let run = root.join("runs").join(run_id);
        for folder in run.ancestors().chain([root.join("_leases").as_path()]) {
            if let Some(found) = in_place_of_a_folder(folder) {
                return Err(
                    obstacle("a folder is needed here", &folder.display().to_string()).found(found)
                );
            }
        }
        let lock = root.join("_leases").join(LOCK);
        if lock.is_dir() {
            return Err(
                obstacle("a file is needed here", &lock.display().to_string()).found("a folder")
            );
        }
        let Some(found) = in_place_of_the_link(&root) else { return Ok(()) };
        let what = "what labelmill did not write is where the link `latest` belongs";
        Err(obstacle(what, &format!("sink.url: {}/latest", self.url())).found(found))
    }
}

fn obstacle(what: &str, place: &str) -> Error {
    Error::spec(what).at(place).help(
        "labelmill did not write it and leaves it alone: move it away, or choose another sink.url",
    )
}

/// What is there instead of a folder; `None` where there is one, or nothing.
fn in_place_of_a_folder(path: &FilePath) -> Option<&'static str> {
    match fs::metadata(path) {
        Ok(found) => (!found.is_dir()).then_some("a file"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let is_link = fs::symlink_metadata(path).is_ok();
            is_link.then_some("a link that leads nowhere")
        }
        // A file further up: its own turn comes.
        Err(_) => None,
    }
}

/// What is there instead of the link `latest`; `None` where it is there, or nothing.
fn in_place_of_the_link(root: &FilePath) -> Option<&'static str> {
    let link = root.join("latest");
    let found = fs::symlink_metadata(&link).ok()?;
    if !found.is_symlink() {
        return Some(if found.is_dir() { "a folder" } else { "a file" });
    }
    let target = fs::read_link(&link).ok();
    let is_ours = target.is_some_and(|target| leads_to_a_run(root, &target));
    (!is_ours).then_some("a link that leads elsewhere")
}

/// Whether a link leads to the files of an attempt, or to a run that an older version wrote.
fn leads_to_a_run(root: &FilePath, target: &FilePath) -> bool {
    let parts: Vec<&str> = target.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        ["runs", _, attempt] => is_attempt(attempt),
        ["runs", _] => root.join(target).join("manifest.json").is_file(),
        _ => false,
    }
}
