//! Maps that are fitted to rows whose classes are not known: each row comes with P(evidence about it given each class).
//!
//! A temperature, with biases or without, maximises the likelihood of the evidence directly. Isotonic regression needs
//! targets, and they follow from the map: both are estimated in turn, by EM.
//!
//! ```text
//! target[k] prop. to calibrated[k] * P(evidence given k)
//! ```

use rayon::prelude::*;

use super::points::TargetKind;
use super::temperature::MIN_FLOOR;
use super::{Calibrator, Method, Points, bias_corrected, temperature};
use crate::error::Result;
use crate::model::numerics::larger;
use crate::run::Cancel;

/// The largest number of rounds that estimate the targets from the map, and then the map from the targets.
const MAX_ROUNDS: usize = 300;

/// The rounds end when the square root of no target changes by more than this: near 0 and 1, where a target stands for
/// few instances, a small change counts.
const TOLERANCE: f64 = 1e-5;

/// The probability that the first round adds to all classes together. No evidence speaks for a class that the first map
/// excludes, however much of it there is: the class would stay excluded.
const START_SHARE: f64 = 1e-3;

/// A map that is fitted to evidence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LatentFit {
    /// The map.
    pub(crate) map: Calibrator,
    /// Whether the rounds have converged, where there are rounds.
    pub(crate) has_converged: bool,
}

impl Calibrator {
    /// The map of this method that fits best to the evidence; `None` for [`Method::None`] and without points. The targets
    /// of `points` are likelihoods; for `smoothing` see [`Calibrator::fit`].
    ///
    /// # Errors
    /// When the run is cancelled.
    pub(crate) fn fit_latent(
        method: Method,
        smoothing: f64,
        points: Points,
        cancel: &Cancel,
    ) -> Result<Option<LatentFit>> {
        cancel.check()?;
        if points.is_empty() || method == Method::None {
            return Ok(None);
        }
        let temperature = temperature::fit_latent(&points, smoothing, cancel)?;
        let map = match method {
            Method::None | Method::Temperature => Self::temperature(temperature),
            Method::BiasCorrectedTemperature => {
                let check = || cancel.check();
                let (temperature, biases) =
                    bias_corrected::fit_from((MIN_FLOOR, temperature), &points, smoothing, check)?;
                Self::BiasCorrectedTemperature { floor: MIN_FLOOR, temperature, biases }
            }
            Method::Isotonic => {
                return in_rounds(temperature, smoothing, points, MAX_ROUNDS, cancel).map(Some);
            }
        };
        Ok(Some(LatentFit { map, has_converged: true }))
    }
}

/// Isotonic regression in at most so many rounds, which begin at the map of this temperature: it is the best without
/// functions of the classes, so that few rounds are left.
fn in_rounds(
    temperature: f64,
    smoothing: f64,
    mut points: Points,
    max_rounds: usize,
    cancel: &Cancel,
) -> Result<LatentFit> {
    let zeros = vec![0.0; points.targets.len()];
    let likelihoods = std::mem::replace(&mut points.targets, zeros);
    points.target_kind = TargetKind::Distribution;
    let first = Calibrator::temperature(temperature);
    e_step(&first, START_SHARE, &likelihoods, &mut points);
    let mut map = Calibrator::isotonic(smoothing, &points);
    for _ in 1..max_rounds {
        cancel.check()?;
        if e_step(&map, 0.0, &likelihoods, &mut points) <= TOLERANCE {
            return Ok(LatentFit { map, has_converged: true });
        }
        map = Calibrator::isotonic(smoothing, &points);
    }
    Ok(LatentFit { map, has_converged: false })
}

/// Estimates the targets from the map, of whose rows a `share` is uniform; returns the largest change of the square root
/// of a target.
///
/// # Shapes
/// `likelihoods` is `[points, classes]`.
fn e_step(map: &Calibrator, share: f64, likelihoods: &[f64], points: &mut Points) -> f64 {
    let n = points.n_classes;
    let of_row = |row: &mut Vec<f64>, (p, likelihood, target): (&[f64], &[f64], &mut [f64])| {
        row.clear();
        row.extend_from_slice(p);
        map.apply(row);
        let prior = |p: f64| if share > 0.0 { p + share / n as f64 } else { p };
        row.iter_mut().zip(likelihood).for_each(|(p, l)| *p = prior(*p) * l);
        let sum: f64 = row.iter().sum();
        if sum > 0.0 {
            row.iter_mut().for_each(|p| *p /= sum);
        }
        let changes = row.iter().zip(&*target).map(|(new, old)| (new.sqrt() - old.sqrt()).abs());
        let moved = changes.fold(0.0, larger);
        target.copy_from_slice(row);
        moved
    };
    let rows = points.probabilities.par_chunks_exact(n).zip(likelihoods.par_chunks_exact(n));
    rows.zip(points.targets.par_chunks_exact_mut(n))
        .map_init(Vec::new, |row, ((p, likelihood), target)| of_row(row, (p, likelihood, target)))
        .reduce(|| 0.0, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Method; 3] =
        [Method::Temperature, Method::BiasCorrectedTemperature, Method::Isotonic];

    /// Points with the same row, labelled by annotators of this accuracy; `labels` has the number of points of each label.
    fn labelled(row: [f64; 2], accuracy: f64, labels: [usize; 2]) -> Points {
        let mut points = Points::of_likelihoods(2, labels[0] + labels[1]);
        for (label, n) in labels.into_iter().enumerate() {
            let mut likelihood = [1.0 - accuracy; 2];
            likelihood[label] = accuracy;
            (0..n).for_each(|_| points.push(&row, &likelihood, 1.0));
        }
        points
    }

    fn fit(method: Method, smoothing: f64, points: Points) -> LatentFit {
        Calibrator::fit_latent(method, smoothing, points, &Cancel::default()).unwrap().unwrap()
    }

    /// The row after calibration by the points.
    fn calibrated(method: Method, smoothing: f64, points: Points, row: [f64; 2]) -> [f64; 2] {
        let fitted = fit(method, smoothing, points);
        assert!(fitted.has_converged, "{method:?}");
        let mut row = row;
        fitted.map.apply(&mut row);
        row
    }

    /// Ten rows are [.9, .1]. Annotators with an accuracy of .7 label six as class 0 and four as class 1. With the
    /// share c of class 0, .7 c + .3 (1 - c) = .6 is most likely: c is 3 / 4, neither .9 nor the annotators' share, .6.
    #[test]
    fn the_map_is_that_of_the_class_and_not_of_the_labels_given() {
        for method in METHODS {
            let row = calibrated(method, 0.0, labelled([0.9, 0.1], 0.7, [6, 4]), [0.9, 0.1]);
            assert!((row[0] - 0.75).abs() < 1e-2, "{method:?}: {row:?}");
        }
    }

    /// Of rows that name class 0 with certainty, nine in ten are right. Annotators with an accuracy of .7 give class 0 to
    /// .66 of them, and those with one of .6 to .58: a fit that started at certainty would need many rounds. The labels of
    /// the latter tell so little that the pseudo-observations pull .9 by up to 9e-4: in isotonic regression, where each
    /// class has half a hit and half a miss more, the result is .8991.
    #[test]
    fn many_certain_rows_are_as_uncertain_as_the_annotations_say() {
        for (accuracy, labels) in [(0.7, [19_800, 10_200]), (0.6, [17_400, 12_600])] {
            for method in METHODS {
                let points = labelled([1.0, 0.0], accuracy, labels);
                let row = calibrated(method, 0.5, points, [1.0, 0.0]);
                assert!((row[0] - 0.9).abs() < 1e-3, "{method:?} {accuracy}: {row:?}");
            }
        }
    }

    /// All annotators of an accuracy of .7 agree with the rows, more than they would if all rows were right.
    #[test]
    fn certain_rows_that_annotations_confirm_stay_certain() {
        for method in METHODS {
            let row = calibrated(method, 0.5, labelled([1.0, 0.0], 0.7, [2000, 0]), [1.0, 0.0]);
            assert!(row[1] < 1e-2, "{method:?}: {row:?}");
        }
    }

    /// Annotators at chance level carry no information: the model's own probabilities stay.
    #[test]
    fn annotations_that_tell_nothing_change_nothing() {
        let mut points = Points::of_likelihoods(2, 2);
        points.push(&[0.9, 0.1], &[0.5, 0.5], 1.0);
        points.push(&[0.3, 0.7], &[0.5, 0.5], 1.0);
        let map = Calibrator::temperature(1.0);
        let want = LatentFit { map, has_converged: true };
        assert_eq!(fit(Method::Temperature, 0.0, points), want);
    }

    /// Rows of .6 are right in .55 of the cases, and rows of .9 in .95, which no temperature can express: the annotators
    /// agree with .52 of the former and with .68 of the latter.
    #[test]
    fn rounds_that_run_out_are_told_from_rounds_that_converge() {
        let points = || {
            let mut points = labelled([0.6, 0.4], 0.7, [52, 48]);
            let other = labelled([0.9, 0.1], 0.7, [68, 32]);
            let rows = other.probabilities.chunks(2).zip(other.targets.chunks(2));
            rows.for_each(|(row, likelihood)| points.push(row, likelihood, 1.0));
            points
        };
        let cancel = Cancel::default();
        let rounds = |max| in_rounds(1.0, 0.0, points(), max, &cancel).unwrap();
        assert!(!rounds(2).has_converged);
        let all = rounds(MAX_ROUNDS);
        assert!(all.has_converged);
        assert_eq!(rounds(2 * MAX_ROUNDS), all);
    }

    #[test]
    fn a_fit_to_evidence_can_be_interrupted() {
        let cancel = Cancel::default();
        assert!(cancel.request(15));
        for method in METHODS {
            let points = labelled([0.9, 0.1], 0.7, [6, 4]);
            let stopped = Calibrator::fit_latent(method, 0.5, points, &cancel);
            assert_eq!(stopped.unwrap_err().exit_code(), 143);
        }
    }
}
