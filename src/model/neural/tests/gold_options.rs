//! What a fit does with gold beside training on it: fine-tuning, and the start at matrices; and matrices that are known.

use std::sync::Arc;

use super::fits::{agreeing, fit};
use super::*;
use crate::frame::GivenConfusion;
use crate::testing::{assert_close, with_features};

/// All annotators call each class by the name of the one before it, as gold of half of the instances tells.
fn misnamed() -> Annotations {
    let mut a = agreeing();
    a.trusted = Some((0..40).map(|i| (i < 20).then_some((i + 1) % 3)).collect());
    a
}

/// The classifier's mean probability of the classes that gold names, over all instances.
fn mean_of_truth(fitted: &Fitted) -> f64 {
    let predictions = fitted.predictions.as_ref().unwrap();
    (0..40).map(|i| predictions.row(i)[(i + 1) % 3]).sum::<f64>() / 40.0
}

fn small<N: CrowdNet>(model: &N, epochs: u32) -> Neural<N> {
    let mut spec = on_cpu(TrainSpec { epochs, ..TrainSpec::default() }, model.clone());
    spec.network.backbone.hidden = vec![8];
    spec.network.backbone.dropout = 0.0;
    spec
}

// keys: model.fine_tune, model.hold_back_gold
#[test]
fn fine_tuning_moves_the_classifier_toward_gold() {
    fn check<N: CrowdNet>(model: &N) {
        let a = misnamed();
        let of = |fine_tune, hold_back_gold, a: &Annotations| {
            let mut spec = small(model, 10);
            (spec.network.fine_tune, spec.network.hold_back_gold) = (fine_tune, hold_back_gold);
            let fitted = fit(&spec, a, &with_features(a)).unwrap();
            for i in (0..20).filter(|_| a.trusted.is_some()) {
                assert_eq!(fitted.posterior.row(i)[(i + 1) % 3], 1.0, "{}", N::KIND);
            }
            mean_of_truth(&fitted)
        };
        let (plain, untold) = (of(0, false, &a), of(0, false, &agreeing()));
        let (tuned, held_back) = (of(150, false, &a), of(150, true, &a));
        let found = format!("{}: {plain} {tuned}, untold {untold} {held_back}", N::KIND);
        assert!(tuned > plain + 0.02 && held_back > untold + 0.02, "{found}");
    }
    check(&Dl::default());
    check(&CrowdLayer::default());
    check(&TraceRegularised::default());
    check(&AggNet::default());
    check(&MaxMig::default());
    check(&Tcl { rounds: 2, ..Tcl::default() });
}

/// Two annotators with a matrix each.
fn given() -> (Annotations, Vec<f64>) {
    let cells = vec![
        0.7, 0.2, 0.1, 0.1, 0.8, 0.1, 0.2, 0.2, 0.6, //
        0.1, 0.8, 0.1, 0.6, 0.2, 0.2, 0.3, 0.3, 0.4,
    ];
    let mut a = annotations();
    let matrices = GivenConfusion::new((3, 3), vec![0, 1], cells.clone());
    a.given.confusion = Some(Arc::new(matrices));
    (a, cells)
}

#[test]
fn tables_start_at_given_matrices() {
    fn check<N: CrowdNet>(model: &N, is_exact: bool) {
        let ((a, cells), job) = (given(), JobContext::new(1));
        let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, job: &job };
        let params = AnnotatorParams { tables: model.tables(&task).unwrap() };
        let found = model.report(&task, &params).confusion.unwrap();
        let softened: Vec<f64> = cells.iter().map(|p| 0.98 * p + 0.02 / 3.0).collect();
        assert_close(&found, if is_exact { &cells } else { &softened }, 1e-6, N::KIND);
    }
    check(&CrowdLayer::default(), false);
    check(&TraceRegularised::default(), false);
    check(&TraceRegularised { known_confusion: true, ..TraceRegularised::default() }, true);
    check(&MaxMig { start_floor: 1e-9, ..MaxMig::default() }, true);
}

/// Instance 0 has label 0 of the first annotator and label 1 of the second, instance 1 labels 1 and 2.
#[test]
fn targets_start_at_naive_bayes_with_given_matrices() {
    fn check<N: CrowdNet>(model: &N) {
        let (a, _) = given();
        let fitted = model.aggregate((&a).into(), &mut JobContext::new(1)).unwrap().unwrap();
        // The cells are softened.
        let cells = [[(0.7, 0.8), (0.1, 0.2), (0.2, 0.3)], [(0.2, 0.1), (0.8, 0.2), (0.2, 0.4)]];
        let soft = |p: f64| 0.98 * p + 0.02 / 3.0;
        let products = cells.map(|row| row.map(|(one, other)| soft(one) * soft(other)));
        for (i, products) in products.iter().enumerate() {
            let sum: f64 = products.iter().sum();
            let wanted: Vec<f64> = products.iter().map(|p| p / sum).collect();
            assert_close(&fitted.posterior.row(i), &wanted, 1e-9, N::KIND);
        }
    }
    check(&AggNet::default());
    check(&Mbem::default());
}

/// Annotators who are always right by gold have larger diagonals at the start than those who are always wrong.
// keys: model.init_from_gold
#[test]
fn a_fit_starts_at_the_matrices_of_gold() {
    let mut spec = small(&CrowdLayer::default(), 1);
    spec.network.train.optimiser.annotator_delay = Some(1);
    spec.network.init_from_gold = true;
    let a = misnamed();
    let fitted = fit(&spec, &a, &with_features(&a)).unwrap();
    // Of 20 trusted instances, 7 are of class 1, all with the label 0.
    let confusion = fitted.report.confusion.unwrap();
    let Cells::Dense(cells) = confusion.cells else { panic!("dense") };
    assert_close(&cells[3..6], &[0.79067, 0.10467, 0.10467], 1e-5, "class 1 of annotator 0");
    let mut job = JobContext::new(1);
    let a = agreeing();
    spec.fit(Evidence { annotations: &a, with_features: Some(&with_features(&a)) }, &mut job)
        .unwrap();
    assert!(job.warnings().iter().any(|w| w.contains("no trusted instance has annotations")));
}

/// The labels are those of the class before, as the table of matrices says.
// keys: trace_regularised.known_confusion
#[test]
fn a_classifier_is_trained_through_known_matrices() {
    let spec =
        small(&TraceRegularised { known_confusion: true, ..TraceRegularised::default() }, 60);
    let mut a = agreeing();
    let refused = fit(&spec, &a, &with_features(&a)).unwrap_err();
    assert!(refused.to_string().contains("there are no confusion matrices"), "{refused}");
    let cell = |k: usize, l: usize| if l == (k + 2) % 3 { 0.9 } else { 0.05 };
    let matrix: Vec<f64> = (0..9).map(|n| cell(n / 3, n % 3)).collect();
    a.given.confusion = Some(Arc::new(GivenConfusion::new((3, 3), vec![0, 0], matrix.clone())));
    let fitted = fit(&spec, &a, &with_features(&a)).unwrap();
    assert!(mean_of_truth(&fitted) > 0.7, "{}", mean_of_truth(&fitted));
    let Cells::Dense(cells) = fitted.report.confusion.unwrap().cells else { panic!("dense") };
    assert_close(&cells, &[matrix.clone(), matrix].concat(), 1e-6, "matrices");
}
