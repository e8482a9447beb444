//! The models that compare annotators in pairs, beside the numbers of other implementations.

use crate::datasets::{aggregate_with, scores};
use crate::support::data_folder;

/// Accuracies in percent: ours, and those of the references, whose starts are random.
#[test]
fn accuracies_on_real_crowds_are_near_the_published_ones() {
    let Some(data) = data_folder("published numbers of models of pairs of annotators") else {
        return;
    };
    let adam: &[&str] = &["model.optimizer='adam'", "model.n_epochs=500"];
    let ten: &[&str] = &["model.stop.max_iter=10", "model.stop.tol=0"];
    for (dataset, model, settings, want, published) in [
        ("bluebirds", "kos", &[][..], 72.22, 72.22),
        ("rte", "kos", &[], 50.12, 50.12),
        ("bluebirds", "mmsr", &[], 71.30, 71.3),
        // The signs of the reference make annotators with few common instances adversaries.
        ("rte", "mmsr", &[], 92.75, 85.75),
        ("bluebirds", "label_model", &[], 88.89, 88.9),
        ("rte", "label_model", &[], 76.62, 77.3),
        ("rte", "label_model", adam, 84.88, 85.3),
        ("bluebirds", "spectral_dawid_skene", ten, 88.89, 89.81),
        ("rte", "spectral_dawid_skene", ten, 92.75, 92.9),
        ("dog", "spectral_dawid_skene", ten, 84.26, 83.9),
        // By the groups that the seed draws, 81.0 to 82.8.
        ("web", "spectral_dawid_skene", ten, 81.12, 83.1),
    ] {
        let output = tempfile::tempdir().unwrap();
        aggregate_with(&data, dataset, model, settings, output.path());
        let accuracy = 100.0 * scores(&data, dataset, output.path())["accuracy"];
        assert!(
            (accuracy - want).abs() < 0.01,
            "{dataset}: {model} {settings:?} has {accuracy}, expected {want} (reference {published})"
        );
    }
}
