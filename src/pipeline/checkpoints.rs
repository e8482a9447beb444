//! Where the fits of one job keep their state.

use std::path::PathBuf;

use super::PipelineSpec;
use crate::run::checkpoint::remove_unfinished;

/// Where the fits of one job keep their state, one file a question; gone when the job is committed.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    /// What every file's path begins with.
    stem: Option<String>,
    files: Vec<PathBuf>,
}

impl Checkpoints {
    pub(super) fn of(spec: &PipelineSpec, digest: &str) -> Self {
        let folder = spec.engine.checkpoints.as_deref();
        let stem = folder.map(|f| format!("{}/{}", f.trim_end_matches('/'), &digest[..16]));
        Self { stem, files: Vec::new() }
    }

    /// The file of the next question.
    pub(super) fn next(&mut self) -> Option<PathBuf> {
        let stem = self.stem.as_ref()?;
        let file = PathBuf::from(format!("{stem}-{}.checkpoint", self.files.len()));
        self.files.push(file.clone());
        Some(file)
    }

    /// Removes the files of a job that is committed. One that cannot be removed harms nothing.
    pub(super) fn remove(&self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
            remove_unfinished(file);
        }
    }
}
