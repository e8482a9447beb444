//! Decision trees: CART on soft targets.
//!
//! A tree asks one question at each inner node, `x[feature] <= threshold`, and gives the class shares of the examples
//! of a leaf, by weight. `growth.rs` finds the questions; a forest has the same trees.
//!
//! L. Breiman, J. H. Friedman, R. A. Olshen, C. J. Stone: Classification and Regression Trees. Wadsworth, 1984.
//!
//! Differs from CART in that it is not pruned: the depth, and the least weight of a leaf, limit its size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::numerics::{at_least, normalise};
use crate::model::saved::snapshot::Snapshot;

/// The measure of how mixed the classes of a node are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Criterion {
    /// The Gini index, 1 - the sum of squared class shares.
    #[default]
    Gini,
    /// The entropy of the class shares.
    Entropy,
}

/// The settings of a tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TreeSpec {
    /// The measure of mixed classes, which each split reduces as much as it can.
    pub criterion: Criterion,
    /// Questions on the way to a leaf at most.
    #[schemars(range(min = 1, max = 1000))]
    pub max_depth: u32,
    /// The least sum of the weights of a leaf's examples. Raising it gives smaller trees, whose probabilities are less
    /// extreme.
    #[schemars(range(min = 0.0))]
    pub min_leaf_weight: f64,
    /// The least probability of a class in a leaf, before the leaf's probabilities are normalised again. Raising it
    /// trusts the shares of a leaf less.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub min_probability: f64,
}

impl Default for TreeSpec {
    fn default() -> Self {
        Self {
            criterion: Criterion::Gini,
            max_depth: 16,
            min_leaf_weight: 5.0,
            min_probability: 0.001,
        }
    }
}

impl TreeSpec {
    /// Turns the weights of the classes of a leaf into probabilities; uniform ones where there is no weight.
    pub(super) fn normalise(&self, counts: &mut [f64]) {
        normalise(counts, |p| at_least(p, self.min_probability));
    }
}

/// How far the sum of a saved leaf's probabilities may be from 1.
const PROBABILITY_TOLERANCE: f64 = 1e-9;

/// The `feature` of a leaf.
pub(super) const LEAF: u32 = u32::MAX;

/// The nodes of a tree, in the order in which they are reached by always taking the left branch first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tree {
    /// The feature that each inner node compares; [`LEAF`] for a leaf.
    pub(super) feature: Vec<u32>,
    /// The largest value that goes to the left, which is the next node; 0 for a leaf.
    pub(super) threshold: Vec<f32>,
    /// The right branch of an inner node; the row in `leaves` of a leaf.
    pub(super) next: Vec<u32>,
    /// P(class), `[leaf, class]`.
    pub(super) leaves: Vec<f64>,
}

impl Tree {
    /// The bytes of a node, without the probabilities of a leaf.
    pub(super) const BYTES_OF_NODE: usize = 2 * size_of::<u32>() + size_of::<f32>();

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        self.feature.len()
    }

    /// Adds an inner node, whose left branch is the next node; its right branch is to be set.
    pub(super) fn push_split(&mut self, feature: usize, threshold: f32) {
        self.feature.push(feature as u32);
        self.threshold.push(threshold);
        self.next.push(0);
    }

    /// Makes the next node the right branch of `parent`.
    pub(super) fn set_right(&mut self, parent: usize) {
        self.next[parent] = self.len() as u32;
    }

    /// Adds a leaf with these probabilities.
    pub(super) fn push_leaf(&mut self, p: &[f64]) {
        self.feature.push(LEAF);
        self.threshold.push(0.0);
        self.next.push((self.leaves.len() / p.len()) as u32);
        self.leaves.extend_from_slice(p);
    }

    /// The number of leaves.
    pub(super) fn n_leaves(&self, n_classes: usize) -> usize {
        self.leaves.len() / n_classes
    }

    /// P(class) of the leaf that an example reaches, given its value of a feature.
    pub(super) fn leaf(&self, n_classes: usize, value: impl Fn(usize) -> f32) -> &[f64] {
        let leaf = self.leaf_index(value);
        &self.leaves[leaf * n_classes..(leaf + 1) * n_classes]
    }

    /// The leaf that an example reaches, given its value of a feature.
    pub(super) fn leaf_index(&self, value: impl Fn(usize) -> f32) -> usize {
        let mut node = 0;
        while self.feature[node] != LEAF {
            let goes_left = value(self.feature[node] as usize) <= self.threshold[node];
            node = if goes_left { node + 1 } else { self.next[node] as usize };
        }
        self.next[node] as usize
    }

    /// Whether every branch leads forwards to a node of the tree, and every leaf has probabilities.
    pub(super) fn is_valid(&self, n_features: usize, n_classes: usize) -> bool {
        let (n, n_leaves) = (self.len(), self.n_leaves(n_classes));
        let fits = |node: usize| {
            let (feature, next) = (self.feature[node], self.next[node] as usize);
            if feature == LEAF {
                next < n_leaves
            } else {
                (feature as usize) < n_features && next > node + 1 && next < n
            }
        };
        let are_probabilities = |p: &[f64]| {
            p.iter().all(|p| *p >= 0.0)
                && (p.iter().sum::<f64>() - 1.0).abs() <= PROBABILITY_TOLERANCE
        };
        n > 0 && (0..n).all(fits) && self.leaves.chunks_exact(n_classes).all(are_probabilities)
    }
}

/// Adds trees for these numbers of features and classes to a snapshot.
pub(super) fn save(trees: &[Tree], (n_features, n_classes): (usize, usize), to: &mut Snapshot) {
    let u32s = |part: fn(&Tree) -> &[u32]| trees.iter().flat_map(part).copied().collect();
    let thresholds: Vec<f32> = trees.iter().flat_map(|tree| &tree.threshold).copied().collect();
    to.u32s("sizes".to_owned(), vec![n_features as u32, n_classes as u32]);
    to.u32s("n_nodes".to_owned(), trees.iter().map(|tree| tree.len() as u32).collect());
    let n_leaves = trees.iter().map(|tree| tree.n_leaves(n_classes) as u32);
    to.u32s("n_leaves".to_owned(), n_leaves.collect());
    to.u32s("feature".to_owned(), u32s(|tree| &tree.feature));
    to.f32s("threshold".to_owned(), vec![thresholds.len()], thresholds);
    to.u32s("next".to_owned(), u32s(|tree| &tree.next));
    to.f64s("leaves".to_owned(), trees.iter().flat_map(|tree| &tree.leaves).copied().collect());
}

/// Takes the `n_trees` trees of a snapshot.
///
/// # Errors
/// When there is another number of them, they are trees for other numbers of features or classes, or are damaged.
pub(super) fn load(
    (n_features, n_classes): (usize, usize),
    n_trees: usize,
    from: &Snapshot,
) -> Result<Vec<Tree>> {
    if from.take_u32s("sizes", 2)? != [n_features as u32, n_classes as u32] {
        return Err(from.another("sizes", 2));
    }
    let n_nodes = from.take_u32s("n_nodes", n_trees)?;
    let n_leaves = from.take_u32s("n_leaves", n_trees)?;
    let sum = |counts: &[u32]| counts.iter().map(|n| *n as usize).sum::<usize>();
    let feature = from.take_u32s("feature", sum(&n_nodes))?;
    let threshold = from.take_f32s("threshold", sum(&n_nodes))?;
    let next = from.take_u32s("next", sum(&n_nodes))?;
    let leaves = from.take_n_f64s("leaves", sum(&n_leaves).saturating_mul(n_classes))?;
    let (mut node, mut leaf, mut trees) = (0, 0, Vec::with_capacity(n_trees));
    for (nodes, own_leaves) in n_nodes.iter().zip(&n_leaves) {
        let nodes = node..node + *nodes as usize;
        let of_leaves = leaf * n_classes..(leaf + *own_leaves as usize) * n_classes;
        let tree = Tree {
            feature: feature[nodes.clone()].to_vec(),
            threshold: threshold[nodes.clone()].to_vec(),
            next: next[nodes.clone()].to_vec(),
            leaves: leaves[of_leaves].to_vec(),
        };
        if !tree.is_valid(n_features, n_classes) {
            return Err(Error::data("the nodes of a saved tree do not fit each other")
                .help("the file is damaged: take it from the run that wrote it"));
        }
        (node, leaf) = (nodes.end, leaf + *own_leaves as usize);
        trees.push(tree);
    }
    Ok(trees)
}
