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
//! At each node, the examples are sorted by each feature: growing a level of the tree costs O(rows (log rows + classes)
//! features).

use std::cmp::Ordering;

use rand::seq::index::sample;
use rayon::prelude::*;

use super::Examples;
use super::tree::{Criterion, Tree, TreeSpec};
use crate::error::{Error, Result};
use crate::frame::INSTANCES_PER_BLOCK;
use crate::model::numerics::normalise;
use crate::run::{Cancel, Rng, Run};

/// A gain that is larger by a smaller share of the node's weight counts as equal: another order of summation changes it
/// less.
const TIE: f64 = 1e-10;

/// The features of examples, `[feature, example]`.
pub(super) struct Columns {
    values: Vec<f32>,
    n_examples: usize,
}

impl Columns {
    /// Copies the features of the examples to memory.
    ///
    /// # Errors
    /// When they are larger than half of the run's memory.
    pub(super) fn of(examples: Examples<'_>, run: &Run) -> Result<Self> {
        let (n, width) = (examples.rows.len(), examples.matrix.width());
        let bytes = n.saturating_mul(width).saturating_mul(size_of::<f32>());
        if bytes > run.share_of_memory(2, usize::MAX) {
            return Err(Error::spec("the features of annotated instances do not fit in memory")
                .at("model.classifier.kind")
                .found(format!("{bytes} bytes, which a tree sorts"))
                .help("raise engine.memory_limit, or choose logistic_regression, which reads row by row"));
        }
        let (mut values, mut features) = (vec![0.0; n * width], vec![0.0; width]);
        for (i, row) in examples.rows.iter().enumerate() {
            examples.matrix.read(*row as usize, &mut features);
            features.iter().enumerate().for_each(|(j, x)| values[j * n + i] = *x);
        }
        Ok(Self { values, n_examples: n })
    }

    /// The value of a feature of each example.
    pub(super) fn feature(&self, j: usize) -> &[f32] {
        &self.values[j * self.n_examples..(j + 1) * self.n_examples]
    }
}

/// Random features for each split.
pub(super) struct RandomFeatures {
    /// The number of features that a split considers. If none of them helps, it considers as many others.
    pub(super) per_split: usize,
    pub(super) rng: Rng,
}

/// The data and the settings of trees.
pub(super) struct Growth<'a> {
    pub(super) columns: &'a Columns,
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
    ///
    /// # Errors
    /// When the run is cancelled.
    pub(super) fn tree(&self, weights: &[f64], mut random: Option<RandomFeatures>) -> Result<Tree> {
        let with_weight = (0..weights.len() as u32).filter(|i| weights[*i as usize] > 0.0);
        let root = Pending { examples: with_weight.collect(), depth: 0, right_of: None };
        let (mut tree, mut pending) = (Tree::default(), vec![root]);
        while let Some(Pending { examples, depth, right_of }) = pending.pop() {
            self.cancel.check()?;
            if let Some(parent) = right_of {
                tree.set_right(parent);
            }
            let node = Node { growth: self, weights, examples: &examples };
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
        normalise(&mut counts, |p| p.max(self.spec.min_probability));
        counts
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
}

impl Node<'_> {
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
        let n_features = self.growth.examples.matrix.width();
        let Some(RandomFeatures { per_split, rng }) = random else {
            return self.best_of(&(0..n_features).collect::<Vec<_>>(), counts);
        };
        let mut order = sample(rng, n_features, n_features).into_vec();
        order.chunks_mut(*per_split).find_map(|features| {
            features.sort_unstable();
            self.best_of(features, counts)
        })
    }

    /// The best split by one of these features, ascending.
    fn best_of(&self, features: &[usize], counts: &[f64]) -> Option<Split> {
        let weight: f64 = counts.iter().sum();
        let of_feature = |j: &usize| self.best_threshold(*j, counts, weight);
        let splits: Vec<Option<Split>> = if self.examples.len() < INSTANCES_PER_BLOCK {
            features.iter().map(of_feature).collect()
        } else {
            features.par_iter().map(of_feature).collect()
        };
        let better = |best: Split, next: Split| {
            if next.gain > best.gain + TIE * weight { next } else { best }
        };
        splits.into_iter().flatten().reduce(better)
    }

    /// The best split by one feature; `None` if no split gains anything.
    fn best_threshold(&self, feature: usize, counts: &[f64], weight: f64) -> Option<Split> {
        let Growth { columns, spec, .. } = self.growth;
        let values = columns.feature(feature);
        let mut sorted: Vec<(f32, u32)> =
            self.examples.iter().map(|i| (values[*i as usize], *i)).collect();
        sorted.sort_unstable_by(|(a, i), (b, j)| {
            a.partial_cmp(b).unwrap_or(Ordering::Equal).then(i.cmp(j))
        });
        let purity = self.growth.purity(counts.iter().copied(), weight);
        let least = spec.min_leaf_weight - TIE * weight;
        let (mut left, mut left_weight) = (vec![0.0; counts.len()], 0.0);
        let mut best: Option<Split> = None;
        for pair in sorted.windows(2) {
            let [(value, i), (following, _)] = *pair else { continue };
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
            if gain > best.as_ref().map_or(0.0, |best| best.gain) + TIE * weight {
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
