//! The weights of annotations, most of which are 1.
//!
//! # Why
//! A file with a few repeated answers has a few weights other than 1. A number for every annotation would take twice
//! the memory of the annotations themselves, and every E-step and M-step would read it.

use std::ops::Range;

/// The weight of each annotation, in the order of a view.
#[derive(Debug, Clone)]
pub(super) enum Weights {
    /// All are 1.
    Ones,
    /// All are 1 except those at `positions`, which ascend.
    Few { positions: Vec<usize>, weights: Vec<f64> },
    /// A number for every annotation.
    All(Vec<f64>),
}

/// Weights are stored as [`Weights::Few`] if at most one in so many differs from 1.
const ANNOTATIONS_PER_WEIGHT: usize = 32;

impl Weights {
    /// Stores the weights of all annotations, one number each.
    pub(super) fn new(all: Vec<f64>) -> Self {
        let other = |w: &f64| *w != 1.0;
        let n = all.iter().filter(|w| other(w)).count();
        if n * ANNOTATIONS_PER_WEIGHT > all.len() {
            return Self::All(all);
        }
        let few = all.iter().enumerate().filter(|(_, w)| other(w));
        let (positions, weights) = few.map(|(at, w)| (at, *w)).unzip();
        Self::few(all.len(), positions, weights)
    }

    /// From the weights other than 1 among those of `n` annotations, by ascending position.
    pub(super) fn few(n: usize, positions: Vec<usize>, weights: Vec<f64>) -> Self {
        if positions.is_empty() {
            Self::Ones
        } else if positions.len() * ANNOTATIONS_PER_WEIGHT <= n {
            Self::Few { positions, weights }
        } else {
            let mut all = vec![1.0; n];
            positions.into_iter().zip(weights).for_each(|(at, weight)| all[at] = weight);
            Self::All(all)
        }
    }

    /// Bytes of each annotation: few weights are too few to count.
    pub(super) fn bytes_each(&self) -> usize {
        if matches!(self, Self::All(_)) { size_of::<f64>() } else { 0 }
    }

    /// The weights of a range of annotations.
    #[inline]
    pub(super) fn slice(&self, range: Range<usize>) -> WeightSlice<'_> {
        match self {
            Self::Ones => WeightSlice::Ones,
            Self::All(all) => WeightSlice::All(&all[range]),
            Self::Few { positions, weights } => {
                let start = range.start;
                WeightSlice::Few { start, positions, weights }.slice(0..range.len())
            }
        }
    }
}

/// The weights of a range of annotations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightSlice<'a> {
    /// All are 1.
    Ones,
    /// All are 1 except those at `positions`.
    Few {
        /// The position of the range's first annotation in the whole view.
        start: usize,
        /// The positions of the weights other than 1 in the whole view, ascending.
        positions: &'a [usize],
        /// The weights at `positions`.
        weights: &'a [f64],
    },
    /// A number for every annotation.
    All(&'a [f64]),
}

impl<'a> WeightSlice<'a> {
    /// The weights from the first annotation to the last.
    #[inline]
    #[must_use]
    pub fn iter(self) -> WeightIter<'a> {
        WeightIter { weights: self, next: 0, n_passed: 0 }
    }

    /// Whether all are known to be 1 without a look at each of them.
    #[inline]
    #[must_use]
    pub fn is_ones(self) -> bool {
        match self {
            Self::Ones => true,
            Self::Few { positions, .. } => positions.is_empty(),
            Self::All(all) => all.is_empty(),
        }
    }

    /// The weight of the `n`-th annotation.
    #[inline]
    #[must_use]
    pub fn get(self, n: usize) -> f64 {
        match self {
            Self::Ones => 1.0,
            Self::All(all) => all[n],
            Self::Few { start, positions, weights } => {
                positions.binary_search(&(start + n)).map_or(1.0, |found| weights[found])
            }
        }
    }

    /// The weights of a sub-range.
    #[inline]
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::Ones => Self::Ones,
            Self::All(all) => Self::All(&all[range]),
            Self::Few { start, positions, weights } => {
                let begin = positions.partition_point(|at| *at < start + range.start);
                let count = positions[begin..].partition_point(|at| *at < start + range.end);
                let found = begin..begin + count;
                if found.is_empty() {
                    return Self::Ones;
                }
                let (positions, weights) = (&positions[found.clone()], &weights[found]);
                Self::Few { start: start + range.start, positions, weights }
            }
        }
    }
}

/// Iterates over the weights of a range of annotations without a search for each. Does not end unless the weights are
/// [`WeightSlice::All`]: it returns 1 after the last.
#[derive(Debug, Clone)]
pub struct WeightIter<'a> {
    weights: WeightSlice<'a>,
    next: usize,
    /// How many of the `Few` weights were returned.
    n_passed: usize,
}

impl Iterator for WeightIter<'_> {
    type Item = f64;

    #[inline(always)]
    fn next(&mut self) -> Option<f64> {
        let at = self.next;
        self.next += 1;
        Some(match self.weights {
            WeightSlice::Ones => 1.0,
            WeightSlice::All(all) => return all.get(at).copied(),
            WeightSlice::Few { start, positions, weights } => {
                if positions.get(self.n_passed) == Some(&(start + at)) {
                    self.n_passed += 1;
                    weights[self.n_passed - 1]
                } else {
                    1.0
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_weights_and_all_weights_say_the_same() {
        let mut dense = vec![1.0; 200];
        (dense[3], dense[70], dense[71]) = (0.5, 2.0, 0.25);
        let few = Weights::new(dense.clone());
        assert!(matches!(&few, Weights::Few { positions, .. } if positions == &[3, 70, 71]));
        let all = Weights::All(dense.clone());
        for range in [0..200, 0..3, 3..4, 4..70, 60..72, 71..71] {
            for n in 0..range.len() {
                let want = dense[range.start + n];
                assert_eq!(few.slice(range.clone()).get(n), want, "{range:?} {n}");
                assert_eq!(all.slice(range.clone()).get(n), want, "{range:?} {n}");
            }
            let want = &dense[range.clone()];
            assert!(few.slice(range.clone()).iter().take(range.len()).eq(want.iter().copied()));
            assert!(all.slice(range.clone()).iter().eq(want.iter().copied()));
            let second_half = few.slice(range.clone()).slice(range.len() / 2..range.len());
            assert_eq!(
                second_half.is_ones(),
                dense[range.start + range.len() / 2..range.end].iter().all(|w| *w == 1.0)
            );
        }
        assert!(matches!(Weights::new(vec![1.0; 9]), Weights::Ones));
        assert!(matches!(Weights::new(vec![1.0, 0.5]), Weights::All(_)));
    }
}
