//! A run that fails its gates publishes nothing and leaves the last one in place.

use crate::job::{Job, assert_says};
use crate::support::{run_ok, stdout};

/// One of five rows is rejected; one of three instances is a tie, one has no label; the label of the holdout is wrong.
const CROWD: &str = "source.annotations = [['i', 'a', 'x'], ['j', 'a', 'x'], ['j', 'b', 'y'], ['i', 'b', 'x'], ['k', 'a', 'z']]
    source.gold = [['i', 'y', 'holdout']]\nframe.classes = ['x', 'y']\nmodel.kind = 'majority_vote'\n";

// keys: gate.max_rejected, gate.max_tied, gate.max_abstained, gate.min_accuracy
#[test]
fn every_broken_bound_is_named_with_what_was_found() {
    let bounds =
        "gate = { max_rejected = 0.19, max_tied = 0.33, max_abstained = 0.3, min_accuracy = 0.5 }";
    let error = Job::new().fails(&(CROWD.to_owned() + bounds), 6);
    assert_says(
        &error,
        &[
            "too many rows were rejected\n  where: gate.max_rejected = 0.19\n  found: 0.2000 (1 of 5 rows); 1 ",
            "too many labels are broken ties\n  where: gate.max_tied = 0.33\n  found: 0.3333 (1 of 3 instances)",
            "too many instances have no label\n  where: gate.max_abstained = 0.3\n  found: 0.3333 (1 of 3 instances)",
            "the accuracy is too low\n  where: gate.min_accuracy = 0.5\n  found: 0.0000 (0 of 1 gold instances)",
            "nothing was published",
            "--keep-rejected",
        ],
    );
}

#[test]
fn a_bound_that_is_exactly_met_passes() {
    let bounds =
        "gate = { max_rejected = 0.2, max_tied = 0.34, max_abstained = 0.34, min_accuracy = 0.0 }";
    Job::new().run(&(CROWD.to_owned() + bounds));
}

#[test]
fn a_bound_on_accuracy_without_gold_to_score_fails_the_gate() {
    let crowd = CROWD.replace("'holdout'", "'train'") + "gate.min_accuracy = 0.1";
    assert_says(&Job::new().fails(&crowd, 6), &["no gold to measure the accuracy on", "holdout"]);
}

#[test]
fn a_run_that_fails_its_gate_leaves_the_last_one_in_place() {
    let job = Job::new();
    let first = job.run(CROWD);
    let before = std::fs::read(job.path("out/latest.json")).unwrap();
    job.ends(&(CROWD.to_owned() + "seed = 1\n[gate]\nmax_tied = 0.0"), &[], 6);
    assert_eq!(job.path("out/latest").canonicalize().unwrap(), first);
    assert_eq!(std::fs::read(job.path("out/latest.json")).unwrap(), before);
    let runs: Vec<_> = std::fs::read_dir(job.path("out/runs")).unwrap().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
}

#[test]
fn the_worst_question_decides_whether_a_bound_is_kept() {
    for (right, wrong) in [("p", "q"), ("q", "p")] {
        let crowd = format!(
            "source.annotations = [['i', 'a', 'x', 1.0, '2026-01-01', '{right}'], ['i', 'a', 'y', 1.0, '2026-01-01', '{wrong}']]
             source.gold = [['i', 'x', 'holdout', '{right}'], ['i', 'x', 'holdout', '{wrong}']]
             frame.classes = ['x', 'y']\nmodel.kind = 'majority_vote'\n"
        );
        let error = Job::new().fails(&(crowd.clone() + "gate.min_accuracy = 0.5"), 6);
        assert_says(&error, &["the accuracy is too low", "found: 0.0000"]);
        Job::new().run(&(crowd + "gate.min_accuracy = 0.0"));
    }
}

#[test]
fn a_question_without_a_usable_row_counts_as_one_without_labels() {
    // No label of the second question is a class. It has two instances, one of them with gold.
    let crowd = "source.annotations = [['i', 'a', 'x', 1.0, '2026-01-01', 'p'], ['j', 'a', 'y', 1.0, '2026-01-01', 'p'],
        ['i', 'a', 'X', 1.0, '2026-01-01', 'q'], ['j', 'a', 'X', 1.0, '2026-01-01', 'q']]
        source.gold = [['i', 'x', 'holdout', 'p'], ['i', 'x', 'holdout', 'q'], ['never seen', 'x', 'holdout', 'q']]
        frame.classes = ['x', 'y']\nmodel.kind = 'majority_vote'\n";
    let bounds = "gate = { max_abstained = 0.49, min_accuracy = 0.01 }";
    let error = Job::new().fails(&(crowd.to_owned() + bounds), 6);
    assert_says(&error, &["too many instances have no label", "found: 0.5000"]);
    assert_says(&error, &["the accuracy is too low", "found: 0.0000"]);
    let met = "gate = { max_abstained = 0.5, min_accuracy = 0.0 }";
    Job::new().run(&(crowd.to_owned() + met));
    // Without gold for any instance of that question, the accuracy of the other question decides.
    let unseen = crowd.replace("['i', 'x', 'holdout', 'q'], ", "");
    Job::new().run(&(unseen + "gate.min_accuracy = 1.0"));
}

#[test]
fn a_gate_that_was_moved_holds_for_a_run_that_was_committed_before() {
    let job = Job::new();
    job.run(CROWD);
    let bounds = CROWD.to_owned() + "gate = { max_rejected = 0.19, min_accuracy = 0.5 }";
    let error = job.ends(&bounds, &[], 6);
    let messages = ["too many rows were rejected", "found: 0.2000", "the accuracy is too low"];
    assert_says(&error, &messages);
    assert_says(&error, &["the run was committed before"]);
    // Nor does the run become `latest` when the job that fails the gate runs again.
    std::fs::remove_file(job.path("out/latest.json")).unwrap();
    job.ends(&bounds, &[], 6);
    assert!(!job.path("out/latest.json").exists());
    assert_says(&job.ends(CROWD, &[], 0), &["nothing to do"]);
    assert!(job.path("out/latest.json").exists());
}

#[test]
fn a_refused_run_that_is_kept_is_published_below_rejected_and_never_as_latest() {
    let job = Job::new();
    let first = job.run(CROWD);
    let refused = CROWD.to_owned() + "seed = 1\n[gate]\nmax_tied = 0.0";
    for _ in 0..2 {
        let error = job.ends(&refused, &["--keep-rejected"], 6);
        assert_says(&error, &["too many labels are broken ties", "out/rejected/runs/"]);
        assert_eq!(job.path("out/latest").canonicalize().unwrap(), first);
        let runs: Vec<_> = std::fs::read_dir(job.path("out/rejected/runs")).unwrap().collect();
        assert_eq!(runs.len(), 1, "{runs:?}");
        let run = runs[0].as_ref().unwrap().path().display().to_string();
        let query = ["sql", "--json", "--run", &run, "-c", "select count(*) as n from labels"];
        assert_eq!(stdout(&run_ok(&query)), "{\"n\":3}\n");
    }
    assert_eq!(std::fs::read_dir(job.path("out/runs")).unwrap().count(), 1);
    // A run that meets its gate is published as always.
    job.ends(&(CROWD.to_owned() + "seed = 2"), &["--keep-rejected"], 0);
    assert_ne!(job.path("out/latest").canonicalize().unwrap(), first);
}
