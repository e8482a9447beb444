//! The data that training may use, the epoch in which it stops, and the epoch that it keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use crate::frame::{Gold, QuestionFeatures, Role};
use crate::job_context::Progress;
use crate::model::ModelKind;
use crate::model::neural::fit::split_annotations;
use crate::model::neural::tests::fits::{agreeing, agreeing_with_features, fit, parameters};
use crate::model::neural::tests::*;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::{assert_close, weighted, with_features};

/// Counts the epochs that end.
pub(super) struct Epochs(pub(super) Arc<AtomicU64>);

impl Progress for Epochs {
    fn at(&self, _position: u64, _message: &str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_model_that_diverges_says_so_at_once_and_names_the_learning_rate() {
    let (a, with_features) = agreeing_with_features();
    for kind in KINDS {
        for select in ["last", "annotation_likelihood"] {
            let mut parameters = (kind.defaults)();
            parameters["train"]["select"] = select.into();
            parameters["device"] = "cpu".into();
            // The aggregator of `tcls`, which is trained first, has an optimiser of its own.
            let before = parameters["aggregator_epochs"].as_u64().unwrap_or_default();
            if let Some(missing) = parameters.get_mut("max_missing") {
                *missing = 1.0.into();
            }
            let optimiser = &mut parameters["train"]["optimiser"];
            optimiser["rule"] = "sgd".into();
            optimiser["learning_rate"] = 1e30.into();
            optimiser["annotator_learning_rate"] = 1e30.into();
            optimiser["annotator_delay"] = 0.into();
            let model = kind.load(parameters).unwrap().model;
            let epochs = Arc::new(AtomicU64::new(0));
            let mut job = JobContext::new(1);
            job.progress = Arc::new(Epochs(Arc::clone(&epochs)));
            let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
            let error = model.fit(evidence, &mut job).expect_err(kind.kind);
            assert_eq!(error.exit_code(), 4, "{}: {error}", kind.kind);
            assert!(error.to_string().contains("learning_rate"), "{}: {error}", kind.kind);
            assert!(error.to_string().contains("found: a loss of"), "{}: {error}", kind.kind);
            assert_eq!(epochs.load(Ordering::Relaxed), before, "{} goes on", kind.kind);
        }
    }
}

/// Gold of every tenth instance, with these roles and classes.
fn with_gold(with_features: &QuestionFeatures, roles: &[(Role, u32)]) -> QuestionFeatures {
    let gold = roles.iter().flat_map(|(role, shift)| {
        (0..40).step_by(10).map(move |i| Gold { instance: i, class: (i + shift) % 3, role: *role })
    });
    QuestionFeatures { gold: gold.collect(), ..with_features.clone() }
}

pub(super) fn select(select: Select, epochs: u32) -> TrainSpec {
    let optimiser = OptimiserSpec {
        schedule: LrSchedule::Constant,
        annotator_delay: Some(0),
        ..OptimiserSpec::default()
    };
    TrainSpec { epochs, optimiser, select, ..TrainSpec::default() }
}

fn conal_trained(train: TrainSpec, a: &Annotations, with_features: &QuestionFeatures) -> Snapshot {
    parameters(fit(&with(train, Conal::default()), a, with_features).unwrap())
}

#[test]
fn gold_of_no_other_role_selects_an_epoch() {
    let (a, with_features) = agreeing_with_features();
    let trained = |roles: &[(Role, u32)]| {
        conal_trained(select(Select::Valid, 8), &a, &with_gold(&with_features, roles))
    };
    let alone = trained(&[(Role::Valid, 0)]);
    assert!(alone != trained(&[(Role::Valid, 1)]), "gold of the role `valid` selects");
    for role in [Role::Holdout, Role::Calibrate, Role::Train] {
        for shift in [1, 2] {
            assert!(alone == trained(&[(Role::Valid, 0), (role, shift), (role, 1)]), "{role:?}");
        }
    }
}

/// Gold that contradicts every annotation: the longer the training, the worse, so the first epoch is the best.
// keys: model.train.select
#[test]
fn the_epoch_of_the_best_score_is_kept() {
    let (a, with_features) = agreeing_with_features();
    let against = with_gold(&with_features, &[(Role::Valid, 1), (Role::Valid, 2)]);
    let first = conal_trained(select(Select::Last, 1), &a, &with_features);
    let last = conal_trained(select(Select::Last, 8), &a, &with_features);
    let kept = conal_trained(select(Select::Valid, 8), &a, &against);
    assert!(kept == first && kept != last);
    // With gold that agrees with the annotations, the last epoch is the best.
    let agrees = with_gold(&with_features, &[(Role::Valid, 0)]);
    assert!(conal_trained(select(Select::Valid, 8), &a, &agrees) == last);
}

/// Every held-out label is replaced by another, and counts a half: no parameter of any kind changes by a bit.
#[test]
fn held_out_annotations_change_no_parameter() {
    let (a, with_features) = agreeing_with_features();
    let train = TrainSpec { held_out: 0.4, ..select(Select::AnnotationLikelihood, 1) };
    let [training, held_out] = split_annotations(&train, &a, &JobContext::new(1)).unwrap().unwrap();
    let rows = |part: &Annotations, shift: u32| {
        (0..40)
            .flat_map(|i| {
                part.triples_of_instance(i).map(move |(r, label, _)| (i as u32, r, label))
            })
            .map(|(i, r, label)| (i, r, (label + shift) % 3))
            .collect::<Vec<_>>()
    };
    let weights = [vec![1.0; training.len()], vec![0.5; held_out.len()]].concat();
    let changed = weighted(a.dims(), &[rows(&training, 0), rows(&held_out, 1)].concat(), weights);
    assert!(held_out.len() > 20 && changed.len() == a.len());
    for kind in KINDS {
        let mut parameters = (kind.defaults)();
        parameters["device"] = "cpu".into();
        // A single epoch, because held-out annotations select one of several.
        parameters["train"]["epochs"] = 1.into();
        parameters["train"]["select"] = "annotation_likelihood".into();
        parameters["train"]["held_out"] = 0.4.into();
        if kind.kind.starts_with("lia") {
            (parameters["rounds"], parameters["round_epochs"]) = (1.into(), 1.into());
        }
        if kind.kind == "tcls" {
            parameters["max_missing"] = 1.0.into();
        }
        // Not the default, so that the weights of annotations count.
        if kind.kind == "doctor_net" {
            parameters["weight_by_annotations"] = true.into();
        }
        let on = |a: &Annotations| {
            let model = kind.load(parameters.clone()).unwrap().model;
            let evidence = Evidence { annotations: a, with_features: Some(&with_features) };
            let fitted = model.fit(evidence, &mut JobContext::new(1)).unwrap();
            Snapshot::from_bytes(&fitted.model.unwrap().parameters).unwrap()
        };
        let (one, other) = (on(&a), on(&changed));
        for (array, _, values) in one.f32s_with_prefix("") {
            assert_eq!(Some(values), other.find_f32s(array), "{} {array}", kind.kind);
        }
        assert!(one == other && one.n_f32s() > 3, "{}", kind.kind);
    }
}

#[test]
fn only_instances_with_held_out_annotations_are_scored() {
    let (a, held) = (agreeing(), tiny(3, &[(4, 0, 1), (7, 1, 2), (7, 0, 0), (39, 1, 1)]));
    let mut with_features = with_features(&a);
    with_features.row_of_instance[7] = None;
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let batching = Batching::default();
    let data = TrainingData::new(evidence, Some(&held), false, batching).unwrap();
    assert_eq!(data.held_out_instances(), [4, 39]);
    let without = TrainingData::new(evidence, None, false, batching).unwrap();
    assert!(without.held_out_instances().is_empty());
}

/// One step of plain gradient descent at the rate 1: the change of all parameters together has the norm `clip_norm`.
// keys: model.train.optimiser.clip_norm
#[test]
fn the_norm_of_network_and_annotators_together_is_clipped() {
    let (a, with_features) = agreeing_with_features();
    let after = |rate: f64| {
        let optimiser = OptimiserSpec {
            rule: OptimiserKind::Sgd,
            learning_rate: rate,
            annotator_learning_rate: Some(rate),
            beta1: 0.0,
            weight_decay: 0.0,
            clip_norm: Some(0.01),
            ..select(Select::Last, 1).optimiser
        };
        let train = TrainSpec { batch_size: Some(40), optimiser, ..select(Select::Last, 1) };
        let backbone = BackboneSpec { dropout: 0.0, batch_norm: false, ..BackboneSpec::default() };
        parameters(
            fit(
                &Neural {
                    network: NetworkSpec { backbone, train, ..NetworkSpec::default() },
                    model: Conal::default(),
                },
                &a,
                &with_features,
            )
            .unwrap(),
        )
    };
    let (start, end) = (after(0.0), after(1.0));
    let moved = |prefix: &str| -> f64 {
        let arrays = start.f32s_with_prefix(prefix);
        let squares = arrays.map(|(name, _, values)| -> f64 {
            let ends = end.find_f32s(&format!("{prefix}{name}")).unwrap();
            values.iter().zip(ends).map(|(s, e)| f64::from(e - s).powi(2)).sum()
        });
        squares.sum()
    };
    let (network, annotators) = (moved("net."), moved("crowd."));
    assert!(network > 1e-6 && annotators > 1e-8, "{network} {annotators}");
    let norm = (network + annotators).sqrt();
    assert!((norm - 0.01).abs() < 1e-4, "{norm}");
}

/// A key belongs to the model, or to the sections that all models have; `AggNet` has no key of its own.
#[test]
fn a_key_that_neither_model_nor_network_has_is_refused() {
    for kind in KINDS {
        let refused = |parameters: serde_json::Value| {
            let error = kind.load(parameters).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("`epocs`"), "{}: {error}", kind.kind);
        };
        refused(json!({"epocs": 3}));
        refused(json!({"train": {"epocs": 3}}));
        let schema = (kind.schema)().to_value();
        assert_eq!(schema["additionalProperties"], false, "{}", kind.kind);
        let keys: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let defaults = (kind.defaults)();
        assert_eq!(keys, defaults.as_object().unwrap().keys().collect::<Vec<_>>(), "{}", kind.kind);
    }
}

/// Whether gradient descent trains parameters of annotators in models of this kind.
pub(in crate::model::neural) fn trains_annotators(kind: &ModelKind) -> bool {
    !["dl", "soft_bootstrap", "agg_net", "mbem", "tcl", "tcls", "cvl"].contains(&kind.kind)
}

// keys: model.train.optimiser.annotator_learning_rate, model.train.optimiser.annotator_delay
#[test]
fn settings_of_annotators_are_a_warning_where_descent_trains_no_annotator() {
    let (a, with_features) = agreeing_with_features();
    for kind in KINDS {
        for (key, value) in [("annotator_learning_rate", json!(0.2)), ("annotator_delay", json!(1))]
        {
            let train = json!({"epochs": 3, "optimiser": {key: value}});
            let model = kind.load(json!({"device": "cpu", "train": train})).unwrap().model;
            let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
            let mut job = JobContext::new(1);
            model.fit(evidence, &mut job).unwrap();
            let warns = job.warnings().iter().any(|warning| warning.contains(key));
            assert_eq!(warns, !trains_annotators(kind), "{}: {:?}", kind.kind, job.warnings());
        }
    }
}

/// With 8 annotations of an instance, twice as many as leave the rate at 0.1, the rate falls to a sixteenth and to
/// 2^-1.5; `crowd_layer` has one rate for all crowds.
#[test]
fn the_default_rate_of_annotators_falls_with_the_annotations_of_an_instance() {
    let rates = |of_instance: f64| {
        [
            MaxMig::default().annotator_rate(of_instance),
            TraceRegularised::default().annotator_rate(of_instance),
            Conal::default().annotator_rate(of_instance),
            CrowdLayer::default().annotator_rate(of_instance),
        ]
    };
    assert_close(&rates(1.0), &[0.1; 4], 1e-15, "rate");
    assert_close(&rates(4.0), &[0.1; 4], 1e-15, "rate");
    assert_close(
        &rates(8.0),
        &[0.1 / 16.0, 0.1 / 8_f64.sqrt(), 0.1 / 8_f64.sqrt(), 0.1],
        1e-15,
        "rate",
    );
}

/// Ten instances have eight annotations each.
#[test]
fn a_fit_without_a_rate_has_that_of_its_annotations() {
    let mut rows: Vec<_> = (0..80).map(|n| (n / 8, n % 8, (n / 8) % 2)).collect();
    rows[3].2 = 1;
    let a = tiny(2, &rows);
    let with_features = with_features(&a);
    let fitted = |rate: Option<f64>| {
        let optimiser = OptimiserSpec { annotator_learning_rate: rate, ..OptimiserSpec::default() };
        let train = TrainSpec { epochs: 3, optimiser, ..TrainSpec::default() };
        let spec = on_cpu(train, MaxMig::default());
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        spec.fit(evidence, &mut JobContext::new(1)).unwrap().posterior
    };
    assert_eq!(fitted(None), fitted(Some(0.1 / 16.0)));
    assert_ne!(fitted(None), fitted(Some(0.1)));
}
