//! Runs a job that publishes tables, and prints its summary.

use std::sync::Arc;

use super::progress::Bars;
use super::summary::Summary;
use super::terminal::{print_json, print_message};
use crate::error::Result;
use crate::job_context::JobContext;
use crate::process::signals::{Signals, until_signalled};

/// A job that publishes tables: the environment that it runs in, and how its summary is printed.
pub(super) struct PublishingJob<'a> {
    pub(super) job: JobContext,
    pub(super) signals: &'a Signals,
    pub(super) json: bool,
    pub(super) quiet: bool,
}

impl PublishingJob<'_> {
    /// Runs the job until it ends or a signal stops it, and prints its summary.
    pub(super) async fn execute<S, J>(self, work: impl FnOnce(JobContext) -> J) -> Result<()>
    where
        S: Summary + Send + 'static,
        J: Future<Output = Result<S>> + Send + 'static,
    {
        let Self { mut job, signals, json, quiet } = self;
        job.progress = Arc::new(Bars::new(quiet));
        let (cancel, progress) = (job.cancel.clone(), Arc::clone(&job.progress));
        let done = until_signalled(signals, &cancel, work(job)).await;
        progress.end();
        let summary = done?;
        if json {
            print_json(&summary.json())?;
        } else if !quiet {
            print_message(&summary.text());
        }
        Ok(())
    }
}
