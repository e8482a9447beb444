//! The data that a calibration map is fitted to.

use std::sync::OnceLock;

use rayon::prelude::*;

/// The data that a [`Calibrator`](super::Calibrator) is fitted to: rows of probabilities, what is known of their true
/// classes, and their weights.
///
/// # Shapes
/// `probabilities` and `targets` are `[points, classes]`, row-major; `weights` is `[points]`.
#[derive(Debug, Clone)]
pub struct Points {
    pub(super) n_classes: usize,
    pub(super) probabilities: Vec<f64>,
    pub(super) targets: Vec<f64>,
    pub(super) target_kind: TargetKind,
    pub(super) weights: Vec<f64>,
    /// The points by rounded probability, for each class: see [`Points::sorted`].
    sorted: OnceLock<Vec<SortedPoints>>,
}

/// The points in ascending order of their [`rounded`] probabilities of one class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SortedPoints {
    pub(super) points: Vec<u32>,
    /// The rounded probability of each of them.
    pub(super) probabilities: Vec<f64>,
}

/// The kind of the targets of [`Points`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetKind {
    /// The distribution of the point's class.
    Distribution,
    /// P(evidence about the point given each class), up to a factor for each point.
    Likelihood,
}

impl Points {
    /// No points yet.
    #[must_use]
    pub fn new(n_classes: usize) -> Self {
        Self::with_capacity(n_classes, TargetKind::Distribution, 0)
    }

    /// No points yet, with room for `n_points` whose class is not known: each target is P(evidence about the point given
    /// each class), up to a factor.
    pub(crate) fn of_likelihoods(n_classes: usize, n_points: usize) -> Self {
        Self::with_capacity(n_classes, TargetKind::Likelihood, n_points)
    }

    fn with_capacity(n_classes: usize, target_kind: TargetKind, n_points: usize) -> Self {
        let cells = || Vec::with_capacity(n_points * n_classes);
        Self {
            n_classes,
            probabilities: cells(),
            targets: cells(),
            target_kind,
            weights: Vec::with_capacity(n_points),
            sorted: OnceLock::new(),
        }
    }

    /// Adds a row whose class is known. A row of zeros carries no information and is left out.
    pub fn push_class(&mut self, probabilities: &[f64], class: usize, weight: f64) {
        let target: Vec<f64> =
            (0..self.n_classes).map(|k| f64::from(u8::from(k == class))).collect();
        self.push(probabilities, &target, weight);
    }

    /// Adds a row with its target: the distribution of its class, unless the targets are likelihoods. A row of zeros, or
    /// without weight, or with evidence against all classes, carries no information and is left out.
    pub fn push(&mut self, probabilities: &[f64], target: &[f64], weight: f64) {
        let informs = |row: &[f64]| row.iter().any(|p| *p > 0.0);
        if informs(probabilities) && informs(target) && weight > 0.0 {
            self.probabilities.extend_from_slice(probabilities);
            self.targets.extend_from_slice(target);
            self.weights.push(weight);
            self.sorted = OnceLock::new();
        }
    }

    /// The number of points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether the list has no points.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The points in the order of each class. They are sorted once, in parallel, for all fits to these points with one
    /// target after the other.
    pub(super) fn sorted(&self) -> &[SortedPoints] {
        self.sorted.get_or_init(|| {
            let sort = |class: usize| {
                let column = self.probabilities.iter().skip(class).step_by(self.n_classes);
                let keys: Vec<f64> = column.map(|p| rounded(*p)).collect();
                let mut points: Vec<u32> = (0..keys.len() as u32).collect();
                points.sort_by(|i, j| keys[*i as usize].total_cmp(&keys[*j as usize]));
                let probabilities = points.iter().map(|i| keys[*i as usize]).collect();
                SortedPoints { points, probabilities }
            };
            (0..self.n_classes).into_par_iter().map(sort).collect()
        })
    }

    /// The sum of all weights.
    pub(super) fn weight(&self) -> f64 {
        self.weights.iter().sum()
    }
}

/// A function that keeps its last value: a row of many classes has long runs of equal cells, most of them 0.
pub(super) fn remembering(f: impl Fn(f64) -> f64) -> impl FnMut(f64) -> f64 {
    let mut last = None;
    move |x| match last {
        Some((bits, y)) if bits == x.to_bits() => y,
        _ => {
            let y = f(x);
            last = Some((x.to_bits(), y));
            y
        }
    }
}

/// Fitted numbers are rounded to multiples of one over this, so that a saved model's text parses to the same bits.
const PRECISION: f64 = 1e12;

pub(super) fn rounded(value: f64) -> f64 {
    (value * PRECISION).round() / PRECISION
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_further_point_is_sorted_among_the_others() {
        let mut points = Points::new(2);
        points.push_class(&[0.9, 0.1], 0, 1.0);
        points.push_class(&[0.3, 0.7], 1, 1.0);
        let of = |points: &[u32], probabilities: &[f64]| SortedPoints {
            points: points.to_vec(),
            probabilities: probabilities.to_vec(),
        };
        assert_eq!(points.sorted(), [of(&[1, 0], &[0.3, 0.9]), of(&[0, 1], &[0.1, 0.7])]);
        points.push_class(&[0.5, 0.5], 1, 1.0);
        let want = [of(&[1, 2, 0], &[0.3, 0.5, 0.9]), of(&[0, 2, 1], &[0.1, 0.5, 0.7])];
        assert_eq!(points.sorted(), want);
    }

    #[test]
    fn points_that_carry_no_information_are_left_out() {
        let mut points = Points::of_likelihoods(2, 1);
        points.push(&[0.0, 0.0], &[1.0, 0.5], 1.0);
        points.push(&[0.9, 0.1], &[0.0, 0.0], 1.0);
        points.push(&[0.9, 0.1], &[1.0, 0.5], 0.0);
        assert!(points.is_empty());
        points.push(&[1.0, 0.0], &[0.0, 1.0], 1.0);
        assert_eq!(points.len(), 1);
    }

    #[test]
    fn equal_cells_in_a_row_are_evaluated_once() {
        let evaluations = Cell::new(0);
        let mut half = remembering(|x| {
            evaluations.set(evaluations.get() + 1);
            x / 2.0
        });
        assert_eq!([0.0, 0.0, 3.0, 0.0, 0.0].map(&mut half), [0.0, 0.0, 1.5, 0.0, 0.0]);
        assert_eq!(evaluations.get(), 3);
    }
}
