//! Clusters of annotators who share confusion matrices: where models of clusters start, and what they report.

pub(in crate::model::em) mod community_bcc;
pub(in crate::model::em) mod worker_clustering;

use rayon::prelude::*;

use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK, MemoryEstimate, QuestionSizes};
use crate::model::confusion::CommonConfusion;
use crate::model::em::kernels;
use crate::model::em::kernels::PooledCounts;
use crate::model::numerics::MIN_PROBABILITY;

/// The most clusters of a model.
pub(super) const MAX_CLUSTERS: u32 = 16;

/// Annotators whose merits differ by less differ by rounding.
const MIN_GAP: f64 = 1e-9;

/// Added to expected counts, so that no label is impossible and the row of a class without a count is uniform.
pub(super) const ADDED: f64 = MIN_PROBABILITY;

/// The confusion matrix of an annotator.
pub(super) struct CountedMatrix {
    /// The labels that the annotator used, ascending.
    pub(super) labels: Vec<usize>,
    /// P(label given class) of these labels, `[label that was used, class]`.
    pub(super) cells: Vec<f64>,
    /// P(label given class) of each other label, `[class]`.
    pub(super) unused: Vec<f64>,
}

impl CountedMatrix {
    pub(super) fn new(counts: &PooledCounts<'_>, r: usize) -> Self {
        let (n, n_labels) = counts.axes();
        let (mut labels, mut cells) = (Vec::new(), Vec::new());
        let mut sums = vec![n_labels as f64 * ADDED; n];
        for (label, row) in counts.of_annotator(r) {
            labels.push(label);
            cells.extend_from_slice(row);
            sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
        for column in cells.chunks_exact_mut(n.max(1)) {
            column.iter_mut().zip(&sums).for_each(|(cell, sum)| *cell = (*cell + ADDED) / sum);
        }
        Self { labels, cells, unused: sums.iter().map(|sum| ADDED / sum).collect() }
    }

    /// The sum of the singular values, or of the columns' lengths where there are many labels: the larger it is, the better
    /// labels tell classes apart. The labels that were not used have equal columns, which one column stands for whose square
    /// is the sum of theirs.
    pub(super) fn nuclear_norm(&self, n_classes: usize, n_labels: usize) -> f64 {
        let mut columns = self.cells.clone();
        let scale = ((n_labels - self.labels.len()) as f64).sqrt();
        columns.extend(self.unused.iter().map(|p| scale * p));
        if n_labels <= MAX_ROTATED {
            orthogonalise(&mut columns, n_classes);
        }
        let norm = |column: &[f64]| column.iter().map(|x| x * x).sum::<f64>().sqrt();
        columns.chunks_exact(n_classes).map(norm).sum()
    }
}

/// With more labels, the rotations of an annotator who used them all take minutes.
const MAX_ROTATED: usize = 64;

/// Rotates pairs of columns of length `n` until all are orthogonal (the one-sided method of Jacobi): their lengths are
/// then the singular values.
fn orthogonalise(columns: &mut [f64], n: usize) {
    /// Few sweeps are enough: each squares the remaining products.
    const MAX_SWEEPS: usize = 40;
    let mut rotates = true;
    for _ in 0..MAX_SWEEPS {
        if !std::mem::replace(&mut rotates, false) {
            break;
        }
        for second in 1..columns.len() / n {
            for first in 0..second {
                let (left, right) = columns.split_at_mut(second * n);
                let (x, y) = (&mut left[first * n..(first + 1) * n], &mut right[..n]);
                let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
                let (xx, yy, xy): (f64, f64, f64) = (product(x, x), product(y, y), product(x, y));
                if xy.abs() <= 1e-12 * (xx * yy).sqrt() + 1e-24 {
                    continue;
                }
                rotates = true;
                let ratio = (yy - xx) / (2.0 * xy);
                let tangent = ratio.signum() / (ratio.abs() + ratio.hypot(1.0));
                let cosine = 1.0 / tangent.hypot(1.0);
                let sine = cosine * tangent;
                for (x, y) in x.iter_mut().zip(y) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
        }
    }
}

/// The cluster of each annotator at a start: annotators are sorted by how `good` they are, best first, and cut into blocks of
/// equal size.
///
/// # Why
/// Annotators who are equally good, such as all who never contradict the vote, are in one block, that of the first of
/// them: their order is that of their ids, or of rounding.
pub(super) fn blocks(
    a: &Annotations,
    n_clusters: usize,
    good: impl Fn(usize) -> f64 + Sync,
) -> Vec<u32> {
    let annotated = annotated(a).into_par_iter();
    let mut merits: Vec<(f64, usize)> = annotated.map(|r| (good(r), r)).collect();
    merits.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    let (mut blocks, mut first) = (vec![0; a.dims().annotators], 0);
    for (nth, (merit, r)) in merits.iter().enumerate() {
        if nth > 0 && merits[nth - 1].0 - merit > MIN_GAP {
            first = nth;
        }
        // The last block that begins at or before the first of them.
        let begins = |block: &usize| block * merits.len() / n_clusters <= first;
        blocks[*r] = (0..n_clusters).rev().find(begins).unwrap_or_default() as u32;
    }
    blocks
}

/// The annotators who have annotations: others follow the shares of the clusters.
pub(super) fn annotated(a: &Annotations) -> Vec<usize> {
    (0..a.dims().annotators).filter(|r| !a.pairs_of_annotator(*r).is_empty()).collect()
}

/// What is known about the cluster of every annotator, P(cluster) `[annotator, cluster]`.
pub(super) struct Membership {
    pub(super) n_clusters: usize,
    pub(super) shares: Vec<f64>,
}

impl Membership {
    /// P(cluster) of annotator `r`.
    pub(super) fn row(&self, r: usize) -> &[f64] {
        &self.shares[r * self.n_clusters..(r + 1) * self.n_clusters]
    }

    /// The most probable cluster of every annotator.
    pub(super) fn best(&self) -> Vec<u32> {
        let best = |shares: &[f64]| {
            // Of equal ones the first.
            let better = |best: usize, k: usize| if shares[k] > shares[best] { k } else { best };
            (0..shares.len()).fold(0, better) as u32
        };
        self.shares.chunks_exact(self.n_clusters).map(best).collect()
    }

    /// Writes the memberships of all annotators, in parallel; returns the sum of what `write` returns for each that has
    /// annotations, in the order of the annotators.
    pub(super) fn estimate(
        &mut self,
        a: &Annotations,
        write: impl Fn(usize, &mut [f64]) -> f64 + Sync,
    ) -> f64 {
        let rows = self.shares.par_chunks_mut(self.n_clusters).enumerate();
        let terms: Vec<f64> =
            rows.with_min_len(ITEMS_PER_BLOCK / 64).map(|(r, row)| write(r, row)).collect();
        annotated(a).into_iter().map(|r| terms[r]).sum()
    }

    /// How many annotators are expected in each cluster, of those who have annotations.
    pub(super) fn sizes(&self, annotated: &[usize]) -> Vec<f64> {
        let mut sizes = vec![0.0; self.n_clusters];
        for r in annotated {
            sizes.iter_mut().zip(self.row(*r)).for_each(|(size, share)| *size += share);
        }
        sizes
    }

    /// The parameters of annotators: `cluster`, the most probable one, and `cluster_0` and so on, their probabilities.
    pub(super) fn parameters(&self) -> Vec<(String, Vec<f64>)> {
        let best = self.best().into_iter().map(f64::from).collect();
        let of = |m: usize| self.shares.iter().skip(m).step_by(self.n_clusters).copied().collect();
        let each = (0..self.n_clusters).map(|m| (format!("cluster_{m}"), of(m)));
        [("cluster".to_owned(), best)].into_iter().chain(each).collect()
    }
}

/// The matrices of clusters: P(label given class), `[cluster, class, label]`, and the expected counts,
/// `[cluster, label, class]`.
pub(super) fn matrices(
    probabilities: &[f64],
    counts: &[f64],
    (n_classes, n_labels): (usize, usize),
) -> Vec<CommonConfusion> {
    let cells = (n_classes * n_labels).max(1);
    let of_cluster = |(probability, counts): (&[f64], &[f64])| CommonConfusion {
        probability: probability.to_vec(),
        expected_count: transposed(counts, n_classes),
    };
    probabilities.chunks_exact(cells).zip(counts.chunks_exact(cells)).map(of_cluster).collect()
}

/// `[b, a]` of `[a, b]`, for `n` columns b.
pub(super) fn transposed(cells: &[f64], n: usize) -> Vec<f64> {
    (0..n).flat_map(|k| cells.iter().skip(k).step_by(n).copied()).collect()
}

/// A warning where some clusters must stay empty.
pub(super) fn too_few_annotators(a: &Annotations, n_clusters: u32, key: &str) -> Option<String> {
    let n = a.dims().annotators;
    (n > 0 && n < n_clusters as usize).then(|| {
        format!("{n_clusters} clusters are more than the annotators: lower {key} to at most {n}")
    })
}

/// The memory of the fit of a model of clusters: that of other models of pairs, the memberships, and the matrices of all
/// clusters and of a number of annotators.
pub(super) fn memory_estimate(
    sizes: &QuestionSizes,
    matrices_of_annotators: usize,
) -> Option<MemoryEstimate> {
    let own = kernels::memory_estimate(sizes)?;
    let Dims { annotators, classes, labels, .. } = sizes.dims;
    let clusters = MAX_CLUSTERS as usize;
    let matrices = matrices_of_annotators.checked_add(clusters.checked_mul(3)?)?;
    let cells = classes.checked_mul(labels)?.checked_mul(matrices)?;
    let cells = cells.checked_add(annotators.checked_mul(2 * clusters)?)?;
    let matrices = own.matrices.checked_add(cells.checked_mul(size_of::<f64>())?)?;
    Some(MemoryEstimate { matrices, ..own })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The singular values of \[\[1, 1\], \[0, 1\]\] are (sqrt 5 + 1) / 2 and (sqrt 5 - 1) / 2; those of a matrix with rows
    /// (.5, .5, 0, 0) and (.25, .25, .25, .25) sum to 1.118034.
    #[test]
    fn the_nuclear_norm_is_the_sum_of_the_singular_values() {
        let norm = |cells: &[f64], unused: [f64; 2], n_labels| {
            let labels = (0..cells.len() / 2).collect();
            CountedMatrix { labels, cells: cells.to_vec(), unused: unused.to_vec() }
                .nuclear_norm(2, n_labels)
        };
        assert!((norm(&[1.0, 0.0, 1.0, 1.0], [0.0, 0.0], 2) - 5.0_f64.sqrt()).abs() < 1e-12);
        let used = [0.5, 0.25, 0.5, 0.25];
        let sparse = norm(&used, [0.0, 0.25], 4);
        assert!((sparse - 1.118_033_988_749_895).abs() < 1e-12, "{sparse}");
        let dense = [&used[..], &[0.0, 0.25, 0.0, 0.25]].concat();
        assert!((norm(&dense, [0.0, 0.0], 4) - sparse).abs() < 1e-12);
    }
}
