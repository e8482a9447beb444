//! One round by hand, rounds against a naive implementation, every classifier, and degenerate crowds.

#[cfg(feature = "neural")]
mod network;
mod resume;
mod trees;
mod weights;

use serde_json::json;

use super::*;
use crate::frame::Matrix;
use crate::model::SavedModel;
use crate::model::classifier::{ClassifierKind, LogisticSpec, TreeSpec};
use crate::model::posterior::best;
use crate::testing::dense::{self, Rows};
use crate::testing::synth::CrowdShape;
use crate::testing::{annotations, iterations, tiny, with_features};

const CLASSIFIERS: &[ClassifierKind] = &[
    ClassifierKind::LogisticRegression,
    ClassifierKind::DecisionTree,
    ClassifierKind::RandomForest,
    #[cfg(feature = "neural")]
    ClassifierKind::Network,
];

// keys: model.preset
#[test]
fn the_paper_has_logistic_regression_and_matrices_without_a_prior() {
    let load = |parameters: serde_json::Value| KINDS[0].load(parameters).unwrap().parameters;
    let paper = load(json!({"preset": "paper"}));
    let regression = json!({"l2": 1.0, "max_iter": 100});
    let classifier = &paper["classifier"];
    assert_eq!(classifier["kind"], "logistic_regression");
    assert_eq!(classifier["logistic_regression"], regression);
    let matrices = (&paper["smoothing"], &paper["diagonal"]);
    assert_eq!(matrices, (&json!(0.0), &json!(0.0)));
    assert_eq!(load(json!({"preset": "paper", "smoothing": 0.5}))["smoothing"], 0.5);
    assert!(KINDS[0].load(json!({"preset": "papre"})).is_err());
}

/// A classifier of this kind that takes little time.
fn small(kind: ClassifierKind) -> ClassifierSpec {
    let mut classifier = ClassifierSpec { kind, ..ClassifierSpec::default() };
    match kind {
        ClassifierKind::RandomForest => classifier.random_forest.trees = 10,
        #[cfg(feature = "neural")]
        ClassifierKind::Network => classifier.network = network::small(),
        _ => {}
    }
    classifier
}

/// Features of one number for each instance; none for an instance without a number.
fn one_feature(a: &Annotations, values: &[Option<f32>]) -> QuestionFeatures {
    let known: Vec<f32> = values.iter().flatten().copied().collect();
    let mut with_features = with_features(a);
    with_features.features.matrix = std::sync::Arc::new(Matrix::from_rows(1, &known));
    let mut row = 0;
    with_features.row_of_instance = values
        .iter()
        .map(|value| {
            value.is_some().then(|| {
                row += 1;
                row - 1
            })
        })
        .collect();
    with_features
}

/// Without a penalty, a regression on a feature of two values gives the shares of the targets at each. Instances 0, 1
/// have the feature 0: both annotators label 0 as `a`; the first labels 1 as `a`, the second as `b`. Instances 2, 3 have the
/// feature 1: both label 2 as `b`, and nobody annotates 3. Instance 4 has no features; the first annotator labels it `a`.
///
/// The targets are (1, 0), (1/2, 1/2), (0, 1) and, for 4, (1, 0), so that p = (3/4, 1/4) for 0 and 1, and (0, 1) for 2
/// and 3. The counts of (`a`, `b`) are, for the first annotator, (2.5, 0) given `a` and (0.5, 1) given `b`; for the
/// second one (1, 0.5) and (0, 1.5).
// keys: gem.smoothing, gem.diagonal
#[test]
fn one_round_gives_the_matrices_worked_out_by_hand() {
    let rows = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 1), (2, 1, 1), (4, 0, 0)];
    let a = tiny(2, &rows);
    let with_features = one_feature(&a, &[Some(0.0), Some(0.0), Some(1.0), Some(1.0), None]);
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
        let stop = iterations(1);
        let classifier = classifier.clone();
        let spec = Gem { smoothing, diagonal, classifier, stop, ..Gem::default() };
        let mut job = JobContext::new(1);
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let fitted = spec.fit(evidence, &mut job).unwrap();
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
        let warned = &job.warnings()[0];
        assert!(warned.contains("1 of 4 annotated instances have no features"), "{warned}");
    }
}

/// Thirty instances of two classes with one feature, three annotators of uneven skill, and labels beyond the classes.
/// Instance 3 has nothing but such a label, 5 and 6 are trusted, of which 6 has no annotations, and 7 has no features.
fn uneven() -> (Annotations, Vec<Option<f32>>) {
    let truth = |i: u32| u32::from(i * 7 % 30 > 12);
    let mut rows = Vec::new();
    for i in (0..30).filter(|i| *i != 3 && *i != 6) {
        for r in (0..3).filter(|r| (i + r) % 4 > 0) {
            let is_wrong = (i * 13 + r * 5) % (7 - 2 * r) == 0;
            rows.push((
                i,
                r,
                if (i + 2 * r) % 11 == 0 { 2 } else { truth(i) ^ u32::from(is_wrong) },
            ));
        }
    }
    rows.push((3, 1, 2));
    rows.sort_unstable();
    let mut a = tiny(2, &rows);
    let trusted = |i: u32| (i == 5 || i == 6).then(|| 1 - truth(i));
    a.trusted = Some((0..30).map(trusted).collect());
    let feature = |i: u32| (i != 7).then_some((i * 7 % 30) as f32 + (i % 5) as f32);
    (a, (0..30).map(feature).collect())
}

/// Ridge regression of two classes by Newton's method: the difference `slope` of the coefficients of a standardised
/// feature, and that of the intercepts. The coefficients are -slope / 2 and slope / 2, and the log-prior is -l2 slope^2
/// / 4.
/// Returns P(second class) of every example, and the log-prior.
fn newton(features: &[f64], second: &[f64], weights: &[f64], l2: f64) -> (Vec<f64>, f64) {
    let mean_of = |values: &[f64]| {
        let sum: f64 = values.iter().zip(weights).map(|(value, weight)| value * weight).sum();
        sum / weights.iter().sum::<f64>()
    };
    let mean = mean_of(features);
    let centred: Vec<f64> = features.iter().map(|value| value - mean).collect();
    let squares: Vec<f64> = centred.iter().map(|value| value * value).collect();
    let deviation = mean_of(&squares).sqrt();
    let scaled: Vec<f64> = centred.iter().map(|value| value / deviation).collect();
    let (mut slope, mut intercept) = (0.0_f64, 0.0_f64);
    let predict = |slope: f64, intercept: f64| -> Vec<f64> {
        scaled.iter().map(|s| 1.0 / (1.0 + (-slope * s - intercept).exp())).collect()
    };
    for _ in 0..50 {
        let (mut gradient, mut hessian) = ([-l2 * slope / 2.0, 0.0], [l2 / 2.0, 0.0, 0.0]);
        for (at, share) in predict(slope, intercept).into_iter().enumerate() {
            let residual = weights[at] * (second[at] - share);
            let curvature = weights[at] * share * (1.0 - share);
            let factor = scaled[at];
            gradient[0] += residual * factor;
            gradient[1] += residual;
            hessian[0] += curvature * factor * factor;
            hessian[1] += curvature * factor;
            hessian[2] += curvature;
        }
        let determinant = hessian[0] * hessian[2] - hessian[1] * hessian[1];
        slope += (hessian[2] * gradient[0] - hessian[1] * gradient[1]) / determinant;
        intercept += (hessian[0] * gradient[1] - hessian[1] * gradient[0]) / determinant;
    }
    (predict(slope, intercept), -l2 * slope * slope / 4.0)
}

/// The rounds of a naive fit on dense arrays: the posteriors of the last, and (log-likelihood, objective) of each.
fn naive(
    a: &Annotations,
    features: &[Option<f32>],
    spec: &Gem,
    rounds: usize,
) -> (Rows, Vec<(f64, f64)>) {
    let model = dense::DenseDawidSkene { smoothing: spec.smoothing, diagonal: spec.diagonal };
    let known: Vec<usize> = (0..features.len()).filter(|i| features[*i].is_some()).collect();
    let x: Vec<f64> = features.iter().flatten().map(|x| f64::from(*x)).collect();
    let is_annotated = |i: usize| a.triples_of_instance(i).len() > 0;
    let has_term = |i: &usize| is_annotated(*i) || a.trusted_class(*i).is_some();
    let weights: Vec<f64> = known.iter().map(|i| if has_term(i) { 1.0 } else { 0.0 }).collect();
    let (mut t, mut values) = (dense::votes(a), Vec::new());
    for _ in 0..rounds {
        let second: Vec<f64> = known.iter().map(|i| t[*i][1]).collect();
        let l2 = spec.classifier.logistic_regression.l2;
        let (p, of_classifier) = newton(&x, &second, &weights, l2);
        let mut prior = vec![vec![0.5, 0.5]; features.len()];
        known.iter().zip(&p).for_each(|(i, p)| prior[*i] = vec![1.0 - p, *p]);
        let (likelihood, of_matrices) = dense::likelihoods(&model, &dense::counts(a, &t));
        let mut value;
        (t, value) = dense::e_step(a, |i| prior[i].clone(), |_, r, k, l| likelihood[r][k][l]);
        for i in (0..features.len()).filter(|i| !is_annotated(*i)) {
            value += a.trusted_class(i).map_or(0.0, |class| prior[i][class as usize].ln());
        }
        values.push((value, value + of_classifier + of_matrices));
    }
    (t, values)
}

/// The trace shows the log-likelihood, and its changes are those of the objective with both log-priors.
// keys: model.classifier.logistic_regression.l2
#[test]
fn rounds_of_a_penalised_regression_are_those_of_a_naive_fit() {
    let (a, features) = uneven();
    let with_features = one_feature(&a, &features);
    for l2 in [0.5, 8.0] {
        let regression = LogisticSpec { l2, ..LogisticSpec::default() };
        let classifier =
            ClassifierSpec { logistic_regression: regression, ..ClassifierSpec::default() };
        let stop = iterations(6);
        let spec = Gem { smoothing: 0.5, diagonal: 0.25, classifier, stop, ..Gem::default() };
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let fitted = spec.fit(evidence, &mut JobContext::new(1)).unwrap();
        let (t, values) = naive(&a, &features, &spec, 6);
        for (round, row) in fitted.trace.iter().enumerate() {
            let (want, objective) = values[round];
            assert!((row.objective - want).abs() < 1e-4, "{l2} {round}: {row:?}, not {want}");
            let Some(change) = row.change else { continue };
            let want = objective - values[round - 1].1;
            assert!((change - want).abs() < 1e-4, "{l2} {round}: {change}, not {want}");
        }
        for (i, want) in t.iter().enumerate() {
            let got = fitted.posterior.row(i);
            assert!((got[1] - want[1]).abs() < 1e-4, "{l2} {i}: {got:?}, not {want:?}");
        }
    }
}

/// With an instance whose only label is no class, and one that is trusted without annotations.
#[test]
fn the_objective_of_a_regression_never_falls() {
    let (a, features) = uneven();
    let with_features = one_feature(&a, &features);
    let stop = iterations(40);
    for l2 in [0.01, 1.0] {
        let regression = LogisticSpec { l2, ..LogisticSpec::default() };
        let classifier =
            ClassifierSpec { logistic_regression: regression, ..ClassifierSpec::default() };
        let spec = Gem { classifier, stop: stop.clone(), ..Gem::default() };
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let fitted = spec.fit(evidence, &mut JobContext::new(1)).unwrap();
        let changes: Vec<f64> = fitted.trace.iter().filter_map(|row| row.change).collect();
        assert!(changes.iter().all(|change| *change > -1e-7), "{l2}: {changes:?}");
        assert!(changes[0] > 0.01 && changes.len() == 39, "{changes:?}");
    }
}

/// A leaf for every instance: with its own target, the tree would give the first round's posteriors back.
#[test]
fn a_tree_does_not_confirm_its_own_posteriors() {
    // Two annotators against one for instance 0, whose feature is like those of the instances of the other class.
    let mut rows = vec![(0, 0, 0), (0, 1, 0), (0, 2, 1)];
    (1..8).for_each(|i| rows.extend((0..3).map(|r| (i, r, u32::from(i < 5)))));
    let a = tiny(2, &rows);
    let features: Vec<_> = (0..8).map(|i| Some(i as f32)).collect();
    let with_features = one_feature(&a, &features);
    let tree = TreeSpec { min_leaf_weight: 1.0, ..TreeSpec::default() };
    let kind = ClassifierKind::DecisionTree;
    let classifier = ClassifierSpec { kind, decision_tree: tree, ..ClassifierSpec::default() };
    let stop = iterations(1);
    let spec = Gem { classifier, stop, ..Gem::default() };
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = spec.fit(evidence, &mut JobContext::new(1)).unwrap();
    // 0 is alone in its leaf, so that the others, of which b are 4 and a are 3, make its prior. Given a (11/3 in all,
    // of 0 2/3) and b (13/3, of 0 1/3), the first two give a with 1 and 1/13, the third gives b with 2/11 and 1.
    let (joint_a, joint_b) = (3.0 / 7.0 * (2.0 / 11.0), 4.0 / 7.0 / (13.0 * 13.0));
    let (got, want) = (fitted.posterior.row(0)[0], joint_a / (joint_a + joint_b));
    assert!((got - want).abs() < 1e-9, "{got}, not {want}");
}

/// A forest's objective may fall, so that the conformance suite's default, a regression, does not stand for it.
#[test]
fn every_classifier_reads_a_crowd_and_is_saved() {
    let drawn = CrowdShape::default().draw(3);
    let dims = Dims { instances: 200, annotators: 12, classes: 3, labels: 3 };
    let a = annotations(dims, &drawn.rows);
    let with_features = with_features(&a);
    for kind in CLASSIFIERS.iter().copied() {
        let spec = Gem { classifier: small(kind), ..Gem::default() };
        let fit = |threads| {
            let mut job = JobContext::new(1).with_threads(threads).unwrap();
            let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
            job.pool().install(|| spec.fit(evidence, &mut job)).unwrap()
        };
        let fitted = fit(1);
        let right = drawn.truth.iter().enumerate().filter(|(i, truth)| {
            best(&fitted.posterior.row(*i)).is_some_and(|(k, _)| k == **truth as usize)
        });
        let right = right.count();
        assert!(right > 180, "{kind:?}: {right}");
        let four = fit(4);
        assert_eq!(fitted.posterior, four.posterior, "{kind:?}");
        assert_eq!(fitted.model, four.model, "{kind:?}");
        let trained = fitted.model.unwrap();
        let again = |device, job: &JobContext| {
            let saved = SavedModel::new(&trained.description, &trained.parameters, device);
            predict::<Gem>(saved, with_features.matrix(), job)
        };
        for device in [None, Some("auto"), Some("cpu")] {
            let again = again(device, &JobContext::new(1)).unwrap().classes;
            assert_eq!(fitted.predictions.as_ref(), Some(&again), "{kind:?} {device:?}");
        }
        let has_device = spec.classifier.clone().device_mut().is_some();
        let refused = |device| again(Some(device), &JobContext::new(1)).unwrap_err().to_string();
        if has_device {
            let error = refused("gpu");
            assert!(error.contains("there is no such device"), "{error}");
            assert!(error.contains("model.json: parameters.classifier.network.device"), "{error}");
        } else {
            for error in ["cuda:0", "gpu"].map(refused) {
                assert!(error.contains("`gem` computes on the CPU only"), "{error}");
            }
        }
        let cancelled = JobContext::new(1);
        assert!(cancelled.cancel.request(15));
        assert_eq!(again(None, &cancelled).unwrap_err().exit_code(), 143, "{kind:?}");
    }
}

#[test]
fn single_annotations_are_cautioned_against() {
    let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 1, 1)]);
    let with_features = with_features(&a);
    let mut job = JobContext::new(1);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    Gem::default().fit(evidence, &mut job).unwrap();
    assert!(job.warnings()[0].contains("no instance has a second annotator"));
    let error = Gem::default().fit((&a).into(), &mut job).unwrap_err().to_string();
    assert!(error.contains("`gem` learns from features"), "{error}");
}

/// Two annotators have nine annotations each, for matrices of two classes.
// keys: gem.smoothing, gem.diagonal
#[test]
fn few_annotations_are_cautioned_against_without_pseudo_counts() {
    let a = tiny(2, &(0..18).map(|n| (n / 2, n % 2, n / 2 % 2)).collect::<Vec<_>>());
    let with_features = with_features(&a);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let cases = [(0.0, 0.0, true), (0.1, 0.0, true), (1.0, 0.0, false), (0.0, 1.0, false)];
    for (smoothing, diagonal, is_cautioned) in cases {
        let mut job = JobContext::new(1);
        Gem { smoothing, diagonal, ..Gem::default() }.fit(evidence, &mut job).unwrap();
        let is_about = |warning: &String| warning.contains("fewer than 10 annotations");
        assert_eq!(job.warnings().iter().any(is_about), is_cautioned, "{smoothing} {diagonal}");
    }
}

/// An instance without a label that is a class; a single example; a single class; a crowd without any evidence.
#[test]
fn degenerate_crowds_give_no_panic_and_no_nan() {
    for kind in CLASSIFIERS.iter().copied() {
        let spec = Gem { classifier: small(kind), ..Gem::default() };
        let fit_with = |a: &Annotations, with_features: &QuestionFeatures| {
            let evidence = Evidence { annotations: a, with_features: Some(with_features) };
            spec.fit(evidence, &mut JobContext::new(1))
        };
        let fit = |a: &Annotations| fit_with(a, &with_features(a));
        for a in [
            tiny(2, &[(0, 0, 2), (1, 0, 0), (1, 1, 1), (2, 1, 1)]),
            tiny(2, &[(0, 0, 1)]),
            tiny(1, &[(0, 0, 0), (1, 0, 0), (1, 1, 0)]),
        ] {
            let fitted = fit(&a).unwrap();
            assert_eq!(fitted.not_finite(), None, "{kind:?}");
        }
        let error = fit(&tiny(2, &[(0, 0, 2)])).unwrap_err().to_string();
        assert!(error.contains("no annotation names a class"), "{error}");
        let (a, mut others) = (tiny(2, &[(0, 0, 1)]), with_features(&tiny(2, &[(0, 0, 1)])));
        others.row_of_instance.fill(None);
        let error = fit_with(&a, &others).unwrap_err().to_string();
        assert!(error.contains("no annotated instance has features to learn from"), "{error}");
    }
}
