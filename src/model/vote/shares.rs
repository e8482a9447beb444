//! The shares of an instance's votes, computed when they are read.

use std::ops::Range;

use crate::frame::Annotations;
use crate::model::fitted::fitted_posterior::PosteriorRows;
use crate::model::posterior::{harden, write_votes};

/// From so many classes on, a row is read as the classes that have votes, where every vote counts.
const MANY_CLASSES: usize = 64;

/// The share of each class among an instance's weighted votes, as
/// [`Posterior::from_votes`](crate::model::posterior::Posterior::from_votes).
#[derive(Debug, Clone, Default)]
pub(super) struct VoteShares {
    /// The weight of every annotator, `[annotator]`: a negative one counts as 0, and where all of an instance are 0 its votes
    /// count equally. `None` where all annotators count the same.
    pub(super) weights: Option<Vec<f64>>,
    /// Whether the winners share the row equally.
    pub(super) is_hard: bool,
}

impl VoteShares {
    /// Votes with these weights of annotators.
    pub(super) fn weighted(weights: &[f64]) -> Self {
        let are_one = weights.iter().all(|weight| *weight == 1.0);
        Self { weights: (!are_one).then(|| weights.to_vec()), is_hard: false }
    }

    /// Writes the row of an instance into zeros.
    #[inline]
    pub(super) fn write_row(&self, a: &Annotations, i: usize, row: &mut [f64]) {
        if let (Some(weights), None) = (&self.weights, a.trusted_class(i)) {
            for (annotator, label, weight) in a.triples_of_instance(i) {
                if let Some(vote) = row.get_mut(label as usize) {
                    *vote += weight * weights[annotator as usize].max(0.0);
                }
            }
            let sum: f64 = row.iter().sum();
            if sum > 0.0 {
                return row.iter_mut().for_each(|p| *p /= sum);
            }
        }
        write_votes(a, i, row);
    }
}

impl PosteriorRows for VoteShares {
    fn write(&self, a: &Annotations, instances: Range<usize>, rows: &mut [f64]) {
        for (i, row) in instances.zip(rows.chunks_exact_mut(a.dims().classes.max(1))) {
            self.write_row(a, i, row);
            if self.is_hard && a.has_evidence(i) {
                harden(row);
            }
        }
    }

    fn parts(&self) -> Vec<&[f64]> {
        self.weights.as_deref().into_iter().collect()
    }

    fn entries(&self, a: &Annotations, i: usize) -> Option<(Vec<u32>, Vec<f64>)> {
        let n = a.dims().classes;
        if n < MANY_CLASSES || self.weights.is_some() {
            return None;
        }
        if let Some(class) = a.trusted_class(i) {
            return Some((vec![class], vec![1.0]));
        }
        let labels =
            a.annotations_of_instance(i).map(|(pair, weight)| (a.label_of_pair(pair), weight));
        let mut votes: Vec<_> = labels.filter(|(label, _)| (*label as usize) < n).collect();
        // A stable order: the weights of a class are summed as they are in a whole row.
        votes.sort_by_key(|(class, _)| *class);
        let (mut classes, mut shares) = (Vec::new(), Vec::<f64>::new());
        for (class, weight) in votes {
            match shares.last_mut() {
                Some(share) if classes.last() == Some(&class) => *share += weight,
                _ => {
                    classes.push(class);
                    shares.push(weight);
                }
            }
        }
        let sum: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
        if self.is_hard && !shares.is_empty() {
            harden(&mut shares);
        }
        Some((classes, shares))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{AnnotationRows, Dims, Duplicates};
    use crate::model::fitted::fitted_posterior::FittedPosterior;
    use crate::model::posterior::{Posterior, best};

    const CLASSES: u32 = 90;

    /// Three weighted votes for 90 classes and an extra label; every seventh instance has the extra label alone, and
    /// instance 5 a trusted class.
    fn many_classes() -> Annotations {
        let n = 300;
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
    fn entries_are_those_of_the_whole_row_bit_by_bit() {
        let (a, dense) = (many_classes(), Posterior::from_votes(&many_classes()));
        for is_hard in [false, true] {
            let votes =
                FittedPosterior::on_demand(&a, VoteShares { is_hard, ..VoteShares::default() });
            let all = votes.dense();
            for i in 0..dense.len() {
                if !is_hard {
                    assert_eq!(*votes.row(i), *dense.row(i), "{i}");
                }
                let entries = votes.entries(i);
                if !a.has_evidence(i) {
                    assert_eq!((entries.best(), entries.values.len()), (None, 0));
                    continue;
                }
                assert_eq!(entries.best(), best(all.row(i)), "{i}");
                let mut row = vec![0.0; dense.n_classes()];
                let values = entries.values.iter().enumerate();
                values.for_each(|(at, p)| row[entries.class(at)] = *p);
                assert_eq!(row, all.row(i), "{i}");
            }
        }
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
        let votes = FittedPosterior::on_demand(&a, VoteShares::default());
        assert_eq!(votes.entries(0).best(), Some((3, false)));
        assert_eq!(*votes.dense(), Posterior::from_votes(&a));
    }

    #[test]
    fn rows_of_adjacent_instances_are_those_of_each() {
        let a = many_classes();
        let dense = Posterior::from_votes(&a);
        let votes = FittedPosterior::on_demand(&a, VoteShares::default());
        for posterior in [votes, dense.clone().into()] {
            assert_eq!(*posterior.rows(5..7), [dense.row(5), dense.row(6)].concat());
            posterior.for_each(5..7, |i, row| {
                assert_eq!(row.best(), best(dense.row(i)), "{i}");
            });
        }
    }

    #[test]
    fn a_changed_posterior_is_dense() {
        let a = many_classes();
        let mut posterior = FittedPosterior::on_demand(&a, VoteShares::default());
        posterior.change(|rows| rows.row_mut(1).fill(0.5));
        assert!(matches!(posterior, FittedPosterior::Dense(_)));
        assert_eq!(posterior.row(1)[89], 0.5);
        assert_eq!(*posterior.row(2), *Posterior::from_votes(&a).row(2));
    }
}
