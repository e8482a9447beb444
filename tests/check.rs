//! `labelmill check` reports all problems at once, and those that `run` would find before it reads.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};

use crate::job::{Job, assert_says};
use crate::support::{run_fails, run_ok, write_parquet};

const VOTE: &str = "model.kind = 'majority_vote'\n";

/// A model that reads features.
const GEM: &str = "model.kind = 'gem'\n";

/// Checks that the error has exactly these problems, in this order.
fn assert_problems(error: &str, parts: &[&str]) {
    let problems: Vec<&str> = error.split("error: ").skip(1).collect();
    assert_eq!(problems.len(), parts.len(), "{error}");
    problems.iter().zip(parts).for_each(|(problem, part)| assert_says(problem, &[part]));
}

#[test]
fn the_problems_of_all_relations_are_reported_at_once() {
    let job = Job::new();
    job.write("in.csv", "instance_id,person,label\ni,a,x\n");
    job.write("gold.csv", "instance_id,role\ni,train\n");
    job.write("features.csv", "instance,height\ni,1\n");
    job.write("people.csv", "annotator_id,name\na,Ann\n");
    let sources = "source.annotations = '{dir}in.csv'\nsource.gold = '{dir}gold.csv'
        source.features = '{dir}features.csv'\nsource.annotator_features = '{dir}people.csv'\n";
    let file = job.write("pipeline.toml", &(sources.to_owned() + GEM));
    assert_problems(
        &run_fails(&["check", &file], 3),
        &[
            "the column `annotator_id` is missing",
            "the column `class` is missing",
            "the column `instance_id` is missing",
            "no column holds features",
        ],
    );
}

#[test]
fn a_source_that_cannot_be_opened_hides_no_problem_of_another_one() {
    let job = Job::new();
    job.write("empty.csv", "");
    job.write("features.csv", "instance,height\ni,1\n");
    // The query reads the annotations, which are not there: it is not planned.
    let sources = "source.annotations = '{dir}nowhere.csv'\nsource.gold = '{dir}empty.csv'
        source.features = '{dir}features.csv'
        source.sql.annotator_features = 'select annotator_id, 1 as n from annotations'\n";
    let file = job.write("pipeline.toml", &(sources.to_owned() + GEM));
    assert_problems(
        &run_fails(&["check", &file], 3),
        &[
            "there is no such file",
            "the file is empty: 0 bytes",
            "the column `instance_id` is missing",
        ],
    );
}

#[test]
fn columns_that_the_frame_refuses_are_found_before_a_row_is_read() {
    let job = Job::new();
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)])]);
    let id: ArrayRef = Arc::new(StringArray::from(vec!["i"]));
    write_parquet(&job.path("in.parquet"), vec![("id", id), ("label", Arc::new(list))]);
    let pipeline = format!(
        "source.tables.t = '{{dir}}in.parquet'\nframe.duplicates = 'last'\nsink.url = '{{dir}}out'
         source.sql.annotations = \"select interval '1 day' as instance_id, null as annotator_id, label from t\"\n{VOTE}"
    );
    let file = job.write("pipeline.toml", &pipeline);
    for command in ["check", "run"] {
        assert_problems(
            &run_fails(&[command, &file], 3),
            &[
                "the newest answer cannot be found without `annotated_at`",
                "the column `instance_id` holds lengths of time",
                "the column `annotator_id` holds nothing but nulls",
                "the column `label` does not hold single values",
            ],
        );
    }
}

#[test]
fn a_problem_of_what_a_query_gives_is_at_the_query_for_every_command() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    job.write("features.csv", "instance_id,height\ni,1\n");
    for (relation, query) in [
        ("annotations", "select instance_id, annotator_id from annotations"),
        ("annotations", "select instance_id, annotator_id, null as label from annotations"),
        ("features", "select instance_id from features"),
    ] {
        let sources = "source.annotations = '{dir}in.csv'\nsource.features = '{dir}features.csv'\n";
        let query = format!("source.sql.{relation} = '{query}'\nsink.url = '{{dir}}out'\n");
        let file = job.write("pipeline.toml", &format!("{sources}{query}{GEM}"));
        for command in ["check", "run"] {
            let place = format!("where: source.sql.{relation}\n");
            assert_says(&run_fails(&[command, &file], 3), &[&place]);
        }
    }
}

#[test]
fn features_that_the_model_does_not_read_are_not_planned() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    job.write("features.csv", "instance,class\ni,1\n");
    let sources = "source.annotations = '{dir}in.csv'\nsource.features = '{dir}features.csv'
        source.annotator_features = '{dir}features.csv'\nsink.url = '{dir}out'\n";
    let file = job.write("pipeline.toml", &(sources.to_owned() + VOTE));
    for command in ["check", "run"] {
        run_ok(&[command, &file]);
    }
    let file = job.write("pipeline.toml", &(sources.to_owned() + GEM));
    assert_problems(
        &run_fails(&["check", &file], 3),
        &["the column `instance_id` is missing", "the column `annotator_id` is missing"],
    );
}

/// Whether two listed labels are equal depends on the type of the column of labels.
// keys: frame.classes, frame.extra_labels
#[test]
fn a_label_that_is_listed_twice_is_found_before_a_row_is_read() {
    let job = Job::new();
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    for (name, labels) in [
        ("text", Arc::clone(&text)),
        ("integers", cast(&text, &DataType::Int8).unwrap()),
        ("floats", cast(&text, &DataType::Float64).unwrap()),
    ] {
        let ids = ["instance_id", "annotator_id"].map(|name| (name, Arc::clone(&text)));
        let columns = ids.into_iter().chain([("label", labels)]);
        write_parquet(&job.path(&format!("{name}.parquet")), columns.collect());
    }
    let lists = |source: &str, lists: &str| {
        let pipeline = format!(
            "source.annotations = '{{dir}}{source}.parquet'\nframe = {{ {lists} }}\nsink.url = '{{dir}}out-{source}'\n{VOTE}"
        );
        job.write("pipeline.toml", &pipeline)
    };
    for (source, list, problems) in [
        ("text", "classes = ['1', '1']", &["listed twice\n  where: frame.classes[1]"][..]),
        ("integers", "classes = ['1', 2, '01', 7e9]", &["Int8", "frame.classes[2]\n  found: `01`"]),
        (
            "floats",
            "classes = [1, 2], extra_labels = ['2.0', 'NaN']",
            &["`NaN`", "`2` in both lists"],
        ),
        (
            "text",
            "classes = ['1', '1'], extra_labels = ['1', 'x', 'x']",
            &[
                "frame.classes[1]",
                "frame.extra_labels[2]",
                "a label cannot be a class and no class",
            ],
        ),
    ] {
        let file = lists(source, list);
        for command in ["check", "run"] {
            assert_problems(&run_fails(&[command, &file], 2), problems);
        }
    }
    for command in ["check", "run"] {
        run_ok(&[command, &lists("text", "classes = ['1', '01', 1.0], extra_labels = [2]")]);
    }
    // Beside the problems of the columns.
    let file = lists("text", "classes = ['1', '1'], duplicates = 'last'");
    let all = ["cannot be found without `annotated_at`", "a value is listed twice"];
    assert_problems(&run_fails(&["check", &file], 3), &all);
}

/// The type of the labels is that of all lines.
// keys: frame.classes
#[test]
fn listed_labels_that_only_later_lines_allow_pass_a_check() {
    let job = Job::new();
    let line = |n: usize, label: &str| {
        format!("{{\"instance_id\":{n},\"annotator_id\":\"a\",\"label\":{label}}}\n")
    };
    let early: String = (0..1_500).map(|n| line(n, &(n % 3 + 1).to_string())).collect();
    job.write("in.ndjson", &(early + &line(1_500, "2.5")));
    let pipeline = |classes: &str| {
        let source = "source.annotations = '{dir}in.ndjson'\nsink.url = '{dir}out'\n";
        job.write("pipeline.toml", &format!("{source}frame.classes = {classes}\n{VOTE}"))
    };
    for command in ["check", "run"] {
        run_ok(&[command, &pipeline("[1, 2, 2.5, 3]")]);
    }
    job.write("in.ndjson", &(line(0, "\"x\"") + &line(1, "\"y\"")));
    let error = run_fails(&["check", &pipeline("['x', 'y', 'x']")], 2);
    assert_problems(&error, &["a value is listed twice"]);
}

#[test]
fn settings_that_need_other_settings_are_refused_before_anything_is_read() {
    let job = Job::new();
    let pipeline = "source.annotations = '{dir}nowhere.csv'\nsink.url = '{dir}out'
        sink.keep_runs = 1\ngate.min_accuracy = 0.5\n";
    let file = job.write("pipeline.toml", &(pipeline.to_owned() + VOTE));
    for command in ["check", "run"] {
        let error = run_fails(&[command, &file], 2);
        assert_problems(
            &error,
            &[
                "it is unknown which runs are of the same pipeline",
                "there is no gold to measure the accuracy on",
            ],
        );
        assert_says(&error, &["sink.keep_runs", "gate.min_accuracy", "set source.gold"]);
    }
}

#[test]
fn only_the_first_thousand_rows_of_a_text_file_are_checked() {
    let job = Job::new();
    let rows: String = (0..1_500).map(|n| format!("i{n},a,x\n")).collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{rows}i,a,x,more\n"));
    let pipeline = format!("source.annotations = '{{dir}}in.csv'\n{VOTE}");
    let file = job.write("pipeline.toml", &pipeline);
    run_ok(&["check", &file]);
    assert_says(&job.fails(&pipeline, 3), &["record 1501"]);
}
