use std::sync::Arc;

use super::*;
use crate::frame::{Annotations, Dims, GivenPredictions};
use crate::model::fitted::Report;
use crate::testing::{TOY, annotations, assert_close, tiny, toy, weighted, with_features};

/// The crowd with the predictions of its instances, in their order.
fn with_predictions(a: Annotations, p: &[&[f64]]) -> Annotations {
    let rows = (0..a.dims().instances as u32).map(|i| ((i as usize) < p.len()).then_some(i));
    let given = GivenPredictions::new(a.dims().classes, rows.collect(), p.concat());
    let mut a = a;
    a.given.predictions = Some(Arc::new(given));
    a
}

fn fit_in(a: &Annotations, job: &mut JobContext) -> Fitted {
    Crowdlab::default().fit(a.into(), job).unwrap()
}

fn fit(a: &Annotations) -> Fitted {
    fit_in(a, &mut JobContext::new(0))
}

fn parameter<'a>(of: &'a [(String, Vec<f64>)], name: &str) -> &'a [f64] {
    &of.iter().find(|(own, _)| own == name).unwrap().1
}

/// What the fit says of an annotator: weight and skill, in the order of the annotators.
fn numbers(fitted: &Fitted) -> [&[f64]; 3] {
    let Report { skill, annotator_parameters, instance_parameters, .. } = &fitted.report;
    let quality = parameter(instance_parameters, "quality");
    [quality, parameter(annotator_parameters, "weight"), skill]
}

fn label(fitted: &Fitted, i: usize) -> usize {
    crate::model::posterior::best(&fitted.posterior.row(i)).unwrap().0
}

const TOY_P: [&[f64]; 6] = [
    &[0.6, 0.3, 0.1],
    &[0.2, 0.7, 0.1],
    &[0.1, 0.2, 0.7],
    &[0.5, 0.2, 0.3],
    &[0.2, 0.5, 0.3],
    &[0.1, 0.3, 0.6],
];

/// cleanlab 2.9.0, `get_label_quality_multiannotator`.
#[test]
fn qualities_weights_and_skills_are_those_of_cleanlab() {
    let fitted = fit(&with_predictions(toy(), &TOY_P));
    let [quality, weight, skill] = numbers(&fitted);
    let want =
        [0.594_197_433, 0.702_316_052, 0.678_866_021, 0.515_714_430, 0.531_130_274, 0.599_066_628];
    assert_close(quality, &want, 1e-9, "quality");
    assert_close(weight, &[0.4, 1.0 / 6.0, 1.0 / 6.0, 0.1], 1e-12, "weight");
    assert_close(
        skill,
        &[0.721_581_062, 0.584_421_315, 0.569_575_208, 0.393_449_101],
        1e-9,
        "skill",
    );
    assert_eq!((0..6).map(|i| label(&fitted, i)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
}

/// Instance 0 is decided by the predictions, instance 1 by the rarer class, instances 5 and 8 have one annotation, and
/// annotator 5 shares none; cleanlab 2.9.0, whose skill of annotator 5 is NaN.
#[test]
fn ties_single_annotations_and_annotators_without_company_are_as_in_cleanlab() {
    let rows = [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 2, 0),
        (2, 0, 0),
        (2, 3, 1),
        (3, 0, 1),
        (3, 1, 1),
        (3, 2, 1),
        (3, 3, 0),
        (4, 0, 0),
        (4, 1, 0),
        (4, 2, 1),
        (4, 3, 0),
        (5, 5, 2),
        (6, 1, 1),
        (6, 3, 2),
        (6, 2, 1),
        (7, 0, 0),
        (7, 1, 1),
        (7, 4, 0),
        (8, 5, 1),
    ];
    let p: [&[f64]; 9] = [
        &[0.3, 0.5, 0.2],
        &[0.4, 0.2, 0.4],
        &[0.4, 0.4, 0.2],
        &[0.2, 0.6, 0.2],
        &[0.7, 0.2, 0.1],
        &[0.3, 0.3, 0.4],
        &[0.1, 0.5, 0.4],
        &[0.55, 0.25, 0.2],
        &[0.2, 0.45, 0.35],
    ];
    let fitted = fit(&with_predictions(tiny(3, &rows), &p));
    let [quality, weight, skill] = numbers(&fitted);
    let want = [
        0.493_147_670,
        0.408_174_067,
        0.408_174_067,
        0.601_370_155,
        0.694_175_061,
        0.400_000_187,
        0.504_442_361,
        0.546_706_901,
        0.450_000_144,
    ];
    assert_close(quality, &want, 1e-9, "quality");
    let want = [0.045_454_545, 0.045_454_545, 1e-6, 1e-6, 0.125, 1e-6];
    assert_close(weight, &want, 1e-9, "weight");
    let alone = f64::midpoint(0.400_000_187, 0.450_000_144);
    let want = [0.518_010_588, 0.529_847_633, 0.429_607_788, 0.407_637_794, 0.578_338_320, alone];
    assert_close(skill, &want, 1e-9, "skill");
    let agreement = parameter(&fitted.report.instance_parameters, "agreement");
    let want = [0.5, 0.5, 0.5, 0.75, 0.75, 1.0, 2.0 / 3.0, 2.0 / 3.0, 1.0];
    assert_close(agreement, &want, 1e-12, "agreement");
}

/// Without predictions that differ and with classes as frequent, annotator 0, who agrees with the untied votes, decides;
/// without a difference there, the lowest class.
#[test]
fn the_last_ties_go_to_the_better_annotators_and_then_to_the_lowest_class() {
    let even: &[f64] = &[0.5, 0.5];
    let both = [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1)];
    let a = with_predictions(tiny(2, &both), &[even; 3]);
    assert_eq!(label(&fit(&a), 0), 0);
    // Annotators 2 and 3 agree with annotator 0 on the classes that annotator 1 denies.
    let more =
        [(1, 2, 0), (2, 2, 1), (3, 0, 0), (3, 2, 0), (3, 1, 1), (4, 0, 1), (4, 2, 1), (4, 1, 0)];
    let a = with_predictions(tiny(2, &[&both[..], &more].concat()), &[even; 5]);
    assert_eq!(label(&fit(&a), 0), 1);
}

#[test]
fn a_weight_of_two_is_two_annotations_and_labels_that_are_no_class_are_none() {
    let twice = |n: usize| n.is_multiple_of(4);
    let weights = (0..TOY.len()).map(|n| if twice(n) { 2.0 } else { 1.0 }).collect();
    let dims = Dims { instances: 6, annotators: 4, classes: 3, labels: 4 };
    let again = TOY.iter().enumerate().filter(|(n, _)| twice(*n)).map(|(_, row)| *row);
    let rows: Vec<_> = TOY.iter().copied().chain(again).collect();
    let one = fit(&with_predictions(weighted(dims, &TOY, weights), &TOY_P));
    let two = fit(&with_predictions(weighted(dims, &rows, vec![1.0; rows.len()]), &TOY_P));
    let plain = fit(&with_predictions(annotations(dims, &TOY), &TOY_P));
    for (nth, what) in ["quality", "weight", "skill"].into_iter().enumerate() {
        assert_close(numbers(&one)[nth], numbers(&two)[nth], 1e-12, what);
    }
    assert!((numbers(&one)[2][0] - numbers(&plain)[2][0]).abs() > 1e-3);
    let unsure: Vec<_> = TOY.iter().copied().chain([(5, 1, 3), (5, 2, 3), (1, 2, 3)]).collect();
    let other = fit(&with_predictions(annotations(dims, &unsure), &TOY_P));
    for (nth, what) in ["quality", "weight", "skill"].into_iter().enumerate() {
        assert_close(numbers(&other)[nth], numbers(&plain)[nth], 1e-12, what);
    }
}

#[test]
fn a_trusted_class_stays_and_instances_without_a_table_row_follow_their_annotations() {
    let mut a = with_predictions(toy(), &TOY_P[..5]);
    a.trusted = Some(vec![None, None, None, Some(2), None, None]);
    let mut job = JobContext::new(0);
    let fitted = fit_in(&a, &mut job);
    assert_eq!(*fitted.posterior.row(3), [0.0, 0.0, 1.0]);
    assert!(job.warnings()[0].starts_with("1 of 6 annotated instances have no predictions"));
    // Of the two annotations of instance 5, annotator 0 has the larger weight.
    assert_eq!(label(&fitted, 5), 2);
    let sum: f64 = fitted.posterior.row(5).iter().sum();
    assert!((sum - 1.0).abs() < 1e-12);
}

#[test]
fn single_annotations_are_warned_of_and_average_with_the_predictions() {
    let a = with_predictions(tiny(2, &[(0, 0, 0), (1, 1, 1)]), &[&[0.2, 0.8], &[0.4, 0.6]]);
    let mut job = JobContext::new(0);
    let fitted = fit_in(&a, &mut job);
    assert!(job.warnings()[0].starts_with("no instance has a second annotator"));
    assert_close(&fitted.posterior.row(0), &[0.6, 0.4], 1e-12, "posterior");
    assert_close(&fitted.posterior.row(1), &[0.2, 0.8], 1e-12, "posterior");
}

/// The feature is the class. Two of three annotators are wrong on instance 0, which no fold has learned from.
// keys: crowdlab.folds
#[test]
fn a_classifier_in_folds_corrects_a_vote() {
    let rows: Vec<_> =
        (0..180).map(|n| (n / 3, n % 3, if n < 2 { 1 } else { n / 3 % 2 })).collect();
    let a = tiny(2, &rows);
    let mut features = with_features(&a);
    let values: Vec<f32> = (0..60).map(|i| (i % 2) as f32).collect();
    features.features.matrix = Arc::new(crate::frame::Matrix::from_rows(1, &values));
    let fitted = |folds| {
        let evidence = Evidence { annotations: &a, with_features: Some(&features) };
        Crowdlab { folds, ..Crowdlab::default() }.fit(evidence, &mut JobContext::new(3)).unwrap()
    };
    let of_five = fitted(5);
    assert_eq!(label(&of_five, 0), 0, "{:?}", of_five.posterior.row(0));
    assert!(of_five.report.skill[2] > of_five.report.skill[0]);
    assert!(fitted(2).posterior != of_five.posterior);
    assert!(fitted(5).posterior == of_five.posterior);
}
