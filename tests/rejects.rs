//! Rows that cannot be used are counted by reason, and never become a label: read = used + rejected.

use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Float64Array, Int64Array, StringArray};
use arrow::datatypes::Int32Type;

use labelmill::frame::{KEPT_CHARACTERS, Reason, Rejects};

use crate::job::{Job, assert_says, cells};
use crate::support::{Row, read_table, text, write_parquet};

const IN: &str = "source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'\n";

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

/// Asserts that read = used + rejected, and returns the rejects.
fn account(run: &std::path::Path, read: u64) -> Vec<Row> {
    let rejects = read_table(run, "rejects");
    let rejected: u64 = rejects.iter().map(|r| text(r, "count").parse::<u64>().unwrap()).sum();
    let want = format!("{read} {} {rejected}", read - rejected);
    assert_eq!(
        cells(&read_table(run, "run"), &["rows_read", "rows_used", "rows_rejected"]),
        [want]
    );
    rejects
}

#[test]
fn nulls_in_every_column_are_counted_and_invent_nothing() {
    let job = Job::new();
    write_parquet(
        &job.path("in.parquet"),
        vec![
            (
                "instance_id",
                texts(&[Some("i"), None, Some("i"), Some("lost"), Some("j"), None, Some("j")]),
            ),
            (
                "annotator_id",
                texts(&[Some("a"), Some("a"), None, Some("a"), Some("b"), None, Some("a")]),
            ),
            ("label", texts(&[Some("x"), Some("x"), Some("y"), None, Some("y"), None, Some("y")])),
            (
                "weight",
                Arc::new(Float64Array::from(vec![
                    Some(1.0),
                    Some(1.0),
                    Some(1.0),
                    Some(1.0),
                    Some(1.0),
                    None,
                    None,
                ])),
            ),
        ],
    );
    let run = job.run(IN);
    assert_eq!(
        cells(&account(&run, 7), &["reason", "count", "values"]),
        [
            "null_instance 2 [null]",
            "null_annotator 1 [i]",
            "null_label 1 [lost]",
            "bad_weight 1 [null]"
        ]
    );
    let columns = ["instance_id", "label", "confidence", "margin", "n_annotations", "decision"];
    assert_eq!(
        cells(&read_table(&run, "labels"), &columns),
        ["i x 1.0 1.0 1 decided", "j y 1.0 1.0 1 decided", "lost    0 abstained"]
    );
    assert_eq!(cells(&read_table(&run, "annotators"), &["annotator_id"]), ["a", "b"]);
}

#[test]
fn weights_that_are_none_are_rejected_with_what_was_found() {
    let weights = [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e308, 1e-300, 2.0, 1e100, -0.0];
    let n = weights.len();
    let job = Job::new();
    write_parquet(
        &job.path("in.parquet"),
        vec![
            ("instance_id", texts(&vec![Some("i"); n])),
            ("annotator_id", Arc::new(Int64Array::from_iter_values(0..n as i64))),
            ("label", texts(&vec![Some("x"); n])),
            ("weight", Arc::new(Float64Array::from(weights.to_vec()))),
        ],
    );
    let run = job.run(IN);
    assert_eq!(
        cells(&account(&run, n as u64), &["reason", "count", "values"]),
        ["bad_weight 6 [-0.0, -1.0, 0.0, 1e308, NaN]"]
    );
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels, &["label", "confidence", "n_annotations"]), ["x 1.0 3"]);
}

/// The message names the rule, because the values look like weights.
#[test]
fn a_reason_that_rejects_most_rows_is_a_warning() {
    let rule = "where there is a column of weights, every row needs one above 0 and at most 1e100";
    let warnings = |rows: &str, more: &str| {
        let job = Job::new();
        let run =
            job.run(&format!("source.annotations = {rows}\nmodel.kind = 'majority_vote'\n{more}"));
        cells(&read_table(&run, "run"), &["warnings"]).remove(0)
    };
    let great = "[['i', 'a', 'x', 1e300], ['i', 'b', 'x', 1e300], ['j', 'a', 'x', 1]]";
    let told = warnings(great, "");
    let what = "2 of 3 rows are rejected as `bad_weight` (see the table `rejects`): ";
    assert_says(&told, &[what, rule]);
    let half = "[['i', 'a', 'x', 1e300], ['j', 'a', 'x', 1]]";
    assert_eq!(warnings(half, ""), "[]");
    let listed =
        warnings("[['i', 'a', 'x'], ['i', 'b', 'y'], ['j', 'a', 'y']]", "frame.classes = ['x']");
    assert_says(&listed, &["2 of 3 rows are rejected as `unknown_class`", "frame.classes"]);
    // That a newer answer replaces most rows is what was asked for.
    let again = "[['i', 'a', 'x', 1, 1], ['i', 'a', 'x', 1, 2], ['i', 'a', 'y', 1, 3]]";
    assert_eq!(warnings(again, "frame.duplicates = 'last'"), "[]");

    let all = "source.annotations = [['i', 'a', 'x', 1e300], ['j', 'a', 'x', 1e300]]";
    let error = Job::new().fails(&format!("{all}\nmodel.kind = 'majority_vote'"), 3);
    assert_says(&error, &["`bad_weight 2`", rule]);
}

#[test]
fn annotators_and_labels_of_rejected_rows_alone_are_in_no_table() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n,b,y\ni,c,z\n");
    let run = job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'\n");
    assert_eq!(cells(&read_table(&run, "annotators"), &["annotator_id"]), ["a", "c"]);
    assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["x", "z"]);
}

#[test]
fn labels_outside_the_listed_classes_are_rejected() {
    let job = Job::new();
    let run = job.run(
        "source.annotations = [['i', 'a', 'x'], ['i', 'b', 'Y'], ['only', 'a', 'Z'], ['i', 'c', 'Y']]
         frame.classes = ['x', 'y']\nmodel.kind = 'dawid_skene'",
    );
    assert_eq!(
        cells(&account(&run, 4), &["reason", "count", "values"]),
        ["unknown_class 3 [Y, Z]"]
    );
    let labels = read_table(&run, "labels");
    assert_eq!(
        cells(&labels, &["instance_id", "label", "decision"]),
        ["i x decided", "only  abstained"]
    );
}

#[test]
fn rows_without_a_question_are_rejected_where_questions_are_declared() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,question\ni,a,x,q\ni,b,x,\nj,a,,q\n");
    let run = job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'");
    let rejects = account(&run, 3);
    assert_eq!(
        cells(&rejects, &["question", "reason", "count"]),
        ["q null_label 1", "q null_question 1"]
    );
}

#[test]
fn objects_without_a_field_are_rows_without_an_instance_whatever_file_they_are_in() {
    let job = Job::new();
    job.write("in/good.ndjson", "{\"instance_id\":\"i\",\"annotator_id\":\"a\",\"label\":\"x\"}\n");
    job.write("in/none.ndjson", "{}\n{}\n");
    job.write("in/blank.ndjson", "\n\n");
    let run = job.run("source.annotations = '{dir}in'\nmodel.kind = 'majority_vote'");
    assert_eq!(account(&run, 3).len(), 1);
    assert_eq!(read_table(&run, "labels").len(), 1);
    let job = Job::new();
    job.write("none.ndjson", "{}\n{}\n");
    let error =
        job.fails("source.annotations = '{dir}none.ndjson'\nmodel.kind = 'majority_vote'", 3);
    assert_says(&error, &["no columns"]);
}

#[test]
fn where_every_row_is_rejected_the_error_says_why() {
    let error = Job::new().fails(
        "source.annotations = [['i', 'a', 'x'], ['i', 'b', 'y']]\nframe.classes = ['z']\n\
         model.kind = 'majority_vote'",
        3,
    );
    assert_says(&error, &["no label in common", "2 labels in the annotations: `x`, `y`"]);
}

#[test]
fn rows_without_a_question_are_counted_once_beside_those_of_the_questions() {
    let job = Job::new();
    job.write(
        "in.csv",
        "instance_id,annotator_id,label,question\ni,a,x,p\ni,b,z,p\nj,a,x,\nj,b,y,\nk,a,y,q\nk,b,z,q\nk,c,z,q\n",
    );
    let run = job.run(
        "source.annotations = '{dir}in.csv'\nframe.classes = ['x', 'y']\nmodel.kind = 'majority_vote'",
    );
    let mut found = cells(&account(&run, 7), &["reason", "count"]);
    found.sort();
    assert_eq!(found, ["null_question 2", "unknown_class 1", "unknown_class 2"]);
}

#[test]
fn merged_accounts_add_up_and_count_no_row_twice() {
    let account = |rows: u64, value: &str| {
        let mut rejects = Rejects::default();
        rejects.add_rows(Reason::NullLabel, rows);
        rejects.add(Reason::UnknownClass, 1, value);
        rejects
    };
    let mut all = account(3, "a");
    all.merge(&account(4, "b"));
    all.merge(&Rejects::default());
    assert_eq!(all.total(), 9);
    let found: Vec<_> = all.iter().map(|(_, count, values)| (count, values.len())).collect();
    assert_eq!(found, [(7, 0), (2, 2)]);
}

/// The text of a large value was built, compared and kept for each of its rows.
#[test]
fn a_large_value_in_many_rows_is_kept_once_and_cut_at_a_character() {
    let n = 4_000;
    let large = "ä".repeat(15_000);
    let exact = "ö".repeat(KEPT_CHARACTERS);
    let coded = |values: [Option<&str>; 4]| -> ArrayRef {
        let values: DictionaryArray<Int32Type> = values.into_iter().cycle().take(n).collect();
        Arc::new(values)
    };
    let job = Job::new();
    let instances = coded([Some("i"), Some("i"), Some("i"), Some(&large)]);
    let labels = coded([Some("x"), Some(&large), Some(&exact), None]);
    let annotators: ArrayRef = Arc::new(Int64Array::from_iter_values(0..n as i64));
    write_parquet(
        &job.path("in.parquet"),
        vec![("instance_id", instances), ("annotator_id", annotators), ("label", labels)],
    );
    let run = job.run(&format!("{IN}frame.classes = ['x', 'y']\nsink.tables = ['rejects', 'run']"));
    let cut = format!("{}...", &large[.."ä".len() * KEPT_CHARACTERS]);
    assert_eq!(
        cells(&account(&run, n as u64), &["reason", "count", "values"]),
        [
            format!("null_label {} [{cut}]", n / 4),
            format!("unknown_class {} [{cut}, {exact}]", n / 2)
        ]
    );
}

#[test]
fn a_question_without_a_usable_row_is_left_out_and_accounted_for() {
    let rows = "instance_id,annotator_id,label,question\n\
                i,a,x,first\ni,b,x,first\ni,a,,second\ni,b,,second\ni,a,y,third\ni,a,,third\ni,a,y,\n";
    let questions = "source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'\n";
    let job = Job::new();
    job.write("in.csv", rows);
    let run = job.run(questions);
    assert_eq!(
        cells(&account(&run, 7), &["question", "reason", "count", "values"]),
        ["first null_question 1 [i]", "second null_label 2 [i]", "third null_label 1 [i]"]
    );
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels, &["question", "instance_id", "label"]), ["first i x", "third i y"]);
    let warnings = cells(&read_table(&run, "run"), &["warnings"]).remove(0);
    assert_says(&warnings, &["no row of these questions can be used", "`second`"]);

    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,question\ni,a,,second\ni,b,,third\n");
    let error = job.fails(questions, 3);
    assert_says(&error, &["there is no annotation to learn from", "2 rows", "null_label 2"]);
}

#[test]
fn an_error_of_one_question_names_it() {
    let job = Job::new();
    job.write(
        "in.csv",
        "instance_id,annotator_id,label,question\ni,a,x,first\ni,a,unsure,second\n",
    );
    let error = job.fails(
        "source.annotations = '{dir}in.csv'\nframe.extra_labels = ['unsure']\nmodel.kind = 'majority_vote'\n",
        3,
    );
    assert_says(&error, &["question `second`: nobody chose a class"]);
}

/// In `second` and `third` each annotator has one annotation: too few for a matrix, and none that can be held out.
#[test]
fn warnings_and_errors_of_a_fit_name_the_question() {
    let job = Job::new();
    let few = "instance_id,annotator_id,label,question\ni,a,x,second\nj,b,y,second\n";
    job.write("in.csv", &format!("{few}i,a,x,third\n"));
    let pipeline =
        "source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'\nmodel.prior = 'none'\n";
    let error = job.fails(&format!("{pipeline}calibration.method = 'temperature'\n"), 3);
    let found =
        "question `second`: each annotator has a single annotation, which is never held out";
    assert_says(&error, &["no question has anything to calibrate by", found]);
    let pair = |n: usize, label| format!("{n},a,{label},first\n{n},b,{label},first\n");
    let rows: String = (0..30).map(|n| pair(n, ["x", "y"][n % 2])).collect();
    job.write("in.csv", &format!("{few}{rows}"));
    let run = job.run(pipeline);
    let warnings = cells(&read_table(&run, "run"), &["warnings"]).remove(0);
    assert_says(&warnings, &["question `second`: half of the annotators"]);
    assert!(!warnings.contains("question `first`"), "{warnings}");
}

/// In each question, half of the annotators have too few annotations for a matrix.
#[test]
fn warnings_of_many_questions_are_a_few_and_a_count() {
    let job = Job::new();
    let rows: String = (0..20).map(|q| format!("i,a,x,q{q:02}\nj,b,y,q{q:02}\n")).collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label,question\n{rows}"));
    let pipeline =
        "source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'\nmodel.prior = 'none'\n";
    let printed = job.ends(pipeline, &[], 0);
    let kept = cells(&read_table(&job.path("out/latest"), "run"), &["warnings"]).remove(0);
    for warnings in [printed, kept] {
        assert_eq!(warnings.matches("half of the annotators").count(), 6, "{warnings}");
        let about = |n: usize| format!("question `q{n:02}`: half of the annotators");
        let mut want: Vec<String> = (0..5).map(about).collect();
        want.push(format!("15 more questions have a warning like this one: {}", about(0)));
        assert_says(&warnings, &want.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
