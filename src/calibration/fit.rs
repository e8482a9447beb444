//! Calibrates a fitted model: chooses the data for each map, fits the map and applies it.

use serde_json::json;

use super::held_out::{HeldOut, RowKind};
use super::{CalibrationSpec, Calibrator, Points, SAVED_AS, roles};
use crate::error::{Error, Result};
use crate::frame::{Frame, Role};
use crate::model::Model;
use crate::model::fitted::Fitted;
use crate::run::Run;
use crate::tables::metrics::Metric;

/// Fewer points than this are worth a warning.
const FEW_POINTS: usize = 50;

/// The result of calibrating one question's fit.
pub(crate) struct Calibrated {
    /// The roles of the gold that was used, which must not score.
    pub(crate) gold_roles: &'static [Role],
    /// The number of points and the temperature of each map, for the table `metrics`.
    pub(crate) metrics: Vec<Metric>,
}

/// Calibrates the posteriors, the predictions and the saved model of a fit; a second fit, if one is needed, keeps its
/// state in the checkpoint of `run`.
///
/// # Errors
/// When there is nothing to calibrate by, or the second fit fails.
pub(crate) fn calibrate(
    spec: &CalibrationSpec,
    model: &dyn Model,
    frame: &Frame,
    fitted: &mut Fitted,
    run: &mut Run,
) -> Result<Calibrated> {
    let mut done = Calibrated { gold_roles: &[], metrics: Vec::new() };
    // `Some(None)` where no annotation can be held out.
    let mut second_fit = None;
    let (mut is_fitted, mut without_map) = (false, Vec::new());
    for rows in [RowKind::Posteriors, RowKind::Predictions] {
        if rows == RowKind::Predictions && fitted.predictions.is_none() {
            continue;
        }
        let name = match rows {
            RowKind::Posteriors => "posteriors",
            RowKind::Predictions => "predictions",
        };
        let (points, role) = of_gold(spec.fit_on.roles(), frame, fitted, rows);
        let mut split = role.map_or("annotations", Role::word);
        let (mut map, mut n_points) =
            (Calibrator::fit(spec.method, spec.smoothing, &points), points.len());
        if map.is_some() {
            done.gold_roles = spec.fit_on.roles();
        } else if !spec.fit_on.needs_gold() {
            if second_fit.is_none() {
                second_fit = Some(HeldOut::fit(spec, model, frame.evidence(), run)?);
            }
            if let Some(Some(fit)) = &second_fit {
                let described = frame.described.as_ref();
                let row_of_instance = described.map_or(&[][..], |d| d.row_of_instance.as_slice());
                let found = fit.calibrator(spec, rows, row_of_instance, &run.cancel)?;
                (map, n_points) = found.map_or((None, 0), |(map, n)| (Some(map), n));
                split = "annotations";
            }
        }
        let Some(map) = map else {
            without_map.push(name);
            continue;
        };
        if n_points < FEW_POINTS {
            run.warn(format!(
                "the {name} are calibrated by {n_points} instances only: a temperature wants {FEW_POINTS} and more, isotonic \
                 regression hundreds"
            ));
        }
        is_fitted = true;
        done.metrics.extend(fitted_to(&map, n_points, rows, split));
        apply(&map, frame, fitted, rows);
    }
    if !is_fitted {
        let nothing_held_out = matches!(second_fit, Some(None));
        return Err(nothing_to_fit_to(spec, frame.annotations.len(), nothing_held_out));
    }
    for name in without_map {
        run.warn(format!("nothing is known to calibrate the {name} by: they are the model's own"));
    }
    Ok(done)
}

/// The error that there is no map at all; `nothing_held_out` says that none of the `n_annotations` was held out.
fn nothing_to_fit_to(
    spec: &CalibrationSpec,
    n_annotations: usize,
    nothing_held_out: bool,
) -> Error {
    if spec.fit_on.needs_gold() {
        let roles = roles(spec.fit_on);
        Error::data("there is no gold to calibrate by")
            .at("calibration.fit_on")
            .found(format!("no gold row of {roles} whose instance has a posterior or a prediction"))
            .help("give some in source.gold, or fit_on = \"annotations\"")
    } else if nothing_held_out {
        Error::data("no annotation is held out to calibrate by")
            .at("calibration.held_out")
            .found(format!(
                "a share of {} of {n_annotations} annotations, without the first of each annotator",
                spec.held_out
            ))
            .help("hold out more, or give gold of the role `calibrate`")
    } else {
        Error::data("there is nothing to calibrate by")
            .at("calibration.held_out")
            .found("no held-out annotation of an instance that keeps others")
            .help("hold out another share, or give gold of the role `calibrate`")
    }
}

/// Gold of these roles, with the rows of its instances, and the last of the roles that some of it has. A classifier
/// predicts annotated instances, which it was trained on, better than others: where other instances have gold,
/// predictions are compared with that gold alone.
fn of_gold(
    roles: &[Role],
    frame: &Frame,
    fitted: &Fitted,
    rows: RowKind,
) -> (Points, Option<Role>) {
    let a = &frame.annotations;
    let (mut points, mut found) = (Points::new(a.dims().classes), Vec::new());
    match (rows, &frame.described, &fitted.predictions) {
        (RowKind::Posteriors, ..) => {
            let gold = frame.gold.iter().filter(|g| roles.contains(&g.role));
            for gold in gold.filter(|g| a.has_evidence(g.instance as usize)) {
                let row = fitted.posterior.row(gold.instance as usize);
                points.push_class(&row, gold.class as usize, 1.0);
                found.push(gold.role);
            }
        }
        (RowKind::Predictions, Some(described), Some(predictions)) => {
            let gold = || described.gold.iter().filter(|g| roles.contains(&g.role));
            let mut is_annotated = vec![false; predictions.len()];
            for (i, row) in described.row_of_instance.iter().enumerate() {
                if let Some(row) = row.filter(|_| a.has_evidence(i)) {
                    is_annotated[row as usize] = true;
                }
            }
            let is_new = |row: u32| !is_annotated[row as usize];
            let any_new = gold().any(|g| is_new(g.instance));
            for gold in gold().filter(|g| !any_new || is_new(g.instance)) {
                let row = predictions.row(gold.instance as usize);
                points.push_class(row, gold.class as usize, 1.0);
                found.push(gold.role);
            }
        }
        (RowKind::Predictions, ..) => {}
    }
    let last = roles.iter().rev().find(|role| found.contains(role));
    (points, last.copied())
}

fn apply(map: &Calibrator, frame: &Frame, fitted: &mut Fitted, rows: RowKind) {
    let a = &frame.annotations;
    match rows {
        RowKind::Posteriors => {
            let is_wanted = |i| a.has_evidence(i) && a.trusted_class(i).is_none();
            fitted.posterior.change(|posterior| map.apply_to(posterior, is_wanted));
        }
        RowKind::Predictions => {
            if let Some(predictions) = &mut fitted.predictions {
                map.apply_to(predictions, |_| true);
            }
            if let Some(model) = &mut fitted.model {
                model.description[SAVED_AS] = json!(map);
            }
        }
    }
}

/// The number of points that a map was fitted to, and its temperature, as metrics.
fn fitted_to(
    map: &Calibrator,
    points: usize,
    rows: RowKind,
    split: &'static str,
) -> impl Iterator<Item = Metric> {
    let prefix = if rows == RowKind::Predictions { "prediction_" } else { "" };
    let temperature = match map {
        Calibrator::Temperature { temperature }
        | Calibrator::BiasCorrectedTemperature { temperature, .. } => {
            Some(("temperature", *temperature))
        }
        Calibrator::Isotonic { .. } => None,
    };
    let named = [("instances", points as f64)].into_iter().chain(temperature);
    named.map(move |(name, value)| Metric {
        name: format!("{prefix}calibration_{name}"),
        split,
        value: Some(value),
    })
}
