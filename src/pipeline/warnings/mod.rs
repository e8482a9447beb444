//! Warns of input that changes nothing, of rows that cannot be used, and of classes that the fit may have switched.

mod diagnosis;

use super::spec::PipelineSpec;
use crate::error::offenders;
use crate::frame::{Frame, Rejects, Role};
use crate::job_context::JobContext;
use crate::model::calibration::CalibrationSpec;
use crate::model::confusion::Confusion;
use crate::model::fitted::switching::{TooManyClasses, switched};
use crate::model::model_kind;
use crate::source::{Relation, SourceSpec};
pub(super) use diagnosis::{
    warn_of_agreement, warn_of_dependence, warn_of_loss_to_vote, warn_of_one_time_annotators,
};

/// Warns of features that the model, which learns from annotations alone, does not read. A query may read them for the
/// annotations or gold.
pub(crate) fn warn_of_unread_features(spec: &PipelineSpec, job: &mut JobContext) {
    let SourceSpec { sql, annotator_features, .. } = &spec.source;
    let given = [
        ("source.features", spec.source.has_features()),
        (
            "source.annotator_features",
            annotator_features.is_some() || sql.annotator_features.is_some(),
        ),
    ];
    let keys: Vec<&str> =
        given.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect();
    if !keys.is_empty() && sql.annotations.is_none() && sql.gold.is_none() {
        job.warn(format!(
            "`{}` learns from annotations alone: {} changes nothing",
            spec.model.kind,
            keys.join(" with ")
        ));
    }
}

/// Warns of tables beside the annotations that the model does not read.
pub(crate) fn warn_of_unread_tables(spec: &PipelineSpec, job: &mut JobContext) {
    let Ok(kind) = model_kind(&spec.model.kind) else { return };
    let read: Vec<Relation> = kind.capabilities.given().collect();
    for relation in [Relation::Predictions, Relation::Confusion, Relation::Pairs] {
        if relation.is_in(&spec.source) && !read.contains(&relation) {
            let table = relation.table();
            job.warn(format!("`{}` does not use source.{table}: it changes nothing", kind.kind));
        }
    }
}

/// Warns of gold that was given to calibrate, where nothing is calibrated by it.
pub(super) fn warn_of_unread_gold(spec: &PipelineSpec, frames: &[Frame], job: &mut JobContext) {
    let CalibrationSpec { fit_on, .. } = spec.calibration;
    if spec.calibration.is_on() && !fit_on.roles().is_empty() {
        return;
    }
    let gold = frames.iter().flat_map(|frame| &frame.gold);
    let n = gold.filter(|gold| gold.role == Role::Calibrate).count();
    if n > 0 {
        job.warn(format!(
            "gold of the role `calibrate` is not used ({n} instances): calibration.method = \"temperature\" fits to it, \
             where calibration.fit_on does not say \"annotations\""
        ));
    }
}

/// Warns of questions that are left out and of a reason for which most rows are rejected; otherwise nobody would notice
/// that labels are missing, or rest on few rows.
pub(crate) fn warn_of_rows(frames: &[Frame], job: &mut JobContext) {
    let mut rejects = Rejects::default();
    frames.iter().flat_map(Frame::all_rejects).for_each(|of_question| rejects.merge(of_question));
    if let Some(reason) = rejects.main_reason(frames.iter().map(|frame| frame.rows_read).sum()) {
        job.warn(reason);
    }
    for frame in frames.iter().filter(|frame| !frame.warnings.is_empty()) {
        job.warn_about_question(frame.subject());
        frame.warnings.iter().for_each(|(code, text)| job.warn_code(*code, text));
        job.warn_about(None);
    }
    let left_out = frames.iter().flat_map(|frame| &frame.left_out);
    let names: Vec<String> = left_out.map(|question| question.question.text(0)).collect();
    if !names.is_empty() {
        job.warn(format!(
            "no row of these questions can be used, so that they have no labels (see the table `rejects`): {}",
            offenders(names)
        ));
    }
}

/// Warns if the annotators agree better with the classes under other names, or if this is not checked.
pub(super) fn warn_of_switched_classes(frame: &Frame, confusion: &Confusion, job: &mut JobContext) {
    match switched(&frame.annotations, confusion) {
        Ok(Some(names)) => job.warn(switch_warning(frame, &names)),
        // Gold that trains holds the classes in their places.
        Err(TooManyClasses(n)) if !trains_on_gold(frame) => {
            job.warn(format!(
                "it is not checked whether the fit has switched labels, as {n} classes occur: compare with \
                 majority_vote, or give some gold that trains"
            ));
        }
        Ok(None) | Err(TooManyClasses(_)) => {}
    }
}

fn switch_warning(frame: &Frame, names: &[usize]) -> String {
    let moved = names.iter().enumerate().filter(|(k, l)| k != *l);
    let pairs =
        moved.map(|(k, l)| format!("{} as {}", frame.labels.text(k), frame.labels.text(*l)));
    let advice = if trains_on_gold(frame) {
        "they contradict the gold that trains, or it is too little for the fit; check the gold, and what the labels mean"
    } else if frame.annotations.given.confusion.is_some() {
        "the matrices of source.confusion may name classes that mean something else; or the fit has switched labels: compare \
         with majority_vote"
    } else {
        "the fit may have switched labels; compare with majority_vote, or give some gold that trains"
    };
    format!(
        "the annotators agree better with the classes under other names ({}): {advice}",
        offenders(pairs)
    )
}

fn trains_on_gold(frame: &Frame) -> bool {
    frame.gold.iter().any(|gold| gold.role.trains())
}
