//! Learners that read other inputs than the features of instances.

use std::sync::Arc;

use super::fits::{agreeing, fit};
use super::linear::{expect_step, numbers, probabilities, weights};
use super::*;
use crate::frame::{Features, Matrix, QuestionFeatures};
use crate::model::SavedModel;
use crate::testing::with_features;

/// A classifier, a learner that reads annotations and a learner that reads annotators' features, each with its own loss.
#[derive(
    Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Readers {}

impl CrowdNet for Readers {
    test_kind!("readers");

    fn other_learners(&self, network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        let learner =
            |name, input| LearnerSpec::new(name, &network.backbone, Heads::CLASSIFIER, input);
        vec![
            learner("annotations", LearnerInput::Annotations),
            learner("annotators", LearnerInput::Annotators),
        ]
    }
}

impl TrainingObjective for Readers {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    /// The cross-entropy of the targets under the classifier and the learner of annotations, and of the labels under the
    /// learner of annotators, which has one row for each annotator of the batch.
    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let mut loss = context.cross_entropy_of_targets(gradient);
        let [annotations, annotators] = context.others else { unreachable!("two others") };
        let rows = context.batch.len() as f64;
        for (at, target) in context.batch.targets.iter().enumerate() {
            loss -= target * annotations.p[at].ln() / rows;
            gradient.others[0].p[at] -= target / annotations.p[at] / rows;
        }
        assert_eq!(annotators.rows, context.batch.annotators.len());
        for (_, annotation) in context.annotations() {
            let at = annotation.annotator as usize * 3 + annotation.label as usize;
            loss -= annotators.p[at].ln() / rows;
            gradient.others[1].p[at] -= 1.0 / annotators.p[at] / rows;
        }
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let classes = context.others[0].p.clone();
        BatchPrediction { posterior: classes.clone(), classes, ..BatchPrediction::default() }
    }
}

pub(super) fn readers(learning_rate: f64, batch_size: usize) -> Neural<Readers> {
    let backbone = BackboneSpec::one_layer();
    let optimiser = OptimiserSpec::descent(learning_rate);
    let train =
        TrainSpec { epochs: 1, batch_size: Some(batch_size), optimiser, ..TrainSpec::default() };
    let device = "cpu".to_owned();
    let network = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
    Neural { network, model: Readers {} }
}

/// Annotator 1 has the features 0.5 and -2, annotator 0 has none.
pub(super) fn with_annotators(a: &Annotations) -> QuestionFeatures {
    let mut with_features = with_features(a);
    let matrix = Arc::new(Matrix::from_rows(2, &[0.5, -2.0]));
    let features = Features { matrix, ..with_features.features.clone() };
    with_features.annotators = Some((features, vec![None, Some(0)]));
    with_features
}

/// Both annotators give instance i the label i mod 3, so that its row of annotations has six values, two of them one. Each
/// annotator gives the label 0 to 14 of the 40 instances, and the labels 1 and 2 to 13 each.
#[test]
fn a_step_of_annotations_and_of_annotators_is_that_worked_out_by_hand() {
    let a = agreeing();
    let with_features = with_annotators(&a);
    let trained = |rate| numbers(fit(&readers(rate, 40), &a, &with_features).unwrap());
    let (start, end) = (trained(0.0), trained(0.1));
    let rows: Vec<f32> =
        (0..40).flat_map(|i| (0..6).map(move |n| f32::from(u8::from(n % 3 == i % 3)))).collect();
    let annotations = Matrix::from_rows(6, &rows);
    let before = weights("annotations.", &start);
    let p = probabilities(&before, &annotations);
    let each = |d: &dyn Fn(usize, usize) -> f64, n: usize| -> Vec<Vec<f64>> {
        (0..n).map(|i| (0..3).map(|k| d(i, k) / 40.0).collect()).collect()
    };
    let d = each(&|i, k| p[i][k] - f64::from(u8::from(i % 3 == k)), 40);
    expect_step(&before, &weights("annotations.", &end), &d, &annotations);

    let annotators = Matrix::from_rows(2, &[0.0, 0.0, 0.5, -2.0]);
    let before = weights("annotators.", &start);
    let p = probabilities(&before, &annotators);
    let d = each(&|r, k| 40.0 * p[r][k] - [14.0, 13.0, 13.0][k], 2);
    expect_step(&before, &weights("annotators.", &end), &d, &annotators);
}

/// Posteriors use an instance's own annotations; a feature row that nobody has annotated has none.
#[test]
fn what_nobody_has_annotated_has_no_row_of_annotations() {
    let a = agreeing();
    let with_features = with_annotators(&a);
    let fitted = fit(&readers(0.1, 40), &a, &with_features).unwrap();
    let trained = fitted.model.as_ref().unwrap();
    let model = SavedModel::new(&trained.description, &trained.parameters, Some("cpu"));
    let again = predict::<Readers>(model, with_features.matrix(), &JobContext::new(1)).unwrap();
    assert_eq!(fitted.predictions.as_ref(), Some(&again.classes));
    let posterior = fitted.posterior.clone();
    let learner = weights("annotations.", &numbers(fitted));
    let rows = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
    let p = probabilities(&learner, &Matrix::from_rows(6, &rows));
    for i in (1..40).step_by(3) {
        for k in 0..3 {
            let (unseen, seen) = (again.classes.row(i)[k], posterior.row(i)[k]);
            assert!((unseen - p[0][k]).abs() < 1e-6, "row {i}: {unseen}, expected {:?}", p[0]);
            assert!((seen - p[1][k]).abs() < 1e-6, "row {i}: {seen}, expected {:?}", p[1]);
        }
    }
}

/// The trusted instance 40 has no annotations, and a batch of its own, so that the batch norm of the learner of
/// annotators has no rows.
#[test]
fn a_batch_without_annotators_has_no_rows_of_them() {
    let agreeing = agreeing();
    let rows = (0..40)
        .flat_map(|i| agreeing.triples_of_instance(i).map(move |(r, l, _)| (i as u32, r, l)));
    let dims = Dims { instances: 41, ..agreeing.dims() };
    let mut a = crate::testing::annotations(dims, &rows.collect::<Vec<_>>());
    a.trusted = Some((0..41).map(|i| (i == 40).then_some(2)).collect());
    let mut model = readers(0.1, 1);
    model.network.backbone.batch_norm = true;
    let fitted = fit(&model, &a, &with_annotators(&a)).unwrap();
    assert!(fitted.posterior.dense().values().iter().all(|p| p.is_finite()));
}
