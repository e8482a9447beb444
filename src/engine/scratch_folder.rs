//! The folder of scratch files. They have no name in it, so that the system frees them when the process ends, however it
//! ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::EngineSpec;
use crate::error::Error;

/// The folder of scratch files, which is created when the first one is; `None` for the system's temporary folder.
#[derive(Debug, Clone, Default)]
pub struct ScratchFolder(pub Option<PathBuf>);

impl ScratchFolder {
    /// The folder that an engine names.
    #[must_use]
    pub fn of_engine(engine: &EngineSpec) -> Self {
        Self(engine.scratch.as_ref().map(PathBuf::from))
    }

    /// A new file without a name.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.0.as_deref().map_or_else(tempfile::tempfile, scratch_file)
    }

    /// The error of a file of such `contents` that cannot be written or mapped.
    pub(crate) fn failed(&self, e: &io::Error, contents: &str) -> Error {
        let folder = self.0.clone().unwrap_or_else(std::env::temp_dir);
        let failed = Error::store(format!("the scratch file fails: {e}"))
            .at(format!("engine.scratch: {}", folder.display()))
            .help(format!("{contents} are kept there: give it room"));
        Error::of_io(e, failed)
    }
}

/// A file without a name in the folder, which is created where it does not exist.
pub(super) fn scratch_file(folder: &Path) -> io::Result<File> {
    match tempfile::tempfile_in(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)
        }
        file => file,
    }
}
