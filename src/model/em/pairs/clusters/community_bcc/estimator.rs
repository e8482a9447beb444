//! The M-step of `community_bcc`, whose file has the formulas: scores, and who belongs to which community.
//!
//! # Why
//! Annotators who mirror each other between two classes differ by rounding, which communities amplify until it decides
//! instances that tie. So scores are rounded to multiples of [`GRID`], the same for both.

use rayon::prelude::*;

use crate::frame::{Annotations, Dims};
use crate::model::em::kernels::{
    DirichletParameter, Estimator, PairCounts, PooledCounts, n_groups,
};
use crate::model::em::pairs::clusters::{self, Membership};
use crate::model::numerics::{logsumexp, softmax};

/// 2^-20. Near a maximum, the objective loses about the square of it.
const GRID: f64 = 1.0 / 1_048_576.0;

fn on_grid(x: f64) -> f64 {
    (x / GRID).round() * GRID
}

/// Estimates the scores of annotators and of communities, and who belongs to which, from the counts of all annotators.
pub struct CommunityEstimator {
    n_labels: usize,
    precision: f64,
    /// The Dirichlet parameter of h, and the sum of its parameters.
    pseudo_counts: [DirichletParameter; 2],
    /// mu, `[class, label]`.
    mean: Vec<f64>,
    /// s, `[annotator, class, label]`.
    pub(super) scores: Vec<f64>,
    /// logsumexp of the rows of s, `[annotator, class]`.
    log_sums: Vec<f64>,
    /// S, `[community, class, label]`.
    pub(super) communities: Vec<f64>,
    /// phi; empty before the start.
    pub(super) members: Membership,
    /// The expected counts, `[community, label, class]`.
    pub(super) counts: Vec<f64>,
    /// The terms of the objective that belong to communities.
    term: f64,
}

impl CommunityEstimator {
    /// With this score of right labels.
    pub(super) fn new(a: &Annotations, n_clusters: usize, right: f64, priors: [f64; 2]) -> Self {
        let [precision, pseudo_count] = priors;
        let Dims { annotators, classes, labels, .. } = a.dims();
        let mean = |cell: usize| if cell / labels == cell % labels { right } else { 0.0 };
        let mean: Vec<f64> = (0..classes * labels).map(mean).collect();
        let pseudo_counts = [1, n_clusters].map(|n| pseudo_count * n as f64);
        Self {
            n_labels: labels,
            precision,
            pseudo_counts: pseudo_counts.map(DirichletParameter::new),
            scores: mean.repeat(annotators),
            log_sums: vec![0.0; annotators * classes],
            communities: mean.repeat(n_clusters),
            members: Membership { n_clusters, shares: Vec::new() },
            counts: Vec::new(),
            term: 0.0,
            mean,
        }
    }

    /// phi of a start: annotators in blocks, by how often they agree with the posteriors. That is the same for all classes.
    fn start(&mut self, counts: &PooledCounts<'_>) {
        let m = self.members.n_clusters;
        let agreement = |r: usize| {
            let (mut agreed, mut all) = (0.0, 0.0);
            for (label, counts) in counts.of_annotator(r) {
                agreed += counts.get(label).copied().unwrap_or_default();
                all += counts.iter().sum::<f64>();
            }
            // Annotators of whom little is known are in the middle.
            (agreed + 1.0) / (all + 2.0)
        };
        let blocks = clusters::blocks(counts.annotations(), m, agreement);
        let share =
            |own: &u32, k: usize| 0.1 / m as f64 + if *own as usize == k { 0.9 } else { 0.0 };
        self.members.shares =
            blocks.iter().flat_map(|own| (0..m).map(move |k| share(own, k))).collect();
    }

    /// s, from the counts and from what the communities expect.
    fn estimate_scores(&mut self, counts: &PooledCounts<'_>) {
        let (n_labels, n_cells, n) = (self.n_labels, self.mean.len(), counts.axes().0);
        let Self { precision, scores, log_sums, communities, members, .. } = self;
        let (precision, communities, members) = (*precision, &*communities, &*members);
        let rows = scores.par_chunks_mut(n_cells.max(1)).zip(log_sums.par_chunks_mut(n.max(1)));
        rows.enumerate().for_each_init(NewtonRow::default, |row, (r, (scores, log_sums))| {
            let mut own = vec![0.0; n_cells];
            for (label, counts) in counts.of_annotator(r) {
                counts.iter().enumerate().for_each(|(k, count)| own[k * n_labels + label] = *count);
            }
            let mut expected = vec![0.0; n_cells];
            for (share, community) in members.row(r).iter().zip(communities.chunks_exact(n_cells)) {
                expected.iter_mut().zip(community).for_each(|(sum, s)| *sum += share * s);
            }
            let rows = own.chunks_exact(n_labels).zip(expected.chunks_exact(n_labels));
            let scores = scores.chunks_exact_mut(n_labels);
            for ((scores, (counts, expected)), log_sum) in scores.zip(rows).zip(log_sums) {
                *log_sum = row.maximise(scores, counts, expected, precision);
            }
        });
    }

    /// S, then phi; returns the terms of the objective.
    fn estimate_communities(&mut self, a: &Annotations) -> f64 {
        let (n_cells, precision) = (self.mean.len().max(1), self.precision);
        let annotated = clusters::annotated(a);
        let sizes = self.members.sizes(&annotated);
        let Self { mean, scores, communities, members, .. } = self;
        communities.par_chunks_mut(n_cells).enumerate().for_each(|(m, community)| {
            community.copy_from_slice(mean);
            for r in &annotated {
                let weight = precision * members.row(*r)[m];
                let own = &scores[r * n_cells..(r + 1) * n_cells];
                community.iter_mut().zip(own).for_each(|(sum, s)| *sum += weight * s);
            }
            community.iter_mut().for_each(|s| *s = on_grid(*s / (1.0 + precision * sizes[m])));
        });
        let distance =
            |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum() };
        let of_means = communities.chunks_exact(n_cells).map(|community| distance(community, mean));
        let [of_each, of_sum] = self.pseudo_counts;
        let (digamma_of_sum, term_of_sum) = of_sum.digamma_and_term(sizes.iter().sum());
        let mut terms = -of_means.sum::<f64>() / 2.0 - term_of_sum;
        let log_shares: Vec<f64> = sizes
            .iter()
            .map(|size| {
                let (digamma, term) = of_each.digamma_and_term(*size);
                terms += term;
                digamma - digamma_of_sum
            })
            .collect();
        let (scores, communities) = (&*scores, &*communities);
        terms
            + members.estimate(a, |r, row| {
                let own = &scores[r * n_cells..(r + 1) * n_cells];
                let communities = communities.chunks_exact(n_cells);
                let term = |(log_share, community): (&f64, &[f64])| {
                    log_share - precision / 2.0 * distance(own, community)
                };
                let logs: Vec<f64> = log_shares.iter().zip(communities).map(term).collect();
                softmax(&logs, row)
            })
    }
}

impl Estimator for CommunityEstimator {
    fn pool(&mut self, counts: &PooledCounts<'_>) {
        if self.members.shares.is_empty() {
            self.start(counts);
        }
        self.estimate_scores(counts);
        self.term = self.estimate_communities(counts.annotations());
        self.counts = counts.by_cluster(self.members.n_clusters, |r| self.members.row(r));
    }

    fn shared_term(&self) -> f64 {
        self.term
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { index, labels, n_classes: n, rows, .. } = own;
        let r = index as usize;
        let scores = &self.scores[r * self.mean.len()..(r + 1) * self.mean.len()];
        let log_sums = &self.log_sums[r * n..(r + 1) * n];
        for (row, label) in rows.chunks_exact_mut(n_groups::<W>(n)).zip(labels) {
            let own = scores.iter().skip(*label as usize).step_by(self.n_labels);
            let row = row.as_flattened_mut().iter_mut();
            row.zip(own).zip(log_sums).for_each(|((p, s), sum)| *p = (s - sum).exp());
        }
        0.0
    }
}

/// The scores of an annotator for a class, with the buffers of their estimation.
#[derive(Default)]
struct NewtonRow {
    shares: Vec<f64>,
    direction: Vec<f64>,
    next: Vec<f64>,
}

impl NewtonRow {
    /// Raises counts . ln softmax(scores) - precision / 2 |scores - expected|^2 by three steps; returns logsumexp(scores).
    /// The negative Hessian, diag(N p + precision) - N p p', has a known inverse (Sherman and Morrison).
    fn maximise(
        &mut self,
        scores: &mut [f64],
        counts: &[f64],
        expected: &[f64],
        precision: f64,
    ) -> f64 {
        const STEPS: usize = 3;
        const MAX_CHANGE: f64 = 5.0;
        const MAX_HALVINGS: i32 = 30;
        /// Values that differ by less differ by rounding, which is no reason to halve a step.
        const ROUNDING: f64 = 1e-12;
        let all: f64 = counts.iter().sum();
        let value = |scores: &[f64]| {
            let log_sum = logsumexp(scores.iter().copied());
            let rows = scores.iter().zip(counts).zip(expected);
            let term = |((s, count), b): ((&f64, &f64), &f64)| {
                count * (s - log_sum) - precision / 2.0 * (s - b) * (s - b)
            };
            (rows.map(term).sum::<f64>(), log_sum)
        };
        let (mut best, mut log_sum) = value(scores);
        let Self { shares, direction, next } = self;
        for _ in 0..STEPS {
            shares.clear();
            shares.extend(scores.iter().map(|s| (s - log_sum).exp()));
            direction.clear();
            let (mut along, mut curvature) = (0.0, 0.0);
            for (k, p) in shares.iter().enumerate() {
                let diagonal = all * p + precision;
                let gradient = counts[k] - all * p - precision * (scores[k] - expected[k]);
                along += p * gradient / diagonal;
                curvature += p * p / diagonal;
                direction.push(gradient / diagonal);
            }
            let common = all * along / (1.0 - all * curvature);
            for (step, p) in direction.iter_mut().zip(shares.iter()) {
                *step = (*step + p / (all * p + precision) * common).clamp(-MAX_CHANGE, MAX_CHANGE);
            }
            for halvings in 0..MAX_HALVINGS {
                next.clear();
                let length = 0.5_f64.powi(halvings);
                next.extend(scores.iter().zip(direction.iter()).map(|(s, step)| s + length * step));
                let (found, sum) = value(next);
                if found >= best - ROUNDING * best.abs() {
                    scores.copy_from_slice(next);
                    (best, log_sum) = (found, sum);
                    break;
                }
            }
        }
        scores.iter_mut().for_each(|s| *s = on_grid(*s));
        logsumexp(scores.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    /// The gradient is 0 at the maximum.
    #[test]
    fn the_scores_of_a_row_are_those_of_the_maximum() {
        let mut row = NewtonRow::default();
        let (counts, expected) = ([3.0, 0.5, 12.0], [1.0, 0.0, 0.0]);
        let mut scores = [0.0; 3];
        for _ in 0..3 {
            row.maximise(&mut scores, &counts, &expected, 5.0);
        }
        let log_sum = logsumexp(scores.iter().copied());
        for k in 0..3 {
            let p = (scores[k] - log_sum).exp();
            let gradient = counts[k] - 15.5 * p - 5.0 * (scores[k] - expected[k]);
            assert!(gradient.abs() < 21.0 * GRID, "{k}: {gradient}");
        }
        // Without counts they are what the community expects; a thousand of one label are clamped, and finite.
        assert!(row.maximise(&mut scores, &[0.0; 3], &expected, 5.0).is_finite());
        assert_close(&scores, &expected, 1e-12, "without counts");
        assert!(row.maximise(&mut scores, &[1e9, 0.0, 0.0], &expected, 0.01).is_finite());
        assert!(scores[0] - scores[1] > 4.0, "{scores:?}");
    }
}
