//! The checkpoint files of one job.

use std::path::PathBuf;

use super::PipelineSpec;
use crate::run::checkpoint::remove_unfinished;

/// The checkpoint files of one job: for each question one, and one more for its calibration. They are removed when the
/// job is committed.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    folder: Option<PathBuf>,
    /// The prefix of every file's name.
    job: String,
    files: Vec<PathBuf>,
}

impl Checkpoints {
    /// The files of the job with this digest. Removes unfinished files that a killed process left.
    pub(super) fn of(spec: &PipelineSpec, digest: &str) -> Self {
        let folder = spec.engine.checkpoints.as_ref().map(PathBuf::from);
        let all = Self { folder, job: digest[..16].to_owned(), files: Vec::new() };
        all.remove_unfinished();
        all
    }

    /// The next file; `None` where no folder is set.
    pub(super) fn next(&mut self) -> Option<PathBuf> {
        let name = format!("{}-{}.checkpoint", self.job, self.files.len());
        let file = self.folder.as_ref()?.join(name);
        self.files.push(file.clone());
        Some(file)
    }

    /// Removes the files of a committed job. A file that cannot be removed does no harm.
    pub(super) fn remove(&self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        self.remove_unfinished();
    }

    fn remove_unfinished(&self) {
        let is_own = |name: &str| {
            let number =
                || name.strip_prefix(&self.job)?.strip_prefix('-')?.strip_suffix(".checkpoint");
            number().is_some_and(|number| number.parse::<usize>().is_ok())
        };
        if let Some(folder) = self.folder.as_ref().filter(|_| !self.job.is_empty()) {
            remove_unfinished(folder, is_own);
        }
    }
}
