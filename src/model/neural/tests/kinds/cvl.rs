//! CVL: what a network picks for the other, the labels of both views, and the errors that say how much is kept.

use super::tcls::aggregated;
use super::{copying_crowd, right};
use crate::model::neural::models::cvl::co_teaching::picks;
use crate::model::neural::objective::train_state::NamedTargets;
use crate::model::neural::tests::fits::fit;
use crate::model::neural::tests::training_loop::labels::{f32s, near};
use crate::model::neural::tests::*;
use crate::testing::assert_close;

fn case<'a>(model: &'a Cvl, targets: &[f64], picked: f64) -> Case<'a, Cvl> {
    let mut case = Case::new(model).with_targets(targets);
    case.others = vec![aggregated()];
    case.estimates.numbers.insert("picked".to_owned(), vec![picked]);
    case.estimates.numbers.insert("weights".to_owned(), vec![0.5, 1.0, 0.25]);
    case
}

pub(in crate::model::neural::tests) fn check_gradients(soft: &[f64]) {
    for picked in [1.0, 0.5] {
        case(&Cvl::default(), soft, picked).check_gradient();
    }
}

/// The losses have the mean 2.8 and the standard deviation 3.6: the last is 2 of them away.
// keys: cvl.rho
#[test]
fn a_network_picks_its_smallest_losses_and_no_outlier() {
    let losses = [2.0, 1.0, 1.0, 10.0, 0.0];
    let Cvl { rho, .. } = Cvl::default();
    assert_eq!(picks(&losses, 0.4, rho), [false, true, true, false, true]);
    assert_eq!(picks(&losses, 1.0, rho), [true; 5]);
    assert_eq!(picks(&losses, 1.0, 1.9), [true, true, true, false, true]);
    assert_eq!(picks(&[1.0, 1.0], 0.1, 3.0), [true; 2]);
    assert_eq!(picks(&[1.0, f64::NAN], 0.5, 3.0), [true; 2]);
}

/// Both targets are class 0. The first network gives it 0.8438 and 0.2312 and picks row 0; the second 0.2 and 0.7 and picks
/// row 1.
#[test]
fn each_network_is_trained_on_the_rows_that_the_other_picks() {
    let model = Cvl::default();
    let mut case = case(&model, &[1.0, 0.0, 0.0, 0.9, 0.1, 0.0], 0.5);
    let p = vec![0.2, 0.5, 0.3, 0.7, 0.2, 0.1];
    case.others[0] =
        Outputs { logits: p.iter().map(|p: &f64| p.ln()).collect(), p, ..aggregated() };
    case.expect(1.464_369 + 0.2_f64.ln().abs());
    let (_, gradient) = case.loss(&case.out, &case.annotator_params.gather(&case.batch));
    near(&gradient.out.logits, &[0.0, 0.0, 0.0, -0.768_776, 0.628_532, 0.140_244]);
    near(&gradient.others[0].logits, &[-0.8, 0.5, 0.3, 0.0, 0.0, 0.0]);
}

/// All rows are picked. The first network gives the classes 0 and 1 of the targets 0.8438 and 0.6285, the second 0.7 and
/// 0.5.
// keys: cvl.balance
#[test]
fn a_rare_class_weighs_more() {
    let loss = |balance: bool| {
        let model = Cvl { balance, ..Cvl::default() };
        case(&model, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 1.0).value()
    };
    let of = |weights: [f64; 2]| {
        let losses = [0.169_846 + 0.7_f64.ln().abs(), 0.464_369 + 0.5_f64.ln().abs()];
        (weights[0] * losses[0] + weights[1] * losses[1]) / (weights[0] + weights[1])
    };
    near(&[loss(true), loss(false)], &[of([0.5, 1.0]), of([1.0, 1.0])]);
}

/// Both networks predict class 0 for row 0; for row 1 both predict class 1, then one of them class 0.
#[test]
fn labels_are_those_of_naive_bayes_or_what_both_networks_predict() {
    let model = Cvl::default();
    let matrices = [[0.8, 0.1, 0.1, 0.3, 0.5, 0.2, 0.4, 0.3, 0.3]; 2].concat();
    let mut case = case(&model, &[0.0, 1.0, 0.0, 0.0, 0.5, 0.5], 1.0).with(0, &f32s(&matrices));
    let e_step = |case: &Case<'_, Cvl>, name| {
        let gathered = case.annotator_params.gather(&case.batch);
        model.e_step(&case.context(&case.out, &gathered), name)
    };
    let terms = [0.8 * 0.1, 0.3 * 0.5, 0.4 * 0.3];
    let naive_bayes = terms.map(|term| term / 0.35);
    near(&e_step(&case, MAIN_TARGETS)[..3], &naive_bayes);
    near(&e_step(&case, "by networks"), &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let both = [(0.843_795, 0.7), (0.114_195, 0.2), (0.042_010, 0.1)];
    let mean = both.map(|(one, two)| f64::midpoint(one, two));
    near(&case.predicted().classes[..3], &mean);
    let joint: Vec<f64> = mean.iter().zip(naive_bayes).map(|(p, t)| p * t).collect();
    let sum: f64 = joint.iter().sum();
    near(&case.predicted().posterior[..3], &joint.iter().map(|t| t / sum).collect::<Vec<_>>());
    case.others[0].p[3..].copy_from_slice(&[0.9, 0.05, 0.05]);
    near(&e_step(&case, "by networks")[3..], &[0.0, 0.5, 0.5]);
    // A trusted instance has the prediction of the mean, without features none.
    case.batch.trusted[1] = Some(2);
    near(&e_step(&case, "by networks")[3..], &[1.0, 0.0, 0.0]);
    (case.out.p, case.others[0].p) = (vec![1.0 / 3.0; 6], vec![1.0 / 3.0; 6]);
    near(&e_step(&case, "by networks"), &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

/// The networks are wrong about the trusted instance 3, so that half of the three others are kept, rounded up: instance 2,
/// which naive Bayes gives class 1, is left out. Without its own annotations instance 3 would have class 0: that error
/// leaves 3/4 of each batch. Without trusted instances the views differ on a quarter of all instances.
// keys: cvl.beta_d, cvl.beta_l
#[test]
fn the_errors_of_one_view_say_how_much_the_other_leaves_out() {
    let rows =
        [(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1), (2, 0, 0), (2, 1, 1), (3, 0, 1), (3, 1, 0)];
    let mut a = tiny(2, &rows);
    let model = Cvl { beta_d: 0.25, beta_l: 0.5, ..Cvl::default() };
    let job = JobContext::new(1);
    let after = |a: &Annotations, by_networks: Option<[f64; 8]>| {
        let task = Task { evidence: a.into(), dims: a.dims(), hidden: 0, job: &job };
        let mut params = AnnotatorParams { tables: model.tables(&task).unwrap() };
        let mut state = TrainState::default();
        let by_annotations = [0.9, 0.1, 0.2, 0.8, 0.3, 0.7, 0.0, 1.0];
        let named = [(MAIN_TARGETS, Some(by_annotations)), ("by networks", by_networks)];
        for (name, values) in named.into_iter().filter_map(|(name, t)| Some((name, t?))) {
            let mut posterior = Posterior::zeros(4, 2);
            posterior.values_mut().copy_from_slice(&values);
            state.targets.insert(name.to_owned(), NamedTargets { posterior, is_own: true });
        }
        model.m_step(a, &[], &mut state, &mut params);
        let numbers = ["picked", "weights"].map(|name| state.estimates.numbers[name].clone());
        (params.tables[0].values.clone(), numbers)
    };
    let by_networks = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0];
    let (_, [picked, weights]) = after(&a, Some(by_networks));
    // Instances 2 and 3 differ.
    near(&[picked[0], weights[0], weights[1]], &[1.0 - 0.25 * 0.5, 0.5, 1.0]);
    a.trusted = Some(vec![None, None, None, Some(1)]);
    let (matrices, [picked, weights]) = after(&a, Some(by_networks));
    let matrices: Vec<f64> = matrices.iter().map(|p| f64::from(*p)).collect();
    near(&matrices, &[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.5, 0.5]);
    near(&[picked[0], weights[0], weights[1]], &[0.75, 1.0, 0.5]);
    // A trusted instance without features is no error of the networks, and nothing is left out of three.
    let unpredicted = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0];
    let (_, [_, weights]) = after(&a, Some(unpredicted));
    near(&weights, &[1.0, 1.0 / 3.0]);
    // At the start the votes are counted, and no network has erred.
    let (_, [_, weights]) = after(&a, None);
    near(&weights, &[1.0 / 1.4, 1.0 / 2.6]);
}

#[test]
fn cvl_is_right_where_the_vote_is_wrong() {
    let (a, with_features) = copying_crowd();
    let train = TrainSpec { epochs: 20, ..TrainSpec::default() };
    let fitted = fit(&on_cpu(train, Cvl::default()), &a, &with_features).unwrap();
    let right = right(&fitted);
    assert!(right > 115, "{right} of 120");
    let confusion = fitted.report.confusion.as_ref().unwrap();
    let of_class_0 = [0, 1, 2].map(|label| confusion.column(&a, 0, label)[0]);
    assert_close(&of_class_0, &[0.8, 0.2, 0.0], 0.1, "cell");
}
