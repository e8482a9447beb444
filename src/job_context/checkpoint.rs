//! The checkpoint file of a long fit.
//!
//! # Why
//! Two processes may run one job at the same time. Each writes a temporary file and renames it into place, so that the
//! checkpoint is always complete, from the process that wrote last. The temporary files of killed processes are removed
//! when the job is resumed or committed. If that removes a file of a running process, the process writes it again.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::regular_file;

/// The suffix of temporary files.
const UNFINISHED: &str = ".unfinished";

/// How often a temporary file is written that another process removes.
const TRIES: usize = 3;

/// What is in the place of a checkpoint.
#[derive(Debug, PartialEq)]
pub(super) enum CheckpointFile {
    Absent,
    /// Empty, cut short or changed after it was written.
    Damaged,
    Whole(Vec<u8>),
}

/// The checkpoint that an interrupted run of the same job left.
pub(super) fn read(file: &Path) -> Result<CheckpointFile> {
    match regular_file::read(file, regular_file::STATE_BYTES) {
        Ok(mut bytes) => {
            let is_whole = unseal(&mut bytes);
            Ok(if is_whole { CheckpointFile::Whole(bytes) } else { CheckpointFile::Damaged })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(CheckpointFile::Absent),
        Err(e) => Err(failed(file, "read", &e)),
    }
}

/// Checks that a checkpoint can be saved here, so that a fit does not find out after its first epoch.
pub(super) fn check(file: &Path) -> Result<()> {
    unfinished(file).map(drop).map_err(|e| failed(file, "written", &e))
}

/// Replaces the checkpoint atomically: a process that is killed while it writes leaves the previous checkpoint.
pub(super) fn save(file: &Path, bytes: &[u8]) -> Result<()> {
    let mut saved = try_save(file, bytes);
    for _ in 1..TRIES {
        match &saved {
            Err(e) if e.kind() == io::ErrorKind::NotFound => saved = try_save(file, bytes),
            _ => break,
        }
    }
    saved.map_err(|e| failed(file, "written", &e))
}

fn try_save(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = unfinished(file)?;
    unfinished.write_all(bytes)?;
    unfinished.write_all(&Sha256::digest(bytes))?;
    unfinished.persist(file).map(drop).map_err(|e| e.error)
}

/// A new temporary file beside the checkpoint, which is removed unless it is renamed.
fn unfinished(file: &Path) -> io::Result<NamedTempFile> {
    let (folder, name) = folder_and_name(file);
    fs::create_dir_all(folder)?;
    let prefix = format!("{name}.");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(UNFINISHED);
    // The mode of any other new file: the umask applies.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Removes the checkpoints whose names satisfy `is_own`, with their temporary files. A file that cannot be removed does
/// no harm.
pub(crate) fn remove(folder: &Path, is_own: impl Fn(&str) -> bool) {
    remove_files(folder, |name| is_own(name) || is_unfinished(name, &is_own));
}

/// Removes the temporary files that killed processes left, of checkpoints whose names satisfy `is_own`. A file that
/// cannot be removed does no harm.
pub(crate) fn remove_unfinished(folder: &Path, is_own: impl Fn(&str) -> bool) {
    remove_files(folder, |name| is_unfinished(name, &is_own));
}

fn remove_files(folder: &Path, is_chosen: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(&is_chosen) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_unfinished(name: &str, is_own: impl Fn(&str) -> bool) -> bool {
    let checkpoint = name.strip_suffix(UNFINISHED).and_then(|name| name.rsplit_once('.'));
    checkpoint.is_some_and(|(name, random)| !random.is_empty() && is_own(name))
}

fn folder_and_name(file: &Path) -> (&Path, String) {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (folder.unwrap_or(Path::new(".")), name)
}

/// Removes the digest at the end of a checkpoint; `false` where it does not match the bytes before it, as after a power
/// loss.
fn unseal(bytes: &mut Vec<u8>) -> bool {
    let Some(length) = bytes.len().checked_sub(<Sha256 as Digest>::output_size()) else {
        return false;
    };
    let digest = bytes.split_off(length);
    digest == Sha256::digest(&bytes).as_slice()
}

/// The error of a checkpoint that cannot be `done`: read or written.
fn failed(file: &Path, done: &str, e: &io::Error) -> Error {
    let (folder, _) = folder_and_name(file);
    // A link that leads nowhere is in the folder's place too.
    let is_occupied = fs::symlink_metadata(folder).is_ok() && !folder.is_dir();
    let (reason, location) =
        if is_occupied { ("not a folder".to_owned(), folder) } else { (e.to_string(), file) };
    let failed = Error::of_folder(format!("the checkpoint cannot be {done}: {reason}"), e)
        .at(format!("engine.checkpoints: {}", location.display()))
        .help("give it a folder that can be written to, or leave engine.checkpoints out");
    Error::of_io(e, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_was_cut_short_anywhere_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state");
        assert_eq!(read(&file).unwrap(), CheckpointFile::Absent);
        save(&file, b"state").unwrap();
        assert_eq!(read(&file).unwrap(), CheckpointFile::Whole(b"state".to_vec()));
        let whole = fs::read(&file).unwrap();
        for end in 0..whole.len() {
            fs::write(&file, &whole[..end]).unwrap();
            assert_eq!(read(&file).unwrap(), CheckpointFile::Damaged, "cut at {end}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_pipe_in_the_place_of_a_checkpoint_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state");
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
    }

    #[test]
    fn a_file_in_place_of_the_folder_is_an_error_of_the_spec() {
        let folder = tempfile::tempdir().unwrap();
        let occupied = folder.path().join("state");
        fs::write(&occupied, "mine").unwrap();
        let inside = occupied.join("job.checkpoint");
        for error in [read(&inside).unwrap_err(), save(&inside, b"state").unwrap_err()] {
            assert_eq!(error.exit_code(), 2, "{error}");
            let location =
                format!(": not a folder\n  where: engine.checkpoints: {}\n", occupied.display());
            assert!(error.to_string().contains(&location), "{error}");
        }
        assert_eq!(fs::read(&occupied).unwrap(), b"mine");
    }

    #[test]
    fn a_folder_without_access_is_an_error_of_the_spec_and_a_full_disk_is_not() {
        use io::ErrorKind as Kind;
        for (kind, exit_code) in [
            (Kind::PermissionDenied, 2),
            (Kind::ReadOnlyFilesystem, 2),
            (Kind::StorageFull, 5),
            (Kind::TimedOut, 5),
        ] {
            let error = failed(Path::new("job.checkpoint"), "written", &kind.into());
            assert_eq!(error.exit_code(), exit_code, "{error}");
            assert!(error.to_string().contains("the checkpoint cannot be written: "), "{error}");
        }
    }

    #[test]
    fn a_check_creates_the_folder_and_leaves_nothing_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new");
        check(&new.join("job.checkpoint")).unwrap();
        assert_eq!(fs::read_dir(new).unwrap().count(), 0);
    }

    #[test]
    fn two_writers_of_one_checkpoint_are_in_nobody_s_way() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state");
        let states = [vec![1_u8; 10_000], vec![2; 20_000]];
        save(&file, &states[0]).unwrap();
        std::thread::scope(|scope| {
            for state in &states {
                let file = &file;
                scope.spawn(move || (0..300).for_each(|_| save(file, state).unwrap()));
            }
            for _ in 0..300 {
                let mut found = fs::read(&file).unwrap();
                assert!(unseal(&mut found) && states.contains(&found));
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_a_killed_process_was_writing_goes_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let kept = ["state", "state.unfinished", "state-1.a1B2c3.unfinished", "notes.txt"];
        save(&path("state"), b"state").unwrap();
        for name in &kept[1..] {
            fs::write(path(name), "mine").unwrap();
        }
        fs::write(path("state.a1B2c3.unfinished"), "cut sh").unwrap();
        remove_unfinished(folder.path(), |name| name == "state");
        assert_eq!(read(&path("state")).unwrap(), CheckpointFile::Whole(b"state".to_vec()));
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let mut kept = kept.to_vec();
        kept.sort_unstable();
        assert_eq!(left, kept);
    }
}
