//! The effects of training settings, on small fits of one batch.

use super::fits::{agreeing, agreeing_with_features, fit, parameters};
use super::*;
use crate::frame::QuestionFeatures;
use crate::model::neural::device::DeviceChoice;
use crate::model::neural::net::backbone::Scaling;
use crate::model::neural::net::parameters::Initialisation;
use crate::model::neural::net::precision::Precision;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::{assert_close, with_features};

/// Plain descent at a constant rate, for network and annotators.
fn descent(learning_rate: f64, annotators: f64) -> OptimiserSpec {
    OptimiserSpec {
        annotator_learning_rate: Some(annotators),
        annotator_delay: Some(0),
        ..OptimiserSpec::descent(learning_rate)
    }
}

/// Epochs of one batch each, in which nothing but the order is random.
fn train(optimiser: OptimiserSpec, epochs: u32) -> TrainSpec {
    TrainSpec { epochs, batch_size: Some(40), optimiser, ..TrainSpec::default() }
}

fn backbone() -> BackboneSpec {
    BackboneSpec { hidden: vec![4], dropout: 0.0, batch_norm: false, ..BackboneSpec::default() }
}

/// The model with a network of [`backbone`].
fn small<N: CrowdNet>(train: TrainSpec, model: N) -> Neural<N> {
    let network = NetworkSpec { backbone: backbone(), train, ..NetworkSpec::default() };
    Neural { network, model }
}

fn trained(train: TrainSpec) -> Snapshot {
    let a = agreeing();
    parameters(fit(&small(train, TraceRegularised::default()), &a, &with_features(&a)).unwrap())
}

/// Every number of the arrays with this prefix.
fn numbers(snapshot: &Snapshot, prefix: &str) -> Vec<f64> {
    let arrays = snapshot.f32s_with_prefix(prefix);
    arrays.flat_map(|(.., values)| values.iter().map(|v| f64::from(*v))).collect()
}

/// The change of every number in the arrays with this prefix.
fn moved(from: &Snapshot, to: &Snapshot, prefix: &str) -> Vec<f64> {
    let (from, to) = (numbers(from, prefix), numbers(to, prefix));
    assert_eq!(from.len(), to.len());
    from.iter().zip(to).map(|(from, to)| to - from).collect()
}

fn near(got: &[f64], want: &[f64]) {
    assert!(got.iter().any(|move_| move_.abs() > 1e-4), "nothing changes");
    assert_close(got, want, 1e-6, "change");
}

// keys: model.train.optimiser.learning_rate, model.train.optimiser.annotator_learning_rate
#[test]
fn each_rate_moves_its_own_parameters() {
    let after = |net, annotators| trained(train(descent(net, annotators), 1));
    let (start, one) = (after(0.0, 0.0), after(0.1, 0.2));
    let double = |moves: Vec<f64>| moves.into_iter().map(|m| 2.0 * m).collect::<Vec<_>>();
    let of_net = after(0.2, 0.2);
    near(&moved(&start, &of_net, "net."), &double(moved(&start, &one, "net.")));
    assert_eq!(numbers(&of_net, "crowd."), numbers(&one, "crowd."));
    let of_annotators = after(0.1, 0.4);
    near(&moved(&start, &of_annotators, "crowd."), &double(moved(&start, &one, "crowd.")));
    assert_eq!(numbers(&of_annotators, "net."), numbers(&one, "net."));
}

/// Without a rate of their own, annotators' parameters learn at 0.1, and heads, which are whole layers, at 0.001.
#[test]
fn annotators_learn_at_the_default_rate_of_their_model() {
    let (a, spec) = (agreeing(), |annotator_learning_rate| {
        train(OptimiserSpec { annotator_learning_rate, ..descent(0.1, 0.0) }, 1)
    });
    assert!(trained(spec(None)) == trained(spec(Some(0.1))));
    let heads = |rate| {
        parameters(fit(&small(spec(rate), DoctorNet::default()), &a, &with_features(&a)).unwrap())
    };
    assert!(heads(None) == heads(Some(1e-3)));
}

/// One step at the rate 0.1 with the decay 0.5 is one without, minus a twentieth of every weight of the network.
// keys: model.train.optimiser.weight_decay
#[test]
fn weights_of_the_network_decay_and_nothing_else_does() {
    let after =
        |net, weight_decay| trained(train(OptimiserSpec { weight_decay, ..descent(net, 0.2) }, 1));
    let (start, without, with) = (after(0.0, 0.0), after(0.1, 0.0), after(0.1, 0.5));
    let mut weights = 0;
    for (name, _, values) in start.f32s_with_prefix("net.") {
        let of = |snapshot: &Snapshot| snapshot.find_f32s(&format!("net.{name}")).unwrap().to_vec();
        let share = if name.ends_with("weight") { 0.05 } else { 0.0 };
        weights += usize::from(share > 0.0);
        for ((start, without), with) in values.iter().zip(of(&without)).zip(of(&with)) {
            assert!((with - (without - share * start)).abs() < 1e-6, "{name}: {with} {without}");
        }
    }
    assert_eq!(weights, 2);
    assert_eq!(numbers(&with, "crowd."), numbers(&without, "crowd."));
}

/// With one batch per epoch, a momentum that is reset in every epoch has no effect.
// keys: model.train.optimiser.reset_each_epoch, model.train.optimiser.beta1
#[test]
fn moments_are_forgotten_where_every_epoch_begins_with_fresh_ones() {
    let after = |beta1, reset_each_epoch| {
        trained(train(OptimiserSpec { beta1, reset_each_epoch, ..descent(0.1, 0.2) }, 3))
    };
    let plain = after(0.0, false);
    assert!(after(0.9, true) == plain);
    let kept = after(0.9, false);
    assert!(numbers(&kept, "net.") != numbers(&plain, "net."));
    assert!(numbers(&kept, "crowd.") != numbers(&plain, "crowd."));
}

// keys: model.train.optimiser.annotator_delay, model.train.epochs
#[test]
fn annotators_stand_still_for_the_epochs_of_the_delay() {
    let after = |epochs, annotator_delay| {
        trained(train(OptimiserSpec { annotator_delay, ..descent(0.1, 0.2) }, epochs))
    };
    let start = [1.0, -5.0, -5.0, -5.0, 1.0, -5.0, -5.0, -5.0, 1.0].repeat(2);
    assert_eq!(numbers(&after(3, Some(3)), "crowd."), start);
    assert_ne!(numbers(&after(4, Some(3)), "crowd."), start);
    // Left out, a fifth of all epochs.
    assert_eq!(numbers(&after(5, None), "crowd."), numbers(&after(5, Some(1)), "crowd."));
    assert_ne!(numbers(&after(5, None), "crowd."), numbers(&after(5, Some(2)), "crowd."));
}

// keys: single_confusion.identity_epochs
#[test]
fn the_single_matrix_is_the_identity_for_its_epochs() {
    let a = agreeing();
    let after = |identity_epochs| {
        let model = SingleConfusion { identity_epochs, ..SingleConfusion::default() };
        let model = small(train(descent(0.1, 0.2), 2), model);
        numbers(&parameters(fit(&model, &a, &with_features(&a)).unwrap()), "crowd.")
    };
    let start = [1.0, -5.0, -5.0, -5.0, 1.0, -5.0, -5.0, -5.0, 1.0];
    assert_eq!(after(Some(2)), start);
    assert_ne!(after(Some(1)), start);
    // Without `identity_epochs`, the optimiser's delay of 0.
    assert_eq!(after(None), after(Some(0)));
}

/// The first step of Adam is the rate itself: the logits of both heads' weights become 0.3 and -0.3, and 1 / (1 +
/// e^-0.6) = 0.645656.
// keys: weighted_doctor_net.weight_learning_rate, weighted_doctor_net.weight_epochs
#[test]
fn weights_of_heads_are_learned_at_their_own_rate() {
    let a = agreeing();
    let weights = |weight_learning_rate| {
        let optimiser =
            OptimiserSpec { schedule: LrSchedule::Constant, ..OptimiserSpec::default() };
        let model = WeightedDoctorNet {
            weight_epochs: 1,
            weight_learning_rate,
            ..WeightedDoctorNet::default()
        };
        let report =
            fit(&small(train(optimiser, 1), model), &a, &with_features(&a)).unwrap().report;
        let mut weights = report.annotator_parameters[0].1.clone();
        weights.sort_by(f64::total_cmp);
        weights
    };
    assert_eq!(weights(0.0), [0.5, 0.5]);
    for (got, want) in weights(0.3).iter().zip([1.0 - 0.645_656, 0.645_656]) {
        assert!((got - want).abs() < 1e-4, "{got}, expected {want}");
    }
}

/// Forty instances with two annotations each.
// keys: model.train.batch_size, model.train.batch_by
#[test]
fn batches_have_the_size_and_the_unit_that_the_spec_says() {
    let (a, with_features) = agreeing_with_features();
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    for (batch_by, batch_size, batches) in [
        (BatchBy::Instance, Some(7), 6),
        (BatchBy::Annotation, Some(7), 12),
        (BatchBy::Instance, None, 8),
        (BatchBy::Annotation, None, 8),
    ] {
        let batching = TrainSpec { batch_size, batch_by, ..TrainSpec::default() }.batching(false);
        let data = TrainingData::new(evidence, None, false, batching).unwrap();
        let n = |batching| batches_of(&data, InstanceSubset::All, batching).len();
        assert_eq!(n(batching), batches, "{batch_by:?} {batch_size:?}");
        // 40 = 5 x 7 + 5 and 80 = 11 x 7 + 3.
        let whole = batches - usize::from(batch_size.is_some());
        assert_eq!(n(Batching { drops_last: true, ..batching }), whole);
    }
}

/// After the first epoch both rates are multiplied by zero.
#[test]
fn the_schedule_holds_for_both_rates() {
    let after = |epochs, gamma| {
        let (schedule, milestones) = (LrSchedule::Step, vec![1]);
        trained(train(OptimiserSpec { schedule, milestones, gamma, ..descent(0.1, 0.2) }, epochs))
    };
    assert!(after(2, 0.0) == after(1, 0.0));
    // The first epoch has the whole rate.
    assert!(after(1, 0.0) == trained(train(descent(0.1, 0.2), 1)));
    let (one, two) = (after(1, 0.5), after(2, 0.5));
    assert!(numbers(&two, "net.") != numbers(&one, "net."));
    assert!(numbers(&two, "crowd.") != numbers(&one, "crowd."));
}

/// The first ten of forty instances have no features; the last column is the instance's number modulo 7.
#[test]
fn features_are_scaled_by_the_rows_that_train() {
    let a = agreeing();
    let mut with_features = with_features(&a);
    with_features.row_of_instance[..10].fill(None);
    let train = train(descent(0.0, 0.0), 1);
    let model = small(train, TraceRegularised::default());
    let means = numbers(&parameters(fit(&model, &a, &with_features).unwrap()), "scaler.mean");
    let want = (10..40).map(|i| f64::from(i % 7)).sum::<f64>() / 30.0;
    assert!((means[3] - want).abs() < 1e-6, "{means:?}, expected {want}");
}

/// Forty rows in five batches of seven and one of five.
#[test]
fn the_objective_of_an_epoch_is_the_mean_over_its_rows() {
    let a = tiny(3, &(0..79).map(|n| (n / 2, n % 2, n / 2 % 3)).collect::<Vec<_>>());
    let with_features = with_features(&a);
    let objective = |batch_size| {
        let train = TrainSpec { batch_size, ..train(descent(0.0, 0.0), 2) };
        let trace = fit(
            &small(train, TraceRegularised { lambda: 0.0, ..TraceRegularised::default() }),
            &a,
            &with_features,
        )
        .unwrap()
        .trace;
        assert_eq!(trace[1].change, Some(trace[1].objective - trace[0].objective));
        trace[0].objective
    };
    let (one, many) = (objective(Some(40)), objective(Some(7)));
    assert!((one - many).abs() < 1e-5 * one.abs(), "{one}, {many}");
}

/// All learning rates are zero, so that only the annotations of an instance can make a difference.
#[test]
fn posteriors_follow_from_held_out_annotations_too() {
    let (a, with_features) = agreeing_with_features();
    let fitted = |select, held_out| {
        let backbone = BackboneSpec { scaling: Scaling::None, ..backbone() };
        let train = TrainSpec { select, held_out, ..train(descent(0.0, 0.0), 1) };
        let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
        fit(&Neural { network, model: TraceRegularised::default() }, &a, &with_features).unwrap()
    };
    let (all, held) = (fitted(Select::Last, 0.1), fitted(Select::AnnotationLikelihood, 0.8));
    assert_eq!(held.posterior, all.posterior);
    let counts = held.report.confusion.unwrap().expected_count;
    assert!((counts.iter().sum::<f64>() - 80.0).abs() < 1e-9, "{counts:?}");
}

/// All learning rates are zero, so that the first epoch stays the best.
// keys: model.train.patience
#[test]
fn a_training_ends_after_so_many_epochs_without_a_better_one() {
    let a = agreeing();
    for (patience, epochs) in [(Some(2), 3), (Some(4), 5), (Some(u32::MAX), 9), (None, 9)] {
        let select = Select::AnnotationLikelihood;
        let train = TrainSpec { select, patience, ..train(descent(0.0, 0.0), 9) };
        let fitted =
            fit(&small(train, TraceRegularised::default()), &a, &with_features(&a)).unwrap();
        assert_eq!(fitted.trace.len(), epochs, "{patience:?}");
    }
}

/// All learning rates are zero: the one epoch of patience begins after the six epochs with frozen annotators.
// keys: model.train.patience
#[test]
fn patience_waits_for_the_annotators() {
    let a = agreeing();
    let select = Select::AnnotationLikelihood;
    let optimiser = OptimiserSpec { annotator_delay: Some(6), ..descent(0.0, 0.0) };
    let train = TrainSpec { select, patience: Some(1), ..train(optimiser, 9) };
    let fitted = fit(&small(train, TraceRegularised::default()), &a, &with_features(&a)).unwrap();
    assert_eq!(fitted.trace.len(), 7);
}

#[test]
fn bfloat16_is_for_gpus_alone() {
    let after = |precision| {
        let a = agreeing();
        let train = TrainSpec { precision, ..train(descent(0.1, 0.2), 2) };
        let mut model = small(train, CrowdLayer::default());
        model.network.device = "cpu".to_owned();
        parameters(fit(&model, &a, &with_features(&a)).unwrap())
    };
    assert!(after(Precision::Bf16) == after(Precision::F32));
}

// keys: model.device
#[test]
fn a_device_that_is_not_here_is_refused_with_what_to_choose() {
    for name in ["tpu", "cuda:", "cuda:none"] {
        let error = DeviceChoice::parse(name).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("choose \"auto\", \"cpu\" or \"cuda:0\""), "{error}");
    }
    if !cfg!(feature = "cuda") {
        let error = DeviceChoice::parse("cuda:0").unwrap_err();
        assert!(error.to_string().contains("built without CUDA"), "{error}");
    }
    let mut model = Neural::<Conal>::default();
    model.network.device = "tpu".to_owned();
    let mut problems = crate::spec::Problems::default();
    model.check("f: model", &mut problems);
    let error = problems.into_result().unwrap_err().to_string();
    assert!(error.contains("f: model.device"), "{error}");
}

// keys: model.backbone.initialisation
#[test]
fn biases_begin_where_the_initialisation_says() {
    let biases = |initialisation| {
        let a = agreeing();
        let with_features: QuestionFeatures = with_features(&a);
        let backbone = BackboneSpec { initialisation, ..backbone() };
        let train = train(descent(0.0, 0.0), 1);
        let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
        let model = Neural { network, model: TraceRegularised::default() };
        let snapshot = parameters(fit(&model, &a, &with_features).unwrap());
        let arrays = snapshot.f32s_with_prefix("net.").filter(|(name, ..)| name.ends_with("bias"));
        arrays.flat_map(|(.., values)| values.to_vec()).collect::<Vec<f32>>()
    };
    assert_eq!(biases(Initialisation::Glorot), [0.0; 7]);
    assert!(biases(Initialisation::Uniform).iter().all(|bias| *bias != 0.0));
}
