//! A model of two learners: trained in turn, trained together, reinitialised, interrupted and saved.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resumed::assert_resumes;
use super::trainer::trainer_of;
use crate::model::SavedModel;
use crate::model::neural::tests::fits::{agreeing, agreeing_with_features, fit};
use crate::model::neural::tests::linear::{expect_step, numbers, probabilities, weights};
use crate::model::neural::tests::*;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::with_features;

/// The learner that some epochs train, and its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
enum TrainingStage {
    /// The teacher, on the votes.
    Teacher,
    /// The classifier, on the teacher's predictions.
    Student,
    /// The teacher again, in a phase of its own that keeps the teacher's moments.
    Tuned,
    /// The teacher again, in a phase of its own with new moments.
    Retrained,
    /// Both learners, by the loss of their mean prediction on the votes.
    Mean,
    /// No epochs: the teacher is reinitialised.
    Reset,
}

impl TrainingStage {
    fn phase(self, epochs: u32) -> Phase {
        const TEACHER: LearnerSubset = LearnerSubset::Only(&["teacher"]);
        let (name, learners) = match self {
            Self::Teacher => ("teacher", TEACHER),
            Self::Student => ("student", LearnerSubset::Only(&["classifier"])),
            Self::Tuned => ("tuned", TEACHER),
            Self::Retrained => ("retrained", TEACHER),
            Self::Mean | Self::Reset => ("mean", LearnerSubset::All),
        };
        Phase { learners, keeps_moments: self == Self::Tuned, ..Phase::joint(name, epochs) }
    }
}

/// A classifier and its teacher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Pair {
    /// Stages and their epochs; all epochs of one stage are one phase.
    stages: Vec<(TrainingStage, u32)>,
    /// The teacher's own optimiser.
    teacher: Option<OptimiserSpec>,
    /// Whether the teacher reads the matrix of annotations, and not features.
    teacher_reads_annotations: bool,
}

impl CrowdNet for Pair {
    test_kind!("pair");

    fn other_learners(&self, network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        let (backbone, heads) = (network.backbone.clone(), Heads::CLASSIFIER);
        vec![LearnerSpec {
            name: "teacher",
            backbone,
            heads,
            input: if self.teacher_reads_annotations {
                LearnerInput::Annotations
            } else {
                LearnerInput::Features
            },
            optimiser: self.teacher.clone(),
        }]
    }
}

impl TrainingObjective for Pair {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, _train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let (current, epochs) = *self.stages.get(state.acts)?;
        if current == TrainingStage::Reset {
            return Some(Act::Reset(LearnerSubset::Only(&["teacher"])));
        }
        let of = |stages: &[(TrainingStage, u32)]| -> u32 {
            stages.iter().filter(|(other, _)| *other == current).map(|(_, epochs)| epochs).sum()
        };
        let start = of(&self.stages[..state.acts]);
        Some(Act::Train(Phase { act: start..start + epochs, ..current.phase(of(&self.stages)) }))
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let rows = context.batch.len() as f64;
        let (out, teacher) = (context.out, &context.others[0]);
        let mut loss = 0.0;
        for (at, target) in context.batch.targets.iter().enumerate() {
            let (d_out, d_teacher) = (&mut gradient.out, &mut gradient.others[0]);
            let (p, q) = (out.p[at], teacher.p[at]);
            match context.phase {
                "student" => {
                    loss -= q * p.ln() / rows;
                    d_out.p[at] -= q / p / rows;
                }
                "mean" => {
                    let mean = f64::midpoint(p, q);
                    loss -= target * mean.ln() / rows;
                    d_out.p[at] -= 0.5 * target / mean / rows;
                    d_teacher.p[at] -= 0.5 * target / mean / rows;
                }
                _ => {
                    loss -= target * q.ln() / rows;
                    d_teacher.p[at] -= target / q / rows;
                }
            }
        }
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let both = context.out.p.iter().zip(&context.others[0].p);
        let classes: Vec<f64> = both.map(|(p, q)| f64::midpoint(*p, *q)).collect();
        let posterior = classes.clone();
        BatchPrediction { classes, posterior, ..BatchPrediction::default() }
    }
}

/// Linear networks on features as they are; every epoch is one batch.
fn pair(optimiser: OptimiserSpec, stages: &[(TrainingStage, u32)]) -> Neural<Pair> {
    let backbone = BackboneSpec::one_layer();
    let train = TrainSpec { batch_size: Some(40), optimiser, ..TrainSpec::default() };
    let device = "cpu".to_owned();
    let network = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
    Neural { network, model: Pair { stages: stages.to_vec(), ..Pair::default() } }
}

fn adam(learning_rate: f64) -> OptimiserSpec {
    OptimiserSpec { learning_rate, schedule: LrSchedule::Constant, ..OptimiserSpec::default() }
}

fn trained(optimiser: OptimiserSpec, stages: &[(TrainingStage, u32)]) -> Snapshot {
    let a = agreeing();
    numbers(fit(&pair(optimiser, stages), &a, &with_features(&a)).unwrap())
}

/// The votes are i mod 3. By hand: D = (q - t) / 40 of the teacher on the votes, (p - q) / 40 of the classifier on the
/// teacher; and of both on their mean m, where only the voted class v counts: p_k ([k = v] - p_v) / (-80 m_v).
#[test]
fn a_step_moves_its_learners_as_worked_out_by_hand() {
    let (_, with_features) = agreeing_with_features();
    let matrix = with_features.matrix();
    let start = trained(OptimiserSpec::descent(0.0), &[(TrainingStage::Mean, 1)]);
    let (student, teacher) = (weights("", &start), weights("teacher.", &start));
    assert!(student.0.iter().zip(&teacher.0).all(|(w, v)| w != v), "drawn from one stream");
    let (p, q) = (probabilities(&student, matrix), probabilities(&teacher, matrix));
    let each = |d: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        (0..40).map(|i| (0..3).map(|k| d(i, k) / 40.0).collect()).collect()
    };
    let is_vote = |i: usize, k: usize| f64::from(u8::from(i % 3 == k));
    let after = |stage| trained(OptimiserSpec::descent(0.1), &[(stage, 1)]);

    let taught = after(TrainingStage::Teacher);
    let slopes = each(&|i, k| q[i][k] - is_vote(i, k));
    expect_step(&teacher, &weights("teacher.", &taught), &slopes, matrix);
    assert_eq!(weights("", &taught), student);

    let learned = after(TrainingStage::Student);
    expect_step(&student, &weights("", &learned), &each(&|i, k| p[i][k] - q[i][k]), matrix);
    assert_eq!(weights("teacher.", &learned), teacher);

    let both = after(TrainingStage::Mean);
    let of_mean = |own: &[Vec<f64>]| {
        each(&|i, k| {
            let vote = i % 3;
            -own[i][k] * (is_vote(i, k) - own[i][vote]) / (p[i][vote] + q[i][vote])
        })
    };
    expect_step(&student, &weights("", &both), &of_mean(&p), matrix);
    expect_step(&teacher, &weights("teacher.", &both), &of_mean(&q), matrix);
}

/// The first step of Adam is the rate itself against the sign of the gradient, while the classifier makes the step of
/// SGD. After the first epoch, the teacher's own schedule has the factor zero.
#[test]
fn a_learner_may_have_an_optimiser_of_its_own() {
    let a = agreeing();
    let shared = OptimiserSpec::descent(0.1);
    let (schedule, milestones, gamma) = (LrSchedule::Step, vec![1], 0.0);
    let own = OptimiserSpec { weight_decay: 0.0, schedule, milestones, gamma, ..adam(0.05) };
    let after = |teacher: &Option<OptimiserSpec>, epochs: u32, shared: &OptimiserSpec| {
        let mut model = pair(shared.clone(), &[(TrainingStage::Mean, epochs)]);
        model.model.teacher.clone_from(teacher);
        numbers(fit(&model, &a, &with_features(&a)).unwrap())
    };
    let none = OptimiserSpec { learning_rate: 0.0, ..shared.clone() };
    let (start, plain) = (after(&None, 1, &none), after(&None, 1, &shared));
    let with_own = after(&Some(own.clone()), 1, &shared);
    assert_eq!(weights("", &with_own), weights("", &plain));
    let [start, plain, first] = [&start, &plain, &with_own].map(|s| weights("teacher.", s).0);
    for ((start, plain), own) in start.iter().zip(plain).zip(&first) {
        let wanted = 0.05 * (plain - start).signum();
        assert!((own - start - wanted).abs() < 1e-4, "{start} becomes {own}, plainly {plain}");
    }
    let two = after(&Some(own), 2, &shared);
    assert_eq!(weights("teacher.", &two).0, first);
    assert_ne!(weights("", &two), weights("", &with_own));
}

/// Training the classifier changes neither the moments nor the epoch count nor the random numbers of the teacher.
#[test]
fn a_learner_that_is_trained_in_turn_is_the_learner_that_is_trained_alone() {
    let optimiser = OptimiserSpec { learning_rate: 0.02, ..OptimiserSpec::default() };
    let alone = trained(optimiser.clone(), &[(TrainingStage::Teacher, 5)]);
    let stages = [
        (TrainingStage::Teacher, 1),
        (TrainingStage::Student, 2),
        (TrainingStage::Teacher, 3),
        (TrainingStage::Student, 1),
    ];
    let in_turn =
        trained(optimiser.clone(), &[&stages[..], &[(TrainingStage::Teacher, 1)]].concat());
    assert_eq!(weights("teacher.", &in_turn), weights("teacher.", &alone));
    assert_ne!(weights("", &in_turn), weights("", &alone));
}

#[test]
fn a_phase_goes_on_with_moments_where_it_says_so() {
    let after =
        |stages: &[(TrainingStage, u32)]| weights("teacher.", &trained(adam(0.02), stages)).0;
    let one = after(&[(TrainingStage::Teacher, 4)]);
    let distance = |other: Vec<f32>| {
        one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
    };
    let tuned = distance(after(&[
        (TrainingStage::Teacher, 2),
        (TrainingStage::Student, 1),
        (TrainingStage::Tuned, 2),
    ]));
    let retrained = distance(after(&[(TrainingStage::Teacher, 2), (TrainingStage::Retrained, 2)]));
    assert!(tuned < 1e-6 && retrained > 5e-5, "{tuned} {retrained}");
}

#[test]
fn a_reset_of_one_learner_leaves_the_other() {
    let stages = [(TrainingStage::Student, 2), (TrainingStage::Reset, 0)];
    let (without, with) = (trained(adam(0.02), &stages[..1]), trained(adam(0.02), &stages));
    assert_eq!(weights("", &with), weights("", &without));
    let (reset, first) = (weights("teacher.", &with).0, weights("teacher.", &without).0);
    assert!(reset.iter().zip(&first).all(|(reset, first)| reset != first));
}

/// Interrupted after each epoch: within an act, at its end, and before the teacher is reinitialised.
#[test]
fn an_interrupted_training_in_turn_ends_with_the_same_bits() {
    use TrainingStage::{Mean, Reset, Student, Teacher};
    let (a, with_features) = agreeing_with_features();
    let stages = [(Teacher, 2), (Student, 1), (Teacher, 1), (Reset, 0), (Mean, 2), (Student, 2)];
    let model = pair(OptimiserSpec { learning_rate: 0.02, ..OptimiserSpec::default() }, &stages);
    assert_resumes(&model, &a, &with_features, 1..8);
}

/// As on a GPU, learners read inputs that are copied with the gradients of the batch before: 5 batches of 7 rows and one
/// of 5 in each of four epochs, in which both are trained, the second alone, and the first alone. Their inputs have
/// different widths. Alone are copied the first batch of each epoch, and the data of a learner that is not trained.
#[test]
fn learners_learn_the_same_from_inputs_that_are_copied_ahead() {
    let (a, with_features) = agreeing_with_features();
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let stages =
        [(TrainingStage::Mean, 2), (TrainingStage::Teacher, 1), (TrainingStage::Student, 1)];
    let mut spec = pair(adam(0.02), &stages);
    spec.model.teacher_reads_annotations = true;
    spec.network.train.batch_size = Some(7);
    let data = TrainingData::new(evidence, None, true, spec.network.train.batching(false)).unwrap();
    let parameters = |copies_ahead: bool| -> Vec<f32> {
        let mut job = JobContext::new(1);
        let mut trainer = trainer_of(&spec, &data, evidence, &job);
        if copies_ahead {
            trainer.learners.use_gpu_operations();
        }
        trainer.train(&mut job).unwrap();
        if copies_ahead {
            let alone = trainer.learners.all().map(|learner| learner.network.copied_alone());
            assert_eq!(alone.collect::<Vec<_>>(), [2 + 1 + 1, 2 + 1 + 1]);
        }
        let mut snapshot = Snapshot::default();
        trainer.learners.save(&mut snapshot).unwrap();
        let saved = trainer.learners.to_pytorch(&snapshot);
        ["", "teacher."].map(|learner| weights(learner, &saved).0).concat()
    };
    let (got, want) = (parameters(true), parameters(false));
    assert_eq!(got.len(), want.len());
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() < 1e-6, "{at}: {got}, expected {want}");
    }
}

/// The prediction is the mean of both learners.
#[test]
fn a_saved_model_predicts_with_all_its_learners() {
    let (a, with_features) = agreeing_with_features();
    let fitted = fit(&pair(adam(0.02), &[(TrainingStage::Mean, 3)]), &a, &with_features).unwrap();
    let trained = fitted.model.as_ref().unwrap();
    let model = SavedModel::new(&trained.description, &trained.parameters, Some("cpu"));
    let again = predict::<Pair>(model, with_features.matrix(), &JobContext::new(1)).unwrap();
    assert_eq!(fitted.predictions.as_ref(), Some(&again.classes));
    let (p, q) = ("", "teacher.");
    let snapshot = numbers(fitted);
    let [p, q] =
        [p, q].map(|learner| probabilities(&weights(learner, &snapshot), with_features.matrix()));
    for (i, (p, q)) in p.iter().zip(&q).enumerate() {
        for (k, got) in again.classes.row(i).iter().enumerate() {
            let want = f64::midpoint(p[k], q[k]);
            assert!((got - want).abs() < 1e-6, "row {i}, class {k}: {got}, expected {want}");
        }
    }
}
