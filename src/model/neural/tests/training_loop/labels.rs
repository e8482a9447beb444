//! The acts on labels: M-step, calibration and E-step, with posteriors worked out by hand.

use super::trainer::trainer_of;
use crate::frame::{Gold, Role};
use crate::model::calibration::calibrator::Calibrator;
use crate::model::neural::models::agg_net;
use crate::model::neural::models::tcl::Initialise;
use crate::model::neural::objective::counted;
use crate::model::neural::tests::fits::{agreeing, agreeing_with_features, fit};
use crate::model::neural::tests::*;
use crate::model::neural::train::Trainer;
use crate::testing::{assert_close, with_features};

#[track_caller]
pub(in crate::model::neural::tests) fn near(got: &[f64], want: &[f64]) {
    assert_close(got, want, 1e-6, "number");
}

/// T[0] = (.5, .3, .2) and T[1] = (.1, .2, .7). Annotator 0 gives the two instances the labels 0 and 1, annotator 1 the
/// labels 1 and 2.
#[test]
fn matrices_are_expected_counts_over_their_rows() {
    let a = annotations();
    let t = [0.5, 0.3, 0.2, 0.1, 0.2, 0.7];
    let counts = [&t[..3], &t[3..], &t[..3], &t[3..]].concat();
    let mut params = AnnotatorParams { tables: vec![counted::table(a.dims())] };
    counted::count(&a, &counts, 0.0, &mut params);
    let of_annotator_0 = [5.0 / 6.0, 1.0 / 6.0, 0.0, 0.6, 0.4, 0.0, 2.0 / 9.0, 7.0 / 9.0, 0.0];
    near(&params.tables[0].row(0), &of_annotator_0);
    // A row without counts stays zero without a floor, and is uniform with one.
    let none = [1.0, 0.0, 0.0].repeat(4);
    counted::count(&a, &none, 0.0, &mut params);
    near(&params.tables[0].row(0)[3..], &[0.0; 6]);
    near(&counted::reported(&params, a.dims())[3..6], &[1.0 / 3.0; 3]);
    counted::count(&a, &none, 1e-10, &mut params);
    near(&params.tables[0].row(0)[3..6], &[1.0 / 3.0; 3]);
}

/// p[0] = softmax(2, 0, -1). Instance 0 has the label 0 by annotator 0 and the label 1 by annotator 1, the latter with
/// weight 2.
#[test]
fn the_posterior_of_agg_net_has_its_floors() {
    let model = AggNet::default();
    let matrices = [
        [0.8, 0.1, 0.1, 0.3, 0.5, 0.2, 0.0, 0.0, 0.0],
        [0.6, 0.2, 0.2, 0.1, 0.9, 0.0, 0.25, 0.5, 0.25],
    ]
    .concat();
    let mut case = Case::new(&model).with(0, &f32s(&matrices));
    case.batch.annotations[1].weight = 2.0;
    let BatchPrediction { posterior, likelihood, .. } = case.predicted();
    let p = case.out.p(0);
    near(&likelihood[..2], &[0.8 * p[0] + 0.3 * p[1], 0.2 * p[0] + 0.9 * p[1] + 0.5 * p[2]]);
    let (c, r) = (agg_net::MIN_CLASSIFIER_PROBABILITY, agg_net::MIN_ANNOTATOR_PROBABILITY);
    assert_eq!((c, r), (0.001, 0.0001));
    let terms = [
        (p[0] + c) * (0.8 + r) * (0.2 + r) * (0.2 + r),
        (p[1] + c) * (0.3 + r) * (0.9 + r) * (0.9 + r),
        (p[2] + c) * r * (0.5 + r) * (0.5 + r),
    ];
    let sum: f64 = terms.iter().sum();
    near(&posterior[..3], &terms.map(|term| term / sum));
}

pub(in crate::model::neural::tests) fn f32s(values: &[f64]) -> Vec<f32> {
    values.iter().map(|v| *v as f32).collect()
}

/// The prior of TCL's posterior is the calibrated classifier: with the temperature 2 its square root.
#[test]
fn co_labels_take_the_calibrated_classifier() {
    let model = Tcl::default();
    let matrices = [[0.8, 0.1, 0.1, 0.3, 0.5, 0.2, 0.4, 0.3, 0.3]; 2].concat();
    let mut case = Case::new(&model).with(0, &f32s(&matrices));
    let calibrator = Calibrator::temperature(2.0);
    case.estimates.calibrators.insert("classifier".to_owned(), calibrator);
    let p = case.out.p(0);
    let terms = [0.8 * 0.1, 0.3 * 0.5, 0.4 * 0.3].iter().zip(p).map(|(l, p)| l * p.sqrt());
    let terms: Vec<f64> = terms.collect();
    let sum: f64 = terms.iter().sum();
    let want: Vec<f64> = terms.iter().map(|term| term / sum).collect();
    near(&case.e_step()[..3], &want);
    // After the training the targets are the posterior.
    let targets = [0.2, 0.3, 0.5, 1.0, 0.0, 0.0];
    near(&case.with_targets(&targets).predicted().posterior, &targets);
}

/// Annotator 0 gives the label 0 to an instance of the trusted class 0 and the label 1 to one of the trusted class 1;
/// annotator 1 gives the label 1 to the instance of class 0. With one count added to each of two labels, the rows of
/// annotator 0 are (2/3, 1/3) and (1/3, 2/3), those of annotator 1 (1/3, 2/3) and (1/2, 1/2). Instance 2 has the label
/// 0 by annotator 0 and the label 1 by annotator 1; the prior is a half for each class.
// keys: tcl.initialise
#[test]
fn trusted_instances_give_the_first_matrices() {
    let mut a = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 1), (2, 0, 0), (2, 1, 1)]);
    a.trusted = Some(vec![Some(0), Some(1), None]);
    let model = Tcl { initialise: Initialise::Trusted, ..Tcl::default() };
    let fitted = model.aggregate((&a).into(), &mut JobContext::new(1)).unwrap().unwrap();
    let (of_0, of_1) = (2.0 / 3.0 * 2.0 / 3.0, 1.0 / 3.0 * 0.5);
    near(&fitted.posterior.row(2), &[of_0 / (of_0 + of_1), of_1 / (of_0 + of_1)]);
    near(&fitted.posterior.row(1), &[0.0, 1.0]);
    let votes = Tcl::default().aggregate((&a).into(), &mut JobContext::new(1)).unwrap().unwrap();
    near(&votes.posterior.row(2), &[0.5, 0.5]);
    a.trusted = None;
    let error = model.aggregate((&a).into(), &mut JobContext::new(1)).unwrap_err();
    assert!(error.to_string().contains("no trusted instance"), "{error}");
}

/// Classes 0 and 1 have three trusted instances and one; with one count added to each, the prior is (2/3, 1/3). The rows
/// of the only annotator, who is right once for each class, are (2/3, 1/3) and (1/3, 2/3): its label 1 of the last
/// instance says as much against the prior, and leaves a half.
#[test]
fn the_first_prior_counts_the_trusted_instances_of_each_class() {
    let mut a = tiny(2, &[(0, 0, 0), (3, 0, 1), (4, 0, 1)]);
    a.trusted = Some(vec![Some(0), Some(0), Some(0), Some(1), None]);
    let model = Tcl { initialise: Initialise::Trusted, ..Tcl::default() };
    let fitted = model.aggregate((&a).into(), &mut JobContext::new(1)).unwrap().unwrap();
    near(&fitted.posterior.row(4), &[0.5, 0.5]);
}

/// A wrong trusted class takes part in the calibration, but the classifier is trained on it only in the retraining.
#[test]
fn co_training_does_not_use_trusted_classes() {
    let (a, with_features) = agreeing_with_features();
    let trained = |class: u32, rounds_only: bool| {
        let mut a = a.clone();
        a.trusted = Some((0..40).map(|i| (i == 7).then_some(class)).collect());
        let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        let model = Tcl { rounds: 1, first_epochs: 3, ..Tcl::default() };
        fit(&on_cpu(train, model), &a, &with_features).unwrap().trace
            [..3 + usize::from(!rounds_only)]
            .iter()
            .map(|row| row.objective)
            .collect::<Vec<_>>()
    };
    assert_eq!(trained(0, true), trained(2, true));
    assert!(trained(0, false) != trained(2, false));
}

/// At the end, instance 7 alone is trusted.
#[test]
fn a_classifier_that_nothing_calibrates_is_a_warning_with_its_reason() {
    let mut a = agreeing();
    let mut with_features = with_features(&a);
    let warnings = |a: &Annotations, with_features: &crate::frame::QuestionFeatures| {
        let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        let spec = on_cpu(train, Tcl { rounds: 1, ..Tcl::default() });
        let (evidence, mut job) =
            (Evidence { annotations: a, with_features: Some(with_features) }, JobContext::new(1));
        spec.fit(evidence, &mut job).unwrap();
        let own = job.warnings().iter().filter(|w| w.contains("calibrated"));
        own.cloned().collect::<Vec<String>>()
    };
    let of_none = warnings(&a, &with_features);
    assert!(of_none.len() == 1 && of_none[0].contains("no instance is trusted"), "{of_none:?}");
    a.trusted = Some((0..40).map(|i| (i < 9).then_some(i % 3)).collect());
    assert_eq!(warnings(&a, &with_features), Vec::<String>::new());
    a.trusted = Some((0..40).map(|i| (i == 7).then_some(1)).collect());
    let few = warnings(&a, &with_features);
    assert!(few.len() == 1 && few[0].starts_with("3 of 3 classes have fewer than 3"), "{few:?}");
    with_features.row_of_instance[7] = None;
    let without = warnings(&a, &with_features);
    let reason = "no trusted instance has features: ";
    assert!(without.len() == 1 && without[0].starts_with(reason), "{without:?}");
}

/// Instances 0 to 39, each labelled i mod 3 by two annotators. Annotator 2 contradicts them in every fifth instance, and
/// also in instance 7, which has no features.
fn with_one_instance_without_features() -> (Annotations, crate::frame::QuestionFeatures) {
    let mut rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    rows.extend((0..40).filter(|i| i % 5 == 0).map(|i| (i, 2, (i + 1) % 3)));
    rows.push((7, 2, 0));
    let a = tiny(3, &rows);
    let mut with_features = with_features(&a);
    with_features.row_of_instance[7] = None;
    (a, with_features)
}

/// The E-step of the only round has the matrices of the votes, which are (1/3, 2/3, 0) for instance 7. The counts of
/// annotators 0 and 1 are (13, 1/3, 1) for class 0, (1, 12, 0) for class 1 and (0, 2/3, 12) for class 2; those of
/// annotator 2 are (4/3, 2, 0), (2/3, 1, 4/3) and (2, 0, 2/3). Without features, all classes have the same prior.
#[test]
fn the_e_step_replaces_the_targets_of_instances_without_features() {
    let (a, with_features) = with_one_instance_without_features();
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
    let (spec, mut job) = (on_cpu(train, AggNet::default()), JobContext::new(1));
    let batching = spec.network.train.batching(AggNet::DROPS_LAST_BATCH);
    let data = TrainingData::new(evidence, None, true, batching).unwrap();
    let mut trainer = trainer_of(&spec, &data, evidence, &job);
    trainer.train(&mut job).unwrap();
    let label_1_of_annotators_0_and_1 = [1.0 / 43.0, 12.0 / 13.0, 1.0 / 19.0];
    let label_0_of_annotator_2 = [0.4, 2.0 / 9.0, 0.75];
    let r = agg_net::MIN_ANNOTATOR_PROBABILITY;
    let terms = [0, 1, 2].map(|k| {
        let p: f64 = label_1_of_annotators_0_and_1[k] + r;
        p * p * (label_0_of_annotator_2[k] + r)
    });
    let sum: f64 = terms.iter().sum();
    let targets = trainer.state.targets(MAIN_TARGETS).unwrap();
    near(targets.row(7), &terms.map(|term| term / sum));
}

/// Annotators 0 and 1 are wrong in every fourth and fifth instance, and annotator 2 labels the odd ones; instance 7,
/// which has no features, has three different labels. TCL has no M-step after its last E-step, so that the co-labels
/// follow from the reported matrices. A calibrator that is fitted to five instances of class 0 and one of class 1 does
/// not map 1/3 to the same probability for all classes.
#[test]
fn co_labels_of_an_instance_without_features_follow_from_annotations_alone() {
    let wrong = |i: u32, every: u32| u32::from(i.is_multiple_of(every));
    let mut rows: Vec<(u32, u32, u32)> = Vec::new();
    for i in (0..40).filter(|i| *i != 7) {
        rows.extend([(i, 0, (i + wrong(i, 4)) % 3), (i, 1, (i + 2 * wrong(i, 5)) % 3)]);
        rows.extend((i % 2 == 1).then_some((i, 2, (i + wrong(i, 3)) % 3)));
    }
    rows.extend([(7, 0, 1), (7, 1, 2), (7, 2, 0)]);
    let mut a = tiny(3, &rows);
    let mut with_features = with_features(&a);
    with_features.row_of_instance[7] = None;
    let class = |i: u32| match i {
        3 | 9 | 12 | 18 | 21 => Some(0),
        10 => Some(1),
        _ => None,
    };
    a.trusted = Some((0..40).map(class).collect());
    let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
    let model = Tcl { rounds: 2, first_epochs: 2, ..Tcl::default() };
    let fitted = fit(&on_cpu(train, model), &a, &with_features).unwrap();
    let confusion = fitted.report.confusion.as_ref().unwrap();
    let p = |r: usize, label: usize, k: usize| confusion.column(&a, r, label)[k];
    let terms = [0, 1, 2].map(|k| p(0, 1, k) * p(1, 2, k) * p(2, 0, k));
    let sum: f64 = terms.iter().sum();
    assert!(terms.iter().all(|term| *term > 0.01 * sum), "{terms:?}");
    near(&fitted.posterior.row(7), &terms.map(|term| term / sum));
}

/// Annotator 2 has labelled instance 0 alone, whose votes are all for class 0: until the E-step, his rows of the other
/// classes are zero.
#[test]
fn rows_of_an_average_of_counted_matrices_sum_to_one_or_are_zero() {
    let mut rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    rows.push((0, 2, 0));
    let a = tiny(3, &rows);
    let with_features = with_features(&a);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    for select in [Select::Last, Select::Valid] {
        let train = TrainSpec { epochs: 2, average: 0.9, select, ..TrainSpec::default() };
        let (spec, mut job) = (on_cpu(train, AggNet::default()), JobContext::new(1));
        let batching = spec.network.train.batching(AggNet::DROPS_LAST_BATCH);
        let data = TrainingData::new(evidence, None, true, batching).unwrap();
        let valid: Vec<(u32, u32)> = (0..6).map(|i| (i, i % 3)).collect();
        let mut trainer = Trainer { valid: &valid, ..trainer_of(&spec, &data, evidence, &job) };
        trainer.train(&mut job).unwrap();
        let matrices = trainer.annotator_params.tables[0].values.chunks(3);
        let sums: Vec<f32> = matrices.map(|row| row.iter().sum()).collect();
        let is_whole = |sum: &f32| *sum == 0.0 || (sum - 1.0).abs() < 1e-6;
        assert!(sums.iter().all(is_whole), "{select:?}: {sums:?}");
    }
}

/// The learning rate is zero, so that the first epoch stays the best: its targets are the votes, and its matrices are
/// counted from them.
#[test]
fn the_matrices_of_the_best_epoch_are_kept() {
    let (a, mut with_features) = with_one_instance_without_features();
    let valid = |i| Gold { instance: i, class: i % 3, role: Role::Valid };
    with_features.gold = (0..6).map(valid).collect();
    let optimiser = OptimiserSpec { learning_rate: 0.0, ..OptimiserSpec::default() };
    let train = TrainSpec { epochs: 4, select: Select::Valid, optimiser, ..TrainSpec::default() };
    let backbone = BackboneSpec { batch_norm: false, ..BackboneSpec::default() };
    let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
    let fitted = fit(&Neural { network, model: AggNet::default() }, &a, &with_features).unwrap();
    // The posterior of instance 7, which has no features, follows from the matrices of the kept epoch.
    let confusion = fitted.report.confusion.as_ref().unwrap();
    let factor = |r: u32, l: u32, k: usize| {
        confusion.column(&a, r as usize, l as usize)[k] + agg_net::MIN_ANNOTATOR_PROBABILITY
    };
    let terms = [0, 1, 2]
        .map(|k| a.triples_of_instance(7).map(|(r, l, _)| factor(r, l, k)).product::<f64>());
    let sum: f64 = terms.iter().sum();
    near(&fitted.posterior.row(7), &terms.map(|term| term / sum));
    // Annotator 2 gives the label 0 to the instances 5, 20 and 35, whose votes are (1/3, 0, 2/3), and to instance 7;
    // the label 1 to 0, 15 and 30, (2/3, 1/3, 0); and the label 2 to 10 and 25, (0, 2/3, 1/3).
    let of_class_0 = [0, 1, 2].map(|label| confusion.column(&a, 2, label)[0]);
    near(&of_class_0, &[4.0 / 10.0, 6.0 / 10.0, 0.0]);
}

/// g / q is (1.4, 2/3, 0.5) for row 0 and (0.4, 5/3, 1.5) for row 1: half of it is the probability of the label 0 by
/// annotator 0 and of the label 2 by annotator 1; the other labels have the same probability for all classes.
#[test]
fn co_labels_are_classifier_times_naive_bayes_over_the_prior() {
    let model = Tcl::default();
    let mut matrices = vec![0.1_f32; 18];
    for (k, (one, two)) in [(1.4, 0.4), (2.0 / 3.0, 5.0 / 3.0), (0.5, 1.5)].into_iter().enumerate()
    {
        (matrices[k * 3], matrices[9 + k * 3 + 2]) = (0.5 * one, 0.5 * two);
    }
    let posterior = Case::new(&model).with(0, &matrices).e_step();
    near(&posterior, &[0.924_021, 0.059_549, 0.016_430, 0.068_490, 0.775_730, 0.155_780]);
}
