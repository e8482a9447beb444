//! Isotonic regression of one class against all others, by pool-adjacent-violators.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::points::{Points, SortedPoints, rounded};

/// The slope that is added to the fitted function, so that pooled probabilities keep their order.
const SLOPE: f64 = 1e-6;

/// Added to every value, so that no row is all zero.
const MIN_VALUE: f64 = 1e-20;

/// An increasing function of a class's probability: linear between its knots, constant beyond them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isotonic {
    /// The probabilities of the knots, strictly increasing.
    at: Vec<f64>,
    /// The calibrated probability at each knot, non-decreasing.
    value: Vec<f64>,
}

/// Neighbouring points that share one value.
struct Pool {
    first: f64,
    last: f64,
    hits: f64,
    weight: f64,
    value: f64,
}

impl Pool {
    fn new(at: f64, hits: f64, weight: f64) -> Self {
        Self { first: at, last: at, hits, weight, value: hits / weight }
    }

    /// Joins the pool before this one.
    fn join(&mut self, before: &Self) {
        self.first = before.first;
        self.hits += before.hits;
        self.weight += before.weight;
        self.value = self.hits / self.weight;
    }
}

impl Isotonic {
    /// The function of each class, given `target(point, class)`.
    pub(super) fn of_classes(
        points: &Points,
        target: impl Fn(usize, usize) -> f64 + Sync,
        smoothing: f64,
    ) -> Vec<Self> {
        // Sorted before the classes are fitted in parallel: each fit would wait until all classes are sorted.
        points.sorted();
        let of_class = |k| Self::fit(points, k, |i| target(i, k), smoothing);
        (0..points.n_classes).into_par_iter().map(of_class).collect()
    }

    /// The function of class `k` with the least squared error from the class's target at each point. A class that is the
    /// target of no point keeps its probabilities: the points do not show when it is right.
    fn fit(points: &Points, k: usize, target: impl Fn(usize) -> f64, smoothing: f64) -> Self {
        let SortedPoints { points: order, probabilities } = &points.sorted()[k];
        // Collected first: the processor overlaps random reads that depend on no earlier result.
        let found: Vec<(f64, f64)> =
            order.iter().map(|i| (target(*i as usize), points.weights[*i as usize])).collect();
        if !found.iter().any(|(target, _)| *target > 0.0) {
            return Self { at: vec![0.0, 1.0], value: vec![0.0, 1.0] };
        }
        let (mut pools, mut begin): (Vec<Pool>, usize) = (Vec::new(), 0);
        for equal in probabilities.chunk_by(|a, b| a == b) {
            let end = begin + equal.len();
            // A pseudo-hit at the lowest probability and a pseudo-miss at the highest keep both ends away from 0 and 1.
            let mut hits = if begin == 0 { smoothing } else { 0.0 };
            let mut weight = hits;
            for (target, own) in &found[begin..end] {
                hits += own * target;
                weight += own;
            }
            if end == order.len() {
                weight += smoothing;
            }
            begin = end;
            let mut pool = Pool::new(equal[0], hits, weight);
            while let Some(before) = pools.pop_if(|before| before.value >= pool.value) {
                pool.join(&before);
            }
            pools.push(pool);
        }
        let (mut at, mut value) = (Vec::new(), Vec::new());
        for pool in &pools {
            let height = rounded(pool.value).clamp(0.0, 1.0);
            at.push(pool.first);
            value.push(height);
            if pool.last > pool.first {
                at.push(pool.last);
                value.push(height);
            }
        }
        Self { at, value }
    }

    /// The calibrated probability, before the row is normalised.
    pub(super) fn apply(&self, p: f64) -> f64 {
        let after = self.at.partition_point(|at| *at < p);
        self.height(after, p) + SLOPE * p + MIN_VALUE
    }

    /// The height at `p`; `after` is the number of knots below `p`.
    fn height(&self, after: usize, p: f64) -> f64 {
        if after == 0 {
            self.value[0]
        } else if after == self.at.len() {
            self.value[after - 1]
        } else {
            let (low, high) = (self.at[after - 1], self.at[after]);
            let share = (p - low) / (high - low);
            self.value[after - 1] + share * (self.value[after] - self.value[after - 1])
        }
    }

    /// Whether this is an increasing function; a deserialised one may not be.
    pub(super) fn is_valid(&self) -> bool {
        let all = || self.at.iter().chain(&self.value);
        !self.at.is_empty()
            && self.at.len() == self.value.len()
            && all().all(|v| (0.0..=1.0).contains(v))
            && self.at.windows(2).all(|w| w[0] < w[1])
            && self.value.windows(2).all(|w| w[0] <= w[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(rows: &[(f64, f64, f64)]) -> Points {
        let mut points = Points::new(2);
        for (p, target, weight) in rows {
            points.push(&[1.0 - p, *p], &[1.0 - target, *target], *weight);
        }
        points
    }

    /// The function of class 1.
    fn fit(points: &Points, smoothing: f64) -> Isotonic {
        Isotonic::fit(points, 1, |i| points.targets[2 * i + 1], smoothing)
    }

    /// Sorted by the probability: .1 missed (weight 2), .3 hit (1), .4 missed (3), .6 hit (1) and missed (1) at once,
    /// .8 hit (2). .3 and .4 are pooled to 1 / 4; .1 stays 0, .6 is 1 / 2, .8 is 1.
    #[test]
    fn violators_are_pooled_by_weight() {
        let rows = [
            (0.8, 1.0, 2.0),
            (0.4, 0.0, 3.0),
            (0.6, 1.0, 1.0),
            (0.1, 0.0, 2.0),
            (0.3, 1.0, 1.0),
            (0.6, 0.0, 1.0),
        ];
        let fitted = fit(&points(&rows), 0.0);
        assert_eq!(fitted.at, [0.1, 0.3, 0.4, 0.6, 0.8]);
        assert_eq!(fitted.value, [0.0, 0.25, 0.25, 0.5, 1.0]);
        let close = |p: f64, want: f64| {
            let got = fitted.apply(p) - SLOPE * p;
            assert!((got - want).abs() < 1e-12, "{p}: {got} is not {want}");
        };
        close(0.0, 0.0);
        close(0.35, 0.25);
        close(0.5, 0.375);
        close(0.65, 0.625);
        close(1.0, 1.0);
    }

    /// .2 hit (1), .5 hit (1), .7 missed (2): .5 and .7 are 1 / 3, below .2, so that all are one pool of 2 / 4.
    #[test]
    fn a_pool_may_reach_back_over_several() {
        let fitted = fit(&points(&[(0.2, 1.0, 1.0), (0.5, 1.0, 1.0), (0.7, 0.0, 2.0)]), 0.0);
        assert_eq!((fitted.at, fitted.value), (vec![0.2, 0.7], vec![0.5, 0.5]));
    }

    /// Half a hit joins the two misses at the bottom, half a miss the three hits at the top.
    #[test]
    fn invented_answers_keep_both_ends_from_certainty() {
        let rows = [(0.1, 0.0, 1.0), (0.2, 0.0, 1.0), (0.8, 1.0, 1.0), (0.9, 1.0, 2.0)];
        let fitted = fit(&points(&rows), 0.5);
        assert_eq!(fitted.at, [0.1, 0.2, 0.8, 0.9]);
        assert_eq!(fitted.value, [0.2, 0.2, rounded(3.0 / 3.5), rounded(3.0 / 3.5)]);
        let one = fit(&points(&[(0.9, 1.0, 1.0)]), 0.5);
        assert_eq!((one.at, one.value), (vec![0.9], vec![0.75]));
    }

    /// The fitted values are 0 0 .5 .5 .5 .5 1: the hits at .3 and .6 and the misses at .35 and .65 are one pool.
    #[test]
    fn alternating_hits_and_misses_are_one_pool() {
        let x = [0.1, 0.2, 0.3, 0.35, 0.6, 0.65, 0.9];
        let y = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0];
        let rows: Vec<(f64, f64, f64)> = x.into_iter().zip(y).map(|(x, y)| (x, y, 1.0)).collect();
        let fitted = fit(&points(&rows), 0.0);
        let at = [0.0, 0.05, 0.25, 0.32, 0.5, 0.7, 1.0];
        let own = x.into_iter().zip([0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 1.0]);
        for (p, want) in own.chain(at.into_iter().zip([0.0, 0.0, 0.25, 0.5, 0.5, 0.6, 1.0])) {
            let got = fitted.apply(p) - SLOPE * p;
            assert!((got - want).abs() < 1e-12, "{p}: {got} is not {want}");
        }
    }

    #[test]
    fn a_class_that_no_point_shows_keeps_its_probabilities() {
        let fitted = fit(&points(&[(0.1, 0.0, 1.0), (0.7, 0.0, 1.0)]), 0.5);
        assert_eq!((fitted.at, fitted.value), (vec![0.0, 1.0], vec![0.0, 1.0]));
    }
}
