//! Tables of probabilities beside the annotations: predictions of a classifier, and known confusion matrices.

use crate::job::{Job, assert_says, cells};
use crate::support::{number, read_table, run_ok, stderr, stdout, text};

/// Twelve instances; annotators `a` and `b` say the class, `c` the opposite.
const CROWD: &str = "instance_id,annotator_id,label\n";

fn crowd() -> Job {
    let job = Job::new();
    let label = |i: usize, r: usize| ["no", "yes"][(i + usize::from(r == 2)) % 2];
    let rows = (0..12).flat_map(|i| (0..3).map(move |r| (i, r)));
    let rows = rows.map(|(i, r)| format!("t{i:02},{},{}\n", ["a", "b", "c"][r], label(i, r)));
    job.write("in.csv", &format!("{CROWD}{}", rows.collect::<String>()));
    job
}

const KNOWN: &str = "source.annotations = '{dir}in.csv'\nsource.confusion = '{dir}confusion.csv'
    model = { kind = 'known_confusion', class_prior = [0.5, 0.5] }\n";
const MATRICES: &str = "annotator_id,class,label,probability
    a,no,no,0.6\na,no,yes,0.4\na,yes,no,0.4\na,yes,yes,0.6
    b,no,no,0.6\nb,no,yes,0.4\nb,yes,no,0.4\nb,yes,yes,0.6
    c,no,no,0.9\nc,no,yes,0.1\nc,yes,no,0.1\nc,yes,yes,0.9\n";
const PREDICTED: &str = "source.annotations = '{dir}in.csv'\nsource.predictions = '{dir}p.csv'
    model.kind = 'crowdlab'\n";

fn matrices() -> String {
    MATRICES.replace("    ", "")
}

fn predictions(more: &str) -> String {
    let rows = (0..12).map(|i| {
        let p = if i % 2 == 0 { 0.8 } else { 0.3 };
        format!("t{i:02},no,{p}\nt{i:02},yes,{}\n", 1.0 - p)
    });
    format!("instance_id,class,probability\n{}{more}", rows.collect::<String>())
}

/// 0.6 * 0.6 * 0.1 to 0.4 * 0.4 * 0.9: one good annotator outweighs two poor ones.
// keys: source.confusion
#[test]
fn known_matrices_decide_against_a_majority() {
    let job = crowd();
    job.write("confusion.csv", &matrices());
    let run = job.run(KNOWN);
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels[..2], &["instance_id", "label"]), ["t00 yes", "t01 no"]);
    let confidence = 0.144 / (0.144 + 0.036);
    assert!((number(&labels[0], "confidence") - confidence).abs() < 1e-9);
    let written = read_table(&run, "confusion_matrices");
    let of_c = written.iter().filter(|row| text(row, "annotator_id") == "c");
    let p: Vec<f64> = of_c.map(|row| number(row, "probability")).collect();
    assert_eq!(p, [0.9, 0.1, 0.1, 0.9]);
}

/// The matrices of the same fit give its labels again, also those of annotators with few annotations.
#[test]
fn the_table_of_a_run_is_a_table_of_matrices() {
    let job = crowd();
    let first = job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'\n");
    let table = first.join("confusion_matrices/");
    let known = KNOWN.replace("{dir}confusion.csv", &table.display().to_string());
    let again = job.run(&known);
    let labels = |run| cells(&read_table(run, "labels"), &["instance_id", "label"]);
    assert_eq!(labels(&first), labels(&again));
}

#[test]
fn annotators_and_rows_without_numbers_have_the_mean_of_the_others_with_a_warning() {
    let job = crowd();
    let without_c: String = matrices()
        .lines()
        .filter(|line| !line.starts_with("c,"))
        .map(|l| format!("{l}\n"))
        .collect();
    job.write("confusion.csv", &without_c.replace("b,yes,no,0.4\nb,yes,yes,0.6\n", ""));
    let warned = job.ends(KNOWN, &[], 0);
    assert_says(
        &warned,
        &[
            "1 of 3 annotators have no matrix in source.confusion",
            "rows that the matrices in source.confusion lack: 1",
        ],
    );
    job.write(
        "confusion.csv",
        &matrices().replace("c,yes,no,0.1\n", "").replace("c,yes,yes,0.9", "c,yes,yes,0.7"),
    );
    let warned = job.ends(&KNOWN.replace("[0.5, 0.5]", "[0.4, 0.6]"), &[], 0);
    assert_says(&warned, &["rows in source.confusion that lack labels and do not sum to 1: 1"]);
}

#[test]
fn matrices_that_are_none_are_refused() {
    let job = crowd();
    let refused = |table: &str, parts: &[&str]| {
        job.write("confusion.csv", table);
        let error = job.fails(KNOWN, 3);
        assert_says(&error, &[&["source.confusion"], parts].concat());
    };
    let m = matrices();
    refused(
        &m.replace("c,no,no,0.9", "c,no,no,0.8"),
        &["does not sum to 1", "c, no: 0.9000", "transposed"],
    );
    refused(&m.replace("c,no,no,0.9", "c,no,no,1.9"), &["no probability", "c, no, no, 1.9"]);
    refused(&m.replace("c,no,no,0.9", "c,no,no,"), &["no probability"]);
    refused(&format!("{m}c,no,no,0.9\n"), &["a probability twice", "c, no, no"]);
    refused(&m.replace("c,yes", "c,maybe"), &["class that is not one of the run", "frame.classes"]);
    refused(
        &m.replace("c,no,yes", "c,no,perhaps"),
        &["label that is not one of the run", "extra_labels"],
    );
    refused(&m.replace("probability", "share"), &["the column `probability` is missing", "share"]);
    let upper = m.replace("\na,", "\nA,").replace("\nb,", "\nB,").replace("\nc,", "\nC,");
    refused(&upper, &["no annotator in common", "differs in case"]);
    let of_no: String =
        m.lines().filter(|l| !l.contains(",yes,")).map(|l| format!("{l}\n")).collect();
    job.write("confusion.csv", &of_no);
    assert_says(&job.fails(KNOWN, 3), &["source.confusion"]);
    let without = KNOWN.replace("source.confusion = '{dir}confusion.csv'\n", "");
    assert_says(
        &job.fails(&without, 2),
        &["`known_confusion` needs confusion matrices", "source.confusion"],
    );
}

// keys: source.predictions
#[test]
fn predictions_take_the_place_of_features() {
    let job = crowd();
    job.write("p.csv", &predictions("elsewhere,no,0.5\nelsewhere,yes,0.5\n"));
    let run = job.run(PREDICTED);
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels[..2], &["instance_id", "label"]), ["t00 no", "t01 yes"]);
    let parameters = read_table(&run, "instance_parameters");
    assert_eq!(parameters.len(), 24);
    let neither = crowd().fails("source.annotations = '{dir}in.csv'\nmodel.kind = 'crowdlab'\n", 2);
    assert_says(&neither, &["`crowdlab` learns from features"]);
}

#[test]
fn predictions_that_are_none_are_refused() {
    let job = crowd();
    let refused = |table: &str, parts: &[&str]| {
        job.write("p.csv", table);
        let error = job.fails(PREDICTED, 3);
        assert_says(&error, &[&["source.predictions"], parts].concat());
    };
    let p = predictions("");
    refused(&p.replace("t03,no,0.3", "t03,no,0.2"), &["do not sum to 1", "t03: 0.9000"]);
    refused(
        &p.replace("t03,no,0.3", "t03,maybe,0.3"),
        &["class that is not one of the run", "t03, maybe, 0.3"],
    );
    refused(&p.replace("\nt", "\nT"), &["no instance in common"]);
    refused(&p.replace("class", "kind"), &["the column `class` is missing"]);
    job.write("p.csv", "instance_id,class,probability\n");
    assert_says(&job.fails(PREDICTED, 8), &["the table has no rows"]);
}

/// Each question reads its own rows; a table without questions holds for all of them.
#[test]
fn tables_are_matched_by_question() {
    let job = Job::new();
    let rows =
        "source.annotations = [['i', 'a', 'no', 1.0, 1, 'q'], ['i', 'b', 'yes', 1.0, 1, 'q'],
        ['i', 'a', 'no', 1.0, 1, 'r'], ['i', 'b', 'yes', 1.0, 1, 'r']]\nmodel.kind = 'crowdlab'\n";
    let both = job.run(&format!(
        "{rows}source.predictions = [['i', 'no', 0.9, 'q'], ['i', 'yes', 0.1, 'q'], ['i', 'no', 0.1, 'r'], ['i', 'yes', 0.9, 'r']]"
    ));
    let labels = cells(&read_table(&both, "labels"), &["question", "label"]);
    assert_eq!(labels, ["q no", "r yes"]);
    let one = job.run(&format!("{rows}source.predictions = [['i', 'no', 0.9], ['i', 'yes', 0.1]]"));
    assert_eq!(cells(&read_table(&one, "labels"), &["question", "label"]), ["q no", "r no"]);
}

/// A table that no query and no model names is not opened.
#[test]
fn other_models_do_not_read_the_tables_and_say_so() {
    let job = crowd();
    job.write("p.csv", &predictions("").replace("t00", "t99"));
    job.write("confusion.csv", "annotator_id,class,label,probability\nnobody,no,no,1\n");
    let both = "source = { annotations = '{dir}in.csv', predictions = '{dir}p.csv', confusion = '{dir}confusion.csv' }\n";
    let warned = job.ends(&format!("{both}model.kind = 'majority_vote'\n"), &[], 0);
    assert_says(
        &warned,
        &[
            "`majority_vote` does not use source.predictions: it changes nothing",
            "`majority_vote` does not use source.confusion: it changes nothing",
        ],
    );
}

/// `check` plans the relations and compares their types; `explain` shows their files.
// keys: source.sql.predictions, source.sql.confusion, source.columns.probability
#[test]
fn columns_and_queries_of_the_tables_are_checked_before_a_run() {
    let job = crowd();
    job.write("p.csv", &predictions("").replace("probability", "share"));
    let named = format!("{PREDICTED}source.columns.probability = 'share'\n");
    let file = job.write("named.toml", &format!("{named}sink.url = '{{dir}}out'\n"));
    run_ok(&["check", &file]);
    let explained = stdout(&run_ok(&["explain", &file]));
    assert_says(&explained, &["predictions: 1 csv file(s)"]);
    job.run(&named);
    let wrong = job.write("wrong.toml", &format!("{PREDICTED}sink.url = '{{dir}}out'\n"));
    let refused = crate::support::run_fails(&["check", &wrong], 3);
    assert_says(&refused, &["source.predictions", "the column `probability` is missing"]);
    let sql = format!(
        "{PREDICTED}source.sql.predictions = 'select instance_id, \"class\", share as probability from predictions'\n"
    );
    job.run(&sql);
    job.write("confusion.csv", &matrices());
    let sql = format!(
        "{KNOWN}source.sql.confusion = \"select * from confusion where annotator_id <> 'c'\"\n"
    );
    let warned = job.ends(&sql, &[], 0);
    assert_says(&warned, &["1 of 3 annotators have no matrix"]);
    let typed = "source = { annotations = [[1, 1, 'no'], [1, 2, 'yes']], confusion = [['a', 'no', 'no', 1.0]] }
        model.kind = 'known_confusion'\nsink.url = '{dir}out'\n";
    let output = crate::support::run(&["check", &job.write("typed.toml", typed)]);
    assert_eq!(output.status.code(), Some(3));
    assert_says(&stderr(&output), &["source.confusion", "annotator_id"]);
}
