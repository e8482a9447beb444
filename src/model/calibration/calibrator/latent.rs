//! Maps that are fitted to rows whose classes are not known: each row comes with P(evidence about it given each class).
//!
//! A temperature, with biases or without, maximises the likelihood of the evidence directly. Isotonic regression needs
//! targets, and they follow from the map: both are estimated in turn, as in EM.
//!
//! ```text
//! target[k] prop. to calibrated[k] * P(evidence given k)
//! ```

use rayon::prelude::*;

use super::isotonic::Isotonic;
use super::squarem::Squarem;
use super::temperature::MIN_FLOOR;
use super::{Calibrator, Method, Points, bias_corrected, temperature};
use crate::error::Result;
use crate::model::numerics::larger;
use crate::run::Run;

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
        points: &Points,
        run: &Run,
    ) -> Result<Option<LatentFit>> {
        let cancel = &run.cancel;
        cancel.check()?;
        if points.is_empty() || method == Method::None {
            return Ok(None);
        }
        let temperature = temperature::fit_latent(points, smoothing, cancel)?;
        let map = match method {
            Method::None | Method::Temperature => Self::temperature(temperature),
            Method::BiasCorrectedTemperature => {
                let check = || cancel.check();
                let (temperature, biases) =
                    bias_corrected::fit_from((MIN_FLOOR, temperature), points, smoothing, check)?;
                Self::BiasCorrectedTemperature { floor: MIN_FLOOR, temperature, biases }
            }
            Method::Isotonic => {
                return in_rounds(temperature, smoothing, points, MAX_ROUNDS, run).map(Some);
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
    points: &Points,
    max_rounds: usize,
    run: &Run,
) -> Result<LatentFit> {
    run.progress.begin("calibration", Some(max_rounds as u64));
    let mut targets = TargetBlocks::zeros(points);
    targets.estimate(&Calibrator::temperature(temperature), START_SHARE, points);
    let fit =
        |targets: &TargetBlocks| Isotonic::of_classes(points, |i, k| targets.of(i, k), smoothing);
    let classes = fit(&targets);
    let mut squarem = Squarem::start(&classes);
    let mut found = LatentFit { map: Calibrator::Isotonic { classes }, has_converged: false };
    for round in 1..max_rounds {
        run.cancel.check()?;
        let moved = targets.estimate(&found.map, 0.0, points);
        run.progress.at(round as u64, &format!("targets moved by {moved:.1e}"));
        tracing::debug!(round, moved, "calibration");
        if moved <= TOLERANCE && !squarem.is_extrapolated() {
            found.has_converged = true;
            break;
        }
        found.map = Calibrator::Isotonic { classes: squarem.next(fit(&targets), moved) };
    }
    run.progress.end();
    Ok(found)
}

/// Distributions of the classes of points, in blocks: all points of a block for one class, then for the next class.
///
/// # Why
/// Isotonic regression takes the points of a class in an order of its own. In blocks, the numbers of one class lie close
/// enough together to stay in the cache, and threads still write different points.
struct TargetBlocks {
    n_classes: usize,
    cells: Vec<f64>,
}

/// The points of a block.
const POINTS_PER_BLOCK: usize = 256;

impl TargetBlocks {
    fn zeros(points: &Points) -> Self {
        let n_blocks = points.len().div_ceil(POINTS_PER_BLOCK);
        let n_classes = points.n_classes;
        Self { n_classes, cells: vec![0.0; n_blocks * n_classes * POINTS_PER_BLOCK] }
    }

    /// P(class `k`) of point `i`.
    fn of(&self, i: usize, k: usize) -> f64 {
        let (block, in_block) = (i / POINTS_PER_BLOCK, i % POINTS_PER_BLOCK);
        self.cells[(block * self.n_classes + k) * POINTS_PER_BLOCK + in_block]
    }

    /// Estimates the distributions from the likelihoods of the points and from the map, of whose rows a `share` is uniform;
    /// returns the largest change of the square root of a probability.
    fn estimate(&mut self, map: &Calibrator, share: f64, points: &Points) -> f64 {
        let (n, size) = (self.n_classes, self.n_classes * POINTS_PER_BLOCK);
        let share = share / n as f64;
        let of_block = |row: &mut Vec<f64>, block: usize, cells: &mut [f64]| {
            let (first, mut moved) = (block * POINTS_PER_BLOCK, 0.0);
            for i in first..(first + POINTS_PER_BLOCK).min(points.len()) {
                let of_point = i * n..(i + 1) * n;
                row.clear();
                row.extend_from_slice(&points.probabilities[of_point.clone()]);
                map.apply(row);
                let likelihoods = &points.targets[of_point];
                row.iter_mut().zip(likelihoods).for_each(|(p, l)| *p = (*p + share) * l);
                let sum: f64 = row.iter().sum();
                let targets = cells[i - first..].iter_mut().step_by(POINTS_PER_BLOCK);
                for (p, target) in row.iter().zip(targets) {
                    let new = if sum > 0.0 { p / sum } else { *p };
                    moved = larger(moved, (new.sqrt() - target.sqrt()).abs());
                    *target = new;
                }
            }
            moved
        };
        let blocks = self.cells.par_chunks_exact_mut(size).enumerate();
        blocks
            .map_init(Vec::new, |row, (block, cells)| of_block(row, block, cells))
            .reduce(|| 0.0, larger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::posterior::best;

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

    fn fit(method: Method, smoothing: f64, points: &Points) -> LatentFit {
        Calibrator::fit_latent(method, smoothing, points, &Run::new(1)).unwrap().unwrap()
    }

    /// The row after calibration by the points.
    fn calibrated(method: Method, smoothing: f64, points: &Points, row: [f64; 2]) -> [f64; 2] {
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
            let row = calibrated(method, 0.0, &labelled([0.9, 0.1], 0.7, [6, 4]), [0.9, 0.1]);
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
        let map = Calibrator::temperature(1.0);
        let want = LatentFit { map, has_converged: true };
        assert_eq!(fit(Method::Temperature, 0.0, &points), want);
    }

    /// Rows and likelihoods of three classes, which differ from point to point, for more than two blocks.
    fn different_points() -> Points {
        let n = 2 * POINTS_PER_BLOCK + 5;
        let mut points = Points::of_likelihoods(3, n);
        for i in 0..n {
            let number = |k: usize, step: usize| 1.0 + ((i + 1) * (k + step) % 97) as f64;
            let row = [number(1, 0), number(2, 3), number(3, 7)];
            let sum: f64 = row.iter().sum();
            // The label is the class with the largest number, for two points of three.
            let label = if i % 3 == 0 { i % 2 } else { best(&row).unwrap().0 };
            let likelihood = [0, 1, 2].map(|k| if k == label { 0.5 } else { 0.25 });
            points.push(&row.map(|p| p / sum), &likelihood, 1.0);
        }
        points
    }

    #[test]
    fn every_point_has_its_own_target_in_its_block() {
        let points = different_points();
        let (mut targets, map) = (TargetBlocks::zeros(&points), Calibrator::temperature(2.0));
        let mut most = 0.0_f64;
        let moved = targets.estimate(&map, 0.3, &points);
        let likelihoods = points.targets.chunks(3);
        for (i, (p, likelihood)) in points.probabilities.chunks(3).zip(likelihoods).enumerate() {
            let mut row = p.to_vec();
            map.apply(&mut row);
            row.iter_mut().zip(likelihood).for_each(|(p, l)| *p = (*p + 0.1) * l);
            let sum: f64 = row.iter().sum();
            for (k, p) in row.iter().enumerate() {
                assert!((targets.of(i, k) - p / sum).abs() < 1e-12, "point {i}, class {k}");
                most = most.max((p / sum).sqrt());
            }
        }
        assert!((moved - most).abs() < 1e-12);
        assert_eq!(targets.estimate(&map, 0.3, &points), 0.0);
    }

    /// Without extrapolation, until the targets move by so little.
    fn plain_rounds(points: &Points, tolerance: f64) -> (Calibrator, usize) {
        let mut targets = TargetBlocks::zeros(points);
        targets.estimate(&Calibrator::temperature(1.0), START_SHARE, points);
        for round in 1.. {
            let classes = Isotonic::of_classes(points, |i, k| targets.of(i, k), 0.5);
            let map = Calibrator::Isotonic { classes };
            if targets.estimate(&map, 0.0, points) <= tolerance {
                return (map, round);
            }
        }
        unreachable!()
    }

    #[test]
    fn extrapolation_finds_the_map_of_plain_rounds_in_fewer() {
        let points = different_points();
        let (want, _) = plain_rounds(&points, 1e-9);
        let (_, n_plain) = plain_rounds(&points, TOLERANCE);
        assert!(n_plain > 60, "{n_plain}");
        let found = in_rounds(1.0, 0.5, &points, n_plain / 2, &Run::new(1)).unwrap();
        assert!(found.has_converged, "in half of {n_plain} rounds");
        for p in points.probabilities.chunks(3) {
            let [mut got, mut wanted] = [p.to_vec(), p.to_vec()];
            found.map.apply(&mut got);
            want.apply(&mut wanted);
            for (got, wanted) in got.iter().zip(&wanted) {
                assert!((got - wanted).abs() < 1e-4, "{p:?}: {got} is not {wanted}");
            }
        }
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
        let rounds = |max| in_rounds(1.0, 0.0, &points(), max, &Run::new(1)).unwrap();
        assert!(!rounds(2).has_converged);
        let all = rounds(MAX_ROUNDS);
        assert!(all.has_converged);
        for (p, want) in [(0.6, 0.55), (0.9, 0.95)] {
            let mut row = [p, 1.0 - p];
            all.map.apply(&mut row);
            assert!((row[0] - want).abs() < 1e-3, "{p}: {row:?}");
        }
    }

    #[test]
    fn a_fit_to_evidence_can_be_interrupted() {
        let run = Run::new(1);
        assert!(run.cancel.request(15));
        for method in METHODS {
            let points = labelled([0.9, 0.1], 0.7, [6, 4]);
            let stopped = Calibrator::fit_latent(method, 0.5, &points, &run);
            assert_eq!(stopped.unwrap_err().exit_code(), 143);
        }
    }
}
