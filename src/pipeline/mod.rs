//! The whole job on one screen: `source -> frame -> model -> tables -> sink`.

mod checkpoints;
mod fit;
mod inputs;
mod load;
mod read;
mod schema;
mod score;
mod spec;
mod tests_spec;
mod warnings;

use serde_json::json;

use crate::error::{Error, Result};
use crate::gate::Measures;
use crate::job_context::JobContext;
use crate::redact::{redacted, redacted_json};
use crate::sink::{
    self, Advice, BeginOutcome, Contents, JobIdentity, Published, RunTables, SinkSpec, model_files,
};
use crate::source::{InferenceScope, Source};
use crate::tables::{FilledTable, Outcome, RunRecord, Table};
pub use checkpoints::Checkpoints;
pub use fit::fit;
pub(crate) use inputs::inputs;
pub use load::{from_table, load};
pub use read::read;
pub use schema::schema;
pub use spec::PipelineSpec;
pub use tests_spec::{GivenSpec, TestSpec};
pub(crate) use warnings::{warn_of_rows, warn_of_unread_features, warn_of_unread_tables};

pub(crate) const ADVICE: Advice = Advice {
    taken: "choose another run id, or pass --force to publish under a numbered one",
    taken_meanwhile: "choose another run id; with --force, run it again: it takes the next number",
    swept: "run the job again, with a larger sink.stale_after_seconds",
};

/// How a job is run that may be committed already, or that a gate may refuse.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rerun {
    /// Whether a job that is already committed runs again, under a run id of its own.
    pub force: bool,
    /// Whether a run that a gate refuses is published in the folder `rejected` of the sink.
    pub keep_rejected: bool,
}

/// Runs the job.
///
/// # Errors
/// The error of the stage that failed; nothing is published then.
pub async fn run(
    spec: &PipelineSpec,
    rerun: Rerun,
    job: &mut JobContext,
) -> Result<Published<Outcome>> {
    let ctx = spec.engine.session()?;
    let source = Source::list(&spec.source, &spec.store, &RunTables, job).await?;
    let inputs = inputs(&source);
    let identity = JobIdentity {
        digest: spec.digest(&inputs)?,
        run_id: spec.sink.run_id.clone(),
        pipeline: redacted(spec.name.as_deref().unwrap_or_default()),
        advice: ADVICE,
    };
    let sink = sink::open(&spec.sink, &spec.store)?;
    let run_id = match sink.begin(&identity, rerun.force).await? {
        BeginOutcome::Done(run) => {
            // A process that was killed after its commit left them.
            Checkpoints::new(spec, &identity.digest).remove();
            // The gate is not a part of the job's digest: changed bounds apply to the committed run too.
            spec.gate.check_committed(&run.run_id, &run.measures)?;
            return sink.done_before(*run).await;
        }
        BeginOutcome::New(run_id) => run_id,
    };
    let began = job.clock.seconds();
    // Opened only now: a job that is already committed needs no file.
    source.open(&ctx, InferenceScope::Whole).await?;
    let frames = read(spec, &ctx, &source, job).await?;
    let read_at = job.clock.seconds();
    let mut checkpoints = Checkpoints::new(spec, &identity.digest);
    let mut outcome = tokio::task::block_in_place(|| fit(spec, frames, &mut checkpoints, job))?;
    outcome.run = RunRecord {
        run_id,
        spec: redacted_json(spec.to_json()?).to_string(),
        inputs,
        seconds_reading: read_at - began,
        seconds_fitting: job.clock.seconds() - read_at,
        peak_memory_bytes: crate::job_context::peak_memory_bytes(),
        ..outcome.run
    };
    let measures = Measures::from_outcome(&outcome);
    let checked = spec.gate.check(&measures, &outcome.rejects());
    let refused = if rerun.keep_rejected { checked.err() } else { checked.map(|()| None)? };
    let tables = FilledTable::all(&outcome, |name| spec.sink.writes(name));
    let contents = Contents {
        tables: tables.iter().map(|table| table as &dyn Table).collect(),
        model: model_files::files(&outcome, &spec.source.cleaning())?,
        measures: json!(measures),
    };
    if let Some(refused) = refused {
        return Err(keep_rejected(refused, spec, &identity, &contents, job).await);
    }
    let run = sink.publish(&outcome.run.run_id, &identity, &contents, job).await?;
    drop(contents);
    drop(tables);
    checkpoints.remove();
    Ok(sink.published(run, Some(outcome)).await)
}

/// Publishes a run that a gate refused in the folder `rejected` of the sink, where nobody takes it for the newest run of
/// the job, and returns the gate's error with its place.
async fn keep_rejected(
    mut refused: Error,
    spec: &PipelineSpec,
    identity: &JobIdentity,
    contents: &Contents<'_>,
    job: &JobContext,
) -> Error {
    let url = format!("{}/rejected", spec.sink.url.trim_end_matches('/'));
    let spec_of_sink = SinkSpec { url, keep_runs: None, ..spec.sink.clone() };
    let published = async {
        let sink = sink::open(&spec_of_sink, &spec.store)?;
        let run_id = match sink.begin(identity, false).await? {
            BeginOutcome::Done(run) => run.run_id,
            BeginOutcome::New(run_id) => {
                sink.publish(&run_id, identity, contents, job).await?.run_id
            }
        };
        Ok::<_, Error>(sink.folder(&run_id))
    };
    let told = match published.await {
        Ok(folder) => format!("the refused run is in {folder}; `latest` did not move"),
        Err(e) => format!("the refused run could not be published: {}", e.problems[0].what),
    };
    if let Some(last) = refused.problems.last_mut() {
        last.help = Some(told);
    }
    refused
}

#[cfg(test)]
mod tests;
