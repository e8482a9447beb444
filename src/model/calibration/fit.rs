//! Calibrates a fitted model: chooses the data for each map, fits the map and applies it.

use serde_json::json;

use super::gold_points::GoldPoints;
use super::held_out::{Confidences, HeldOut, RowKind};
use super::lack_of_data::{no_calibration_data, no_gold};
use super::{CalibrationSpec, Calibrator, SAVED_AS};
use crate::error::{Error, Result};
use crate::frame::{Frame, Role};
use crate::job_context::JobContext;
use crate::model::Model;
use crate::model::fitted::Fitted;

/// Fewer points than this are worth a warning.
const FEW_POINTS: usize = 50;

/// Fewer points for each class than this are worth a warning, where each class has a function of its own.
const FEW_POINTS_OF_CLASS: usize = 25;

/// The result of calibrating one question's fit.
#[derive(Default)]
pub(crate) struct Calibrated {
    /// The roles of the gold that was used, which must not score.
    pub(crate) gold_roles: &'static [Role],
    /// The number of points and the temperature of each map, by name and by the instances it was fitted to.
    pub(crate) metrics: Vec<(String, &'static str, f64)>,
    /// Why nothing is calibrated, where there is nothing to calibrate by.
    pub(crate) lack: Option<Error>,
}

/// Calibrates the posteriors, the predictions and the saved model of a fit; a second fit, if one is needed, keeps its
/// state in the checkpoint of `run`.
///
/// # Errors
/// When the second fit fails.
pub(crate) fn calibrate(
    spec: &CalibrationSpec,
    model: &dyn Model,
    frame: &Frame,
    fitted: &mut Fitted,
    job: &mut JobContext,
) -> Result<Calibrated> {
    let mut done = Calibrated { lack: no_calibration_data(spec, frame), ..Calibrated::default() };
    if done.lack.is_some() {
        return Ok(done);
    }
    let mut data = MapData { spec, model, frame, second_fit: SecondFit::NotNeeded };
    let (mut without_map, mut any_refused) = (Vec::new(), false);
    for rows in [RowKind::Posteriors, RowKind::Predictions] {
        if rows == RowKind::Predictions && fitted.predictions.is_none() {
            continue;
        }
        let found = match data.map_for(rows, fitted, job)? {
            SearchForMap::Found(found) => found,
            SearchForMap::Refused => {
                any_refused = true;
                continue;
            }
            SearchForMap::NoData => {
                without_map.push(rows.word());
                continue;
            }
        };
        if found.role.is_some() {
            done.gold_roles = spec.fit_on.roles();
        }
        for warning in found.warnings(rows, frame.annotations.dims().classes) {
            job.warn(warning);
        }
        done.metrics.extend(found.metrics(rows));
        apply(&found.map, frame, fitted, rows);
    }
    if done.metrics.is_empty() && !any_refused {
        return Ok(Calibrated { lack: Some(data.lack_after_fit()), ..done });
    }
    for name in without_map {
        job.warn(format!(
            "no held-out annotation or gold says how well the {name} are calibrated: they stay as the model gave them"
        ));
    }
    Ok(done)
}

/// The data of one question that maps are fitted to.
struct MapData<'a> {
    spec: &'a CalibrationSpec,
    model: &'a dyn Model,
    frame: &'a Frame,
    second_fit: SecondFit,
}

/// The fit without a share of the annotations.
enum SecondFit {
    /// No second fit is needed yet: gold suffices, or nothing but gold is allowed.
    NotNeeded,
    /// No annotation can be held out.
    NothingHeldOut,
    /// The second fit is done, and some annotations are held out.
    Fitted(Box<HeldOut>),
}

/// The result of the search for a map.
enum SearchForMap {
    /// A map to use.
    Found(FoundMap),
    /// A map that must not be used.
    Refused,
    /// There is nothing to fit a map to.
    NoData,
}

/// A map, and the data that it was fitted to.
struct FoundMap {
    map: Calibrator,
    n_points: usize,
    /// The last of the roles of the gold; `None` for held-out annotations.
    role: Option<Role>,
}

impl MapData<'_> {
    /// The map of these rows: by gold, else by held-out annotations, unless only gold will do.
    fn map_for(
        &mut self,
        rows: RowKind,
        fitted: &Fitted,
        job: &mut JobContext,
    ) -> Result<SearchForMap> {
        let spec = self.spec;
        let GoldPoints { points, role, .. } =
            GoldPoints::collect(spec.fit_on.roles(), self.frame, fitted, rows);
        if let Some(map) = Calibrator::fit(spec.method, spec.smoothing, &points) {
            return Ok(SearchForMap::Found(FoundMap { map, n_points: points.len(), role }));
        }
        if spec.needs_gold() {
            return Ok(SearchForMap::NoData);
        }
        if matches!(self.second_fit, SecondFit::NotNeeded) {
            let held_out = HeldOut::fit(spec, self.model, self.frame.evidence(), job)?;
            self.second_fit = held_out.map_or(SecondFit::NothingHeldOut, |held_out| {
                SecondFit::Fitted(Box::new(held_out))
            });
        }
        let SecondFit::Fitted(held_out) = &self.second_fit else {
            return Ok(SearchForMap::NoData);
        };
        let with_features = self.frame.with_features.as_ref();
        let row_of_instance = with_features.map_or(&[][..], |d| d.row_of_instance.as_slice());
        let found = held_out.calibrator(spec, rows, row_of_instance, &job.cancel)?;
        let Some((map, n_points)) = found else {
            return Ok(SearchForMap::NoData);
        };
        if rows == RowKind::Posteriors {
            let confidences = held_out.confidences(&map, &fitted.posterior);
            if confidences.fall() {
                let Confidences { fewer, all, .. } = confidences;
                job.warn(format!(
                    "the posteriors are not calibrated: by the held-out annotations they would be less certain with all \
                     annotations ({all:.2} on average) than without the held-out ones ({fewer:.2}): give gold of the role \
                     `calibrate`, or choose a model whose posteriors are probabilities"
                ));
                return Ok(SearchForMap::Refused);
            }
        }
        Ok(SearchForMap::Found(FoundMap { map, n_points, role: None }))
    }

    /// The error that no row that a map could be fitted to has a known class or a held-out annotation.
    fn lack_after_fit(&self) -> Error {
        match self.second_fit {
            SecondFit::NotNeeded => no_gold(self.spec),
            SecondFit::NothingHeldOut => Error::data("no annotation is held out to calibrate by")
                .at("calibration.held_out")
                .found(self.frame.annotations.text_of_share(self.spec.held_out))
                .help("hold out more, or give gold of the role `calibrate`"),
            SecondFit::Fitted(_) => Error::data("there is nothing to calibrate by")
                .at("calibration.held_out")
                .found("no held-out annotation of an instance that keeps others")
                .help("hold out another share, or give gold of the role `calibrate`"),
        }
    }
}

impl FoundMap {
    /// What a person should know before they rely on the map: it has few points for so many classes, or none that it fits.
    fn warnings(&self, rows: RowKind, n_classes: usize) -> impl Iterator<Item = String> {
        let (rows, n) = (rows.word(), self.n_points);
        let wanted = match self.map {
            Calibrator::Isotonic { .. } => FEW_POINTS.max(FEW_POINTS_OF_CLASS * n_classes),
            _ => FEW_POINTS,
        };
        let few = (n < wanted).then(|| {
            format!(
                "the {rows} are calibrated by {n} instances only: a temperature wants {FEW_POINTS} and more, isotonic \
                 regression hundreds and at least {FEW_POINTS_OF_CLASS} for each class"
            )
        });
        let bound = self.map.temperature_at_bound().map(|temperature| {
            format!(
                "the temperature that calibrates the {rows} is {temperature}, the end of its range: the known classes or \
                 the held-out annotations contradict the model's probabilities; compare the scores with those of \
                 calibration.method = \"none\""
            )
        });
        few.into_iter().chain(bound)
    }

    /// The number of points that the map was fitted to, and its temperature, as metrics.
    fn metrics(&self, rows: RowKind) -> impl Iterator<Item = (String, &'static str, f64)> {
        let prefix = if rows == RowKind::Predictions { "prediction_" } else { "" };
        let split = self.role.map_or("annotations", Role::word);
        let temperature = match &self.map {
            Calibrator::Temperature { temperature, .. }
            | Calibrator::BiasCorrectedTemperature { temperature, .. } => {
                Some(("temperature", *temperature))
            }
            Calibrator::Isotonic { .. } => None,
        };
        let named = [("instances", self.n_points as f64)].into_iter().chain(temperature);
        named.map(move |(name, value)| (format!("{prefix}calibration_{name}"), split, value))
    }
}

fn apply(map: &Calibrator, frame: &Frame, fitted: &mut Fitted, rows: RowKind) {
    match rows {
        RowKind::Posteriors => fitted.posterior.calibrate(&frame.annotations, map),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::calibration::{Method, Points};

    #[test]
    fn few_points_for_the_classes_and_a_temperature_at_its_bound_are_worth_a_warning() {
        let warnings = |method, points: &[([f64; 2], usize)], n_points, n_classes| {
            let mut all = Points::new(2);
            points.iter().for_each(|(row, class)| all.push_class(row, *class, 1.0));
            let map = Calibrator::fit(method, 0.0, &all).unwrap();
            let found = FoundMap { map, n_points, role: None };
            found.warnings(RowKind::Posteriors, n_classes).collect::<Vec<_>>()
        };
        let (right, wrong) = (([0.9, 0.1], 0), ([0.9, 0.1], 1));
        let mixed = [right, right, right, wrong];
        for (method, n_points, n_classes, is_few) in [
            (Method::Temperature, 50, 200, false),
            (Method::Temperature, 49, 2, true),
            (Method::Isotonic, 50, 2, false),
            (Method::Isotonic, 500, 20, false),
            (Method::Isotonic, 499, 20, true),
        ] {
            let found = warnings(method, &mixed, n_points, n_classes);
            let few = format!("by {n_points} instances only");
            assert_eq!(found.iter().any(|warning| warning.contains(&few)), is_few, "{found:?}");
            assert_eq!(found.len(), usize::from(is_few), "{found:?}");
        }
        for (point, bound) in [(right, "is 0.05, the end"), (wrong, "is 1000, the end")] {
            let found = warnings(Method::Temperature, &[point], 50, 2);
            assert!(found.len() == 1 && found[0].contains(bound), "{found:?}");
        }
    }
}
