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
//! [`Classifier::predict_examples`] takes the mean over the trees that did not see the example (out of bag). A tree
//! nearly gives the target of an example back that it has seen: a model that combines such a prediction with the
//! annotations behind the target would count them twice.

use rand::distr::Distribution as _;
use rand_distr::Poisson;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::growth::{Columns, Growth, RandomFeatures};
use super::tree::{Tree, TreeSpec, load, save};
use super::{Classifier, Examples};
use crate::error::{Error, Result};
use crate::frame::{BLOCK, Matrix};
use crate::model::snapshot::Snapshot;
use crate::run::{Rng, Run};

/// The settings of a random forest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForestSpec {
    /// The number of trees. Raising it makes probabilities less random, and costs time in proportion.
    #[schemars(range(min = 1, max = 100_000))]
    pub trees: u32,
    /// The number of features that each split considers; null for the square root of their number.
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
    out_of_bag: Vec<f64>,
}

impl RandomForest {
    /// A forest that has learned nothing yet.
    #[must_use]
    pub fn new(spec: ForestSpec, n_features: usize, n_classes: usize) -> Self {
        Self { spec, n_features, n_classes, trees: Vec::new(), out_of_bag: Vec::new() }
    }

    fn features_per_split(&self) -> usize {
        let root = (self.n_features as f64).sqrt() as usize;
        self.spec.features_per_split.map_or(root, |n| n as usize).clamp(1, self.n_features.max(1))
    }

    /// Each example's mean over the trees that did not see it; over all trees if every tree did.
    fn means_out_of_bag(
        &self,
        columns: &Columns,
        examples: Examples<'_>,
        run: &Run,
    ) -> Result<Vec<f64>> {
        let n = self.n_classes;
        let mut means = vec![0.0; examples.rows.len() * n];
        let mut votes = vec![0_u32; examples.rows.len()];
        let add = |tree: &Tree, i: usize, mean: &mut [f64]| {
            let leaf = tree.leaf(n, |feature| columns.feature(feature)[i]);
            mean.iter_mut().zip(leaf).for_each(|(mean, p)| *mean += p);
        };
        for (t, tree) in self.trees.iter().enumerate() {
            run.cancel.check()?;
            let seen = bootstrap(examples, &mut stream(t, run))?;
            let blocks = means.par_chunks_mut(BLOCK * n).zip(votes.par_chunks_mut(BLOCK));
            blocks.enumerate().for_each(|(block, (means, votes))| {
                for (at, (mean, votes)) in means.chunks_exact_mut(n).zip(votes).enumerate() {
                    let i = block * BLOCK + at;
                    if seen[i] == 0.0 {
                        add(tree, i, mean);
                        *votes += 1;
                    }
                }
            });
        }
        for (i, (mean, votes)) in means.chunks_exact_mut(n).zip(votes).enumerate() {
            let mut n_trees = f64::from(votes);
            if votes == 0 {
                self.trees.iter().for_each(|tree| add(tree, i, mean));
                n_trees = self.trees.len() as f64;
            }
            mean.iter_mut().for_each(|p| *p /= n_trees);
        }
        Ok(means)
    }
}

/// The random stream of a tree.
fn stream(t: usize, run: &Run) -> Rng {
    run.rng(&format!("tree {t} of a forest"))
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
    fn fit(&mut self, examples: Examples<'_>, run: &Run) -> Result<()> {
        let columns = Columns::of(examples, run)?;
        let (spec, per_split) = (&self.spec, self.features_per_split());
        let growth =
            Growth { columns: &columns, examples, spec: &spec.tree, cancel: &run.cancel };
        let grown = (0..spec.trees as usize).into_par_iter().map(|t| {
            let mut rng = stream(t, run);
            let weights = bootstrap(examples, &mut rng)?;
            growth.tree(&weights, Some(RandomFeatures { per_split, rng }))
        });
        self.trees = grown.collect::<Result<_>>()?;
        self.out_of_bag = self.means_out_of_bag(&columns, examples, run)?;
        Ok(())
    }

    fn reset(&mut self) {
        (self.trees, self.out_of_bag) = (Vec::new(), Vec::new());
    }

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

    fn predict_examples(&self, _: &Matrix, _: &[u32], p: &mut [f64]) {
        p.copy_from_slice(&self.out_of_bag);
    }

    fn save(&self, to: &mut Snapshot) {
        save(&self.trees, (self.n_features, self.n_classes), to);
    }

    fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.trees = load((self.n_features, self.n_classes), from)?;
        self.out_of_bag = Vec::new();
        Ok(())
    }
}
