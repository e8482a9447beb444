//! Label switching: would the annotators agree better with the classes if the classes were renamed?
//!
//! The likelihood does not change when the classes and the rows of all confusion matrices are permuted together, so a
//! fit may end with two classes exchanged. The check is the trace of the annotators' mean confusion matrix against its
//! best value over all column permutations (an assignment problem). A class whose expected count is below
//! [`MIN_OBSERVED_COUNT`] does not occur, since a fit leaves a tiny count of every class, and no row gains by a label
//! that was never given: the matrix has the other rows and columns only.
//!
//! The check warns and relabels nothing: gold that trains is clamped, so that it holds the classes in their places during
//! the fit, and other gold is not for the model to see.

use crate::frame::Annotations;
use crate::model::confusion::{Confusion, MIN_OBSERVED_COUNT, common_counts};
use crate::model::numerics::assignment::{best_assignment, is_affordable};

/// A permuted trace must be larger by this share before it counts as switching.
const GAIN: f64 = 0.05;

/// The number of classes that occur, where the check could take more than a billion steps.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyClasses(pub usize);

/// The label to which each class should be renamed, when renaming raises the trace by more than 5 %.
///
/// # Errors
/// When too many classes occur to check this.
pub fn switched(
    a: &Annotations,
    confusion: &Confusion,
) -> Result<Option<Vec<usize>>, TooManyClasses> {
    let n = a.dims().classes;
    if n < 2 {
        return Ok(None);
    }
    let columns = confusion.expected_count.chunks_exact(n).enumerate();
    let of_label = columns.map(|(c, counts)| (a.label_of_pair(c as u32) as usize, counts));
    let (mut totals, mut is_given) = (vec![0.0; n], vec![false; n]);
    for (label, counts) in of_label.filter(|(label, _)| *label < n) {
        is_given[label] = true;
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    let occurs = |k: usize| totals[k] >= MIN_OBSERVED_COUNT;
    let classes: Vec<usize> = (0..n).filter(|k| occurs(*k)).collect();
    if classes.is_empty() {
        return Ok(None);
    }
    // With the labels of its own rows, the matrix has as many columns as rows, and its trace.
    let labels: Vec<u32> =
        (0..n).filter(|k| occurs(*k) || is_given[*k]).map(|label| label as u32).collect();
    let (rows, width) = (classes.len(), labels.len());
    if !is_affordable(rows, width) {
        return Err(TooManyClasses(rows));
    }
    let common = common_counts(a, &confusion.expected_count, &labels, &classes);
    let share = |row: usize, label: usize| common[label * rows + row] / totals[classes[row]];
    let Some(best) = best_assignment(rows, width, share) else { return Err(TooManyClasses(rows)) };
    let own = |class: usize| labels.partition_point(|label| (*label as usize) < class);
    let trace: f64 = classes.iter().enumerate().map(|(row, k)| share(row, own(*k))).sum();
    let gains = best.sum > (1.0 + GAIN) * trace;
    let renamed = best.columns.into_iter().map(|label| labels[label] as usize);
    Ok(gains.then(|| permutation(n, classes.iter().copied().zip(renamed))))
}

/// The names of all `n` classes, of which some are renamed: the others keep theirs, or take those that are left.
fn permutation(n: usize, renamed: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let (mut names, mut is_free) = (vec![None; n], vec![true; n]);
    for (class, name) in renamed {
        names[class] = Some(name);
        is_free[name] = false;
    }
    for (class, name) in names.iter_mut().enumerate() {
        if name.is_none() && is_free[class] {
            *name = Some(class);
            is_free[class] = false;
        }
    }
    let mut left = (0..n).filter(|name| is_free[*name]);
    let pairs = names.into_iter().enumerate();
    pairs.map(|(class, name)| name.or_else(|| left.next()).unwrap_or(class)).collect()
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
        // [pair, class]: label 0 given class 1, label 1 given class 0
        assert_eq!(switched(&a, &confusion(vec![0.1, 0.9, 0.9, 0.1])), Ok(Some(vec![1, 0])));
        assert_eq!(switched(&a, &confusion(vec![0.9, 0.1, 0.1, 0.9])), Ok(None));
    }

    #[test]
    fn a_cycle_of_three_classes_is_told_in_its_direction() {
        let a = tiny(3, &[(0, 0, 0), (1, 0, 1), (2, 0, 2)]);
        // [pair, class]: label 0 given class 2, label 1 given class 0, label 2 given class 1
        let expected_count = vec![0.0, 0.1, 0.9, 0.9, 0.0, 0.1, 0.1, 0.9, 0.0];
        let confusion = Confusion { expected_count, cells: Cells::Dense(vec![0.0; 9]) };
        assert_eq!(switched(&a, &confusion), Ok(Some(vec![1, 2, 0])));
    }

    /// The check of one annotator who gives the label `of(k, n)` for every class `k` below `n`, ten times.
    fn renamed(
        n_classes: usize,
        n: usize,
        of: fn(usize, usize) -> usize,
    ) -> Result<Option<Vec<usize>>, TooManyClasses> {
        let rows: Vec<(u32, u32, u32)> = (0..n as u32).map(|k| (k, 0, k)).collect();
        let mut expected_count = vec![0.0; n * n_classes];
        (0..n).for_each(|k| expected_count[of(k, n) * n_classes + k] = 10.0);
        let confusion = Confusion { expected_count, cells: Cells::Dense(Vec::new()) };
        switched(&tiny(n_classes, &rows), &confusion)
    }

    /// Of 100 annotations of class `a`, 40 have the label `a`, and of `b` 90 have `b`. Of the class whose label nobody gives,
    /// half are of each label: if it had the name of `a`, the trace would be .5 + .9 instead of .4 + .9.
    #[test]
    fn a_tiny_expected_count_does_not_make_a_class_occur() {
        let a = tiny(3, &[(0, 0, 0), (1, 0, 1)]);
        let switched_with = |unused: f64| {
            // [pair, class]
            let expected_count = vec![40.0, 10.0, unused, 60.0, 90.0, unused];
            switched(&a, &Confusion { expected_count, cells: Cells::Dense(Vec::new()) })
        };
        assert_eq!(switched_with(5e-10), Ok(None));
        assert!(matches!(switched_with(0.25), Ok(Some(_))), "half an annotation in all");
        let rows: Vec<(u32, u32, u32)> = (0..10).map(|k| (k, 0, k)).collect();
        let mut expected_count = vec![1e-7; 10 * 2_000];
        (0..10).for_each(|k| expected_count[k * 2_000 + k] = 10.0);
        let confusion = Confusion { expected_count, cells: Cells::Dense(Vec::new()) };
        assert_eq!(switched(&tiny(2_000, &rows), &confusion), Ok(None));
    }

    /// With a row for every class of the list, this would be a matrix of 3.8 GB.
    #[test]
    fn classes_that_do_not_occur_cost_nothing_and_keep_their_names() {
        let names = renamed(21_841, 4, |k, n| n - 1 - k).unwrap().unwrap();
        assert_eq!(names[..4], [3, 2, 1, 0]);
        assert!((4..21_841).all(|k| names[k] == k));
        assert_eq!(renamed(21_841, 4, |k, _| k), Ok(None));
    }

    /// Both classes that occur are called by the name of one that does not, which takes a name that is left.
    #[test]
    fn a_class_whose_name_is_taken_by_another_takes_one_that_is_left() {
        let a = tiny(5, &[(0, 0, 1), (1, 0, 3)]);
        let mut expected_count = vec![0.0; 10];
        // [pair, class]: label 1 given class 0, label 3 given class 4
        (expected_count[0], expected_count[9]) = (2.0, 2.0);
        let confusion = Confusion { expected_count, cells: Cells::Dense(Vec::new()) };
        assert_eq!(switched(&a, &confusion), Ok(Some(vec![1, 0, 2, 4, 3])));
    }

    #[test]
    fn more_than_a_thousand_classes_that_occur_are_not_checked() {
        let next = |k, n| (k + 1) % n;
        let names = renamed(1_000, 1_000, next).unwrap().unwrap();
        assert!((0..1_000).all(|k| names[k] == (k + 1) % 1_000));
        assert_eq!(renamed(1_001, 1_001, next), Err(TooManyClasses(1_001)));
    }

    /// All classes have the same weight, however often they occur: .6 + .2 against .4 + .8, though 62 answers of 110
    /// agree. Gains of 2 % and of 4.9 % (1.024 against .976) are too small to count, 5.1 % (1.025 against .975) is not.
    #[test]
    fn rare_classes_count_as_much_as_others() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        let switched = |expected_count: [f64; 4]| {
            let cells = Cells::Dense(vec![0.0; 4]);
            let confusion = Confusion { expected_count: expected_count.to_vec(), cells };
            switched(&a, &confusion).unwrap()
        };
        assert_eq!(switched([60.0, 8.0, 40.0, 2.0]), Some(vec![1, 0]));
        assert_eq!(switched([49.0, 5.0, 51.0, 5.0]), None);
        assert_eq!(switched([488.0, 512.0, 512.0, 488.0]), None);
        assert_eq!(switched([487.0, 512.0, 513.0, 488.0]), Some(vec![1, 0]));
    }
}
