//! Sufficient statistics: what a sweep over a range of instances hands on, which merges with that of the next range.

use std::ops::Range;

use super::pair_rows::{PairRows, stride};
use crate::error::{Error, Result};

/// The contribution of a range of instances to the parameters and to the objective.
///
/// # Why
/// A sweep reads the annotations of its range and the likelihood, and writes nothing but this: neither posteriors nor
/// tables of its own pass from one iteration to the next, so that a thread, a file or another machine can run it. Merged
/// in the order of the ranges, the sums do not depend on who computed them.
#[derive(Debug)]
pub struct Statistics {
    /// The instances that these statistics cover.
    pub(crate) instances: Range<usize>,
    /// The expected counts, `[pair, class]`.
    pub(crate) counts: PairRows,
    /// The sum of the posterior rows of annotated instances, `[class]`; padded with 0, as a row of counts.
    pub(crate) class_counts: Vec<f64>,
    /// The range's term of the marginal log-likelihood, or, of assignments, of the log-joint of their classes.
    pub(crate) log_likelihood: f64,
    /// Whether an instance counts as its most probable classes, which share it, instead of its posterior: the hard E-step
    /// of classification EM.
    pub(crate) are_hard: bool,
}

impl Statistics {
    /// Empty statistics of a range of instances.
    #[must_use]
    pub fn new(n_pairs: usize, n_classes: usize, instances: Range<usize>) -> Self {
        Self {
            instances,
            counts: PairRows::zeros(n_pairs, n_classes),
            class_counts: vec![0.0; stride(n_classes)],
            log_likelihood: 0.0,
            are_hard: false,
        }
    }

    /// Sets all sums to zero.
    pub(super) fn clear(&mut self) {
        self.counts.cells_mut().fill(0.0);
        self.class_counts.fill(0.0);
        self.log_likelihood = 0.0;
    }

    /// Adds the statistics of the next range: to each sum, as the M-step adds a part to those before it.
    ///
    /// # Errors
    /// A bug, when `next` does not begin where this range ends, or belongs to other pairs.
    pub fn merge(&mut self, next: &Self) -> Result<()> {
        if next.instances.start != self.instances.end {
            return Err(Error::bug("merged statistics belong to adjacent ranges of instances"));
        }
        if self.counts.cells().len() != next.counts.cells().len() {
            return Err(Error::bug("merged statistics have the same pairs and classes"));
        }
        add(self.counts.cells_mut(), next.counts.cells());
        add(&mut self.class_counts, &next.class_counts);
        self.log_likelihood += next.log_likelihood;
        self.instances.end = next.instances.end;
        Ok(())
    }
}

/// `sums += numbers`
#[inline(always)]
pub(super) fn add(sums: &mut [f64], numbers: &[f64]) {
    sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_statistics_of_adjacent_ranges_and_the_same_pairs_merge() {
        let of = |n_pairs, instances| Statistics::new(n_pairs, 3, instances);
        let mut first = of(2, 0..5);
        (first.log_likelihood, first.class_counts[1]) = (-1.0, 2.0);
        assert!(first.merge(&of(2, 6..8)).is_err() && first.merge(&of(3, 5..8)).is_err());
        let mut next = of(2, 5..8);
        (next.log_likelihood, next.class_counts[1]) = (-2.0, 0.5);
        next.counts.cells_mut()[4] = 7.0;
        first.merge(&next).unwrap();
        assert_eq!((first.instances.clone(), first.log_likelihood), (0..8, -3.0));
        assert_eq!((first.class_counts[1], first.counts.row(1)[0]), (2.5, 7.0));
    }
}
