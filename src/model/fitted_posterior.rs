//! The posterior that a fit returns: a probability for every class, or for the classes with votes alone.
//!
//! # Why
//! An instance has votes for a few classes, however many there are. With 1000 classes a dense row takes 8 kB and five
//! votes take 60 bytes; the memory of a vote follows the number of annotations. EM keeps the dense [`Posterior`], none
//! of whose probabilities is 0.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::posterior::{Posterior, best};
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK, dense_result_bytes};

/// P(class given everything observed) of a fit, one row per instance.
#[derive(Debug, Clone, PartialEq)]
pub enum FittedPosterior {
    /// Every probability of every row.
    Dense(Posterior),
    /// The probabilities that are not 0.
    Sparse(SparsePosterior),
}

impl From<Posterior> for FittedPosterior {
    fn from(posterior: Posterior) -> Self {
        Self::Dense(posterior)
    }
}

impl FittedPosterior {
    /// The share of each class among an instance's weighted votes, as [`Posterior::from_votes`]; sparse where there are
    /// many more cells than annotations.
    #[must_use]
    pub fn from_votes(a: &Annotations) -> Self {
        if is_sparse(a.dims(), a.len()) {
            Self::Sparse(SparsePosterior::from_votes(a))
        } else {
            Self::Dense(Posterior::from_votes(a))
        }
    }

    /// The most bytes of [`FittedPosterior::from_votes`]; `None` where they are too many to be counted.
    #[must_use]
    pub fn bytes_of_votes(dims: Dims, annotations: usize) -> Option<usize> {
        if !is_sparse(dims, annotations) {
            return dense_result_bytes(dims, annotations);
        }
        let votes = annotations.checked_mul(size_of::<u32>() + size_of::<f64>())?;
        votes.checked_add(dims.instances.checked_mul(size_of::<usize>())?)
    }

    /// The number of instances.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(posterior) => posterior.len(),
            Self::Sparse(posterior) => posterior.n_instances,
        }
    }

    /// Whether there are no instances.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of classes.
    #[must_use]
    pub fn n_classes(&self) -> usize {
        match self {
            Self::Dense(posterior) => posterior.n_classes(),
            Self::Sparse(posterior) => posterior.n_classes,
        }
    }

    /// The probability of every class for instance `i`, `[class]`.
    #[must_use]
    pub fn row(&self, i: usize) -> Cow<'_, [f64]> {
        match self {
            Self::Dense(posterior) => Cow::Borrowed(posterior.row(i)),
            Self::Sparse(posterior) => Cow::Owned(posterior.dense_row(i)),
        }
    }

    /// The stored probabilities of instance `i`.
    #[must_use]
    pub fn stored_row(&self, i: usize) -> StoredRow<'_> {
        match self {
            Self::Dense(posterior) => StoredRow { classes: None, values: posterior.row(i) },
            Self::Sparse(posterior) => posterior.stored_row(i),
        }
    }

    /// All stored probabilities, in parts.
    pub(crate) fn stored_values(&self) -> Vec<&[f64]> {
        match self {
            Self::Dense(posterior) => vec![posterior.values()],
            Self::Sparse(posterior) => {
                posterior.blocks.iter().map(|block| block.values.as_slice()).collect()
            }
        }
    }

    /// Every probability of every row.
    #[must_use]
    pub fn dense(&self) -> Cow<'_, Posterior> {
        match self {
            Self::Dense(posterior) => Cow::Borrowed(posterior),
            Self::Sparse(posterior) => Cow::Owned(posterior.dense()),
        }
    }

    /// Makes the posterior dense and changes it.
    pub fn change(&mut self, change: impl FnOnce(&mut Posterior)) {
        let mut posterior = match std::mem::replace(self, Self::Dense(Posterior::zeros(0, 0))) {
            Self::Dense(posterior) => posterior,
            Self::Sparse(posterior) => posterior.dense(),
        };
        change(&mut posterior);
        *self = Self::Dense(posterior);
    }

    /// Calls `change(instance, stored probabilities)` for every row, blocks of instances in parallel.
    pub fn par_stored_rows_mut(&mut self, change: impl Fn(usize, &mut [f64]) + Sync) {
        match self {
            Self::Dense(posterior) => posterior.par_rows_mut(change),
            Self::Sparse(posterior) => posterior.par_rows_mut(change),
        }
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

impl StoredRow<'_> {
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

/// Whether votes are stored without the classes that have none. With few classes a dense row takes little more memory,
/// and needs neither sorting nor class numbers.
fn is_sparse(dims: Dims, annotations: usize) -> bool {
    let most = annotations.saturating_mul(CELLS_PER_ANNOTATION).saturating_add(ITEMS_PER_BLOCK);
    dims.instances.saturating_mul(dims.classes) > most
}

/// The most cells of a dense posterior per annotation: 64 bytes, about as many as the annotation itself takes while the
/// views are built.
const CELLS_PER_ANNOTATION: usize = 8;

/// The shares of the classes that have votes.
#[derive(Debug, Clone, PartialEq)]
pub struct SparsePosterior {
    n_instances: usize,
    n_classes: usize,
    /// [`ITEMS_PER_BLOCK`] instances each, and the rest in the last.
    blocks: Vec<SparseBlock>,
}

/// The rows of adjacent instances, one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
struct SparseBlock {
    /// Where the row of each instance ends.
    ends: Vec<usize>,
    classes: Vec<u32>,
    values: Vec<f64>,
}

impl SparsePosterior {
    fn from_votes(a: &Annotations) -> Self {
        let Dims { instances, classes, .. } = a.dims();
        let blocks = (0..instances.div_ceil(ITEMS_PER_BLOCK)).into_par_iter().map(|block| {
            let first = block * ITEMS_PER_BLOCK;
            SparseBlock::from_votes(a, first..(first + ITEMS_PER_BLOCK).min(instances))
        });
        Self { n_instances: instances, n_classes: classes, blocks: blocks.collect() }
    }

    fn stored_row(&self, i: usize) -> StoredRow<'_> {
        let block = &self.blocks[i / ITEMS_PER_BLOCK];
        let row = block.row(i % ITEMS_PER_BLOCK);
        StoredRow { classes: Some(&block.classes[row.clone()]), values: &block.values[row] }
    }

    fn dense_row(&self, i: usize) -> Vec<f64> {
        let mut row = vec![0.0; self.n_classes];
        self.fill_row(i, &mut row);
        row
    }

    /// Writes row `i` into zeros.
    fn fill_row(&self, i: usize, row: &mut [f64]) {
        let stored = self.stored_row(i);
        if stored.values.is_empty() {
            row.fill(1.0 / self.n_classes as f64);
        }
        stored.values.iter().enumerate().for_each(|(at, p)| row[stored.class(at)] = *p);
    }

    fn dense(&self) -> Posterior {
        let mut dense = Posterior::zeros(self.n_instances, self.n_classes);
        dense.par_rows_mut(|i, row| self.fill_row(i, row));
        dense
    }

    fn par_rows_mut(&mut self, change: impl Fn(usize, &mut [f64]) + Sync) {
        self.blocks.par_iter_mut().enumerate().for_each(|(number, block)| {
            for offset in 0..block.ends.len() {
                let row = block.row(offset);
                change(number * ITEMS_PER_BLOCK + offset, &mut block.values[row]);
            }
        });
    }
}

impl SparseBlock {
    fn from_votes(a: &Annotations, instances: Range<usize>) -> Self {
        let (mut block, mut votes) = (Self::default(), Vec::new());
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

    const CLASSES: u32 = 90;

    /// Three weighted votes for 90 classes and an extra label; every seventh instance has the extra label alone, and
    /// instance 5 a trusted class.
    fn many_classes() -> Annotations {
        let n = ITEMS_PER_BLOCK as u32 + 100;
        let mut rows = AnnotationRows::default();
        for (i, r) in (0..n).flat_map(|i| (0..3).map(move |r| (i, r))) {
            let label =
                if i % 7 == 0 { CLASSES } else { (i * (1 + r / 2) + r * (i % 3)) % CLASSES };
            rows.instance.push(i);
            rows.annotator.push(r);
            rows.label.push(label);
            rows.weight.push(0.1 + f64::from(i % 13 * (r + 1)) / 7.0);
        }
        let classes = CLASSES as usize;
        let dims = Dims { instances: n as usize, annotators: 3, classes, labels: classes + 1 };
        let mut a = Annotations::build(dims, rows, Duplicates::Share).unwrap();
        a.trusted = Some((0..n).map(|i| (i == 5).then_some(17)).collect());
        a
    }

    #[test]
    fn sparse_votes_are_the_dense_ones_bit_by_bit() {
        let a = many_classes();
        let (sparse, dense) = (FittedPosterior::from_votes(&a), Posterior::from_votes(&a));
        assert!(matches!(sparse, FittedPosterior::Sparse(_)));
        assert_eq!(*sparse.dense(), dense);
        for i in 0..dense.len() {
            assert_eq!(*sparse.row(i), *dense.row(i), "{i}");
            if a.has_evidence(i) {
                assert_eq!(sparse.stored_row(i).best(), best(dense.row(i)), "{i}");
            } else {
                assert_eq!(sparse.stored_row(i).best(), None);
            }
        }
    }

    #[test]
    fn the_memory_of_votes_follows_the_annotations() {
        let dims =
            |classes| Dims { instances: 1_500_000, annotators: 10, classes, labels: classes };
        let bytes = |classes| FittedPosterior::bytes_of_votes(dims(classes), 7_500_000).unwrap();
        assert_eq!(bytes(5), 1_500_000 * 5 * 8 + 5 * 5 * 8);
        assert_eq!(bytes(1_000), 7_500_000 * 12 + 1_500_000 * 8);
        assert_eq!(bytes(100_000), bytes(1_000));
        let a = many_classes();
        let FittedPosterior::Sparse(votes) = FittedPosterior::from_votes(&a) else { panic!() };
        let held = |block: &SparseBlock| {
            block.ends.len() * 8 + block.classes.capacity() * 4 + block.values.capacity() * 8
        };
        let held: usize = votes.blocks.iter().map(held).sum();
        assert!(held <= FittedPosterior::bytes_of_votes(a.dims(), a.len()).unwrap(), "{held}");
    }

    #[test]
    fn a_changed_posterior_is_dense() {
        let a = many_classes();
        let mut posterior = FittedPosterior::from_votes(&a);
        posterior.change(|rows| rows.row_mut(1).fill(0.5));
        assert!(matches!(posterior, FittedPosterior::Dense(_)));
        assert_eq!(posterior.row(1)[89], 0.5);
        assert_eq!(*posterior.row(2), *Posterior::from_votes(&a).row(2));
    }
}
