//! The order of the acts, a phase that is the same in one act and in several, and the state between two acts.

use crate::model::calibration::calibrator::{Calibrator, Method, Points};
use crate::model::fitted::TraceRow;
use crate::model::neural::models::tcl::Retrain;
use crate::model::neural::objective::train_state::{Best, NamedTargets};
use crate::model::neural::tests::fits::{agreeing, agreeing_with_features, fit, parameters};
use crate::model::neural::tests::*;
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::with_features;

const CALIBRATE: &str = "Calibrate(\"classifier\", Isotonic)";
const E_STEP: &str = "EStep(\"main\")";
const M_STEP: &str = "MStep(\"main\")";

/// The acts as one word each, a training with its name, epochs and instances.
fn acts<N: CrowdNet>(Neural { network, model }: &Neural<N>) -> Vec<String> {
    let mut state = TrainState::default();
    let mut acts = Vec::new();
    while let Some(act) = model.next_act(&network.train, &state) {
        acts.push(match act {
            Act::Train(phase) => format!(
                "{} {:?} of {} on {:?}{}",
                phase.name,
                phase.act,
                phase.epochs,
                phase.instances,
                if phase.is_scored { ", scored" } else { "" }
            ),
            other => format!("{other:?}"),
        });
        state.acts += 1;
    }
    acts
}

// keys: tcl.rounds, tcl.first_epochs, tcl.round_epochs, tcl.retrain, tcl.trusted_epochs
#[test]
fn rounds_share_one_clock_and_the_retraining_has_another() {
    let train = TrainSpec { epochs: 7, ..TrainSpec::default() };
    let model = Tcl { rounds: 3, first_epochs: 4, round_epochs: 2, ..Tcl::default() };
    let model = with(train, model);
    let rounds = [
        M_STEP,
        "co-training 0..4 of 8 on Untrusted",
        CALIBRATE,
        E_STEP,
        M_STEP,
        E_STEP,
        "co-training 4..6 of 8 on Untrusted",
        CALIBRATE,
        E_STEP,
        M_STEP,
        E_STEP,
        "co-training 6..8 of 8 on Untrusted",
        CALIBRATE,
        E_STEP,
        "Reset(All)",
    ];
    let union = ["retraining 0..7 of 7 on All, scored", "Select"];
    assert_eq!(acts(&model), [&rounds[..], &union].concat());
    let sequential = [
        "retraining 0..7 of 7 on Untrusted, scored",
        "Select",
        "trusted 0..3 of 3 on Trusted, scored",
        "Select",
    ];
    let sequentially = Tcl { retrain: Retrain::Sequential, trusted_epochs: 3, ..model.model };
    let model = Neural { model: sequentially, ..model };
    assert_eq!(acts(&model), [&rounds[..], &sequential].concat());
}

#[test]
fn a_round_of_agg_net_is_an_epoch_an_e_step_and_an_m_step() {
    let train = TrainSpec { epochs: 2, ..TrainSpec::default() };
    let want = [
        M_STEP,
        "train 0..1 of 2 on All, scored",
        E_STEP,
        M_STEP,
        "train 1..2 of 2 on All, scored",
        E_STEP,
        M_STEP,
        "Select",
    ];
    assert_eq!(acts(&with(train, AggNet::default())), want);
}

// keys: tcl.calibrate, tcl.retrain
#[test]
fn without_a_calibration_or_a_retraining_the_rest_is_the_same() {
    let train = TrainSpec { epochs: 7, ..TrainSpec::default() };
    let model = Tcl { rounds: 1, calibrate: false, retrain: Retrain::None, ..Tcl::default() };
    let model = with(train, model);
    let want = [M_STEP, "co-training 0..2 of 2 on Untrusted, scored", E_STEP, "Select"];
    assert_eq!(acts(&model), want);
    assert_eq!(model.model.epochs(&model.network.train), 2);
}

// keys: tcls.rounds, tcls.first_epochs, tcls.round_epochs, tcls.aggregator_epochs, tcls.retrain, tcls.trusted_epochs
#[test]
fn aggregator_and_classifier_of_tcls_take_turns() {
    let train = TrainSpec { epochs: 7, ..TrainSpec::default() };
    let (rounds, first_epochs, round_epochs, aggregator_epochs) = (2, 4, 2, 3);
    let (retrain, trusted_epochs) = (Retrain::Sequential, 3);
    let model = Tcls {
        rounds,
        first_epochs,
        round_epochs,
        aggregator_epochs,
        retrain,
        trusted_epochs,
        ..Tcls::default()
    };
    let aggregated = "Calibrate(\"aggregator\", Isotonic)";
    let want = [
        "aggregator 0..3 of 6 on Untrusted",
        aggregated,
        "co-training 0..4 of 6 on Untrusted",
        CALIBRATE,
        E_STEP,
        "aggregator 3..6 of 6 on Untrusted",
        aggregated,
        E_STEP,
        "co-training 4..6 of 6 on Untrusted",
        CALIBRATE,
        E_STEP,
        "Reset(Only([\"classifier\"]))",
        "retraining 0..7 of 7 on Untrusted, scored",
        "Select",
        "trusted 0..3 of 3 on Trusted, scored",
        "Select",
        M_STEP,
    ];
    assert_eq!(model.epochs(&train), 22);
    assert_eq!(acts(&with(train, model)), want);
}

// keys: cvl.first_epochs, cvl.round_epochs
#[test]
fn the_rounds_of_cvl_share_the_epochs() {
    let of = |epochs: u32| {
        let train = TrainSpec { epochs, ..TrainSpec::default() };
        acts(&with(train, Cvl { first_epochs: 4, round_epochs: 2, ..Cvl::default() }))
    };
    let round = |epochs: &str| {
        let training = format!("co-teaching {epochs} on Untrusted, scored");
        [M_STEP, E_STEP, &training, "EStep(\"by networks\")"].map(str::to_owned)
    };
    let select = ["Select".to_owned()];
    let all = [&round("0..4 of 7")[..], &round("4..6 of 7"), &round("6..7 of 7"), &select];
    assert_eq!(of(7), all.concat());
    assert_eq!(of(3), [&round("0..3 of 3")[..], &select].concat());
}

// keys: mbem.rounds, mbem.restart
#[test]
fn a_round_of_mbem_counts_the_predictions_between_two_trainings() {
    let train = TrainSpec { epochs: 4, ..TrainSpec::default() };
    let em = ["EStep(\"predicted\")", "MStep(\"predicted\")", E_STEP];
    let epochs = |restart: bool| {
        let model = with(train.clone(), Mbem { rounds: 2, restart });
        assert_eq!(model.model.epochs(&train), 12);
        acts(&model)
    };
    let anew = ["train 0..4 of 4 on All, scored", "Select"];
    let rounds = [&[M_STEP], &anew[..], &em, &["Reset(All)"], &anew, &em, &["Reset(All)"], &anew];
    assert_eq!(epochs(true), rounds.concat());
    let [one, two, three] = [0, 4, 8].map(|start| {
        [format!("train {start}..{} of 12 on All, scored", start + 4), "Select".to_owned()]
    });
    let em = em.map(str::to_owned);
    let rounds = [&[M_STEP.to_owned()], &one[..], &em, &two, &em, &three].concat();
    assert_eq!(epochs(false), rounds);
}

/// `dl` with its epochs in several acts, which end at `ends`.
#[derive(
    Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
struct SplitEpochs {
    ends: Vec<u32>,
    resets: bool,
}

impl CrowdNet for SplitEpochs {
    test_kind!("split_epochs");
}

impl TrainingObjective for SplitEpochs {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let joint = Phase::joint("train", train.epochs);
        let ends = self.ends.iter().chain([&joint.epochs]);
        let starts = [&0].into_iter().chain(&self.ends);
        let parts =
            starts.zip(ends).map(|(start, end)| Phase { act: *start..*end, ..joint.clone() });
        let acts = self
            .resets
            .then_some(Act::Reset(LearnerSubset::All))
            .into_iter()
            .chain(parts.map(Act::Train));
        acts.chain([Act::Select]).nth(state.acts)
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Dl::default().loss(context, gradient)
    }
}

/// Selection, the average, the learning rate schedule and the moments all continue from one act to the next.
#[test]
fn a_phase_in_several_acts_is_the_phase_in_one() {
    let (a, with_features) = agreeing_with_features();
    for (select, average) in [(Select::Last, 0.6), (Select::Valid, 0.0)] {
        let train = TrainSpec { epochs: 6, select, average, ..TrainSpec::default() };
        let with = |ends: &[u32]| {
            let model = SplitEpochs { ends: ends.to_vec(), resets: false };
            let mut with_features = with_features.clone();
            with_features.gold = (0..9)
                .map(|i| crate::frame::Gold {
                    instance: i,
                    class: i % 3,
                    role: crate::frame::Role::Valid,
                })
                .collect();
            let fitted = fit(&on_cpu(train.clone(), model), &a, &with_features);
            let fitted = fitted.unwrap();
            let changes = |row: &TraceRow| (row.step, row.objective, row.change);
            (fitted.trace.iter().map(changes).collect::<Vec<_>>(), parameters(fitted))
        };
        let whole = with(&[]);
        assert!(with(&[1, 4]) == whole && whole.0.len() == 6, "{select:?}");
    }
}

/// A reset changes every weight, and draws the same values in every run.
#[test]
fn a_reset_draws_other_parameters_from_streams_of_its_own() {
    let (a, with_features) = agreeing_with_features();
    let start = |resets| {
        let optimiser = OptimiserSpec { learning_rate: 0.0, ..OptimiserSpec::default() };
        let train = TrainSpec { epochs: 1, optimiser, ..TrainSpec::default() };
        let model = SplitEpochs { ends: Vec::new(), resets };
        parameters(fit(&on_cpu(train, model), &a, &with_features).unwrap())
    };
    let (first, reset) = (start(false), start(true));
    assert_eq!(reset, start(true));
    let weights =
        |snapshot: &Snapshot| snapshot.find_f32s("net.classifier.weight").unwrap().to_vec();
    let (first, reset) = (weights(&first), weights(&reset));
    assert_eq!(first.len(), reset.len());
    assert!(first.iter().zip(&reset).all(|(first, reset)| first != reset));
    let bound = |weights: &[f32]| weights.iter().fold(0.0_f32, |max, w| max.max(w.abs()));
    assert!((bound(&first) / bound(&reset) - 1.0).abs() < 0.1, "drawn within another bound");
}

#[test]
fn an_epoch_runs_over_the_instances_that_it_is_for() {
    let mut a = agreeing();
    a.trusted = Some((0..40).map(|i| (i % 4 == 1).then_some(0)).collect());
    let with_features = with_features(&a);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let batching = Batching { batch_size: Some(3), by_annotation: false, drops_last: false };
    let data = TrainingData::new(evidence, None, true, batching).unwrap();
    let instances = |of| -> Vec<u32> {
        let batches = batches_of(&data, of, batching);
        let mut all: Vec<u32> = batches.into_iter().flat_map(|batch| batch.instances).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(instances(InstanceSubset::Trusted), (1..40).step_by(4).collect::<Vec<_>>());
    let others: Vec<u32> = (0..40).filter(|i| i % 4 != 1).collect();
    assert_eq!(instances(InstanceSubset::Untrusted), others);
    assert_eq!(instances(InstanceSubset::All).len(), 40);
    assert_eq!(data.trusted()[1], (5, 0));
}

#[test]
fn a_checkpoint_holds_the_whole_state() {
    let dims = Dims { instances: 2, annotators: 1, classes: 3, labels: 3 };
    let mut points = Points::new(3);
    for (class, p) in [(0, [0.7, 0.2, 0.1]), (1, [0.5, 0.4, 0.1]), (2, [0.1, 0.1, 0.8])] {
        points.push_class(&p, class, 1.0);
    }
    let row = |phase: &str, step, change| TraceRow {
        phase: phase.to_owned(),
        step,
        objective: -0.1 / f64::from(step),
        change,
        seconds: 0.25,
        score: change.map(|change| 0.5 * change),
        is_kept: change.is_some(),
    };
    let mut best = Snapshot::default();
    best.f32s("net.weight".to_owned(), vec![2], vec![0.1, -3.0]);
    let targets = |name: &str, values: [f64; 6], is_own| {
        let mut posterior = Posterior::zeros(2, 3);
        posterior.values_mut().copy_from_slice(&values);
        (name.to_owned(), NamedTargets { posterior, is_own })
    };
    let (second, other) = ([0.3, 0.6, 0.1, 0.5, 0.25, 0.25], [0.0, 0.9, 0.1, 0.2, 0.2, 0.6]);
    let aggregated = targets(MAIN_TARGETS, [1.0, 0.0, 0.0, 0.25, 0.75, 0.0], false);
    let calibrator = |method| Calibrator::fit(method, 0.0, &points).unwrap();
    let calibrators = [("classifier", Method::Isotonic), ("other", Method::Temperature)];
    let estimates = Estimates {
        calibrators: calibrators.map(|(name, method)| (name.to_owned(), calibrator(method))).into(),
        prior: Some(vec![0.2, 0.5, 0.3]),
        numbers: [("rates", vec![0.1, 0.7]), ("weights", vec![1.0 / 3.0])]
            .map(|(name, values)| (name.to_owned(), values))
            .into(),
    };
    let state = TrainState {
        acts: 9,
        epoch: 2,
        trace: vec![row("co-training", 1, None), row("retraining", 3, Some(0.5))],
        best: Some(Best {
            score: -1.5,
            epoch: 4,
            model: best.clone(),
            targets: [aggregated.clone(), targets("second", other, true)].into(),
            estimates: Estimates { prior: Some(vec![0.6, 0.1, 0.3]), ..estimates.clone() },
        }),
        average: Some(best),
        targets: [
            targets(MAIN_TARGETS, [0.1, 0.2, 0.7, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], true),
            targets("second", second, true),
        ]
        .into(),
        estimates,
    };
    let mut saved = Snapshot::default();
    state.save(&mut saved).unwrap();
    let saved = Snapshot::from_bytes(&saved.to_bytes().unwrap()).unwrap();
    let mut loaded = TrainState::with_targets(Some(aggregated.1.posterior.clone()));
    loaded.load(&saved, dims).unwrap();
    assert_eq!(loaded, state);
    let other = Dims { instances: 3, ..dims };
    let error = TrainState::default().load(&saved, other).unwrap_err();
    assert!(error.to_string().contains("another model"));
}

/// The learning rate is zero, so that the first epoch stays the best. With a patience of 1 the rounds end after one
/// more epoch.
#[test]
fn rounds_end_when_patience_does() {
    let a = agreeing();
    let mut with_features = with_features(&a);
    let valid =
        |i| crate::frame::Gold { instance: i, class: i % 3, role: crate::frame::Role::Valid };
    with_features.gold = (0..9).map(valid).collect();
    let optimiser = OptimiserSpec { learning_rate: 0.0, ..OptimiserSpec::default() };
    let select = Select::Valid;
    let train =
        TrainSpec { epochs: 9, patience: Some(1), select, optimiser, ..TrainSpec::default() };
    let backbone = BackboneSpec { batch_norm: false, ..BackboneSpec::default() };
    let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
    let model = Neural { network, model: AggNet::default() };
    let fitted = fit(&model, &a, &with_features).unwrap();
    assert_eq!((fitted.stop.iterations, fitted.stop.planned.map(|p| p.n)), (2, Some(9)));
    // Both epochs have a score, and the first of equal ones is kept.
    let [first, second] = fitted.trace.as_slice() else { panic!("{:?}", fitted.trace) };
    assert!(first.score.is_some() && first.score == second.score, "{first:?}, {second:?}");
    assert_eq!([first.is_kept, second.is_kept], [true, false]);
}
