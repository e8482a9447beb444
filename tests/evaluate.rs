//! `labelmill evaluate` on runs of known content: every number here is worked out by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use serde_json::{Value, json};

use crate::job::{Job, assert_says};
use crate::support::{number, read_table, run_fails, run_ok, stderr, stdout, text, write_parquet};

pub(crate) type NamedColumns = Vec<(&'static str, ArrayRef)>;
pub(crate) type Scores = BTreeMap<String, Option<f64>>;

/// The words of a line, as a column.
pub(crate) fn words(line: &str) -> ArrayRef {
    Arc::new(StringArray::from(line.split_whitespace().collect::<Vec<_>>()))
}

pub(crate) fn f64s(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

/// Writes a committed run of these tables and returns its folder.
pub(crate) fn publish(job: &Job, tables: Vec<(&str, NamedColumns)>) -> String {
    let mut files = serde_json::Map::new();
    for (table, columns) in tables {
        let path = format!("{table}/part-00000.parquet");
        let file = job.path(&format!("made/{path}"));
        write_parquet(&file, columns);
        let bytes = std::fs::metadata(&file).unwrap().len();
        files.insert(table.to_owned(), json!([{"path": path, "rows": 1, "bytes": bytes}]));
    }
    let manifest = json!({
        "run_id": "made", "digest": "", "labelmill": "", "schema_version": 1, "committed_at": "",
        "tables": files,
    });
    job.write("made/manifest.json", &manifest.to_string());
    job.url("made")
}

pub(crate) fn classes() -> (&'static str, NamedColumns) {
    ("classes", vec![("class", words("n y")), ("index", Arc::new(Int64Array::from(vec![0, 1])))])
}

/// The scores of one question by name; a null score is `None`.
pub(crate) fn scores_of(run: &str, truth: &str, more: &[&str], question: &Value) -> Scores {
    let arguments = ["evaluate", "--run", run, "--truth", truth, "--json"];
    let output = stdout(&run_ok(&[&arguments[..], more].concat()));
    let found: Value = serde_json::from_str(&output).unwrap();
    let own = match question.as_str() {
        Some(question) => &found["questions"][question],
        None => &found,
    };
    let own = own.as_object().unwrap().iter().filter(|(name, _)| *name != "warnings");
    own.map(|(name, value)| (name.clone(), value.as_f64())).collect()
}

pub(crate) fn scores(run: &str, truth: &str, more: &[&str]) -> Scores {
    scores_of(run, truth, more, &Value::Null)
}

pub(crate) fn assert_scores(scores: &Scores, want: &[(&str, f64)]) {
    for (name, want) in want {
        let got = scores.get(*name).unwrap_or_else(|| panic!("no {name} in {scores:?}"));
        let got = got.unwrap_or_else(|| panic!("{name} is not defined"));
        assert!((got - want).abs() < 1e-9, "{name}: {got} is not {want}");
    }
}

fn assert_not_defined(scores: &Scores, names: &[&str]) {
    for name in names {
        assert_eq!(scores.get(*name), Some(&None), "{name} in {scores:?}");
    }
}

/// Predictions of two instances that have labels and posteriors, and of two that nobody annotated.
fn predictions() -> (&'static str, NamedColumns) {
    let columns = vec![
        ("instance_id", words("i1 i1 i2 i2 t1 t1 t2 t2")),
        ("class", words("n y n y n y n y")),
        ("probability", f64s(&[0.9, 0.1, 0.3, 0.7, 0.1, 0.9, 0.8, 0.2])),
    ];
    ("predictions", columns)
}

const TRUTH: &str = "instance_id,class\ni1,y\ni2,n\nt1,y\nt2,y\nelsewhere,n\n";

/// Of the four instances of `predictions` only `t1` is right. For the AUC, one of the three pairs of a `y` and the `n`
/// is in the right order.
fn assert_predictions_are_scored(scores: &Scores) {
    let log_loss = -(0.1_f64.ln() + 0.3_f64.ln() + 0.9_f64.ln() + 0.2_f64.ln()) / 4.0;
    assert_scores(
        scores,
        &[
            ("prediction_instances", 4.0),
            ("prediction_coverage", 1.0),
            ("prediction_accuracy", 0.25),
            ("prediction_accuracy_expected_ties", 0.25),
            ("prediction_log_loss", log_loss),
            ("prediction_auc", 1.0 / 3.0),
            ("unknown_instances", 1.0),
        ],
    );
}

#[test]
fn a_classifier_is_scored_on_instances_that_nobody_annotated() {
    let job = Job::new();
    let labels = vec![("instance_id", words("i1 i2")), ("label", words("y n"))];
    let posteriors = vec![
        ("instance_id", words("i1 i1 i2 i2")),
        ("class", words("n y n y")),
        ("probability", f64s(&[0.2, 0.8, 0.6, 0.4])),
    ];
    let tables = vec![classes(), ("labels", labels), ("posteriors", posteriors), predictions()];
    let run = publish(&job, tables);
    let truth = job.write("truth.csv", TRUTH);
    let found = scores(&run, &truth, &[]);
    assert_scores(&found, &[("instances", 2.0), ("accuracy", 1.0)]);
    assert_predictions_are_scored(&found);
    // Truth of instances that nobody annotated scores the classifier, and not the labels.
    let test = job.write("test.csv", "instance_id,class\nt1,y\nt2,y\n");
    let found = scores(&run, &test, &[]);
    assert_scores(&found, &[("instances", 0.0), ("prediction_accuracy", 0.5)]);
    assert_not_defined(&found, &["accuracy", "log_loss", "ece"]);
    let nothing = job.write("nothing.csv", "instance_id,class\nx,y\n");
    assert_says(
        &run_fails(&["evaluate", "--run", &run, "--truth", &nothing], 3),
        &["no instance in common", "4 instances in the run", "--instance-column"],
    );
}

#[test]
fn what_predict_published_is_scored_by_itself() {
    let job = Job::new();
    let run = publish(&job, vec![predictions()]);
    let found = scores(&run, &job.write("truth.csv", TRUTH), &[]);
    assert_predictions_are_scored(&found);
    assert!(!found.contains_key("accuracy"), "{found:?}");
    let empty = publish(&job, vec![("rejects", vec![("reason", words("none"))])]);
    let error = run_fails(&["evaluate", "--run", &empty, "--truth", &job.url("truth.csv")], 3);
    assert_says(&error, &["neither labels nor predictions", "--run", "sink.tables"]);
}

#[test]
fn without_posteriors_no_score_of_them_is_invented() {
    let job = Job::new();
    job.run(
        "source.annotations = [['1', 'a', 'y'], ['2', 'a', 'n'], ['3', 'a', 'n']]
         model.kind = 'majority_vote'\nsink.tables = ['labels', 'classes']",
    );
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n2,n\n3,y\n");
    let found = scores(&job.url("out"), &truth, &[]);
    assert_scores(&found, &[("accuracy", 2.0 / 3.0), ("coverage", 1.0), ("macro_f1", 2.0 / 3.0)]);
    let of_posteriors = ["accuracy_expected_ties", "log_loss", "ece", "auc"];
    assert_not_defined(&found, &of_posteriors);
    assert_not_defined(&found, &["ece_adaptive", "ece_classwise"]);
}

#[test]
fn an_abstained_instance_is_wrong_for_the_run_and_for_evaluate() {
    // `j` has no annotation with a class; its true class is the one that a tie would go to.
    let job = Job::new();
    let gold = "[['i', 'no', 'holdout'], ['j', 'no', 'holdout'], ['k', 'yes', 'holdout']]";
    let run = job.run(&format!(
        "source.annotations = [['i', 'a', 'no'], ['j', 'a', 'unsure'], ['k', 'a', 'yes']]
         source.gold = {gold}
         frame.classes = ['no', 'yes']\nframe.extra_labels = ['unsure']
         model.kind = 'majority_vote'"
    ));
    let own = read_table(&run, "metrics");
    let own: Scores =
        own.iter().map(|row| (text(row, "name"), Some(number(row, "value")))).collect();
    let truth = job.write("truth.csv", "instance_id,class\ni,no\nj,no\nk,yes\n");
    let told = scores(&job.url("out"), &truth, &[]);
    for found in [&own, &told] {
        let log_loss = -1e-15_f64.ln() / 3.0;
        assert_scores(
            found,
            &[
                ("instances", 3.0),
                ("accuracy", 2.0 / 3.0),
                ("accuracy_expected_ties", 2.0 / 3.0),
                ("ece", 0.0),
                ("log_loss", log_loss),
            ],
        );
    }
    for (name, value) in &own {
        assert_scores(&told, &[(name, value.unwrap())]);
    }
}

const MATRICES: [&str; 4] = [
    "confusion_error",
    "confusion_frobenius",
    "confusion_total_variation",
    "confusion_error_observed",
];

#[test]
fn without_a_matrix_in_common_the_error_is_not_defined() {
    for (model, annotator) in [("dawid_skene", "somebody"), ("majority_vote", "a")] {
        let job = Job::new();
        job.run(&format!(
            "source.annotations = [['1', 'a', 'y'], ['2', 'a', 'n']]\nmodel.kind = '{model}'"
        ));
        let truth = job.write("truth.csv", "instance_id,class\n1,y\n2,n\n");
        let confusion = job.write(
            "confusion.csv",
            &format!("annotator_id,class,label,probability\n{annotator},y,y,1\n"),
        );
        let more = ["--confusion", confusion.as_str()];
        assert_not_defined(&scores(&job.url("out"), &truth, &more), &MATRICES);
        let out = job.url("out");
        let arguments = ["evaluate", "--run", &out, "--truth", &truth];
        let output = run_ok(&[&arguments[..], &more].concat());
        assert_says(&stderr(&output), &["no annotator has a matrix in the run and in --confusion"]);
        let shown = stdout(&output);
        let line = shown.lines().find(|l| l.contains("confusion_error ")).unwrap();
        assert_says(line, &["not defined"]);
    }
}

#[test]
fn rows_of_a_matrix_that_were_left_out_are_not_compared() {
    let job = Job::new();
    let labels = vec![("instance_id", words("1")), ("label", words("y"))];
    // `a` has its whole matrix, but an expected count of only 0.3 for `y`; `b` has only one cell in the table; `c` has
    // no true matrix.
    let estimated = vec![
        ("scope", words(&"annotator ".repeat(8))),
        ("annotator_id", words("a a a a a a b c")),
        ("class", words("n n n y y y n n")),
        ("label", words("n u y n u y n n")),
        ("probability", f64s(&[0.8, 0.1, 0.1, 0.25, 0.25, 0.5, 0.9, 1.0])),
        ("expected_count", f64s(&[4.0, 0.0, 0.0, 0.0, 0.0, 0.3, 2.0, 1.0])),
    ];
    let run = publish(&job, vec![classes(), ("labels", labels), ("confusion_matrices", estimated)]);
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n");
    // A missing cell of the true matrices is zero.
    let confusion = job.write(
        "confusion.csv",
        "annotator_id,class,label,probability
a,n,n,0.7\na,n,u,0.1\na,n,y,0.2\na,y,u,0.5\na,y,y,0.5
b,n,n,0.8\nb,n,u,0.1\nb,n,y,0.1\nb,y,y,1\nd,y,y,1\n",
    );
    let found = scores(&run, &truth, &["--confusion", &confusion]);
    // The differences. Row n of a: 0.1, 0, 0.1; row y of a: 0.25, 0.25, 0; row n of b: 0.1, 0.05, 0.05, since the two
    // labels without a cell share the rest, 0.1.
    let (a, b) = (f64::midpoint(0.02, 0.125), 0.015);
    assert_scores(
        &found,
        &[
            ("confusion_error", f64::midpoint(a, b)),
            ("confusion_frobenius", f64::midpoint((2.0 * a).sqrt(), (2.0 * b).sqrt())),
            ("confusion_total_variation", f64::midpoint(f64::midpoint(0.1, 0.25), 0.1)),
            ("confusion_error_observed", f64::midpoint(0.02, b)),
        ],
    );
}

#[test]
fn matrices_of_one_question_are_not_anothers() {
    let job = Job::new();
    let index: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 0, 1]));
    let classes =
        vec![("question", words("p p q q")), ("class", words("n y n y")), ("index", index)];
    let labels =
        vec![("question", words("p q")), ("instance_id", words("1 1")), ("label", words("y n"))];
    let cells = || -> NamedColumns {
        vec![
            ("question", words("p p p p q q q q")),
            ("annotator_id", words("a a a a a a a a")),
            ("class", words("n n y y n n y y")),
            ("label", words("n y n y n y n y")),
        ]
    };
    let mut estimated = cells();
    estimated.push(("scope", words(&"annotator ".repeat(8))));
    estimated.push(("probability", f64s(&[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])));
    estimated.push(("expected_count", f64s(&[1.0; 8])));
    let mut known = cells();
    known.push(("probability", f64s(&[1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.0, 1.0])));
    let tables = vec![("classes", classes), ("labels", labels), ("confusion_matrices", estimated)];
    let run = publish(&job, tables);
    let confusion = job.path("confusion.parquet");
    write_parquet(&confusion, known);
    let truth = job.write("truth.csv", "instance_id,class,question\n1,y,p\n1,y,q\n");
    let more = ["--confusion", confusion.to_str().unwrap()];
    for (question, accuracy, error) in [("p", 1.0, 0.0), ("q", 0.0, 0.25)] {
        let found = scores_of(&run, &truth, &more, &json!(question));
        assert_scores(&found, &[("accuracy", accuracy), ("confusion_error", error)]);
    }
}

#[test]
fn a_truth_of_other_questions_than_the_run_is_a_warning() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,question\n1,a,y,p\n1,a,n,q\n");
    job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'");
    let out = job.url("out");
    let evaluate = |rows: &str| {
        let truth = job.write("truth.csv", rows);
        run_ok(&["evaluate", "--run", &out, "--truth", &truth, "--json"])
    };
    let done = evaluate("instance_id,class,question\n1,y,p\n1,n,r\n");
    let found: Value = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(found["questions"].as_object().unwrap().keys().collect::<Vec<_>>(), ["p"]);
    assert_eq!(found["questions"]["p"]["accuracy"], 1.0);
    assert_eq!(found.get("accuracy"), None);
    assert_says(
        &stderr(&done),
        &[
            "warning: rows of the truth of questions that the run did not answer are left out: `r`",
            "warning: the truth has no instance of 1 of the 2 questions",
        ],
    );
    let told = stderr(&evaluate("instance_id,class\n1,y\n"));
    assert_says(&told, &["warning: the truth names no question", "for all 2 questions"]);
    let truth = job.write("truth.csv", "instance_id,class,question\n1,y,r\n");
    let error = run_fails(&["evaluate", "--run", &out, "--truth", &truth], 3);
    assert_says(&error, &["no question in common"]);

    job.run(
        "source.annotations = [['1', 'a', 'y']]\nmodel.kind = 'majority_vote'\nsink.run_id = 'one'",
    );
    let truth = job.write("truth.csv", "instance_id,class,question\n1,y,p\n1,n,q\n");
    let error = run_fails(&["evaluate", "--run", &out, "--truth", &truth], 3);
    assert_says(&error, &["the truth is of several questions", "`p`, `q`", "--truth"]);
}

#[test]
fn rows_of_the_truth_without_a_class_are_left_out_with_a_warning() {
    let job = Job::new();
    job.run("source.annotations = [['1', 'a', 1], ['2', 'a', 2]]\nmodel.kind = 'majority_vote'");
    let told = |classes: &[f64]| {
        let truth = job.path("truth.parquet");
        let ids = words(&"1 2 3 4"[..2 * classes.len() - 1]);
        write_parquet(&truth, vec![("instance_id", ids), ("class", f64s(classes))]);
        let (run, truth) = (job.url("out"), truth.display().to_string());
        stderr(&run_ok(&["evaluate", "--run", &run, "--truth", &truth]))
    };
    let warning = "warning: rows of the truth without a class are left out: 3";
    assert_says(&told(&[1.0, f64::NAN, f64::INFINITY, f64::NAN]), &[warning]);
    assert!(!told(&[1.0, 2.0]).contains("warning"));
}

#[test]
fn a_truth_that_repeats_itself_counts_once_and_one_that_contradicts_itself_is_refused() {
    let job = Job::new();
    job.run("source.annotations = [['1', 'a', 'y'], ['2', 'a', 'n']]\nmodel.kind = 'dawid_skene'");
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n1,y\n1,y\n2,y\n3,n\n3,n\n2,\n");
    let out = job.url("out");
    let found = scores(&out, &truth, &[]);
    assert_scores(&found, &[("instances", 2.0), ("accuracy", 0.5), ("unknown_instances", 1.0)]);
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n1,n\n2,y\n");
    let error = run_fails(&["evaluate", "--run", &out, "--truth", &truth], 3);
    assert_says(&error, &["the truth gives an instance two classes", "`1`", "--truth"]);
    let truth = job.write("truth.ndjson", "{\"instance_id\":\"1\",\"class\":[\"y\"]}\n");
    let error = run_fails(&["evaluate", "--run", &out, "--truth", &truth], 3);
    assert_says(&error, &["cannot be read as", "--truth"]);
}
