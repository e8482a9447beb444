//! `labelmill check` reports all problems at once, and those that `run` would find before it reads.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, ListArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};

use crate::job::{Job, assert_says};
use crate::support::{run_fails, run_ok, stderr, write_parquet};

const VOTE: &str = "model.kind = 'majority_vote'\n";

/// A model that reads features.
const GEM: &str = "model.kind = 'gem'\n";

/// The sink of a job that may be explained or run.
const SINK: &str = "sink.url = '{dir}out'\n";

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

// keys: frame.classes
#[test]
fn a_label_that_is_listed_twice_is_found_without_the_annotations() {
    let job = Job::new();
    let source = "source.annotations = '{dir}nowhere.csv'\nframe.classes = [1, 1]\n";
    let file = job.write("pipeline.toml", &format!("{source}{VOTE}{SINK}"));
    let listed = "a value is listed twice\n  where: frame.classes[1]";
    assert_problems(&run_fails(&["check", &file], 2), &[listed, "there is no such file"]);
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
    for command in ["check", "explain", "run"] {
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
            let location = format!("where: source.sql.{relation}\n");
            assert_says(&run_fails(&[command, &file], 3), &[&location]);
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
        let told = stderr(&run_ok(&[command, &file]));
        let keys = "source.features with source.annotator_features";
        assert_says(&told, &["`majority_vote` learns from annotations alone", keys]);
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
        ("bytes", cast(&text, &DataType::Binary).unwrap()),
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
            "bytes",
            "classes = ['1'], extra_labels = ['2']",
            &["labels of bytes cannot be listed\n  where: frame.classes\n", "frame.extra_labels\n"],
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
        for command in ["check", "explain", "run"] {
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

/// Ids and labels of Parquet files have one type, those of CSV files may be text or integers.
#[test]
fn ids_and_labels_of_another_type_than_the_annotations_have_are_found_before_a_row_is_read() {
    let job = Job::new();
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    let integers = cast(&text, &DataType::Int64).unwrap();
    let of = |id: &ArrayRef, name: &'static str, value: &ArrayRef| {
        vec![("instance_id", Arc::clone(id)), (name, Arc::clone(value))]
    };
    let annotations = |label: &ArrayRef| {
        [of(&text, "annotator_id", &text), vec![("label", Arc::clone(label))]].concat()
    };
    write_parquet(&job.path("text.parquet"), annotations(&text));
    write_parquet(&job.path("integers.parquet"), annotations(&integers));
    write_parquet(&job.path("ids.parquet"), of(&integers, "class", &text));
    write_parquet(&job.path("classes.parquet"), of(&text, "class", &integers));
    let bools: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
    write_parquet(&job.path("bools.parquet"), of(&text, "class", &bools));
    write_parquet(&job.path("features.parquet"), of(&integers, "height", &integers));
    write_parquet(
        &job.path("people.parquet"),
        vec![("annotator_id", Arc::clone(&integers)), ("age", Arc::clone(&integers))],
    );
    write_parquet(&job.path("good.parquet"), of(&text, "height", &integers));
    job.write("gold.csv", "instance_id,class,role\n1,1,train\n");
    let pipeline = |annotations: &str, more: &str| {
        let source = format!("source.annotations = '{{dir}}{annotations}.parquet'\n");
        job.write("pipeline.toml", &format!("{source}{more}\n{SINK}"))
    };
    let gold = |file: &str| format!("source.gold = '{{dir}}{file}'\n{VOTE}");
    let features = |more: &str| format!("source.features = '{{dir}}{more}\n{GEM}");
    let people = "good.parquet'\nsource.annotator_features = '{dir}people.parquet'";
    for (annotations, more, found, location) in [
        ("text", gold("ids.parquet"), "Int64 here, Utf8 there", "source.gold"),
        ("text", gold("classes.parquet"), "Int64 here, Utf8 there", "source.gold"),
        ("integers", gold("bools.parquet"), "Boolean here, Int64 there", "source.gold"),
        ("text", features("features.parquet'"), "Utf8 here, Int64 there", "source.features"),
        ("text", features(people), "Utf8 here, Int64 there", "source.annotator_features"),
    ] {
        let file = pipeline(annotations, &more);
        let error = run_fails(&["check", &file], 3);
        assert_problems(&error, &["has another type than the annotations have"]);
        assert_says(&error, &[found, &format!("where: {location}\n")]);
        run_fails(&["run", &file], 3);
    }
    for annotations in ["text", "integers"] {
        run_ok(&["check", &pipeline(annotations, &gold("gold.csv"))]);
    }
}

#[test]
fn weights_and_times_that_cannot_be_read_are_found_before_a_row_is_read() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let pipeline = |column: &str, more: &str| {
        let sql = format!("source.sql.annotations = \"select *, {column} from annotations\"\n");
        let source = format!("source.annotations = '{{dir}}in.csv'\n{sql}");
        job.write("pipeline.toml", &format!("{source}{more}{SINK}{VOTE}"))
    };
    let last = "frame.duplicates = 'last'\n";
    for (column, more, problem) in [
        ("'1' as weight", "", "the column `weight` cannot be read as numbers"),
        ("true as weight", "", "the column `weight` cannot be read as numbers"),
        ("true as annotated_at", last, "the column `annotated_at` cannot be read as times"),
    ] {
        for command in ["check", "explain", "run"] {
            let error = run_fails(&[command, &pipeline(column, more)], 3);
            assert_problems(&error, &[problem]);
            assert_says(&error, &["where: source.sql.annotations\n"]);
        }
    }
    // Only `last` reads times.
    for column in ["2 as weight", "true as annotated_at", "null as weight"] {
        run_ok(&["check", &pipeline(column, "")]);
    }
}

#[test]
fn settings_of_a_model_that_need_gold_are_refused_before_anything_is_read() {
    let job = Job::new();
    let sources = "source.annotations = '{dir}nowhere.csv'\nsource.features = '{dir}nowhere.csv'\n";
    for (kind, setting, problem) in [
        ("dl", "train.select = 'valid'", "there is no gold to select the best epoch by"),
        ("tcl", "initialise = 'trusted'", "there is no gold to start with"),
    ] {
        let model = format!("model.kind = '{kind}'\nmodel.{setting}\n");
        for command in ["check", "run"] {
            let file = job.write("pipeline.toml", &format!("{sources}{SINK}{model}"));
            let error = run_fails(&[command, &file], 2);
            let key = setting.split(' ').next().unwrap();
            assert_problems(&error, &[problem]);
            assert_says(&error, &[&format!("model.{key}\n"), "without source.gold"]);
        }
        let gold = "source.gold = '{dir}nowhere.csv'\n";
        let file = job.write("pipeline.toml", &format!("{sources}{gold}{SINK}{model}"));
        run_fails(&["check", &file], 8);
    }
}

#[test]
fn a_date_in_a_pipeline_file_is_shown_as_it_is_written() {
    let job = Job::new();
    let pipeline = "source.annotations = [['i', 'a', 2026-01-02]]\nseed = 2026-01-03T04:05:06Z\n";
    let error =
        run_fails(&["check", &job.write("pipeline.toml", &(pipeline.to_owned() + VOTE))], 2);
    assert_eq!(error.matches("error: no value of a pipeline is a date").count(), 2, "{error}");
    assert_says(&error, &["found: `2026-01-02`", "found: `2026-01-03T04:05:06Z`", "seed\n"]);
}

// keys: decide.ties
#[test]
fn ties_cannot_be_broken_by_a_prior_that_the_model_does_not_estimate() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let pipeline = |model: &str, more: &str| {
        let source = "source.annotations = '{dir}in.csv'\ndecide.ties = 'by_prior'\n";
        let text = format!("{source}{SINK}model.kind = '{model}'\n{more}");
        job.write("pipeline.toml", &text)
    };
    // The prior of these is uniform, where there is one.
    let fixed = "model.fixed_prior = true\n";
    let without =
        [("majority_vote", ""), ("glad", ""), ("dawid_skene", fixed), ("one_coin", fixed)];
    for (model, more) in without {
        let error = run_fails(&["check", &pipeline(model, more)], 2);
        assert_problems(&error, &[&format!("`{model}` has no prior to break ties by")]);
        let parts = ["pipeline.toml: decide.ties\n", "found: \"by_prior\"\n", "fixed_prior"];
        assert_says(&error, &parts);
    }
    let learned = "model.fixed_prior = false\n";
    for (model, more) in [("dawid_skene", ""), ("one_coin", learned), ("ibcc", "")] {
        run_ok(&["check", &pipeline(model, more)]);
    }
}
