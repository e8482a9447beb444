//! Models that learn embeddings of instances in place of features.

use crate::job::assert_says;
use crate::network_job::{crowd, job, pipeline, winners};
use crate::support::{number, read_table, text};

/// The same pipeline without features has labels, and predicts nothing.
#[test]
fn lia_does_without_features() {
    let job = job();
    let with = pipeline("kind = 'lia'");
    let without = with.replace("features = '{dir}features.parquet'\n", "");
    assert!(with != without);
    let run = job.run(&without);
    assert_eq!(read_table(&run, "labels").len(), 150);
    assert!(read_table(&run, "predictions").is_empty() && !run.join("model").exists());
    let truth = crowd().truth;
    let posteriors = winners(&read_table(&run, "posteriors"));
    let right = posteriors.into_iter().filter(|(i, k)| truth[*i as usize] == *k).count();
    assert!(right > 120, "{right} of 150");
    let competence: Vec<f64> = read_table(&run, "annotator_parameters")
        .iter()
        .filter(|row| text(row, "name") == "competence")
        .map(|row| number(row, "value"))
        .collect();
    assert!(competence.len() == 8 && competence.iter().all(|p| (0.0..1.0).contains(p)));
    assert_eq!(read_table(&run, "confusion_matrices").len(), 8 * 9);
    assert_eq!(read_table(&run, "instance_parameters").len(), 150);
    let check = job.ends(&without.replace("'lia'", "'dl'"), &[], 2);
    assert_says(&check, &["`dl` learns from features"]);
    let run = job.run(&without.replace("'lia'", "'dl'\nembed_instances = true"));
    assert_eq!(read_table(&run, "labels").len(), 150);
    assert!(read_table(&run, "predictions").is_empty() && !run.join("model").exists());
}
