//! TCL with a network that aggregates: its co-labels, its prior, and the data that it refuses.

use super::{copying_crowd, right};
use crate::model::calibration::calibrator::Calibrator;
use crate::model::neural::models::tcl::Initialise;
use crate::model::neural::tests::fits::fit;
use crate::model::neural::tests::training_loop::labels::{f32s, near};
use crate::model::neural::tests::*;
use crate::testing::assert_close;

/// The outputs of a second network, which gives 0.7, 0.2, 0.1 for row 0 and 0.2, 0.5, 0.3 for row 1.
pub(in crate::model::neural::tests) fn aggregated() -> Outputs {
    let p = vec![0.7, 0.2, 0.1, 0.2, 0.5, 0.3_f64];
    Outputs { rows: 2, logits: p.iter().map(|p| p.ln()).collect(), p, ..Outputs::default() }
}

/// The co-labels of TCL's fixture, whose g is the network's output here. The second row then has no annotations, so that
/// its co-label is the classifier's; or no features, so that it is the aggregator's.
#[test]
fn co_labels_of_tcls_are_classifier_times_aggregator_over_the_prior() {
    let model = Tcls::default();
    let mut case = Case::new(&model).with(1, &f32s(&[0.5, 0.3, 0.2]));
    case.others = vec![aggregated()];
    let e_step = |case: &Case<'_, Tcls>| {
        let gathered = case.annotator_params.gather(&case.batch);
        model.e_step(&case.context(&case.out, &gathered), MAIN_TARGETS)
    };
    near(&e_step(&case), &[0.924_021, 0.059_549, 0.016_430, 0.068_490, 0.775_730, 0.155_780]);
    let p = case.out.p[3..].to_vec();
    case.out.p[3..].fill(1.0 / 3.0);
    near(&e_step(&case)[3..], &[0.2, 0.5, 0.3]);
    case.out.p[3..].copy_from_slice(&p);
    case.batch.offsets[2] = 2;
    near(&e_step(&case)[3..], &p);
    // With the temperature 2 the aggregator counts by its square root.
    let calibrator = Calibrator::temperature(2.0);
    case.estimates.calibrators.insert("aggregator".to_owned(), calibrator);
    let terms = [(0, 0.7, 0.5), (1, 0.2, 0.3), (2, 0.1, 0.2)];
    let terms = terms.map(|(k, g, q): (usize, f64, f64)| case.out.p[k] * g.sqrt() / q);
    let sum: f64 = terms.iter().sum();
    near(&e_step(&case)[..3], &terms.map(|term| term / sum));
}

/// Two of three trusted instances have class 0; class 2 has a third of one instance.
#[test]
fn the_prior_of_tcls_is_the_share_of_each_class_among_trusted_instances() {
    let mut a = tiny(3, &[(0, 0, 0), (1, 0, 1), (2, 0, 0)]);
    let job = JobContext::new(1);
    let prior = |a: &Annotations| {
        let task = Task { evidence: a.into(), dims: a.dims(), hidden: 0, job: &job };
        Tcls::default().tables(&task).unwrap()[1].row(0)
    };
    near(&prior(&a), &[1.0 / 3.0; 3]);
    a.trusted = Some(vec![Some(0), Some(1), Some(0)]);
    near(&prior(&a), &[0.6, 0.3, 0.1]);
}

/// Two instances have the answers of both annotators, one of them has two of the same; the third has one answer, the
/// fourth is trusted and has none: 3 of 8 are missing.
// keys: tcls.max_missing
#[test]
fn tcls_refuses_missing_answers_with_their_share() {
    let rows = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 0, 0), (1, 1, 1), (2, 0, 1)];
    let dims = Dims { instances: 4, annotators: 2, classes: 2, labels: 2 };
    let mut a = weighted(dims, &rows, vec![1.0; rows.len()]);
    a.trusted = Some(vec![None, None, None, Some(1)]);
    let of = |max_missing: f64| {
        let model = Tcls { max_missing, ..Tcls::default() };
        model.aggregate((&a).into(), &mut JobContext::new(1))
    };
    let error = of(0.37).unwrap_err().to_string();
    let found =
        "37.5 % of the answers of 2 annotators to 4 annotated or trusted instances are missing";
    assert!(error.contains(found) && error.contains("choose `tcl`"), "{error}");
    of(0.375).unwrap();
}

/// Naive Bayes counts the answers of annotators 1 and 2 twice, and follows them where they are wrong.
// keys: tcls.initialise
#[test]
fn tcls_is_right_where_annotators_who_copy_each_other_are_wrong() {
    let (a, with_features) = copying_crowd();
    let model = Tcls { rounds: 3, initialise: Initialise::Trusted, ..Tcls::default() };
    let start = model.aggregate((&a).into(), &mut JobContext::new(1)).unwrap().unwrap();
    let train = TrainSpec { epochs: 5, ..TrainSpec::default() };
    let fitted = fit(&on_cpu(train, model), &a, &with_features).unwrap();
    let (before, after) = (right(&start), right(&fitted));
    assert!(before < 105 && after > 115, "{before}, then {after} of 120");
    // The matrices are counted from the co-labels.
    let confusion = fitted.report.confusion.as_ref().unwrap();
    let of_class_0 = [0, 1, 2].map(|label| confusion.column(&a, 0, label)[0]);
    assert_close(&of_class_0, &[0.8, 0.2, 0.0], 0.05, "cell");
}
