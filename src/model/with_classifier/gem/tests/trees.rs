//! Rounds that grow trees.

use super::*;

/// Each of 200 instances has features of noise: trees that are grown again in every round go around in circles.
#[test]
fn rounds_of_trees_end_and_keep_the_best() {
    let shape = CrowdShape { redundancy: 3, ..CrowdShape::default() };
    let dims = Dims { instances: 200, annotators: 12, classes: 3, labels: 3 };
    for seed in 0..4 {
        let a = annotations(dims, &shape.draw(seed).rows);
        let with_features =
            one_feature(&a, &(0..200).map(|i| Some((i * 37 % 101) as f32)).collect::<Vec<_>>());
        for kind in [ClassifierKind::DecisionTree, ClassifierKind::RandomForest] {
            let fit = |stop: StopRule| {
                let spec = Gem { classifier: small(kind), stop, ..Gem::default() };
                let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
                spec.fit(evidence, &mut JobContext::new(1)).unwrap()
            };
            let fitted = fit(StopRule::default());
            let objectives: Vec<f64> = fitted.trace.iter().map(|row| row.objective).collect();
            let falls: Vec<usize> = (1..objectives.len())
                .filter(|n| objectives[*n] < objectives[n - 1] - 1e-9)
                .collect();
            assert!(
                fitted.stop.converged && falls.iter().all(|n| *n < 20),
                "{seed} {kind:?}: {falls:?}"
            );
            let best = objectives.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let last = fitted.stop.objective.unwrap();
            assert!(last > best - 1e-5 * a.len() as f64, "{seed} {kind:?}: {last}, best {best}");
            // Without a round after the second, the better one of the two is kept.
            let two = fit(iterations(2));
            let one = fit(iterations(1));
            let want =
                if objectives[1] > objectives[0] + 1e-5 * a.len() as f64 { &two } else { &one };
            assert_eq!(two.posterior, want.posterior, "{seed} {kind:?}");
        }
    }
}
