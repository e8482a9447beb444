//! Real crowds with published numbers, from the folder that `LABELMILL_DATA` names.

use std::collections::BTreeMap;
use std::path::Path;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};

use crate::support::{data_folder, label_only, number, read_batches, read_table, run_ok, stdout};

/// Accuracies are printed in percent with two digits.
const PERCENT: f64 = 0.01;

struct PublishedAccuracy {
    dataset: &'static str,
    majority_expected_ties: f64,
    dawid_skene: f64,
    log_likelihood: f64,
    iterations: usize,
    one_coin: f64,
    ibcc: f64,
    elbo: f64,
    glad: f64,
}

const PUBLISHED: [PublishedAccuracy; 4] = [
    PublishedAccuracy {
        dataset: "bluebirds",
        majority_expected_ties: 75.926,
        dawid_skene: 89.81,
        log_likelihood: -1888.130,
        iterations: 7,
        one_coin: 58.33,
        ibcc: 88.89,
        elbo: -2079.167,
        glad: 72.22,
    },
    PublishedAccuracy {
        dataset: "rte",
        majority_expected_ties: 89.688,
        dawid_skene: 92.75,
        log_likelihood: -3679.638,
        iterations: 9,
        one_coin: 92.50,
        ibcc: 92.75,
        elbo: -4058.603,
        glad: 92.50,
    },
    PublishedAccuracy {
        dataset: "dog",
        majority_expected_ties: 82.218,
        dawid_skene: 84.39,
        log_likelihood: -4745.570,
        iterations: 11,
        one_coin: 83.02,
        ibcc: 83.89,
        elbo: -6108.292,
        glad: 83.40,
    },
    PublishedAccuracy {
        dataset: "web",
        majority_expected_ties: 73.065,
        dawid_skene: 82.89,
        log_likelihood: -17237.047,
        iterations: 31,
        one_coin: 80.66,
        ibcc: 75.08,
        elbo: -20103.612,
        glad: 82.13,
    },
];

pub fn aggregate(data: &Path, dataset: &str, model: &str, output: &Path) {
    aggregate_with(data, dataset, model, &[], output);
}

/// As [`aggregate`], with settings of the model.
pub fn aggregate_with(data: &Path, dataset: &str, model: &str, settings: &[&str], output: &Path) {
    let annotations = data.join(dataset).join("annotations.parquet");
    let (annotations, output) = (annotations.display().to_string(), output.display().to_string());
    let mut arguments = vec!["aggregate", "--annotations", &annotations, "--model", model];
    arguments.extend(["--output", &output, "-q"]);
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    run_ok(&arguments);
}

pub fn scores(data: &Path, dataset: &str, output: &Path) -> BTreeMap<String, f64> {
    let truth = data.join(dataset).join("truth.parquet").display().to_string();
    let run = output.display().to_string();
    let output = run_ok(&["evaluate", "--run", &run, "--truth", &truth, "--json"]);
    let scores: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let scores = scores.as_object().unwrap().iter();
    scores.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
}

#[test]
fn accuracies_and_likelihoods_are_the_published_ones() {
    let Some(data) = data_folder("published numbers") else { return };
    let close = |got: f64, want: f64, tolerance: f64, what: &str| {
        assert!((got - want).abs() <= tolerance, "{what}: {got} is not {want} within {tolerance}");
    };
    for published in PUBLISHED {
        let (name, folder) = (published.dataset, tempfile::tempdir().unwrap());
        let vote = folder.path().join("vote");
        aggregate(&data, name, "majority_vote", &vote);
        let accuracy = 100.0 * scores(&data, name, &vote)["accuracy_expected_ties"];
        close(
            accuracy,
            published.majority_expected_ties,
            PERCENT,
            &format!("{name}: majority vote"),
        );
        let em = folder.path().join("em");
        aggregate_with(&data, name, "dawid_skene", &["model.prior=none"], &em);
        let accuracy = 100.0 * scores(&data, name, &em)["accuracy"];
        close(accuracy, published.dawid_skene, PERCENT, &format!("{name}: Dawid-Skene"));
        let trace = read_table(&em.join("latest"), "trace");
        assert_eq!(trace.len(), published.iterations, "{name}: iterations");
        let last = number(trace.last().unwrap(), "objective");
        close(last, published.log_likelihood, 1e-2, &format!("{name}: log-likelihood"));
        let one_coin: &[&str] = &["model.strength=0", "model.fixed_prior=false"];
        // The tolerances of the reference.
        let glad: &[&str] = &["model.gradient_tol=0.01", "model.stop.tol=1e-5"];
        for (model, settings, want) in [
            ("one_coin", one_coin, published.one_coin),
            ("ibcc", &[], published.ibcc),
            ("glad", glad, published.glad),
        ] {
            let output = folder.path().join(model);
            aggregate_with(&data, name, model, settings, &output);
            let accuracy = 100.0 * scores(&data, name, &output)["accuracy"];
            close(accuracy, want, PERCENT, &format!("{name}: {model}"));
        }
        let trace = read_table(&folder.path().join("ibcc/latest"), "trace");
        let elbo = number(trace.last().unwrap(), "objective");
        close(elbo, published.elbo, 1e-2, &format!("{name}: ELBO"));
    }
}

/// Fast Dawid-Skene shares ties of the vote where the reference takes the lowest class; with that rule, it has 87.96, 92.75,
/// 84.01 and 81.30. The reference of CoNAL-EM compares likelihoods without the log-prior, and ends after 69 iterations on
/// web; at the default tolerance, after 68, one label of web differs. The figures of Snorkel were computed with arrays of numpy.
#[test]
fn accuracies_of_other_em_models_are_the_published_ones() {
    let Some(data) = data_folder("published numbers of EM models") else { return };
    let hybrid: &[&str] = &["model.start=dawid_skene"];
    for (kind, settings, want) in [
        ("fast_dawid_skene", &[][..], [87.96, 93.00, 84.26, 81.12]),
        ("fast_dawid_skene", hybrid, [89.81, 92.75, 84.39, 83.60]),
        ("conal_em", &["model.stop.max_iter=69", "model.stop.tol=0"], [89.81, 92.75, 84.26, 82.74]),
        ("snorkel", &[], [72.22, 92.75, 83.15, 83.79]),
    ] {
        for (dataset, want) in ["bluebirds", "rte", "dog", "web"].into_iter().zip(want) {
            let output = tempfile::tempdir().unwrap();
            aggregate_with(&data, dataset, kind, settings, output.path());
            let accuracy = 100.0 * scores(&data, dataset, output.path())["accuracy"];
            let is_close = (accuracy - want).abs() <= PERCENT;
            assert!(is_close, "{dataset}: {kind} {settings:?} has {accuracy}, not {want}");
        }
    }
}

/// Accuracies with two and with five clusters, after the iterations of the reference, which stops where its bound changes
/// by less than 1e-4. With five clusters of `web`, many annotators have equal matrices at the cut
/// between two blocks, and the figure of the reference, 82.77, follows from the rounding by which it sorts them; here they
/// start in one cluster, with a higher bound, -19444.7 for -19475.8.
#[test]
fn worker_clustering_has_the_published_accuracies() {
    let Some(data) = data_folder("worker clustering") else { return };
    for (dataset, clusters, iterations, want) in [
        ("bluebirds", 2, 19, 80.56),
        ("bluebirds", 5, 37, 88.89),
        ("rte", 2, 14, 93.00),
        ("rte", 5, 61, 93.00),
        ("dog", 2, 27, 81.78),
        ("dog", 5, 21, 82.53),
        ("web", 2, 167, 79.72),
        ("web", 5, 210, 85.22),
    ] {
        let output = tempfile::tempdir().unwrap();
        let settings = [
            format!("model.n_clusters={clusters}"),
            format!("model.stop.max_iter={iterations}"),
            "model.stop.tol=0".to_owned(),
        ];
        let settings = settings.each_ref().map(String::as_str);
        aggregate_with(&data, dataset, "worker_clustering", &settings, output.path());
        let accuracy = 100.0 * scores(&data, dataset, output.path())["accuracy"];
        assert!((accuracy - want).abs() <= PERCENT, "{dataset}, {clusters}: {accuracy}");
    }
}

/// The published accuracies are those of random starts.
#[test]
fn community_bcc_is_within_a_point_of_the_published_accuracies() {
    let Some(data) = data_folder("communities") else { return };
    for (dataset, want, published) in [
        ("bluebirds", 89.81, 89.81),
        ("rte", 93.0, 93.0),
        ("dog", 83.27, 83.6),
        ("web", 84.21, 85.0),
    ] {
        let output = tempfile::tempdir().unwrap();
        aggregate(&data, dataset, "community_bcc", output.path());
        let accuracy = 100.0 * scores(&data, dataset, output.path())["accuracy"];
        assert!(
            (accuracy - want).abs() < 0.01,
            "{dataset}: {accuracy} is not {want} (published {published})"
        );
    }
}

#[test]
fn posteriors_of_glad_on_rte_are_near_their_limit() {
    let Some(data) = data_folder("the limit of GLAD") else { return };
    let posteriors = |settings: &[&str]| -> Vec<f64> {
        let output = tempfile::tempdir().unwrap();
        aggregate_with(&data, "rte", "glad", settings, output.path());
        let rows = read_table(&output.path().join("latest"), "posteriors");
        rows.iter().map(|row| number(row, "probability")).collect()
    };
    let exact = [
        "model.gradient_tol=1e-9",
        "model.max_steps=200",
        "model.stop.tol=0",
        "model.stop.max_iter=200",
    ];
    let (got, limit) = (posteriors(&[]), posteriors(&exact));
    let gaps = got.iter().zip(&limit).map(|(p, q)| (p - q).abs());
    let furthest = gaps.fold(0.0, f64::max);
    assert!(got.len() == 1600 && furthest < 1e-3, "{furthest}");
}

/// Accuracy in percent and log-loss of another implementation after 150 iterations.
#[test]
fn matrices_drawn_to_the_crowd_have_the_scores_of_the_reference() {
    let Some(data) = data_folder("matrices drawn to the crowd") else { return };
    for (dataset, accuracy, log_loss) in [
        ("bluebirds", 89.8, 1.51),
        ("dog", 84.0, 1.57),
        ("labelme", 79.9, 1.20),
        ("music", 78.3, 1.27),
        ("product", 93.8, 0.23),
        ("rte", 92.8, 0.37),
        ("web", 82.2, 0.59),
    ] {
        let output = tempfile::tempdir().unwrap();
        let settings = ["model.stop.max_iter=150", "model.stop.tol=0"];
        aggregate_with(&data, dataset, "dawid_skene", &settings, output.path());
        let scores = scores(&data, dataset, output.path());
        let (got, loss) = (100.0 * scores["accuracy"], scores["log_loss"]);
        // One instance of rte is 0.125 points, one of music 0.14.
        assert!((got - accuracy).abs() < 0.3, "{dataset}: accuracy {got}, expected {accuracy}");
        assert!((loss - log_loss).abs() < 0.02, "{dataset}: log-loss {loss}, expected {log_loss}");
    }
}

#[test]
fn every_dataset_runs_with_every_model_and_accounts_for_every_row() {
    let Some(data) = data_folder("all datasets") else { return };
    let mut crowds = 0;
    let mut folders: Vec<_> =
        std::fs::read_dir(&data).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    for folder in folders.iter().filter(|f| f.join("annotations.parquet").exists()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        crowds += 1;
        for model in label_only() {
            let output = tempfile::tempdir().unwrap();
            aggregate(&data, name, model.kind, output.path());
            let latest = output.path().join("latest");
            let run = read_table(&latest, "run").remove(0);
            let (read, used) = (number(&run, "rows_read"), number(&run, "rows_used"));
            assert_eq!(read, used + number(&run, "rows_rejected"), "{name} {}", model.kind);
            for batch in read_batches(&latest, "posteriors") {
                let p = batch.column_by_name("probability").unwrap().as_primitive::<Float64Type>();
                let is_bad = |p: &&f64| !(0.0..=1.0).contains(*p);
                assert_eq!(p.null_count(), 0, "{name} {}", model.kind);
                assert_eq!(p.values().iter().find(is_bad), None, "{name} {}", model.kind);
            }
            let mut n = 0.0;
            for batch in read_batches(&latest, "labels") {
                let column = |name: &str| batch.column_by_name(name).unwrap();
                let counts = cast(column("n_annotations"), &DataType::Float64).unwrap();
                assert_eq!(counts.null_count(), 0, "{name} {}", model.kind);
                n += counts.as_primitive::<Float64Type>().values().iter().sum::<f64>();
                let labels = cast(column("label"), &DataType::Utf8).unwrap();
                let mut labels = labels.as_string::<i32>().iter();
                let is_missing = labels.any(|label| label.is_none_or(str::is_empty));
                assert!(!is_missing, "{name} {}", model.kind);
            }
            assert_eq!(n, used, "{name} {}", model.kind);
        }
    }
    assert!(crowds >= 20, "only {crowds} crowds under {}", data.display());
}

#[test]
fn accuracies_of_mmce_are_the_published_ones() {
    let Some(data) = data_folder("the accuracies of mmce") else { return };
    for (dataset, want) in [("bluebirds", 91.67), ("rte", 92.38), ("dog", 83.77)] {
        let output = tempfile::tempdir().unwrap();
        aggregate(&data, dataset, "mmce", output.path());
        let accuracy = 100.0 * scores(&data, dataset, output.path())["accuracy"];
        assert!((accuracy - want).abs() <= PERCENT, "{dataset}: {accuracy} is not {want}");
    }
}

/// From one start of labelmill's own; those of the reference are random, and decide a few labels of web.
#[test]
fn accuracies_of_mace_are_the_published_ones() {
    let Some(data) = data_folder("the accuracies of mace") else { return };
    for (dataset, want) in [
        ("bluebirds", [86.11, 88.89]),
        ("rte", [92.62, 92.88]),
        ("dog", [83.02, 83.27]),
        ("web", [83.87, 83.19]),
    ] {
        for (method, want) in ["vb", "em"].into_iter().zip(want) {
            let output = tempfile::tempdir().unwrap();
            let setting = format!("model.method='{method}'");
            aggregate_with(&data, dataset, "mace", &[&setting], output.path());
            let accuracy = 100.0 * scores(&data, dataset, output.path())["accuracy"];
            let is_near = (accuracy - want).abs() <= if dataset == "web" { 0.05 } else { PERCENT };
            assert!(is_near, "{dataset}, {method}: {accuracy} is not {want}");
        }
    }
}
