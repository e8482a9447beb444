//! The growth of a tree: the best question at each node, until no question helps.
//!
//! ```text
//! c[k] = sum of w_i T[i][k] over the examples of a node,  W = sum_k c[k]
//! purity = sum_k c[k]^2 / W           (Gini)     or     sum_k c[k] ln(c[k] / W)     (entropy)
//! gain of a split = purity of its left branch + purity of its right branch - purity of the node
//! ```
//! The candidates are the midpoints between adjacent distinct values of each feature. The split with the largest gain
//! wins; among equal gains, that of the lowest feature, and then of the lowest threshold. A node whose best gain is zero
//! is a leaf.
//!
//! All examples are sorted by each feature once, for all trees of all fits. A node with many of them picks its own from
//! that order, and one with few sorts them: growing a level of the tree costs O(rows (log rows + classes) features).

use rand::seq::SliceRandom as _;
use rand::seq::index::sample;
use rayon::prelude::*;

use super::Examples;
use super::feature_columns::FeatureColumns;
use super::tree::{Criterion, Tree, TreeSpec};
use crate::error::{Error, Result};
use crate::frame::ITEMS_PER_BLOCK;
use crate::job_context::{Cancel, JobContext, Rng};

/// The least share of a node's weight that counts as a gain, or as a weight: another order of summation changes less.
const MIN_RELATIVE_GAIN: f64 = 1e-10;

/// Refuses to grow trees if the columns, the buffers of all threads, the trees and their predictions for the examples need
/// more than half of the run's memory.
pub(super) fn check_memory(
    examples: Examples<'_>,
    spec: &TreeSpec,
    n_trees: usize,
    job: &JobContext,
) -> Result<()> {
    let (n, n_classes) = (examples.len(), examples.n_classes);
    let columns = n.saturating_mul(examples.width()).saturating_mul(FeatureColumns::BYTES_OF_VALUE);
    // The weights of a bootstrap, the lists of the pending nodes, the keys of a feature, and the marks of a node.
    let of_thread =
        n * (size_of::<f64>() + size_of::<u32>() + size_of::<u64>() + size_of::<bool>());
    // A leaf has an example of positive weight; a tree has one inner node less than leaves.
    let by_weight = (examples.total_weight() / spec.min_leaf_weight).ceil();
    #[allow(clippy::cast_sign_loss)] // Weights are not negative.
    let leaves = (by_weight as usize).clamp(1, n.max(1));
    let of_leaf = 2 * Tree::BYTES_OF_NODE + n_classes * size_of::<f64>();
    let of_tree = leaves.saturating_mul(of_leaf).saturating_add(n / 8);
    let parts = [
        columns,
        of_thread.saturating_mul(rayon::current_num_threads()),
        // The trees of the best round are kept beside those that grow.
        of_tree.saturating_mul(2).saturating_mul(n_trees),
        n.saturating_mul(n_classes).saturating_mul(size_of::<f64>()),
    ];
    let bytes = parts.into_iter().fold(0, usize::saturating_add);
    if bytes <= job.share_of_memory(2, usize::MAX) {
        return Ok(());
    }
    Err(Error::spec("trees on the features of annotated instances do not fit in memory")
        .at("model.classifier.kind")
        .found(format!("up to {bytes} bytes, of which the features take {columns}"))
        .help(
            "raise engine.memory_limit, raise min_leaf_weight, or choose logistic_regression, which reads row by row",
        ))
}

/// Random features for each split.
pub(super) struct RandomFeatures {
    /// The number of features that a split considers. If none of them helps, it considers as many others.
    pub(super) per_split: usize,
    pub(super) rng: Rng,
}

/// The data and the settings of trees.
pub(super) struct Growth<'a> {
    pub(super) columns: &'a FeatureColumns,
    pub(super) examples: Examples<'a>,
    pub(super) spec: &'a TreeSpec,
    pub(super) cancel: &'a Cancel,
}

/// A question, and what it gains.
struct Split {
    feature: usize,
    threshold: f32,
    gain: f64,
}

/// A node that is still to be added.
struct Pending {
    /// Its examples, ascending.
    examples: Vec<u32>,
    depth: u32,
    /// The node whose right branch it is; `None` for a left branch, which is the next node.
    right_of: Option<usize>,
}

impl Growth<'_> {
    /// Grows a tree on the examples with these weights, by all features or by random ones for each split.
    pub(super) fn tree(&self, weights: &[f64], mut random: Option<RandomFeatures>) -> Result<Tree> {
        let with_weight = (0..weights.len() as u32).filter(|i| weights[*i as usize] > 0.0);
        let root = Pending { examples: with_weight.collect(), depth: 0, right_of: None };
        let (mut tree, mut pending) = (Tree::default(), vec![root]);
        while let Some(Pending { examples, depth, right_of }) = pending.pop() {
            self.cancel.check()?;
            if let Some(parent) = right_of {
                tree.set_right(parent);
            }
            let node = Node::new(self, weights, &examples);
            let counts = node.counts();
            let is_full = depth == self.spec.max_depth;
            let split = if is_full { None } else { node.best_split(&counts, &mut random) };
            let Some(Split { feature, threshold, .. }) = split else {
                tree.push_leaf(&self.probabilities(counts));
                continue;
            };
            let values = self.columns.feature(feature);
            let (left, right) = examples.iter().partition(|i| values[**i as usize] <= threshold);
            let (depth, right_of) = (depth + 1, Some(tree.len()));
            pending.push(Pending { examples: right, depth, right_of });
            pending.push(Pending { examples: left, depth, right_of: None });
            tree.push_split(feature, threshold);
        }
        Ok(tree)
    }

    fn probabilities(&self, mut counts: Vec<f64>) -> Vec<f64> {
        self.spec.normalise(&mut counts);
        counts
    }

    /// P(class) of every example from the other examples of its leaf, `[example, class]`; where the leaf has no others,
    /// from all others.
    ///
    /// # Why
    /// The others of the parent would be those of the sibling, which the split has chosen to be unlike the example.
    pub(super) fn without_own(&self, tree: &Tree) -> Vec<f64> {
        let (n, examples) = (self.examples.n_classes, self.examples);
        let leaf_of = |i: usize| tree.leaf_index(|feature| self.columns.feature(feature)[i]);
        let (mut of_leaf, mut of_all) = (vec![0.0; tree.n_leaves(n) * n], vec![0.0; n]);
        let add = |i: usize, sign: f64, counts: &mut [f64]| {
            let weight = sign * examples.weights[i];
            counts.iter_mut().zip(examples.target(i)).for_each(|(c, p)| *c += weight * p);
        };
        for i in 0..examples.len() {
            let leaf = leaf_of(i);
            add(i, 1.0, &mut of_leaf[leaf * n..(leaf + 1) * n]);
            add(i, 1.0, &mut of_all);
        }
        let mut rows = vec![0.0; examples.len() * n];
        rows.par_chunks_mut(n).with_min_len(ITEMS_PER_BLOCK).enumerate().for_each(|(i, row)| {
            let leaf = leaf_of(i);
            for counts in [&of_leaf[leaf * n..(leaf + 1) * n], &of_all] {
                row.copy_from_slice(counts);
                add(i, -1.0, row);
                let least = MIN_RELATIVE_GAIN * counts.iter().sum::<f64>();
                row.iter_mut().for_each(|c| *c = if *c > least { *c } else { 0.0 });
                if row.iter().any(|c| *c > 0.0) {
                    break;
                }
            }
            self.spec.normalise(row);
        });
        rows
    }

    fn purity(&self, counts: impl Iterator<Item = f64>, weight: f64) -> f64 {
        match self.spec.criterion {
            Criterion::Gini => counts.map(|c| c * c).sum::<f64>() / weight,
            Criterion::Entropy => {
                counts.map(|c| if c > 0.0 { c * (c / weight).ln() } else { 0.0 }).sum()
            }
        }
    }
}

/// The examples of a node.
struct Node<'a> {
    growth: &'a Growth<'a>,
    weights: &'a [f64],
    examples: &'a [u32],
    /// Whether each of all examples is in the node, for a node with so many that sorting them takes longer than a look
    /// at all.
    marks: Option<Vec<bool>>,
}

impl<'a> Node<'a> {
    fn new(growth: &'a Growth<'a>, weights: &'a [f64], examples: &'a [u32]) -> Self {
        let (n, all) = (examples.len(), growth.columns.n_examples());
        let marks = (n * n.max(2).ilog2() as usize > all).then(|| {
            let mut marks = vec![false; all];
            examples.iter().for_each(|i| marks[*i as usize] = true);
            marks
        });
        Self { growth, weights, examples, marks }
    }

    /// The examples in the order of a feature.
    fn sorted(&self, feature: usize) -> Vec<u32> {
        let columns = self.growth.columns;
        let Some(marks) = &self.marks else { return columns.sorted(feature, self.examples) };
        let mut sorted = Vec::with_capacity(self.examples.len());
        sorted.extend(columns.order(feature).iter().filter(|i| marks[**i as usize]));
        sorted
    }

    /// The weight of each class.
    fn counts(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.growth.examples.n_classes];
        self.examples.iter().for_each(|i| self.add(*i, &mut counts));
        counts
    }

    fn add(&self, i: u32, counts: &mut [f64]) {
        let (weight, target) = (self.weights[i as usize], self.growth.examples.target(i as usize));
        counts.iter_mut().zip(target).for_each(|(count, p)| *count += weight * p);
    }

    /// The best split by the features that are considered.
    fn best_split(&self, counts: &[f64], random: &mut Option<RandomFeatures>) -> Option<Split> {
        let n_features = self.growth.examples.width();
        let Some(RandomFeatures { per_split, rng }) = random else {
            return self.best_of(&(0..n_features).collect::<Vec<_>>(), counts);
        };
        let mut first = sample(rng, n_features, (*per_split).min(n_features)).into_vec();
        first.sort_unstable();
        self.best_of(&first, counts).or_else(|| {
            let is_other = |feature: &usize| first.binary_search(feature).is_err();
            let mut others: Vec<usize> = (0..n_features).filter(is_other).collect();
            others.shuffle(rng);
            others.chunks_mut(*per_split).find_map(|features| {
                features.sort_unstable();
                self.best_of(features, counts)
            })
        })
    }

    /// The best split by one of these features, ascending.
    fn best_of(&self, features: &[usize], counts: &[f64]) -> Option<Split> {
        let weight: f64 = counts.iter().sum();
        let of_feature = |j: &usize| self.best_threshold(*j, counts, weight);
        let splits: Vec<Option<Split>> = if self.examples.len() < ITEMS_PER_BLOCK {
            features.iter().map(of_feature).collect()
        } else {
            features.par_iter().map(of_feature).collect()
        };
        let better = |best: Split, next: Split| {
            if next.gain > best.gain + MIN_RELATIVE_GAIN * weight { next } else { best }
        };
        splits.into_iter().flatten().reduce(better)
    }

    /// The best split by one feature; `None` if no split gains anything.
    fn best_threshold(&self, feature: usize, counts: &[f64], weight: f64) -> Option<Split> {
        let Growth { columns, spec, .. } = self.growth;
        let values = columns.feature(feature);
        let sorted = self.sorted(feature);
        let purity = self.growth.purity(counts.iter().copied(), weight);
        let least = spec.min_leaf_weight - MIN_RELATIVE_GAIN * weight;
        let (mut left, mut left_weight) = (vec![0.0; counts.len()], 0.0);
        let mut best: Option<Split> = None;
        for pair in sorted.windows(2) {
            let [i, next] = *pair else { continue };
            let (value, following) = (values[i as usize], values[next as usize]);
            self.add(i, &mut left);
            left_weight += self.weights[i as usize];
            let right_weight = weight - left_weight;
            if value >= following || left_weight < least || right_weight < least {
                continue;
            }
            let right = counts.iter().zip(&left).map(|(all, left)| (all - left).max(0.0));
            let gain = self.growth.purity(left.iter().copied(), left_weight)
                + self.growth.purity(right, right_weight)
                - purity;
            let least_gain = MIN_RELATIVE_GAIN * weight;
            if gain > best.as_ref().map_or(0.0, |best| best.gain) + least_gain {
                best = Some(Split { feature, threshold: midpoint(value, following), gain });
            }
        }
        best
    }
}

/// The middle of two numbers, or the lower one where rounding gives the higher one.
fn midpoint(low: f32, high: f32) -> f32 {
    let middle = f64::midpoint(f64::from(low), f64::from(high)) as f32;
    if middle < high { middle } else { low }
}
