//! A model whose state has several targets and calibrators, a prior and numbers of its own.

use super::resumed::assert_resumes;
use crate::frame::Matrix;
use crate::model::calibration::calibrator::{Calibrator, Method};
use crate::model::neural::tests::fits::agreeing;
use crate::model::neural::tests::linear::{numbers, probabilities, weights};
use crate::model::neural::tests::*;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::with_features;

/// A classifier and an aggregator, a learner that reads annotations. First both are trained on `second`, whose classes
/// are those of the votes plus one; then on the mean of their calibrated probabilities.
#[derive(
    Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
struct TwoViews {}

impl CrowdNet for TwoViews {
    test_kind!("two_views");

    /// A head with one number for each class, label and feature.
    fn heads(&self, sizes: &Sizes) -> Heads {
        let width = sizes.classes * sizes.labels * sizes.features[0];
        let head = Head { name: "head", from: HeadInput::Features, widths: vec![width] };
        Heads { named: vec![head], ..Heads::CLASSIFIER }
    }

    fn other_learners(&self, network: &NetworkSpec, sizes: &Sizes) -> Vec<LearnerSpec> {
        assert_eq!((sizes.annotators, sizes.annotator_features), (2, None));
        let input = LearnerInput::Annotations;
        vec![LearnerSpec::new("aggregator", &network.backbone, Heads::CLASSIFIER, input)]
    }
}

impl TrainingObjective for TwoViews {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let second = Phase { targets: "second", ..Phase::joint("second", train.epochs) };
        let acts = [
            Act::MStep(MAIN_TARGETS),
            Act::EStep("second"),
            Act::Train(second),
            Act::Calibrate("classifier", Method::Temperature),
            Act::Calibrate("aggregator", Method::Isotonic),
            Act::EStep(MAIN_TARGETS),
            Act::MStep(MAIN_TARGETS),
            Act::Train(Phase::joint("main", train.epochs)),
        ];
        acts.get(state.acts).cloned()
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        2 * train.epochs
    }

    fn e_step(&self, context: &BatchContext<'_>, name: &'static str) -> Vec<f64> {
        if name == "second" {
            let rows = context.batch.targets.chunks_exact(3);
            return rows.flat_map(|row| [row[2], row[0], row[1]]).collect();
        }
        let calibrated = |learner: &str, p: &[f64]| {
            let mut p = p.to_vec();
            let calibrator = context.estimates.calibrators.get(learner);
            p.chunks_exact_mut(3).for_each(|row| calibrator.into_iter().for_each(|c| c.apply(row)));
            p
        };
        let (p, q) = (&context.out.p, &context.others[0].p);
        let (p, q) = (calibrated("classifier", p), calibrated("aggregator", q));
        p.iter().zip(q).map(|(p, q)| f64::midpoint(*p, q)).collect()
    }

    /// The prior is the mean of the targets; the number counts the M-steps.
    fn m_step(&self, _: &Annotations, _: &[f64], state: &mut TrainState, _: &mut AnnotatorParams) {
        let rows: Vec<&[f64]> = state.targets[MAIN_TARGETS].posterior.values().chunks(3).collect();
        let mean = |k: usize| rows.iter().map(|row| row[k]).sum::<f64>() / rows.len() as f64;
        state.estimates.prior = Some((0..3).map(mean).collect());
        state.estimates.numbers.entry("steps".to_owned()).or_insert_with(|| vec![0.0])[0] += 1.0;
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let (rows, aggregator) = (context.batch.len() as f64, &context.others[0]);
        let mut loss = context.cross_entropy_of_targets(gradient);
        for (at, target) in context.batch.targets.iter().enumerate() {
            loss -= target * aggregator.p[at].ln() / rows;
            gradient.others[0].p[at] -= target / aggregator.p[at] / rows;
        }
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let posterior = context.batch.targets.clone();
        BatchPrediction { classes: context.out.p.clone(), posterior, ..BatchPrediction::default() }
    }
}

fn two_views(learning_rate: f64, epochs: u32) -> Neural<TwoViews> {
    let backbone = BackboneSpec::one_layer();
    let optimiser = OptimiserSpec { learning_rate, ..OptimiserSpec::default() };
    let train = TrainSpec { epochs, batch_size: Some(40), optimiser, ..TrainSpec::default() };
    let device = "cpu".to_owned();
    let network = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
    Neural { network, model: TwoViews {} }
}

/// The votes are i mod 3, and every fourth instance is trusted.
fn crowd() -> Annotations {
    let mut a = agreeing();
    a.trusted = Some((0..40).map(|i| (i % 4 == 0).then_some(i % 3)).collect());
    a
}

/// The learning rate is zero, so that everything follows from the networks' initial parameters.
#[test]
fn acts_change_the_targets_and_estimates_that_they_name() {
    let a = crowd();
    let with_features = with_features(&a);
    let folder = tempfile::tempdir().unwrap();
    let mut job = JobContext::new(1);
    job.keep_checkpoint(Some(folder.path().join("state")));
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fitted = two_views(0.0, 1).fit(evidence, &mut job).unwrap();
    let saved = Snapshot::from_bytes(&job.checkpoint().unwrap().unwrap()).unwrap();
    let class_of = |i: usize| if i.is_multiple_of(4) { i % 3 } else { (i + 1) % 3 };
    let second = saved.take_f64s("targets.second").unwrap();
    for (i, row) in second.chunks(3).enumerate() {
        let wanted = [0, 1, 2].map(|k| f64::from(u8::from(k == class_of(i))));
        assert_eq!(row, wanted, "instance {i}");
    }
    assert_eq!(saved.take_f64s("numbers.steps").unwrap(), [2.0]);

    let calibrator = |name: &str| -> Calibrator {
        serde_json::from_str(&saved.take_text(&format!("calibrators.{name}")).unwrap()).unwrap()
    };
    let calibrators = [calibrator("classifier"), calibrator("aggregator")];
    let is_of = calibrators.each_ref().map(|c| matches!(c, Calibrator::Temperature { .. }));
    assert_eq!(is_of, [true, false]);
    let posterior = fitted.posterior.clone();
    let trace = fitted.trace.clone();
    let trained = numbers(fitted);
    let rows: Vec<f32> =
        (0..40).flat_map(|i| (0..6).map(move |n| f32::from(u8::from(n % 3 == i % 3)))).collect();
    let p = probabilities(&weights("", &trained), with_features.matrix());
    let q = probabilities(&weights("aggregator.", &trained), &Matrix::from_rows(6, &rows));
    let (mut prior, mut objective) = ([0.0; 3], 0.0);
    for i in 0..40 {
        objective += (p[i][class_of(i)].ln() + q[i][class_of(i)].ln()) / 40.0;
        let (mut p, mut q) = (p[i].clone(), q[i].clone());
        calibrators[0].apply(&mut p);
        calibrators[1].apply(&mut q);
        for k in 0..3 {
            let wanted = match i % 4 {
                0 => f64::from(u8::from(k == i % 3)),
                _ => f64::midpoint(p[k], q[k]),
            };
            let got = posterior.row(i)[k];
            assert!((got - wanted).abs() < 1e-5, "instance {i}: {got}, expected {wanted}");
            prior[k] += wanted / 40.0;
        }
    }
    let saved_prior = saved.take_f64s("prior").unwrap();
    for (got, want) in saved_prior.iter().zip(prior) {
        assert!((got - want).abs() < 1e-5, "{got}, expected {want}");
    }
    let of_second = trace.iter().find(|row| row.phase == "second").unwrap().objective;
    assert!((of_second - objective).abs() < 1e-5, "{of_second}, expected {objective}");
    // Three classes, three labels and four features.
    assert_eq!(trained.f32s_with_prefix("head.").map(|(.., v)| v.len()).max(), Some(4 * 36));
}

#[test]
fn an_interrupted_training_with_several_targets_ends_with_the_same_bits() {
    let a = crowd();
    let with_features = with_features(&a);
    let model = two_views(0.02, 3);
    assert_resumes(&model, &a, &with_features, 1..6);
}
