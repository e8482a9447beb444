//! LIA-ML: two questions in one fit, and one question, which is LIA.

use std::sync::Arc;

use crate::frame::{Frame, JointQuestion, QuestionFeatures, QuestionSet};
use crate::model::SavedModel;
use crate::model::fitted::{InstanceAnnotator, PairCompetence};
use crate::model::neural::models::lia::{ClassifierWeight, EM, EStepPrior, MARGINAL, Marginal};
use crate::model::neural::objective::train_spec::Select;
use crate::model::neural::tests::training_loop::resumed::assert_resumes_by;
use crate::model::neural::tests::*;
use crate::model::posterior::best;
use crate::testing::synth::CrowdShape;
use crate::testing::{assert_close, numbered_frame, with_features};

/// Two questions about instances of one crowd, with features of their truths, and those truths. The first has three
/// classes and 60 instances. The second has two, a label that is no class, and 40 of these instances; its annotators are
/// those of the first from the third on, and one more. Annotator 8 is always right, annotator 9 always wrong.
fn frames(has_features: bool) -> (Vec<Frame>, [Vec<u32>; 2]) {
    let crowd = |classes, instances, seed| {
        let accuracy = (0.6, 0.8);
        CrowdShape { instances, annotators: 8, classes, redundancy: 4, accuracy }.draw(seed)
    };
    let (one, two) = (crowd(3, 60, 3), crowd(2, 40, 4));
    let mut rows = one.rows;
    for (i, truth) in (0..).zip(&one.truth) {
        rows.extend([(i, 8, *truth), (i, 9, (truth + 1 + i % 2) % 3)]);
    }
    let first = tiny(3, &rows);
    // Its annotator 8 is one that the other question does not have.
    rows = two.rows.iter().map(|(i, r, l)| (*i, if *r < 2 { 8 } else { r - 2 }, *l)).collect();
    rows.sort_unstable();
    rows.dedup_by_key(|(i, r, _)| (*i, *r));
    for (i, truth) in (0..).zip(&two.truth) {
        rows.retain(|(own, r, _)| *own != i || ![6, 7].contains(r));
        rows.extend([(i, 6, *truth), (i, 7, 1 - truth)]);
    }
    rows.retain(|(i, r, _)| (*i, *r) != (0, 5));
    rows.push((0, 5, 2));
    let second = tiny(2, &rows);
    assert_eq!(second.dims().labels, 3);
    let value = |i: usize| {
        let of_second = two.truth.get(i).map_or(0.0, |class| *class as f32 - 0.5);
        [one.truth[i] as f32 - 1.0, of_second, (i as f32).sin()]
    };
    let features = has_features.then(|| {
        let values: Vec<f32> = (0..60).flat_map(value).collect();
        let matrix = Arc::new(crate::frame::Matrix::from_rows(3, &values));
        let of = with_features(&first);
        QuestionFeatures {
            features: crate::frame::Features { matrix, ..of.features.clone() },
            ..of
        }
    });
    let frame = |a: Annotations, annotators: Vec<u32>| {
        let n = a.dims().instances;
        let mut frame = numbered_frame(&a, annotators.into_iter());
        frame.with_features = features.clone().map(|mut of| {
            of.row_of_instance.truncate(n);
            of
        });
        frame
    };
    let frames =
        vec![frame(first, (0..10).collect()), frame(second, vec![2, 3, 4, 5, 6, 7, 8, 9, 20])];
    (frames, [one.truth, two.truth])
}

fn small(model: Lia) -> Neural<LiaMulti> {
    let mut spec = on_cpu(TrainSpec { epochs: 10, ..TrainSpec::default() }, LiaMulti(model));
    spec.network.backbone.hidden = vec![16];
    spec
}

fn fit_both(model: &Neural<LiaMulti>, frames: &[Frame], job: &mut JobContext) -> Vec<Fitted> {
    model.fit_questions(&QuestionSet::of_frames(frames).unwrap(), job).unwrap()
}

fn competence(fitted: &Fitted) -> &[f64] {
    let mut named = fitted.report.annotator_parameters.iter();
    &named.find(|(name, _)| name == "competence").unwrap().1
}

#[test]
fn each_question_keeps_its_own_tables() {
    for with_features in [true, false] {
        let (frames, truths) = frames(with_features);
        let all = fit_both(&small(Lia::default()), &frames, &mut JobContext::new(1));
        let oracles = [(8, 9), (6, 7)];
        for (((fitted, frame), truth), (best_of, worst)) in
            all.iter().zip(&frames).zip(&truths).zip(oracles)
        {
            let (a, dims) = (&frame.annotations, frame.annotations.dims());
            assert_eq!(fitted.not_finite(), None);
            assert_eq!((fitted.posterior.len(), truth.len()), (dims.instances, dims.instances));
            let is_right = |(i, class): (usize, &u32)| {
                let row = fitted.posterior.row(i);
                assert_eq!(row.len(), dims.classes);
                assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{row:?}");
                best(&row).is_some_and(|(k, _)| k == *class as usize)
            };
            let right = truth.iter().enumerate().filter(|one| is_right(*one)).count();
            assert!(right * 100 >= 95 * truth.len(), "{right} of {}", truth.len());
            let confusion = fitted.report.confusion.as_ref().unwrap();
            for r in 0..dims.annotators {
                let columns = (0..dims.labels).map(|l| confusion.column(a, r, l));
                let sums = columns.fold(vec![0.0; dims.classes], |sums, column| {
                    sums.iter().zip(column).map(|(s, p)| s + p).collect()
                });
                assert_close(&sums, &vec![1.0; dims.classes], 1e-9, "row sums");
            }
            let own = competence(fitted);
            assert_eq!((own.len(), fitted.report.skill.len()), (dims.annotators, dims.annotators));
            let others = (0..dims.annotators).filter(|r| ![best_of, worst].contains(r));
            for r in others {
                assert!(own[best_of] > own[r] && own[worst] < own[r], "{r}: {own:?}");
            }
            assert_eq!(fitted.report.instance_parameters[0].1.len(), dims.instances);
            assert_eq!(fitted.predictions.is_some(), with_features);
        }
        assert_eq!(all[0].trace.len(), all[1].trace.len());
        let again = fit_both(&small(Lia::default()), &frames, &mut JobContext::new(1));
        for (one, other) in all.iter().zip(&again) {
            assert!(one.posterior == other.posterior && one.report == other.report);
        }
    }
}

/// It has the sizes of the question, and the networks of both.
#[test]
fn a_saved_model_predicts_its_question() {
    let (frames, truths) = frames(true);
    let all = fit_both(&small(Lia::default()), &frames, &mut JobContext::new(1));
    for ((fitted, frame), truth) in all.iter().zip(&frames).zip(&truths) {
        let (trained, classes) = (fitted.model.as_ref().unwrap(), frame.annotations.dims().classes);
        assert_eq!(trained.description["sizes"]["classes"], classes);
        let saved = || SavedModel::new(&trained.description, &trained.parameters, None);
        let matrix = frame.with_features.as_ref().unwrap().matrix();
        let predicted = predict::<LiaMulti>(saved(), matrix, &JobContext::new(1)).unwrap().classes;
        assert_eq!(fitted.predictions.as_ref(), Some(&predicted));
        let right = (0..truth.len())
            .filter(|i| best(predicted.row(*i)).is_some_and(|(k, _)| k == truth[*i] as usize));
        let right = right.count();
        assert!(right * 100 >= 70 * truth.len(), "{right} of {}", truth.len());
        let mut other = saved();
        other.sizes["question"] = 5.into();
        let error =
            predict::<LiaMulti>(other, matrix, &JobContext::new(1)).unwrap_err().to_string();
        assert!(error.contains("sizes are those of no model"), "{error}");
    }
}

/// Every key away from its default.
// keys: lia_multi.rounds, lia_multi.round_epochs, lia_multi.marginal, lia_multi.e_step_prior, lia_multi.classifier_weight
// keys: lia_multi.embed_instances, lia_multi.instance_embedding, lia_multi.annotator_embedding, lia_multi.latent
// keys: lia_multi.difficulty_penalty, lia_multi.competence_penalty
#[test]
fn one_question_alone_is_lia() {
    let other = Lia {
        rounds: 2,
        round_epochs: 3,
        marginal: Marginal::Composite,
        e_step_prior: EStepPrior::Uniform,
        classifier_weight: ClassifierWeight::Annotations,
        embed_instances: true,
        instance_embedding: 5,
        annotator_embedding: 3,
        latent: 2,
        difficulty_penalty: 1.0,
        competence_penalty: 2.0,
    };
    for with_features in [true, false] {
        for model in [Lia { rounds: 3, ..Lia::default() }, other.clone()] {
            let (mut frames, _) = frames(with_features);
            frames.truncate(1);
            let many = small(model.clone());
            let lia = Neural { network: many.network.clone(), model };
            let alone = lia.fit(frames[0].evidence(), &mut JobContext::new(1)).unwrap();
            let one = fit_both(&many, &frames, &mut JobContext::new(1)).remove(0);
            assert_eq!(one.posterior, alone.posterior);
            assert_eq!((one.report, one.predictions), (alone.report, alone.predictions));
            let parameters = |of: &Fitted| of.model.as_ref().map(|model| model.parameters.clone());
            let fitted = many.fit(frames[0].evidence(), &mut JobContext::new(1)).unwrap();
            assert_eq!(parameters(&fitted), alone.model.map(|model| model.parameters));
        }
    }
}

/// The mean over the pairs that an annotator labelled is his competence; other pairs have one too, and an annotator who is
/// always right has the best everywhere.
#[test]
fn pairs_have_the_competence_that_annotators_have_on_average() {
    for with_features in [true, false] {
        let (mut frames, _) = frames(with_features);
        let seen = fit_both(&small(Lia::default()), &frames, &mut JobContext::new(1));
        for frame in &mut frames {
            let Dims { instances, annotators, .. } = frame.annotations.dims();
            let all =
                (0..instances as u32).flat_map(|i| (0..annotators as u32).map(move |r| (i, r)));
            frame.annotations.given.pairs = Arc::new(all.collect());
        }
        let asked = fit_both(&small(Lia::default()), &frames, &mut JobContext::new(1));
        for ((fitted, seen), frame) in asked.iter().zip(&seen).zip(&frames) {
            let a = &frame.annotations;
            let Dims { instances, annotators, .. } = a.dims();
            let of = |fitted: &Fitted| {
                let PairCompetence { pairs, competence } = &fitted.report.pair_competence;
                let of_annotated = pairs.iter().copied().zip(competence.clone());
                of_annotated.filter(|(pair, _)| pair.is_annotated).collect::<Vec<_>>()
            };
            assert_eq!(seen.report.pair_competence.pairs.len(), a.len());
            let (now, before) = (of(fitted), of(seen));
            assert!(now.iter().zip(&before).all(|(now, before)| now.0 == before.0));
            let values =
                |all: &[(InstanceAnnotator, f64)]| all.iter().map(|(_, p)| *p).collect::<Vec<_>>();
            assert_close(&values(&now), &values(&before), 1e-6, "pairs that are asked about");
            let mut sums = vec![(0.0, 0.0); annotators];
            for (pair, competence) in now {
                let (right, all) = &mut sums[pair.annotator as usize];
                *right += competence;
                *all += 1.0;
            }
            let means: Vec<f64> = sums.into_iter().map(|(right, all)| right / all).collect();
            assert_close(&means, competence(fitted), 1e-6, "competence");
            let all = &fitted.report.pair_competence.competence;
            assert_eq!(all.len(), instances * annotators);
            let oracle = annotators - 2 - usize::from(annotators == 9);
            for own in all.chunks_exact(annotators) {
                assert!(own.iter().all(|p| *p <= own[oracle] + 1e-9), "{own:?}");
            }
        }
    }
}

#[test]
fn an_interrupted_fit_of_two_questions_ends_with_the_same_bits() {
    let model = small(Lia { rounds: 2, round_epochs: 2, ..Lia::default() });
    for with_features in [true, false] {
        let (frames, _) = frames(with_features);
        let questions = QuestionSet::of_frames(&frames).unwrap();
        assert_resumes_by(|job| model.fit_questions(&questions, job), [1, 3, 6, 13]);
    }
}

/// Held-out annotations and gold of the role `valid` of both questions select the epoch.
#[test]
fn an_epoch_is_selected_by_all_questions() {
    let (mut frames, truths) = frames(true);
    for (frame, truth) in frames.iter_mut().zip(&truths) {
        let gold = |(i, class): (u32, &u32)| crate::frame::Gold {
            instance: i,
            class: *class,
            role: crate::frame::Role::Valid,
        };
        let gold = (0..).zip(truth).filter(|(i, _)| i % 3 == 0).map(gold).collect();
        frame.with_features.as_mut().unwrap().gold = gold;
    }
    let fitted = |select| {
        let mut model = small(Lia { rounds: 1, round_epochs: 4, ..Lia::default() });
        model.network.train.select = select;
        fit_both(&model, &frames, &mut JobContext::new(1)).remove(1)
    };
    for select in [Select::Valid, Select::AnnotationLikelihood] {
        assert_ne!(fitted(select).posterior, fitted(Select::Last).posterior, "{select:?}");
    }
}

/// Row 0 is of the first question, row 1 of the second, which has two classes and labels. Losses of both do not mix.
pub(in crate::model::neural::tests) fn check_gradients() {
    let soft = [0.6, 0.3, 0.1, 0.2, 0.8, 0.0];
    for phase in [EM, MARGINAL] {
        for e_step_prior in [EStepPrior::Auto, EStepPrior::Classes] {
            for latent in [1, 2] {
                let model = LiaMulti(Lia { e_step_prior, latent, ..Lia::default() });
                let mut case = Case::new(&model).with_targets(&soft);
                (case.phase, case.estimates.prior) =
                    (phase, Some(vec![0.5, 0.2, 0.3, 0.9, 0.1, 0.0]));
                case.batch.questions = [(0, 3), (1, 2)]
                    .map(|(index, n)| JointQuestion { index, classes: n, labels: n })
                    .to_vec();
                case.batch.annotations[3].label = 0;
                let n = 36 * latent;
                let common = (0..2 * 9 * latent).map(|at| 0.3 * (at as f32).sin()).collect();
                case.annotator_params.tables[0] = ParamTable::of_model("common", common);
                let named = vec![(0..n).map(|at| (at as f64).sin()).collect()];
                case.others = vec![Outputs { rows: 2, named, ..Outputs::default() }];
                case.out.named = vec![(0..n).map(|at| 0.5 * (at as f64).cos()).collect()];
                case.check_gradient();
                let (_, gradient) =
                    case.loss(&case.out, &case.annotator_params.gather(&case.batch));
                let (of_row, block) = (&gradient.out.named[0], 9 * latent);
                // The difficulty of row 0 in the second question, and of row 1 in the first.
                assert!(of_row[block..3 * block].iter().all(|d| *d == 0.0), "{of_row:?}");
                let padded = &of_row[3 * block + 2 * latent..3 * block + 3 * latent];
                let penalty = case.out.named[0][3 * block + 2 * latent..][..latent].iter();
                let own: Vec<f64> = penalty.map(|d| 0.5 * 4.0 * d).collect();
                assert_close(padded, &own, 1e-12, "the label that the question does not have");
            }
        }
    }
}
