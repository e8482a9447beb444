//! Learners that read tables of parameters, which their gradients with respect to the input update.

use rand::Rng as _;

use super::fits::{agreeing, agreeing_with_features, fit};
use super::linear::{expect_step, numbers, probabilities, weights};
use super::training_loop::resumed::assert_resumes;
use super::*;
use crate::frame::Matrix;
use crate::model::neural::data::inputs::Inputs;
use crate::model::neural::net::input::scaler::Scaler;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::with_features;

/// The width of an instance's embedding, and that of an annotator's.
const INSTANCE_WIDTH: usize = 3;
const ANNOTATOR_WIDTH: usize = 2;

/// One learner predicts the vote from the embedding of the instance, another the label from that of the annotator. The
/// classifier learns nothing.
#[derive(
    Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
struct Embedded {
    /// Whether only the tables are trained.
    freezes_learners: bool,
    /// The width of instances' embeddings that the learner expects, where it is wrong.
    wrong_width: Option<usize>,
}

impl CrowdNet for Embedded {
    test_kind!("embedded");

    fn other_learners(&self, network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        let learner = |name, table, owner, width| {
            let input = LearnerInput::Embedding(EmbeddingInput { table, owner, width });
            LearnerSpec::new(name, &network.backbone, Heads::CLASSIFIER, input)
        };
        vec![
            learner(
                "of_instances",
                "instance_embeddings",
                Owner::Instance,
                self.wrong_width.unwrap_or(INSTANCE_WIDTH),
            ),
            learner("of_annotators", "annotator_embeddings", Owner::Annotator, ANNOTATOR_WIDTH),
        ]
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let mut rng = task.job.rng("embeddings");
        let mut drawn = |n: usize| (0..n).map(|_| rng.random::<f32>() - 0.5).collect::<Vec<_>>();
        let (instances, annotators) = (
            drawn(task.dims.instances * INSTANCE_WIDTH),
            drawn(task.dims.annotators * ANNOTATOR_WIDTH),
        );
        Ok(vec![
            ParamTable::drawn("annotator_embeddings", ANNOTATOR_WIDTH, annotators),
            ParamTable::new("instance_embeddings", Owner::Instance, INSTANCE_WIDTH, instances),
        ])
    }
}

impl TrainingObjective for Embedded {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;
    const ANNOTATOR_RATE: f64 = 1.0;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let learners = if self.freezes_learners {
            LearnerSubset::NONE
        } else {
            LearnerSubset::Only(&["of_instances", "of_annotators"])
        };
        let phase = Phase { learners, ..Phase::joint("train", train.epochs) };
        (state.acts == 0).then_some(Act::Train(Phase { annotator_delay: Some(0), ..phase }))
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let (rows, n) = (context.batch.len() as f64, context.batch.annotations.len() as f64);
        let (instances, annotators) = (&context.others[0], &context.others[1]);
        let mut loss = 0.0;
        for (at, target) in context.batch.targets.iter().enumerate() {
            loss -= target * instances.p[at].ln() / rows;
            gradient.others[0].p[at] -= target / instances.p[at] / rows;
        }
        for (_, annotation) in context.annotations() {
            let at = 3 * annotation.annotator as usize + annotation.label as usize;
            loss -= annotators.p[at].ln() / n;
            gradient.others[1].p[at] -= 1.0 / annotators.p[at] / n;
        }
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let posterior = context.others[0].p.clone();
        BatchPrediction { classes: context.out.p.clone(), posterior, ..BatchPrediction::default() }
    }
}

/// One batch an epoch, and steps of plain gradient descent.
fn embedded(learning_rate: f64, freezes_learners: bool, batch_by: BatchBy) -> Neural<Embedded> {
    let backbone = BackboneSpec::one_layer();
    let optimiser = OptimiserSpec {
        annotator_learning_rate: Some(learning_rate),
        ..OptimiserSpec::descent(learning_rate)
    };
    let train =
        TrainSpec { epochs: 1, batch_size: Some(100), batch_by, optimiser, ..TrainSpec::default() };
    let device = "cpu".to_owned();
    let network = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
    Neural { network, model: Embedded { freezes_learners, wrong_width: None } }
}

fn table(name: &str, snapshot: &Snapshot) -> Vec<f32> {
    snapshot.find_f32s(name).unwrap().to_vec()
}

/// The votes are i mod 3. By hand: D = (q - t) / 40 of each instance, and the mean of (q - label) / 80 over the labels of
/// each annotator; the embeddings move by minus 0.1 D W, the weights by minus 0.1 D^T E.
#[test]
fn embeddings_move_by_the_gradient_of_their_learner_s_input() {
    let (a, with_features) = agreeing_with_features();
    let after =
        |rate, freezes, by| numbers(fit(&embedded(rate, freezes, by), &a, &with_features).unwrap());
    let start = after(0.0, false, BatchBy::Instance);
    let (instances, annotators) = (
        table("instances.01.instance_embeddings", &start),
        table("crowd.00.annotator_embeddings", &start),
    );
    let (of_instances, of_annotators) =
        (weights("of_instances.", &start), weights("of_annotators.", &start));
    let (instance_matrix, annotator_matrix) = (
        Matrix::from_rows(INSTANCE_WIDTH, &instances),
        Matrix::from_rows(ANNOTATOR_WIDTH, &annotators),
    );
    let (q, r) = (
        probabilities(&of_instances, &instance_matrix),
        probabilities(&of_annotators, &annotator_matrix),
    );
    let is = |one: usize, other: usize| f64::from(u8::from(one == other));
    let d_instances: Vec<Vec<f64>> =
        (0..40).map(|i| (0..3).map(|k| (q[i][k] - is(i % 3, k)) / 40.0).collect()).collect();
    let share = |label: usize| (0..40).filter(|i| i % 3 == label).count() as f64;
    let d_annotators: Vec<Vec<f64>> =
        (0..2).map(|a| (0..3).map(|k| (40.0 * r[a][k] - share(k)) / 80.0).collect()).collect();
    let moved = |values: &[f32], d: &[Vec<f64>], weights: &[f32]| -> Vec<f64> {
        let width = values.len() / d.len();
        let by = |at: usize| -> f64 {
            let d = &d[at / width];
            (0..3).map(|k| d[k] * f64::from(weights[k * width + at % width])).sum()
        };
        (0..values.len()).map(|at| f64::from(values[at]) - 0.1 * by(at)).collect()
    };
    let wanted_instances = moved(&instances, &d_instances, &of_instances.0);
    let wanted_annotators = moved(&annotators, &d_annotators, &of_annotators.0);
    for freezes in [false, true] {
        let end = after(0.1, freezes, BatchBy::Instance);
        for (name, wanted, before) in [
            ("instances.01.instance_embeddings", &wanted_instances, &instances),
            ("crowd.00.annotator_embeddings", &wanted_annotators, &annotators),
        ] {
            let got = table(name, &end);
            assert!(got.iter().zip(before).all(|(got, before)| got != before), "{name}");
            for (got, wanted) in got.iter().zip(wanted) {
                assert!((f64::from(*got) - wanted).abs() < 1e-6, "{name}: {got}, not {wanted}");
            }
        }
        if freezes {
            assert_eq!(weights("of_instances.", &end), of_instances);
        } else {
            expect_step(
                &of_instances,
                &weights("of_instances.", &end),
                &d_instances,
                &instance_matrix,
            );
            expect_step(
                &of_annotators,
                &weights("of_annotators.", &end),
                &d_annotators,
                &annotator_matrix,
            );
        }
    }
    // Each instance has two rows of its own in a batch of annotations: their gradients add up to the same.
    let by_annotation =
        table("instances.01.instance_embeddings", &after(0.1, true, BatchBy::Annotation));
    for (got, wanted) in by_annotation.iter().zip(&wanted_instances) {
        assert!((f64::from(*got) - wanted).abs() < 1e-6, "{got}, not {wanted}");
    }
}

#[test]
fn a_learner_whose_table_has_another_width_is_a_bug() {
    let a = agreeing();
    let mut model = embedded(0.1, false, BatchBy::Instance);
    model.model.wrong_width = Some(INSTANCE_WIDTH + 1);
    let error = fit(&model, &a, &with_features(&a)).unwrap_err().to_string();
    assert!(error.contains("no table of parameters"), "{error}");
}

/// The largest change of a clipped step is that of the norm over learners and tables together.
#[test]
fn the_norm_of_embeddings_is_clipped_with_the_others() {
    let (a, with_features) = agreeing_with_features();
    let after = |rate: f64| {
        let mut model = embedded(rate, false, BatchBy::Instance);
        model.network.train.optimiser.clip_norm = Some(0.01);
        numbers(fit(&model, &a, &with_features).unwrap())
    };
    let (start, end) = (after(0.0), after(1.0));
    let squares = start.f32s_with_prefix("").map(|(name, _, values)| -> f64 {
        let ends = end.find_f32s(name).unwrap();
        values.iter().zip(ends).map(|(s, e)| f64::from(e - s).powi(2)).sum()
    });
    let norm = squares.sum::<f64>().sqrt();
    assert!((norm - 0.01).abs() < 1e-5, "{norm}");
}

/// Instance 39 has features and a gold class but no annotation that trains: its embedding is the mean of the others, and
/// so is that of a row of features that belongs to no instance.
#[test]
fn an_instance_without_training_data_has_the_mean_embedding() {
    let rows: Vec<(u32, u32, u32)> = (0..78).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    let dims = Dims { instances: 40, annotators: 2, classes: 3, labels: 3 };
    let a = crate::testing::annotations(dims, &rows);
    let fitted = fit(&embedded(0.1, false, BatchBy::Instance), &a, &with_features(&a)).unwrap();
    let instances = table("instances.01.instance_embeddings", &numbers(fitted));
    let rows: Vec<&[f32]> = instances.chunks(INSTANCE_WIDTH).collect();
    for at in 0..INSTANCE_WIDTH {
        let mean = rows[..39].iter().map(|row| f64::from(row[at])).sum::<f64>() / 39.0;
        assert!((f64::from(rows[39][at]) - mean).abs() < 1e-6, "{} and {mean}", rows[39][at]);
    }
    let values: Vec<f32> = (0..6).map(|n| n as f32).collect();
    let params = AnnotatorParams {
        tables: vec![ParamTable::new(
            "instance_embeddings",
            Owner::Instance,
            INSTANCE_WIDTH,
            values,
        )],
    };
    let embedding = EmbeddingInput {
        table: "instance_embeddings",
        owner: Owner::Instance,
        width: INSTANCE_WIDTH,
    };
    let (none, input) = (Matrix::from_rows(1, &[0.0]), LearnerInput::Embedding(embedding));
    let inputs = Inputs::unseen(&none).with_tables(&params);
    let scaler = Scaler::identity(&[INSTANCE_WIDTH], &BackboneSpec::default());
    let read = input.read(inputs, &scaler, INSTANCE_WIDTH, &[1, u32::MAX, 0]);
    assert_eq!(read, [3.0, 4.0, 5.0, 1.5, 2.5, 3.5, 0.0, 1.0, 2.0]);
}

#[test]
fn an_interrupted_training_of_embeddings_ends_with_the_same_bits() {
    let (a, with_features) = agreeing_with_features();
    let mut model = embedded(0.02, false, BatchBy::Instance);
    model.network.train.optimiser.rule = OptimiserKind::Adam;
    model.network.train.optimiser.beta1 = 0.9;
    (model.network.train.epochs, model.network.train.batch_size) = (4, Some(7));
    assert_resumes(&model, &a, &with_features, 1..4);
}

/// Nothing else reads an embedding, so that a classifier of embeddings learns the vote of each instance; trained for so few
/// epochs, it is less sure of it than the vote.
// keys: dl.embed_instances, dl.instance_embedding
#[test]
fn a_classifier_of_embeddings_learns_each_instance_s_vote() {
    let a = agreeing();
    let of = |instance_embedding| {
        let train = TrainSpec { epochs: 120, ..TrainSpec::default() };
        let model = Dl { embed_instances: true, instance_embedding, ..Dl::default() };
        let spec = on_cpu(train, model);
        assert_eq!(spec.needs().features, FeatureUse::Optional);
        spec.fit((&a).into(), &mut JobContext::new(1)).unwrap()
    };
    let fitted = of(16);
    assert!(fitted.predictions.is_none() && fitted.model.is_none());
    for i in 0..40 {
        let p = fitted.posterior.row(i)[i % 3];
        assert!((0.5..1.0).contains(&p), "{i}: {p}");
    }
    assert!(of(3).posterior.row(0) != fitted.posterior.row(0));
}
