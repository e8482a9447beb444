//! LIA: its matrices, likelihoods and posteriors against values that were computed independently, and its fits.

use crate::model::neural::models::lia::{ClassifierWeight, EM, EStepPrior, MARGINAL, Marginal};
use crate::model::neural::objective::train_spec::Select;
use crate::model::neural::tests::fits::fit;
use crate::model::neural::tests::training_loop::resumed::assert_resumes_in;
use crate::model::neural::tests::*;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::synth::CrowdShape;
use crate::testing::{assert_close, with_features};

/// Two classes, two labels and a latent axis of two: the difficulty and the competence of all three annotators, who
/// give the labels 0, 0 and 1; the classifier gives 0.3 and 0.7.
const DIFFICULTY: [f64; 8] = [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75];
const COMPETENCE: [f64; 8] = [0.5, -0.5, 0.0, 0.2, -0.3, 0.1, 1.0, 0.0];
const DIMS: Dims = Dims { instances: 1, annotators: 3, classes: 2, labels: 2 };

/// A model without penalties.
fn plain() -> Lia {
    Lia { latent: 2, difficulty_penalty: 0.0, competence_penalty: 0.0, ..Lia::default() }
}

/// Calls `read` with that instance as a batch of this phase.
fn with_instance<R>(phase: &'static str, read: impl FnOnce(&BatchContext<'_>) -> R) -> R {
    let annotation = |(annotator, label)| BatchAnnotation { annotator, label, weight: 1.0 };
    let batch = Batch {
        rows: vec![0],
        instances: vec![0],
        table_rows: vec![0],
        distinct_table_rows: vec![0],
        questions: Vec::new(),
        offsets: vec![0, 3],
        annotations: [(0, 0), (1, 0), (2, 1)].map(annotation).to_vec(),
        annotators: vec![0, 1, 2],
        share: vec![1.0; 3],
        targets: vec![0.25, 0.75],
        trusted: vec![None],
        trusted_share: vec![1.0],
    };
    let logits = vec![0.3_f64.ln(), 0.7_f64.ln()];
    let (p, named) = (vec![0.3, 0.7], vec![DIFFICULTY.to_vec()]);
    let out = Outputs { rows: 1, logits, p, named, ..Outputs::default() };
    let named = vec![COMPETENCE.repeat(3)];
    let others = [Outputs { rows: 3, named, ..Outputs::default() }];
    let (annotator_params, estimates) = (AnnotatorParams::default(), Estimates::default());
    read(&BatchContext {
        phase,
        batch: &batch,
        out: &out,
        others: &others,
        gathered: &vec![vec![0.0; 8], Vec::new()],
        annotator_params: &annotator_params,
        estimates: &estimates,
        reduction: Reduction::Sum,
        dims: DIMS,
    })
}

const Q: [f64; 4] = [0.364_386, 0.635_614, 0.246_602, 0.753_398];

// keys: lia.latent, lia.marginal, lia.e_step_prior
#[test]
fn lia_has_the_numbers_that_were_computed_independently() {
    let matrices = with_instance("", |context| plain().pair_matrices(context).unwrap());
    assert_close(&matrices, &Q.repeat(3), 1e-6, "Q");
    for (e_step_prior, wanted) in [
        (EStepPrior::Auto, [0.441_167, 0.558_833]),
        (EStepPrior::Classifier, [0.441_167, 0.558_833]),
        (EStepPrior::Uniform, [0.648_139, 0.351_861]),
    ] {
        let model = Lia { e_step_prior, ..plain() };
        let posterior = with_instance("", |context| model.predict(context).posterior);
        assert_close(&posterior, &wanted, 1e-6, "T");
    }
    for (marginal, wanted) in [(Marginal::Joint, 2.857_888), (Marginal::Composite, 2.863_339)] {
        let model = Lia { marginal, ..plain() };
        let (loss, _) =
            with_instance(MARGINAL, |context| loss_and_gradient(&model, context).unwrap());
        assert_close(&[loss], &[wanted], 1e-5, "marginal");
    }
}

/// The expected log-likelihood: sum_k T[k] (w ln h[k] + 2 ln Q[k][0] + ln Q[k][1]) with w one, or three annotations.
// keys: lia.classifier_weight
#[test]
fn the_loss_of_em_is_the_expected_likelihood() {
    let t = [0.25, 0.75];
    let weights = [(ClassifierWeight::Instance, 1.0), (ClassifierWeight::Annotations, 3.0)];
    for (classifier_weight, w) in weights {
        let of_class = |k: usize| {
            let h: f64 = [0.3, 0.7][k];
            t[k] * (w * h.ln() + 2.0 * Q[2 * k].ln() + Q[2 * k + 1].ln())
        };
        let model = Lia { classifier_weight, ..plain() };
        let (loss, _) = with_instance(EM, |context| loss_and_gradient(&model, context).unwrap());
        assert_close(&[loss], &[-of_class(0) - of_class(1)], 1e-5, "loss");
    }
}

/// Half of 3 |D|^2, and half of 2 |K|^2 for each of three annotators.
// keys: lia.difficulty_penalty, lia.competence_penalty
#[test]
fn difficulty_and_competence_pay_for_their_length() {
    let loss = |difficulty_penalty, competence_penalty| {
        let model = Lia { difficulty_penalty, competence_penalty, ..plain() };
        with_instance(EM, |context| loss_and_gradient(&model, context).unwrap().0)
    };
    let squares = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>();
    let wanted = 1.5 * squares(&DIFFICULTY) + 3.0 * squares(&COMPETENCE);
    assert_close(&[loss(3.0, 2.0) - loss(0.0, 0.0)], &[wanted], 1e-9, "penalty");
}

/// A pair's competence is 0.3 Q[0][0] + 0.7 Q[1][1]; the likelihood of a label is the classifier's mean of its column.
#[test]
fn competence_is_the_probability_of_a_right_answer() {
    let predicted = with_instance("", |context| plain().predict(context));
    assert_close(&predicted.parameters, &[0.3 * Q[0] + 0.7 * Q[3]], 1e-5, "competence");
    let column = |l: usize| 0.3 * Q[l] + 0.7 * Q[2 + l];
    assert_close(&predicted.likelihood, &[column(0), column(0), column(1)], 1e-5, "likelihood");
}

/// Every phase, likelihood and prior.
pub(in crate::model::neural::tests) fn check_gradients() {
    let soft = [0.6, 0.3, 0.1, 0.2, 0.2, 0.6];
    for phase in [EM, MARGINAL] {
        for marginal in [Marginal::Joint, Marginal::Composite] {
            for e_step_prior in [EStepPrior::Auto, EStepPrior::Classes] {
                for (latent, trusted) in [(1, None), (2, Some(1))] {
                    let model = Lia { marginal, e_step_prior, latent, ..Lia::default() };
                    let mut case = Case::new(&model).with_targets(&soft);
                    (case.phase, case.estimates.prior) = (phase, Some(vec![0.5, 0.2, 0.3]));
                    let n = 18 * latent;
                    let named = vec![(0..n).map(|at| (at as f64).sin()).collect()];
                    case.others = vec![Outputs { rows: 2, named, ..Outputs::default() }];
                    case.out.named = vec![(0..n).map(|at| 0.5 * (at as f64).cos()).collect()];
                    if trusted.is_some() {
                        case.batch.trusted[1] = trusted;
                        case.batch.targets[3..].copy_from_slice(&[0.0, 1.0, 0.0]);
                    }
                    case.check_gradient();
                }
            }
        }
    }
}

/// A crowd with one annotator who is always right and one who is always wrong: the last two.
fn with_oracles() -> Annotations {
    let crowd =
        CrowdShape { instances: 90, annotators: 10, redundancy: 4, ..CrowdShape::default() };
    let drawn = crowd.draw(3);
    let mut rows = drawn.rows;
    for (i, truth) in (0..).zip(&drawn.truth) {
        rows.extend([(i, 10, *truth), (i, 11, (truth + 1 + i % 2) % 3)]);
    }
    tiny(3, &rows)
}

/// The values of an annotator's parameter.
fn of_annotators<'f>(fitted: &'f Fitted, name: &str) -> &'f [f64] {
    let mut named = fitted.report.annotator_parameters.iter();
    &named.find(|(own, _)| own == name).unwrap().1
}

fn small(model: Lia) -> Neural<Lia> {
    let mut spec = on_cpu(TrainSpec { epochs: 10, ..TrainSpec::default() }, model);
    spec.network.backbone.hidden = vec![32];
    spec
}

fn fit_alone(model: &Neural<Lia>, a: &Annotations) -> Fitted {
    model.fit(a.into(), &mut JobContext::new(1)).unwrap()
}

#[test]
fn an_annotator_who_is_always_right_is_best_and_one_who_is_always_wrong_worst() {
    let a = with_oracles();
    for fitted in [
        fit(&small(Lia::default()), &a, &with_features(&a)).unwrap(),
        fit_alone(&small(Lia::default()), &a),
    ] {
        let competence = of_annotators(&fitted, "competence");
        for (r, own) in competence[..10].iter().enumerate() {
            assert!(competence[10] > own + 0.02, "annotator {r}: {competence:?}");
            assert!(competence[11] < own - 0.2, "annotator {r}: {competence:?}");
        }
        let (skill, pairs) = (&fitted.report.skill, &fitted.report.instance_parameters[0]);
        assert!(skill[..10].iter().all(|own| skill[10] > *own && skill[11] < *own), "{skill:?}");
        assert!(pairs.0 == "competence" && pairs.1.iter().all(|p| (0.0..=1.0).contains(p)));
    }
}

/// Without features there is nothing to predict other instances by; features that are there can be left unread.
// keys: lia.embed_instances
#[test]
fn embeddings_of_instances_take_the_place_of_features() {
    let a = with_oracles();
    let alone = fit_alone(&small(Lia::default()), &a);
    assert!(alone.predictions.is_none() && alone.model.is_none());
    let embedded = small(Lia { embed_instances: true, ..Lia::default() });
    let unread = fit(&embedded, &a, &with_features(&a)).unwrap();
    assert_eq!(alone.posterior, unread.posterior);
    assert_eq!(alone.report, unread.report);
    let read = fit(&small(Lia::default()), &a, &with_features(&a)).unwrap();
    assert!(read.predictions.is_some() && read.model.is_some());
    let gap = read.posterior.row(0)[0] - alone.posterior.row(0)[0];
    assert!(gap != 0.0, "features are read by default");
    let mut problems = crate::spec::Problems::default();
    let mut by_gold = embedded;
    by_gold.network.train.select = Select::Valid;
    by_gold.check("model", &mut problems);
    let error = problems.into_result().unwrap_err().to_string();
    assert!(error.contains("says nothing about instances without annotations"), "{error}");
}

/// The prior of embedded instances is the mean posterior, for which a network must have learned nothing.
#[test]
fn an_instance_of_ties_has_the_mean_of_the_classes_without_features() {
    // Four of five instances are of class 0, by annotators who are all alike; one has a label of each class.
    let mut rows: Vec<(u32, u32, u32)> =
        (0..60).map(|n| (n / 2, n % 2, u32::from(n / 2 % 5 == 0))).collect();
    rows.extend([(30, 0, 0), (30, 1, 1)]);
    let a = tiny(2, &rows);
    let fitted = |e_step_prior| fit_alone(&small(Lia { e_step_prior, ..Lia::default() }), &a);
    let p = |fitted: Fitted| fitted.posterior.row(30)[0];
    let (auto, uniform) = (p(fitted(EStepPrior::Auto)), p(fitted(EStepPrior::Uniform)));
    let odds = |p: f64| p / (1.0 - p);
    assert!(odds(auto) > 2.0 * odds(uniform), "{auto} and {uniform}");
}

// keys: lia.rounds, lia.round_epochs
#[test]
fn rounds_of_em_come_before_the_marginal_likelihood() {
    let phases = |marginal| {
        let mut model = small(Lia { rounds: 3, round_epochs: 2, marginal, ..Lia::default() });
        model.network.train.epochs = 4;
        let trace = fit_alone(&model, &with_oracles()).trace;
        let steps = |phase: &str| trace.iter().filter(|row| row.phase == phase).count();
        (steps(EM), steps(MARGINAL))
    };
    assert_eq!((phases(Marginal::Joint), phases(Marginal::None)), ((6, 4), (6, 0)));
}

// keys: lia.annotator_embedding, lia.instance_embedding
#[test]
fn embeddings_have_their_widths() {
    let model = Lia { annotator_embedding: 3, instance_embedding: 5, ..Lia::default() };
    assert_eq!((model.instance_embedding(false), model.instance_embedding(true)), (Some(5), None));
    let fitted = fit_alone(&small(model), &with_oracles());
    let names = fitted.report.annotator_parameters.iter().map(|(name, _)| name.as_str());
    let wanted = ["embedding_0", "embedding_1", "embedding_2", "competence"];
    assert_eq!(names.collect::<Vec<_>>(), wanted);
}

/// The features of annotators determine their competence: those of 10 and 11 are unlike all others.
#[test]
fn competence_follows_from_features_of_annotators() {
    let a = with_oracles();
    let mut with_features = with_features(&a);
    let values: Vec<f32> = (0_usize..12).map(|r| [0.0, 1.0, -1.0][r.saturating_sub(9)]).collect();
    let matrix = std::sync::Arc::new(crate::frame::Matrix::from_rows(1, &values));
    let features = crate::frame::Features { matrix, ..with_features.features.clone() };
    with_features.annotators = Some((features, (0..12).map(Some).collect()));
    let mut model = small(Lia::default());
    // No embedding explains them.
    model.network.train.optimiser.annotator_learning_rate = Some(0.0);
    model.network.train.optimiser.learning_rate = 0.02;
    let fitted = fit(&model, &a, &with_features).unwrap();
    let competence = of_annotators(&fitted, "competence");
    assert!(competence[10] > competence[0] + 0.02 && competence[11] < competence[0] - 0.2);
    let saved = Snapshot::from_bytes(&fitted.model.unwrap().parameters).unwrap();
    let weights = saved.find_f32s("competence_by_features.competence_by_features.0.weight");
    let weights = weights.unwrap();
    // Whoever has more of the feature, gives the label of the class more often than the next one.
    for k in 0..3 {
        assert!(weights[4 * k] > weights[3 * k + (k + 1) % 3] + 0.5, "{weights:?}");
    }
}

#[test]
fn an_interrupted_fit_without_features_ends_with_the_same_bits() {
    let (a, model) = (with_oracles(), small(Lia { rounds: 2, round_epochs: 2, ..Lia::default() }));
    assert_resumes_in(&model, (&a).into(), [1, 3, 6, 13]);
}
