//! Whole fits of small crowds: training data, selection of epochs, and instances without features.

use super::*;
use crate::frame::QuestionFeatures;
use crate::model::neural::net::parameters::pytorch::from_pytorch;
use crate::model::posterior::best;
use crate::model::saved::snapshot::Snapshot;
use crate::model::{ModelSpec, SavedModel};
use crate::testing::with_features;

/// Forty instances, each labelled by two annotators who agree.
pub(super) fn agreeing() -> Annotations {
    let rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    tiny(3, &rows)
}

pub(super) fn agreeing_with_features() -> (Annotations, QuestionFeatures) {
    let a = agreeing();
    let with_features = with_features(&a);
    (a, with_features)
}

pub(super) fn fit<N: CrowdNet>(
    model: &Neural<N>,
    a: &Annotations,
    with_features: &QuestionFeatures,
) -> Result<Fitted> {
    model.fit(
        Evidence { annotations: a, with_features: Some(with_features) },
        &mut JobContext::new(1),
    )
}

pub(super) fn parameters(fitted: Fitted) -> Snapshot {
    let saved = Snapshot::from_bytes(&fitted.model.unwrap().parameters).unwrap();
    from_pytorch(&saved, &Conal::default().heads(&SIZES))
}

fn batching(by_annotation: bool) -> Batching {
    Batching { batch_size: Some(7), by_annotation, drops_last: false }
}

/// The four features as images of 2 x 2 pixels, whose first three pixels determine the class. The saved model gives the
/// same predictions.
#[test]
fn a_residual_network_learns_from_images_and_predicts_again() {
    let (a, with_features) = agreeing_with_features();
    let backbone = BackboneSpec {
        kind: Architecture::Resnet20,
        input: Some([1, 2, 2]),
        ..BackboneSpec::default()
    };
    let train = TrainSpec { epochs: 12, ..TrainSpec::default() };
    let device = "cpu".to_owned();
    let network = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
    let model = TraceRegularised::default();
    let fitted = fit(&Neural { network, model }, &a, &with_features).unwrap();
    let predictions = fitted.predictions.as_ref().unwrap();
    let is_right = |i: &usize| best(predictions.row(*i)).is_some_and(|(class, _)| class == i % 3);
    let right = (0..40).filter(is_right).count();
    assert!(right >= 38, "{right} of 40");
    let trained = fitted.model.as_ref().unwrap();
    let model = SavedModel::new(&trained.description, &trained.parameters, Some("cpu"));
    let again =
        predict::<TraceRegularised>(model, with_features.matrix(), &JobContext::new(1)).unwrap();
    assert_eq!(fitted.predictions, Some(again.classes));
}

// keys: model.train.average
#[test]
fn an_average_of_two_epochs_is_the_mean_of_both_models() {
    let (a, with_features) = agreeing_with_features();
    let trained = |epochs, average| {
        let schedule = LrSchedule::Constant;
        let optimiser =
            OptimiserSpec { schedule, annotator_delay: Some(0), ..OptimiserSpec::default() };
        let train = TrainSpec { epochs, optimiser, average, ..TrainSpec::default() };
        parameters(fit(&with(train, Conal::default()), &a, &with_features).unwrap())
    };
    let (one, two, mean) = (trained(1, 0.0), trained(2, 0.0), trained(2, 0.9));
    for (name, _, mean) in mean.f32s_with_prefix("") {
        let (one, two) = (one.find_f32s(name).unwrap(), two.find_f32s(name).unwrap());
        assert!(name.contains("scaler") || one != two, "{name} stood still");
        for ((one, two), mean) in one.iter().zip(two).zip(mean) {
            assert!((mean - 0.5 * (one + two)).abs() < 1e-6, "{name}: {one} {two} {mean}");
        }
    }
}

/// The first ten of forty instances have no features; an epoch consists of the other thirty.
#[test]
fn the_shares_of_an_epoch_are_one_a_batch_and_annotator() {
    let a = agreeing();
    let mut with_features = with_features(&a);
    with_features.row_of_instance[..10].fill(None);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    for by_annotation in [false, true] {
        let batching = batching(by_annotation);
        let data = TrainingData::new(evidence, None, false, batching).unwrap();
        let (batches, mut shares) = (batches_of(&data, InstanceSubset::All, batching), [0.0; 2]);
        for batch in &batches {
            for (annotator, share) in batch.annotators.iter().zip(&batch.share) {
                shares[*annotator as usize] += share;
            }
        }
        for share in shares {
            let want = batches.len() as f64;
            assert!((share - want).abs() < 1e-9, "{share} in {want} batches");
        }
    }
}

#[test]
fn trusted_instances_are_learned_from_and_targets_that_nothing_speaks_for_are_not() {
    // The only label of instance 2 is "unsure", which is no class; instance 3 is trusted and was not annotated.
    let rows = [(0, 0, 0), (0, 1, 1), (1, 1, 1), (2, 0, 2)];
    let dims = Dims { instances: 4, annotators: 2, classes: 2, labels: 3 };
    let mut a = weighted(dims, &rows, Vec::new());
    a.trusted = Some(vec![None, None, None, Some(1)]);
    let with_features = with_features(&a);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let rows = |has_targets, by_annotation| {
        TrainingData::new(evidence, None, has_targets, batching(by_annotation)).unwrap().rows()
    };
    assert_eq!(rows(false, false), [0, 1, 2, 3]);
    assert_eq!(rows(false, true), [0, 1, 2, 3]);
    assert_eq!(rows(true, false), [0, 1, 3]);
}

// keys: dl.aggregator.kind
#[test]
fn an_aggregator_s_labels_and_its_convergence_leave_as_they_are() {
    let rows: Vec<(u32, u32, u32)> =
        (0..120).map(|n| (n / 3, n % 3, (n / 3 + u32::from(n % 7 == 0)) % 3)).collect();
    let a = tiny(3, &rows);
    let mut with_features = with_features(&a);
    with_features.row_of_instance[0] = None;
    let aggregator = serde_json::json!({"kind": "dawid_skene", "stop": {"max_iter": 1}});
    let aggregator: ModelSpec = serde_json::from_value(aggregator).unwrap();
    let alone = aggregator.load().unwrap().model.fit((&a).into(), &mut JobContext::new(1)).unwrap();
    let train = TrainSpec { epochs: 2, ..TrainSpec::default() };
    let fitted = fit(&with(train, Dl { aggregator, ..Dl::default() }), &a, &with_features).unwrap();
    assert_eq!(fitted.posterior, alone.posterior);
    let phases: Vec<&str> = fitted.trace.iter().map(|row| row.phase.as_str()).collect();
    assert_eq!(phases, ["em", "train", "train"]);
    assert!(!alone.stop.converged && !fitted.stop.converged);
}

/// The aggregator fits the annotations that are not held out, then all.
#[test]
fn an_aggregator_that_fits_twice_warns_once() {
    let (a, with_features) = agreeing_with_features();
    let aggregator = serde_json::json!({"kind": "dawid_skene", "stop": {"max_iter": 1}});
    let aggregator = serde_json::from_value(aggregator).unwrap();
    let train =
        TrainSpec { epochs: 1, select: Select::AnnotationLikelihood, ..TrainSpec::default() };
    let mut job = JobContext::new(1);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    with(train, Dl { aggregator, ..Dl::default() }).fit(evidence, &mut job).unwrap();
    let ended = job.warnings().iter().filter(|w| w.contains("had not converged"));
    assert_eq!(ended.count(), 1, "{:?}", job.warnings());
}

// keys: model.stop.on_exhausted
#[test]
fn messages_of_an_aggregator_name_its_own_keys() {
    let (a, with_features) = agreeing_with_features();
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let fit = |on_exhausted: &str, job: &mut JobContext| {
        let stop = serde_json::json!({"max_iter": 1, "on_exhausted": on_exhausted});
        let aggregator = serde_json::json!({"kind": "dawid_skene", "stop": stop});
        let aggregator = serde_json::from_value(aggregator).unwrap();
        let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        with(train, Dl { aggregator, ..Dl::default() }).fit(evidence, job)
    };
    let mut job = JobContext::new(1);
    fit("warn", &mut job).unwrap();
    let ended = job.warnings().iter().find(|w| w.contains("had not converged")).unwrap();
    let keys = "raise model.aggregator.stop.max_iter or model.aggregator.stop.tol";
    assert!(ended.contains(keys), "{ended}");
    let error = fit("fail", &mut JobContext::new(1)).unwrap_err().to_string();
    assert!(error.contains("model.aggregator.stop\n"), "{error}");
    // The parameters of the model itself are where they were.
    assert_eq!(job.model_key("stop"), "model.stop");
}

/// The first annotation of each annotator, which is never held out, is one of instance 0: the only instance with
/// features in the end.
// keys: model.train.held_out
#[test]
fn held_out_annotations_must_be_of_instances_with_features() {
    let a = agreeing();
    let mut with_features = with_features(&a);
    let error = |held_out, with_features: &QuestionFeatures| {
        let select = Select::AnnotationLikelihood;
        let train = TrainSpec { select, held_out, epochs: 1, ..TrainSpec::default() };
        let error = fit(&with(train, Conal::default()), &a, with_features).unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        error.to_string()
    };
    let nothing = error(0.0, &with_features);
    assert!(nothing.contains("no annotation is held out"), "{nothing}");
    assert!(nothing.contains("a share of 0 of 80 annotations"), "{nothing}");
    with_features.row_of_instance[1..].fill(None);
    let unseen = error(0.9, &with_features);
    assert!(unseen.contains("no annotation is held out"), "{unseen}");
    assert!(unseen.contains("annotations of instances without features"), "{unseen}");
}

#[test]
fn weights_of_heads_are_learned_to_the_last_epoch_where_likelihood_selects() {
    let (a, with_features) = agreeing_with_features();
    let weights = |weight_epochs| {
        let train =
            TrainSpec { epochs: 1, select: Select::AnnotationLikelihood, ..TrainSpec::default() };
        let model = WeightedDoctorNet { weight_epochs, ..WeightedDoctorNet::default() };
        fit(&with(train, model), &a, &with_features).unwrap().report.annotator_parameters[0]
            .1
            .clone()
    };
    assert_ne!(weights(1), weights(5));
}

#[test]
fn an_annotator_of_instances_without_features_has_the_mean_parameters_of_the_others() {
    let mut rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    rows.push((40, 2, 1));
    let a = tiny(3, &rows);
    let mut with_features = with_features(&a);
    with_features.row_of_instance[40] = None;
    let fitted = fit(&Neural::<TraceRegularised>::default(), &a, &with_features).unwrap();
    let trained = parameters(fitted);
    let (_, shape, rho) = trained.f32s_with_prefix("crowd.00").next().unwrap();
    for at in 0..shape[1] {
        let [one, two, unknown] = [0, 1, 2].map(|r| rho[r * shape[1] + at]);
        assert!((unknown - 0.5 * (one + two)).abs() < 1e-6, "{at}: {one} {two} {unknown}");
    }
}

#[test]
fn the_clipped_norm_leaves_out_tables_that_are_not_trained() {
    let a = agreeing();
    let job = JobContext::new(1);
    let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, job: &job };
    let mut annotator_params = AnnotatorParams { tables: Conal::default().tables(&task).unwrap() };
    let batch = Batch { annotators: vec![0, 1], ..Batch::default() };
    let gradient: Gathered =
        annotator_params.gather(&batch).iter().map(|rows| vec![1.0; rows.len()]).collect();
    let numbers: Vec<usize> = gradient.iter().map(Vec::len).collect();
    annotator_params.tables[1].trained = false;
    assert_eq!(annotator_params.squared_norm(&gradient), (numbers[0] + numbers[2]) as f64);
}

#[test]
fn settings_that_a_model_has_no_use_for_are_refused() {
    let problems = |check: &dyn Fn(&mut crate::spec::Problems)| {
        let mut problems = crate::spec::Problems::default();
        check(&mut problems);
        problems.into_result().map_err(|e| e.to_string())
    };
    let reduced = || TrainSpec { reduction: Some(Reduction::Sum), ..TrainSpec::default() };
    let annotation = problems(&|p| with(reduced(), Dl::default()).check("f", p)).unwrap_err();
    assert!(
        annotation.contains("`dl` sums no losses") && annotation.contains("f.train.reduction"),
        "{annotation}"
    );
    problems(&|p| with(reduced(), CrowdLayer::default()).check("f", p)).unwrap();
    let single = || TrainSpec { batch_by: BatchBy::Annotation, ..TrainSpec::default() };
    let annotation = problems(&|p| with(single(), MaxMig::default()).check("f", p)).unwrap_err();
    assert!(annotation.contains("f.train.batch_by"), "{annotation}");
    for (divergence, rows, is_fine) in
        [(Pearson, 2048, true), (Pearson, 2049, false), (Kl, 2049, true)]
    {
        let train = TrainSpec { batch_size: Some(rows), ..TrainSpec::default() };
        let model = MaxMig { divergence, ..MaxMig::default() };
        let checked = problems(&|p| with(train.clone(), model.clone()).check("f", p));
        assert_eq!(checked.is_ok(), is_fine, "{divergence:?} {rows}");
    }
    problems(&|p| with(single(), Conal::default()).check("f", p)).unwrap();
    for refused in [
        problems(&|p| with(single(), Dl::default()).check("f", p)),
        problems(&|p| with(single(), SoftBootstrap::default()).check("f", p)),
        problems(&|p| with(single(), AggNet::default()).check("f", p)),
        problems(&|p| with(single(), Mbem::default()).check("f", p)),
        problems(&|p| with(single(), Tcl::default()).check("f", p)),
        problems(&|p| with(single(), Tcls::default()).check("f", p)),
        problems(&|p| with(single(), Cvl::default()).check("f", p)),
    ] {
        let error = refused.unwrap_err();
        let target = "is trained on one target for each instance";
        assert!(error.contains(target) && error.contains("f.train.batch_by"), "{error}");
    }
    let mean = || TrainSpec { reduction: Some(Reduction::MeanAnnotation), ..TrainSpec::default() };
    for (train, key) in [(single(), "batch_by"), (mean(), "reduction")] {
        let of = |labels, train: &TrainSpec| {
            let model = SingleConfusion { labels, ..SingleConfusion::default() };
            problems(&|p| with(train.clone(), model.clone()).check("f", p))
        };
        let error = of(NoisyLabels::Majority, &train).unwrap_err();
        let (location, help) =
            (format!("f.train.{key}"), format!("leave {key} out, or set labels"));
        assert!(error.contains("one label for each instance"), "{error}");
        assert!(error.contains(&location) && error.contains(&help), "{error}");
        of(NoisyLabels::Annotations, &train).unwrap();
    }
    problems(&|p| with(reduced(), SingleConfusion::default()).check("f", p)).unwrap();
    let patient = |select| TrainSpec { select, patience: Some(3), ..TrainSpec::default() };
    for select in [Select::Valid, Select::AnnotationLikelihood] {
        problems(&|p| with(patient(select), Conal::default()).check("f", p)).unwrap();
    }
    let error =
        problems(&|p| with(patient(Select::Last), Conal::default()).check("f", p)).unwrap_err();
    assert!(error.contains("f.train.patience") && error.contains("3 with select"), "{error}");
}

#[test]
fn a_model_without_a_classifier_says_that_gold_does_not_teach_it() {
    let mut a = agreeing();
    let with_features = with_features(&a);
    let warned = |a: &Annotations| {
        let mut job = JobContext::new(1);
        let evidence = Evidence { annotations: a, with_features: Some(&with_features) };
        let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        with(train, DoctorNet::default()).fit(evidence, &mut job).unwrap();
        job.warnings().iter().any(|w| w.contains("trusted classes appear in the labels table"))
    };
    assert!(!warned(&a));
    a.trusted = Some((0..40).map(|i| (i == 0).then_some(2)).collect());
    assert!(warned(&a));
}
