//! Properties of every kind of classifier.

use super::*;
use crate::testing::assert_close;

/// The section of the settings in a pipeline file.
const SECTION: &str = "model.classifier";

/// Examples with their data.
pub(super) struct Owned {
    pub(super) matrix: Arc<Matrix>,
    pub(super) rows: Vec<u32>,
    pub(super) targets: Vec<f64>,
    pub(super) weights: Vec<f64>,
    pub(super) n_classes: usize,
    features: ExampleFeatures,
}

impl Owned {
    /// The rows of a matrix of this width, in order.
    pub(super) fn new(width: usize, features: &[f32], targets: &[f64], weights: &[f64]) -> Self {
        let matrix = Arc::new(Matrix::from_rows(width, features));
        let rows = (0..weights.len() as u32).collect();
        Self::of_rows(matrix, rows, targets.to_vec(), weights.to_vec())
    }

    fn of_rows(matrix: Arc<Matrix>, rows: Vec<u32>, targets: Vec<f64>, weights: Vec<f64>) -> Self {
        let features = ExampleFeatures::new(Arc::clone(&matrix), rows.clone());
        let n_classes = targets.len() / weights.len();
        Self { matrix, rows, targets, weights, n_classes, features }
    }

    /// Every example once for each of its classes, with the class's share of the weight.
    pub(super) fn split(&self) -> Self {
        let n = self.n_classes;
        let one_hot = |k: usize| (0..n).map(move |other| f64::from(u8::from(other == k)));
        let each = self.rows.iter().flat_map(|row| (0..n).map(move |_| *row));
        let targets = self.rows.iter().flat_map(|_| (0..n).flat_map(one_hot));
        let weight = |i: usize| self.weights[i / n] * self.targets[i];
        let weights = (0..self.targets.len()).map(weight).collect();
        Self::of_rows(Arc::clone(&self.matrix), each.collect(), targets.collect(), weights)
    }

    /// Every example twice, with half of its weight each time.
    pub(super) fn doubled(&self) -> Self {
        let rows = self.rows.repeat(2);
        let weights = self.weights.repeat(2).iter().map(|weight| weight / 2.0).collect();
        Self::of_rows(Arc::clone(&self.matrix), rows, self.targets.repeat(2), weights)
    }

    pub(super) fn examples(&self) -> Examples<'_> {
        let Self { features, targets, weights, n_classes, .. } = self;
        Examples { features, targets, weights, n_classes: *n_classes }
    }

    /// P(class) of every row of the matrix, after a fit.
    pub(super) fn fit(&self, classifier: &mut dyn Classifier) -> Vec<f64> {
        classifier.fit(self.examples(), &JobContext::new(1)).unwrap();
        let rows: Vec<u32> = (0..self.matrix.len() as u32).collect();
        let mut p = vec![0.0; rows.len() * self.n_classes];
        classifier.predict(&self.matrix, &rows, &mut p, &Cancel::default()).unwrap();
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

#[track_caller]
pub(super) fn assert_near(got: &[f64], want: &[f64], tolerance: f64) {
    assert_close(got, want, tolerance, "number");
}

/// Every kind, with trees that are deep for few examples, and a network that is trained in one fit.
fn kinds() -> Vec<ClassifierSpec> {
    let tree = TreeSpec { min_leaf_weight: 0.5, ..TreeSpec::default() };
    let forest = ForestSpec { trees: 9, tree: tree.clone(), ..ForestSpec::default() };
    let plain = ClassifierSpec::default();
    vec![
        plain.clone(),
        ClassifierSpec { kind: ClassifierKind::DecisionTree, decision_tree: tree, ..plain.clone() },
        ClassifierSpec {
            kind: ClassifierKind::RandomForest,
            random_forest: forest,
            ..plain.clone()
        },
        #[cfg(feature = "neural")]
        ClassifierSpec { kind: ClassifierKind::Network, network: small_network(), ..plain },
    ]
}

/// A network that learns few examples in one fit.
#[cfg(feature = "neural")]
fn small_network() -> NetworkClassifierSpec {
    use crate::model::neural::{BackboneSpec, OptimiserSpec};
    let backbone = BackboneSpec {
        hidden: vec![8],
        dropout: 0.0,
        batch_norm: false,
        ..BackboneSpec::default()
    };
    NetworkClassifierSpec {
        device: "cpu".to_owned(),
        backbone,
        epochs: 30,
        epochs_per_fit: 30,
        optimiser: OptimiserSpec { learning_rate: 0.03, ..OptimiserSpec::default() },
        ..NetworkClassifierSpec::default()
    }
}

#[test]
fn a_saved_classifier_predicts_the_same_and_only_fits_its_own_sizes() {
    let data = uneven();
    for spec in kinds() {
        let mut fitted = spec.build(&[2], 3);
        let p = data.fit(fitted.as_mut());
        let mut snapshot = Snapshot::default();
        fitted.save(&mut snapshot).unwrap();
        let mut loaded = spec.build(&[2], 3);
        loaded.load(&snapshot, 6, &JobContext::new(1)).unwrap();
        let mut again = vec![0.0; p.len()];
        loaded.predict(&data.matrix, &data.rows, &mut again, &Cancel::default()).unwrap();
        assert_eq!(p, again, "{:?}", spec.kind);
        let examples_p = fitted.examples_p().map(<[f64]>::len);
        let is_of_trees =
            matches!(spec.kind, ClassifierKind::DecisionTree | ClassifierKind::RandomForest);
        assert_eq!(examples_p, is_of_trees.then_some(18), "{:?}", spec.kind);
        assert_eq!(loaded.examples_p(), None, "{:?}", spec.kind);
        assert!(p[9] > 0.5, "{:?} has learned: {p:?}", spec.kind);
        for (n_features, n_classes) in [(1, 3), (2, 2)] {
            let mut other = spec.build(&[n_features], n_classes);
            let misfit = other.load(&snapshot, 6, &JobContext::new(1));
            assert!(misfit.is_err(), "{:?} {n_features} {n_classes}", spec.kind);
        }
    }
}

#[test]
fn a_classifier_that_has_learned_nothing_finds_all_classes_equal() {
    let data = uneven();
    for spec in kinds() {
        let (classifier, mut p) = (spec.build(&[2], 3), vec![0.0; 18]);
        classifier.predict(&data.matrix, &data.rows, &mut p, &Cancel::default()).unwrap();
        assert_near(&p, &[1.0 / 3.0; 18], 1e-15);
    }
}

/// Features of 5000 rows, of which each range has more than a block.
#[test]
fn one_thread_two_and_four_give_the_same_bits() {
    let n = 5000;
    let features: Vec<f32> = (0..2 * n).map(|i| ((i * 7919) % 1009) as f32 / 31.0).collect();
    let p = |i: usize| (1.0 + ((i * 31) % 17) as f64) / 19.0;
    let targets: Vec<f64> = (0..n).flat_map(|i| [p(i), 1.0 - p(i)]).collect();
    let weights: Vec<f64> = (0..n).map(|i| 0.1 + ((i * 13) % 7) as f64).collect();
    let data = Owned::new(2, &features, &targets, &weights);
    for spec in kinds() {
        let on = |threads| {
            let job = JobContext::new(1).with_threads(threads).unwrap();
            job.pool().install(|| data.fit(spec.build(&[2], 2).as_mut()))
        };
        let one = on(1);
        assert!(one == on(2) && one == on(4), "{:?}", spec.kind);
    }
}

// keys: model.classifier.kind
#[test]
fn settings_of_another_kind_are_refused() {
    for kind in kinds().into_iter().map(|spec| spec.kind) {
        let of = |spec: ClassifierSpec| {
            let mut problems = Problems::default();
            ClassifierSpec { kind, ..spec }.check(SECTION, &mut problems);
            problems.into_result().map_err(|e| e.to_string())
        };
        assert!(of(ClassifierSpec::default()).is_ok());
        let regression = LogisticSpec { l2: 3.0, ..LogisticSpec::default() };
        let regression =
            ClassifierSpec { logistic_regression: regression, ..ClassifierSpec::default() };
        let own = ClassifierKind::LogisticRegression;
        let sections = kinds().into_iter().filter(|spec| spec.kind != own);
        for spec in sections.chain([ClassifierSpec { kind: own, ..regression }]) {
            let section = serde_json::to_value(spec.kind).unwrap();
            let is_own = spec.kind == kind;
            let checked = of(spec);
            assert_eq!(checked.is_ok(), is_own, "{section}: {checked:?}");
            let Err(error) = checked else { continue };
            let location = format!("{SECTION}.{}", section.as_str().unwrap());
            assert!(error.contains(&location), "{error}");
        }
    }
}
