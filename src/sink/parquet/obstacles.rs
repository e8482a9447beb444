//! Finds files of someone else where labelmill needs its own, and reports them before anything is written.

use std::fs;
use std::io;
use std::path::Path as FilePath;

use object_store::path::Path;

use super::parquet_sink::{LATEST_LINK, LOCK, ParquetSink, is_attempt, through_latest};
use crate::error::{Error, Result};

impl ParquetSink {
    /// The error for a file or folder of someone else that has the name of one of our files. `what` describes the
    /// expected file.
    pub(super) fn obstacle_error(&self, path: &Path, what: &str) -> Error {
        obstacle(&format!("a file that is not {what} is in the way"), &self.text(path))
    }

    /// On local disk, fails if something of another kind has the name of one of our folders or links, or of the lock
    /// file.
    pub(super) fn check_obstacles(&self, run_id: &str) -> Result<()> {
        let Some(root) = self.location.local() else { return Ok(()) };
        let run = root.join("runs").join(run_id);
        for folder in run.ancestors().chain([root.join("_leases").as_path()]) {
            if let Some(found) = describe_obstacle_to_folder(folder) {
                return Err(
                    obstacle("a folder is needed here", &folder.display().to_string()).found(found)
                );
            }
        }
        let lock = root.join("_leases").join(LOCK);
        if let Some(found) = fs::metadata(&lock).ok().filter(|found| !found.is_file()) {
            let found = if found.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
            return Err(obstacle("a file is needed here", &lock.display().to_string()).found(found));
        }
        for link in ["latest", "latest.json", LATEST_LINK] {
            if let Some(found) = describe_obstacle_to_link(&root, link) {
                let what =
                    format!("what labelmill did not write is where the link `{link}` belongs");
                return Err(
                    obstacle(&what, &format!("sink.url: {}/{link}", self.url())).found(found)
                );
            }
        }
        Ok(())
    }
}

fn obstacle(what: &str, location: &str) -> Error {
    Error::spec(what).at(location).help(
        "labelmill did not write it and leaves it alone: move it away, or publish to another folder",
    )
}

/// Describes what is at `path` instead of a folder; `None` if there is a folder or nothing.
fn describe_obstacle_to_folder(path: &FilePath) -> Option<&'static str> {
    match fs::metadata(path) {
        Ok(found) => (!found.is_dir()).then_some("a file"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let is_link = fs::symlink_metadata(path).is_ok();
            is_link.then_some("a link that leads nowhere")
        }
        // A parent is a file: the caller checks the parents too.
        Err(_) => None,
    }
}

/// Describes what is there instead of one of our links; `None` if there is the link or nothing. `latest.json` may also
/// be a file, whose content is checked when it is read.
pub(super) fn describe_obstacle_to_link(root: &FilePath, name: &str) -> Option<&'static str> {
    let link = root.join(name);
    let found = fs::symlink_metadata(&link).ok()?;
    let is_pointer = name == "latest.json";
    if !found.is_symlink() {
        let what = if found.is_dir() { "a folder" } else { "a file" };
        return (!is_pointer).then_some(what);
    }
    let is_ours = fs::read_link(&link).is_ok_and(|target| {
        let is_of_pointer = target == through_latest();
        match name {
            "latest.json" => is_of_pointer,
            LATEST_LINK => is_of_pointer || leads_to_a_run(root, &target),
            _ => leads_to_a_run(root, &target),
        }
    });
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
