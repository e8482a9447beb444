//! The effect of each act, and a phase that is the same in one act and in several.

use super::fits::{agreeing, fit, parameters};
use super::*;
use crate::model::calibrator::{Calibrator, Method, Points};
use crate::model::fitted::TraceRow;
use crate::model::neural::models::tcl::{Initialise, Retrain};
use crate::model::neural::models::{agg_net, counted};
use crate::model::neural::train::checkpoint::Snapshot;
use crate::model::posterior::Posterior;
use crate::testing::described;

fn near(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-6, "{got}, expected {want}");
    }
}

/// T[0] = (.5, .3, .2) and T[1] = (.1, .2, .7). Annotator 0 gives the two instances the labels 0 and 1, annotator 1 the
/// labels 1 and 2.
#[test]
fn matrices_are_expected_counts_over_their_rows() {
    let a = annotations();
    let t = [0.5, 0.3, 0.2, 0.1, 0.2, 0.7];
    let counts = [&t[..3], &t[3..], &t[..3], &t[3..]].concat();
    let mut params = AnnotatorParams { tables: vec![counted::table(a.dims())] };
    counted::count(&a, &counts, 0.0, &mut params);
    let of_annotator_0 = [5.0 / 6.0, 1.0 / 6.0, 0.0, 0.6, 0.4, 0.0, 2.0 / 9.0, 7.0 / 9.0, 0.0];
    near(&params.tables[0].row(0), &of_annotator_0);
    // A row without counts stays zero without a floor, and is uniform with one.
    let none = [1.0, 0.0, 0.0].repeat(4);
    counted::count(&a, &none, 0.0, &mut params);
    near(&params.tables[0].row(0)[3..], &[0.0; 6]);
    near(&counted::reported(&params, a.dims())[3..6], &[1.0 / 3.0; 3]);
    counted::count(&a, &none, 1e-10, &mut params);
    near(&params.tables[0].row(0)[3..6], &[1.0 / 3.0; 3]);
}

/// p[0] = softmax(2, 0, -1). Instance 0 has the label 0 by annotator 0 and the label 1 by annotator 1, the latter with
/// weight 2.
#[test]
fn the_posterior_of_agg_net_has_its_floors() {
    let model = AggNet::default();
    let matrices = [
        [0.8, 0.1, 0.1, 0.3, 0.5, 0.2, 0.0, 0.0, 0.0],
        [0.6, 0.2, 0.2, 0.1, 0.9, 0.0, 0.25, 0.5, 0.25],
    ]
    .concat();
    let mut case = Case::new(&model).with(0, &matrices.map_f32());
    case.batch.annotations[1].weight = 2.0;
    let posterior = case.predicted().posterior;
    let p = case.out.p(0);
    let (c, r) = (agg_net::CLASSIFIER_FLOOR, agg_net::ANNOTATOR_FLOOR);
    assert_eq!((c, r), (0.001, 0.0001));
    let terms = [
        (p[0] + c) * (0.8 + r) * (0.2 + r) * (0.2 + r),
        (p[1] + c) * (0.3 + r) * (0.9 + r) * (0.9 + r),
        (p[2] + c) * r * (0.5 + r) * (0.5 + r),
    ];
    let sum: f64 = terms.iter().sum();
    near(&posterior[..3], &terms.map(|term| term / sum));
}

trait MapF32 {
    fn map_f32(&self) -> Vec<f32>;
}

impl MapF32 for Vec<f64> {
    fn map_f32(&self) -> Vec<f32> {
        self.iter().map(|v| *v as f32).collect()
    }
}

/// The prior of TCL's posterior is the calibrated classifier: with the temperature 2 its square root.
#[test]
fn co_labels_take_the_calibrated_classifier() {
    let model = Tcl::default();
    let matrices = [[0.8, 0.1, 0.1, 0.3, 0.5, 0.2, 0.4, 0.3, 0.3]; 2].concat();
    let mut case = Case::new(&model).with(0, &matrices.map_f32());
    case.calibrator = Some(Calibrator::Temperature { temperature: 2.0 });
    let p = case.out.p(0);
    let terms = [0.8 * 0.1, 0.3 * 0.5, 0.4 * 0.3].iter().zip(p).map(|(l, p)| l * p.sqrt());
    let terms: Vec<f64> = terms.collect();
    let sum: f64 = terms.iter().sum();
    let want: Vec<f64> = terms.iter().map(|term| term / sum).collect();
    near(&case.predicted().posterior[..3], &want);
    // If the batch has targets, as after the training, they are the posterior.
    let targets = [0.2, 0.3, 0.5, 1.0, 0.0, 0.0];
    near(&case.with_targets(&targets).predicted().posterior, &targets);
}

/// Annotator 0 gives the label 0 to an instance of the trusted class 0 and the label 1 to one of the trusted class 1;
/// annotator 1 gives the label 1 to the instance of class 0. With one count added to each of two labels, the rows of
/// annotator 0 are (2/3, 1/3) and (1/3, 2/3), those of annotator 1 (1/3, 2/3) and (1/2, 1/2). Instance 2 has the label
/// 0 by annotator 0 and the label 1 by annotator 1; the prior is a half for each class.
// keys: tcl.initialise
#[test]
fn trusted_instances_tell_the_first_matrices() {
    let mut a = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 1), (2, 0, 0), (2, 1, 1)]);
    a.trusted = Some(vec![Some(0), Some(1), None]);
    let model = Tcl { initialise: Initialise::Trusted, ..Tcl::default() };
    let fitted = model.aggregate((&a).into(), &mut Run::new(1)).unwrap().unwrap();
    let (of_0, of_1) = (2.0 / 3.0 * 2.0 / 3.0, 1.0 / 3.0 * 0.5);
    near(fitted.posterior.row(2), &[of_0 / (of_0 + of_1), of_1 / (of_0 + of_1)]);
    near(fitted.posterior.row(1), &[0.0, 1.0]);
    let votes = Tcl::default().aggregate((&a).into(), &mut Run::new(1)).unwrap().unwrap();
    near(votes.posterior.row(2), &[0.5, 0.5]);
    a.trusted = None;
    let error = model.aggregate((&a).into(), &mut Run::new(1)).unwrap_err();
    assert!(error.to_string().contains("no trusted instance"), "{error}");
}

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
        "MStep",
        "co-training 0..4 of 8 on Untrusted",
        "Calibrate",
        "EStep",
        "MStep",
        "EStep",
        "co-training 4..6 of 8 on Untrusted",
        "Calibrate",
        "EStep",
        "MStep",
        "EStep",
        "co-training 6..8 of 8 on Untrusted",
        "Calibrate",
        "EStep",
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
        "MStep",
        "train 0..1 of 2 on All, scored",
        "EStep",
        "MStep",
        "train 1..2 of 2 on All, scored",
        "EStep",
        "MStep",
        "Select",
    ];
    assert_eq!(acts(&with(train, AggNet::default())), want);
}

/// `dl` with its epochs cut into several acts.
#[derive(
    Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
struct Cut {
    cuts: Vec<u32>,
    resets: bool,
}

impl CrowdNet for Cut {
    const KIND: &'static str = "cut";
    const SUMMARY: &'static str = "";
    const SOURCE: &'static str = "";
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn paper() -> (NetworkSpec, Self) {
        Default::default()
    }

    fn aggregate(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Option<Fitted>> {
        Dl::default().aggregate(evidence, run)
    }

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let joint = Phase::joint("train", train.epochs);
        let ends = self.cuts.iter().chain([&joint.epochs]);
        let starts = [&0].into_iter().chain(&self.cuts);
        let parts =
            starts.zip(ends).map(|(start, end)| Phase { act: *start..*end, ..joint.clone() });
        let acts = self
            .resets
            .then_some(Act::Reset(LearnerSubset::All))
            .into_iter()
            .chain(parts.map(Act::Train));
        acts.chain([Act::Select]).nth(state.acts)
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
        Dl::default().loss(context, gradient)
    }
}

/// Selection, the average, the learning rate schedule and the moments all continue from one act to the next.
#[test]
fn a_phase_in_several_acts_is_the_phase_in_one() {
    let a = agreeing();
    let described = described(&a);
    for (select, average) in [(train::spec::Select::Last, 0.6), (train::spec::Select::Valid, 0.0)] {
        let train = TrainSpec { epochs: 6, select, average, ..TrainSpec::default() };
        let with = |cuts: &[u32]| {
            let cut = Cut { cuts: cuts.to_vec(), resets: false };
            let mut described = described.clone();
            described.gold = (0..9)
                .map(|i| crate::frame::Gold {
                    instance: i,
                    class: i % 3,
                    role: crate::frame::Role::Valid,
                })
                .collect();
            let fitted = fit(&on_cpu(train.clone(), cut), &a, &described);
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
    let a = agreeing();
    let described = described(&a);
    let start = |resets| {
        let optimiser = OptimiserSpec { learning_rate: 0.0, ..OptimiserSpec::default() };
        let train = TrainSpec { epochs: 1, optimiser, ..TrainSpec::default() };
        parameters(fit(&on_cpu(train, Cut { cuts: Vec::new(), resets }), &a, &described).unwrap())
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
    let described = described(&a);
    let evidence = Evidence { annotations: &a, described: Some(&described) };
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

/// A wrong trusted class takes part in the calibration, but the classifier is trained on it only in the retraining.
#[test]
fn co_training_is_not_told_trusted_classes() {
    let a = agreeing();
    let described = described(&a);
    let trained = |class: u32, rounds_only: bool| {
        let mut a = a.clone();
        a.trusted = Some((0..40).map(|i| (i == 7).then_some(class)).collect());
        let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        let model = Tcl { rounds: 1, first_epochs: 3, ..Tcl::default() };
        fit(&on_cpu(train, model), &a, &described).unwrap().trace[..3 + usize::from(!rounds_only)]
            .iter()
            .map(|row| row.objective)
            .collect::<Vec<_>>()
    };
    assert_eq!(trained(0, true), trained(2, true));
    assert!(trained(0, false) != trained(2, false));
}

/// Instance 7 has no features: its posterior follows from annotations alone, here with the matrices of two rounds.
#[test]
fn instances_without_features_take_part_in_the_e_step() {
    let mut rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    rows.extend((0..40).filter(|i| i % 5 == 0).map(|i| (i, 2, (i + 1) % 3)));
    rows.push((7, 2, 0));
    let a = tiny(3, &rows);
    let mut described = described(&a);
    described.row_of_instance[7] = None;
    let train = TrainSpec { epochs: 2, ..TrainSpec::default() };
    let fitted = fit(&with(train, AggNet::default()), &a, &described).unwrap();
    let confusion = fitted.report.confusion.as_ref().unwrap();
    let p = |r: usize, label: usize, k: usize| confusion.column(&a, r, label)[k] + 1e-4;
    let terms = [0, 1, 2].map(|k| p(0, 1, k) * p(1, 1, k) * p(2, 0, k));
    let sum: f64 = terms.iter().sum();
    // The reported matrices are of the M-step after this E-step, which changes them only a little.
    for (got, term) in fitted.posterior.row(7).iter().zip(terms) {
        assert!((got - term / sum).abs() < 0.02, "{got}, expected {}", term / sum);
    }
}

#[test]
fn a_checkpoint_holds_the_whole_state() {
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
    };
    let mut best = Snapshot::default();
    best.f32s("net.weight".to_owned(), vec![2], vec![0.1, -3.0]);
    let mut targets = Posterior::zeros(2, 3);
    targets.values_mut().copy_from_slice(&[0.1, 0.2, 0.7, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
    let state = TrainState {
        acts: 9,
        epoch: 2,
        trace: vec![row("co-training", 1, None), row("retraining", 3, Some(0.5))],
        best: Some((-1.5, 4, best.clone())),
        average: Some(best),
        targets: Some(targets),
        are_targets_own: true,
        calibrator: Calibrator::fit(Method::Isotonic, 0.0, &points),
    };
    assert!(state.calibrator.is_some());
    let mut saved = Snapshot::default();
    state.save(&mut saved).unwrap();
    let saved = Snapshot::from_bytes(&saved.to_bytes().unwrap()).unwrap();
    let targets = Some(Posterior::zeros(2, 3));
    let mut loaded = TrainState { targets, ..TrainState::default() };
    loaded.load(&saved).unwrap();
    assert_eq!(loaded, state);
    let mut other = TrainState { targets: Some(Posterior::zeros(3, 3)), ..TrainState::default() };
    assert!(other.load(&saved).unwrap_err().to_string().contains("another model"));
}

/// The learning rate is zero, so that the first epoch stays the best. With a patience of 1 the rounds end after one
/// more epoch.
#[test]
fn rounds_end_when_patience_does() {
    let a = agreeing();
    let mut described = described(&a);
    let valid =
        |i| crate::frame::Gold { instance: i, class: i % 3, role: crate::frame::Role::Valid };
    described.gold = (0..9).map(valid).collect();
    let optimiser = OptimiserSpec { learning_rate: 0.0, ..OptimiserSpec::default() };
    let select = train::spec::Select::Valid;
    let train =
        TrainSpec { epochs: 9, patience: Some(1), select, optimiser, ..TrainSpec::default() };
    let backbone = BackboneSpec { batch_norm: false, ..BackboneSpec::default() };
    let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
    let model = Neural { network, model: AggNet::default() };
    assert_eq!(fit(&model, &a, &described).unwrap().trace.len(), 2);
}
