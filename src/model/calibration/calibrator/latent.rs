//! Maps that are fitted to rows whose classes are not known: each row comes with P(evidence about it given each class).
//!
//! A temperature, with biases or without, maximises the likelihood of the evidence. Isotonic regression has no such fit: it
//! needs known classes.

use super::temperature::MIN_FLOOR;
use super::{Calibrator, Method, Points, bias_corrected, temperature};
use crate::error::Result;
use crate::job_context::Cancel;

impl Calibrator {
    /// The map of this method that fits best to the evidence; `None` for [`Method::None`], for [`Method::Isotonic`] and
    /// without points. The targets of `points` are likelihoods; for `smoothing` see [`Calibrator::fit`].
    pub(crate) fn fit_latent(
        method: Method,
        smoothing: f64,
        points: &Points,
        cancel: &Cancel,
    ) -> Result<Option<Self>> {
        cancel.check()?;
        if points.is_empty() || matches!(method, Method::None | Method::Isotonic) {
            return Ok(None);
        }
        let temperature = temperature::fit_latent(points, smoothing, cancel)?;
        if method == Method::Temperature {
            return Ok(Some(Self::temperature(temperature)));
        }
        let start = (MIN_FLOOR, temperature);
        let (temperature, biases) =
            bias_corrected::fit_from(start, points, smoothing, || cancel.check())?;
        Ok(Some(Self::BiasCorrectedTemperature { floor: MIN_FLOOR, temperature, biases }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Method; 2] = [Method::Temperature, Method::BiasCorrectedTemperature];

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

    fn fit(method: Method, smoothing: f64, points: &Points) -> Calibrator {
        Calibrator::fit_latent(method, smoothing, points, &Cancel::default()).unwrap().unwrap()
    }

    /// The row after calibration by the points.
    fn calibrated(method: Method, smoothing: f64, points: &Points, row: [f64; 2]) -> [f64; 2] {
        let mut row = row;
        fit(method, smoothing, points).apply(&mut row);
        row
    }

    /// Ten rows are [.9, .1]. Annotators with an accuracy of .7 label six as class 0 and four as class 1. With the
    /// share c of class 0, .7 c + .3 (1 - c) = .6 is most likely: c is 3 / 4, neither .9 nor the annotators' share, .6.
    #[test]
    fn the_map_is_that_of_the_class_and_not_of_the_labels_given() {
        for method in METHODS {
            let row = calibrated(method, 0.0, &labelled([0.9, 0.1], 0.7, [6, 4]), [0.9, 0.1]);
            assert!((row[0] - 0.75).abs() < 1e-2, "{method:?}: {row:?}");
        }
    }

    /// Of rows that name class 0 with certainty, nine in ten are right. Annotators with an accuracy of .7 give class 0 to
    /// .66 of them, and those with one of .6 to .58: a fit that started at certainty would need many rounds. The labels of
    /// the latter tell so little that the pseudo-observations pull .9 by up to 9e-4.
    #[test]
    fn many_certain_rows_are_as_uncertain_as_the_annotations_say() {
        for (accuracy, labels) in [(0.7, [19_800, 10_200]), (0.6, [17_400, 12_600])] {
            for method in METHODS {
                let points = labelled([1.0, 0.0], accuracy, labels);
                let row = calibrated(method, 0.5, &points, [1.0, 0.0]);
                assert!((row[0] - 0.9).abs() < 1e-3, "{method:?} {accuracy}: {row:?}");
            }
        }
    }

    /// All annotators of an accuracy of .7 agree with the rows, more than they would if all rows were right.
    #[test]
    fn certain_rows_that_annotations_confirm_stay_certain() {
        for method in METHODS {
            let row = calibrated(method, 0.5, &labelled([1.0, 0.0], 0.7, [2000, 0]), [1.0, 0.0]);
            assert!(row[1] < 1e-2, "{method:?}: {row:?}");
        }
    }

    /// Annotators at chance level carry no information: the model's own probabilities stay.
    #[test]
    fn annotations_that_tell_nothing_change_nothing() {
        let mut points = Points::of_likelihoods(2, 2);
        points.push(&[0.9, 0.1], &[0.5, 0.5], 1.0);
        points.push(&[0.3, 0.7], &[0.5, 0.5], 1.0);
        assert_eq!(fit(Method::Temperature, 0.0, &points), Calibrator::temperature(1.0));
    }

    #[test]
    fn a_fit_to_evidence_can_be_interrupted() {
        let cancel = Cancel::default();
        assert!(cancel.request(15));
        for method in METHODS {
            let points = labelled([0.9, 0.1], 0.7, [6, 4]);
            let stopped = Calibrator::fit_latent(method, 0.5, &points, &cancel);
            assert_eq!(stopped.unwrap_err().exit_code(), 143);
        }
    }
}
