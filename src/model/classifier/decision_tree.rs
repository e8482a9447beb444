//! The classifier that is one decision tree.

use super::growth::{Growth, check_memory};
use super::tree::{Tree, TreeSpec, load, save};
use super::{Classifier, Examples, predict_rows};
use crate::error::Result;
use crate::frame::Matrix;
use crate::job_context::{Cancel, JobContext};
use crate::model::saved::snapshot::Snapshot;

/// A single tree that considers all features at each split.
///
/// # Why
/// [`Classifier::examples_p`] leaves an example out of its leaf: the target of a single example would come back as its
/// probabilities, and a model that combines them with the annotations behind the target would count these twice.
pub struct DecisionTree {
    spec: TreeSpec,
    n_features: usize,
    n_classes: usize,
    /// `None` before the first fit.
    tree: Option<Tree>,
    /// P(class) of the examples of the last fit without their own targets, `[example, class]`.
    without_own: Option<Vec<f64>>,
}

impl DecisionTree {
    /// A tree that has learned nothing yet.
    #[must_use]
    pub fn new(spec: TreeSpec, n_features: usize, n_classes: usize) -> Self {
        Self { spec, n_features, n_classes, tree: None, without_own: None }
    }

    /// Writes P(class) of a row of features, `[feature]`, into `p`, `[class]`.
    fn predict_row(&self, row: &[f32], p: &mut [f64]) {
        match &self.tree {
            Some(tree) => p.copy_from_slice(tree.leaf(self.n_classes, |feature| row[feature])),
            None => p.fill(1.0 / self.n_classes as f64),
        }
    }
}

impl Classifier for DecisionTree {
    fn fit(&mut self, examples: Examples<'_>, job: &JobContext) -> Result<()> {
        check_memory(examples, &self.spec, 1, job)?;
        let columns = examples.features.columns();
        let growth = Growth { columns, examples, spec: &self.spec, cancel: &job.cancel };
        let tree = growth.tree(examples.weights, None)?;
        self.without_own = Some(growth.without_own(&tree));
        self.tree = Some(tree);
        Ok(())
    }

    fn predict(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64], cancel: &Cancel) -> Result<()> {
        predict_rows(matrix, rows, p, cancel, |row, p| self.predict_row(row, p))
    }

    fn examples_p(&self) -> Option<&[f64]> {
        self.without_own.as_deref()
    }

    fn save(&self, to: &mut Snapshot) -> Result<()> {
        save(self.tree.as_slice(), (self.n_features, self.n_classes), to);
        Ok(())
    }

    fn load(&mut self, from: &Snapshot, _: usize, _: &JobContext) -> Result<()> {
        self.tree = load((self.n_features, self.n_classes), 1, from)?.pop();
        self.without_own = None;
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
    use super::super::tests::{Owned, assert_near, uneven};
    use super::super::tree::{Criterion, LEAF};
    use super::*;

    fn spec() -> TreeSpec {
        TreeSpec { min_leaf_weight: 0.0, min_probability: 0.0, ..TreeSpec::default() }
    }

    fn fit(spec: TreeSpec, data: &Owned) -> (Tree, Vec<f64>) {
        let mut tree = DecisionTree::new(spec, data.matrix.width(), data.n_classes);
        let p = data.fit(&mut tree);
        (tree.tree.unwrap(), p)
    }

    /// The values 1, 2, 4 and 8 with the classes a, a, b, a and the weights 1, 2, 4, 1. The node's purity is (16 +
    /// 16) / 8. At 1.5 the branches have 1 + 25/7, at 3 they have 3 + 17/5, and at 6 they have 25/7 + 1: 3 wins. The
    /// right branch, of b 4 and a 1, is split at 6, unless a leaf needs the weight 2.
    fn four() -> Owned {
        let targets = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]];
        Owned::new(1, &[1.0, 2.0, 4.0, 8.0], targets.as_flattened(), &[1.0, 2.0, 4.0, 1.0])
    }

    // keys: model.classifier.decision_tree.min_leaf_weight, model.classifier.decision_tree.max_depth
    #[test]
    fn splits_and_leaves_of_uneven_weights_are_those_worked_out_by_hand() {
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

    // keys: model.classifier.decision_tree.min_probability, model.classifier.random_forest.tree.min_probability
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
    // keys: model.classifier.decision_tree.criterion, model.classifier.random_forest.tree.criterion
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

    /// Neither feature alone is informative about the exclusive or.
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
            let loaded = DecisionTree::new(spec(), 1, 2).load(&snapshot, 4, &JobContext::new(1));
            assert!(loaded.is_err(), "{n}");
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
            tree.examples_p().unwrap().to_vec()
        };
        let heavy = TreeSpec { min_leaf_weight: 2.0, ..spec() };
        assert_near(&of(heavy, &four()), &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0], 1e-15);
        let single_ones = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 3.0 / 7.0, 4.0 / 7.0];
        let single = TreeSpec { min_leaf_weight: 1.0, ..spec() };
        assert_near(&of(single, &four()), &single_ones, 1e-15);
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

    /// Four examples with one feature and two classes on one thread: columns of 32 bytes, 84 bytes of work, twice four
    /// leaves of 24 bytes of nodes and 16 of probabilities, and 64 bytes of the examples' probabilities: 500, half of
    /// the memory. With at least 4 of the weight 8 in a leaf there are two leaves.
    #[test]
    fn trees_beyond_half_of_the_memory_are_refused() {
        let fit = |bytes, min_leaf_weight| {
            let job = JobContext::new(1).with_memory(bytes).with_threads(1).unwrap();
            let spec = TreeSpec { min_leaf_weight, ..spec() };
            let fit = || DecisionTree::new(spec, 1, 2).fit(four().examples(), &job);
            job.pool().install(fit)
        };
        assert!(fit(1000, 0.0).is_ok() && fit(680, 4.0).is_ok() && fit(679, 4.0).is_err());
        let error = fit(999, 0.0).unwrap_err().to_string();
        assert!(error.contains("engine.memory_limit"), "{error}");
    }
}
