//! Cohen's kappa of pairs of annotators, by whose own labels' shares chance is measured; and Conger's, which is the same for
//! all annotators at once.
//!
//! Of large data sets a sample of instances is compared, at equal distances in their order. A pair of annotators needs
//! [`MIN_COMMON`] common instances, and counts by their number; one that gave one and the same label alone has no kappa.

use std::ops::Range;

use super::Categories;
use super::sample::{SampleSums, beyond_chance};
use super::sums::{MEAN_SAME, PAIRED, SumBlocks};
use crate::frame::Annotations;

/// Plain, with linear and with quadratic weights.
pub(super) const NAMES: [&str; 3] = ["cohen_kappa", "cohen_kappa_linear", "cohen_kappa_quadratic"];

/// The most pairs of annotations that are compared.
const MAX_VISITS: usize = 1 << 17;

/// The most annotators of an instance that are compared.
const MAX_ANNOTATORS: usize = 256;

/// Two annotators with fewer common instances say nothing about their agreement beyond chance.
const MIN_COMMON: usize = 5;

/// Two annotations of one instance.
struct Visit {
    annotators: [u32; 2],
    /// The places of the labels among those of the pair.
    labels: [u32; 2],
    block: u32,
    instance: u32,
}

/// The annotations of two annotators for their common instances.
struct AnnotatorPairSums {
    visits: Range<usize>,
    /// The categories that the two used, ascending.
    categories: Vec<u32>,
}

/// The pairs of annotators with enough common instances.
pub(super) struct PairedAnnotators {
    visits: Vec<Visit>,
    compared: Vec<AnnotatorPairSums>,
    n_instances: u64,
}

impl PairedAnnotators {
    pub(super) fn sample(a: &Annotations, categories: &Categories, blocks: SumBlocks) -> Self {
        let pairs = |i: usize| {
            let n = a.columns_of_instance(i).len().min(MAX_ANNOTATORS);
            n * n.saturating_sub(1) / 2
        };
        let total: usize = (0..a.dims().instances).map(pairs).sum();
        let (mut visits, mut given) = (Vec::with_capacity(total.min(MAX_VISITS)), Vec::new());
        for i in (0..a.dims().instances).step_by(total.div_ceil(MAX_VISITS).max(1)) {
            single_answers(a, categories, i, &mut given);
            let block = blocks.of(i) as u32;
            for (n, (annotator, label)) in given.iter().enumerate() {
                visits.extend(given[n + 1..].iter().map(|(other, more)| Visit {
                    annotators: [*annotator, *other],
                    labels: [*label, *more],
                    block,
                    instance: i as u32,
                }));
            }
        }
        // Stable, so that sums are in the order of instances.
        visits.sort_by_key(|visit| visit.annotators);
        Self::of(visits)
    }

    fn of(mut visits: Vec<Visit>) -> Self {
        let lengths: Vec<usize> =
            visits.chunk_by(|v, w| v.annotators == w.annotators).map(<[Visit]>::len).collect();
        let (mut pairs, mut start, mut instances) = (Vec::new(), 0, Vec::new());
        for n in lengths {
            let of_pair = &mut visits[start..start + n];
            if n >= MIN_COMMON {
                let mut categories: Vec<u32> = of_pair.iter().flat_map(|v| v.labels).collect();
                categories.sort_unstable();
                categories.dedup();
                let place = |k: u32| categories.partition_point(|other| *other < k) as u32;
                for visit in of_pair.iter_mut() {
                    visit.labels = visit.labels.map(place);
                    instances.push(visit.instance);
                }
                pairs.push(AnnotatorPairSums { visits: start..start + n, categories });
            }
            start += n;
        }
        instances.sort_unstable();
        instances.dedup();
        Self { visits, compared: pairs, n_instances: instances.len() as u64 }
    }

    pub(super) fn n_instances(&self) -> u64 {
        self.n_instances
    }

    pub(super) fn size(&self) -> usize {
        self.compared.iter().map(|pair| pair.visits.len()).sum()
    }

    /// The mean kappa over the pairs, by each way to weigh disagreement; `weights` has that of each block.
    pub(super) fn kappas(&self, weights: &[f64], categories: &Categories) -> [f64; 3] {
        let (mut sums, mut total) = ([0.0; 3], 0.0);
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for pair in &self.compared {
            let zeros = |counts: &mut Vec<f64>| {
                counts.clear();
                counts.resize(pair.categories.len(), 0.0);
            };
            zeros(&mut rows);
            zeros(&mut columns);
            let score = |place: usize| {
                let category = pair.categories[place] as usize;
                categories.scores().get(category).copied().unwrap_or_default()
            };
            let (mut n, mut observed) = (0.0, [0.0; 3]);
            for visit in &self.visits[pair.visits.clone()] {
                let weight = weights[visit.block as usize];
                let [x, y] = visit.labels.map(|place| place as usize);
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
    for (place, (r, c)) in rows.iter().zip(columns).enumerate() {
        if place > 0 {
            // As many distances cover the gap between two labels as have one end on each side.
            let gap = score(place) - score(place - 1);
            linear += gap * (below[0] * (n - below[1]) + (n - below[0]) * below[1]);
        }
        below = [below[0] + r, below[1] + c];
        let x = score(place) - score(0);
        sums = [sums[0] + r * x, sums[1] + c * x];
        squares += (r + c) * x * x;
    }
    [n * n - same, linear, n * squares - 2.0 * sums[0] * sums[1]]
}

/// (annotator, category) of the annotators who gave instance `i` one label only, ascending by annotator; of too many
/// annotators the first.
fn single_answers(a: &Annotations, categories: &Categories, i: usize, given: &mut Vec<(u32, u32)>) {
    given.clear();
    let all = a.triples_of(i).filter_map(|(r, label, _)| Some((r, categories.of(label)?)));
    given.extend(all);
    given.sort_unstable();
    given.dedup();
    let several: Vec<u32> =
        given.windows(2).filter(|two| two[0].0 == two[1].0).map(|two| two[0].0).collect();
    given.retain(|(r, _)| several.binary_search(r).is_err());
    given.truncate(MAX_ANNOTATORS);
}

/// The agreement by chance of two annotators, over all pairs of them: each counts the same, however much it annotated.
pub(super) fn expected_of_annotators(
    a: &Annotations,
    categories: &Categories,
    blocks: SumBlocks,
) -> f64 {
    let mut of_column = vec![0.0; a.n_columns()];
    let mut parts: Vec<(u32, f64)> = Vec::new();
    for i in (0..a.dims().instances).filter(|i| blocks.takes(*i)) {
        let all = a.annotations_of(i).filter(|(c, _)| categories.of(a.label_of(*c)).is_some());
        parts.clear();
        parts.extend(all);
        for of_one in parts.chunk_by(|x, y| a.annotator_of(x.0) == a.annotator_of(y.0)) {
            let total: f64 = of_one.iter().map(|(_, weight)| weight).sum();
            of_one.iter().for_each(|(c, weight)| of_column[*c as usize] += weight / total);
        }
    }
    let (mut shares, mut own, mut annotators) = (vec![0.0; categories.len()], 0.0, 0.0);
    for r in 0..a.dims().annotators {
        let columns = a.columns_of(r);
        let n: f64 = of_column[columns.clone()].iter().sum();
        if n > 0.0 {
            annotators += 1.0;
            for (count, label) in of_column[columns].iter().zip(a.labels_of(r)) {
                if let Some(k) = categories.of(*label) {
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
