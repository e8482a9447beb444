//! Calibration without gold: the map is fitted to held-out annotations and the rows of a model that did not see them.

use std::borrow::Cow;

use rand::Rng as _;
use rayon::prelude::*;

use super::{CalibrationSpec, Calibrator, Points};
use crate::error::{Error, Result};
use crate::frame::{Annotations, Evidence};
use crate::model::Model;
use crate::model::fitted::Fitted;
use crate::model::numerics::MIN_PROBABILITY;
use crate::run::Run;

/// The largest number of rounds that estimate the targets from the map, and then the map from the targets.
const MAX_ROUNDS: usize = 100;

/// The rounds end when no probability changes by more than this.
const TOLERANCE: f64 = 1e-5;

/// A fit to a part of the annotations, and the held-out rest.
pub(super) struct HeldOut {
    training: Annotations,
    annotations: Annotations,
    fitted: Fitted,
}

/// The rows that a map calibrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Posteriors. They are compared with held-out annotations of instances that keep other annotations.
    Posteriors,
    /// Predictions. They are compared with held-out annotations of instances that keep none.
    Predictions,
}

impl HeldOut {
    /// Fits the model without a share of the annotations.
    pub(super) fn fit(
        spec: &CalibrationSpec,
        model: &dyn Model,
        evidence: Evidence<'_>,
        run: &mut Run,
    ) -> Result<Self> {
        let a = evidence.annotations;
        let mut rng = run.rng("annotations held out to calibrate");
        // With a classifier, which predicts without annotations, half of the share are whole instances.
        let single = if evidence.described.is_some() { spec.held_out / 2.0 } else { spec.held_out };
        let mut whole = None;
        let [training, held_out] = a.hold_out(|i| {
            if whole.is_none_or(|(instance, _)| instance != i) {
                whole = Some((i, rng.random::<f64>() < spec.held_out - single));
            }
            whole.is_some_and(|(_, is_whole)| is_whole) || rng.random::<f64>() < single
        })?;
        if held_out.is_empty() {
            return Err(Error::data("no annotation is held out to calibrate by")
                .at("calibration.held_out")
                .found(format!(
                    "a share of {} of {} annotations, without the first of each annotator",
                    spec.held_out,
                    a.len()
                ))
                .help("hold out more, or give gold of the role `calibrate`"));
        }
        let fitted = model.fit(Evidence { annotations: &training, ..evidence }, run)?;
        match fitted.not_finite() {
            Some(what) => Err(Error::bug(format!("the fit gave NaN or an infinity: {what}"))),
            None => Ok(Self { training, annotations: held_out, fitted }),
        }
    }

    /// The map of these rows, and the number of points that it was fitted to; `None` where no held-out annotation
    /// belongs to such a row.
    pub(super) fn calibrator(
        &self,
        spec: &CalibrationSpec,
        rows: RowKind,
        row_of_instance: &[Option<u32>],
    ) -> Option<(Calibrator, usize)> {
        let (a, n) = (&self.annotations, self.annotations.dims().classes);
        let mut points = Points::new(n);
        let (mut likelihoods, columns) = (Vec::new(), self.log_columns());
        for i in 0..a.dims().instances {
            if a.trusted_class(i).is_some() || a.columns_of_instance(i).is_empty() {
                continue;
            }
            let keeps_others = self.training.has_evidence(i);
            let row = match rows {
                RowKind::Posteriors if keeps_others => Some(self.fitted.posterior.row(i)),
                RowKind::Predictions if !keeps_others => {
                    let row = row_of_instance.get(i).copied().flatten();
                    row.zip(self.fitted.predictions.as_ref())
                        .map(|(r, p)| Cow::Borrowed(p.row(r as usize)))
                }
                _ => None,
            };
            let Some(row) = row else { continue };
            let before = points.len();
            points.push(&row, &row, 1.0);
            if points.len() > before {
                likelihoods.extend(self.likelihood(i, &columns));
            }
        }
        let n_points = points.len();
        let map = fit_through(spec, points, &likelihoods)?;
        Some((map, n_points))
    }

    /// ln P(label given class) of each held-out (annotator, label) pair, `[column, class]`.
    fn log_columns(&self) -> Vec<f64> {
        let (a, dims, report) = (&self.annotations, self.annotations.dims(), &self.fitted.report);
        let mut logs = Vec::with_capacity(a.n_columns() * dims.classes);
        for column in 0..a.n_columns() as u32 {
            let (r, label) = (a.annotator_of(column) as usize, a.label_of(column) as usize);
            let cells = if let Some(confusion) = &report.confusion {
                confusion.column(&self.training, r, label)
            } else {
                let skill = report.skill.get(r).copied().unwrap_or_default();
                let wrong = (1.0 - skill) / (dims.labels.max(2) - 1) as f64;
                (0..dims.classes).map(|k| if k == label { skill } else { wrong }).collect()
            };
            logs.extend(cells.into_iter().map(|p| p.max(MIN_PROBABILITY).ln()));
        }
        logs
    }

    /// P(the held-out annotations of instance `i` given each class), up to a factor.
    fn likelihood(&self, i: usize, columns: &[f64]) -> Vec<f64> {
        let n = self.annotations.dims().classes;
        let mut logs = vec![0.0; n];
        for (column, weight) in self.annotations.annotations_of(i) {
            let cells = &columns[column as usize * n..(column as usize + 1) * n];
            logs.iter_mut().zip(cells).for_each(|(log, cell)| *log += weight * cell);
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|log| (log - most).exp()).collect()
    }
}

/// The maximum-likelihood map, by EM. `likelihoods` are P(held-out annotations given class) of each point, up to a
/// factor for each point.
///
/// # Shapes
/// `likelihoods` is `[points, classes]`.
fn fit_through(
    spec: &CalibrationSpec,
    mut points: Points,
    likelihoods: &[f64],
) -> Option<Calibrator> {
    let n = points.n_classes;
    let mut calibrated = points.probabilities.clone();
    let mut map = None;
    for _ in 0..MAX_ROUNDS {
        let cells = calibrated.par_chunks_exact(n).zip(likelihoods.par_chunks_exact(n));
        cells.zip(points.targets.par_chunks_exact_mut(n)).for_each(
            |((prior, likelihood), target)| {
                let product = prior.iter().zip(likelihood).map(|(p, l)| p * l);
                target.iter_mut().zip(product).for_each(|(t, p)| *t = p);
                let sum: f64 = target.iter().sum();
                if sum > 0.0 {
                    target.iter_mut().for_each(|t| *t /= sum);
                } else {
                    target.copy_from_slice(prior);
                }
            },
        );
        let next = Calibrator::fit(spec.method, spec.smoothing, &points)?;
        let rows = points.probabilities.par_chunks_exact(n).zip(calibrated.par_chunks_exact_mut(n));
        let apply = |row: &mut Vec<f64>, (p, calibrated): (&[f64], &mut [f64])| {
            row.clear();
            row.extend_from_slice(p);
            next.apply(row);
            let changes = row.iter().zip(&*calibrated).map(|(new, old)| (new - old).abs());
            let moved = changes.fold(0.0, f64::max);
            calibrated.copy_from_slice(row);
            moved
        };
        let moved = rows.map_init(Vec::new, apply).reduce(|| 0.0, f64::max);
        map = Some(next);
        if moved <= TOLERANCE {
            break;
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Method;

    /// Ten rows are [.9, .1]. Annotators with an accuracy of .7 label six as class 0 and four as class 1. With the
    /// share c of class 0, .7 c + .3 (1 - c) = .6 is most likely: c is 3 / 4, neither .9 nor the annotators' share, .6.
    #[test]
    fn the_map_is_that_of_the_class_and_not_of_the_labels_given() {
        let mut points = Points::new(2);
        let mut likelihoods = Vec::new();
        for i in 0..10 {
            points.push(&[0.9, 0.1], &[0.9, 0.1], 1.0);
            likelihoods.extend(if i < 6 { [0.7, 0.3] } else { [0.3, 0.7] });
        }
        for method in [Method::Temperature, Method::Isotonic] {
            let spec = CalibrationSpec { method, smoothing: 0.0, ..CalibrationSpec::default() };
            let map = fit_through(&spec, points.clone(), &likelihoods).unwrap();
            let mut row = [0.9, 0.1];
            map.apply(&mut row);
            assert!((row[0] - 0.75).abs() < 1e-2, "{method:?}: {row:?}");
        }
    }

    /// Annotators at chance level carry no information: the model's own probabilities stay.
    #[test]
    fn annotations_that_tell_nothing_change_nothing() {
        let mut points = Points::new(2);
        points.push(&[0.9, 0.1], &[0.9, 0.1], 1.0);
        points.push(&[0.3, 0.7], &[0.3, 0.7], 1.0);
        let spec = CalibrationSpec {
            method: Method::Temperature,
            smoothing: 0.0,
            ..CalibrationSpec::default()
        };
        let map = fit_through(&spec, points, &[0.5; 4]).unwrap();
        assert_eq!(map, Calibrator::Temperature { temperature: 1.0 });
    }
}
