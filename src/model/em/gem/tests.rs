//! One round by hand, every classifier, and degenerate crowds.

use super::*;
use crate::model::classifier::{ClassifierKind, ForestSpec, LogisticSpec};
use crate::model::posterior::best;
use crate::testing::synth::CrowdShape;
use crate::testing::{annotations, described, tiny};

const KINDS: [ClassifierKind; 3] = [
    ClassifierKind::LogisticRegression,
    ClassifierKind::DecisionTree,
    ClassifierKind::RandomForest,
];

/// Features of one number for each instance; none for an instance without a number.
fn one_feature(a: &Annotations, values: &[Option<f32>]) -> Described {
    let known: Vec<f32> = values.iter().flatten().copied().collect();
    let mut described = described(a);
    described.features.matrix = std::sync::Arc::new(Matrix::from_rows(1, &known));
    let mut row = 0;
    described.row_of_instance = values
        .iter()
        .map(|value| {
            value.is_some().then(|| {
                row += 1;
                row - 1
            })
        })
        .collect();
    described
}

/// Without a penalty, a regression on a feature of two values gives the shares of the targets at each. Instances 0, 1
/// have the feature 0: both annotators call 0 `a`; of 1, the first says `a`, the second `b`. Instances 2, 3 have the
/// feature 1: both call 2 `b`, and nobody annotates 3. Instance 4 has no features; the first annotator calls it `a`.
///
/// The targets are (1, 0), (1/2, 1/2), (0, 1) and, for 4, (1, 0), so that p = (3/4, 1/4) for 0 and 1, and (0, 1) for 2
/// and 3. The counts of (`a`, `b`) are, for the first annotator, (2.5, 0) given `a` and (0.5, 1) given `b`; for the
/// second one (1, 0.5) and (0, 1.5).
// keys: gem.smoothing, gem.diagonal
#[test]
fn one_round_by_hand() {
    let rows = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 1), (2, 1, 1), (4, 0, 0)];
    let a = tiny(2, &rows);
    let described = one_feature(&a, &[Some(0.0), Some(0.0), Some(1.0), Some(1.0), None]);
    let regression = LogisticSpec { l2: 0.0, ..LogisticSpec::default() };
    let classifier =
        ClassifierSpec { logistic_regression: regression, ..ClassifierSpec::default() };
    // (smoothing, diagonal), the first annotator's matrix, the second's
    let cases = [
        ((0.5, 0.0), [[3.0 / 3.5, 0.5 / 3.5], [0.4, 0.6]], [[0.6, 0.4], [0.2, 0.8]]),
        (
            (0.5, 0.5),
            [[3.5 / 4.0, 0.5 / 4.0], [1.0 / 3.0, 2.0 / 3.0]],
            [[2.0 / 3.0, 1.0 / 3.0], [0.5 / 3.0, 2.5 / 3.0]],
        ),
    ];
    for ((smoothing, diagonal), first, second) in cases {
        let stop = StopRule { max_iter: 1, tol: 0.0, ..StopRule::default() };
        let spec = Gem { smoothing, diagonal, classifier: classifier.clone(), stop };
        let mut run = Run::new(1);
        let evidence = Evidence { annotations: &a, described: Some(&described) };
        let fitted = spec.fit(evidence, &mut run).unwrap();
        let want = |prior: [f64; 2], labels: &[(&[[f64; 2]; 2], usize)]| {
            let joint =
                |k: usize| labels.iter().fold(prior[k], |p, (matrix, label)| p * matrix[k][*label]);
            joint(0) / (joint(0) + joint(1))
        };
        let of_zero = [0.75, 0.25];
        let wanted = [
            want(of_zero, &[(&first, 0), (&second, 0)]),
            want(of_zero, &[(&first, 0), (&second, 1)]),
            0.0,
            0.0,
            want([0.5, 0.5], &[(&first, 0)]),
        ];
        for (i, want) in wanted.into_iter().enumerate() {
            let got = fitted.posterior.row(i)[0];
            assert!((got - want).abs() < 1e-5, "{smoothing} {diagonal} {i}: {got}, not {want}");
        }
        let warned = &run.warnings()[0];
        assert!(warned.contains("1 of 5 annotated instances have no features"), "{warned}");
    }
}

/// A forest's objective may fall, so that the conformance suite's default, a regression, does not stand for it.
#[test]
fn every_classifier_reads_a_crowd_and_is_saved() {
    let drawn = CrowdShape::default().draw(3);
    let dims = Dims { instances: 200, annotators: 12, classes: 3, labels: 3 };
    let a = annotations(dims, &drawn.rows);
    let described = described(&a);
    for kind in KINDS {
        let mut classifier = ClassifierSpec { kind, ..ClassifierSpec::default() };
        if kind == ClassifierKind::RandomForest {
            classifier.random_forest = ForestSpec { trees: 10, ..ForestSpec::default() };
        }
        let spec = Gem { classifier, ..Gem::default() };
        let fit = |threads| {
            let mut run = Run::new(1).with_threads(threads).unwrap();
            let evidence = Evidence { annotations: &a, described: Some(&described) };
            run.pool().install(|| spec.fit(evidence, &mut run)).unwrap()
        };
        let fitted = fit(1);
        let right = drawn.truth.iter().enumerate().filter(|(i, truth)| {
            best(fitted.posterior.row(*i)).is_some_and(|(k, _)| k == **truth as usize)
        });
        let right = right.count();
        assert!(right > 180, "{kind:?}: {right}");
        let four = fit(4);
        assert_eq!(fitted.posterior, four.posterior, "{kind:?}");
        assert_eq!(fitted.model, four.model, "{kind:?}");
        let trained = fitted.model.unwrap();
        let again = predict(
            SavedModel {
                parameters: trained.description["parameters"].clone(),
                sizes: trained.description["sizes"].clone(),
                bytes: &trained.parameters,
                device: None,
            },
            described.matrix(),
            &Run::new(1),
        );
        assert_eq!(fitted.predictions, Some(again.unwrap().classes), "{kind:?}");
    }
}

#[test]
fn single_annotations_are_cautioned_against() {
    let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 1, 1)]);
    let described = described(&a);
    let mut run = Run::new(1);
    let evidence = Evidence { annotations: &a, described: Some(&described) };
    Gem::default().fit(evidence, &mut run).unwrap();
    assert!(run.warnings()[0].contains("no instance has a second annotation"));
    let error = Gem::default().fit((&a).into(), &mut run).unwrap_err().to_string();
    assert!(error.contains("`gem` learns from features"), "{error}");
}

/// An instance without a label that is a class; a single example; a single class; a crowd without any evidence.
#[test]
fn degenerate_crowds_give_no_panic_and_no_nan() {
    for kind in KINDS {
        let classifier = ClassifierSpec { kind, ..ClassifierSpec::default() };
        let spec = Gem { classifier, ..Gem::default() };
        let fit = |a: &Annotations| {
            let described = described(a);
            let evidence = Evidence { annotations: a, described: Some(&described) };
            spec.fit(evidence, &mut Run::new(1))
        };
        for a in [
            tiny(2, &[(0, 0, 2), (1, 0, 0), (1, 1, 1), (2, 1, 1)]),
            tiny(2, &[(0, 0, 1)]),
            tiny(1, &[(0, 0, 0), (1, 0, 0), (1, 1, 0)]),
        ] {
            let fitted = fit(&a).unwrap();
            assert_eq!(fitted.not_finite(), None, "{kind:?}");
        }
        let error = fit(&tiny(2, &[(0, 0, 2)])).unwrap_err().to_string();
        assert!(error.contains("no annotated instance has features to learn from"), "{error}");
    }
}
