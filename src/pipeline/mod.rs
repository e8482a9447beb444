//! The whole job on one screen: `source -> frame -> model -> tables -> sink`.

mod checkpoints;
mod inputs;
mod load;
mod schema;
mod score;
mod spec;
mod tests_spec;
mod warnings;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::prelude::SessionContext;
use serde_json::json;

use crate::agreement::{self, Categories};
use crate::decide::{Tally, TieSeed};
use crate::diagnose::{Agreement, Diagnosis, dependence};
use crate::error::{Error, Problem, Result, Stage};
use crate::frame::{
    Frame, MemoryEstimate, QuestionSet, QuestionSizes, Relations, Scratch, collect,
};
use crate::gate::Measures;
use crate::job_context::JobContext;
use crate::model::calibration::{NoCalibrationData, calibrate, check_data, report_lacks};
use crate::model::fitted::Fitted;
use crate::model::{Model, model_kind};
use crate::redact::{redacted, redacted_json};
use crate::sink::{
    self, Advice, BeginOutcome, Contents, JobIdentity, Published, RunTables, SinkSpec, model_files,
};
use crate::source::{InferenceScope, Source};
use crate::tables::metrics::Metric;
use crate::tables::{FilledTable, Outcome, QuestionResult, RunRecord, Table};
pub use checkpoints::Checkpoints;
pub(crate) use inputs::inputs;
pub use load::{from_table, load};
pub use schema::schema;
use score::Scorer;
pub use spec::PipelineSpec;
pub use tests_spec::{GivenSpec, TestSpec};
use warnings::warn_of_unread_gold;
use warnings::{
    warn_of_agreement, warn_of_dependence, warn_of_loss_to_vote, warn_of_one_time_annotators,
    warn_of_switched_classes,
};
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

/// Reads the relations into one frame for each question, and warns of rows that cannot be used.
///
/// # Errors
/// When a query does not plan, a file cannot be read or changes, or no usable row is left.
pub async fn read(
    spec: &PipelineSpec,
    ctx: &SessionContext,
    source: &Source,
    job: &mut JobContext,
) -> Result<Vec<Frame>> {
    let frames = read_relations(spec, ctx, source, job).await;
    // A change of a file explains the errors that its rows caused.
    source.check_unchanged().await?;
    let frames = frames.map_err(|e| source.at_query(e))?;
    warn_of_rows(&frames, job);
    warn_of_unread_gold(spec, &frames, job);
    Ok(frames)
}

async fn read_relations(
    spec: &PipelineSpec,
    ctx: &SessionContext,
    source: &Source,
    job: &mut JobContext,
) -> Result<Vec<Frame>> {
    let kind = model_kind(&spec.model.kind)?;
    let (calibration, of_one_start) = (spec.calibration.clone(), kind.memory_estimate);
    let starts_again = spec.model.load()?.model.restarts() > 0;
    let of_model = move |sizes: &QuestionSizes| {
        let bytes = of_one_start(sizes)?;
        if starts_again { bytes.of_several_starts() } else { Some(bytes) }
    };
    let (are_together, of_others) =
        (kind.capabilities.fits_questions_together, AtomicUsize::new(0));
    let fit_memory = move |sizes: &QuestionSizes| {
        let own = calibration.memory_estimate(of_model, sizes)?;
        let before = if are_together { of_others.fetch_add(own.working, Relaxed) } else { 0 };
        Some(MemoryEstimate { working: own.working.checked_add(before)?, ..own })
    };
    let mut relations = Relations {
        annotations: source.annotations(ctx).await?,
        gold: source.gold(ctx).await?,
        features: None,
        annotator_features: None,
        given: Vec::new(),
        fit_memory: Box::new(fit_memory),
        scratch: spec.engine.scratch_folder(),
    };
    for relation in kind.capabilities.given() {
        if let Some(query) = source.relation(ctx, relation).await? {
            relations.given.push((relation, query));
        }
    }
    warn_of_unread_tables(spec, job);
    if kind.capabilities.features.are_read() {
        let features = source.features(ctx, job).await?;
        relations.features = features.map(|query| (query, Scratch::from_engine(&spec.engine)));
        relations.annotator_features = source.annotator_features(ctx, job).await?;
    } else {
        warn_of_unread_features(spec, job);
    }
    let spec = spec.frame.normalised(&spec.source.cleaning());
    let frames = collect(relations, &spec, job).await;
    frames.map_err(|e| e.or_at("source.annotations"))
}

/// Fits the model to each question's frame, calibrates its posteriors and predictions where that is configured, and
/// scores the result against gold that the model did not see.
///
/// # Errors
/// When the model fails or returns a number that is not finite, or when no question has anything to calibrate by.
pub fn fit(
    spec: &PipelineSpec,
    frames: Vec<Frame>,
    checkpoints: &mut Checkpoints,
    job: &mut JobContext,
) -> Result<Outcome> {
    let fitted = fit_questions(spec, frames, checkpoints, job);
    // A job that fails sums up too.
    job.sum_up_warnings();
    job.keep_warnings_of_machine();
    let outcome = fitted?;
    let record = fit_record(spec, &outcome.results, job);
    Ok(Outcome { run: record, ..outcome })
}

/// The outcome without the facts of the run.
fn fit_questions(
    spec: &PipelineSpec,
    frames: Vec<Frame>,
    checkpoints: &mut Checkpoints,
    job: &mut JobContext,
) -> Result<Outcome> {
    let loaded = spec.model.load()?;
    if spec.calibration.is_on() {
        check_data(&spec.calibration, &frames)?;
    }
    let (mut results, mut metrics) = (Vec::with_capacity(frames.len()), Vec::new());
    let mut lacks: Vec<NoCalibrationData> = Vec::new();
    let mut together = fit_together(spec, loaded.model.as_ref(), &frames, checkpoints, job)?;
    for (question, frame) in frames.into_iter().enumerate() {
        let subject = frame.subject();
        job.warn_about_question(subject.clone());
        let fitted = together.next();
        let fitted = fit_question(spec, loaded.model.as_ref(), frame, fitted, checkpoints, job);
        job.warn_about(None);
        let (result, measured, lack) = fitted.map_err(|e| e.about_some(subject.clone()))?;
        lacks.extend(lack.map(|lack| (subject, lack)));
        metrics.extend(measured.into_iter().map(|metric| (question, metric)));
        results.push(result);
    }
    if spec.calibration.is_on() {
        report_lacks(lacks, results.len(), job)?;
    }
    Ok(Outcome { results, decide: spec.decide.clone(), metrics, run: RunRecord::default() })
}

/// The fits of all questions by a kind that fits them at once; none for other kinds, which take one after the other.
fn fit_together(
    spec: &PipelineSpec,
    model: &dyn Model,
    frames: &[Frame],
    checkpoints: &mut Checkpoints,
    job: &mut JobContext,
) -> Result<std::vec::IntoIter<Fitted>> {
    let are_together = model_kind(&spec.model.kind)?.capabilities.fits_questions_together;
    if !are_together || frames.len() < 2 {
        return Ok(Vec::new().into_iter());
    }
    let questions = QuestionSet::of_frames(frames)?;
    job.keep_checkpoint(checkpoints.next());
    let pool = job.pool();
    Ok(pool.install(|| model.fit_questions(&questions, job))?.into_iter())
}

/// The facts that are known once every question is fitted, whether or not the run is published.
fn fit_record(spec: &PipelineSpec, results: &[QuestionResult], job: &JobContext) -> RunRecord {
    let rows = |count: fn(&Frame) -> u64| results.iter().map(|a| count(&a.frame)).sum();
    RunRecord {
        seed: spec.seed,
        rows_read: rows(|f| f.rows_read),
        rows_used: rows(Frame::rows_used),
        rows_rejected: rows(Frame::rows_rejected),
        device: results.first().map(|a| a.fitted.device.clone()).unwrap_or_default(),
        converged: results.iter().all(|a| a.fitted.stop.converged),
        warnings: job.warnings().to_vec(),
        ..RunRecord::default()
    }
}

/// The result of one question, its metrics, and the error that it has nothing to calibrate by, where it should. It is
/// fitted unless a fit of all questions gave its result.
fn fit_question(
    spec: &PipelineSpec,
    model: &dyn Model,
    frame: Frame,
    fitted: Option<Fitted>,
    checkpoints: &mut Checkpoints,
    job: &mut JobContext,
) -> Result<(QuestionResult, Vec<Metric>, Option<Error>)> {
    let pool = job.pool();
    let mut fitted = if let Some(fitted) = fitted {
        fitted
    } else {
        job.keep_checkpoint(checkpoints.next());
        pool.install(|| model.fit(frame.evidence(), job))?
    };
    pool.install(|| refuse_not_finite(&fitted, "the fit", "model"))?;
    if let Some(confusion) = &fitted.report.confusion {
        warn_of_switched_classes(&frame, confusion, job);
    }
    let dependence = pool.install(|| dependence(&frame.annotations, &fitted));
    let tie_seed = TieSeed::new(&frame, spec.seed);
    let scorer = Scorer { decide: &spec.decide, tie_seed, frame: &frame };
    let mut is_calibrated = false;
    let (measured, lack) = if spec.calibration.is_on() {
        let before = scorer.scored(&fitted);
        job.keep_checkpoint(checkpoints.next());
        let mut calibrated =
            pool.install(|| calibrate(&spec.calibration, model, &frame, &mut fitted, job))?;
        pool.install(|| refuse_not_finite(&fitted, "the calibration", "calibration"))?;
        is_calibrated = calibrated.lack.is_none() && !calibrated.gold_roles.is_empty();
        match calibrated.lack.take() {
            None => (scorer.of_calibrated(before, &fitted, calibrated, job), None),
            lack => (scorer.metrics(&fitted), lack),
        }
    } else {
        (scorer.metrics(&fitted), None)
    };
    let tally = pool.install(|| Tally::count(&spec.decide, &frame.annotations, &fitted, tie_seed));
    let label = |i| spec.decide.decide(&frame.annotations, &fitted, tie_seed, i).class;
    let agreement = pool.install(|| Agreement::measure(&frame.annotations, label));
    let kind = &spec.model.kind;
    warn_of_one_time_annotators(kind, &frame, job);
    warn_of_agreement(kind, &frame, (&agreement, &dependence), job);
    warn_of_loss_to_vote(kind, (&spec.decide, tie_seed), &frame, &fitted, job);
    warn_of_dependence(&frame, &dependence, is_calibrated, job);
    let categories = Categories::new(&frame.classes(), spec.frame.classes.is_some());
    // Intervals of measures do not depend on the seed of the job, as the tables of most kinds do not.
    let mut rng = crate::job_context::rng(0, "agreement");
    let statistics = pool.install(|| {
        agreement::measure(&frame.annotations, &categories, &mut rng, AGREEMENT_SAMPLE)
    });
    let diagnosis = Diagnosis { agreement, dependence, statistics };
    let result = QuestionResult { frame, fitted, tie_seed, tally, diagnosis };
    Ok((result, measured, lack))
}

/// The table `agreement` of a run comes from about so many instances, where there are more: a job is not to wait for it.
/// `labelmill agreement` reads all.
const AGREEMENT_SAMPLE: usize = 250_000;

/// Refuses NaN and infinities, which no table may hold; `what` gave them.
fn refuse_not_finite(fitted: &Fitted, what: &str, location: &str) -> Result<()> {
    let Some(found) = fitted.not_finite() else { return Ok(()) };
    let problem = Problem::new(format!("{what} gave NaN or an infinity: {found}")).at(location);
    Err(Error::new(Stage::Bug, problem))
}

#[cfg(test)]
mod tests;
