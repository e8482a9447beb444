//! Phases that are repeated in rounds, and phases with a delay of their own.

use crate::model::neural::tests::fits::{agreeing, agreeing_with_features, fit, parameters};
use crate::model::neural::tests::*;
use crate::testing::with_features;

/// A phase of one epoch.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
struct Second {
    annotator_delay: Option<u32>,
    learner_rate: Option<f64>,
}

/// `trace_regularised` with phases of its own.
#[derive(
    Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
struct Phases {
    /// Rounds of the first phase, of all epochs each.
    rounds: u32,
    /// A second phase of one epoch.
    second: Option<Second>,
}

impl CrowdNet for Phases {
    test_kind!("phases");

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        TraceRegularised::default().tables(task)
    }
}

impl TrainingObjective for Phases {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanInstance);

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let first = |round| Phase { round, ..Phase::joint("first", train.epochs) };
        let second = self.second.map(|Second { annotator_delay, learner_rate }| Phase {
            annotator_delay,
            learner_rate,
            act: 0..1,
            ..Phase::joint("second", train.epochs)
        });
        (0..self.rounds).map(first).chain(second).map(Act::Train).nth(state.acts)
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        TraceRegularised::default().loss(context, gradient)
    }
}

fn fitted(epochs: u32, rate: f64, model: Phases) -> Fitted {
    let a = agreeing();
    let optimiser = OptimiserSpec {
        rule: OptimiserKind::Sgd,
        learning_rate: rate,
        annotator_learning_rate: Some(rate),
        schedule: LrSchedule::Constant,
        ..OptimiserSpec::default()
    };
    let train = TrainSpec { epochs, batch_size: Some(40), optimiser, ..TrainSpec::default() };
    let backbone = BackboneSpec { dropout: 0.5, batch_norm: false, ..BackboneSpec::default() };
    let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
    fit(&Neural { network, model }, &a, &with_features(&a)).unwrap()
}

/// No parameter changes, so that only batches and dropout can.
#[test]
fn every_round_has_random_numbers_and_trace_rows_of_its_own() {
    let trace = fitted(2, 0.0, Phases { rounds: 2, second: None }).trace;
    let rows: Vec<(&str, u32, bool)> =
        trace.iter().map(|row| (&row.phase[..], row.step, row.change.is_some())).collect();
    let second = "first (round 1)";
    assert_eq!(
        rows,
        [("first", 1, false), ("first", 2, true), (second, 1, false), (second, 2, true)]
    );
    for epoch in 0..2 {
        let (one, two) = (trace[epoch].objective, trace[2 + epoch].objective);
        assert!((one - two).abs() > 1e-6, "epoch {epoch}: {one} in both rounds");
    }
}

fn numbers(prefix: &str, second: Option<Second>) -> Vec<f32> {
    let trained = parameters(fitted(5, 0.1, Phases { rounds: 1, second }));
    trained.f32s_with_prefix(prefix).flat_map(|(.., values)| values.to_vec()).collect()
}

/// A fifth of five epochs is one: by default, the first epoch of each phase leaves the annotators alone.
#[test]
fn a_phase_may_have_a_delay_of_its_own() {
    let one = numbers("crowd.", None);
    assert_eq!(numbers("crowd.", Some(Second::default())), one);
    let at_once = Second { annotator_delay: Some(0), ..Second::default() };
    assert_ne!(numbers("crowd.", Some(at_once)), one);
}

#[test]
fn a_phase_may_have_a_rate_of_its_own() {
    let one = numbers("net.", None);
    let at_rate = |rate| numbers("net.", Some(Second { learner_rate: rate, ..Second::default() }));
    assert_eq!(at_rate(Some(0.0)), one);
    let same = at_rate(Some(0.1));
    assert_eq!(at_rate(None), same);
    let moved = |to: &[f32]| -> Vec<f32> { one.iter().zip(to).map(|(a, b)| b - a).collect() };
    for (one, two) in moved(&same).iter().zip(moved(&at_rate(Some(0.2)))) {
        assert!((2.0 * one - two).abs() < 1e-5, "{one} and {two}");
    }
}

/// The matrix of `single_confusion` is frozen in two or three of three epochs.
#[test]
fn parameters_that_are_frozen_to_the_end_are_a_warning() {
    let (a, with_features) = agreeing_with_features();
    let warnings = |frozen| {
        let model = SingleConfusion { identity_epochs: Some(frozen), ..SingleConfusion::default() };
        let train = TrainSpec { epochs: 3, ..TrainSpec::default() };
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let mut job = JobContext::new(1);
        on_cpu(train, model).fit(evidence, &mut job).unwrap();
        job.warnings().iter().filter(|warning| warning.contains("frozen")).count()
    };
    assert_eq!([2, 3].map(warnings), [0, 1]);
}

// keys: model.train.optimiser.warmup, model.train.optimiser.learning_rate
#[test]
fn rates_that_train_next_to_nothing_are_a_warning() {
    let (a, with_features) = agreeing_with_features();
    let warnings = |warmup, learning_rate| {
        let optimiser = OptimiserSpec { learning_rate, warmup, ..OptimiserSpec::default() };
        let train = TrainSpec { epochs: 3, optimiser, ..TrainSpec::default() };
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let mut job = JobContext::new(1);
        on_cpu(train, CrowdLayer::default()).fit(evidence, &mut job).unwrap();
        ["learning rate of phase", "rates rise over"]
            .map(|text| job.warnings().iter().filter(|warning| warning.contains(text)).count())
    };
    assert_eq!(warnings(3, 0.1), [0, 0]);
    assert_eq!(warnings(4, 0.1), [0, 1]);
    assert_eq!(warnings(0, 0.0), [1, 0]);
}
