//! The settings of `preset = "paper"`.

use serde_json::json;

use super::training_loop::training::trains_annotators;
use crate::model::neural::models::KINDS;

/// Epochs, batch size and learning rate of the authors' code for LabelMe, or of a paper that compares the model on
/// LabelMe; the divisor, where it is not the model's default; and the model's own settings. Network and training have no
/// other settings than those written here.
#[test]
fn every_preset_has_the_numbers_of_its_paper() {
    let votes = json!({"kind": "majority_vote"});
    let tcl = json!({
        "rounds": 29, "first_epochs": 2, "round_epochs": 1, "initialise": "votes", "calibrate": true,
        "retrain": "union", "trusted_epochs": 10,
    });
    let tcls = json!({
        "rounds": 10, "first_epochs": 5, "round_epochs": 5, "aggregator_epochs": 3, "initialise": "trusted",
        "retrain": "union", "trusted_epochs": 10, "max_missing": 0.0,
    });
    let cvl = json!({
        "first_epochs": 5, "round_epochs": 5, "beta_d": 1.0, "beta_l": 1.0, "rho": 3.0, "balance": true,
    });
    let single_confusion = json!({"labels": "majority", "lambda": 0.01, "identity_epochs": 6});
    let weighted_doctor_net = json!({
        "weights_by": "annotator", "bottleneck": null, "weight_epochs": 10, "weight_learning_rate": 0.03,
    });
    let max_mig = json!({"divergence": "kl", "prior": "uniform", "u": 5e-5, "start_floor": 0.01});
    let conal = json!({
        "mixture": "logit_mix", "embedding": 20, "auxiliary": 128, "normalise_instances": true,
        "instance_embeddings": false, "initial_strength": 2.0, "lambda": 1e-5,
    });
    let lia = json!({
        "rounds": 10, "round_epochs": 125, "marginal": "composite", "e_step_prior": "classifier",
        "classifier_weight": "instance", "embed_instances": false, "instance_embedding": 16, "annotator_embedding": 16,
        "latent": 1, "difficulty_penalty": 0.0, "competence_penalty": 0.0,
    });
    let dl = json!({
        "aggregator": votes, "targets": "auto", "embed_instances": false, "instance_embedding": 16,
    });
    let known = [
        ("dl", 30, Some(128), 1e-4, json!(null), dl),
        ("agg_net", 20, Some(64), 1e-4, json!(null), json!({})),
        ("mbem", 30, Some(128), 1e-4, json!(null), json!({"rounds": 1, "restart": true})),
        ("tcl", 30, Some(128), 1e-4, json!(null), tcl),
        ("tcls", 30, Some(128), 1e-3, json!(null), tcls),
        ("cvl", 30, Some(128), 1e-4, json!(null), cvl),
        ("soft_bootstrap", 30, Some(128), 1e-4, json!(null), json!({"hard": false, "beta": null})),
        ("single_confusion", 30, None, 1e-3, json!(null), single_confusion),
        ("doctor_net", 10, Some(32), 1e-3, json!(null), json!({"weight_by_annotations": false})),
        ("weighted_doctor_net", 10, Some(32), 1e-3, json!(null), weighted_doctor_net),
        ("crowd_layer", 50, Some(64), 1e-3, json!("mean_dense"), json!({"form": "mw"})),
        (
            "trace_regularised",
            30,
            None,
            1e-3,
            json!(null),
            json!({"lambda": 0.01, "known_confusion": false}),
        ),
        ("max_mig", 20, Some(64), 1e-4, json!(null), max_mig),
        ("lia", 125, None, 1e-3, json!(null), lia.clone()),
        ("lia_multi", 125, None, 1e-3, json!(null), lia),
        ("conal", 100, Some(1024), 1e-2, json!(null), conal),
    ];
    for kind in KINDS {
        let (_, epochs, rows, rate, reduction, own) =
            known.iter().find(|k| k.0 == kind.kind).unwrap();
        let mut paper = kind.load(json!({"preset": "paper"})).unwrap().parameters;
        let is_lia = kind.kind.starts_with("lia");
        let is_glorot = is_lia || kind.kind == "crowd_layer";
        let (hidden, dropout, scaling) = if is_lia {
            (json!([16, 16, 16, 16]), 0.0, "global_max_abs")
        } else if kind.kind == "tcls" {
            (json!([128, 32]), 0.0, "standard")
        } else {
            (json!([128]), 0.5, "standard")
        };
        let backbone = json!({
            "kind": "mlp", "input": null, "hidden": hidden, "dropout": dropout, "batch_norm": false,
            "activation": "relu", "initialisation": if is_glorot { "glorot" } else { "uniform" }, "scaling": scaling,
            "flip": false, "pad_crop": 0,
        });
        assert_eq!(paper["backbone"], backbone, "{}", kind.kind);
        let (of_annotators, delay) = if trains_annotators(kind) {
            (json!(rate), json!(0))
        } else {
            (json!(null), json!(null))
        };
        let optimiser = json!({
            "rule": if is_lia { "amsgrad" } else { "adam" }, "learning_rate": rate, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0,
            "decoupled": true, "nesterov": false, "clip_norm": null, "schedule": "constant", "warmup": 0,
            "milestones": [], "gamma": 0.1, "reset_each_epoch": kind.kind == "conal",
            "annotator_learning_rate": of_annotators, "annotator_delay": delay,
        });
        let train = json!({
            "epochs": epochs, "batch_size": rows, "batch_by": "instance", "reduction": reduction, "select": "last",
            "average": 0.0, "patience": null, "held_out": 0.1, "precision": "f32", "checkpoint_epochs": null,
            "checkpoint_minutes": null, "optimiser": optimiser,
        });
        assert_eq!(paper["train"], train, "{}", kind.kind);
        let keys = paper.as_object_mut().unwrap();
        for shared in ["preset", "device", "backbone", "train"] {
            assert!(keys.remove(shared).is_some(), "{} has no {shared}", kind.kind);
        }
        let of_gold = ["fine_tune", "hold_back_gold", "init_from_gold"].map(|key| keys.remove(key));
        let off = [json!(0), json!(false), json!(false)].map(Some);
        assert_eq!(of_gold, off, "{}", kind.kind);
        assert_eq!(paper, *own, "{}", kind.kind);
    }
}

/// What the code of LIA does otherwise than its paper; other kinds have one preset for both.
#[test]
fn the_code_of_lia_has_a_preset_of_its_own() {
    let of = |kind: &str, preset: &str| {
        let kind = KINDS.iter().find(|own| own.kind == kind).unwrap();
        kind.load(json!({"preset": preset})).map(|loaded| loaded.parameters)
    };
    let (mut paper, code) = (of("lia", "paper").unwrap(), of("lia", "code").unwrap());
    for (path, value) in [
        ("/preset", json!("code")),
        ("/rounds", json!(2)),
        ("/e_step_prior", json!("uniform")),
        ("/classifier_weight", json!("annotations")),
        ("/instance_embedding", json!(512)),
        ("/annotator_embedding", json!(512)),
        ("/backbone/hidden", json!([512])),
        ("/train/optimiser/rule", json!("adam")),
        ("/train/optimiser/beta2", json!(0.99)),
        ("/train/optimiser/schedule", json!("exponential")),
        ("/train/optimiser/gamma", json!(0.976)),
    ] {
        let of_paper = paper.pointer_mut(path).unwrap();
        assert!(*of_paper != value, "{path}");
        *of_paper = value;
    }
    assert_eq!(code, paper);
    let error = of("conal", "code").unwrap_err().to_string();
    assert!(error.contains("`conal` has no preset `code`"), "{error}");
}

#[test]
fn the_paper_s_preset_gives_way_to_what_is_written() {
    for kind in KINDS {
        let with = |more: serde_json::Value| {
            let mut parameters = json!({"preset": "paper"});
            parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            kind.load(parameters).unwrap().parameters
        };
        let paper = with(json!({}));
        let own = with(json!({"train": {"optimiser": {"beta1": 0.5}}}));
        assert_eq!(own["train"]["optimiser"]["beta1"], 0.5);
        assert_eq!(
            own["train"]["optimiser"]["learning_rate"],
            paper["train"]["optimiser"]["learning_rate"]
        );
        assert_eq!(own["train"]["epochs"], paper["train"]["epochs"]);
        let (plain, defaults) = (kind.load(json!({})).unwrap(), (kind.defaults)());
        assert_eq!(plain.parameters["train"], defaults["train"], "{}", kind.kind);
        assert!(paper["train"] != defaults["train"], "{}", kind.kind);
        assert!(kind.load(json!({"preset": "papre"})).is_err());
    }
}
