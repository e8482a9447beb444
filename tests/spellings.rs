//! One value in several spellings: numbers, words for missing values, case and spaces; and tables with the wrong columns.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::datatypes::DataType;

use crate::job::{Job, assert_says, cells, rows_read, vote};
use crate::support::{read_table, run_ok, stderr, stdout, write_parquet};

const HEADER: &str = "instance_id,annotator_id,label\n";

fn labels(run: &std::path::Path) -> Vec<String> {
    cells(&read_table(run, "labels"), &["instance_id", "label"])
}

fn warnings(run: &std::path::Path) -> String {
    cells(&read_table(run, "run"), &["warnings"]).remove(0).replace("\\\"", "\"")
}

/// pandas writes the integers of a file with a missing value as floats: judges that failed once voted apart from the others.
#[test]
fn judges_that_pandas_wrote_as_floats_vote_with_the_others() {
    let judges = [("a", "0,1,1"), ("b", "0.0,1.0,"), ("c", "1.0,1.0,0.0"), ("d", "0,1,0.0")];
    let mut rows = Vec::new();
    for (judge, given) in judges {
        for (i, label) in given.split(',').enumerate() {
            rows.push(format!("i{i},{judge},{label}\n"));
        }
    }
    let mut runs = Vec::new();
    for _ in 0..2 {
        let job = Job::new();
        job.write("in.csv", &(HEADER.to_owned() + &rows.concat()));
        job.write(
            "gold.csv",
            "instance_id,class,role\ni0,0.0,holdout\ni1,1e0,holdout\ni2,0,holdout\n",
        );
        let run = job.run(&vote("in.csv", "source.gold = '{dir}gold.csv'"));
        assert_eq!(labels(&run), ["i0 0", "i1 1", "i2 0"]);
        assert_says(&warnings(&run), &["`0.0` 3 as `0`, `1.0` 3 as `1`", "[equal_numbers]"]);
        let metrics = cells(&read_table(&run, "metrics"), &["split", "name", "value"]);
        assert!(metrics.contains(&"holdout accuracy 1.0".to_owned()), "{metrics:?}");
        let truth = job.write("truth.csv", "instance_id,class\ni0,0.0\ni1,1.0\ni2,0.0\n");
        let found = run_ok(&["evaluate", "--run", &job.url("out"), "--truth", &truth]);
        assert_says(&stdout(&found), &["accuracy                1.000000"]);
        runs.push(read_table(&run, "annotators"));
        rows.reverse();
    }
    assert_eq!(runs[0], runs[1]);
}

/// Versions may be such labels.
// keys: frame.classes
#[test]
fn equal_numbers_that_are_listed_stay_apart() {
    let job = Job::new();
    job.write("in.csv", &(HEADER.to_owned() + "i,a,1.1\ni,b,1.10\ni,c,1.10\nj,a,1.1\nj,b,1.1\n"));
    let run = job.run(&vote("in.csv", "frame.classes = ['1.1', '1.10']"));
    assert_eq!(labels(&run), ["i 1.10", "j 1.1"]);
    let run = job.run(&vote("in.csv", "seed = 1"));
    assert_eq!(labels(&run), ["i 1.1", "j 1.1"]);
}

/// Models and people write 1 and 1.0 for one class; the file has another spelling than the list.
#[test]
fn listed_classes_stand_for_equal_numbers_of_the_rows() {
    let job = Job::new();
    job.write("in.csv", &(HEADER.to_owned() + "i,a,1.0\ni,b,1.0\nj,a,2\nj,b,2\nk,a,NA\n"));
    let null = "source.null_values = ['NA']\n";
    for (listed, expected) in [
        ("frame.classes = ['1', '2']", ["i 1", "j 2", "k "]),
        ("frame.classes = [1, 2]", ["i 1", "j 2", "k "]),
        ("frame.classes = ['1e0', '2.0']", ["i 1e0", "j 2.0", "k "]),
        ("frame.classes = ['2']\nframe.extra_labels = ['1']", ["i ", "j 2", "k "]),
    ] {
        let run = job.run(&vote("in.csv", &(null.to_owned() + listed)));
        assert_eq!(rows_read(&run), "5 4", "{listed}");
        assert_eq!(labels(&run), expected, "{listed}");
    }
}

#[test]
fn questions_in_several_spellings_are_warned_of() {
    let header = "instance_id,annotator_id,label,question\n";
    for (questions, parts) in [
        (
            ["Color", "color", "color ", "NA"],
            [
                "questions differ only in case or in spaces around them: `Color` 1, `color` 1, `color ` 1: \
                 source.normalise = [\"trim\", \"lower\"]",
                "questions look like missing values: `NA` 1: source.null_values = [\"NA\"] makes them null [",
            ],
        ),
        (
            ["1", "1.0", "2", "2.0"],
            [
                "questions differ only in their spelling: `1` 1, `1.0` 1; `2` 1, `2.0` 1",
                "[several_spellings]",
            ],
        ),
    ] {
        let job = Job::new();
        let rows = questions.map(|question| format!("i,a,x,{question}\n"));
        job.write("in.csv", &(header.to_owned() + &rows.concat()));
        assert_says(&warnings(&job.run(&vote("in.csv", ""))), &parts);
    }
}

/// The rows of a test are read as those of its pipeline are.
#[test]
fn a_test_of_a_pipeline_reads_its_rows_by_the_rules_for_text() {
    let job = Job::new();
    let text = "source.annotations = 'x.csv'\nsource.normalise = ['trim', 'lower']\nsource.null_values = ['NA']\n\
                sink.url = 'out'\nmodel.kind = 'majority_vote'\n[[test]]\n\
                given.annotations = [['I1', 'a', 'Yes '], ['i1', 'b', 'yes'], ['i1', 'c', 'NA']]\n\
                expect.labels = [{ instance_id = 'i1', label = 'yes' }]\n";
    run_ok(&["test", &job.write("pipeline.toml", text)]);
}

#[test]
fn long_ids_stay_exact_and_rounded_ones_are_warned_of() {
    let job = Job::new();
    let rows = "1294030000000000001,a,x\n1294030000000000001,b,x\n1.29403E+18,a,y\n1294030000000000002,b,y\n";
    job.write("in.csv", &(HEADER.to_owned() + rows));
    let run = job.run(&vote("in.csv", ""));
    assert_eq!(labels(&run), ["1.29403E+18 y", "1294030000000000001 x", "1294030000000000002 y"]);
    assert_says(
        &warnings(&run),
        &["instance ids look rounded", "`1.29403E+18` 1", "[rounded_ids]"],
    );
}

/// A row without an instance, and one with a weight that is none, are rejected: their values join and keep apart nothing.
#[test]
fn values_of_rejected_rows_are_no_spellings() {
    let job = Job::new();
    let rows = "i,a,0,1\ni,b,0.0,1\ni,c,1,1\nj,a,1,1\nj,b,1,1\n,a,x,1\nj,c,NA,-1\nj,d,POS,\nj,C,1.5E+18,-1\n";
    job.write("in.csv", &format!("instance_id,annotator_id,label,weight\n{rows}"));
    let run = job.run(&vote("in.csv", ""));
    assert_eq!(labels(&run), ["i 0", "j 1"]);
    assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["0", "1"]);
    let warnings = warnings(&run);
    assert_says(&warnings, &["labels that are equal numbers are one value: `0.0` 1 as `0`"]);
    for other in ["missing values", "differ only", "rounded"] {
        assert!(!warnings.contains(other), "{warnings}");
    }
}

// keys: source.null_values
#[test]
fn words_for_missing_values_are_warned_of_and_become_nulls_where_they_are_listed() {
    let job = Job::new();
    let rows = "q1,a,yes\nq1,b,yes\nq2,a,NA\nq2,b,None\nq3,a,no\nNA,b,yes\nq3,nan,yes\n";
    job.write("in.csv", &(HEADER.to_owned() + rows));
    let run = job.run(&vote("in.csv", ""));
    assert_says(
        &warnings(&run),
        &[
            "labels look like missing values: `NA` 1, `None` 1: source.null_values =",
            "instance ids look like missing values: `NA` 1",
            "annotator ids look like missing values: `nan` 1",
        ],
    );
    let mended = "source.null_values = ['NA', 'None', 'nan']";
    let run = job.run(&vote("in.csv", mended));
    assert_eq!(labels(&run), ["q1 yes", "q2 ", "q3 no"]);
    let mut rejects = cells(&read_table(&run, "rejects"), &["reason", "count"]);
    rejects.sort();
    assert_eq!(rejects, ["null_annotator 1", "null_instance 1", "null_label 2"]);
    assert!(!warnings(&run).contains("missing"), "{}", warnings(&run));
    // A label that is meant is listed.
    let run = job.run(&vote("in.csv", "frame.classes = ['yes', 'no', 'None', 'NA']"));
    assert!(!warnings(&run).contains("labels look"), "{}", warnings(&run));
    assert_eq!(labels(&run)[2], "q2 None");
}

/// Codes of numbers for a missing value are the same in a file with types as in one without.
// keys: source.null_values
#[test]
fn null_values_are_nulls_in_columns_of_numbers_too() {
    let job = Job::new();
    let text = |values: &[&str]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let columns = |labels: ArrayRef| {
        let ids = text(&["i", "i", "j", "j", "j"]);
        let annotators = text(&["a", "b", "a", "b", "c"]);
        vec![("instance_id", ids), ("annotator_id", annotators), ("label", labels)]
    };
    let ints: ArrayRef = Arc::new(Int64Array::from(vec![1, -1, 0, -99, 0]));
    let dictionary = DataType::Dictionary(DataType::Int8.into(), DataType::Int64.into());
    let kinds = [
        ints.clone(),
        arrow::compute::cast(&ints, &DataType::Float64).unwrap(),
        arrow::compute::cast(&ints, &DataType::Int8).unwrap(),
        arrow::compute::cast(&ints, &dictionary).unwrap(),
        text(&["1", "-1", "0", "-99", "0"]),
    ];
    for (n, labels) in kinds.into_iter().enumerate() {
        write_parquet(&job.path("in.parquet"), columns(labels));
        let null = format!("source.null_values = ['NA', '-1', '-99', '']\nsink.run_id = 'r{n}'");
        let run = job.run(&vote("in.parquet", &null));
        assert_eq!(rows_read(&run), "5 3", "{n}");
        assert_eq!(cells(&read_table(&run, "rejects"), &["reason", "count"]), ["null_label 2"]);
    }
}

/// pandas makes floats of integers where one is missing: of those from 2^53 on, neighbours become one.
#[test]
fn ids_that_are_large_floats_are_warned_of() {
    let labels = Arc::new(StringArray::from(vec!["x"; 4])) as ArrayRef;
    let annotators = Arc::new(StringArray::from(vec!["a", "b", "c", "d"])) as ArrayRef;
    let job = Job::new();
    let warnings_of = |ids: Vec<f64>| {
        let ids = Arc::new(Float64Array::from(ids)) as ArrayRef;
        let columns = [("annotator_id", annotators.clone()), ("label", labels.clone())];
        write_parquet(&job.path("in.parquet"), [&[("instance_id", ids)], &columns[..]].concat());
        warnings(&job.run(&vote("in.parquet", "")))
    };
    let long = 1_294_030_000_000_000_000_f64;
    let found = warnings_of(vec![long, long + 1.0, 3.0, 4.0]);
    assert_says(&found, &["instance ids are floats", "`1294030000000000000` 2:", "[rounded_ids]"]);
    assert!(!warnings_of(vec![9_007_199_254_740_991.0, 1.5, 3.0, 4.0]).contains("rounded"));
}

#[test]
fn a_column_of_weights_with_a_word_for_a_missing_value_is_read_as_numbers() {
    let job = Job::new();
    let text = "source.annotations = [['i', 'a', 'x', '0.5'], ['i', 'b', 'y', '0.25'], ['j', 'a', 'y', 'NA'], ['j', 'b', 'x', '1']]";
    let run =
        job.run(&format!("{text}\nsource.null_values = ['NA']\nmodel.kind = 'majority_vote'"));
    assert_eq!(rows_read(&run), "4 3");
    assert_eq!(labels(&run), ["i x", "j x"]);
}

/// Weights in files: words of other programs are nulls, and so are those of the user.
#[test]
fn words_among_the_weights_of_text_files_are_nulls() {
    let csv =
        "instance_id,annotator_id,label,weight\ni,a,x,0.5\ni,b,y,unknown\nj,a,y,NA\nj,b,x,1\n";
    let line = |i, a, label, weight| {
        format!(
            r#"{{"instance_id":"{i}","annotator_id":"{a}","label":"{label}","weight":{weight}}}"#
        )
    };
    let ndjson = [
        line("i", "a", "x", "0.5"),
        line("i", "b", "y", "\"unknown\""),
        line("j", "a", "y", "\"NA\""),
        line("j", "b", "x", "1"),
    ];
    for (file, content) in [("in.csv", csv.to_owned()), ("in.ndjson", ndjson.join("\n"))] {
        let job = Job::new();
        job.write(file, &content);
        let error = job.fails(&vote(file, ""), 3);
        assert_says(&error, &["a weight is not a number", "`unknown`", "source.null_values ="]);
        let run = job.run(&vote(file, "source.null_values = ['unknown']"));
        assert_eq!(rows_read(&run), "4 2", "{file}");
        assert_eq!(labels(&run), ["i x", "j x"]);
        job.write(file, &content.replace("unknown", "nan"));
        assert_eq!(rows_read(&job.run(&vote(file, "seed = 3"))), "4 2", "{file}");
    }
}

// keys: source.normalise
#[test]
fn case_and_spaces_are_warned_of_and_joined_in_every_table_where_that_is_asked_for() {
    let job = Job::new();
    let rows = "I0,ada,pos\ni0 ,ben ,POS\ni0,ben,neg\ni1,ada,Pos \ni1,ben,pos\ni1,cyd,neg\n";
    job.write("in.csv", &(HEADER.to_owned() + rows));
    job.write("gold.csv", "instance_id,class,role\nI1,POS,holdout\ni1,pos,holdout\n");
    let run = job.run(&vote("in.csv", "source.gold = '{dir}gold.csv'"));
    assert_says(
        &warnings(&run),
        &[
            "labels differ only in case or in spaces around them: `POS` 1, `Pos ` 1, `pos` 2: source.normalise = [\"trim\", \"lower\"]",
            "annotator ids differ only in spaces around them: `ben` 2, `ben ` 1: source.normalise = [\"trim\"]",
            "instance ids differ only in case or in spaces",
        ],
    );
    let more = "source.gold = '{dir}gold.csv'\nsource.normalise = ['trim', 'lower']\nframe.classes = ['NEG', 'Pos']";
    let run = job.run(&vote("in.csv", more));
    assert_eq!(labels(&run), ["i0 pos", "i1 pos"]);
    assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["neg", "pos"]);
    assert_eq!(cells(&read_table(&run, "annotators"), &["annotator_id"]), ["ada", "ben", "cyd"]);
    assert!(!warnings(&run).contains("differ"), "{}", warnings(&run));
    // The truth is read by the rules of the run.
    let truth = job.write("truth.csv", "instance_id,class\nI0,POS\n i1 ,pos\n");
    let found = run_ok(&["evaluate", "--run", &job.url("out"), "--truth", &truth]);
    assert_says(
        &stdout(&found),
        &["accuracy                1.000000", "unknown_instances       0.000000"],
    );
}

#[test]
fn the_summary_quotes_names_with_outer_spaces() {
    let job = Job::new();
    // Annotators with fewer than five annotations are not ranked.
    let rows: String = (0..5).map(|i| format!("{i},ben ,pos \n{i},ann,pos \n")).collect();
    let file = job.write("in.csv", &(HEADER.to_owned() + &rows));
    let arguments = ["aggregate", "--annotations", &file, "--model", "majority_vote", "--output"];
    let summary = stderr(&run_ok(&[&arguments[..], &[&job.url("out")]].concat()));
    assert_says(&summary, &["classes     \"pos \" 5", "\"ben \" 1.00 (5)"]);
}

/// Twelve instances of four annotators, with the columns in other places.
#[test]
fn tables_with_the_wrong_columns_are_warned_of() {
    let job = Job::new();
    let mut rows = "id,item,judge,answer,source\n".to_owned();
    for i in 0..12 {
        for r in 0..4 {
            let _ = writeln!(
                rows,
                "k{i}_{r},i{i},r{r},{},crowd",
                if (i + r) % 3 == 0 { "x" } else { "y" }
            );
        }
    }
    let file = job.write("in.csv", &rows);
    let mut n = 0;
    let mut told = |instance: &str, annotator: &str, label: &str| {
        n += 1;
        let columns = [("instance", instance), ("annotator", annotator), ("label", label)];
        let columns = columns.map(|(key, name)| format!("source.columns.{key}={name}"));
        let output = job.url(&format!("out{n}"));
        let mut arguments = vec!["aggregate", "--annotations", &file, "--model", "majority_vote"];
        columns.iter().for_each(|set| arguments.extend(["--set", set.as_str()]));
        stderr(&run_ok(&[&arguments[..], &["--output", &output]].concat()))
    };
    assert!(!told("item", "judge", "answer").contains("warning"));
    assert_says(
        &told("judge", "item", "answer"),
        &["4 instances have 12 annotators", "exchanged?"],
    );
    assert_says(&told("item", "judge", "id"), &["48 classes in 48 rows: is the label a key?"]);
    assert_says(&told("item", "source", "answer"), &["one annotator gave all", "[one_annotator]"]);
}

#[test]
fn one_word_where_a_list_is_expected_shows_the_list() {
    let job = Job::new();
    job.write("in.csv", &(HEADER.to_owned() + "i,a,x\n"));
    let error = job.fails(&vote("in.csv", "source.null_values = 'NA'"), 2);
    assert_says(&error, &["expected array", "source.null_values", "write a list: [\"NA\"]"]);
    // As a shell hands over a list whose quotes it took.
    let error = job.ends(&vote("in.csv", ""), &["--set", "source.null_values=[NA]"], 2);
    assert_says(&error, &["source.null_values=[\"a\", \"b\"]", "for the shell"]);
}
