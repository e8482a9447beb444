//! `gem` around a network.

use std::sync::Arc;

use super::*;
use crate::frame::{MatrixWriter, NumberType, Scratch};
use crate::model::classifier::NetworkClassifierSpec;
use crate::model::neural::{Architecture, BackboneSpec, OptimiserSpec};
use crate::model::saved::snapshot::Snapshot;

/// A network that takes little time.
pub(super) fn small() -> NetworkClassifierSpec {
    let backbone = BackboneSpec { hidden: vec![16], dropout: 0.2, ..BackboneSpec::default() };
    NetworkClassifierSpec {
        device: "cpu".to_owned(),
        backbone,
        epochs: 20,
        optimiser: OptimiserSpec { learning_rate: 0.01, ..OptimiserSpec::default() },
        ..NetworkClassifierSpec::default()
    }
}

fn around(network: NetworkClassifierSpec, stop: StopRule) -> Gem {
    let kind = ClassifierKind::Network;
    Gem {
        classifier: ClassifierSpec { kind, network, ..ClassifierSpec::default() },
        stop,
        ..Gem::default()
    }
}

/// Two of twenty annotators for each of 300 instances, who are right in 60 % of the cases; of three features, that of the
/// true class is the largest. With its true classes.
fn crowd() -> (Annotations, QuestionFeatures, Vec<u32>) {
    let shape = CrowdShape {
        instances: 300,
        annotators: 20,
        redundancy: 2,
        accuracy: (0.45, 0.75),
        ..CrowdShape::default()
    };
    let drawn = shape.draw(3);
    let dims = Dims { instances: 300, annotators: 20, classes: 3, labels: 3 };
    let a = annotations(dims, &drawn.rows);
    let noise = |i: usize, k: usize| ((i * 31 + k * 17) % 23) as f32 / 23.0;
    let feature =
        |i: usize, k: usize| noise(i, k) + if drawn.truth[i] as usize == k { 1.0 } else { 0.0 };
    let values: Vec<f32> = (0..300).flat_map(|i| [0, 1, 2].map(|k| feature(i, k))).collect();
    let mut with_features = with_features(&a);
    with_features.features.matrix = Arc::new(Matrix::from_rows(3, &values));
    (a, with_features, drawn.truth)
}

fn right(posterior: &Posterior, truth: &[u32]) -> usize {
    let is_right =
        |i: &usize| best(posterior.row(*i)).is_some_and(|(k, _)| k == truth[*i] as usize);
    (0..truth.len()).filter(is_right).count()
}

/// The default stopping rule is met without a warning, after the last epoch of the network.
#[test]
fn a_network_reads_a_crowd_better_than_the_votes_and_converges() {
    let (a, with_features, truth) = crowd();
    let mut job = JobContext::new(1);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = around(small(), StopRule::default()).fit(evidence, &mut job).unwrap();
    let (of_votes, of_network) =
        (right(&Posterior::from_votes(&a), &truth), right(&fitted.posterior.dense(), &truth));
    assert!(of_network > of_votes + 50, "{of_network}, votes {of_votes}");
    assert_eq!((job.warnings(), fitted.stop.converged), (&[][..], true));
    assert_eq!(fitted.device, "cpu");
}

/// Every change of the objective is below the tolerance.
#[test]
fn the_rounds_go_on_until_the_network_is_trained() {
    let (a, with_features, _) = crowd();
    let stop = StopRule { max_iter: 40, tol: 1e9, ..StopRule::default() };
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = around(small(), stop).fit(evidence, &mut JobContext::new(1)).unwrap();
    assert_eq!((fitted.stop.iterations, fitted.stop.converged), (20, true));
}

#[test]
fn rounds_that_end_before_the_network_is_trained_are_a_problem() {
    let problems = |epochs_per_fit| {
        let stop = StopRule { max_iter: 9, ..StopRule::default() };
        let mut problems = Problems::default();
        around(NetworkClassifierSpec { epochs_per_fit, ..small() }, stop)
            .check("model", &mut problems);
        problems.into_result().map_err(|e| e.to_string())
    };
    let error = problems(2).unwrap_err();
    assert!(error.contains("model.stop.max_iter") && error.contains("10 rounds"), "{error}");
    assert_eq!(problems(3), Ok(()));
}

/// The network stays as it is, so that the rounds are those of EM with a fixed prior of each instance.
#[test]
fn the_objective_never_falls_after_the_last_epoch() {
    let (a, with_features, _) = crowd();
    let stop = iterations(40);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = around(small(), stop).fit(evidence, &mut JobContext::new(1)).unwrap();
    let after: Vec<f64> = fitted.trace[20..].iter().filter_map(|row| row.change).collect();
    assert!(after.iter().all(|change| *change > -1e-7), "{after:?}");
    assert!(after.len() == 20 && after[0] > 0.0, "{after:?}");
}

#[test]
fn a_saved_network_has_the_names_and_modules_of_pytorch() {
    let (a, with_features, _) = crowd();
    let stop = iterations(2);
    let backbone = BackboneSpec { batch_norm: false, ..small().backbone };
    let spec = around(NetworkClassifierSpec { backbone, ..small() }, stop);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let trained = spec.fit(evidence, &mut JobContext::new(1)).unwrap().model.unwrap();
    let modules = trained.description["network"].as_array().unwrap();
    let names: Vec<&str> = modules.iter().filter_map(|module| module["module"].as_str()).collect();
    assert_eq!(names, ["Linear", "ReLU", "Dropout", "Linear"]);
    let snapshot = Snapshot::from_bytes(&trained.parameters).unwrap();
    let names: Vec<&str> = snapshot.names().collect();
    let wanted = [
        "net.classifier.bias",
        "net.classifier.weight",
        "net.hidden0.bias",
        "net.hidden0.weight",
        "scaler.factor",
        "scaler.mean",
    ];
    assert_eq!(names, wanted);
    assert!(snapshot.take_array("net.hidden0.weight", &[16, 3]).is_ok());
    assert!(snapshot.take_array("net.classifier.weight", &[3, 16]).is_ok());
}

/// The axes of images are part of the saved model, so that it predicts rows of numbers without them.
#[test]
fn a_network_of_images_predicts_rows_without_axes() {
    let a = tiny(2, &(0..24).map(|n| (n / 2, n % 2, n / 2 % 2)).collect::<Vec<_>>());
    let values: Vec<f32> = (0..12 * 144).map(|n| ((n * 37) % 101) as f32 / 50.0).collect();
    let mut writer = MatrixWriter::new(vec![1, 12, 12], NumberType::F32, Scratch::default());
    writer.push_f32s(&values.clone().into()).unwrap();
    let mut with_features = with_features(&a);
    with_features.features.matrix = Arc::new(writer.finish((0..12).collect()).unwrap());
    let backbone = BackboneSpec { kind: Architecture::Lenet, ..BackboneSpec::default() };
    let stop = iterations(2);
    let spec = around(NetworkClassifierSpec { backbone, epochs: 2, ..small() }, stop);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = spec.fit(evidence, &mut JobContext::new(1)).unwrap();
    let trained = fitted.model.unwrap();
    let predicted = |sizes| {
        let saved = SavedModel::new(&trained.description, &trained.parameters, None);
        let model = SavedModel { sizes, ..saved };
        predict::<Gem>(model, &Matrix::from_rows(144, &values), &JobContext::new(1))
    };
    let sizes = json!({"features": 144, "axes": [1, 12, 12], "classes": 2});
    assert_eq!(trained.description["sizes"], sizes);
    assert_eq!(Some(predicted(sizes).unwrap().classes), fitted.predictions);
    let error = predicted(json!({"features": 144, "axes": [1, 12, 11], "classes": 2}));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("sizes are those of no model"), "{error}");
}
