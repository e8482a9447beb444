//! Annotators that err together: the excess agreement of pairs, and how many independent annotators a crowd counts as.
//!
//! ```text
//! expected[i][r,s] = sum_k T[i][k] sum_l pi[r][k][l] pi[s][k][l]        agreement that the matrices explain
//! excess[r,s]      = mean over their common instances of ([labels are equal] - expected)
//! rho              = sum of the covariances of being right, given the class, over that of the products of deviations
//! effective number = n / (1 + (n - 1) rho)                              the design effect (Kish 1965)
//! ```
//! # Why
//! The number of pairs grows with the square of the annotators of an instance, so that instances are sampled, every
//! `stride`-th in the order of their ids, once there are more than [`MAX_PAIRS`] pairs of annotations; and of an instance
//! with more than [`MAX_ANNOTATORS`] annotators a fixed share of them counts. Memory and time have a bound whatever the
//! data, and nothing depends on the order of rows or on threads. A pair that shares few instances of a large crowd may be
//! missed; one that matters is not.

use rayon::prelude::*;

use super::answers::SingleAnswers;
use super::matrices::ExplainingMatrices;
use crate::frame::Annotations;

/// The most pairs of annotations that are compared: 20 bytes each, and as much while they are sorted.
const MAX_PAIRS: usize = 250_000;

/// The most products of probabilities: with many labels fewer pairs are compared.
const MAX_PRODUCTS: usize = 1 << 26;

/// The most annotators of an instance that are compared.
const MAX_ANNOTATORS: usize = 256;

/// The most rows of the table.
const MAX_ROWS: usize = 10_000;

/// Pairs with fewer common instances say nothing about their dependence.
pub const MIN_COMMON: u32 = 20;

/// An excess this many standard errors above 0: one of a thousand independent pairs has it.
const MAX_Z_SCORE: f64 = 3.0;

/// Two annotators who agree this often, and whose kappa is this much above the expected one, are nearly one. Of a rare class
/// the agreement alone tells little: most of it is by chance.
const COPY_AGREEMENT: f64 = 0.95;
const COPY_EXCESS: f64 = 0.1;

/// The greatest probability that any of the compared pairs agrees so often by accident.
const MAX_P_VALUE: f64 = 0.01;

/// Sampled instances in one unit of parallel work.
const INSTANCES_PER_BLOCK: usize = 512;

/// Two annotators with common instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnnotatorPair {
    /// The annotator with the lower number.
    pub annotator: u32,
    /// The other one.
    pub other: u32,
    /// The number of common instances that were compared.
    pub n: u32,
    /// The share of them with equal labels.
    pub agreement: f64,
    /// The agreement by chance, from the shares of the labels of each.
    pub by_chance: f64,
    /// Cohen's kappa; `None` where one label alone was given.
    pub kappa: Option<f64>,
    /// The agreement beyond the expected one.
    pub excess: f64,
    /// The excess in standard errors.
    pub z_score: f64,
    /// Whether they give nearly the same labels, beyond what their skills explain.
    pub is_near_copy: bool,
}

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
}

/// Two annotations of one instance.
#[derive(Clone, Copy)]
struct AnnotationPair {
    annotators: [u32; 2],
    labels: [u32; 2],
    expected: f32,
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
    let sampled = sample(a);
    let blocks = sampled.par_chunks(INSTANCES_PER_BLOCK);
    let blocks: Vec<SampledBlock> =
        blocks.map(|block| SampledBlock::of(a, matrices, block)).collect();
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
    found.pairs = of_pairs.par_iter().with_min_len(1024).map(|compared| pair(compared)).collect();
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

/// The instances whose annotators are compared.
fn sample(a: &Annotations) -> Vec<u32> {
    let pairs = |i: usize| {
        let n = a.columns_of_instance(i).len().min(MAX_ANNOTATORS);
        n * n.saturating_sub(1) / 2
    };
    let most = (MAX_PRODUCTS / a.dims().labels.max(1)).clamp(1, MAX_PAIRS);
    let total: usize = (0..a.dims().instances).into_par_iter().with_min_len(4096).map(pairs).sum();
    let stride = total.div_ceil(most).max(1);
    let with_pairs = (0..a.dims().instances).step_by(stride).filter(|i| pairs(*i) > 0);
    with_pairs.map(|i| i as u32).collect()
}

impl SampledBlock {
    fn of(a: &Annotations, matrices: &ExplainingMatrices<'_>, instances: &[u32]) -> Self {
        let mut block = Self::default();
        let mut answers = SingleAnswers::default();
        let (mut classes, mut rows) = (Vec::new(), Vec::new());
        for i in instances {
            let i = *i as usize;
            answers.clear();
            let columns = a.columns_of_instance(i).iter();
            columns.for_each(|c| answers.add(a.annotator_of(*c), a.label_of(*c)));
            let given = answers.sampled(MAX_ANNOTATORS, i);
            matrices.classes(i, &mut classes);
            if given.len() < 2 || classes.is_empty() {
                continue;
            }
            rows.clear();
            for (r, _) in given {
                for (class, _) in &classes {
                    matrices.append_row(*r as usize, *class, &mut rows);
                }
            }
            block.add(given, &classes, &rows, a.dims().labels);
        }
        block
    }

    /// `rows` has the label probabilities of each annotator for each class, `[annotator, class, label]`.
    fn add(&mut self, given: &[(u32, u32)], classes: &[(usize, f64)], rows: &[f64], labels: usize) {
        self.instances += 1.0;
        self.annotators += given.len() as f64;
        let width = classes.len() * labels;
        for (at, (class, t)) in classes.iter().enumerate() {
            let right = |n: usize| rows[n * width + at * labels + class];
            let (mut sum, mut squares, mut sd, mut variances) = (0.0, 0.0, 0.0, 0.0);
            for (n, (_, label)) in given.iter().enumerate() {
                let p = right(n);
                let residual = f64::from(*label as usize == *class) - p;
                let variance = p * (1.0 - p);
                (sum, squares) = (sum + residual, squares + residual * residual);
                (sd, variances) = (sd + variance.sqrt(), variances + variance);
            }
            // The sum over pairs of products is half the square of the sum without the squares.
            self.covariance += t * (sum * sum - squares) / 2.0;
            self.deviations += t * (sd * sd - variances) / 2.0;
        }
        for (n, (r, label)) in given.iter().enumerate() {
            for (m, (s, other)) in given.iter().enumerate().skip(n + 1) {
                let mut expected = 0.0;
                for (at, (_, t)) in classes.iter().enumerate() {
                    let row = |n: usize| &rows[n * width + at * labels..][..labels];
                    expected += t * row(n).iter().zip(row(m)).map(|(p, q)| p * q).sum::<f64>();
                }
                let (annotators, labels) = ([*r, *s], [*label, *other]);
                self.compared.push(AnnotationPair {
                    annotators,
                    labels,
                    expected: expected as f32,
                });
            }
        }
    }
}

fn pair(compared: &[AnnotationPair]) -> AnnotatorPair {
    let n = compared.len() as f64;
    let agreed = compared.iter().filter(|v| v.labels[0] == v.labels[1]).count() as f64;
    let (mut expected, mut variance) = (0.0, 0.0);
    for two in compared {
        let p = f64::from(two.expected);
        expected += p;
        variance += p * (1.0 - p);
    }
    let by_chance = by_chance(compared);
    let kappa = (by_chance < 1.0).then(|| (agreed / n - by_chance) / (1.0 - by_chance));
    AnnotatorPair {
        annotator: compared[0].annotators[0],
        other: compared[0].annotators[1],
        n: compared.len() as u32,
        agreement: agreed / n,
        by_chance,
        kappa,
        excess: (agreed - expected) / n,
        // A quarter more, as for one more label by chance: matrices that explain all leave no variance.
        z_score: (agreed - expected) / (variance + 0.25).sqrt(),
        is_near_copy: false,
    }
}

/// Marks the pairs that are nearly one annotator.
///
/// # Why
/// A fit may believe two copies in a weak crowd: they become perfect, and perfection explains their agreement. If kappa is
/// a product of skills, `b[r] b[s]`, the kappas of `r` with others have the mean `b[r] b`, and all pairs `b^2`: the product
/// of the means of `r` and of `s`, by the mean of all, is the kappa that this pair should have, without the fit.
fn mark_near_copies(pairs: &mut [AnnotatorPair]) {
    // (sum, number) of the kappas of an annotator, and of all.
    let (mut of, mut all) = (std::collections::BTreeMap::new(), (0.0_f64, 0.0_f64));
    for pair in pairs.iter().filter(|pair| pair.n >= MIN_COMMON) {
        let kappa = pair.kappa.unwrap_or_default();
        all = (all.0 + kappa, all.1 + 1.0);
        for r in [pair.annotator, pair.other] {
            let (sum, n) = of.entry(r).or_insert((0.0, 0.0));
            (*sum, *n) = (*sum + kappa, *n + 1.0);
        }
    }
    let most = MAX_P_VALUE / all.1.max(1.0);
    for pair in pairs.iter_mut() {
        if pair.n < MIN_COMMON || pair.agreement < COPY_AGREEMENT {
            continue;
        }
        // One label alone: nothing can disagree.
        let Some(kappa) = pair.kappa else { continue };
        // Without this pair.
        let without = |(sum, n): (f64, f64)| (n > 1.0).then(|| (sum - kappa) / (n - 1.0));
        let mean = |r| of.get(&r).copied().and_then(without);
        let by_others = match (mean(pair.annotator), mean(pair.other), without(all)) {
            (Some(r), Some(s), Some(all)) if all > 0.0 => {
                Some((r.max(0.0) * s.max(0.0) / all).min(1.0))
            }
            _ => None,
        };
        let by_chance = pair.by_chance;
        let by_fit = Some((pair.agreement - pair.excess - by_chance) / (1.0 - by_chance));
        let is_beyond = |expected: f64| {
            kappa - expected >= COPY_EXCESS
                && p_value(pair, by_chance + expected * (1.0 - by_chance)) < most
        };
        // With few annotators the others tell nothing, and the fit must.
        pair.is_near_copy = by_others.or(by_fit).is_some_and(is_beyond);
    }
}

/// The most that the probability of an agreement as frequent as this can be, where `expected` is expected (Chernoff).
fn p_value(pair: &AnnotatorPair, expected: f64) -> f64 {
    let term = |p: f64, q: f64| if p > 0.0 { p * (p / q.max(1e-9)).ln() } else { 0.0 };
    let divergence = term(pair.agreement, expected) + term(1.0 - pair.agreement, 1.0 - expected);
    (-f64::from(pair.n) * divergence).exp()
}

/// The agreement of two annotators by chance, from the shares of the labels of each.
fn by_chance(compared: &[AnnotationPair]) -> f64 {
    let sorted = |side: usize| {
        let mut labels: Vec<u32> = compared.iter().map(|v| v.labels[side]).collect();
        labels.sort_unstable();
        labels
    };
    let (own, others) = (sorted(0), sorted(1));
    let count = |labels: &[u32], label| {
        labels.partition_point(|l| *l <= label) - labels.partition_point(|l| *l < label)
    };
    let products = own.chunk_by(|x, y| x == y).map(|equal| equal.len() * count(&others, equal[0]));
    products.sum::<usize>() as f64 / (compared.len() as f64).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::dependence;
    use crate::model::Model as _;
    use crate::model::vote::MajorityVote;
    use crate::run::Run;
    use crate::testing::{assert_close, tiny};

    #[test]
    fn a_pair_has_the_agreement_kappa_and_excess_worked_out_by_hand() {
        let two = |x, y| AnnotationPair { annotators: [3, 5], labels: [x, y], expected: 0.5 };
        let found = pair(&[two(0, 0), two(0, 0), two(1, 1), two(0, 1)]);
        assert_eq!((found.annotator, found.other, found.n), (3, 5, 4));
        // By chance 3/4 * 2/4 + 1/4 * 2/4 = 1/2; the variance is 4 * 1/4, and 1/4.
        let got = [found.agreement, found.kappa.unwrap(), found.excess, found.z_score];
        assert_close(&got, &[0.75, 0.5, 0.25, 1.0 / 1.25_f64.sqrt()], 1e-12, "pair");
        assert_eq!(pair(&[two(1, 1)]).kappa, None);
    }

    #[test]
    fn who_gives_one_instance_several_labels_is_left_out_there() {
        let a = tiny(2, &[(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 2, 1), (1, 0, 0)]);
        let mut answers = SingleAnswers::default();
        a.triples_of(0).for_each(|(r, label, _)| answers.add(r, label));
        assert_eq!(answers.sampled(MAX_ANNOTATORS, 0), [(1, 1), (2, 1)]);
    }

    #[test]
    fn an_instance_of_very_many_annotators_is_sampled() {
        let rows: Vec<_> = (0..2_000).map(|r| (0, r, r % 2)).collect();
        let a = tiny(2, &rows);
        let fitted = MajorityVote::default().fit((&a).into(), &mut Run::new(0)).unwrap();
        let found = dependence(&a, &fitted);
        // 2000 / 256 rounded up is 8; 250 annotators make 31 125 pairs, of which 10 000 are kept.
        assert_eq!((found.annotators, found.pairs.len()), (250.0, MAX_ROWS));
    }
}
