//! The folder of scratch files. They have no name in it, so that the system frees them when the process ends, however it
//! ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The folder of scratch files, which is created when the first one is; `None` for the system's temporary folder.
#[derive(Debug, Clone, Default)]
pub struct ScratchFolder(pub Option<PathBuf>);

impl ScratchFolder {
    pub(super) fn path(&self) -> PathBuf {
        self.0.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Checks that the folder can be written to or, where it does not exist, that its parent can. No folder is created:
    /// commands that write nothing check it too.
    ///
    /// # Errors
    /// When the system refuses to write there.
    pub(super) fn check(&self) -> io::Result<()> {
        let folder = self.path();
        // A link that leads nowhere is in the way of a folder.
        if folder.exists() || folder.is_symlink() {
            return tempfile::tempfile_in(folder).map(drop);
        }
        // The parent of a single name is empty.
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        tempfile::tempfile_in(parent.unwrap_or(Path::new("."))).map(drop)
    }

    /// A new file without a name.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn file(&self) -> io::Result<File> {
        let folder = self.path();
        match tempfile::tempfile_in(&folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(&folder)?;
                tempfile::tempfile_in(folder)
            }
            file => file,
        }
    }

    /// The error of a file of such `contents` that cannot be written or mapped.
    pub(crate) fn failed(&self, e: &io::Error, contents: &str) -> Error {
        let failed = Error::store(format!("the scratch file fails: {e}"))
            .at(format!("engine.scratch: {}", self.path().display()))
            .help(format!("{contents} are kept there: give it room"));
        Error::of_io(e, failed)
    }
}
