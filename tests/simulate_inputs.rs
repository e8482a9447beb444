//! What `simulate` reads: columns that are no classes, crowds too large, and the rules for text.

use crate::job::{Job, assert_says};
use crate::support::{read_table, run_fails, run_ok, text};

#[test]
fn a_column_of_ids_is_no_column_of_classes() {
    let job = Job::new();
    let rows: String = (0..40_000).map(|i| format!("i{i},c{i}\n")).collect();
    let truth = job.write("truth.csv", &format!("instance_id,class\n{rows}"));
    let (out, recipe) = (job.url("out"), ["--recipe", "groups", "--set", "groups=1*right"]);
    let fixed = ["simulate", "--truth", &truth, "--output", &out];
    let error = run_fails(&[&fixed[..], &recipe].concat(), 3);
    assert_says(
        &error,
        &["40000 distinct classes: is this a column of classes?", "--class-column"],
    );
    // The largest number of classes that is allowed, with more annotators than any machine has memory for.
    let rows: String = (0..30_000).map(|i| format!("i{i},c{i}\n")).collect();
    let truth = job.write("truth.csv", &format!("instance_id,class\n{rows}"));
    let fixed = ["simulate", "--truth", &truth, "--output", &out];
    for (groups, n) in [
        ("1000000*symmetric(0.4)", "1000000"),
        ("18446744073709551615*right, 2*right", "18446744073709551615"),
    ] {
        let groups = format!("groups={groups}");
        let many = ["--recipe", "groups", "--set", &groups];
        let error = run_fails(&[&fixed[..], &many].concat(), 2);
        let found = format!("{n} annotators");
        assert_says(&error, &["do not fit into memory", &found, "--recipe"]);
        assert!(!error.contains("engine.memory_limit"), "{error}");
    }
}

#[test]
fn text_of_the_files_is_read_by_the_rules_that_are_given() {
    let job = Job::new();
    let truth = job.write("truth.csv", "instance_id,class\n I1,Cat\ni2 ,cat\ni3,dog\ni4,NA\n");
    let out = job.url("out");
    let fixed = [
        "simulate",
        "--truth",
        &truth,
        "--output",
        &out,
        "--recipe",
        "groups",
        "--set",
        "groups=1*right",
    ];
    let rules = ["--null-value", "NA", "--normalise", "trim", "--normalise", "lower"];
    run_ok(&[&fixed[..], &rules].concat());
    let rows = read_table(&job.path("out/latest"), "truth");
    let cells: Vec<String> =
        rows.iter().map(|row| [text(row, "instance_id"), text(row, "class")].join(" ")).collect();
    assert_eq!(cells, ["i1 cat", "i2 cat", "i3 dog"]);
    let error = run_fails(&[&fixed[..], &["--normalise", "upper"]].concat(), 2);
    assert_says(&error, &["--normalise", "trim or lower"]);
}
