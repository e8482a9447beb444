//! Random forests: the mean of trees that each see other examples and other features.
//!
//! 1. Tree t sees example i as often as a Poisson(1) variable says: its weight is multiplied by it.
//! 2. Each split of the tree considers random features only.
//! 3. P(class) is the mean of the leaves that a row reaches, one in each tree.
//!
//! Each tree draws from a stream of its own, so that trees may grow in any order.
//!
//! L. Breiman: Random Forests. Machine Learning 45, 2001. doi:10.1023/A:1010933404324
//!
//! Differs from the paper in that the number of times that a tree sees an example has a Poisson distribution instead of
//! a multinomial one, which gives examples with weights a plain meaning, and in that trees have a least weight of a leaf.
//!
//! # Why
//! [`Classifier::examples_p`] takes the mean over the trees that did not see the example (out of bag). A tree
//! nearly gives the target of an example back that it has seen: a model that combines such a prediction with the
//! annotations behind the target would count them twice.

use rand::distr::Distribution as _;
use rand_distr::Poisson;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::feature_columns::FeatureColumns;
use super::growth::{Growth, RandomFeatures, check_memory};
use super::tree::{Tree, TreeSpec, load, save};
use super::{Classifier, Examples, predict_rows};
use crate::error::{Error, Result};
use crate::frame::{ITEMS_PER_BLOCK, Matrix};
use crate::job_context::{Cancel, JobContext, Rng};
use crate::model::saved::snapshot::Snapshot;

/// The settings of a random forest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForestSpec {
    /// The number of trees. Raising it makes probabilities less random, and costs time in proportion.
    #[schemars(range(min = 1, max = 100_000))]
    pub trees: u32,
    /// The number of features that each split considers, at most as many as there are; null for the square root of their
    /// number.
    #[schemars(range(min = 1))]
    pub features_per_split: Option<u32>,
    /// The settings of each tree.
    pub tree: TreeSpec,
}

impl Default for ForestSpec {
    fn default() -> Self {
        Self { trees: 100, features_per_split: None, tree: TreeSpec::default() }
    }
}

/// A random forest with its trees.
pub struct RandomForest {
    spec: ForestSpec,
    n_features: usize,
    n_classes: usize,
    /// None before the first fit.
    trees: Vec<Tree>,
    /// P(class) of the examples of the last fit, out of bag, `[example, class]`.
    out_of_bag: Option<Vec<f64>>,
}

impl RandomForest {
    /// A forest that has learned nothing yet.
    #[must_use]
    pub fn new(spec: ForestSpec, n_features: usize, n_classes: usize) -> Self {
        Self { spec, n_features, n_classes, trees: Vec::new(), out_of_bag: None }
    }

    /// The number of features that each split considers.
    ///
    /// # Errors
    /// When the spec has more than there are.
    fn features_per_split(&self) -> Result<usize> {
        let all = self.n_features.max(1);
        match self.spec.features_per_split.map(|n| n as usize) {
            None => Ok(all.isqrt()),
            Some(n) if n <= all => Ok(n),
            Some(n) => Err(Error::spec("there are fewer features than a split is to consider")
                .at("model.classifier.random_forest.features_per_split")
                .found(format!("{n}, with {all} features"))
                .help("lower it, or leave it out for the square root of their number")),
        }
    }

    /// Writes P(class) of a row of features, `[feature]`, into `p`, `[class]`.
    fn predict_row(&self, row: &[f32], p: &mut [f64]) {
        if self.trees.is_empty() {
            p.fill(1.0 / self.n_classes as f64);
            return;
        }
        p.fill(0.0);
        for tree in &self.trees {
            let leaf = tree.leaf(self.n_classes, |feature| row[feature]);
            p.iter_mut().zip(leaf).for_each(|(p, leaf)| *p += leaf);
        }
        p.iter_mut().for_each(|p| *p /= self.trees.len() as f64);
    }

    /// Each example's mean over the trees that did not see it, `[example, class]`; over all trees if every tree did.
    fn means_out_of_bag(
        &self,
        columns: &FeatureColumns,
        seen: &[SeenExamples],
        job: &JobContext,
    ) -> Result<Vec<f64>> {
        let n = self.n_classes;
        let n_examples = seen.first().map_or(0, |seen| seen.len);
        let mut means = vec![0.0; n_examples * n];
        let blocks = means.par_chunks_mut(ITEMS_PER_BLOCK * n).enumerate();
        blocks.try_for_each(|(block, means)| -> Result<()> {
            job.cancel.check()?;
            for (at, mean) in means.chunks_exact_mut(n).enumerate() {
                let i = block * ITEMS_PER_BLOCK + at;
                let sees_all = seen.iter().all(|seen| seen.contains(i));
                let mut n_trees = 0.0;
                for (tree, seen) in self.trees.iter().zip(seen) {
                    if sees_all || !seen.contains(i) {
                        let leaf = tree.leaf(n, |feature| columns.feature(feature)[i]);
                        mean.iter_mut().zip(leaf).for_each(|(mean, p)| *mean += p);
                        n_trees += 1.0;
                    }
                }
                mean.iter_mut().for_each(|p| *p /= n_trees);
            }
            Ok(())
        })?;
        Ok(means)
    }
}

/// The examples that a tree sees: one bit for each.
struct SeenExamples {
    bits: Vec<u64>,
    len: usize,
}

impl SeenExamples {
    /// The examples with a positive weight.
    fn from_weights(weights: &[f64]) -> Self {
        let word = |weights: &[f64]| {
            weights.iter().rev().fold(0, |word, weight| word << 1 | u64::from(*weight > 0.0))
        };
        Self { bits: weights.chunks(64).map(word).collect(), len: weights.len() }
    }

    fn contains(&self, i: usize) -> bool {
        self.bits[i / 64] >> (i % 64) & 1 == 1
    }
}

/// The random stream of a tree.
fn stream(t: usize, job: &JobContext) -> Rng {
    job.rng(&format!("tree {t} of a forest"))
}

/// The weight of every example in a tree; their own weights if the tree would see none.
fn bootstrap(examples: Examples<'_>, rng: &mut Rng) -> Result<Vec<f64>> {
    let times = Poisson::new(1.0).map_err(|e| Error::bug(format!("a bootstrap sample: {e}")))?;
    let weights: Vec<f64> =
        examples.weights.iter().map(|weight| weight * times.sample(rng)).collect();
    let is_empty = weights.iter().all(|weight| *weight == 0.0);
    Ok(if is_empty { examples.weights.to_vec() } else { weights })
}

impl Classifier for RandomForest {
    fn fit(&mut self, examples: Examples<'_>, job: &JobContext) -> Result<()> {
        let (spec, per_split) = (&self.spec, self.features_per_split()?);
        check_memory(examples, &spec.tree, spec.trees as usize, job)?;
        let columns = examples.features.columns();
        let growth = Growth { columns, examples, spec: &spec.tree, cancel: &job.cancel };
        let grown = (0..spec.trees as usize).into_par_iter().map(|t| {
            let mut rng = stream(t, job);
            let weights = bootstrap(examples, &mut rng)?;
            let tree = growth.tree(&weights, Some(RandomFeatures { per_split, rng }))?;
            Ok((tree, SeenExamples::from_weights(&weights)))
        });
        let (trees, seen): (_, Vec<SeenExamples>) =
            grown.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        self.trees = trees;
        self.out_of_bag = Some(self.means_out_of_bag(columns, &seen, job)?);
        Ok(())
    }

    fn predict(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64], cancel: &Cancel) -> Result<()> {
        predict_rows(matrix, rows, p, cancel, |row, p| self.predict_row(row, p))
    }

    fn examples_p(&self) -> Option<&[f64]> {
        self.out_of_bag.as_deref()
    }

    fn save(&self, to: &mut Snapshot) -> Result<()> {
        save(&self.trees, (self.n_features, self.n_classes), to);
        Ok(())
    }

    fn load(&mut self, from: &Snapshot, _: usize, _: &JobContext) -> Result<()> {
        let n_trees = self.spec.trees as usize;
        self.trees = load((self.n_features, self.n_classes), n_trees, from)?;
        self.out_of_bag = None;
        Ok(())
    }

    // A fit starts with nothing.
    fn save_state(&self, _: &mut Snapshot) -> Result<()> {
        Ok(())
    }

    fn load_state(&mut self, _: &Snapshot, _: &JobContext) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Owned, assert_near};
    use super::*;

    /// Forty examples: the first feature separates the classes, the second one nearly does.
    fn forty() -> Owned {
        let features =
            |i: usize| [i as f32, ((i * 7) % 40) as f32 + if i < 20 { 0.0 } else { 30.0 }];
        let features: Vec<f32> = (0..40).flat_map(features).collect();
        let targets: Vec<f64> =
            (0..40).flat_map(|i| if i < 20 { [1.0, 0.0] } else { [0.0, 1.0] }).collect();
        Owned::new(2, &features, &targets, &[1.0; 40])
    }

    fn forest(trees: u32, features_per_split: Option<u32>) -> RandomForest {
        let tree = TreeSpec { min_leaf_weight: 1.0, ..TreeSpec::default() };
        RandomForest::new(ForestSpec { trees, features_per_split, tree }, 2, 2)
    }

    /// With both features at each split, the first one always wins; with one, the second one has splits too.
    // keys: model.classifier.random_forest.features_per_split, model.classifier.random_forest.trees
    #[test]
    fn splits_consider_some_features_only() {
        let uses_second = |features_per_split, trees| {
            let mut forest = forest(trees, features_per_split);
            forty().fit(&mut forest);
            assert_eq!(forest.trees.len(), trees as usize);
            let mut snapshot = Snapshot::default();
            forest.save(&mut snapshot).unwrap();
            snapshot.u32s_of("feature").unwrap().contains(&1)
        };
        assert!(!uses_second(Some(2), 8));
        assert!(uses_second(Some(1), 8) && uses_second(None, 9));
    }

    // keys: model.classifier.random_forest.features_per_split
    #[test]
    fn a_split_cannot_consider_more_features_than_there_are() {
        let fit = |features_per_split| {
            forest(1, Some(features_per_split)).fit(forty().examples(), &JobContext::new(1))
        };
        assert!(fit(2).is_ok());
        let error = fit(3).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("features_per_split\n  found: 3, with 2 features"), "{text}");
    }

    // keys: model.classifier.random_forest.tree.max_depth, model.classifier.random_forest.tree.min_leaf_weight
    #[test]
    fn the_settings_of_a_tree_hold_for_every_tree() {
        let most_nodes = |max_depth, min_leaf_weight| {
            let tree = TreeSpec { max_depth, min_leaf_weight, ..TreeSpec::default() };
            let spec = ForestSpec { trees: 9, features_per_split: Some(1), tree };
            let mut forest = RandomForest::new(spec, 2, 2);
            forty().fit(&mut forest);
            forest.trees.iter().map(Tree::len).max()
        };
        assert!(most_nodes(16, 1.0) > Some(3));
        assert_eq!(most_nodes(1, 1.0), Some(3));
        assert_eq!(most_nodes(16, 1000.0), Some(1));
    }

    /// Two of three features are constant.
    #[test]
    fn features_that_cannot_split_are_passed_over() {
        let features: Vec<f32> = (0..40).flat_map(|i| [1.0, i as f32, 2.0]).collect();
        let data = Owned::new(3, &features, &forty().targets, &[1.0; 40]);
        let tree = TreeSpec { min_leaf_weight: 1.0, ..TreeSpec::default() };
        let spec = ForestSpec { trees: 20, features_per_split: Some(1), tree };
        let p = data.fit(&mut RandomForest::new(spec, 3, 2));
        assert!(p[0] > 0.99 && p[79] > 0.99, "{p:?}");
    }

    /// A tree that has not seen an example does not depend on its target.
    #[test]
    fn out_of_bag_probabilities_do_not_depend_on_the_example_s_own_target() {
        let (data, mut flipped) = (forty(), forty());
        flipped.targets[6..8].copy_from_slice(&[0.0, 1.0]);
        let of = |data: &Owned| {
            let mut forest = forest(30, None);
            let p = data.fit(&mut forest);
            (p, forest.out_of_bag.unwrap())
        };
        let ((p, own), (p_flipped, own_flipped)) = (of(&data), of(&flipped));
        assert_eq!(own[6..8], own_flipped[6..8]);
        assert!(own != own_flipped && p[6..8] != p_flipped[6..8]);
        assert!(p_flipped[7] > own_flipped[7] + 0.2, "in the bag, the target returns");
        let sums: Vec<f64> = own.chunks_exact(2).map(|p| p[0] + p[1]).collect();
        assert_near(&sums, &[1.0; 40], 1e-12);
    }

    /// With one tree, the examples that it saw have its own probabilities.
    #[test]
    fn an_example_that_every_tree_saw_has_the_mean_of_all() {
        let mut forest = forest(1, None);
        let p = forty().fit(&mut forest);
        assert_eq!(forest.out_of_bag, Some(p));
    }

    /// Heavier examples pull the shares of a leaf: 3 of 4, on average over the samples.
    #[test]
    fn examples_count_by_their_weight() {
        let targets = [[1.0, 0.0], [0.0, 1.0]].repeat(50);
        let weights = [3.0, 1.0].repeat(50);
        let data = Owned::new(2, &[0.5; 200], targets.as_flattened(), &weights);
        let p = data.fit(&mut forest(200, None));
        assert!((p[0] - 0.75).abs() < 0.02, "{}", p[0]);
    }

    #[test]
    fn trees_depend_on_the_seed() {
        let p = |seed| {
            let mut forest = forest(5, None);
            forest.fit(forty().examples(), &JobContext::new(seed)).unwrap();
            forest.out_of_bag
        };
        assert_eq!(p(1), p(1));
        assert_ne!(p(1), p(2));
    }
}
