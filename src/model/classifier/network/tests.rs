//! Weights and soft targets by hand, fits that continue, every setting, and trainings that fail.

use serde_json::json;

use super::*;
use crate::model::classifier::tests::{Owned, assert_near, uneven};
use crate::model::neural::{Activation, Architecture, LrSchedule, OptimiserKind, Scaling};

/// One layer and no scaling, trained by plain gradient descent on all examples at once.
fn plain(learning_rate: f64) -> NetworkClassifierSpec {
    let backbone = BackboneSpec::one_layer();
    let optimiser = OptimiserSpec::descent(learning_rate);
    NetworkClassifierSpec {
        device: "cpu".to_owned(),
        backbone,
        epochs: 1,
        batch_size: Some(1000),
        optimiser,
        ..NetworkClassifierSpec::default()
    }
}

/// A hidden layer of standardised features, trained by plain gradient descent on all examples at once.
fn smooth() -> NetworkClassifierSpec {
    let NetworkClassifierSpec { backbone, .. } = plain(0.3);
    let backbone = BackboneSpec {
        kind: Architecture::Mlp,
        hidden: vec![5],
        activation: Activation::Tanh,
        dropout: 0.0,
        scaling: Scaling::Standard,
        ..backbone
    };
    NetworkClassifierSpec { backbone, epochs: 10, epochs_per_fit: 10, ..plain(0.3) }
}

/// Everything that draws random numbers or keeps a state: batches, dropout, batch norm, Adam and a schedule.
fn noisy() -> NetworkClassifierSpec {
    let backbone = BackboneSpec { hidden: vec![6], dropout: 0.3, ..BackboneSpec::default() };
    NetworkClassifierSpec {
        device: "cpu".to_owned(),
        backbone,
        epochs: 6,
        epochs_per_fit: 2,
        batch_size: Some(4),
        ..NetworkClassifierSpec::default()
    }
}

fn network(spec: NetworkClassifierSpec) -> NetworkClassifier {
    NetworkClassifier::new(spec, &[2], 3)
}

/// What a network has learned.
fn learned(network: &NetworkClassifier) -> Snapshot {
    let mut snapshot = Snapshot::default();
    network.save(&mut snapshot).unwrap();
    snapshot
}

/// What a network has learned after some fits with this seed.
fn after(network: &mut NetworkClassifier, fits: u32, data: &Owned, seed: u64) -> Snapshot {
    (0..fits).for_each(|_| network.fit(data.examples(), &JobContext::new(seed)).unwrap());
    learned(network)
}

fn f64s(snapshot: &Snapshot, name: &str) -> Vec<f64> {
    snapshot.find_f32s(name).unwrap().iter().map(|value| f64::from(*value)).collect()
}

/// A step of gradient descent from the initial W and b, which a rate of 0 leaves as they are: dW[k][j] = sum_i w_i (p_i[k]
/// - T[i][k]) x_i[j] / sum_i w_i, and db[k] the same without x.
#[test]
fn a_step_follows_the_gradient_of_the_weighted_mean() {
    let data = uneven();
    let start = after(&mut network(plain(0.0)), 1, &data, 1);
    let end = after(&mut network(plain(0.02)), 1, &data, 1);
    let (weight, bias) =
        (f64s(&start, "net.classifier.weight"), f64s(&start, "net.classifier.bias"));
    let (mut of_weight, mut of_bias) = (vec![0.0; 6], vec![0.0; 3]);
    let total: f64 = data.weights.iter().sum();
    let mut row = [0.0; 2];
    for i in 0..6 {
        data.matrix.read(i, &mut row);
        let x = row.map(f64::from);
        let logit = |k: usize| weight[2 * k] * x[0] + weight[2 * k + 1] * x[1] + bias[k];
        let sum: f64 = (0..3).map(|k| logit(k).exp()).sum();
        for k in 0..3 {
            let target = data.targets[3 * i + k];
            let slope = data.weights[i] / total * (logit(k).exp() / sum - target);
            (0..2).for_each(|j| of_weight[2 * k + j] += slope * x[j]);
            of_bias[k] += slope;
        }
    }
    let moved = |from: &[f64], slopes: &[f64]| -> Vec<f64> {
        from.iter().zip(slopes).map(|(from, slope)| from - 0.02 * slope).collect()
    };
    assert_near(&f64s(&end, "net.classifier.weight"), &moved(&weight, &of_weight), 2e-6);
    assert_near(&f64s(&end, "net.classifier.bias"), &moved(&bias, &of_bias), 2e-6);
    assert!(of_weight.iter().any(|slope| slope.abs() > 0.1), "{of_weight:?}");
}

/// The tolerance is a rounding of f32 in each of ten steps.
#[test]
fn a_weight_of_two_is_two_examples_and_a_soft_target_is_one_example_for_each_class() {
    let data = uneven();
    let p = data.fit(&mut network(smooth()));
    assert_near(&data.doubled().fit(&mut network(smooth())), &p, 2e-6);
    assert_near(&data.split().fit(&mut network(smooth())), &p, 2e-6);
    let mut alike = uneven();
    alike.weights.fill(1.0);
    let of_alike = alike.fit(&mut network(smooth()));
    assert!(p.iter().zip(&of_alike).any(|(p, other)| (p - other).abs() > 1e-3), "{of_alike:?}");
}

/// Two examples of no weight, whose features are far away, before and after the others.
#[test]
fn examples_without_weight_change_nothing() {
    let data = uneven();
    let mut features = vec![1e4, -1e4];
    let mut row = [0.0; 2];
    for i in 0..6 {
        data.matrix.read(i, &mut row);
        features.extend(row);
    }
    features.extend([-1e4, 1e4]);
    let far = [0.0, 0.0, 1.0];
    let targets = [&far[..], &data.targets, &far].concat();
    let weights = [&[0.0][..], &data.weights, &[0.0]].concat();
    let more = Owned::new(2, &features, &targets, &weights);
    let of = |data: &Owned| after(&mut network(noisy()), 3, data, 1);
    assert!(of(&data) == of(&more));
}

/// Two fits of three epochs and one of six take the same steps; a further fit takes none.
#[test]
fn a_fit_continues_with_parameters_moments_and_epochs_of_the_last() {
    let data = uneven();
    let with = |epochs_per_fit| network(NetworkClassifierSpec { epochs_per_fit, ..noisy() });
    let whole = after(&mut with(6), 1, &data, 1);
    let mut by_three = with(3);
    let half = after(&mut by_three, 1, &data, 1);
    assert!(half != whole);
    assert!(after(&mut by_three, 1, &data, 1) == whole);
    assert!(after(&mut by_three, 1, &data, 1) == whole, "there are six epochs in all");
    assert!(after(&mut with(4), 2, &data, 1) == whole, "the second fit has two epochs left");
}

#[test]
fn features_are_scaled_as_in_the_first_fit() {
    let data = uneven();
    let mut network = network(noisy());
    let first = after(&mut network, 1, &data, 1);
    let mut other = uneven();
    other.weights.reverse();
    let second = after(&mut network, 1, &other, 1);
    let total: f64 = data.weights.iter().sum();
    let mean = |j: usize| {
        let mut row = [0.0; 2];
        let of = |i: usize| {
            data.matrix.read(i, &mut row);
            data.weights[i] * f64::from(row[j])
        };
        (0..6).map(of).sum::<f64>() / total
    };
    for snapshot in [first, second] {
        assert_near(&f64s(&snapshot, "scaler.mean"), &[mean(0), mean(1)], 1e-5);
    }
}

#[test]
fn the_seed_of_the_run_decides_every_draw() {
    let data = uneven();
    let of = |seed| after(&mut network(noisy()), 2, &data, seed);
    assert!(of(1) == of(1) && of(1) != of(2));
}

/// Ten examples whose values vary.
fn ten(width: usize) -> Owned {
    let features: Vec<f32> = (0..10 * width).map(|n| ((n * 37) % 101) as f32 / 50.0).collect();
    let target = |i: usize| {
        let first = (i * 3 % 10) as f64 / 10.0;
        [first, 1.0 - first]
    };
    let targets: Vec<f64> = (0..10).flat_map(target).collect();
    Owned::new(width, &features, &targets, &[1.0; 10])
}

/// What is learned in a fit with one setting changed.
fn with_setting(base: &NetworkClassifierSpec, width: usize, key: &str, value: Value) -> Snapshot {
    let mut spec = serde_json::to_value(base).unwrap();
    let pointer = format!("/{}", key.replace('.', "/"));
    *spec.pointer_mut(&pointer).unwrap_or_else(|| panic!("no key {key}")) = value;
    let spec = serde_json::from_value(spec).unwrap();
    let mut network = NetworkClassifier::new(spec, &[width], 2);
    after(&mut network, 1, &ten(width), 1)
}

// keys: model.classifier.network.epochs, model.classifier.network.epochs_per_fit, model.classifier.network.batch_size
// keys: model.classifier.network.backbone.kind, model.classifier.network.backbone.hidden
// keys: model.classifier.network.backbone.activation, model.classifier.network.backbone.dropout
// keys: model.classifier.network.backbone.batch_norm, model.classifier.network.backbone.initialisation
// keys: model.classifier.network.backbone.scaling, model.classifier.network.backbone.input
// keys: model.classifier.network.backbone.pad_crop, model.classifier.network.backbone.flip
// keys: model.classifier.network.optimiser.rule, model.classifier.network.optimiser.learning_rate
// keys: model.classifier.network.optimiser.schedule, model.classifier.network.optimiser.milestones
// keys: model.classifier.network.optimiser.gamma, model.classifier.network.optimiser.warmup
// keys: model.classifier.network.optimiser.weight_decay, model.classifier.network.optimiser.decoupled
// keys: model.classifier.network.optimiser.beta1, model.classifier.network.optimiser.beta2
// keys: model.classifier.network.optimiser.epsilon, model.classifier.network.optimiser.nesterov
// keys: model.classifier.network.optimiser.clip_norm, model.classifier.network.optimiser.reset_each_epoch
#[test]
fn every_setting_changes_what_is_learned() {
    let with = |optimiser: OptimiserSpec| NetworkClassifierSpec {
        backbone: BackboneSpec {
            hidden: vec![4],
            dropout: 0.0,
            batch_norm: false,
            ..BackboneSpec::default()
        },
        optimiser,
        ..noisy()
    };
    let schedule = |schedule| OptimiserSpec { schedule, ..OptimiserSpec::default() };
    let vectors = with(OptimiserSpec::default());
    let stepped = with(OptimiserSpec { milestones: vec![2], ..schedule(LrSchedule::Step) });
    let falling = with(schedule(LrSchedule::Exponential));
    let descent = with(OptimiserSpec { rule: OptimiserKind::Sgd, ..OptimiserSpec::default() });
    let images = NetworkClassifierSpec {
        backbone: BackboneSpec {
            kind: Architecture::Lenet,
            input: Some([1, 12, 24]),
            ..BackboneSpec::default()
        },
        ..noisy()
    };
    let cases = [
        (&vectors, "epochs", json!(9)),
        (&vectors, "epochs_per_fit", json!(3)),
        (&vectors, "batch_size", json!(5)),
        (&vectors, "backbone.kind", json!("linear")),
        (&vectors, "backbone.hidden", json!([5])),
        (&vectors, "backbone.activation", json!("tanh")),
        (&vectors, "backbone.dropout", json!(0.5)),
        (&vectors, "backbone.batch_norm", json!(true)),
        (&vectors, "backbone.initialisation", json!("glorot")),
        (&vectors, "backbone.scaling", json!("none")),
        (&vectors, "optimiser.rule", json!("sgd")),
        (&vectors, "optimiser.learning_rate", json!(0.01)),
        (&vectors, "optimiser.schedule", json!("constant")),
        (&vectors, "optimiser.warmup", json!(3)),
        (&vectors, "optimiser.weight_decay", json!(0.5)),
        (&vectors, "optimiser.decoupled", json!(false)),
        (&vectors, "optimiser.beta1", json!(0.5)),
        (&vectors, "optimiser.beta2", json!(0.9)),
        (&vectors, "optimiser.epsilon", json!(0.01)),
        (&vectors, "optimiser.clip_norm", json!(0.01)),
        (&vectors, "optimiser.reset_each_epoch", json!(true)),
        (&stepped, "optimiser.milestones", json!([1])),
        (&falling, "optimiser.gamma", json!(0.5)),
        (&descent, "optimiser.nesterov", json!(true)),
        (&images, "backbone.input", json!([2, 12, 12])),
        (&images, "backbone.pad_crop", json!(1)),
        (&images, "backbone.flip", json!(true)),
    ];
    for (base, key, value) in cases {
        let n_features = if base.backbone.takes_images() { 288 } else { 3 };
        let unchanged = with_setting(base, n_features, "device", json!("cpu"));
        assert!(with_setting(base, n_features, key, value) != unchanged, "{key}");
    }
}

#[test]
fn keys_of_all_networks_have_the_schema_that_they_have_in_a_model() {
    let own = schemars::schema_for!(NetworkClassifierSpec).to_value();
    let of_model = schemars::schema_for!(NetworkSpec).to_value();
    let of_training = schemars::schema_for!(TrainSpec).to_value();
    let pairs = [("device", &of_model), ("batch_size", &of_training), ("precision", &of_training)];
    for (key, other) in pairs {
        let (own, other) = (&own["properties"][key], &other["properties"][key]);
        assert!(own.is_object() && own == other, "{key}: {own} and {other}");
    }
}

// keys: model.classifier.network.device, model.classifier.network.optimiser.annotator_learning_rate
// keys: model.classifier.network.optimiser.annotator_delay
#[test]
fn settings_without_a_meaning_are_refused() {
    let refused = |change: fn(&mut NetworkClassifierSpec)| {
        let (mut spec, mut problems) = (NetworkClassifierSpec::default(), Problems::default());
        change(&mut spec);
        spec.check(SECTION, &mut problems);
        problems.into_result().map_err(|e| e.to_string()).err()
    };
    assert_eq!(refused(|_| {}), None);
    let cases = [
        ("device", refused(|spec| spec.device = "tpu".to_owned())),
        ("backbone.hidden", refused(|spec| spec.backbone.hidden = vec![0])),
        (
            "optimiser.annotator_learning_rate",
            refused(|spec| spec.optimiser.annotator_learning_rate = Some(0.1)),
        ),
        ("optimiser.annotator_delay", refused(|spec| spec.optimiser.annotator_delay = Some(2))),
    ];
    for (key, error) in cases {
        let error = error.unwrap();
        assert!(error.contains(&format!("where: {SECTION}.{key}\n")), "{error}");
    }
}

/// Products of parameters of about 1e30 are infinite: the prediction after a step shows it, or else the next step.
#[test]
fn a_fit_that_diverges_says_so_and_names_its_own_keys() {
    let backbone =
        BackboneSpec { hidden: vec![64], activation: Activation::Relu, ..smooth().backbone };
    let spec = NetworkClassifierSpec { backbone, epochs: 2, ..plain(1e30) };
    let (data, mut network) = (uneven(), network(spec));
    network.fit(data.examples(), &JobContext::new(1)).unwrap();
    let mut p = vec![0.0; 18];
    let predicted = network.predict(&data.matrix, &data.rows, &mut p, &Cancel::default());
    let next = network.fit(data.examples(), &JobContext::new(1));
    let rate = format!("where: {SECTION}.optimiser.learning_rate\n");
    let help = "help: lower learning_rate, or set clip_norm";
    assert_names_causes(&predicted.unwrap_err(), "the prediction of row ");
    let error = next.unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    let error = error.to_string();
    for part in ["in epoch 2 of phase `train`", &rate, help] {
        assert!(error.contains(part), "{error}");
    }
}

/// Features of 0 and 0.1 are divided by a deviation of 0.05, which makes 3e38 infinite.
#[test]
fn a_row_whose_features_overflow_is_named_with_both_causes() {
    let backbone = BackboneSpec { scaling: Scaling::Standard, ..plain(0.1).backbone };
    let spec = NetworkClassifierSpec { backbone, ..plain(0.1) };
    let mut network = NetworkClassifier::new(spec, &[1], 2);
    let data = Owned::new(1, &[0.0, 0.1], &[1.0, 0.0, 0.0, 1.0], &[1.0; 2]);
    network.fit(data.examples(), &JobContext::new(1)).unwrap();
    let far = Matrix::from_rows(1, &[0.05, 0.1, 3e38, 3e38]);
    let predict = |rows: &[u32]| {
        let mut p = vec![0.0; 2 * rows.len()];
        network.predict(&far, rows, &mut p, &Cancel::default())
    };
    predict(&[0, 1]).unwrap();
    let error = predict(&[1, 0, 3, 2]).unwrap_err();
    assert_names_causes(&error, "the prediction of row 4 of the features is not a finite number\n");
}

/// Asserts that the error is that of a prediction after the first epoch, and names both causes that it may have.
fn assert_names_causes(error: &Error, what: &str) {
    assert_eq!(error.exit_code(), 4, "{error}");
    let error = error.to_string();
    let (location, found) = (format!("where: {SECTION}\n"), "found: NaN after epoch 1\n");
    for part in [what, &location, found, "too large", "diverged", "learning_rate", "clip_norm"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_cancelled_run_neither_trains_nor_predicts() {
    let (data, mut network) = (uneven(), network(noisy()));
    network.fit(data.examples(), &JobContext::new(1)).unwrap();
    let job = JobContext::new(1);
    assert!(job.cancel.request(15));
    let predicted = network.predict(&data.matrix, &data.rows, &mut [0.0; 18], &job.cancel);
    assert_eq!(predicted.unwrap_err().exit_code(), 143);
    assert_eq!(network.fit(data.examples(), &job).unwrap_err().exit_code(), 143);
}

#[test]
fn features_that_do_not_fit_the_backbone_are_an_error_of_its_section() {
    let backbone = BackboneSpec { kind: Architecture::Lenet, ..BackboneSpec::default() };
    let spec = NetworkClassifierSpec { backbone, ..plain(0.1) };
    let error =
        network(spec).fit(uneven().examples(), &JobContext::new(1)).unwrap_err().to_string();
    assert!(error.contains(&format!("where: {SECTION}.backbone.input\n")), "{error}");
    assert!(error.contains("help: set input = "), "{error}");
}
