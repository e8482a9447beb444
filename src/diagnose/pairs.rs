//! Annotators that err together: the excess agreement of pairs, and how many independent annotators a crowd counts as.
//!
//! ```text
//! expected[i][r,s] = sum_k T[i][k] sum_l pi[r][k][l] pi[s][k][l]        agreement that the matrices explain
//! excess[r,s]      = mean over their common instances of ([labels are equal] - expected)
//! rho              = sum of the covariances of being right, given the class, over that of the products of deviations
//! effective number = n / (1 + (n - 1) rho)                              the design effect (Kish 1965)
//! pattern          = sum over pairs of (z[r,s]^2 - 1), in standard deviations; z of the agreement by chance
//! ```
//! An annotator with several labels of an instance agrees by the shares of them. Annotators who give the opposite of what
//! others give agree seldom, yet not at random: their pairs have a pattern.
//!
//! # Why
//! The number of pairs grows with the square of the annotators of an instance, so that instances are sampled, every
//! `stride`-th in the order of their ids, once there are more than [`MAX_PAIRS`] pairs of annotations; and of an instance
//! with more than [`MAX_ANNOTATORS`] annotators a fixed share of them counts. Memory and time have a bound whatever the
//! data, and nothing depends on the order of rows or on threads. A pair that shares few instances of a large crowd may be
//! missed; one that matters is not.

use rayon::prelude::*;

use super::answers::{ShareOfLabel, SharedAnswers};
use super::matrices::ExplainingMatrices;
use super::near_copies::{MIN_COMMON, mark_near_copies};
use super::pair::{AnnotationPair, AnnotatorPair};
use crate::agreement::{MAX_ANNOTATORS, instances_with_pairs};
use crate::frame::Annotations;

/// The most pairs of annotations that are compared: 24 bytes each, and as much while they are sorted.
const MAX_PAIRS: usize = 250_000;

/// The most products of probabilities: with many labels fewer pairs are compared.
const MAX_PRODUCTS: usize = 1 << 26;

/// The most rows of the table.
const MAX_ROWS: usize = 10_000;

/// An excess this many standard errors above 0: one of a thousand independent pairs has it.
const MAX_Z_SCORE: f64 = 3.0;

/// Of less of the pattern of pairs may be by those that agree less than by chance.
const MIN_AGREEING: f64 = 0.1;

/// Sampled instances in one unit of parallel work.
const INSTANCES_PER_BLOCK: usize = 512;

/// How far annotators depend on each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnnotatorDependence {
    /// The pairs with the largest excess in standard errors, at most 10 000.
    pub pairs: Vec<AnnotatorPair>,
    /// The number of pairs with at least [`MIN_COMMON`] common instances.
    pub compared: u64,
    /// Those of them whose excess is above 3 standard errors.
    pub dependent: u64,
    /// Those of them that are near-copies.
    pub near_copies: u64,
    /// The mean number of annotators of an instance with at least two.
    pub annotators: f64,
    /// The number of independent annotators that these count as.
    pub effective: f64,
    /// How far the agreement of pairs differs from the one by chance, in standard deviations; 0 where pairs only agree less.
    pub pattern: f64,
}

/// What one block of sampled instances adds.
#[derive(Default)]
struct SampledBlock {
    compared: Vec<AnnotationPair>,
    covariance: f64,
    deviations: f64,
    instances: f64,
    annotators: f64,
}

pub(super) fn measure(a: &Annotations, matrices: &ExplainingMatrices<'_>) -> AnnotatorDependence {
    let at_most = (MAX_PRODUCTS / a.dims().labels.max(1)).clamp(1, MAX_PAIRS);
    let sampled = instances_with_pairs(a, at_most);
    let blocks = sampled.par_chunks(INSTANCES_PER_BLOCK);
    let blocks: Vec<SampledBlock> =
        blocks.map(|block| SampledBlock::compare(a, matrices, block)).collect();
    let sum = |of: fn(&SampledBlock) -> f64| blocks.iter().map(of).sum::<f64>();
    let (instances, deviations) = (sum(|b| b.instances), sum(|b| b.deviations));
    let rho = if deviations > 0.0 { sum(|b| b.covariance) / deviations } else { 0.0 };
    let n = if instances > 0.0 { sum(|b| b.annotators) / instances } else { 0.0 };
    let mut found = AnnotatorDependence {
        annotators: n,
        effective: if n > 0.0 { n / (1.0 + (n - 1.0) * rho.clamp(0.0, 1.0)) } else { 0.0 },
        ..AnnotatorDependence::default()
    };
    let mut compared = Vec::with_capacity(blocks.iter().map(|b| b.compared.len()).sum());
    blocks.into_iter().for_each(|block| compared.extend(block.compared));
    // Stable, so that sums are in the order of instances.
    compared.par_sort_by_key(|two| two.annotators);
    let of_pairs: Vec<&[AnnotationPair]> =
        compared.chunk_by(|x, y| x.annotators == y.annotators).collect();
    found.pairs = of_pairs
        .par_iter()
        .with_min_len(1024)
        .map(|compared| AnnotatorPair::compare(compared))
        .collect();
    found.pattern = pattern(&found.pairs);
    mark_near_copies(&mut found.pairs);
    for pair in found.pairs.iter().filter(|pair| pair.n >= MIN_COMMON) {
        found.compared += 1;
        found.dependent += u64::from(pair.z_score > MAX_Z_SCORE);
        found.near_copies += u64::from(pair.is_near_copy);
    }
    // Stable: equal pairs keep the order of their annotators.
    found
        .pairs
        .sort_by(|x, y| y.is_near_copy.cmp(&x.is_near_copy).then(y.z_score.total_cmp(&x.z_score)));
    found.pairs.truncate(MAX_ROWS);
    found
}

impl SampledBlock {
    fn compare(a: &Annotations, matrices: &ExplainingMatrices<'_>, instances: &[u32]) -> Self {
        let mut block = Self::default();
        let mut answers = SharedAnswers::default();
        let (mut classes, mut rows) = (Vec::new(), Vec::new());
        for i in instances {
            let i = *i as usize;
            answers.read(a.triples_of_instance(i), MAX_ANNOTATORS, i);
            let given: Vec<&[ShareOfLabel]> = answers.annotators().collect();
            matrices.classes(i, &mut classes);
            if given.len() < 2 || classes.is_empty() {
                continue;
            }
            rows.clear();
            for answer in &given {
                for (class, _) in &classes {
                    matrices.append_row(answer[0].annotator as usize, *class, &mut rows);
                }
            }
            block.add(&given, &classes, &rows, a.dims().labels);
        }
        block
    }

    /// `rows` has the label probabilities of each annotator for each class, `[annotator, class, label]`.
    fn add(
        &mut self,
        given: &[&[ShareOfLabel]],
        classes: &[(usize, f64)],
        rows: &[f64],
        labels: usize,
    ) {
        self.instances += 1.0;
        self.annotators += given.len() as f64;
        let width = classes.len() * labels;
        for (at, (class, t)) in classes.iter().enumerate() {
            let right = |n: usize| rows[n * width + at * labels + class];
            let (mut sum, mut squares, mut sd, mut variances) = (0.0, 0.0, 0.0, 0.0);
            for (n, answer) in given.iter().enumerate() {
                let p = right(n);
                let of_class = answer.iter().filter(|v| v.label as usize == *class);
                let residual = of_class.map(|v| v.share).sum::<f64>() - p;
                let variance = p * (1.0 - p);
                (sum, squares) = (sum + residual, squares + residual * residual);
                (sd, variances) = (sd + variance.sqrt(), variances + variance);
            }
            // The sum over pairs of products is half the square of the sum without the squares.
            self.covariance += t * (sum * sum - squares) / 2.0;
            self.deviations += t * (sd * sd - variances) / 2.0;
        }
        for (n, answer) in given.iter().enumerate() {
            for (m, other) in given.iter().enumerate().skip(n + 1) {
                let mut expected = 0.0;
                for (at, (_, t)) in classes.iter().enumerate() {
                    let row = |n: usize| &rows[n * width + at * labels..][..labels];
                    expected += t * row(n).iter().zip(row(m)).map(|(p, q)| p * q).sum::<f64>();
                }
                let both = answer.iter().flat_map(|v| other.iter().map(move |w| (v, w)));
                self.compared.extend(both.map(|(v, w)| AnnotationPair {
                    annotators: [v.annotator, w.annotator],
                    labels: [v.label, w.label],
                    expected: expected as f32,
                    weight: (v.share * w.share) as f32,
                }));
            }
        }
    }
}

/// Where labels say nothing, `z^2` of a pair has the mean 1, however few its instances are, and the variance 2; more by one over
/// the agreements that are expected where labels agree seldom, and the more where one label has nearly all.
fn pattern(pairs: &[AnnotatorPair]) -> f64 {
    let (mut excess, mut variance, mut all, mut agreeing) = (0.0, 0.0, 0.0, 0.0);
    for pair in pairs.iter().filter(|pair| pair.variance > 0.0) {
        let square = pair.correlation * pair.correlation / pair.variance;
        let rare = 1.0 / pair.by_chance + 4.0 / (1.0 - pair.by_chance).powi(2);
        excess += square - 1.0;
        variance += 2.0 + rare / f64::from(pair.n);
        all += square;
        agreeing += if pair.correlation > 0.0 { square } else { 0.0 };
    }
    if agreeing > MIN_AGREEING * all { excess / variance.sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use rand::Rng as _;

    use super::*;
    use crate::diagnose::dependence;
    use crate::job_context::JobContext;
    use crate::model::Model as _;
    use crate::model::vote::MajorityVote;
    use crate::testing::tiny;

    #[test]
    fn an_answer_of_several_labels_is_divided_between_them() {
        let a = tiny(2, &[(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 2, 1), (1, 0, 0)]);
        let mut answers = SharedAnswers::default();
        answers.read(a.triples_of_instance(0), MAX_ANNOTATORS, 0);
        let sums: Vec<(u32, f64)> = answers
            .annotators()
            .map(|v| (v[0].annotator, v.iter().filter(|v| v.label == 1).map(|v| v.share).sum()))
            .collect();
        assert_eq!(sums, [(0, 0.5), (1, 1.0), (2, 1.0)]);
    }

    #[test]
    fn an_instance_of_very_many_annotators_is_sampled() {
        let rows: Vec<_> = (0..2_000).map(|r| (0, r, r % 2)).collect();
        let a = tiny(2, &rows);
        let fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
        let found = dependence(&a, &fitted);
        // 2000 / 256 rounded up is 8; 250 annotators make 31 125 pairs, of which 10 000 are kept.
        assert_eq!((found.annotators, found.pairs.len()), (250.0, MAX_ROWS));
    }

    /// However rare a label is, and however few instances two annotators share; an opponent shows.
    #[test]
    fn pairs_of_random_labels_have_no_pattern_and_opponents_have_one() {
        let pattern_of = |rows: &[(u32, u32, u32)]| {
            let a = tiny(2, rows);
            let fitted = MajorityVote::default().fit((&a).into(), &mut JobContext::new(0)).unwrap();
            dependence(&a, &fitted).pattern
        };
        for share in [0.05, 0.5] {
            let random = |n: u64| {
                let mut rng = crate::job_context::rng(n, "labels");
                let positions =
                    (0..200).flat_map(|i| (0..4).map(move |r| (i, (i * 7 + r * 3) % 11)));
                let rows: Vec<_> = positions
                    .map(|(i, r)| (i, r, u32::from(rng.random::<f64>() < share)))
                    .collect();
                pattern_of(&rows)
            };
            let significant = (0..100).filter(|n| random(*n) > 3.1).count();
            assert!(significant <= 2, "{share}: {significant} of 100");
        }
        // Labels are random, but those of annotators 1 and 2 are equal, and that of 0 is the opposite.
        let mut rng = crate::job_context::rng(1, "labels");
        let truth: Vec<u32> = (0..40).map(|_| u32::from(rng.random::<bool>())).collect();
        let rows: Vec<_> = (0..40)
            .flat_map(|i| (0..3).map(move |r| (i, r)))
            .map(|(i, r)| (i, r, truth[i as usize] ^ u32::from(r == 0)))
            .collect();
        assert!(pattern_of(&rows) > 10.0, "{}", pattern_of(&rows));
    }
}
