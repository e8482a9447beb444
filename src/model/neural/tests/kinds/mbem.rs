//! MBEM: counts of the network's predictions, and posteriors by the prior of the classes.

use crate::model::neural::tests::fits::fit;
use crate::model::neural::tests::training_loop::labels::{f32s, near};
use crate::model::neural::tests::*;
use crate::testing::with_features;

/// The network predicts class 0 for row 0, the classes 0 and 1 of row 1 are tied, and all three where it has no features.
/// The prior is (0.5, 0.2, 0.3); instance 0 has the label 0 by annotator 0 and the label 1 by annotator 1.
#[test]
fn mbem_takes_the_network_s_predictions_for_its_counts_and_the_class_prior_for_its_posteriors() {
    let model = Mbem::default();
    let matrices = [[0.8, 0.1, 0.1, 0.3, 0.5, 0.2, 0.4, 0.3, 0.3]; 2].concat();
    let mut case = Case::new(&model).with(0, &f32s(&matrices)).with(1, &f32s(&[0.5, 0.2, 0.3]));
    let e_step = |case: &Case<'_, Mbem>, name| {
        let gathered = case.annotator_params.gather(&case.batch);
        model.e_step(&case.context(&case.out, &gathered), name)
    };
    let terms = [0.5 * 0.8 * 0.1, 0.2 * 0.3 * 0.5, 0.3 * 0.4 * 0.3];
    let sum: f64 = terms.iter().sum();
    let want = terms.map(|term| term / sum);
    near(&e_step(&case, MAIN_TARGETS)[..3], &want);
    near(&case.predicted().posterior[..3], &want);
    case.out.p[3..].copy_from_slice(&[0.4, 0.4, 0.2]);
    near(&e_step(&case, "predicted"), &[1.0, 0.0, 0.0, 0.5, 0.5, 0.0]);
    case.out.p[3..].fill(1.0 / 3.0);
    near(&e_step(&case, "predicted"), &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

/// Every instance has one annotation. Annotator 3 has a quarter of them, and always gives the class after the true one;
/// the features are those of the true class. Votes follow that annotator, and so does the E-step of `agg_net` where its
/// network has learned the votes.
#[test]
fn single_annotations_tell_mbem_who_exchanges_the_classes() {
    let truth: Vec<(u32, u32, u32)> = (0..96).map(|i| (i, 0, i % 3)).collect();
    let with_features = with_features(&tiny(3, &truth));
    let of = |i: u32| if i % 4 == 3 { (i + 1) % 3 } else { i % 3 };
    let a = tiny(3, &(0..96).map(|i| (i, i % 4, of(i))).collect::<Vec<_>>());
    let train = TrainSpec { epochs: 15, ..TrainSpec::default() };
    let fitted = fit(&on_cpu(train, Mbem::default()), &a, &with_features).unwrap();
    let confusion = fitted.report.confusion.as_ref().unwrap();
    for k in 0..3 {
        let of = |r: usize, label: usize| confusion.column(&a, r, label % 3)[k];
        assert!(of(0, k) > 0.9 && of(3, k + 1) > 0.9, "class {k}: {} {}", of(0, k), of(3, k + 1));
    }
    for i in (3..96).step_by(4) {
        assert!(fitted.posterior.row(i)[i % 3] > 0.9, "{i}: {:?}", fitted.posterior.row(i));
    }
    let prior = fitted.report.prior.unwrap();
    assert!(prior.iter().all(|q| (q - 1.0 / 3.0).abs() < 0.05), "{prior:?}");
}

/// Nobody names class 3, whose prior is no fault of the network.
#[test]
fn a_class_that_the_network_never_predicts_is_a_warning() {
    let a = tiny(4, &[(0, 0, 0), (1, 0, 1), (2, 0, 2)]);
    let (job, model) = (JobContext::new(1), Mbem::default());
    let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, job: &job };
    let warnings = |prior: [f32; 4]| {
        let mut annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
        annotator_params.tables[1].values = prior.to_vec();
        model.report(&task, &annotator_params).warnings
    };
    assert!(warnings([0.3, 0.3, 0.4, 1e-10]).is_empty());
    let own = warnings([0.6, 1e-10, 0.4, 1e-10]);
    assert!(
        own.len() == 1 && own[0].contains("predicts 1 of 4 classes for no instance"),
        "{own:?}"
    );
}
