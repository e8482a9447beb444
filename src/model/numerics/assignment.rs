//! The assignment problem: each row takes a column of its own, so that the sum of the scores is as large as possible.

use pathfinding::kuhn_munkres::kuhn_munkres;
use pathfinding::matrix::Matrix;

/// The most steps that the assignment may take, at worst rows x rows x columns: enough for 1 000 classes that occur, on a
/// matrix of 8 MB. The 21 841 classes of ImageNet would take up to 1e13 steps, on a matrix of 3.8 GB.
const MAX_STEPS: usize = 1_000_000_000;

/// The solver needs integers: nine digits of each score.
const PRECISION: f64 = 1e9;

/// The best assignment.
#[derive(Debug, PartialEq)]
pub(crate) struct Assignment {
    /// The column of each row.
    pub(crate) columns: Vec<usize>,
    /// The sum of their scores.
    pub(crate) sum: f64,
}

/// Whether the assignment takes at most a billion steps.
pub(crate) fn is_affordable(rows: usize, columns: usize) -> bool {
    rows.saturating_mul(rows).saturating_mul(columns) <= MAX_STEPS
}

/// The best assignment of as many columns as rows, or more, by scores that are around 1; `None` without rows, or
/// where it could take too many steps.
pub(crate) fn best_assignment(
    rows: usize,
    columns: usize,
    score: impl Fn(usize, usize) -> f64,
) -> Option<Assignment> {
    if rows == 0 || !is_affordable(rows, columns) {
        return None;
    }
    let cells = 0..rows * columns;
    let scores = cells.map(|cell| (score(cell / columns, cell % columns) * PRECISION) as i64);
    let matrix = Matrix::from_vec(rows, columns, scores.collect()).ok()?;
    let (sum, columns) = kuhn_munkres(&matrix);
    Some(Assignment { columns, sum: sum as f64 / PRECISION })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_sum_wins_over_the_largest_score() {
        let scores = [[0.9, 0.8, 0.1], [0.8, 0.1, 0.3]];
        let best = best_assignment(2, 3, |row, column| scores[row][column]).unwrap();
        assert_eq!((best.columns, (best.sum - 1.6).abs() < 1e-9), (vec![1, 0], true));
        assert_eq!(best_assignment(1_001, 1_000, |_, _| 0.0), None);
    }
}
