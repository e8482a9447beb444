//! The checkpoint files of one job.

use std::path::PathBuf;

use super::PipelineSpec;
use crate::job_context::checkpoint;

/// The checkpoint files of one job: for each question one, and one more for its calibration. They are removed when the
/// job is committed, and stay where a gate fails: its bounds are no part of the job's digest, so that the same job with
/// other bounds resumes from the last epoch.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    folder: Option<PathBuf>,
    /// The prefix of every file's name.
    job: String,
    /// The number of files that were named so far.
    n_named: usize,
}

impl Checkpoints {
    /// The files of the job with this digest. Removes unfinished files that a killed process left.
    pub(super) fn new(spec: &PipelineSpec, digest: &str) -> Self {
        let folder = spec.engine.checkpoints.as_ref().map(PathBuf::from);
        let all = Self { folder, job: digest[..16].to_owned(), n_named: 0 };
        if let Some(folder) = &all.folder {
            checkpoint::remove_unfinished(folder, |name| all.is_own(name));
        }
        all
    }

    /// The next file; `None` where no folder is set.
    pub(super) fn next(&mut self) -> Option<PathBuf> {
        let file = self.folder.as_ref()?.join(self.name(self.n_named));
        self.n_named += 1;
        Some(file)
    }

    /// Removes the files of a committed job, those of earlier processes too. A file that cannot be removed does no harm.
    pub(super) fn remove(&self) {
        if let Some(folder) = &self.folder {
            checkpoint::remove(folder, |name| self.is_own(name));
        }
    }

    fn name(&self, n: usize) -> String {
        format!("{}-{n}.checkpoint", self.job)
    }

    fn is_own(&self, name: &str) -> bool {
        let below = name.strip_prefix(&self.job).and_then(|rest| rest.strip_prefix('-'));
        let number = below.and_then(|rest| rest.strip_suffix(".checkpoint")?.parse().ok());
        // A number in another form, such as `+1` or `01`, is in no name of ours.
        number.is_some_and(|n| self.name(n) == name)
    }
}
