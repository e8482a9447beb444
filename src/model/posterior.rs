//! P(class given everything observed) of every instance, and the most probable classes.

use std::ops::Range;

use rayon::prelude::*;

use super::numerics::{MIN_PROBABILITY, at_least, normalise};
use crate::frame::{Annotations, ITEMS_PER_BLOCK};

/// P(class given everything observed), one row per instance.
///
/// # Shapes
/// `[instances, classes]`, row-major; each row sums to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    n_classes: usize,
    values: Vec<f64>,
}

impl Posterior {
    /// A posterior of zeros, to be filled row by row.
    #[must_use]
    pub fn zeros(n_instances: usize, n_classes: usize) -> Self {
        Self { n_classes, values: vec![0.0; n_instances * n_classes] }
    }

    /// The share of each class among an instance's weighted votes; uniform where nobody voted for a class; one-hot
    /// where the class is trusted.
    #[must_use]
    pub fn from_votes(a: &Annotations) -> Self {
        let dims = a.dims();
        let mut t = Self::zeros(dims.instances, dims.classes);
        t.par_rows_mut(|i, row| write_votes(a, i, row));
        t
    }

    /// Sets the rows from `first` on to the first classes of rows that have `width` classes.
    #[cfg(feature = "neural")]
    pub(crate) fn set_rows(&mut self, first: usize, rows: &[f64], width: usize) {
        for (i, row) in (first..).zip(rows.chunks_exact(width.max(1))) {
            let n = self.n_classes;
            self.row_mut(i).copy_from_slice(&row[..n]);
        }
    }

    /// The mean posterior of annotated instances, `[class]`, floored and normalised; uniform without any.
    #[must_use]
    pub fn mean_of_annotated(&self, a: &Annotations) -> Vec<f64> {
        self.mean_of_annotated_in(a, 0..self.len(), self.n_classes)
    }

    /// The same of some adjacent instances, whose classes are the first so many.
    #[must_use]
    pub fn mean_of_annotated_in(
        &self,
        a: &Annotations,
        instances: Range<usize>,
        n_classes: usize,
    ) -> Vec<f64> {
        let values = &self.values[instances.start * self.n_classes..instances.end * self.n_classes];
        let sum_of = |(block, rows): (usize, &[f64])| {
            let mut sums = vec![0.0; n_classes];
            let first = instances.start + block * ITEMS_PER_BLOCK;
            for (i, row) in (first..).zip(rows.chunks_exact(self.n_classes)) {
                if !a.pairs_of_instance(i).is_empty() {
                    sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
                }
            }
            sums
        };
        let blocks = values.par_chunks(ITEMS_PER_BLOCK * self.n_classes.max(1)).enumerate();
        let of_blocks: Vec<Vec<f64>> = blocks.map(sum_of).collect();
        let mut mean = vec![0.0; n_classes];
        for sums in of_blocks {
            mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean += sum);
        }
        normalise(&mut mean, |p| at_least(p, MIN_PROBABILITY));
        mean
    }

    /// The number of instances.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len() / self.n_classes.max(1)
    }

    /// Whether there are no instances.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The number of classes.
    #[must_use]
    pub fn n_classes(&self) -> usize {
        self.n_classes
    }

    /// The posterior of instance `i`.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.n_classes..(i + 1) * self.n_classes]
    }

    /// The mutable posterior of instance `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.values[i * self.n_classes..(i + 1) * self.n_classes]
    }

    /// All rows, one after the other.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// All rows, one after the other, mutable.
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// Calls `change(instance, row)` for every row, blocks of instances in parallel.
    pub fn par_rows_mut(&mut self, change: impl Fn(usize, &mut [f64]) + Sync) {
        let n_classes = self.n_classes.max(1);
        self.values.par_chunks_mut(ITEMS_PER_BLOCK * n_classes).enumerate().for_each(
            |(block, rows)| {
                for (offset, row) in rows.chunks_exact_mut(n_classes).enumerate() {
                    change(block * ITEMS_PER_BLOCK + offset, row);
                }
            },
        );
    }
}

/// Writes the row of instance `i` in [`Posterior::from_votes`] into zeros.
pub(crate) fn write_votes(a: &Annotations, i: usize, row: &mut [f64]) {
    if let Some(class) = a.trusted_class(i) {
        row[class as usize] = 1.0;
        return;
    }
    add_votes(a, i, row);
    let sum: f64 = row.iter().sum();
    if sum > 0.0 {
        row.iter_mut().for_each(|v| *v /= sum);
    } else {
        row.fill(1.0 / a.dims().classes as f64);
    }
}

/// Adds the weight of every vote for a class of instance `i` to `votes[class]`.
fn add_votes(a: &Annotations, i: usize, votes: &mut [f64]) {
    let weights = a.weights_of_instance(i);
    if weights.is_ones() {
        for pair in a.pairs_of_instance(i) {
            if let Some(vote) = votes.get_mut(a.label_of_pair(*pair) as usize) {
                *vote += 1.0;
            }
        }
        return;
    }
    for (pair, weight) in a.annotations_of_instance(i) {
        if let Some(vote) = votes.get_mut(a.label_of_pair(pair) as usize) {
            *vote += weight;
        }
    }
}

/// Probabilities with a relative difference up to this count as equal: another order of summation changes them less.
pub const TIE: f64 = 1e-9;

/// The least probability that counts as equal to the largest one of a row.
#[must_use]
pub fn least_tied(row: &[f64]) -> f64 {
    least_tied_with(row.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

fn least_tied_with(largest: f64) -> f64 {
    largest - TIE * largest.abs()
}

/// The classes of a row that are as probable as the most probable one, ascending.
///
/// ```
/// use labelmill::model::posterior::tied;
/// assert_eq!(tied(&[0.4, 0.2, 0.4]).collect::<Vec<_>>(), [0, 2]);
/// ```
pub fn tied(row: &[f64]) -> impl Iterator<Item = usize> {
    let least = least_tied(row);
    row.iter().enumerate().filter(move |(_, p)| **p >= least).map(|(class, _)| class)
}

/// The most probable class of a row, and whether another is as probable; the lowest index wins.
///
/// ```
/// use labelmill::model::posterior::best;
/// assert_eq!(best(&[0.4, 0.2, 0.4]), Some((0, true)));
/// assert_eq!(best(&[]), None);
/// ```
#[must_use]
pub fn best(row: &[f64]) -> Option<(usize, bool)> {
    let top = Top::from_row(row)?;
    Some((top.class, top.is_tied))
}

/// The most probable class of a row, as [`best`], and the two largest probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Top {
    /// The most probable class; of tied ones the lowest.
    pub(crate) class: usize,
    /// Whether another class is as probable.
    pub(crate) is_tied: bool,
    /// The largest probability; by rounding, a tied class with a higher index may have it.
    pub(crate) largest: f64,
    /// The largest of the other probabilities; -inf where no other is a number.
    pub(crate) second: f64,
}

impl Top {
    /// The top of a row; `None` where no probability is above -inf, as in a row of NaN or without classes.
    #[inline]
    pub(crate) fn from_row(row: &[f64]) -> Option<Self> {
        let (mut class, mut largest, mut second) = (0, f64::NEG_INFINITY, f64::NEG_INFINITY);
        // Without a branch: no processor could predict which class is the best.
        for (k, p) in row.iter().enumerate() {
            let is_larger = *p > largest;
            let smaller = if is_larger { largest } else { *p };
            second = if smaller > second { smaller } else { second };
            class = if is_larger { k } else { class };
            largest = if is_larger { *p } else { largest };
        }
        if largest == f64::NEG_INFINITY {
            return None;
        }
        let least = least_tied_with(largest);
        let is_tied = second >= least;
        let class = if is_tied { row.iter().position(|p| *p >= least)? } else { class };
        Some(Self { class, is_tied, largest, second })
    }
}

/// Makes the most probable classes of a row share it equally, such as the winners of a vote.
pub fn harden(row: &mut [f64]) {
    let (least, n) = (least_tied(row), tied(row).count() as f64);
    row.iter_mut().for_each(|p| *p = if *p >= least { 1.0 / n } else { 0.0 });
}

/// A row whose most probable classes share it equally: see [`harden`].
#[must_use]
pub fn hardened(row: &[f64]) -> Vec<f64> {
    let mut row = row.to_vec();
    harden(&mut row);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn a_tie_is_seen_through_rounding() {
        let third = 1.0 / 3.0;
        assert_eq!(best(&[third, 1.0 - 2.0 * third, third]), Some((0, true)));
        assert_eq!(best(&[0.2, 0.5, 0.3]), Some((1, false)));
    }

    #[test]
    fn classes_are_tied_with_the_largest_probability_and_not_with_the_first_of_the_tie() {
        let row = [0.4 * (1.0 - 0.9 * TIE), 0.4, 0.4 * (1.0 - 2.4 * TIE), 0.2];
        assert_eq!(tied(&row).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(tied(&[0.0, 0.0]).collect::<Vec<_>>(), [0, 1]);
        let mut hard = row;
        harden(&mut hard);
        assert_eq!(hard, [0.5, 0.5, 0.0, 0.0]);
    }

    /// All rows of up to four of these numbers, of which some are tied with 0.25.
    #[test]
    fn the_top_of_a_row_is_found_in_one_pass_as_in_many() {
        let near = |ties: f64| 0.25 * (1.0 - ties * TIE);
        let numbers = [0.0, 0.25, 0.25 + f64::EPSILON / 4.0, near(0.9), near(2.4), 1.0, f64::NAN];
        for n in 0..=4_u32 {
            for code in 0..7_usize.pow(n) {
                let row: Vec<f64> = (0..n).map(|k| numbers[code / 7_usize.pow(k) % 7]).collect();
                let Some(class) = tied(&row).next() else {
                    assert_eq!(Top::from_row(&row), None, "{row:?}");
                    continue;
                };
                let is_tied = tied(&row).count() > 1;
                let largest = row.iter().copied().fold(f64::NAN, f64::max);
                let first = row.iter().position(|p| *p == largest);
                let others = (0..row.len()).filter(|k| Some(*k) != first).map(|k| row[k]);
                let second = others.fold(f64::NEG_INFINITY, f64::max);
                let want = Top { class, is_tied, largest, second };
                assert_eq!(Top::from_row(&row), Some(want), "{row:?}");
            }
        }
        assert_eq!(Top::from_row(&[f64::NEG_INFINITY; 2]), None);
        assert_eq!(best(&[0.0, f64::INFINITY]), Some((1, false)));
    }

    /// Instance 1 has no annotation; nothing speaks for class 2.
    #[test]
    fn the_mean_is_that_of_annotated_instances_floored() {
        let a = tiny(3, &[(0, 0, 1), (0, 1, 1), (2, 0, 0), (2, 1, 1), (2, 2, 1), (3, 2, 0)]);
        let t = Posterior::from_votes(&a);
        assert_eq!(t.row(1), [1.0 / 3.0; 3]);
        // (0 + 1/3 + 1) / 3 and (1 + 2/3 + 0) / 3
        let want = [4.0 / 9.0, 5.0 / 9.0, MIN_PROBABILITY];
        for (got, want) in t.mean_of_annotated(&a).iter().zip(want) {
            assert!((got - want).abs() <= 2.0 * MIN_PROBABILITY * want, "{got} is not {want}");
        }
    }
}
