//! Classifiers of rows of features, for models that alternate between labels and a classifier.
//!
//! A [`Classifier`] learns from [`Examples`]: rows of features with soft targets and weights. One with the target (0.3,
//! 0.7) and the weight 2 is the same as two with the weights 0.6 and 1.4, of which each has one class; a weight of 2 is
//! the same as the example twice. A classifier may be fitted again and again: [`Classifier::fit`] may start at what it
//! learned before.
//!
//! # Adding a classifier
//! 1. Write one file with a spec struct and a struct that implements [`Classifier`].
//! 2. Add its section and its word to [`ClassifierSpec`], and its line to [`ClassifierSpec::build`].
//!
//! # Why
//! A small table of features is learned better by a logistic regression or by trees than by a network: they have few
//! settings, give the same result on every machine, and take seconds. A network is a classifier as well, for images and
//! other features that need one; its training loop is that of the models under `neural/`. These remain models of their
//! own: they train a network and parameters of annotators by one loss, and select an epoch by held-out data. `agg_net`
//! has these abilities; it differs from `gem` around a network in that it adds constants to the probabilities of
//! classifier and annotators in place of a smoothing, and in that it ends after its epochs, whatever the objective.

mod decision_tree;
mod feature_columns;
mod folds;
mod forest;
pub(super) mod from_features;
mod growth;
mod logistic;
#[cfg(feature = "neural")]
mod network;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::saved::snapshot::Snapshot;
use crate::error::{Problem, Result};
use crate::frame::{ITEMS_PER_BLOCK, MAX_RANGES, Matrix, ranges_of_instances};
use crate::job_context::{Cancel, JobContext};
use crate::model::fitted::on_cpu;
use crate::spec::Problems;
pub use decision_tree::DecisionTree;
use feature_columns::FeatureColumns;
pub use forest::{ForestSpec, RandomForest};
pub use logistic::{LogisticRegression, LogisticSpec};
#[cfg(feature = "neural")]
pub use network::{NetworkClassifier, NetworkClassifierSpec};
pub use tree::{Criterion, TreeSpec};

/// The features of examples: rows of a matrix, for as many fits as there are.
pub struct ExampleFeatures {
    matrix: Arc<Matrix>,
    rows: Vec<u32>,
    /// The same by column, once a fit has needed them so.
    columns: OnceLock<FeatureColumns>,
}

impl ExampleFeatures {
    /// The features in these rows of the matrix.
    #[must_use]
    pub fn new(matrix: Arc<Matrix>, rows: Vec<u32>) -> Self {
        Self { matrix, rows, columns: OnceLock::new() }
    }

    /// The matrix.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// The row of each example in the matrix.
    #[must_use]
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The features by column, which the first fit that needs them copies.
    fn columns(&self) -> &FeatureColumns {
        self.columns.get_or_init(|| FeatureColumns::from_rows(&self.matrix, &self.rows))
    }
}

/// Rows of features with soft targets and weights.
#[derive(Clone, Copy)]
pub struct Examples<'a> {
    /// The features.
    pub features: &'a ExampleFeatures,
    /// P(class) of each example, `[example, class]`; each row sums to 1.
    pub targets: &'a [f64],
    /// The weight of each example, not negative.
    pub weights: &'a [f64],
    /// The number of classes.
    pub n_classes: usize,
}

impl<'a> Examples<'a> {
    /// The number of examples.
    fn len(&self) -> usize {
        self.features.rows.len()
    }

    /// The number of features of an example.
    fn width(&self) -> usize {
        self.features.matrix.width()
    }

    /// The target of the `i`-th example.
    #[must_use]
    pub fn target(&self, i: usize) -> &'a [f64] {
        &self.targets[i * self.n_classes..(i + 1) * self.n_classes]
    }

    /// The sum of all weights.
    #[must_use]
    pub fn total_weight(&self) -> f64 {
        self.weights.iter().sum()
    }

    /// Calls `add(example, row, buffer, sums)` for every example, with a buffer of `n_buffer` numbers to write to, and
    /// returns the `n` sums. A fixed number of ranges of examples is summed in order, so that the result does not depend on
    /// the number of threads.
    fn sum(
        &self,
        n: usize,
        n_buffer: usize,
        add: impl Fn(usize, &[f32], &mut [f64], &mut [f64]) + Sync,
    ) -> Vec<f64> {
        let ranges = ranges_of_instances(self.len(), MAX_RANGES).with_max_len(1);
        let sums = ranges.map(|examples| {
            let (mut sums, mut row) = (vec![0.0; n], vec![0.0; self.width()]);
            let mut buffer = vec![0.0; n_buffer];
            for i in examples {
                self.features.matrix.read(self.features.rows[i] as usize, &mut row);
                add(i, &row, &mut buffer, &mut sums);
            }
            sums
        });
        let parts: Vec<Vec<f64>> = sums.collect();
        let mut all = vec![0.0; n];
        for part in &parts {
            all.iter_mut().zip(part).for_each(|(all, part)| *all += part);
        }
        all
    }
}

/// A classifier of rows of features, for a fixed number of features and classes.
pub trait Classifier: Send + Sync {
    /// Learns from examples, of which at least one has a positive weight. The result depends on the examples, on what
    /// was learned before, and on the seed of the run; not on the number of threads.
    ///
    /// # Errors
    /// When the run is cancelled, or the examples or what is learned do not fit in memory.
    fn fit(&mut self, examples: Examples<'_>, job: &JobContext) -> Result<()>;

    /// Writes P(class) of rows of a matrix into `p`, `[row, class]`; uniform before the first fit.
    ///
    /// # Errors
    /// When the run is cancelled, or the device fails.
    fn predict(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64], cancel: &Cancel) -> Result<()>;

    /// P(class) of the examples of the last fit, `[example, class]`, each from what was learned without the example;
    /// `None` for a classifier that predicts its examples as it predicts other rows.
    fn examples_p(&self) -> Option<&[f64]> {
        None
    }

    /// The logarithm of the prior of what was learned, up to a constant: the term that a fit adds to the weighted
    /// log-likelihood of the targets when it maximises; 0 for a classifier without one.
    fn log_prior(&self) -> f64 {
        0.0
    }

    /// Adds what was learned to a snapshot.
    ///
    /// # Errors
    /// When the device fails.
    fn save(&self, to: &mut Snapshot) -> Result<()>;

    /// Takes what was learned from a snapshot, to predict `n_rows` rows: a network may choose its device by them.
    ///
    /// # Errors
    /// When the snapshot is that of another classifier, or of another number of features or classes, or the device
    /// cannot be used.
    fn load(&mut self, from: &Snapshot, n_rows: usize, job: &JobContext) -> Result<()>;

    /// Adds what the next fit starts with to a checkpoint: by default, what was learned.
    ///
    /// # Errors
    /// When the device fails.
    fn save_state(&self, to: &mut Snapshot) -> Result<()> {
        self.save(to)
    }

    /// Takes what the next fit starts with from a checkpoint, so that it gives the same bits as without an interruption.
    ///
    /// # Errors
    /// As [`Classifier::load`].
    fn load_state(&mut self, from: &Snapshot, job: &JobContext) -> Result<()> {
        // The next fit comes before any prediction.
        self.load(from, 0, job)
    }

    /// The epochs that further fits still train, for a classifier whose training has an end: fits after it change
    /// nothing. `None` for a classifier that each fit trains to the end.
    fn epochs_left(&self) -> Option<u32> {
        None
    }

    /// The device of the last fit, or of what was loaded.
    fn device(&self) -> String {
        on_cpu()
    }

    /// The modules of a network in PyTorch's terms, for the description of a saved model; `None` for a classifier that is
    /// no network.
    fn modules(&self) -> Option<Value> {
        None
    }
}

/// Writes P(class) of rows of a matrix into `p`, `[row, class]`, where `predict_row(features, p)` computes one row.
fn predict_rows(
    matrix: &Matrix,
    rows: &[u32],
    p: &mut [f64],
    cancel: &Cancel,
    predict_row: impl Fn(&[f32], &mut [f64]) + Sync,
) -> Result<()> {
    let n_classes = p.len() / rows.len().max(1);
    let blocks = p
        .par_chunks_mut((ITEMS_PER_BLOCK * n_classes).max(1))
        .zip(rows.par_chunks(ITEMS_PER_BLOCK));
    blocks.try_for_each(|(p, rows)| {
        cancel.check()?;
        let mut features = vec![0.0; matrix.width()];
        for (p, row) in p.chunks_exact_mut(n_classes.max(1)).zip(rows) {
            matrix.read(*row as usize, &mut features);
            predict_row(&features, p);
        }
        Ok(())
    })
}

/// The kind of a classifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClassifierKind {
    /// Multinomial logistic regression on standardised features.
    #[default]
    LogisticRegression,
    /// A decision tree (CART).
    DecisionTree,
    /// A random forest.
    RandomForest,
    /// A network.
    #[cfg(feature = "neural")]
    Network,
}

/// A classifier and its settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierSpec {
    /// The kind of classifier; only the section of this kind may be set.
    pub kind: ClassifierKind,
    /// The settings of `kind = "logistic_regression"`.
    pub logistic_regression: LogisticSpec,
    /// The settings of `kind = "decision_tree"`.
    pub decision_tree: TreeSpec,
    /// The settings of `kind = "random_forest"`.
    pub random_forest: ForestSpec,
    /// The settings of `kind = "network"`.
    #[cfg(feature = "neural")]
    pub network: NetworkClassifierSpec,
}

impl ClassifierSpec {
    /// The classifier that has learned nothing yet, for rows of features of these axes.
    #[must_use]
    pub fn build(&self, axes: &[usize], n_classes: usize) -> Box<dyn Classifier> {
        let (features, classes) = (axes.iter().product(), n_classes);
        match self.kind {
            ClassifierKind::LogisticRegression => {
                let spec = self.logistic_regression.clone();
                Box::new(LogisticRegression::new(spec, features, classes))
            }
            ClassifierKind::DecisionTree => {
                Box::new(DecisionTree::new(self.decision_tree.clone(), features, classes))
            }
            ClassifierKind::RandomForest => {
                Box::new(RandomForest::new(self.random_forest.clone(), features, classes))
            }
            #[cfg(feature = "neural")]
            ClassifierKind::Network => {
                Box::new(NetworkClassifier::new(self.network.clone(), axes, classes))
            }
        }
    }

    /// The device that the settings name; `None` for a kind that computes on the CPU only.
    pub fn device_mut(&mut self) -> Option<&mut String> {
        match self.kind {
            #[cfg(feature = "neural")]
            ClassifierKind::Network => Some(&mut self.network.device),
            _ => None,
        }
    }

    /// Whether a fit grows trees, which is no maximum of the likelihood: rounds of them may go around in circles.
    #[must_use]
    pub fn grows_trees(&self) -> bool {
        matches!(self.kind, ClassifierKind::DecisionTree | ClassifierKind::RandomForest)
    }

    /// The number of fits until the classifier is trained.
    #[must_use]
    pub fn n_fits(&self) -> u32 {
        match self.kind {
            #[cfg(feature = "neural")]
            ClassifierKind::Network => self.network.n_fits(),
            _ => 1,
        }
    }

    /// Adds a problem for every section that is set, but belongs to another kind, and the broken rules of a network.
    pub fn check(&self, location: &str, problems: &mut Problems) {
        let plain = Self::default();
        let sections = [
            (
                ClassifierKind::LogisticRegression,
                "logistic_regression",
                self.logistic_regression != plain.logistic_regression,
            ),
            (
                ClassifierKind::DecisionTree,
                "decision_tree",
                self.decision_tree != plain.decision_tree,
            ),
            (
                ClassifierKind::RandomForest,
                "random_forest",
                self.random_forest != plain.random_forest,
            ),
            #[cfg(feature = "neural")]
            (ClassifierKind::Network, "network", self.network != plain.network),
        ];
        for (_, section, _) in sections.iter().filter(|(kind, _, set)| *set && *kind != self.kind) {
            problems.push(
                Problem::new(format!("these settings are those of a `{section}`"))
                    .at(format!("{location}.{section}"))
                    .help(format!("set kind = \"{section}\", or leave the section out")),
            );
        }
        #[cfg(feature = "neural")]
        if self.kind == ClassifierKind::Network {
            self.network.check(&format!("{location}.network"), problems);
        }
    }
}
