//! SQUAREM: after every two rounds that estimate functions and targets in turn, the functions are extrapolated.
//!
//! ```text
//! r = f1 - f0,  v = (f2 - f1) - r,  s = |r| / |v|,  extrapolated: f0 + 2 s r + s^2 v
//! ```
//!
//! R. Varadhan, C. Roland: Simple and Globally Convergent Methods for Accelerating the Convergence of Any EM Algorithm.
//! Scandinavian Journal of Statistics 35 (2008), scheme S3. doi:10.1111/j.1467-9469.2007.00585.x
//!
//! Differs from the paper: (1) Each class is fitted alone and rows are normalised afterwards, so that no common likelihood
//! rises with every round; an extrapolation has failed if the targets move further in the second round after it than in
//! that of the last one. (2) A failed extrapolation is kept, and only later ones are shorter. (3) The norms are over the
//! knots of the three functions, each counted once. (4) The result is made non-decreasing and limited to [0, 1].

use super::isotonic::Isotonic;

/// The factor by which the bound of the step length is adapted.
const STEP_FACTOR: f64 = 4.0;

/// The state between two extrapolations.
pub(super) struct Squarem {
    /// The functions of all classes after each round since the last extrapolation.
    functions: Vec<Vec<Isotonic>>,
    bound: StepBound,
}

impl Squarem {
    /// Before the first round, with these functions.
    pub(super) fn start(functions: &[Isotonic]) -> Self {
        let bound = StepBound { max: STEP_FACTOR, moved: f64::INFINITY };
        Self { functions: vec![functions.to_vec()], bound }
    }

    /// Whether the coming round begins at extrapolated functions. How far it moves the targets then shows the length of
    /// the extrapolation, not the distance from the solution.
    pub(super) fn is_extrapolated(&self) -> bool {
        self.functions.is_empty()
    }

    /// The functions of the next round, given those that this round has fitted and how far it moved the targets.
    pub(super) fn next(&mut self, fitted: Vec<Isotonic>, moved: f64) -> Vec<Isotonic> {
        if self.functions.len() == 1 {
            self.bound.adapt(moved);
        }
        self.functions.push(fitted);
        let [f0, f1, f2] = self.functions.as_slice() else {
            return self.functions.last().cloned().unwrap_or_default();
        };
        let classes = || f0.iter().zip(f1).zip(f2).map(|((f0, f1), f2)| [f0, f1, f2]);
        let norm = |weights: [f64; 3]| -> f64 {
            let values = classes().flat_map(|of| Isotonic::weighted_sum(of, weights).1);
            values.map(|x| x * x).sum::<f64>().sqrt()
        };
        let s = self.bound.step_length(norm([-1.0, 1.0, 0.0]), norm([1.0, -2.0, 1.0]));
        let weights = [(1.0 - s).powi(2), 2.0 * s * (1.0 - s), s * s];
        let extrapolate = |of| Isotonic::monotone(Isotonic::weighted_sum(of, weights));
        let next = classes().map(extrapolate).collect();
        self.functions.clear();
        next
    }
}

/// The bound of the step length: with a length of 1, the extrapolation is f2.
struct StepBound {
    /// Grows when it shortens a step, and shrinks after a failure.
    max: f64,
    /// How far the targets moved in the second round after the last extrapolation.
    moved: f64,
}

impl StepBound {
    /// Shortens the bound where the targets moved further than after the last extrapolation.
    fn adapt(&mut self, moved: f64) {
        if moved > self.moved {
            self.max = (self.max / STEP_FACTOR).max(1.0);
        }
        self.moved = moved;
    }

    /// The step length, given the norms of r and v.
    fn step_length(&mut self, r: f64, v: f64) -> f64 {
        let length = if v > 0.0 { r / v } else { 1.0 };
        let bounded = length.clamp(1.0, self.max);
        if length > self.max {
            self.max *= STEP_FACTOR;
        }
        bounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn height(functions: &[Isotonic]) -> f64 {
        functions[0].apply(0.5)
    }

    fn at_height(height: f64) -> Vec<Isotonic> {
        vec![Isotonic::monotone((vec![0.0, 1.0], vec![height, height]))]
    }

    /// Each round halves the distance to .6: from .2 to .4 and .5, r = .2, v = -.1 and s = 2.
    #[test]
    fn the_extrapolation_of_a_geometric_series_is_its_limit() {
        let mut squarem = Squarem::start(&at_height(0.2));
        assert!(!squarem.is_extrapolated());
        assert_eq!(squarem.next(at_height(0.4), 0.1), at_height(0.4));
        let next = squarem.next(at_height(0.5), 0.05);
        assert!((height(&next) - height(&at_height(0.6))).abs() < 1e-12);
        assert!(squarem.is_extrapolated());
        assert_eq!(squarem.next(at_height(0.6), 0.1), at_height(0.6));
        assert!(!squarem.is_extrapolated());
    }

    /// Norms of 10 and 1 ask for a length of 10. The first bound is 4 and then grows to 16; after a failure it is 4 again.
    #[test]
    fn step_lengths_are_bounded_and_the_bound_shrinks_after_a_failure() {
        let mut bound = StepBound { max: STEP_FACTOR, moved: f64::INFINITY };
        let lengths = [0.3, 0.2, 0.4].map(|moved| {
            bound.adapt(moved);
            bound.step_length(10.0, 1.0)
        });
        assert_eq!(lengths, [4.0, 10.0, 4.0]);
        assert_eq!(bound.step_length(0.5, 1.0), 1.0);
        assert_eq!(bound.step_length(0.0, 0.0), 1.0);
    }
}
