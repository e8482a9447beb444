//! A posterior of the classes with votes alone, instance by instance.
//!
//! ```text
//! instance           0         1    2 (no votes)   3 (trusted)
//! classes          2 7 8     1 7                    4
//! values          .2 .6 .2  .5 .5                   1
//! ends             3         5    5                6
//! ```

use std::ops::Range;

use rayon::prelude::*;

use super::posterior::{Posterior, best};
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK};

/// The shares of the classes that have votes.
#[derive(Debug, Clone, PartialEq)]
pub struct SparsePosterior {
    n_instances: usize,
    n_classes: usize,
    /// [`ITEMS_PER_BLOCK`] instances each, and the rest in the last.
    blocks: Vec<SparseBlock>,
}

impl SparsePosterior {
    /// The most values: one for each annotation, and one for each trusted class.
    pub(super) fn most_stored(dims: Dims, annotations: usize) -> usize {
        annotations.saturating_add(dims.instances)
    }

    /// The most bytes of [`SparsePosterior::from_votes`]; `None` where they are too many to be counted.
    pub(super) fn most_bytes(dims: Dims, annotations: usize) -> Option<usize> {
        let values = Self::most_stored(dims, annotations)
            .checked_mul(size_of::<u32>() + size_of::<f64>())?;
        values.checked_add(dims.instances.checked_mul(size_of::<usize>())?)
    }

    pub(super) fn from_votes(a: &Annotations) -> Self {
        let Dims { instances, classes, .. } = a.dims();
        let blocks = (0..instances.div_ceil(ITEMS_PER_BLOCK)).into_par_iter().map(|block| {
            let first = block * ITEMS_PER_BLOCK;
            SparseBlock::from_votes(a, first..(first + ITEMS_PER_BLOCK).min(instances))
        });
        Self { n_instances: instances, n_classes: classes, blocks: blocks.collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.n_instances
    }

    pub(super) fn n_classes(&self) -> usize {
        self.n_classes
    }

    /// All stored probabilities, in parts.
    pub(super) fn stored_values(&self) -> impl Iterator<Item = &[f64]> {
        self.blocks.iter().map(|block| block.values.as_slice())
    }

    pub(super) fn stored_row(&self, i: usize) -> StoredRow<'_> {
        let block = &self.blocks[i / ITEMS_PER_BLOCK];
        let row = block.row(i % ITEMS_PER_BLOCK);
        StoredRow { classes: Some(&block.classes[row.clone()]), values: &block.values[row] }
    }

    /// Writes row `i` into zeros.
    pub(super) fn fill_row(&self, i: usize, row: &mut [f64]) {
        let stored = self.stored_row(i);
        if stored.values.is_empty() {
            row.fill(1.0 / self.n_classes as f64);
        }
        stored.values.iter().enumerate().for_each(|(at, p)| row[stored.class(at)] = *p);
    }

    pub(super) fn dense(&self) -> Posterior {
        let mut dense = Posterior::zeros(self.n_instances, self.n_classes);
        dense.par_rows_mut(|i, row| self.fill_row(i, row));
        dense
    }

    pub(super) fn par_rows_mut(&mut self, change: impl Fn(usize, &mut [f64]) + Sync) {
        self.blocks.par_iter_mut().enumerate().for_each(|(number, block)| {
            for offset in 0..block.ends.len() {
                let row = block.row(offset);
                change(number * ITEMS_PER_BLOCK + offset, &mut block.values[row]);
            }
        });
    }
}

/// The stored probabilities of one instance; other classes have the probability 0. It is empty only for an instance of
/// a sparse posterior without a vote for a class, whose classes are equally probable.
#[derive(Debug, Clone, Copy)]
pub struct StoredRow<'a> {
    /// The class of each probability, ascending; `None` where every class is stored.
    classes: Option<&'a [u32]>,
    /// The probabilities.
    pub values: &'a [f64],
}

impl<'a> StoredRow<'a> {
    /// A row in which every class is stored.
    pub(super) fn dense(values: &'a [f64]) -> Self {
        Self { classes: None, values }
    }

    /// The class of the probability at this position.
    #[must_use]
    pub fn class(&self, at: usize) -> usize {
        self.classes.map_or(at, |classes| classes[at] as usize)
    }

    /// The most probable class, as [`best`]; `None` if nothing is stored.
    #[must_use]
    pub fn best(&self) -> Option<(usize, bool)> {
        best(self.values).map(|(at, is_tied)| (self.class(at), is_tied))
    }
}

/// The rows of adjacent instances, one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
struct SparseBlock {
    /// Where the row of each instance ends.
    ends: Vec<usize>,
    classes: Vec<u32>,
    values: Vec<f64>,
}

impl SparseBlock {
    fn from_votes(a: &Annotations, instances: Range<usize>) -> Self {
        let ends = Vec::with_capacity(instances.len());
        let (mut block, mut votes) = (Self { ends, ..Self::default() }, Vec::new());
        for i in instances {
            let begin = block.values.len();
            if let Some(class) = a.trusted_class(i) {
                block.push(class, 1.0);
            } else {
                let labels =
                    a.annotations_of(i).map(|(column, weight)| (a.label_of(column), weight));
                votes.extend(labels.filter(|(label, _)| (*label as usize) < a.dims().classes));
                // A stable order: the weights of a class are summed as they are in a dense row.
                votes.sort_by_key(|(class, _)| *class);
                for (class, weight) in votes.drain(..) {
                    block.add(begin, class, weight);
                }
                let sum: f64 = block.values[begin..].iter().sum();
                block.values[begin..].iter_mut().for_each(|v| *v /= sum);
            }
            block.ends.push(block.values.len());
        }
        block.classes.shrink_to_fit();
        block.values.shrink_to_fit();
        block
    }

    /// Adds a vote to the row that begins at `begin`; its classes come in ascending order.
    fn add(&mut self, begin: usize, class: u32, weight: f64) {
        match self.values.last_mut() {
            Some(last) if self.classes[begin..].last() == Some(&class) => *last += weight,
            _ => self.push(class, weight),
        }
    }

    fn push(&mut self, class: u32, value: f64) {
        self.classes.push(class);
        self.values.push(value);
    }

    /// The positions of the row of the instance at this offset.
    fn row(&self, offset: usize) -> Range<usize> {
        let begin = offset.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[offset]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{AnnotationRows, Duplicates};
    use crate::testing::tiny;

    #[test]
    fn votes_take_no_more_than_their_bound() {
        let n = ITEMS_PER_BLOCK as u32 + 100;
        let rows: Vec<_> = (0..3 * n).map(|row| (row / 3, row % 3, row % 90)).collect();
        let mut a = tiny(90, &rows);
        let (held, bound) = held_and_bound(&a);
        assert!(held <= bound, "{held} {bound}");
        // The trusted class of an instance that nobody annotated is stored too. The bound counts one for the
        // annotated instance, which has none.
        a = tiny(90, &[(n, 0, 1)]);
        a.trusted = Some((0..=n).map(|i| (i < n).then_some(7)).collect());
        let (held, bound) = held_and_bound(&a);
        assert_eq!(held + size_of::<u32>() + size_of::<f64>(), bound);
    }

    /// The bytes of a sparse posterior of votes, and their bound.
    fn held_and_bound(a: &Annotations) -> (usize, usize) {
        let votes = SparsePosterior::from_votes(a);
        let held = |block: &SparseBlock| {
            let SparseBlock { ends, classes, values } = block;
            ends.capacity() * 8 + classes.capacity() * 4 + values.capacity() * 8
        };
        let bound = SparsePosterior::most_bytes(a.dims(), a.len()).unwrap();
        (votes.blocks.iter().map(held).sum(), bound)
    }

    #[test]
    fn the_least_weight_beside_a_label_that_is_no_class_is_a_vote() {
        let dims = Dims { instances: 60, annotators: 1, classes: 90, labels: 91 };
        let rows = AnnotationRows {
            instance: vec![0, 0],
            annotator: vec![0, 0],
            label: vec![3, 90],
            weight: vec![5e-324, 2.0],
        };
        let a = Annotations::build(dims, rows, Duplicates::Share).unwrap();
        let votes = SparsePosterior::from_votes(&a).dense();
        assert_eq!(votes.row(0)[3], 1.0);
        assert_eq!(votes, Posterior::from_votes(&a));
    }
}
