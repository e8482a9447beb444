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

use super::growth::{Growth, check_memory};
use super::{Classifier, Examples};
use crate::error::{Error, Result};
use crate::frame::Matrix;
use crate::model::numerics::normalise;
use crate::model::snapshot::Snapshot;
use crate::run::{Cancel, Run};

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
        normalise(counts, |p| p.max(self.min_probability));
    }
}

/// A single tree that considers all features at each split.
///
/// # Why
/// [`Classifier::predict_examples`] leaves an example out of its leaf: the target of a lone example would come back as
/// its probabilities, and a model that combines them with the annotations behind the target would count these twice.
pub struct DecisionTree {
    spec: TreeSpec,
    n_features: usize,
    n_classes: usize,
    /// `None` before the first fit.
    tree: Option<Tree>,
    /// P(class) of the examples of the last fit without their own targets, `[example, class]`.
    without_own: Vec<f64>,
}

impl DecisionTree {
    /// A tree that has learned nothing yet.
    #[must_use]
    pub fn new(spec: TreeSpec, n_features: usize, n_classes: usize) -> Self {
        Self { spec, n_features, n_classes, tree: None, without_own: Vec::new() }
    }
}

impl Classifier for DecisionTree {
    fn fit(&mut self, examples: Examples<'_>, run: &Run) -> Result<()> {
        check_memory(examples, &self.spec, 1, run)?;
        let columns = examples.columns.of(examples);
        let growth = Growth { columns, examples, spec: &self.spec, cancel: &run.cancel };
        let tree = growth.tree(examples.weights, None)?;
        self.without_own = growth.without_own(&tree);
        self.tree = Some(tree);
        Ok(())
    }

    fn reset(&mut self) {
        (self.tree, self.without_own) = (None, Vec::new());
    }

    fn predict_row(&self, row: &[f32], p: &mut [f64]) {
        match &self.tree {
            Some(tree) => p.copy_from_slice(tree.leaf(self.n_classes, |feature| row[feature])),
            None => p.fill(1.0 / self.n_classes as f64),
        }
    }

    fn predict_examples(&self, _: &Matrix, _: &[u32], p: &mut [f64], _: &Cancel) -> Result<()> {
        p.copy_from_slice(&self.without_own);
        Ok(())
    }

    fn save(&self, to: &mut Snapshot) {
        save(self.tree.as_slice(), (self.n_features, self.n_classes), to);
    }

    fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.tree = load((self.n_features, self.n_classes), 1, from)?.pop();
        self.without_own = Vec::new();
        Ok(())
    }
}

/// How far the sum of a saved leaf's probabilities may be from 1.
const PROBABILITY_TOLERANCE: f64 = 1e-9;

/// The `feature` of a leaf.
const LEAF: u32 = u32::MAX;

/// The nodes of a tree, in the order in which they are reached by always taking the left branch first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tree {
    /// The feature that each inner node compares; [`LEAF`] for a leaf.
    feature: Vec<u32>,
    /// The largest value that goes to the left, which is the next node; 0 for a leaf.
    threshold: Vec<f32>,
    /// The right branch of an inner node; the row in `leaves` of a leaf.
    next: Vec<u32>,
    /// P(class), `[leaf, class]`.
    leaves: Vec<f64>,
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
    fn is_valid(&self, n_features: usize, n_classes: usize) -> bool {
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

#[cfg(test)]
mod tests {
    use super::super::tests::{Owned, assert_near, uneven};
    use super::*;

    fn spec() -> TreeSpec {
        TreeSpec { min_leaf_weight: 0.0, min_probability: 0.0, ..TreeSpec::default() }
    }

    fn fit(spec: TreeSpec, data: &Owned) -> (Tree, Vec<f64>) {
        let mut tree = DecisionTree::new(spec, data.matrix.width(), data.n_classes);
        let p = data.fit(&mut tree);
        (tree.tree.unwrap(), p)
    }

    /// The values 1, 2, 4 and 8 with the classes a, a, b, a and the weights 1, 2, 4, 1. The node's purity is (16 + 16) /
    /// 8. At 1.5 the branches have 1 + 25/7, at 3 they have 3 + 17/5, and at 6 they have 25/7 + 1: 3 wins. The right branch,
    /// of b 4 and a 1, is split at 6, unless a leaf needs the weight 2.
    fn four() -> Owned {
        let targets = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]];
        Owned::new(1, &[1.0, 2.0, 4.0, 8.0], targets.as_flattened(), &[1.0, 2.0, 4.0, 1.0])
    }

    // keys: gem.classifier.decision_tree.min_leaf_weight, gem.classifier.decision_tree.max_depth
    #[test]
    fn splits_and_leaves_of_uneven_weights_by_hand() {
        let (tree, p) = fit(spec(), &four());
        assert_eq!(tree.feature, [0, LEAF, 0, LEAF, LEAF]);
        assert_eq!(tree.threshold, [3.0, 0.0, 6.0, 0.0, 0.0]);
        assert_eq!(tree.next, [2, 0, 4, 1, 2]);
        assert_eq!(p, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        let heavy = TreeSpec { min_leaf_weight: 2.0, ..spec() };
        let flat = TreeSpec { max_depth: 1, ..spec() };
        for spec in [heavy, flat] {
            let (tree, p) = fit(spec, &four());
            assert_eq!(tree.threshold, [3.0, 0.0, 0.0]);
            assert_near(&p, &[1.0, 0.0, 1.0, 0.0, 0.2, 0.8, 0.2, 0.8], 1e-15);
        }
        // Branches of the weights 3 and 5: a leaf may have exactly the least weight.
        let threshold =
            |least| fit(TreeSpec { min_leaf_weight: least, ..spec() }, &four()).0.threshold;
        assert_eq!(threshold(3.0), [3.0, 0.0, 0.0]);
        assert_eq!(threshold(3.1), [0.0]);
    }

    // keys: gem.classifier.decision_tree.min_probability, gem.classifier.random_forest.tree.min_probability
    #[test]
    fn leaves_have_a_least_probability() {
        let (_, p) = fit(TreeSpec { min_probability: 0.05, ..spec() }, &four());
        assert_near(&p[..2], &[1.0 / 1.05, 0.05 / 1.05], 1e-15);
        let (_, p) = fit(TreeSpec { min_probability: 0.05, max_depth: 1, ..spec() }, &four());
        assert_near(&p[4..6], &[0.2, 0.8], 1e-15);
    }

    /// The classes (a, b) have the weights (1, 1) at the features (0, 1), (0, 1) at (1, 0) and (1, 3) at (1, 1). By the
    /// first feature the purities are 1 + 17/5 and 2 ln 1/2 + ln 1/5 + 4 ln 4/5 = -3.888; by the second one, 1 + 20/6 and
    /// 2 ln 2/6 + 4 ln 4/6 = -3.819.
    // keys: gem.classifier.decision_tree.criterion, gem.classifier.random_forest.tree.criterion
    #[test]
    fn gini_and_entropy_may_choose_other_features() {
        let features = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0];
        let targets = [[0.5, 0.5], [0.0, 1.0], [0.25, 0.75]];
        let data = Owned::new(2, &features, targets.as_flattened(), &[2.0, 1.0, 4.0]);
        let first =
            |criterion| fit(TreeSpec { criterion, max_depth: 1, ..spec() }, &data).0.feature[0];
        assert_eq!((first(Criterion::Gini), first(Criterion::Entropy)), (0, 1));
    }

    /// Both features are the same, and the splits at 1.5 and 2.5 gain the same.
    #[test]
    fn equal_gains_go_to_the_lowest_feature_and_threshold() {
        let targets = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]];
        let features = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
        for weight in [1.0, 0.1, 0.7] {
            let data = Owned::new(2, &features, targets.as_flattened(), &[weight; 3]);
            let (tree, _) = fit(spec(), &data);
            assert_eq!((tree.feature[0], tree.threshold[0]), (0, 1.5), "{weight}");
        }
    }

    /// Neither feature alone tells anything of the exclusive or.
    #[test]
    fn a_node_that_no_split_improves_is_a_leaf() {
        let targets = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]];
        let features = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0];
        let data = Owned::new(2, &features, targets.as_flattened(), &[1.0; 4]);
        let (tree, p) = fit(spec(), &data);
        assert_eq!((tree.len(), p), (1, vec![0.5; 8]));
    }

    #[test]
    fn a_threshold_separates_neighbouring_numbers() {
        for low in [1.0_f32, -1.0, 0.0, f32::MAX.next_down(), f32::MIN, -0.0_f32.next_up()] {
            let features = [low, low.next_up()];
            let data = Owned::new(1, &features, &[1.0, 0.0, 0.0, 1.0], &[1.0; 2]);
            assert_eq!(fit(spec(), &data).1, [1.0, 0.0, 0.0, 1.0], "{low:e}");
        }
    }

    #[test]
    fn a_weight_of_two_is_two_examples_and_a_soft_target_is_one_example_for_each_class() {
        let data = uneven();
        let (tree, p) = fit(spec(), &data);
        assert_eq!(tree.len(), 11, "each of the six examples has a leaf");
        assert_near(&p, &data.targets, 1e-15);
        for other in [data.doubled(), data.split()] {
            for max_depth in [1, 2, 16] {
                let spec = TreeSpec { max_depth, min_leaf_weight: 0.4, ..spec() };
                let (one, two) = (fit(spec.clone(), &data), fit(spec, &other));
                assert_eq!(one.0.feature, two.0.feature);
                assert_eq!(one.0.threshold, two.0.threshold);
                assert_near(&one.1, &two.1, 1e-12);
            }
        }
    }

    #[test]
    fn damaged_trees_are_refused() {
        let (tree, _) = fit(spec(), &four());
        assert!(tree.is_valid(1, 2));
        let with = |change: fn(&mut Tree)| {
            let mut tree = tree.clone();
            change(&mut tree);
            let mut snapshot = Snapshot::default();
            save(&[tree], (1, 2), &mut snapshot);
            load((1, 2), 1, &snapshot).is_ok()
        };
        assert!(with(|_| {}));
        assert!(!with(|tree| tree.next[0] = 0), "a circle");
        assert!(!with(|tree| tree.next[0] = 1), "both branches are the next node");
        assert!(!with(|tree| tree.next[2] = 5), "no such node");
        assert!(!with(|tree| tree.next[1] = 3), "no such leaf");
        assert!(!with(|tree| tree.feature[0] = 1), "no such feature");
        assert!(!with(|tree| tree.feature[4] = 0), "no leaf at the end");
        assert!(!with(|tree| tree.leaves.truncate(3)), "half of a leaf");
        assert!(with(|tree| tree.leaves[..2].copy_from_slice(&[0.25, 0.75])));
        assert!(!with(|tree| tree.leaves[..2].copy_from_slice(&[-0.25, 1.25])), "negative");
        assert!(!with(|tree| tree.leaves[..2].copy_from_slice(&[0.25, 0.750_001])), "not 1");
        assert!(!with(|tree| tree.leaves[0] = f64::NAN), "no number");
    }

    #[test]
    fn another_number_of_trees_is_refused() {
        let (tree, _) = fit(spec(), &four());
        for n in [0, 2] {
            let mut snapshot = Snapshot::default();
            save(&vec![tree.clone(); n], (1, 2), &mut snapshot);
            assert!(DecisionTree::new(spec(), 1, 2).load(&snapshot).is_err(), "{n}");
            assert!(load((1, 2), n, &snapshot).is_ok(), "{n}");
        }
    }

    /// The leaf of the values 4 and 8 holds b 4 and a 1: each gives the other's class. With leaves of single examples,
    /// the value 4 is alone, so that all others count, which are a; and 8 is alone as well: all others are a 3 and b 4.
    /// The values 1 and 2 share a leaf. Soft targets and weights: of 0.5 (0.4, 0.6) and 2 (0.9, 0.1) at one value,
    /// the first sees the second alone.
    #[test]
    fn an_example_is_left_out_of_its_own_leaf() {
        let of = |spec: TreeSpec, data: &Owned| {
            let mut tree = DecisionTree::new(spec, 1, 2);
            data.fit(&mut tree);
            let mut p = vec![0.0; data.targets.len()];
            let cancel = Cancel::default();
            tree.predict_examples(&data.matrix, &data.rows, &mut p, &cancel).unwrap();
            p
        };
        let heavy = TreeSpec { min_leaf_weight: 2.0, ..spec() };
        assert_near(&of(heavy, &four()), &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0], 1e-15);
        let lone = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 3.0 / 7.0, 4.0 / 7.0];
        let single = TreeSpec { min_leaf_weight: 1.0, ..spec() };
        assert_near(&of(single, &four()), &lone, 1e-15);
        let floored = TreeSpec { min_probability: 0.05, ..spec() };
        let floor = of(floored, &four());
        assert_near(&floor[4..6], &[1.0 / 1.05, 0.05 / 1.05], 1e-15);
        let targets = [[0.4, 0.6], [0.9, 0.1], [0.5, 0.5]];
        let soft = Owned::new(1, &[3.0; 3], targets.as_flattened(), &[0.5, 2.0, 1.0]);
        let want = [2.3 / 3.0, 0.7 / 3.0, 0.7 / 1.5, 0.8 / 1.5, 2.0 / 2.5, 0.5 / 2.5];
        assert_near(&of(spec(), &soft), &want, 1e-14);
        let one = Owned::new(1, &[3.0], &[1.0, 0.0], &[1.0]);
        assert_near(&of(spec(), &one), &[0.5, 0.5], 1e-15);
    }

    /// Four examples with one feature and two classes on one thread: columns of 16 bytes, 80 bytes of work, four leaves
    /// of 24 bytes of nodes and 16 of probabilities, and 64 bytes of the examples' probabilities: 320, half of the
    /// memory. With at least 4 of the weight 8 in a leaf there are two leaves.
    #[test]
    fn trees_beyond_half_of_the_memory_are_refused() {
        let fit = |bytes, min_leaf_weight| {
            let run = Run::new(1).with_memory(bytes).with_threads(1).unwrap();
            let spec = TreeSpec { min_leaf_weight, ..spec() };
            let fit = || DecisionTree::new(spec, 1, 2).fit(four().examples(), &run);
            run.pool().install(fit)
        };
        assert!(fit(640, 0.0).is_ok() && fit(480, 4.0).is_ok() && fit(479, 4.0).is_err());
        let error = fit(639, 0.0).unwrap_err().to_string();
        assert!(error.contains("engine.memory_limit"), "{error}");
    }
}
