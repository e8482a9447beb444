//! Label switching: would the annotators agree better with the classes if the classes were renamed?
//!
//! The likelihood does not change when the classes and the rows of all confusion matrices are permuted together, so a
//! fit may end with two classes exchanged. The check is the trace of the annotators' mean confusion matrix against its
//! best value over all column permutations (an assignment problem).

use pathfinding::kuhn_munkres::kuhn_munkres;
use pathfinding::matrix::Matrix;

use super::confusion::Confusion;
use crate::frame::Annotations;

/// A permuted trace must be larger by this share before it counts as switching.
const GAIN: f64 = 0.05;

/// The label to which each class should be renamed, when renaming raises the trace by more than 5 %.
#[must_use]
pub fn switched(a: &Annotations, confusion: &Confusion) -> Option<Vec<usize>> {
    let n = a.dims().classes;
    if n < 2 {
        return None;
    }
    // The counts of all annotators, `[label, class]`.
    let mut pooled = vec![0.0; n * n];
    for (column, counts) in confusion.expected_count.chunks_exact(n).enumerate() {
        let label = a.label_of(column as u32) as usize;
        if label < n {
            let sums = &mut pooled[label * n..(label + 1) * n];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    let met = |k: usize| (0..n).map(|label| pooled[label * n + k]).sum::<f64>();
    let met: Vec<f64> = (0..n).map(|k| met(k).max(f64::MIN_POSITIVE)).collect();
    // The assignment solver needs integers; nine digits are enough for a threshold of five percent.
    let share = |k: usize, label: usize| (pooled[label * n + k] / met[k] * 1e9) as i64;
    let weights = (0..n * n).map(|cell| share(cell / n, cell % n)).collect();
    let matrix = Matrix::from_vec(n, n, weights).ok()?;
    let (best, assignment) = kuhn_munkres(&matrix);
    let trace: i64 = (0..n).map(|k| matrix[(k, k)]).sum();
    let gains = best as f64 > (1.0 + GAIN) * trace as f64;
    gains.then_some(assignment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::confusion::Cells;
    use crate::testing::tiny;

    #[test]
    fn exchanged_classes_are_seen() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        let confusion = |expected_count: Vec<f64>| Confusion {
            expected_count,
            cells: Cells::Dense(vec![0.0; 4]),
        };
        // [column, class]: label 0 given class 1, label 1 given class 0
        assert_eq!(switched(&a, &confusion(vec![0.1, 0.9, 0.9, 0.1])), Some(vec![1, 0]));
        assert_eq!(switched(&a, &confusion(vec![0.9, 0.1, 0.1, 0.9])), None);
    }

    #[test]
    fn a_cycle_of_three_classes_is_told_in_its_direction() {
        let a = tiny(3, &[(0, 0, 0), (1, 0, 1), (2, 0, 2)]);
        // [column, class]: label 0 given class 2, label 1 given class 0, label 2 given class 1
        let expected_count = vec![0.0, 0.1, 0.9, 0.9, 0.0, 0.1, 0.1, 0.9, 0.0];
        let confusion = Confusion { expected_count, cells: Cells::Dense(vec![0.0; 9]) };
        assert_eq!(switched(&a, &confusion), Some(vec![1, 2, 0]));
    }

    /// All classes have the same weight, however often they occur: .6 + .2 against .4 + .8, though 62 answers of 110
    /// agree. Gains of 2 % and of 4.9 % (1.024 against .976) are too small to count, 5.1 % (1.025 against .975) is not.
    #[test]
    fn rare_classes_count_as_much_as_others() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        let switched = |expected_count: [f64; 4]| {
            let cells = Cells::Dense(vec![0.0; 4]);
            switched(&a, &Confusion { expected_count: expected_count.to_vec(), cells })
        };
        assert_eq!(switched([60.0, 8.0, 40.0, 2.0]), Some(vec![1, 0]));
        assert_eq!(switched([49.0, 5.0, 51.0, 5.0]), None);
        assert_eq!(switched([488.0, 512.0, 512.0, 488.0]), None);
        assert_eq!(switched([487.0, 512.0, 513.0, 488.0]), Some(vec![1, 0]));
    }
}
