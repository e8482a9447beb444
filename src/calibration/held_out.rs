//! Calibration without gold: the map is fitted to held-out annotations and the rows of a model that did not see them.

use std::borrow::Cow;
use std::mem::replace;

use rand::Rng as _;
use rayon::prelude::*;

use super::likelihoods::log_likelihoods;
use super::{CalibrationSpec, Calibrator, Points};
use crate::error::{Error, Result};
use crate::frame::{Annotations, Evidence};
use crate::model::Model;
use crate::model::fitted::Fitted;
use crate::run::{Cancel, Run};

/// The largest number of rounds that estimate the targets from the map, and then the map from the targets.
const MAX_ROUNDS: usize = 100;

/// The rounds end when no probability changes by more than this.
const TOLERANCE: f64 = 1e-5;

/// The second fit, in warnings and errors.
const SECOND_FIT: &str = "the fit without held-out annotations";

/// A fit to a part of the annotations, and the held-out rest.
pub(super) struct HeldOut {
    training: Annotations,
    annotations: Annotations,
    fitted: Fitted,
    /// ln P(label given class) of each held-out (annotator, label) pair, `[column, class]`.
    log_likelihoods: Vec<f64>,
}

/// The rows that a map calibrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Posteriors. They are compared with held-out annotations of instances that keep other annotations.
    Posteriors,
    /// Predictions. They are compared with held-out annotations of instances that keep none.
    Predictions,
}

impl RowKind {
    /// The word in warnings.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Posteriors => "posteriors",
            Self::Predictions => "predictions",
        }
    }
}

impl HeldOut {
    /// Fits the model without a share of the annotations; `None` where none of them can be held out.
    ///
    /// # Errors
    /// When the fit fails.
    pub(super) fn fit(
        spec: &CalibrationSpec,
        model: &dyn Model,
        evidence: Evidence<'_>,
        run: &mut Run,
    ) -> Result<Option<Self>> {
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
            return Ok(None);
        }
        run.warn_of_part(Some(SECOND_FIT));
        let fitted = model.fit(Evidence { annotations: &training, ..evidence }, run);
        run.warn_of_part(None);
        let fitted = fitted.map_err(|e| e.about(SECOND_FIT))?;
        if let Some(what) = fitted.not_finite() {
            return Err(Error::bug(format!("{SECOND_FIT} gave NaN or an infinity: {what}")));
        }
        let log_likelihoods = log_likelihoods(&training, &held_out, &fitted.report);
        Ok(Some(Self { training, annotations: held_out, fitted, log_likelihoods }))
    }

    /// The map of these rows, and the number of points that it was fitted to; `None` where no held-out annotation
    /// belongs to such a row.
    ///
    /// # Errors
    /// When the run is cancelled.
    pub(super) fn calibrator(
        &self,
        spec: &CalibrationSpec,
        rows: RowKind,
        row_of_instance: &[Option<u32>],
        cancel: &Cancel,
    ) -> Result<Option<(Calibrator, usize)>> {
        let (a, n) = (&self.annotations, self.annotations.dims().classes);
        let mut points = Points::new(n);
        let mut likelihoods = Vec::new();
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
                likelihoods.extend(self.likelihood(i));
            }
        }
        let n_points = points.len();
        let map = fit_through(spec, points, &likelihoods, cancel)?;
        Ok(map.map(|map| (map, n_points)))
    }

    /// P(the held-out annotations of instance `i` given each class), up to a factor.
    fn likelihood(&self, i: usize) -> Vec<f64> {
        let n = self.annotations.dims().classes;
        let mut logs = vec![0.0; n];
        for (column, weight) in self.annotations.annotations_of(i) {
            let cells = &self.log_likelihoods[column as usize * n..(column as usize + 1) * n];
            logs.iter_mut().zip(cells).for_each(|(log, cell)| *log += weight * cell);
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|log| (log - most).exp()).collect()
    }
}

/// The reason why no annotation can be held out and compared, whatever is drawn; `None` where one can. Posteriors are
/// compared with annotations of instances that keep others; only a model that `predicts` uses those of other instances.
pub(super) fn nothing_to_hold_out(a: &Annotations, predicts: bool) -> Option<&'static str> {
    let mut is_known = vec![false; a.dims().annotators];
    let mut is_anyone_known = false;
    for i in 0..a.dims().instances {
        let (mut n_annotators, mut n_known) = (0, 0);
        let same = |one: &u32, next: &u32| a.annotator_of(*one) == a.annotator_of(*next);
        for columns in a.columns_of_instance(i).chunk_by(same) {
            n_annotators += 1;
            let was_known = replace(&mut is_known[a.annotator_of(columns[0]) as usize], true);
            n_known += usize::from(was_known);
        }
        is_anyone_known |= n_known > 0;
        if n_known > 0 && (predicts || n_annotators > 1) && a.trusted_class(i).is_none() {
            return None;
        }
    }
    Some(if is_anyone_known {
        "no instance without a trusted class keeps an annotation when another is held out"
    } else {
        "each annotator has a single annotation, which is never held out"
    })
}

/// The map that fits best to the targets which follow from the map: for a temperature, with biases or without, that of
/// maximum likelihood, by EM. `likelihoods` are P(held-out annotations given class) of each point, up to a factor for
/// each point.
///
/// # Errors
/// When the run is cancelled.
///
/// # Shapes
/// `likelihoods` is `[points, classes]`.
fn fit_through(
    spec: &CalibrationSpec,
    mut points: Points,
    likelihoods: &[f64],
    cancel: &Cancel,
) -> Result<Option<Calibrator>> {
    let n = points.n_classes;
    let mut calibrated = points.probabilities.clone();
    let mut map = None;
    for _ in 0..MAX_ROUNDS {
        cancel.check()?;
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
        let Some(next) = Calibrator::fit(spec.method, spec.smoothing, &points) else { break };
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
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Method;
    use crate::model::vote::MajorityVote;
    use crate::testing::tiny;

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
        let cancel = Cancel::default();
        for method in [Method::Temperature, Method::Isotonic] {
            let spec = CalibrationSpec { method, smoothing: 0.0, ..CalibrationSpec::default() };
            let map = fit_through(&spec, points.clone(), &likelihoods, &cancel).unwrap().unwrap();
            let mut row = [0.9, 0.1];
            map.apply(&mut row);
            assert!((row[0] - 0.75).abs() < 1e-2, "{method:?}: {row:?}");
        }
        assert!(cancel.request(15));
        let stopped = fit_through(&CalibrationSpec::default(), points, &likelihoods, &cancel);
        assert_eq!(stopped.unwrap_err().exit_code(), 143);
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
        let map = fit_through(&spec, points, &[0.5; 4], &Cancel::default()).unwrap();
        assert_eq!(map, Some(Calibrator::Temperature { temperature: 1.0 }));
    }

    /// A majority vote that warns of fewer annotations than `all`, or fails.
    struct OfAll {
        all: usize,
        fails: bool,
    }

    impl Model for OfAll {
        fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
            if evidence.annotations.len() < self.all {
                if self.fails {
                    return Err(Error::fit("no optimum"));
                }
                run.warn("few rows");
            }
            MajorityVote::default().fit(evidence, run)
        }
    }

    #[test]
    fn warnings_and_errors_of_the_second_fit_say_where_they_come_from() {
        let a = tiny(2, &(0..40).map(|n| (n / 2, n % 2, n % 2)).collect::<Vec<_>>());
        let (spec, mut run) = (CalibrationSpec::default(), Run::new(1));
        let fit = |fails, run: &mut Run| {
            HeldOut::fit(&spec, &OfAll { all: a.len(), fails }, (&a).into(), run)
        };
        assert!(fit(false, &mut run).unwrap().is_some());
        run.warn("few rows");
        let want = ["the fit without held-out annotations: few rows", "few rows"];
        assert_eq!(run.warnings(), want);
        let error = fit(true, &mut run).err().unwrap();
        assert_eq!(error.exit_code(), 4);
        assert_eq!(error.to_string(), "error: the fit without held-out annotations: no optimum");
    }

    /// The first annotation of an annotator is never held out, and a trusted instance has no posterior to calibrate.
    #[test]
    fn annotations_that_cannot_be_held_out_or_compared_are_known_before_the_fit() {
        let single = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 2, 0)]);
        let found = nothing_to_hold_out(&single, true).unwrap();
        assert!(found.starts_with("each annotator has a single annotation"), "{found}");
        let alone = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        let found = nothing_to_hold_out(&alone, false).unwrap();
        assert!(found.starts_with("no instance without a trusted class"), "{found}");
        assert_eq!(nothing_to_hold_out(&alone, true), None);
        let mut pair = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 1)]);
        assert_eq!(nothing_to_hold_out(&pair, false), None);
        pair.trusted = Some(vec![None, Some(1)]);
        assert!(nothing_to_hold_out(&pair, false).is_some());
        let soft = tiny(2, &[(0, 0, 0), (0, 0, 1), (1, 1, 1)]);
        assert!(nothing_to_hold_out(&soft, true).is_some(), "two rows of one answer");
    }

    /// The only annotation of an annotator is never held out.
    #[test]
    fn without_an_annotation_to_hold_out_there_is_no_second_fit() {
        let (spec, a) = (CalibrationSpec::default(), tiny(2, &[(0, 0, 0), (1, 1, 1)]));
        let model = OfAll { all: 3, fails: true };
        assert!(HeldOut::fit(&spec, &model, (&a).into(), &mut Run::new(1)).unwrap().is_none());
    }
}
