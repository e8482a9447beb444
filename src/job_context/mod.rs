//! Everything impure that a model or a stage may use: random streams, the clock, cancellation, progress.
//!
//! # Why
//! A result is reproducible when nothing draws from a global source. Every random draw comes from a stream that is
//! named for its purpose, so that a new consumer does not change the numbers of the others; every timing comes from a
//! clock that a test can stop.

mod cancel;
pub(crate) mod checkpoint;
mod warning_code;
mod warnings;

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::{ThreadPool, ThreadPoolBuilder};
use sha2::{Digest, Sha256};

pub use cancel::Cancel;
use checkpoint::CheckpointFile;
pub use warning_code::WarningCode;
use warnings::Warnings;

use crate::error::{Error, Result};

/// The generator behind every random stream.
pub type Rng = ChaCha8Rng;

/// Receives the progress and warnings of a run; every method does nothing by default.
pub trait Progress: Send + Sync {
    /// A stage of the job begins; `total` is its final position, where known.
    fn begin(&self, _stage: &str, _total: Option<u64>) {}
    /// The stage has reached `position`; `message` describes its state.
    fn at(&self, _position: u64, _message: &str) {}
    /// The stage is over.
    fn end(&self) {}
    /// A warning that a person should act on.
    fn warn(&self, _message: &str) {}
}

/// Ignores all progress and warnings.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {}

/// The source of timings.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// Real time since the run began.
    Running(Instant),
    /// Always zero: with it, two runs give the same bytes in every column.
    Stopped,
}

impl Clock {
    /// Seconds since the run began.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        match self {
            Self::Running(start) => start.elapsed().as_secs_f64(),
            Self::Stopped => 0.0,
        }
    }
}

/// The thread pool of every run without a pool of its own.
static SHARED_POOL: LazyLock<Arc<ThreadPool>> = LazyLock::new(|| {
    let pool = ThreadPoolBuilder::new().build();
    Arc::new(pool.unwrap_or_else(|e| panic!("failed to spawn thread: {e}")))
});

/// The section of the pipeline file with the parameters of the model.
const MODEL_SECTION: &str = "model";

/// The memory of a run that is not told how much it has.
const DEFAULT_MEMORY: usize = 8 << 30;

/// The environment of one run.
#[derive(Clone)]
pub struct JobContext {
    seed: u64,
    /// The source of timings.
    pub clock: Clock,
    /// The stop flag.
    pub cancel: Cancel,
    /// The receiver of progress and warnings.
    pub progress: Arc<dyn Progress>,
    /// `None` for the shared one, which is built when it is first used.
    pool: Option<Arc<ThreadPool>>,
    memory: usize,
    warnings: Warnings,
    /// The section of the pipeline file with the parameters of the model that is fitted.
    model_section: &'static str,
    /// The warnings of [`JobContext::warn_of_machine`], of this run and of all its clones.
    of_machine: Arc<Mutex<Vec<String>>>,
    checkpoint: Option<PathBuf>,
}

impl JobContext {
    /// A run that reports no progress, on the shared thread pool, with 8 GiB of memory.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            clock: Clock::Running(Instant::now()),
            cancel: Cancel::default(),
            progress: Arc::new(NoProgress),
            pool: None,
            memory: DEFAULT_MEMORY,
            warnings: Warnings::default(),
            model_section: MODEL_SECTION,
            of_machine: Arc::default(),
            checkpoint: None,
        }
    }

    /// The same run on its own pool of `threads` threads.
    ///
    /// # Errors
    /// When the system cannot start the threads.
    pub fn with_threads(mut self, threads: usize) -> Result<Self> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        self.pool = Some(Arc::new(pool.map_err(|e| Error::exhausted(e.to_string()))?));
        Ok(self)
    }

    /// The same run with this many bytes of memory.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// One in `share` bytes of the run's memory, but at most `max`.
    #[must_use]
    pub(crate) fn share_of_memory(&self, share: usize, max: usize) -> usize {
        (self.memory / share).min(max)
    }

    /// Sets the checkpoint file, from which a fit resumes after an interruption; `None` for no checkpoints.
    pub fn keep_checkpoint(&mut self, file: Option<PathBuf>) {
        self.checkpoint = file;
    }

    /// Whether a long fit should save its state from time to time.
    #[must_use]
    pub fn keeps_checkpoints(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// The checkpoint that an interrupted run of the same job left. A damaged one counts as absent, with a warning.
    ///
    /// # Errors
    /// When the file exists and cannot be read, or its folder cannot be written to.
    pub fn checkpoint(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(file) = &self.checkpoint else { return Ok(None) };
        checkpoint::check(file)?;
        match checkpoint::read(file)? {
            CheckpointFile::Absent => Ok(None),
            CheckpointFile::Whole(bytes) => Ok(Some(bytes)),
            CheckpointFile::Damaged => {
                let file = file.display();
                self.warn(format!(
                    "the checkpoint `{file}` is empty, cut short or damaged: the training starts anew"
                ));
                Ok(None)
            }
        }
    }

    /// Replaces the checkpoint atomically: a process that is killed while it writes leaves the previous checkpoint.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn save_checkpoint(&self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &self.checkpoint else { return Ok(()) };
        checkpoint::save(file, bytes)
    }

    /// The thread pool of the frame and the models.
    #[must_use]
    pub fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(self.pool.as_ref().unwrap_or_else(|| &SHARED_POOL))
    }

    /// The random stream of one purpose: see [`rng`].
    #[must_use]
    pub fn rng(&self, purpose: &str) -> Rng {
        rng(self.seed, purpose)
    }

    /// The same run for one of its parts, with separate random streams.
    #[must_use]
    pub fn part(&self, name: &str) -> Self {
        Self { seed: seed_of_part(self.seed, name), ..self.clone() }
    }

    /// Begins all further warnings with this subject, such as a source.
    pub(crate) fn warn_about(&mut self, subject: Option<String>) {
        self.warnings.set_subject(subject, false);
    }

    /// Begins all further warnings with a question. Of warnings that differ in numbers and in names in backticks only, those
    /// of a few questions are reported; [`JobContext::sum_up_warnings`] counts the others.
    pub(crate) fn warn_about_question(&mut self, question: Option<String>) {
        self.warnings.set_subject(question, true);
    }

    /// Begins all further warnings with a part of the fit, such as one without some annotations, after the subject.
    pub(crate) fn warn_of_part(&mut self, part: Option<&'static str>) {
        self.warnings.set_part(part);
    }

    /// Fits a model that is a part of another one, with its parameters in `section`: messages name its keys there.
    #[cfg(feature = "neural")]
    pub(crate) fn in_section<R>(
        &mut self,
        section: &'static str,
        fit: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let outer = std::mem::replace(&mut self.model_section, section);
        let fitted = fit(self);
        self.model_section = outer;
        fitted
    }

    /// The key of a parameter of the model that is fitted, in messages.
    pub(crate) fn model_key(&self, parameter: &str) -> String {
        format!("{}.{parameter}", self.model_section)
    }

    /// Reports a warning, and keeps it for the table `run`; once only, if it is repeated about the same subject.
    ///
    /// # Why
    /// A part of the fit may be the same fit of other annotations, such as of those that are not held out. The same words
    /// again tell nobody anything new. They are looked for among the warnings about one subject only, for there may be many
    /// questions.
    pub fn warn(&mut self, message: impl Into<String>) {
        if let Some(warning) = self.warnings.keep(&message.into()) {
            self.progress.warn(warning);
        }
    }

    /// As [`JobContext::warn`], with a code by which programs know the warning.
    pub fn warn_code(&mut self, code: WarningCode, message: impl std::fmt::Display) {
        self.warn(format!("{message} [{}]", code.name()));
    }

    /// Reports how many more questions had each warning of which only a few were reported.
    pub(crate) fn sum_up_warnings(&mut self) {
        self.warnings.sum_up().iter().for_each(|warning| self.progress.warn(warning));
    }

    /// Reports a warning about the machine, such as that its GPU cannot be used; once only, whatever the subject.
    /// [`JobContext::keep_warnings_of_machine`] adds it to the others.
    ///
    /// # Why
    /// The code that opens a device has only a reference to the run, or a clone of it.
    #[cfg(feature = "neural")]
    pub(crate) fn warn_of_machine(&self, message: String) {
        let mut of_machine = self.of_machine.lock().unwrap_or_else(PoisonError::into_inner);
        if !of_machine.contains(&message) {
            self.progress.warn(&message);
            of_machine.push(message);
        }
    }

    /// Keeps the warnings about the machine, which were shown before, for the table `run`.
    pub(crate) fn keep_warnings_of_machine(&mut self) {
        let mut of_machine = self.of_machine.lock().unwrap_or_else(PoisonError::into_inner);
        self.warnings.kept.append(&mut of_machine);
    }

    /// All warnings so far.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings.kept
    }
}

/// The random stream of one purpose: the same seed and purpose give the same numbers.
#[must_use]
pub fn rng(seed: u64, purpose: &str) -> Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(purpose.as_bytes());
    Rng::from_seed(hash.finalize().into())
}

/// The seed of a part of a run, whose random streams are those of no other part.
#[must_use]
pub fn seed_of_part(seed: u64, name: &str) -> u64 {
    rng(seed, &format!("seed of {name}")).random()
}

/// The peak memory of this process so far; 0 where the system does not report it.
#[must_use]
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngCore;

    #[test]
    fn streams_depend_on_seed_and_purpose_only() {
        let draw = |seed, purpose: &str| JobContext::new(seed).rng(purpose).next_u64();
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }

    #[test]
    fn a_warning_is_kept_once_for_each_subject() {
        let mut job = JobContext::new(1);
        for subject in [None, Some("question `p`"), Some("question `q`")] {
            job.warn_about(subject.map(str::to_owned));
            for warning in ["few rows", "no gold", "few rows"] {
                job.warn(warning);
            }
        }
        let want = ["", "question `p`: ", "question `q`: "]
            .map(|subject| [format!("{subject}few rows"), format!("{subject}no gold")]);
        assert_eq!(job.warnings(), want.as_flattened());
    }

    #[test]
    fn a_part_of_the_fit_repeats_no_warning_of_the_whole_and_names_itself() {
        let mut job = JobContext::new(1);
        job.warn_about(Some("question `p`".to_owned()));
        job.warn("few rows");
        job.warn_of_part(Some("the second fit"));
        ["few rows", "no gold", "no gold"].into_iter().for_each(|warning| job.warn(warning));
        job.warn_of_part(None);
        job.warn("no gold");
        let want = ["few rows", "the second fit: no gold", "no gold"];
        assert_eq!(job.warnings(), want.map(|warning| format!("question `p`: {warning}")));
    }

    #[cfg(feature = "neural")]
    #[test]
    fn a_warning_about_the_machine_comes_from_any_clone_and_is_kept_once() {
        let mut job = JobContext::new(1);
        job.warn_about(Some("question `p`".to_owned()));
        for job in [job.clone(), job.part("a")] {
            job.warn_of_machine("no GPU".to_owned());
        }
        assert!(job.warnings().is_empty());
        job.keep_warnings_of_machine();
        assert_eq!(job.warnings(), ["no GPU"]);
    }

    /// The folder is a link to nowhere: nothing can be read from it, as before the first checkpoint.
    #[cfg(unix)]
    #[test]
    fn a_fit_finds_out_at_its_start_that_no_checkpoint_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("checkpoints");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let mut job = JobContext::new(1);
        job.keep_checkpoint(Some(link.join("job.checkpoint")));
        let error = job.checkpoint().unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        let location = format!("not a folder\n  where: engine.checkpoints: {}\n", link.display());
        assert!(error.to_string().contains(&location), "{error}");
    }

    /// Parts of a run have the run's memory.
    #[test]
    fn a_share_of_the_memory_has_an_upper_bound() {
        let job = JobContext::new(1).with_memory(800);
        assert_eq!((job.share_of_memory(8, 1000), job.part("a").share_of_memory(8, 60)), (100, 60));
        assert_eq!(JobContext::new(1).share_of_memory(8, usize::MAX), 1 << 30);
    }
}
