//! Fewer rounds of an estimation in turn of functions and targets: two rounds show where the functions are heading, and
//! a jump takes them there.
//!
//! ```text
//! r = f1 - f0,  v = (f2 - f1) - r,  s = |r| / |v|,  jump: f0 + 2 s r + s^2 v
//! ```
//!
//! R. Varadhan, C. Roland: Simple and Globally Convergent Methods for Accelerating the Convergence of Any EM Algorithm.
//! Scandinavian Journal of Statistics 35 (2008), scheme S3. doi:10.1111/j.1467-9469.2007.00585.x
//!
//! Differs from the paper in the test of a jump: by how far the targets move in the next round. Isotonic regression
//! maximises no likelihood.

use super::isotonic::Isotonic;

/// The factor by which the longest jump is adapted.
const FACTOR: f64 = 4.0;

/// The functions of all classes in the rounds since the last jump.
pub(super) struct SquaredRounds {
    functions: Vec<Vec<Isotonic>>,
    /// The bound of s; at 1, a jump is no more than the second round.
    max_length: f64,
    /// How far the targets moved in the first round after the last jump.
    moved: f64,
}

impl SquaredRounds {
    /// Before the first round, from these functions.
    pub(super) fn start(functions: &[Isotonic]) -> Self {
        Self { functions: vec![functions.to_vec()], max_length: FACTOR, moved: f64::INFINITY }
    }

    /// Whether the functions of the coming round are those of a jump.
    pub(super) fn is_ahead(&self) -> bool {
        self.functions.is_empty()
    }

    /// Takes the functions that a round gave, and by how far it moved the targets; returns the functions of a jump after
    /// two rounds.
    pub(super) fn jump(&mut self, functions: &[Isotonic], moved: f64) -> Option<Vec<Isotonic>> {
        if self.functions.len() == 1 {
            let by = if moved > self.moved { 1.0 / FACTOR } else { 1.0 };
            self.max_length = (self.max_length * by).max(1.0);
            self.moved = moved;
        }
        self.functions.push(functions.to_vec());
        let [f0, f1, f2] = self.functions.as_slice() else { return None };
        let classes = || f0.iter().zip(f1).zip(f2).map(|((f0, f1), f2)| [f0, f1, f2]);
        let squares = |by: [f64; 3]| -> f64 {
            classes().flat_map(|of| Isotonic::weighted_sum(of, by).1).map(|x| x * x).sum()
        };
        let (r, v) = (squares([-1.0, 1.0, 0.0]).sqrt(), squares([1.0, -2.0, 1.0]).sqrt());
        let length = if v > 0.0 { r / v } else { 1.0 };
        let s = length.clamp(1.0, self.max_length);
        let by = [(1.0 - s).powi(2), 2.0 * s * (1.0 - s), s * s];
        let ahead = classes().map(|of| Isotonic::raised(Isotonic::weighted_sum(of, by))).collect();
        if length > self.max_length {
            self.max_length *= FACTOR;
        }
        self.functions.clear();
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn height(functions: &[Isotonic]) -> f64 {
        functions[0].apply(0.5)
    }

    fn at_height(height: f64) -> Vec<Isotonic> {
        vec![Isotonic::raised((vec![0.0, 1.0], vec![height, height]))]
    }

    /// Each round halves the distance to .6: after rounds to .2, .4 and .5, r = .2, v = -.1 and s = 2.
    #[test]
    fn a_jump_of_a_geometric_series_ends_at_its_limit() {
        let mut rounds = SquaredRounds::start(&at_height(0.2));
        assert!(!rounds.is_ahead());
        assert_eq!(rounds.jump(&at_height(0.4), 0.1), None);
        let ahead = rounds.jump(&at_height(0.5), 0.05).unwrap();
        assert!((height(&ahead) - height(&at_height(0.6))).abs() < 1e-12);
        assert!(rounds.is_ahead());
    }

    /// Each round leaves .9 of the distance: s is 10. The bound of the first jump is 4, that of the second 16, and that of
    /// a jump after one that moved the targets further 4 again.
    #[test]
    fn jumps_are_longer_after_success_and_shorter_after_a_failure() {
        let mut rounds = SquaredRounds::start(&at_height(0.1));
        let mut lengths = Vec::new();
        for moved in [0.3, 0.2, 0.4] {
            let [f1, f2] = [0.15, 0.195].map(at_height);
            rounds.jump(&f1, moved);
            let ahead = rounds.jump(&f2, moved).unwrap();
            // It went 2 s r + s^2 v far, with r = .05 and v = -.005.
            let gone = height(&ahead) - height(&at_height(0.1));
            lengths.push(((0.1 - (0.01 - 0.02 * gone).max(0.0).sqrt()) / 0.01).round());
            rounds.jump(&at_height(0.1), moved);
        }
        assert_eq!(lengths, [4.0, 10.0, 4.0]);
    }
}
