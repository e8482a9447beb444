//! Annotations with weights: one round by hand, and a weight of 2 against two annotations.

use super::*;
use crate::testing::weighted;

/// Without a penalty, a regression on a feature of two values gives the shares of the targets at each. Instances 0 and 1
/// have the feature 0, and instances 2 and 3 the feature 1; nobody annotates 3, and 4 has no features. The weights of
/// the first annotator are 1.5 (`a`), 2 (`a`), 2.25 (`b`) and 0.25 (`a`) for the instances 0, 1, 2 and 4; those of the
/// second one 0.5 (`a`), 0.5 (`b`) and 0.75 (`a`) for 0, 1 and 2.
///
/// The targets are (1, 0), (0.8, 0.2), (0.25, 0.75) and, for 4, (1, 0), so that p = (0.9, 0.1) for 0 and 1, and (0.25,
/// 0.75) for 2 and 3. The counts of (`a`, `b`) are, for the first annotator, (3.35, 0.5625) given `a` and (0.4, 1.6875)
/// given `b`; for the second one (0.6875, 0.4) and (0.5625, 0.1).
#[test]
fn one_round_of_weighted_annotations_is_that_by_hand() {
    let dims = Dims { instances: 5, annotators: 2, classes: 2, labels: 2 };
    let rows = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 1), (2, 1, 0), (4, 0, 0)];
    let a = weighted(dims, &rows, vec![1.5, 0.5, 2.0, 0.5, 2.25, 0.75, 0.25]);
    let with_features = one_feature(&a, &[Some(0.0), Some(0.0), Some(1.0), Some(1.0), None]);
    let regression = LogisticSpec { l2: 0.0, ..LogisticSpec::default() };
    let classifier =
        ClassifierSpec { logistic_regression: regression, ..ClassifierSpec::default() };
    let stop = iterations(1);
    let spec = Gem { smoothing: 0.5, classifier, stop, ..Gem::default() };
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = spec.fit(evidence, &mut JobContext::new(1)).unwrap();
    let first = [[3.85 / 4.9125, 1.0625 / 4.9125], [0.9 / 3.0875, 2.1875 / 3.0875_f64]];
    let second = [[1.1875 / 2.0875, 0.9 / 2.0875], [1.0625 / 1.6625, 0.6 / 1.6625_f64]];
    let want = |prior: [f64; 2], labels: &[(&[[f64; 2]; 2], usize, f64)]| {
        let likelihood = |k: usize| {
            let of = |(matrix, label, weight): &(&[[f64; 2]; 2], usize, f64)| {
                matrix[k][*label].powf(*weight)
            };
            labels.iter().map(of).product::<f64>()
        };
        let joint = [0, 1].map(|k| prior[k] * likelihood(k));
        joint[0] / (joint[0] + joint[1])
    };
    let wanted = [
        want([0.9, 0.1], &[(&first, 0, 1.5), (&second, 0, 0.5)]),
        want([0.9, 0.1], &[(&first, 0, 2.0), (&second, 1, 0.5)]),
        want([0.25, 0.75], &[(&first, 1, 2.25), (&second, 0, 0.75)]),
        0.25,
        want([0.5, 0.5], &[(&first, 0, 0.25)]),
    ];
    for (i, want) in wanted.into_iter().enumerate() {
        let got = fitted.posterior.row(i)[0];
        assert!((got - want).abs() < 1e-5, "{i}: {got}, not {want}");
    }
}

#[test]
fn a_weight_of_two_is_two_annotations() {
    let dims = Dims { instances: 20, annotators: 3, classes: 2, labels: 2 };
    let row = |n: u32| (n / 3, n % 3, (n / 3 + u32::from(n.is_multiple_of(7))) % 2);
    let rows: Vec<_> = (0..60).map(row).collect();
    let is_double = |n: &usize| n.is_multiple_of(4);
    let weights = (0..60).map(|n| if is_double(&n) { 2.0 } else { 1.0 }).collect();
    let repeated = (0..60).filter(is_double).map(|n| rows[n]);
    let twice: Vec<_> = rows.iter().copied().chain(repeated).collect();
    let feature = |i: usize| Some((i % 2) as f32 + (i * 7 % 13) as f32 / 10.0);
    let values: Vec<Option<f32>> = (0..20).map(feature).collect();
    let stop = iterations(3);
    let spec = Gem { smoothing: 0.5, stop, ..Gem::default() };
    let posterior = |a: &Annotations| {
        let with_features = one_feature(a, &values);
        let evidence = Evidence { annotations: a, with_features: Some(&with_features) };
        spec.fit(evidence, &mut JobContext::new(1)).unwrap().posterior.dense().into_owned()
    };
    let of_weights = posterior(&weighted(dims, &rows, weights));
    let of_twice = posterior(&weighted(dims, &twice, vec![1.0; twice.len()]));
    let of_once = posterior(&weighted(dims, &rows, vec![1.0; rows.len()]));
    let gap = |one: &Posterior, other: &Posterior| {
        let pairs = one.values().iter().zip(other.values());
        pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
    };
    let gaps = [gap(&of_weights, &of_twice), gap(&of_weights, &of_once)];
    assert!(gaps[0] < 1e-6 && gaps[1] > 1e-3, "{gaps:?}");
}
