//! Questions that have nothing to calibrate by: they keep the model's probabilities, unless no question has anything.

use super::held_out::nothing_to_hold_out;
use super::{CalibrationSpec, roles};
use crate::error::{Error, Problem, Result, offenders};
use crate::frame::Frame;
use crate::job_context::JobContext;

/// A question in messages, where questions are declared, and the error that it has nothing to calibrate by.
pub(crate) type NoCalibrationData = (Option<String>, Error);

/// Refuses data in which no question has anything to calibrate by, as far as that is known before the models are fitted.
///
/// # Errors
/// When no gold calibrates, and only gold will do or no annotation can be held out.
pub(crate) fn check_data(spec: &CalibrationSpec, frames: &[Frame]) -> Result<()> {
    let lack = |frame: &Frame| Some((frame.subject(), no_calibration_data(spec, frame)?));
    let lacks: Vec<NoCalibrationData> = frames.iter().filter_map(lack).collect();
    refuse_if_all(lacks, frames.len()).map(|_| ())
}

/// Warns once of the questions, of so many, that had nothing to calibrate by.
///
/// # Errors
/// When no question had.
pub(crate) fn report_lacks(
    lacks: Vec<NoCalibrationData>,
    n_questions: usize,
    job: &mut JobContext,
) -> Result<()> {
    let lacks = refuse_if_all(lacks, n_questions)?;
    if let Some((_, first)) = lacks.first() {
        let help = first.problems.first().and_then(|problem| problem.help.as_deref());
        job.warn(format!(
            "{} of {n_questions} questions have nothing to calibrate by and keep the model's probabilities: {}: {}",
            lacks.len(),
            offenders(reasons(&lacks)),
            help.unwrap_or_default(),
        ));
    }
    Ok(())
}

/// Each question and why it has nothing to calibrate by, as an offender.
fn reasons(lacks: &[NoCalibrationData]) -> impl Iterator<Item = String> {
    lacks.iter().filter_map(|(subject, lack)| {
        let Problem { what, found, .. } = lack.problems.first()?;
        Some(format!("{}: {}", subject.as_ref()?, found.as_ref().unwrap_or(what)))
    })
}

/// The questions without data, unless they are all of so many.
fn refuse_if_all(
    lacks: Vec<NoCalibrationData>,
    n_questions: usize,
) -> Result<Vec<NoCalibrationData>> {
    if lacks.len() < n_questions {
        return Ok(lacks);
    }
    let texts = offenders(reasons(&lacks));
    let Some((subject, first)) = lacks.into_iter().next() else { return Ok(Vec::new()) };
    Err(if n_questions == 1 {
        first.about_some(subject)
    } else {
        first.what("no question has anything to calibrate by").found(texts)
    })
}

/// The error that a question has nothing to calibrate by, where that is known before its model is fitted.
pub(super) fn no_calibration_data(spec: &CalibrationSpec, frame: &Frame) -> Option<Error> {
    let (a, roles) = (&frame.annotations, spec.fit_on.roles());
    let of_posteriors = frame.gold.iter().filter(|g| a.has_evidence(g.instance as usize));
    let of_predictions = frame.with_features.iter().flat_map(|with_features| &with_features.gold);
    if of_posteriors.chain(of_predictions).any(|gold| roles.contains(&gold.role)) {
        return None;
    }
    if spec.needs_gold() {
        return Some(no_gold(spec));
    }
    let found = nothing_to_hold_out(a, frame.with_features.is_some())?;
    Some(
        Error::data("no annotation can be held out to calibrate by")
            .at("calibration.fit_on")
            .found(found)
            .help("give gold of the role `calibrate`"),
    )
}

/// The error of a calibration that needs gold, without gold.
pub(super) fn no_gold(spec: &CalibrationSpec) -> Error {
    let roles = roles(spec.fit_on);
    Error::data("there is no gold to calibrate by")
        .at("calibration.fit_on")
        .found(format!("no gold row of {roles} whose instance has a posterior or a prediction"))
        .help(format!("give some in source.gold, or {}", spec.without_gold()))
}
