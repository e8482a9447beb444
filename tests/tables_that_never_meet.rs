//! Tables that should share ids or classes: none in common is an error with both sides, some are a warning with counts.

use serde_json::Value;

use crate::job::{Job, assert_says, vote};
use crate::network_job;
use crate::support::{run_fails, run_ok, stderr, stdout};

/// Twelve instances, each labelled by three annotators with one of two labels.
fn crowd(labels: [&str; 2]) -> Job {
    let job = Job::new();
    let rows = (0..12).flat_map(|i| (0..3).map(move |r| (i, r)));
    let rows = rows.map(|(i, r)| format!("t{i:02},a{r},{}\n", labels[(i + r / 2) % 2]));
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{}", rows.collect::<String>()));
    job
}

fn truth(job: &Job, name: &str, ids: impl Fn(usize) -> String, classes: [&str; 2]) -> String {
    let rows = (0..12).map(|i| format!("{},{}\n", ids(i), classes[i % 2]));
    job.write(name, &format!("instance_id,class\n{}", rows.collect::<String>()))
}

fn own(i: usize) -> String {
    format!("t{i:02}")
}

const JOB: &str = "source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'\n";
const WITH_GOLD: &str = "source = { annotations = '{dir}in.csv', gold = '{dir}gold.csv' }
    model.kind = 'majority_vote'\n";

#[test]
fn a_truth_without_a_class_of_the_run_is_an_error_that_shows_both_spellings() {
    for (labels, classes, why) in [
        (["x0.0", "x1.0"], ["X0.0", "X1.0"], "differs in case"),
        (["False", "True"], ["FALSE", "TRUE"], "differs in case"),
        (["no", "yes"], ["0", "1"], "the same truth value"),
        (["neg", "pos"], ["negative", "positive"], "have no class in common"),
    ] {
        let job = crowd(labels);
        job.run(JOB);
        let truth = truth(&job, "truth.csv", own, classes);
        let error = run_fails(&["evaluate", "--run", &job.url("out"), "--truth", &truth], 3);
        assert_says(&error, &["the truth and the run have no class in common", "--truth", why]);
        for value in labels.iter().chain(&classes) {
            assert_says(&error, &[&format!("`{value}`")]);
        }
    }
}

#[test]
fn classes_and_instances_of_the_truth_that_the_run_lacks_are_a_warning_with_counts() {
    let job = crowd(["no", "yes"]);
    job.run(JOB);
    let truth = job.write("truth.csv", "instance_id,class\nt00,no\nt01,maybe\nelsewhere,yes\n");
    let done = run_ok(&["evaluate", "--run", &job.url("out"), "--truth", &truth, "--json"]);
    let warnings = [
        "1 of 3 instances of the truth is not in the run: `elsewhere` [tables_partly_match]",
        "1 of 3 classes of the truth is not in the run: `maybe` [tables_partly_match]",
    ];
    assert_says(&stderr(&done), &warnings);
    let scores: Value = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(scores["warnings"], serde_json::json!(warnings));
    assert_eq!((&scores["instances"], &scores["accuracy"]), (&2.0.into(), &0.5.into()));
    assert_eq!(scores["unknown_instances"], 1.0);
}

#[test]
fn gold_without_an_instance_of_the_annotations_is_an_error() {
    let job = crowd(["no", "yes"]);
    truth(&job, "gold.csv", |i| format!("T{i:02}"), ["no", "yes"]);
    let error = job.fails(WITH_GOLD, 3);
    assert_says(
        &error,
        &[
            "gold and the annotations have no instance in common",
            "source.gold",
            "12 instances in the annotations: `t00`, `t01`, `t02`, `t03`, `t04` and 7 more; \
             12 instances in gold: `T00`",
            "`T00` of gold may be `t00` of the annotations, which differs in case or spaces",
        ],
    );
    // Columns that are exchanged.
    job.write("gold.csv", "instance_id,class\na0,no\na1,yes\n");
    assert_says(&job.fails(WITH_GOLD, 3), &["source.columns.annotator may be exchanged"]);
    job.write("gold.csv", "instance_id,class\nt00,no\nt99,yes\n");
    let told = job.ends(WITH_GOLD, &[], 0);
    assert_says(&told, &["1 of 2 instances of gold is not in the annotations: `t99`"]);
}

/// Gold that scores the classifier, of instances that nobody annotated: they are known by their features.
#[test]
fn gold_of_instances_with_features_alone_is_known() {
    let job = network_job::job();
    let rows = (0..12).flat_map(|i| (0..3).map(move |r| format!("t{i:02},a{r},{}\n", i % 2)));
    let rows = rows.collect::<String>();
    job.write("annotations.csv", &format!("instance_id,annotator_id,label\n{rows}"));
    let rows = (0..20).map(|i| format!("t{i:02},{}\n", i % 2)).collect::<String>();
    job.write("features.csv", &format!("instance_id,h\n{rows}"));
    let rows = (11..20).map(|i| format!("t{i:02},{},holdout\n", i % 2)).collect::<String>();
    job.write("gold.csv", &format!("instance_id,class,role\n{rows}u1,0,holdout\nu2,1,holdout\n"));
    let told = job.ends(
        "source = { annotations = '{dir}annotations.csv', features = '{dir}features.csv', gold = '{dir}gold.csv' }
         model = { kind = 'dl', train.epochs = 1 }",
        &[],
        0,
    );
    assert_says(
        &told,
        &["2 of 11 instances of gold are not in the annotations: `u1`, `u2` [tables"],
    );
}

#[test]
fn gold_classes_that_nobody_gave_are_a_warning_and_without_any_other_an_error() {
    let job = crowd(["no", "yes"]);
    truth(&job, "gold.csv", own, ["0", "1"]);
    let error = job.fails(WITH_GOLD, 3);
    assert_says(
        &error,
        &[
            "gold and the labels of the annotations have no class in common",
            "2 classes in the labels of the annotations: `no`, `yes`; 2 classes in gold: `0`, `1`",
            "the same truth value",
        ],
    );
    truth(&job, "gold.csv", own, ["no", "maybe"]);
    let told = job.ends(WITH_GOLD, &[], 0);
    let warning = "1 of 2 classes of gold is not in the labels of the annotations: `maybe`";
    assert_says(&told, &[warning]);
    // A class that is listed is meant.
    let listed = WITH_GOLD.to_owned() + "frame.classes = ['no', 'yes', 'maybe']";
    assert!(!job.ends(&listed, &[], 0).contains("warning"));
}

#[test]
fn labels_that_are_not_listed_are_named() {
    let job = crowd(["no", "yes"]);
    let error = job.fails(&(JOB.to_owned() + "frame.classes = ['No', 'Yes']"), 3);
    assert_says(
        &error,
        &[
            "the annotations and frame.classes have no label in common",
            "where: frame.classes",
            "2 labels in frame.classes: `No`, `Yes`; 2 labels in the annotations: `no`, `yes`",
            "differs in case",
        ],
    );
    let told = job.ends(&(JOB.to_owned() + "frame.classes = ['no', 'YES']"), &[], 0);
    assert_says(&told, &["1 of 2 labels of the annotations is not in frame.classes: `yes`; `yes`"]);
}

#[test]
fn features_of_annotators_in_place_of_instances_are_told() {
    let job = network_job::job();
    job.write("annotations.csv", "instance_id,annotator_id,label\ni1,a1,x\ni2,a2,y\ni3,a1,x\n");
    job.write("features.csv", "instance_id,h\na1,0.5\na2,1.5\n");
    let error = job.fails(
        "source = { annotations = '{dir}annotations.csv', features = '{dir}features.csv' }
         model = { kind = 'dl', train.epochs = 1 }",
        3,
    );
    assert_says(
        &error,
        &[
            "the annotations and the features have no instance in common",
            "where: source.features",
            "`a1`, `a2`; 3 instances in the annotations: `i1`, `i2`, `i3`",
            "may be exchanged",
        ],
    );
}

#[test]
fn the_summary_counts_gold_by_role_and_says_where_none_scores() {
    let job = crowd(["no", "yes"]);
    truth(&job, "gold.csv", own, ["no", "yes"]);
    let told = job.ends(WITH_GOLD, &[], 0);
    assert_says(&told, &["gold        12 train; none scores: give rows the role `holdout`"]);
    job.write("gold.csv", "instance_id,class,role\nt00,no,train\nt01,yes,holdout\n");
    let told = job.ends(WITH_GOLD, &[], 0);
    assert_says(&told, &["gold        1 train, 1 holdout\n"]);
}

#[test]
fn the_summary_as_json_has_the_accuracy_the_class_counts_and_the_seconds() {
    let job = crowd(["no", "yes"]);
    job.write("gold.csv", "instance_id,class,role\nt00,no,holdout\nt01,no,holdout\n");
    let file = job.write("pipeline.toml", &(WITH_GOLD.to_owned() + "sink.url = '{dir}out'"));
    let summary: Value = serde_json::from_str(&stdout(&run_ok(&["run", &file, "--json"]))).unwrap();
    assert_eq!(summary["accuracy"], serde_json::json!({"holdout": 0.5}));
    assert_eq!(summary["classes"], serde_json::json!({"no": 6, "yes": 6}));
    assert!(summary["seconds"]["reading"].as_f64().unwrap() > 0.0);
    assert!(summary["seconds"]["fitting"].as_f64().unwrap() >= 0.0);
}

#[test]
fn evaluate_knows_the_columns_of_the_run() {
    let job = Job::new();
    job.write("in.csv", "item,worker,answer\n1,a,no\n2,a,yes\n1,b,no\n");
    job.run(
        "source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'
         source.columns = { instance = 'item', annotator = 'worker', label = 'answer' }",
    );
    let accuracy = |header: &str| {
        let truth = job.write("truth.csv", &format!("{header}\n1,no\n2,no\n"));
        let done = run_ok(&["evaluate", "--run", &job.url("out"), "--truth", &truth, "--json"]);
        serde_json::from_str::<Value>(&stdout(&done)).unwrap()["accuracy"].as_f64()
    };
    for header in ["item,answer", "item,class", "instance_id,class", "instance_id,label"] {
        assert_eq!(accuracy(header), Some(0.5), "{header}");
    }
}

#[test]
fn a_truth_of_other_questions_is_an_error_that_names_them() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,question\ni,a,x,q1\ni,b,x,q1\nj,a,y,q2\n");
    job.run(&vote("in.csv", ""));
    let truth = job.write("truth.csv", "instance_id,class,question\ni,x,Q1\nj,y,Q2\n");
    let error = run_fails(&["evaluate", "--run", &job.url("out"), "--truth", &truth], 3);
    let parts = ["no question in common", "2 questions in the run: `q1`, `q2`", "`Q1`, `Q2`"];
    assert_says(&error, &parts);
    assert_says(&error, &["source.normalise = [\"lower\"]"]);
}

// keys: source.columns.instance, source.columns.annotator, source.columns.label
#[test]
fn one_column_is_not_two() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,w\ni,a,x,1\n");
    for (mapped, key) in [
        ("annotator = 'instance_id'", "annotator"),
        ("instance = 'w', annotator = 'w'", "annotator"),
        ("label = 'annotator_id'", "label"),
    ] {
        let more = format!("source.columns = {{ {mapped} }}");
        let error = job.fails(&vote("in.csv", &more), 2);
        assert_says(&error, &["is mapped twice", &format!("source.columns.{key}")]);
    }
    // Names that are exchanged are three.
    job.ends(
        &vote("in.csv", "source.columns = { instance = 'annotator_id', annotator = 'w' }"),
        &[],
        0,
    );
}

// keys: frame.extra_labels
#[test]
fn classes_and_gold_that_nothing_uses_are_warned_of() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,x\nj,a,y\n");
    job.write("gold.csv", "instance_id,class,role\n");
    let lists = "frame.classes = ['1', '2']\nframe.extra_labels = ['x', 'y']\n";
    let told = job.ends(&vote("in.csv", lists), &[], 0);
    assert_says(&told, &["every label of the annotations is in frame.extra_labels"]);
    let told = job.ends(&vote("in.csv", "frame.extra_labels = ['y']"), &[], 0);
    assert!(!told.contains("every label"), "{told}");
    let told = job.ends(&vote("in.csv", "source.gold = '{dir}gold.csv'"), &[], 0);
    assert_says(&told, &["warning: gold has no rows"]);
}
