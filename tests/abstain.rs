//! Instances whose best class is not probable enough have no label: in the tables, in the summary, in the metrics.

use serde_json::Value;

use crate::job::{Job, cells};
use crate::support::{number, read_table, run_ok, stdout};

/// i1 is certain, i2 has two of three votes, i3 is a tie, i4 is trusted against its votes, and nobody names a class of i5.
const VOTES: &str = "\
instance_id,annotator_id,label
i1,a,x
i1,b,x
i1,c,x
i2,a,x
i2,b,y
i2,c,y
i3,b,x
i3,c,y
i4,a,y
i4,b,x
i4,c,x
i5,a,unsure
";

/// The labels, what the summary counts, and the coverage and accuracy on the held-out gold, of this threshold.
fn decided(min_confidence: &str) -> (Vec<String>, Value, [f64; 2]) {
    let job = Job::new();
    job.write("votes.csv", VOTES);
    let gold = "instance_id,class,role\ni1,x,holdout\ni2,y,holdout\ni3,x,holdout\ni4,y,train\n";
    job.write("gold.csv", gold);
    let (votes, gold, url) = (job.url("votes.csv"), job.url("gold.csv"), job.url("out"));
    let settings = ["frame.extra_labels=['unsure']", min_confidence];
    let mut arguments = vec!["aggregate", "--annotations", &votes, "--gold", &gold, "--json"];
    arguments.extend(["--model", "wawa", "--output", &url]);
    arguments.extend(settings.iter().filter(|s| !s.is_empty()).flat_map(|s| ["--set", s]));
    let shown: Value = serde_json::from_str(&stdout(&run_ok(&arguments))).unwrap();
    let run = job.path("out/latest");
    let labels = cells(&read_table(&run, "labels"), &["instance_id", "label", "decision"]);
    let metrics = read_table(&run, "metrics");
    let metric = |name: &str| {
        let is = |row: &&crate::support::Row| {
            row["name"].as_deref() == Some(name) && row["split"].as_deref() == Some("holdout")
        };
        number(metrics.iter().find(is).unwrap(), "value")
    };
    (labels, shown["labels"].clone(), [metric("coverage"), metric("accuracy")])
}

// keys: decide.min_confidence
#[test]
fn what_is_less_probable_than_the_threshold_has_no_label_and_counts_against_the_coverage() {
    let (labels, counts, measures) = decided("");
    assert_eq!(labels[..4], ["i1 x decided", "i2 y decided", "i3 x tied", "i4 y gold"]);
    assert_eq!(counts, serde_json::json!({"decided": 2, "tied": 1, "gold": 1, "abstained": 1}));
    assert_eq!(measures, [1.0, 1.0]);
    // Two of three votes for i2 weigh .71.
    let (labels, counts, measures) = decided("decide.min_confidence=0.9");
    let want = ["i1 x decided", "i2  abstained", "i3  abstained", "i4 y gold", "i5  abstained"];
    assert_eq!(labels, want);
    assert_eq!(counts, serde_json::json!({"decided": 1, "tied": 0, "gold": 1, "abstained": 3}));
    // An instance without a label is not right: of those that have one, accuracy / coverage are.
    assert_eq!(measures, [1.0 / 3.0, 1.0 / 3.0]);
    // A tie has half of its votes, which is enough for itself.
    let (labels, ..) = decided("decide.min_confidence=0.5");
    assert_eq!(labels[2], "i3 x tied");
}
