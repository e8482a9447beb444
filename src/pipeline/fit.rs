//! `frame -> model`: fits, calibrates and scores each question.

use super::PipelineSpec;
use super::checkpoints::Checkpoints;
use super::score::Scorer;
use super::warnings::{
    warn_of_agreement, warn_of_dependence, warn_of_loss_to_vote, warn_of_one_time_annotators,
    warn_of_switched_classes,
};
use crate::agreement::{self, Categories};
use crate::decide::{Tally, TieSeed};
use crate::diagnose::{Agreement, Diagnosis, dependence};
use crate::error::{Error, Problem, Result, Stage};
use crate::frame::{Frame, QuestionSet};
use crate::job_context::JobContext;
use crate::model::calibration::{NoCalibrationData, calibrate, check_data, report_lacks};
use crate::model::fitted::Fitted;
use crate::model::{Model, model_kind};
use crate::tables::metrics::Metric;
use crate::tables::{Outcome, QuestionResult, RunRecord};

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
    let labels = |instances| {
        let decided = spec.decide.decide_all(&frame.annotations, &fitted, tie_seed, instances);
        decided.into_iter().map(|decided| decided.class).collect()
    };
    let agreement = pool.install(|| Agreement::measure(&frame.annotations, labels));
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
