//! Expected counts of all annotators together, for models whose annotators share a confusion matrix.

use rayon::prelude::*;

use crate::frame::{Annotations, MAX_RANGES, ranges_of_instances};
use crate::model::posterior::Posterior;

/// How often all annotators together are expected to have met each class and given each label, `[label, class]`.
///
/// An estimator whose likelihood is tied across annotators, or starts from the whole crowd, reads these counts before the
/// M-step; the counts of its own annotator are then only a part of what it knows. A fixed number of ranges of instances is
/// summed in order, so that the result does not depend on the number of threads.
#[must_use]
pub fn pooled_counts(a: &Annotations, t: &Posterior) -> Vec<f64> {
    let (n_classes, n_labels) = (a.dims().classes, a.dims().labels);
    let n_instances = a.dims().instances;
    let sums: Vec<Vec<f64>> = ranges_of_instances(n_instances, MAX_RANGES)
        .with_max_len(1)
        .map(|instances| {
            let mut counts = vec![0.0; n_labels * n_classes];
            let (first, range) = (instances.start, a.range(instances));
            for i in 0..range.len() {
                for (_, label, weight) in range.triples(i) {
                    let start = label as usize * n_classes;
                    let cells = &mut counts[start..start + n_classes];
                    cells.iter_mut().zip(t.row(first + i)).for_each(|(c, p)| *c += weight * p);
                }
            }
            counts
        })
        .collect();
    let mut counts = vec![0.0; n_labels * n_classes];
    for sums in &sums {
        counts.iter_mut().zip(sums).for_each(|(count, sum)| *count += sum);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::super::{
        Annotator, ColumnModel, Estimator, Prior, SparseCell, estimate_each, stride,
    };
    use super::*;
    use crate::frame::Dims;
    use crate::model::confusion::Smoothing;
    use crate::testing::{tiny, weighted};

    /// One confusion matrix for all annotators, `[label, class]`, whatever their own counts.
    struct Shared {
        likelihood: Vec<f64>,
        n_classes: usize,
    }

    impl Shared {
        fn new(a: &Annotations, t: &Posterior) -> Self {
            let (mut likelihood, n) = (pooled_counts(a, t), a.dims().classes);
            for k in 0..n {
                let sum: f64 = likelihood[k..].iter().step_by(n).sum();
                likelihood[k..].iter_mut().step_by(n).for_each(|cell| *cell /= sum);
            }
            Self { likelihood, n_classes: n }
        }

        fn cell(&self, label: u32, class: usize) -> f64 {
            self.likelihood[label as usize * self.n_classes + class]
        }
    }

    impl Estimator for Shared {
        fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
            let rows = cells.chunks_exact_mut(stride(self.n_classes));
            for (cells, label) in rows.zip(annotator.labels) {
                (0..self.n_classes).for_each(|k| cells[k] = self.cell(*label, k));
            }
            0.0
        }

        fn estimate_singletons(
            &self,
            rows: (&[u32], &[u32]),
            n_classes: usize,
            cells: &mut [f64],
        ) -> f64 {
            estimate_each(self, rows, n_classes, cells)
        }

        fn estimate_sparse(
            &self,
            _: Annotator<'_>,
            _: &[usize],
            _: &mut [SparseCell],
            _: &mut [f64],
        ) -> f64 {
            unreachable!("the strategy is not sparse")
        }
    }

    #[test]
    fn annotators_that_share_a_matrix_are_one_annotator() {
        let rows: Vec<(u32, u32, u32)> =
            (0..900).map(|n| (n / 6, n % 7, (n / 6 + u32::from(n * n % 11 < 3)) % 3)).collect();
        let together: Vec<(u32, u32, u32)> = rows.iter().map(|(i, _, l)| (*i, 0, *l)).collect();
        let a = tiny(3, &rows);
        let dims = Dims { annotators: 1, ..a.dims() };
        let one = weighted(dims, &together, vec![1.0; together.len()]);
        let (mut shared, mut single) = (Posterior::from_votes(&a), Posterior::from_votes(&one));
        let (mut model, mut peer) = (ColumnModel::new(&a), ColumnModel::new(&one));
        let (prior, smoothing) = ([0.2, 0.3, 0.5], Smoothing::new(&one, 0.0, 0.0));
        model.count(&a, &shared);
        peer.count(&one, &single);
        for _ in 0..5 {
            let estimator = Shared::new(&a, &shared);
            model.m_step(&a, &shared, &estimator);
            peer.m_step(&one, &single, &smoothing);
            let got = model.e_step(&a, Prior::Class(&prior), &estimator, &mut shared);
            let want = peer.e_step(&one, Prior::Class(&prior), &smoothing, &mut single);
            assert!((got - want).abs() < 1e-8 * want.abs(), "{got} is not {want}");
            for (got, want) in shared.values().iter().zip(single.values()) {
                assert!((got - want).abs() < 1e-8, "{got} is not {want}");
            }
        }
    }
}
