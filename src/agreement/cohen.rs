//! Cohen's kappa of pairs of annotators, by whose own labels' shares chance is measured; and Conger's, which is the same for
//! all annotators at once.
//!
//! Of large data sets a sample of instances is compared, at equal distances in their order. A pair of annotators needs
//! [`MIN_COMMON`] common instances, and counts by their number; one that gave one and the same label alone has no kappa.

use std::ops::Range;

use rayon::prelude::*;

use super::Categories;
use super::pairs::{SingleAnswers, instances_with_pairs};
use super::sample::{SampleSums, beyond_chance};
use super::sums::{MEAN_SAME, PAIRED, SumBlocks};
use crate::frame::{Annotations, MAX_RANGES, ranges_of_instances};

/// Plain, with linear and with quadratic weights.
pub(super) const NAMES: [&str; 3] = ["cohen_kappa", "cohen_kappa_linear", "cohen_kappa_quadratic"];

/// The most pairs of answers that are compared.
const MAX_PAIRS: usize = 1 << 17;

/// Two annotators with fewer common instances say nothing about their agreement beyond chance.
const MIN_COMMON: usize = 5;

/// The answers of two annotators to one instance.
struct AnswerPair {
    annotators: [u32; 2],
    /// The positions of the labels among those of the two annotators.
    labels: [u32; 2],
    block: u32,
    instance: u32,
}

/// Two annotators with enough common instances.
struct ComparedAnnotators {
    answers: Range<usize>,
    /// The categories that the two used, ascending.
    categories: Vec<u32>,
}

/// The pairs of annotators with enough common instances.
pub(super) struct PairedAnnotators {
    answers: Vec<AnswerPair>,
    compared: Vec<ComparedAnnotators>,
    n_instances: u64,
}

impl PairedAnnotators {
    pub(super) fn sample(a: &Annotations, categories: &Categories, blocks: SumBlocks) -> Self {
        let of_instance = |answers: &mut SingleAnswers, instance: u32| {
            let i = instance as usize;
            answers.clear();
            for (annotator, label, _) in a.triples_of_instance(i) {
                if let Some(category) = categories.category(label) {
                    answers.add(annotator, category);
                }
            }
            let (given, block) = (answers.by_annotator(), blocks.block(i) as u32);
            let with_others = given.iter().enumerate().flat_map(|(n, (annotator, label))| {
                given[n + 1..].iter().map(move |(other, more)| AnswerPair {
                    annotators: [*annotator, *other],
                    labels: [*label, *more],
                    block,
                    instance,
                })
            });
            with_others.collect::<Vec<AnswerPair>>()
        };
        let instances = instances_with_pairs(a, MAX_PAIRS).into_par_iter();
        let pairs = instances.map_init(SingleAnswers::default, of_instance).flatten_iter();
        let mut pairs: Vec<AnswerPair> = pairs.collect();
        // Stable, so that sums are in the order of instances.
        pairs.par_sort_by_key(|pair| pair.annotators);
        Self::from_answers(pairs)
    }

    /// Of the pairs of answers, sorted by annotators.
    fn from_answers(mut answers: Vec<AnswerPair>) -> Self {
        let lengths: Vec<usize> =
            answers.chunk_by(|x, y| x.annotators == y.annotators).map(<[_]>::len).collect();
        let (mut compared, mut start, mut instances) = (Vec::new(), 0, Vec::new());
        for n in lengths {
            let of_two = &mut answers[start..start + n];
            if n >= MIN_COMMON {
                let mut categories: Vec<u32> = of_two.iter().flat_map(|pair| pair.labels).collect();
                categories.sort_unstable();
                categories.dedup();
                let position = |k: u32| categories.partition_point(|other| *other < k) as u32;
                for pair in of_two.iter_mut() {
                    pair.labels = pair.labels.map(position);
                    instances.push(pair.instance);
                }
                compared.push(ComparedAnnotators { answers: start..start + n, categories });
            }
            start += n;
        }
        instances.sort_unstable();
        instances.dedup();
        Self { answers, compared, n_instances: instances.len() as u64 }
    }

    pub(super) fn n_instances(&self) -> u64 {
        self.n_instances
    }

    pub(super) fn size(&self) -> usize {
        self.compared.iter().map(|two| two.answers.len()).sum()
    }

    /// The mean kappa over the pairs, by each way to weigh disagreement; `weights` has that of each block.
    pub(super) fn kappas(&self, weights: &[f64], categories: &Categories) -> [f64; 3] {
        let (mut sums, mut total) = ([0.0; 3], 0.0);
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for two in &self.compared {
            let zeros = |counts: &mut Vec<f64>| {
                counts.clear();
                counts.resize(two.categories.len(), 0.0);
            };
            zeros(&mut rows);
            zeros(&mut columns);
            let score = |position: usize| {
                let category = two.categories[position] as usize;
                categories.scores().get(category).copied().unwrap_or_default()
            };
            let (mut n, mut observed) = (0.0, [0.0; 3]);
            for pair in &self.answers[two.answers.clone()] {
                let weight = weights[pair.block as usize];
                let [x, y] = pair.labels.map(|position| position as usize);
                n += weight;
                rows[x] += weight;
                columns[y] += weight;
                if x != y {
                    let distance = (score(x) - score(y)).abs();
                    observed[0] += weight;
                    observed[1] += weight * distance;
                    observed[2] += weight * distance * distance;
                }
            }
            let expected = expected(&rows, &columns, n, score);
            // Counts are whole numbers: this is exact.
            if expected[0] > 0.0 {
                total += n;
                for ((sum, observed), expected) in sums.iter_mut().zip(observed).zip(expected) {
                    *sum += n * (1.0 - n * observed / expected);
                }
            }
        }
        sums.map(|sum| sum / total)
    }
}

/// The disagreement of all pairs of one of the `rows` and one of the `columns`.
fn expected(rows: &[f64], columns: &[f64], n: f64, score: impl Fn(usize) -> f64) -> [f64; 3] {
    let same: f64 = rows.iter().zip(columns).map(|(r, c)| r * c).sum();
    let (mut linear, mut below) = (0.0, [0.0; 2]);
    let (mut sums, mut squares) = ([0.0; 2], 0.0);
    for (position, (r, c)) in rows.iter().zip(columns).enumerate() {
        if position > 0 {
            // As many distances cover the gap between two labels as have one end on each side.
            let gap = score(position) - score(position - 1);
            linear += gap * (below[0] * (n - below[1]) + (n - below[0]) * below[1]);
        }
        below = [below[0] + r, below[1] + c];
        let x = score(position) - score(0);
        sums = [sums[0] + r * x, sums[1] + c * x];
        squares += (r + c) * x * x;
    }
    [n * n - same, linear, n * squares - 2.0 * sums[0] * sums[1]]
}

/// The agreement by chance of two annotators, over all pairs of them: each counts the same, however much it annotated.
pub(super) fn expected_of_annotators(
    a: &Annotations,
    categories: &Categories,
    blocks: SumBlocks,
) -> f64 {
    let n_ranges = (a.len() / (4 * a.n_pairs()).max(1)).clamp(1, MAX_RANGES);
    let of_range = |instances: Range<usize>| {
        let mut of_pair = vec![0.0; a.n_pairs()];
        let mut parts: Vec<(u32, f64)> = Vec::new();
        for i in instances.filter(|i| blocks.takes(*i)) {
            let all = a
                .annotations_of_instance(i)
                .filter(|(c, _)| categories.category(a.label_of_pair(*c)).is_some());
            parts.clear();
            parts.extend(all);
            for of_one in
                parts.chunk_by(|x, y| a.annotator_of_pair(x.0) == a.annotator_of_pair(y.0))
            {
                let total: f64 = of_one.iter().map(|(_, weight)| weight).sum();
                of_one.iter().for_each(|(c, weight)| of_pair[*c as usize] += weight / total);
            }
        }
        of_pair
    };
    let ranges = ranges_of_instances(a.dims().instances, n_ranges).with_max_len(1);
    let of_ranges: Vec<Vec<f64>> = ranges.map(of_range).collect();
    let mut of_pair = vec![0.0; a.n_pairs()];
    for counts in of_ranges {
        of_pair.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let (mut shares, mut own, mut annotators) = (vec![0.0; categories.len()], 0.0, 0.0);
    for r in 0..a.dims().annotators {
        let pairs = a.pairs_of_annotator(r);
        let n: f64 = of_pair[pairs.clone()].iter().sum();
        if n > 0.0 {
            annotators += 1.0;
            for (count, label) in of_pair[pairs].iter().zip(a.labels_of_annotator(r)) {
                if let Some(k) = categories.category(*label) {
                    shares[k as usize] += count / n;
                    own += (count / n).powi(2);
                }
            }
        }
    }
    let all: f64 = shares.iter().map(|share| share * share).sum();
    (all - own) / (annotators * (annotators - 1.0))
}

/// The agreement by chance is that of all annotations, in the draws of the bootstrap too.
pub(super) fn conger(sample: &SampleSums, _: &Categories) -> f64 {
    beyond_chance(sample.sums[MEAN_SAME] / sample.sums[PAIRED], sample.conger)
}
