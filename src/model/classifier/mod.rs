//! Classifiers of feature rows that are not networks, for models that alternate between labels and a classifier.
//!
//! A [`Classifier`] learns from [`Examples`]: rows of features with soft targets and weights. One with the target (0.3,
//! 0.7) and the weight 2 is the same as two with the weights 0.6 and 1.4, of which each has one class; a weight of 2 is
//! the same as the example twice. A classifier may be fitted again and again: [`Classifier::fit`] may start at what it
//! learned before, until [`Classifier::reset`].
//!
//! # Adding a classifier
//! 1. Write one file with a spec struct and a struct that implements [`Classifier`].
//! 2. Add its section and its word to [`ClassifierSpec`], and its line to [`ClassifierSpec::build`].
//!
//! # Why
//! Every other learner of this crate is a network. A small table of features is learned better by a logistic regression
//! or by trees: they have few settings, give the same result on every machine, and take seconds.

mod forest;
mod growth;
mod logistic;
mod tree;

use std::ops::Range;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, Result};
use crate::frame::{BLOCK, Matrix};
use crate::model::snapshot::Snapshot;
use crate::run::Run;
use crate::spec::Problems;
pub use forest::{ForestSpec, RandomForest};
pub use logistic::{LogisticRegression, LogisticSpec};
pub use tree::{Criterion, DecisionTree, TreeSpec};

/// The number of ranges of examples that are summed separately, and then in order.
const RANGES: usize = 16;

/// Rows of features with soft targets and weights.
#[derive(Clone, Copy)]
pub struct Examples<'a> {
    /// The features.
    pub matrix: &'a Matrix,
    /// The row of each example in the matrix.
    pub rows: &'a [u32],
    /// P(class) of each example, `[example, class]`; each row sums to 1.
    pub targets: &'a [f64],
    /// The weight of each example, not negative.
    pub weights: &'a [f64],
    /// The number of classes.
    pub n_classes: usize,
}

impl<'a> Examples<'a> {
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

    /// Calls `add(example, row, sums)` for every example, and returns the `n` sums. A fixed number of ranges of
    /// examples is summed in order, so that the result does not depend on the number of threads.
    fn sum(&self, n: usize, add: impl Fn(usize, &[f32], &mut [f64]) + Sync) -> Vec<f64> {
        let bound = |range: usize| range * self.rows.len() / RANGES;
        let sum_of = |examples: Range<usize>| {
            let (mut sums, mut row) = (vec![0.0; n], vec![0.0; self.matrix.width()]);
            for i in examples {
                self.matrix.read(self.rows[i] as usize, &mut row);
                add(i, &row, &mut sums);
            }
            sums
        };
        let ranges = (0..RANGES).into_par_iter().with_max_len(1);
        let parts: Vec<Vec<f64>> =
            ranges.map(|range| sum_of(bound(range)..bound(range + 1))).collect();
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
    /// was learned since the last reset, and on the seed of the run; not on the number of threads.
    ///
    /// # Errors
    /// When the run is cancelled, or the examples do not fit in memory.
    fn fit(&mut self, examples: Examples<'_>, run: &Run) -> Result<()>;

    /// Forgets what was learned.
    fn reset(&mut self);

    /// Writes P(class) of a row of features, `[feature]`, into `p`, `[class]`; uniform before the first fit.
    fn predict_row(&self, row: &[f32], p: &mut [f64]);

    /// Writes P(class) of the examples of the last fit, given the same matrix and rows, into `p`, `[example, class]`; where
    /// the classifier can tell, from what it learned without the example.
    fn predict_examples(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64]) {
        self.predict(matrix, rows, p);
    }

    /// The logarithm of the prior of what was learned, up to a constant: the term that a fit adds to the weighted
    /// log-likelihood of the targets when it maximises; 0 for a classifier without one.
    fn log_prior(&self) -> f64 {
        0.0
    }

    /// Adds what was learned to a snapshot.
    fn save(&self, to: &mut Snapshot);

    /// Takes what was learned from a snapshot.
    ///
    /// # Errors
    /// When the snapshot is that of another classifier, or of another number of features or classes.
    fn load(&mut self, from: &Snapshot) -> Result<()>;

    /// P(class) of rows of a matrix, `[row, class]`.
    fn predict(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64]) {
        let n_classes = p.len() / rows.len().max(1);
        let blocks = p.par_chunks_mut((BLOCK * n_classes).max(1)).zip(rows.par_chunks(BLOCK));
        blocks.for_each(|(p, rows)| {
            let mut features = vec![0.0; matrix.width()];
            for (p, row) in p.chunks_exact_mut(n_classes.max(1)).zip(rows) {
                matrix.read(*row as usize, &mut features);
                self.predict_row(&features, p);
            }
        });
    }
}

/// The kind of a classifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassifierKind {
    /// Multinomial logistic regression on standardised features.
    #[default]
    LogisticRegression,
    /// A decision tree (CART).
    DecisionTree,
    /// A random forest.
    RandomForest,
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
}

impl ClassifierSpec {
    /// The classifier that has learned nothing yet.
    #[must_use]
    pub fn build(&self, n_features: usize, n_classes: usize) -> Box<dyn Classifier> {
        let (features, classes) = (n_features, n_classes);
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
        }
    }

    /// Adds a problem for every section that is set, but belongs to another kind.
    pub fn check(&self, place: &str, problems: &mut Problems) {
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
        ];
        for (_, section, _) in sections.iter().filter(|(kind, _, set)| *set && *kind != self.kind) {
            problems.push(
                Problem::new(format!("these settings are those of a `{section}`"))
                    .at(format!("{place}.{section}"))
                    .help(format!("set kind = \"{section}\", or leave the section out")),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples with their data.
    pub(super) struct Owned {
        pub(super) matrix: Matrix,
        pub(super) rows: Vec<u32>,
        pub(super) targets: Vec<f64>,
        pub(super) weights: Vec<f64>,
        pub(super) n_classes: usize,
    }

    impl Owned {
        /// The rows of a matrix of this width, in order.
        pub(super) fn new(
            width: usize,
            features: &[f32],
            targets: &[f64],
            weights: &[f64],
        ) -> Self {
            Self {
                matrix: Matrix::from_rows(width, features),
                rows: (0..weights.len() as u32).collect(),
                targets: targets.to_vec(),
                weights: weights.to_vec(),
                n_classes: targets.len() / weights.len(),
            }
        }

        /// Every example once for each of its classes, with the class's share of the weight.
        pub(super) fn split(&self) -> Self {
            let n = self.n_classes;
            let one_hot = |k: usize| (0..n).map(move |other| f64::from(u8::from(other == k)));
            let each = self.rows.iter().flat_map(|row| (0..n).map(move |_| *row));
            let targets = self.rows.iter().flat_map(|_| (0..n).flat_map(one_hot));
            let weight = |i: usize| self.weights[i / n] * self.targets[i];
            Self {
                matrix: self.matrix_again(),
                rows: each.collect(),
                targets: targets.collect(),
                weights: (0..self.targets.len()).map(weight).collect(),
                n_classes: n,
            }
        }

        /// Every example twice, with half of its weight each time.
        pub(super) fn doubled(&self) -> Self {
            Self {
                matrix: self.matrix_again(),
                rows: [&self.rows[..], &self.rows].concat(),
                targets: [&self.targets[..], &self.targets].concat(),
                weights: [&self.weights[..], &self.weights]
                    .concat()
                    .iter()
                    .map(|w| w / 2.0)
                    .collect(),
                n_classes: self.n_classes,
            }
        }

        fn matrix_again(&self) -> Matrix {
            let width = self.matrix.width();
            let mut values = vec![0.0; self.matrix.len() * width];
            for (row, values) in values.chunks_exact_mut(width).enumerate() {
                self.matrix.read(row, values);
            }
            Matrix::from_rows(width, &values)
        }

        pub(super) fn examples(&self) -> Examples<'_> {
            let Self { matrix, rows, targets, weights, n_classes } = self;
            Examples { matrix, rows, targets, weights, n_classes: *n_classes }
        }

        /// P(class) of every row of the matrix, after a fit from the start.
        pub(super) fn fit(&self, classifier: &mut dyn Classifier) -> Vec<f64> {
            classifier.reset();
            classifier.fit(self.examples(), &Run::new(1)).unwrap();
            let rows: Vec<u32> = (0..self.matrix.len() as u32).collect();
            let mut p = vec![0.0; rows.len() * self.n_classes];
            classifier.predict(&self.matrix, &rows, &mut p);
            p
        }
    }

    /// Six examples with uneven weights and targets of three classes.
    pub(super) fn uneven() -> Owned {
        let features = [0.5, 10.0, 1.5, 30.0, -1.0, 20.0, 2.0, -10.0, 0.0, 5.0, 3.0, 25.0];
        let targets = [
            [0.7, 0.2, 0.1],
            [0.1, 0.8, 0.1],
            [0.25, 0.25, 0.5],
            [1.0, 0.0, 0.0],
            [0.0, 0.4, 0.6],
            [0.0, 1.0, 0.0],
        ];
        Owned::new(2, &features, targets.as_flattened(), &[1.0, 2.0, 0.5, 1.5, 3.0, 0.25])
    }

    pub(super) fn assert_near(got: &[f64], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len());
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((got - want).abs() <= tolerance, "{at}: {got} is not {want}");
        }
    }

    /// Every kind, with trees that are deep for few examples.
    fn kinds() -> Vec<ClassifierSpec> {
        let tree = TreeSpec { min_leaf_weight: 0.5, ..TreeSpec::default() };
        [
            ClassifierKind::LogisticRegression,
            ClassifierKind::DecisionTree,
            ClassifierKind::RandomForest,
        ]
        .map(|kind| ClassifierSpec {
            kind,
            decision_tree: tree.clone(),
            random_forest: ForestSpec { trees: 9, tree: tree.clone(), ..ForestSpec::default() },
            ..ClassifierSpec::default()
        })
        .to_vec()
    }

    #[test]
    fn a_saved_classifier_predicts_the_same_and_only_fits_its_own_sizes() {
        let data = uneven();
        for spec in kinds() {
            let mut fitted = spec.build(2, 3);
            let p = data.fit(fitted.as_mut());
            let mut snapshot = Snapshot::default();
            fitted.save(&mut snapshot);
            let mut loaded = spec.build(2, 3);
            loaded.load(&snapshot).unwrap();
            let mut again = vec![0.0; p.len()];
            loaded.predict(&data.matrix, &data.rows, &mut again);
            assert_eq!(p, again, "{:?}", spec.kind);
            assert!(p[9] > 0.5, "{:?} has learned: {p:?}", spec.kind);
            for (n_features, n_classes) in [(1, 3), (2, 2)] {
                let misfit = spec.build(n_features, n_classes).load(&snapshot);
                assert!(misfit.is_err(), "{:?} {n_features} {n_classes}", spec.kind);
            }
        }
    }

    #[test]
    fn a_classifier_that_has_learned_nothing_finds_all_classes_equal() {
        let data = uneven();
        for spec in kinds() {
            let mut classifier = spec.build(2, 3);
            let mut p = vec![0.0; 18];
            classifier.predict(&data.matrix, &data.rows, &mut p);
            assert_near(&p, &[1.0 / 3.0; 18], 1e-15);
            data.fit(classifier.as_mut());
            classifier.reset();
            classifier.predict(&data.matrix, &data.rows, &mut p);
            assert_near(&p, &[1.0 / 3.0; 18], 1e-15);
        }
    }

    /// Features of 5000 rows, of which each range has more than a block.
    #[test]
    fn one_thread_and_four_give_the_same_bits() {
        let n = 5000;
        let features: Vec<f32> = (0..2 * n).map(|i| ((i * 7919) % 1009) as f32 / 31.0).collect();
        let p = |i: usize| (1.0 + ((i * 31) % 17) as f64) / 19.0;
        let targets: Vec<f64> = (0..n).flat_map(|i| [p(i), 1.0 - p(i)]).collect();
        let weights: Vec<f64> = (0..n).map(|i| 0.1 + ((i * 13) % 7) as f64).collect();
        let data = Owned::new(2, &features, &targets, &weights);
        for spec in kinds() {
            let on = |threads| {
                let run = Run::new(1).with_threads(threads).unwrap();
                run.pool().install(|| data.fit(spec.build(2, 2).as_mut()))
            };
            assert_eq!(on(1), on(4), "{:?}", spec.kind);
        }
    }

    // keys: gem.classifier.kind
    #[test]
    fn settings_of_another_kind_are_refused() {
        for kind in kinds().into_iter().map(|spec| spec.kind) {
            let of = |spec: ClassifierSpec| {
                let mut problems = Problems::default();
                ClassifierSpec { kind, ..spec }.check("model.classifier", &mut problems);
                problems.into_result().map_err(|e| e.to_string())
            };
            assert!(of(ClassifierSpec::default()).is_ok());
            let tree = TreeSpec { max_depth: 3, ..TreeSpec::default() };
            let decision_tree =
                of(ClassifierSpec { decision_tree: tree, ..ClassifierSpec::default() });
            assert_eq!(decision_tree.is_ok(), kind == ClassifierKind::DecisionTree);
            let Err(error) = decision_tree else { continue };
            assert!(error.contains("model.classifier.decision_tree"), "{error}");
        }
    }
}
