//! Where the fits of one job keep their state.

use std::path::PathBuf;

use super::PipelineSpec;
use crate::run::checkpoint::remove_unfinished;

/// Where the fits of one job keep their state, one file a question; gone when the job is committed.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    folder: Option<PathBuf>,
    /// What every file's name begins with.
    job: String,
    files: Vec<PathBuf>,
}

impl Checkpoints {
    /// The files of the job with this digest, without what a killed process was writing of them.
    pub(super) fn of(spec: &PipelineSpec, digest: &str) -> Self {
        let folder = spec.engine.checkpoints.as_ref().map(PathBuf::from);
        let all = Self { folder, job: digest[..16].to_owned(), files: Vec::new() };
        all.remove_unfinished();
        all
    }

    /// The file of the next question.
    pub(super) fn next(&mut self) -> Option<PathBuf> {
        let name = format!("{}-{}.checkpoint", self.job, self.files.len());
        let file = self.folder.as_ref()?.join(name);
        self.files.push(file.clone());
        Some(file)
    }

    /// Removes the files of a job that is committed. One that cannot be removed harms nothing.
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
