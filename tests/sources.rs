//! What a pipeline file can state about its input: columns, SQL, weights, duplicates, questions, gold, classes.

use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Decimal128Array, StringArray};

use crate::job::{Job, assert_says, cells, table_of};
use crate::support::{
    assert_close, number, read_table, run_fails, run_ok, stdout, text, write_parquet,
};

/// Three annotators on two items: they disagree on `x` and agree on `y`.
const CROWD: &str =
    "item,who,answer,note\nx,a,yes,1\nx,b,yes,2\nx,c,no,3\ny,a,no,4\ny,b,no,5\ny,c,no,6\n";

const VOTE: &str = "model.kind = 'majority_vote'\n";

/// A majority vote over rows written in the pipeline file.
fn vote_over(rows: &str, more: &str) -> String {
    format!("source.annotations = {rows}\n{VOTE}{more}")
}

#[test]
fn columns_are_mapped_to_the_contracts_names() {
    let job = Job::new();
    job.write("crowd.csv", CROWD);
    let run = job.run(&format!(
        "source.annotations = '{{dir}}crowd.csv'\n{VOTE}\
         source.columns = {{ instance = 'item', annotator = 'who', label = 'answer' }}"
    ));
    let labels = read_table(&run, "labels");
    assert_eq!(
        cells(&labels, &["instance_id", "label", "n_annotations", "decision"]),
        ["x yes 3 decided", "y no 3 decided"]
    );
    assert_eq!(cells(&read_table(&run, "annotators"), &["annotator_id"]), ["a", "b", "c"]);
}

const JOINED: &str =
    "select c.item as instance_id, c.who as annotator_id, c.answer as label, p.trust as weight
    from annotations as c inner join people as p on c.who = p.name where p.trust > 0";

/// `c` has the weight 3, `b` 1, and the query leaves out `a`.
fn assert_joined(job: &Job, query: &str) {
    job.write("crowd.csv", CROWD);
    job.write("people.ndjson", "{\"name\":\"a\",\"trust\":0}\n{\"name\":\"b\",\"trust\":1}\n{\"name\":\"c\",\"trust\":3}\n");
    let run = job.run(&format!(
        "source.annotations = '{{dir}}crowd.csv'\nsource.tables = {{ people = '{{dir}}people.ndjson' }}\n\
         source.sql.annotations = {query}\n{VOTE}"
    ));
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels, &["instance_id", "label", "n_annotations"]), ["x no 2", "y no 2"]);
    assert_close(&[number(&labels[0], "confidence")], &[0.75], 1e-12, "confidence");
    assert_eq!(cells(&read_table(&run, "annotators"), &["annotator_id"]), ["b", "c"]);
}

// keys: source.tables, source.sql.annotations
#[test]
fn sql_in_the_file_joins_other_tables() {
    assert_joined(&Job::new(), &format!("\"\"\"{JOINED}\"\"\""));
}

#[test]
fn sql_in_a_file_of_its_own_does_too() {
    let job = Job::new();
    job.write("joined.sql", JOINED);
    assert_joined(&job, "'{dir}joined.sql'");
}

#[test]
fn one_heavy_annotation_outvotes_two_light_ones() {
    let labels = table_of(
        &vote_over("[['i', 'a', 'no', 1.0], ['i', 'b', 'no', 0.5], ['i', 'c', 'yes', 2.5]]", ""),
        "labels",
    );
    assert_eq!(cells(&labels, &["label", "n_annotations", "decision"]), ["yes 3 decided"]);
    assert_close(&[number(&labels[0], "confidence")], &[2.5 / 4.0], 1e-12, "confidence");
    assert_close(&[number(&labels[0], "margin")], &[1.0 / 4.0], 1e-12, "margin");
}

#[test]
fn a_soft_annotation_counts_as_one() {
    // a: 0.7 no, 0.3 yes. b: yes. So yes has 1.3 of 2.
    let posteriors = table_of(
        &vote_over("[['i', 'a', 'no', 0.7], ['i', 'a', 'yes', 0.3], ['i', 'b', 'yes', 1.0]]", ""),
        "posteriors",
    );
    let probabilities: Vec<f64> = posteriors.iter().map(|r| number(r, "probability")).collect();
    assert_close(&probabilities, &[0.35, 0.65], 1e-12, "posterior");
}

/// Annotator `a` first gave no, then, at the same time, yes and maybe; `b` gave no.
const REPEATED: &str = "[
    ['i', 'a', 'no', 1.0, '2026-01-01T00:00:00Z'],
    ['i', 'a', 'yes', 1.0, '2026-01-02T00:00:00Z'],
    ['i', 'a', 'maybe', 1.0, '2026-01-02T00:00:00Z'],
    ['i', 'b', 'no', 1.0, '2025-01-01T00:00:00Z'],
]";

fn posterior_of_repeated(duplicates: &str) -> Vec<f64> {
    let more = format!("frame.duplicates = '{duplicates}'");
    let posteriors = table_of(&vote_over(REPEATED, &more), "posteriors");
    assert_eq!(cells(&posteriors, &["class"]), ["maybe", "no", "yes"]);
    posteriors.iter().map(|r| number(r, "probability")).collect()
}

// keys: frame.duplicates
#[test]
fn repeated_answers_share_one_say_or_count_each() {
    assert_close(
        &posterior_of_repeated("share"),
        &[1.0 / 6.0, 4.0 / 6.0, 1.0 / 6.0],
        1e-12,
        "share",
    );
    assert_close(&posterior_of_repeated("keep"), &[0.25, 0.5, 0.25], 1e-12, "keep");
}

#[test]
fn the_last_answer_replaces_earlier_ones_and_equal_times_share() {
    assert_close(&posterior_of_repeated("last"), &[0.25, 0.5, 0.25], 1e-12, "last");
    let job = Job::new();
    let run = job.run(&vote_over(REPEATED, "frame.duplicates = 'last'"));
    assert_eq!(cells(&read_table(&run, "rejects"), &["reason", "count"]), ["superseded 1"]);
    assert_eq!(cells(&read_table(&run, "labels"), &["label", "n_annotations"]), ["no 3"]);
    // A row without a time is older than all others.
    let job = Job::new();
    job.write(
        "in.csv",
        "instance_id,annotator_id,label,annotated_at\ni,a,no,\ni,a,yes,2001-01-01\n",
    );
    let run =
        job.run(&format!("source.annotations = '{{dir}}in.csv'\n{VOTE}frame.duplicates = 'last'"));
    assert_eq!(cells(&read_table(&run, "labels"), &["label", "n_annotations"]), ["yes 1"]);
}

#[test]
fn repeated_answers_can_be_an_error_that_names_them() {
    let error = Job::new().fails(&vote_over(REPEATED, "frame.duplicates = 'error'"), 3);
    assert_says(&error, &["more than once", "frame.duplicates", "`i / a`", "\"share\""]);
}

#[test]
fn the_last_answer_needs_times() {
    let error = Job::new().fails(&vote_over("[['i', 'a', 'no']]", "frame.duplicates = 'last'"), 3);
    assert_says(&error, &["without `annotated_at`", "source.columns.annotated_at"]);
}

#[test]
fn each_question_has_its_own_classes() {
    let job = Job::new();
    job.write(
        "in.csv",
        "instance_id,annotator_id,label,question\n\
         i,a,red,colour\ni,b,red,colour\ni,a,round,shape\nj,a,blue,colour\ni,b,square,shape\ni,c,round,shape\n",
    );
    let run = job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'");
    let of = |table, columns: &[&str]| cells(&read_table(&run, table), columns);
    assert_eq!(
        of("labels", &["question", "instance_id", "label"]),
        ["colour i red", "colour j blue", "shape i round"]
    );
    assert_eq!(
        of("classes", &["question", "index", "class"]),
        ["colour 0 blue", "colour 1 red", "shape 0 round", "shape 1 square"]
    );
    assert_eq!(
        of("annotators", &["question", "annotator_id", "n_annotations"]),
        ["colour a 2", "colour b 1", "shape a 1", "shape b 1", "shape c 1"]
    );
    assert_eq!(of("run", &["rows_read", "rows_used"]), ["6 6"]);
}

// keys: frame.classes
#[test]
fn listed_classes_keep_their_order_and_those_nobody_chose() {
    let job = Job::new();
    let run = job.run(&vote_over(
        "[['i', 'a', 'no'], ['i', 'b', 'yes'], ['j', 'a', 'yes']]",
        "frame.classes = ['yes', 'never', 'no']",
    ));
    let classes = read_table(&run, "classes");
    assert_eq!(cells(&classes, &["index", "class"]), ["0 yes", "1 never", "2 no"]);
    // The tie goes to the class that is listed first.
    let labels = read_table(&run, "labels");
    assert_eq!(
        cells(&labels, &["instance_id", "label", "decision"]),
        ["i yes tied", "j yes decided"]
    );
    let never: Vec<f64> = read_table(&run, "posteriors")
        .iter()
        .filter(|r| text(r, "class") == "never")
        .map(|r| number(r, "probability"))
        .collect();
    assert_close(&never, &[0.0, 0.0], 0.0, "a class nobody chose");
}

#[test]
fn a_listed_class_is_a_value_of_the_labels_as_it_stands() {
    for (rows, listed) in [
        ("[['i', 'a', 0], ['i', 'b', 1]]", "[0.9, 1]"),
        ("[['i', 'a', 0], ['i', 'b', 1]]", "[false, true]"),
        ("[['i', 'a', true], ['i', 'b', false]]", "[0, 1]"),
    ] {
        let error = Job::new().fails(&vote_over(rows, &format!("frame.classes = {listed}")), 2);
        assert_says(&error, &["not a value of the labels' type", "frame.classes[0]"]);
    }
}

#[test]
fn an_amount_that_overflows_what_it_is_added_to_is_refused() {
    let job = Job::new();
    let smoothed = |amount: &str| {
        format!(
            "source.annotations = [['i', 'a', 'x'], ['i', 'b', 'y']]\nmodel = {{ kind = 'dawid_skene', smoothing = {amount} }}\n"
        )
    };
    let error = job.fails(&smoothed("1e308"), 2);
    assert_says(&error, &["the number must be at most 1e100", "model.smoothing"]);
    let rows = read_table(&job.run(&smoothed("1e100")), "confusion_matrices");
    let found: Vec<f64> = rows.iter().map(|row| number(row, "probability")).collect();
    assert_close(&found, &[0.5; 4], 1e-9, "the labels of each of two annotators, by two classes");
}

#[test]
fn an_empty_list_of_classes_is_refused() {
    let error = Job::new().fails(&vote_over("[['i', 'a', 'x']]", "frame.classes = []"), 2);
    assert_says(&error, &["the list is too short", "frame.classes", "leave the key out"]);
}

// keys: frame.extra_labels
#[test]
fn a_label_that_is_no_class_is_reported_but_never_chosen() {
    let job = Job::new();
    let run = job.run(
        "source.annotations = [['i', 'a', 'unsure'], ['i', 'b', 'unsure'], ['i', 'c', 'yes'], ['j', 'a', 'no'],
            ['k', 'a', 'unsure']]
         frame.extra_labels = ['unsure']\nmodel.kind = 'dawid_skene'",
    );
    assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["no", "yes"]);
    let labels = read_table(&run, "labels");
    assert_eq!(
        cells(&labels, &["instance_id", "label", "decision", "confidence"])[2],
        "k  abstained "
    );
    assert_eq!(
        cells(&labels[..2], &["instance_id", "label", "n_annotations"]),
        ["i yes 3", "j no 1"]
    );
    let labels: Vec<String> =
        cells(&read_table(&run, "confusion_matrices"), &["annotator_id", "label"]);
    assert!(labels.contains(&"b unsure".to_owned()), "{labels:?}");
}

#[test]
fn the_newest_answer_is_found_within_a_second() {
    let job = Job::new();
    let rows =
        "instance_id,annotator_id,label,annotated_at\ni,a,x,1700000000.25\ni,a,y,1700000000.75\n";
    job.write("in.csv", rows);
    let run = job.run(&vote_over("'{dir}in.csv'", "frame.duplicates = 'last'"));
    assert_eq!(cells(&read_table(&run, "labels"), &["label", "confidence"]), ["y 1.0"]);
}

#[test]
fn the_newest_answer_is_found_in_decimals_and_after_the_year_2262() {
    let tenths = Decimal128Array::from(vec![16_000_000_001, 16_000_000_009]);
    let tenths = tenths.with_precision_and_scale(38, 1).unwrap();
    let days = Date32Array::from(vec![120_530, 2_932_896]);
    let texts = StringArray::from(vec!["2300-01-01", "9999-12-31"]);
    for times in [Arc::new(tenths) as ArrayRef, Arc::new(days), Arc::new(texts)] {
        let job = Job::new();
        let text = |values: [&str; 2]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
        write_parquet(
            &job.path("in.parquet"),
            vec![
                ("instance_id", text(["i", "i"])),
                ("annotator_id", text(["a", "a"])),
                ("label", text(["x", "y"])),
                ("annotated_at", Arc::clone(&times)),
            ],
        );
        let run = job.run(&vote_over("'{dir}in.parquet'", "frame.duplicates = 'last'"));
        let labels = cells(&read_table(&run, "labels"), &["label", "confidence"]);
        assert_eq!(labels, ["y 1.0"], "{times:?}");
    }
}

#[test]
fn a_query_whose_rows_follow_from_the_clock_or_from_chance_is_refused() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    for (condition, function) in [
        ("annotated_at > now() - interval '1 day'", "`now()`"),
        ("label IN (SELECT label FROM annotations WHERE random() < 0.5)", "`random()`"),
        ("annotated_at < current_date", "`current_date()`"),
        ("label = uuid()", "`uuid()`"),
    ] {
        let query = format!(
            "SELECT * FROM (SELECT *, timestamp '2026-01-01' AS annotated_at FROM annotations) WHERE {condition}"
        );
        let pipeline = format!(
            "source.annotations = '{{dir}}in.csv'\nmodel.kind = 'majority_vote'\nsource.sql.annotations = \"{query}\"\n"
        );
        let error = job.fails(&pipeline, 2);
        assert_says(&error, &["gives other rows each time", "source.sql.annotations", function]);
    }
}

#[test]
fn a_query_that_computes_what_has_no_value_is_named_with_what_to_do() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,class,n\ni,a,x,x,1\nj,a,y,y,0\n");
    for relation in ["annotations", "gold"] {
        for (condition, what, help) in [
            ("1 / n > 0", "divides by zero", "nullif(divisor, 0)"),
            ("cast(label as int) > 0", "cannot be cast", "try_cast"),
        ] {
            let error = job.fails(
                &format!(
                    "source.annotations = '{{dir}}in.csv'\nsource.gold = '{{dir}}in.csv'\n{VOTE}\
                     source.sql.{relation} = 'select * from {relation} where {condition}'\n"
                ),
                3,
            );
            assert_says(&error, &[what, help, &format!("where: source.sql.{relation}\n")]);
        }
    }
    let divides = "select 1 / n from (values (0)) as t(n)";
    let error = run_fails(&["sql", "-c", divides], 3);
    assert_says(&error, &["divides by zero", "nullif"]);
    let error = run_fails(&["sql", "-c", &format!("select 1; {divides}")], 3);
    assert_says(&error, &["divides by zero", "where: statement 2\n"]);
}

/// Numbers in a CSV file are integers unless the query casts them to text, as the error above advises.
#[test]
fn a_cast_in_the_query_makes_text_of_numbers_in_a_csv_file() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\n1,a,x\n2,a,y\n");
    let source = "source.annotations = '{dir}in.csv'\nmodel.kind = 'majority_vote'\n";
    let ids = |query: &str| {
        let run = job.run(&format!("{source}source.sql.annotations = \"{query}\""));
        let sql = "select distinct arrow_typeof(instance_id) as t, arrow_typeof(annotator_id) as a from labels, annotators";
        stdout(&run_ok(&["sql", "--run", &run.display().to_string(), "--json", "-c", sql]))
    };
    let plain = "select instance_id, annotator_id, label from annotations";
    assert!(ids(plain).contains("\"t\":\"Int64\""));
    for cast in
        ["cast(instance_id as varchar) as instance_id", "instance_id::varchar as instance_id"]
    {
        let cast = plain.replacen("instance_id", cast, 1);
        assert!(ids(&cast).contains("\"t\":\"Utf8"), "{cast}");
    }
}
