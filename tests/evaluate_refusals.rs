//! What `labelmill evaluate` refuses: absent files, tables without a column, numbers that are no probabilities, and runs
//! without labels.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

use crate::evaluate::{
    NamedColumns, assert_scores, classes, f64s, publish, scores, scores_of, words,
};
use crate::job::{Job, assert_says};
use crate::support::{run_fails, write_parquet};

/// The matrix of an annotator with one cell.
fn matrices(probability: f64) -> NamedColumns {
    vec![
        ("scope", words("annotator")),
        ("annotator_id", words("a")),
        ("class", words("y")),
        ("label", words("y")),
        ("probability", f64s(&[probability])),
        ("expected_count", f64s(&[1.0])),
    ]
}

#[test]
fn errors_of_evaluate_name_options_and_no_keys_of_a_pipeline() {
    let job = Job::new();
    job.run("source.annotations = [['1', 'a', 'y']]\nmodel.kind = 'majority_vote'");
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n");
    let (out, absent) = (job.url("out"), job.url("absent.csv"));
    for (option, files) in [
        ("--truth", vec!["--truth", &absent]),
        ("--confusion", vec!["--truth", &truth, "--confusion", &absent]),
    ] {
        let error = run_fails(&[&["evaluate", "--run", &out][..], &files[..]].concat(), 8);
        assert_says(&error, &["there is no such file", &format!("where: {option} {absent}\n")]);
    }
}

#[test]
fn a_probability_of_the_run_that_is_none_is_refused() {
    let job = Job::new();
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n2,n\n");
    let probabilities = |values: ArrayRef| {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 1, 2, 2]));
        let labels = vec![
            ("instance_id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef),
            ("label", words("y n")),
        ];
        let posteriors =
            vec![("instance_id", ids), ("class", words("n y n y")), ("probability", values)];
        publish(&job, vec![classes(), ("labels", labels), ("posteriors", posteriors)])
    };
    let numbers = |last: Option<f64>| -> ArrayRef {
        Arc::new(Float64Array::from(vec![Some(0.0), Some(1.0), Some(0.75), last]))
    };
    for (values, found) in [
        (numbers(Some(f64::NAN)), "found: `NaN`"),
        (numbers(Some(1.5)), "found: `1.5`"),
        (numbers(Some(-0.25)), "found: `-0.25`"),
        (numbers(Some(-1e-9)), "found: `-1e-9`"),
        (numbers(Some(1e30)), "found: `1e30`"),
        (numbers(None), "found: `null`"),
        (words("0 1 1 0"), "found: Utf8"),
    ] {
        let run = probabilities(values);
        let error = run_fails(&["evaluate", "--run", &run, "--truth", &truth], 3);
        assert_says(&error, &["not a number from 0 to 1", "where: posteriors.probability", found]);
    }
    let run = probabilities(numbers(Some(0.25)));
    assert_scores(&scores(&run, &truth, &[]), &[("accuracy", 1.0), ("auc", 1.0)]);
}

#[test]
fn a_table_of_the_run_without_a_column_is_refused() {
    let job = Job::new();
    let truth = job.write("truth.csv", "instance_id,class\ni,y\n");
    let known = job.write("known.csv", "annotator_id,class,label,probability\na,y,y,1\n");
    let whole = || {
        let labels = vec![("instance_id", words("i")), ("label", words("y"))];
        let posteriors = vec![
            ("instance_id", words("i i")),
            ("class", words("n y")),
            ("probability", f64s(&[0.0, 1.0])),
        ];
        vec![
            classes(),
            ("labels", labels),
            ("posteriors", posteriors),
            ("confusion_matrices", matrices(1.0)),
        ]
    };
    for (table, column) in [
        ("classes", "index"),
        ("labels", "label"),
        ("posteriors", "probability"),
        ("confusion_matrices", "scope"),
    ] {
        let mut tables = whole();
        let of_table = tables.iter_mut().filter(|(name, _)| *name == table);
        of_table.for_each(|(_, columns)| columns.retain(|(name, _)| *name != column));
        let run = publish(&job, tables);
        let arguments = ["evaluate", "--run", &run, "--truth", &truth, "--confusion", &known];
        let location = format!("where: {table}.{column}");
        assert_says(&run_fails(&arguments, 3), &["a table of the run lacks a column", &location]);
    }
    let run = publish(&job, whole());
    assert_scores(&scores(&run, &truth, &["--confusion", &known]), &[("accuracy", 1.0)]);
}

#[test]
fn a_null_among_ids_or_classes_of_the_run_is_refused() {
    let job = Job::new();
    let truth = job.write("truth.csv", "instance_id,class\ni,y\n");
    let with_null = || -> ArrayRef { Arc::new(StringArray::from(vec![Some("i"), None])) };
    for (location, tables) in [
        (
            "labels.instance_id",
            vec![
                classes(),
                ("labels", vec![("instance_id", with_null()), ("label", words("y y"))]),
            ],
        ),
        (
            "classes.class",
            vec![
                ("classes", vec![("class", with_null()), ("index", f64s(&[0.0, 1.0]))]),
                ("labels", vec![("instance_id", words("i")), ("label", words("i"))]),
            ],
        ),
    ] {
        let run = publish(&job, tables);
        let error = run_fails(&["evaluate", "--run", &run, "--truth", &truth], 3);
        assert_says(
            &error,
            &["null in place of an id", &format!("where: {location}"), "1 of 2 rows"],
        );
    }
}

#[test]
fn true_matrices_without_a_column_or_with_text_are_refused() {
    let job = Job::new();
    job.run("source.annotations = [['1', 'a', 'y'], ['2', 'a', 'n']]\nmodel.kind = 'dawid_skene'");
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n2,n\n");
    for (text, message) in [
        ("class,label,probability\ny,y,1\n", "the column `annotator_id` is missing"),
        ("annotator_id,class,label\na,y,y\n", "the column `probability` is missing"),
        ("annotator_id,class,label,probability\na,y,y,x\n", "holds no numbers"),
        ("annotator_id,class,label,probability\na,y,y,true\n", "holds no numbers"),
    ] {
        let known = job.write("known.csv", text);
        let out = job.url("out");
        let arguments = ["evaluate", "--run", &out, "--truth", &truth, "--confusion", &known];
        assert_says(&run_fails(&arguments, 3), &[message, "where: --confusion", "help: "]);
    }
}

#[test]
fn questions_are_compared_as_text_where_their_types_differ() {
    let job = Job::new();
    let labels =
        vec![("question", words("1 2")), ("instance_id", words("i i")), ("label", words("y n"))];
    let run = publish(&job, vec![classes(), ("labels", labels)]);
    let columns = vec![
        ("question", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef),
        ("instance_id", words("i i")),
        ("class", words("y y")),
    ];
    write_parquet(&job.path("truth.parquet"), columns);
    let truth = job.url("truth.parquet");
    for (question, accuracy) in [("1", 1.0), ("2", 0.0)] {
        let found = scores_of(&run, &truth, &[], &question.into());
        assert_scores(&found, &[("accuracy", accuracy)]);
    }
}

/// Without the table of labels, the questions are those of the posteriors, and the error is about the run.
#[test]
fn several_questions_without_labels_are_an_error_about_the_run() {
    let job = Job::new();
    let truth = job.write("truth.csv", "question,instance_id,class\np,i,y\nq,i,n\n");
    let posteriors = vec![
        ("question", words("p q")),
        ("instance_id", words("i i")),
        ("class", words("y n")),
        ("probability", f64s(&[1.0, 1.0])),
    ];
    let run = publish(&job, vec![classes(), ("posteriors", posteriors)]);
    let error = run_fails(&["evaluate", "--run", &run, "--truth", &truth], 3);
    assert_says(&error, &["the run has neither labels nor predictions", "where: --run"]);
}

#[test]
fn a_matrix_of_the_run_that_is_none_is_refused() {
    let job = Job::new();
    let truth = job.write("truth.csv", "instance_id,class\ni,y\n");
    let known = job.write("known.csv", "annotator_id,class,label,probability\na,y,y,1\n");
    for (probability, message) in [
        (f64::NAN, "found: `a, y, y, NaN`"),
        (-0.5, "found: `a, y, y, -0.5`"),
        (1.5, "found: `a, y, y, 1.5`"),
    ] {
        let labels = vec![("instance_id", words("i")), ("label", words("y"))];
        let run = publish(
            &job,
            vec![classes(), ("labels", labels), ("confusion_matrices", matrices(probability))],
        );
        let arguments = ["evaluate", "--run", &run, "--truth", &truth, "--confusion", &known];
        let error = run_fails(&arguments, 3);
        assert_says(&error, &["a matrix of the run holds", "where: confusion_matrices", message]);
    }
}

#[test]
fn what_is_no_matrix_is_refused() {
    let job = Job::new();
    job.run("source.annotations = [['1', 'a', 'y'], ['2', 'a', 'n']]\nmodel.kind = 'dawid_skene'");
    let truth = job.write("truth.csv", "instance_id,class\n1,y\n2,n\n");
    let out = job.url("out");
    for (rows, message) in [
        ("a,y,y,7\na,y,n,-1\n", "`a, y, n, -1.0`, `a, y, y, 7.0`"),
        ("a,y,y,NaN\n", "`a, y, y, NaN`"),
        ("a,y,y,\na,n,n,1\n", "no probability"),
        ("a,y,y,1\na,y,y,0\n", "gives a cell twice"),
    ] {
        let matrices =
            job.write("confusion.csv", &format!("annotator_id,class,label,probability\n{rows}"));
        let arguments = ["evaluate", "--run", &out, "--truth", &truth, "--confusion", &matrices];
        assert_says(&run_fails(&arguments, 3), &[message, "--confusion"]);
    }
}
