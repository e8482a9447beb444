//! Expected counts of all annotators together, for models whose annotators share a confusion matrix.

use std::ops::Range;

use rayon::prelude::*;

use super::padded_matrix::stride;
use super::statistics::Statistics;
use crate::frame::{Annotations, MAX_RANGES, ranges_of_instances};
use crate::model::posterior::Posterior;

/// How often all annotators together are expected to have met each class and given each label, `[label, class]`: from the
/// counts of columns if `parts` have them, else from the posteriors. A fixed number of parts is summed in order, so that
/// the result does not depend on the number of threads.
pub(super) fn pooled_counts(a: &Annotations, t: &Posterior, parts: &[Statistics]) -> Vec<f64> {
    let (n_classes, n_labels) = (a.dims().classes, a.dims().labels);
    let zeros = || vec![0.0; n_labels * n_classes];
    let labels = a.labels_in(0..a.n_columns());
    let of_table = |table: &[f64]| {
        let mut counts = zeros();
        for (label, column) in labels.iter().zip(table.chunks_exact(stride(n_classes))) {
            let start = *label as usize * n_classes;
            let cells = &mut counts[start..start + n_classes];
            cells.iter_mut().zip(column).for_each(|(count, of_column)| *count += of_column);
        }
        counts
    };
    let of_range = |instances: Range<usize>| {
        let (mut counts, first) = (zeros(), instances.start);
        let range = a.range(instances);
        for i in 0..range.len() {
            for (_, label, weight) in range.triples(i) {
                let start = label as usize * n_classes;
                let cells = &mut counts[start..start + n_classes];
                cells.iter_mut().zip(t.row(first + i)).for_each(|(c, p)| *c += weight * p);
            }
        }
        counts
    };
    let tables: Vec<&[f64]> = parts.iter().filter_map(Statistics::table).collect();
    let sums: Vec<Vec<f64>> = if tables.is_empty() {
        let ranges = ranges_of_instances(a.dims().instances, MAX_RANGES);
        ranges.with_max_len(1).map(of_range).collect()
    } else {
        tables.into_par_iter().map(of_table).collect()
    };
    let mut counts = zeros();
    for sums in &sums {
        counts.iter_mut().zip(sums).for_each(|(count, sum)| *count += sum);
    }
    counts
}

/// The expected number of right annotations of all annotators together, and the number of all, by weight.
pub(super) fn pooled_right(a: &Annotations, t: &Posterior, parts: &[Statistics]) -> [f64; 2] {
    let n_classes = a.dims().classes;
    let labels = a.labels_in(0..a.n_columns());
    let of_table = |table: &[f64]| {
        let columns = labels.iter().zip(table.chunks_exact(stride(n_classes)));
        columns.fold([0.0; 2], |[right, all], (label, column)| {
            let column = &column[..n_classes];
            let own = column.get(*label as usize).copied().unwrap_or_default();
            [right + own, all + column.iter().sum::<f64>()]
        })
    };
    let of_range = |instances: Range<usize>| {
        let (first, range) = (instances.start, a.range(instances));
        let annotations = (0..range.len()).flat_map(|i| range.triples(i).map(move |row| (i, row)));
        annotations.fold([0.0; 2], |[right, all], (i, (_, label, weight))| {
            let own = t.row(first + i).get(label as usize).copied().unwrap_or_default();
            [right + weight * own, all + weight]
        })
    };
    let tables: Vec<&[f64]> = parts.iter().filter_map(Statistics::table).collect();
    let sums: Vec<[f64; 2]> = if tables.is_empty() {
        let ranges = ranges_of_instances(a.dims().instances, MAX_RANGES);
        ranges.with_max_len(1).map(of_range).collect()
    } else {
        tables.into_par_iter().map(of_table).collect()
    };
    sums.into_iter().fold([0.0; 2], |[right, all], [r, n]| [right + r, all + n])
}

#[cfg(test)]
mod tests {
    use super::super::{Annotator, ColumnModel, CountStrategy, Estimator, Prior};
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
        fn new(a: &Annotations, t: &Posterior, model: &ColumnModel) -> Self {
            let (mut likelihood, n) = (model.pooled_counts(a, t), a.dims().classes);
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

        fn allows_sparse_columns(&self) -> bool {
            false
        }
    }

    /// Of 299 annotators, each has three or four annotations, and many of its cells have no count. The likelihood of such
    /// a cell depends on the label, so that sparse columns, with one number for all labels, would be wrong.
    #[test]
    fn annotators_that_share_a_matrix_are_one_annotator() {
        use CountStrategy::{Gather, Scatter, SparseGather};
        for n_annotators in [7, 299] {
            for strategy in [Scatter(3), Gather, SparseGather] {
                assert_one_annotator(n_annotators, strategy);
            }
        }
    }

    fn assert_one_annotator(n_annotators: u32, strategy: CountStrategy) {
        let row = |n: u32| (n / 6, n % n_annotators, (n / 6 + u32::from(n * n % 11 < 3)) % 3);
        let rows: Vec<(u32, u32, u32)> = (0..900).map(row).collect();
        let together: Vec<(u32, u32, u32)> = rows.iter().map(|(i, _, l)| (*i, 0, *l)).collect();
        let weights: Vec<f64> = (0..rows.len()).map(|n| [1.0, 0.5, 2.0][n % 3]).collect();
        let dims = tiny(3, &rows).dims();
        let a = weighted(dims, &rows, weights.clone());
        let one = weighted(Dims { annotators: 1, ..dims }, &together, weights);
        let (prior, smoothing) = ([0.2, 0.3, 0.5], Smoothing::new(&one, 0.0, 0.0));
        let what = format!("{n_annotators} annotators, {strategy:?}");
        let close = |got: f64, want: f64, tolerance: f64| {
            assert!((got - want).abs() < tolerance, "{what}: {got} is not {want}");
        };
        let (mut shared, mut single) = (Posterior::from_votes(&a), Posterior::from_votes(&one));
        let mut model = ColumnModel::with_strategy(&a, strategy);
        let mut peer = ColumnModel::new(&one);
        model.count(&a, &shared);
        peer.count(&one, &single);
        let mut last = None;
        for _ in 0..5 {
            let estimator = Shared::new(&a, &shared, &model);
            model.m_step(&a, &shared, &estimator);
            peer.m_step(&one, &single, &smoothing);
            let got = model.e_step_of_counts(&a, Prior::Class(&prior), &estimator, &mut shared);
            let want = peer.e_step(&one, Prior::Class(&prior), &smoothing, &mut single);
            close(got, want, 1e-8 * want.abs());
            last = Some(estimator);
        }
        // The posteriors that the E-steps of `Scatter` have left out.
        let estimator = last.unwrap();
        model.posteriors(&a, Prior::Class(&prior), &estimator, &mut shared);
        for (got, want) in shared.values().iter().zip(single.values()) {
            close(*got, *want, 1e-8);
        }
        // The sums of all annotators' counts are those of the one.
        let mut sums = [0.0; 9];
        let counts = model.into_expected_counts(&a, &shared);
        for (column, counts) in counts.chunks_exact(3).enumerate() {
            let first = a.label_of(column as u32) as usize * 3;
            sums[first..first + 3].iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        for (got, want) in sums.iter().zip(peer.into_expected_counts(&one, &single)) {
            close(*got, want, 1e-8 * want);
        }
    }
}
