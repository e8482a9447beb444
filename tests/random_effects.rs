//! `random_effects` beside the figures of the reference in numpy that it was specified by (dense over states, its loop
//! without a tolerance), on crowds of the folder that `LABELMILL_DATA` names.

use crate::datasets::{aggregate, scores};
use crate::support::{data_folder, number, read_table, run_ok, text};

struct Reference {
    dataset: &'static str,
    e_steps: u32,
    log_likelihood: f64,
    /// (instance, its class, P) where the posterior is least certain.
    posteriors: &'static [(&'static str, &'static str, f64)],
    /// (annotator, b)
    follows: &'static [(&'static str, f64)],
    mean_follows: f64,
}

const REFERENCES: [Reference; 3] = [
    Reference {
        dataset: "bluebirds",
        e_steps: 20,
        log_likelihood: -1_836.388_949,
        posteriors: &[
            ("b0034", "blue_grosbeak", 0.367_198_0),
            ("b0087", "blue_grosbeak", 0.677_534_9),
            ("b0021", "indigo_bunting", 0.871_452_5),
        ],
        follows: &[("1005", 0.730_625_0), ("1023", 0.709_288_5), ("1721", 0.650_720_1)],
        mean_follows: 0.678_036_8,
    },
    Reference {
        dataset: "music",
        e_steps: 12,
        log_likelihood: -4_613.265_936,
        posteriors: &[
            ("m0059", "blues", 0.072_645_9),
            ("m0321", "country", 0.039_014_1),
            ("m0321", "rock", 0.242_193_4),
            ("m0363", "pop", 0.314_051_2),
            ("m0395", "blues", 0.388_217_8),
        ],
        follows: &[("w001", 0.627_073_6), ("w002", 0.635_330_4), ("w003", 0.636_949_4)],
        mean_follows: 0.633_463_8,
    },
    Reference {
        dataset: "temp",
        e_steps: 25,
        log_likelihood: -1_324.800_114,
        posteriors: &[
            ("9_3", "1", 0.399_303_1),
            ("149_7", "1", 0.344_146_4),
            ("120_2", "2", 0.687_154_9),
        ],
        follows: &[("w001", 0.607_381_6), ("w002", 0.645_151_0), ("w003", 0.607_381_6)],
        mean_follows: 0.606_892_3,
    },
];

#[test]
fn random_effects_are_those_of_the_reference() {
    let Some(data) = data_folder("the reference of random_effects") else { return };
    for Reference { dataset, e_steps, log_likelihood, posteriors, follows, mean_follows } in
        REFERENCES
    {
        let folder = tempfile::tempdir().unwrap();
        let annotations = data.join(dataset).join("annotations.parquet").display().to_string();
        let output = folder.path().display().to_string();
        let steps = format!("model.stop.max_iter={}", e_steps - 1);
        let mut arguments = vec!["aggregate", "--annotations", &annotations, "--output", &output];
        arguments.extend(["--model", "random_effects", "-q", "--set", &steps]);
        for setting in ["model.stop.tol=0", "model.dawid_skene_share=0", "model.discount=0"] {
            arguments.extend(["--set", setting]);
        }
        run_ok(&arguments);
        let run = folder.path().join("latest");
        let close = |got: f64, want: f64, tolerance: f64, what: &str| {
            assert!((got - want).abs() < tolerance, "{dataset} {what}: {got} is not {want}");
        };
        let trace = read_table(&run, "trace");
        close(number(trace.last().unwrap(), "objective"), log_likelihood, 2e-6, "objective");
        let rows = read_table(&run, "posteriors");
        for (instance, class, want) in posteriors {
            let is_row = |row: &&crate::support::Row| {
                text(row, "instance_id") == *instance && text(row, "class") == *class
            };
            close(number(rows.iter().find(is_row).unwrap(), "probability"), *want, 1e-6, instance);
        }
        let rows = read_table(&run, "annotator_parameters");
        let all: Vec<f64> = rows.iter().map(|row| number(row, "value")).collect();
        close(all.iter().sum::<f64>() / all.len() as f64, mean_follows, 1e-6, "mean of b");
        for (annotator, want) in follows {
            let row = rows.iter().find(|row| text(row, "annotator_id") == *annotator).unwrap();
            assert_eq!(text(row, "name"), "follows");
            close(number(row, "value"), *want, 1e-6, annotator);
        }
    }
}

/// With the defaults, on crowds on which the effects alone lose up to 6 points of accuracy.
#[test]
fn the_defaults_are_as_accurate_as_dawid_skene_and_know_better_how_sure_they_are() {
    let Some(data) = data_folder("random_effects beside dawid_skene") else { return };
    for dataset in ["face", "flower", "dog"] {
        let of = |model: &str| {
            let folder = tempfile::tempdir().unwrap();
            aggregate(&data, dataset, model, folder.path());
            scores(&data, dataset, folder.path())
        };
        let (independent, effects) = (of("dawid_skene"), of("random_effects"));
        assert!(effects["accuracy"] > independent["accuracy"] - 0.01, "{dataset} {effects:?}");
        assert!(effects["log_loss"] < 0.5 * independent["log_loss"], "{dataset} {effects:?}");
        assert!(effects["ece"] < 0.12, "{dataset} {effects:?}");
    }
}
