//! The posterior that a fit returns: a probability for every class, or for the classes with votes alone.
//!
//! # Why
//! An instance has votes for a few classes, however many there are. With 1000 classes a dense row takes 8 kB and five
//! votes take 60 bytes; the memory of a vote follows the number of annotations. EM keeps the dense [`Posterior`]: nearly
//! all of its probabilities are above 0.

use std::borrow::Cow;

use super::posterior::Posterior;
use super::sparse_posterior::{SparsePosterior, StoredRow};
use crate::frame::{Annotations, Dims, FitBytes, QuestionSizes};

/// P(class given everything observed) of a fit, one row per instance.
#[derive(Debug, Clone, PartialEq)]
pub enum FittedPosterior {
    /// Every probability of every row.
    Dense(Posterior),
    /// The probabilities of the classes with votes, or of the trusted class.
    Sparse(SparsePosterior),
}

impl From<Posterior> for FittedPosterior {
    fn from(posterior: Posterior) -> Self {
        Self::Dense(posterior)
    }
}

impl FittedPosterior {
    /// The share of each class among an instance's weighted votes, as [`Posterior::from_votes`]; sparse where a dense
    /// posterior has many more cells than a sparse one.
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
        if is_sparse(dims, annotations) {
            return SparsePosterior::most_bytes(dims, annotations);
        }
        dims.instances.checked_mul(dims.classes)?.checked_mul(size_of::<f64>())
    }

    /// The memory of a fit that counts votes: see [`FitBytesOf`](crate::frame::FitBytesOf).
    #[must_use]
    pub fn fit_bytes_of_votes(sizes: &QuestionSizes) -> Option<FitBytes> {
        Self::bytes_of_votes(sizes.dims, sizes.annotations).map(FitBytes::of_posteriors)
    }

    /// The number of instances.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(posterior) => posterior.len(),
            Self::Sparse(posterior) => posterior.len(),
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
            Self::Sparse(posterior) => posterior.n_classes(),
        }
    }

    /// The probability of every class for instance `i`, `[class]`.
    #[must_use]
    pub fn row(&self, i: usize) -> Cow<'_, [f64]> {
        match self {
            Self::Dense(posterior) => Cow::Borrowed(posterior.row(i)),
            Self::Sparse(_) => {
                let mut row = Vec::new();
                self.extend_with_row(i, &mut row);
                Cow::Owned(row)
            }
        }
    }

    /// Appends the probability of every class for instance `i` to `values`.
    pub fn extend_with_row(&self, i: usize, values: &mut Vec<f64>) {
        match self {
            Self::Dense(posterior) => values.extend_from_slice(posterior.row(i)),
            Self::Sparse(posterior) => {
                let begin = values.len();
                values.resize(begin + posterior.n_classes(), 0.0);
                posterior.fill_row(i, &mut values[begin..]);
            }
        }
    }

    /// The stored probabilities of instance `i`.
    #[must_use]
    pub fn stored_row(&self, i: usize) -> StoredRow<'_> {
        match self {
            Self::Dense(posterior) => StoredRow::dense(posterior.row(i)),
            Self::Sparse(posterior) => posterior.stored_row(i),
        }
    }

    /// All stored probabilities, in parts.
    pub(crate) fn stored_values(&self) -> Vec<&[f64]> {
        match self {
            Self::Dense(posterior) => vec![posterior.values()],
            Self::Sparse(posterior) => posterior.stored_values().collect(),
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

/// Whether votes are stored without the classes that have none. With few classes a dense row takes little more memory,
/// and needs neither sorting nor class numbers.
fn is_sparse(dims: Dims, annotations: usize) -> bool {
    let most =
        SparsePosterior::most_stored(dims, annotations).saturating_mul(DENSE_CELLS_PER_VALUE);
    dims.instances.saturating_mul(dims.classes) > most
}

/// The most cells of a dense posterior for each value of a sparse one: 64 bytes, about as many as an annotation takes
/// while the views are built.
const DENSE_CELLS_PER_VALUE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{AnnotationRows, Duplicates, ITEMS_PER_BLOCK};
    use crate::model::posterior::best;

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
        assert_eq!(bytes(5), 1_500_000 * 5 * 8);
        assert_eq!(bytes(1_000), (7_500_000 + 1_500_000) * 12 + 1_500_000 * 8);
        assert_eq!(bytes(100_000), bytes(1_000));
        // Many classes, and even more annotations: the vote has no matrix of classes and labels.
        let few = Dims { instances: 10, annotators: 10, classes: 21_841, labels: 21_841 };
        assert_eq!(FittedPosterior::bytes_of_votes(few, 30_000), Some(10 * 21_841 * 8));
    }

    #[test]
    fn rows_are_appended_to_the_values_before_them() {
        let a = many_classes();
        let (sparse, dense) = (FittedPosterior::from_votes(&a), Posterior::from_votes(&a));
        for posterior in [sparse, dense.clone().into()] {
            let mut values = vec![0.25];
            for i in [0, 5, 6] {
                posterior.extend_with_row(i, &mut values);
            }
            assert_eq!(values, [&[0.25], dense.row(0), dense.row(5), dense.row(6)].concat());
        }
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
