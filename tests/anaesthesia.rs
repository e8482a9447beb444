//! The published analysis of 1979, reproduced from the shipped data with the real binary.

use std::collections::BTreeMap;

use crate::support::{assert_close, number, read_table, run_ok, text};

/// The paper prints two digits.
const TOLERANCE: f64 = 0.005 + 1e-9;

#[test]
fn class_marginals_and_error_rates_are_the_published_ones() {
    let folder = tempfile::tempdir().unwrap();
    let sink = format!("sink.url={}", folder.path().display());
    run_ok(&["run", "pipelines/quickstart.toml", "--set", &sink]);
    let run = folder.path().join("latest");
    let priors: Vec<f64> = read_table(&run, "classes").iter().map(|r| number(r, "prior")).collect();
    assert_close(&priors, &[0.40, 0.42, 0.11, 0.07], TOLERANCE, "class marginals");
    // The confusion matrix of observer 1, who read every case three times: a row is a true class.
    let published = [
        [0.89, 0.11, 0.00, 0.00],
        [0.07, 0.88, 0.05, 0.00],
        [0.00, 0.34, 0.66, 0.00],
        [0.00, 0.00, 0.56, 0.44],
    ];
    let cells: BTreeMap<(String, String), f64> = read_table(&run, "confusion_matrices")
        .iter()
        .filter(|row| text(row, "annotator_id") == "1")
        .map(|row| ((text(row, "class"), text(row, "label")), number(row, "probability")))
        .collect();
    for (k, row) in published.iter().enumerate() {
        let got: Vec<f64> =
            (0..4).map(|l| cells[&((k + 1).to_string(), (l + 1).to_string())]).collect();
        assert_close(&got, row, TOLERANCE, &format!("observer 1, class {}", k + 1));
    }
}
