//! Files that are missing, empty, cut short or of the wrong shape: an error that says which, where and what to do.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;

use crate::job::{Job, assert_says, cells, write_as};
use crate::support::{labelmill, read_table, run_fails, stderr, write_crowd, write_parquet};

const IN: &str = "source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'\n";

fn crowd(job: &Job) -> Vec<u8> {
    let path = job.path("in.parquet");
    let rows: Vec<(String, String)> =
        (0..500).map(|n| (format!("i{n}"), format!("a{}", n % 7))).collect();
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|(i, a)| (i.as_str(), a.as_str(), "x")).collect();
    write_crowd(&path, &rows);
    std::fs::read(&path).unwrap()
}

#[test]
fn an_empty_file_is_told_from_an_empty_table() {
    for name in ["in.parquet", "in.csv", "in.ndjson", "in.arrow"] {
        let job = Job::new();
        job.write(name, "");
        let error = job.fails(&IN.replace("in.parquet", name), 8);
        assert_says(&error, &["the file is empty: 0 bytes", name, "was the upload cut short?"]);
    }
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\n");
    let error = job.fails(&IN.replace("in.parquet", "in.csv"), 8);
    assert_says(&error, &["there is no annotation to learn from", "0 rows"]);
}

#[test]
fn a_truncated_or_foreign_file_is_a_data_error_that_names_it() {
    for damage in ["truncated", "garbage", "tiny"] {
        let job = Job::new();
        let whole = crowd(&job);
        let bytes = match damage {
            "truncated" => whole[..whole.len() / 2].to_vec(),
            "garbage" => b"not at all what the name says ".repeat(100),
            _ => b"PAR1".to_vec(),
        };
        std::fs::write(job.path("in.parquet"), bytes).unwrap();
        let error = job.fails(IN, 3);
        assert_says(&error, &["source.annotations", "in.parquet", "damaged, cut short"]);
    }
}

#[test]
fn a_line_that_is_no_object_is_named_with_what_is_wrong_with_it() {
    let good = r#"{"instance_id":"i","annotator_id":"a","label":"x","weight":1}"#;
    for (line, found) in [
        (good.replace(":1", ":1e400"), "number out of range in line 2, at byte 64"),
        (good.replace('}', ""), "EOF while parsing an object in line 2, at byte 60"),
        (format!("[{good}]"), "invalid type: sequence, expected an object in line 2"),
    ] {
        let job = Job::new();
        job.write("in.ndjson", &format!("{good}\n{line}\n"));
        let error = job.fails(&IN.replace("in.parquet", "in.ndjson"), 3);
        assert_says(&error, &["a line is no JSON object", &format!("found: {found}\n")]);
    }
}

/// The file between two whole ones, whether a job reads the folder or `sql` does.
#[test]
fn pages_that_do_not_decode_are_a_data_error_that_names_the_file_and_nothing_is_published() {
    let job = Job::new();
    let whole = crowd(&job);
    let mut damaged = whole.clone();
    damaged[4..whole.len() / 2].fill(0xa5);
    std::fs::create_dir(job.path("in")).unwrap();
    for (name, bytes) in [("a", &whole), ("b", &damaged), ("c", &whole)] {
        std::fs::write(job.path(&format!("in/{name}.parquet")), bytes).unwrap();
    }
    let file = job.path("in/b.parquet").display().to_string();
    let parts = [file.as_str(), "damaged, cut short"];
    assert_says(&job.fails(&IN.replace("in.parquet", "in/"), 3), &parts);
    assert!(!job.path("out").exists());
    let table = format!("t={}", job.path("in/").display());
    let query = "select count(distinct label), min(instance_id) from t";
    assert_says(&run_fails(&["sql", "--table", &table, "-c", query], 3), &parts);
}

#[test]
fn a_missing_file_names_the_nearest() {
    let job = Job::new();
    job.write("answers_2026.csv", "instance_id,annotator_id,label\n");
    let error = job.fails(&IN.replace("in.parquet", "answer_2026.csv"), 8);
    assert_says(
        &error,
        &["there is no such file", "answer_2026.csv", "`answers_2026.csv` beside it"],
    );
    let error = job.fails(&IN.replace("in.parquet", "nothing/like/*.csv"), 8);
    assert_says(&error, &["there is no such file", "nothing/like/*.csv", "a pattern may hold"]);
}

#[test]
fn a_missing_column_names_the_nearest_and_the_key_that_maps_it() {
    let job = Job::new();
    job.write("in.csv", "instance_id,anotator_id,answer\ni,a,x\n");
    let error = job.fails(&IN.replace("in.parquet", "in.csv"), 3);
    assert_says(
        &error,
        &[
            "the column `annotator_id` is missing",
            "source.annotations",
            "`instance_id`, `anotator_id`, `answer`",
            "did you mean `anotator_id`? set source.columns.annotator = \"anotator_id\"",
        ],
    );
    let mapped = IN.replace("in.parquet", "in.csv")
        + "source.columns = { annotator = 'anotator_id', label = 'answers' }";
    let error = job.fails(&mapped, 3);
    let line = r#"write `source.columns = { annotator = "anotator_id", label = "answer" }`"#;
    assert_says(&error, &["the column `answers` is missing", line]);
}

#[test]
fn a_file_with_other_tools_names_is_answered_with_the_line_that_maps_them() {
    let job = Job::new();
    job.write("in.csv", "task,worker,label\ni,a,x\n");
    let pipeline = IN.replace("in.parquet", "in.csv");
    let error = job.fails(&pipeline, 3);
    let line = r#"source.columns = { instance = "task", annotator = "worker" }"#;
    assert_says(&error, &["the column `instance_id` is missing", line]);
    job.run(&format!("{pipeline}\n{line}\n"));
}

/// Pastes the line that each error proposes, in the place of an earlier one of the same key, until the job runs; returns
/// the number of errors.
fn paste_until_it_runs(job: &Job, pipeline: &str) -> usize {
    let mut lines: Vec<String> = Vec::new();
    for errors in 0..4 {
        let error = job.ends_any(&format!("{pipeline}\n{}\n", lines.join("\n")));
        let Some(error) = error else { return errors };
        let line = error.split("write `").nth(1).and_then(|rest| rest.split('`').next());
        let line = line.unwrap_or_else(|| panic!("no line is proposed in\n{error}")).to_owned();
        lines.retain(|old| old.split(" = ").next() != line.split(" = ").next());
        lines.push(line);
    }
    panic!("the proposed lines do not end: {lines:?}");
}

#[test]
fn the_proposed_lines_are_pasted_until_the_job_runs() {
    for (header, gold, errors) in [
        ("task,worker,label", None, 1),
        ("item,user,answer", None, 1),
        ("sample_id,annotator,label", None, 1),
        ("sample_id,annotator,answer", None, 1),
        ("question_id,worker_id,answer", None, 1),
        ("i,j,y", None, 1),
        ("HITId,WorkerId,Answer.label", None, 1),
        ("task_id,worker_id,label_id", None, 1),
        ("INPUT:image,ASSIGNMENT:worker_id,OUTPUT:result", None, 1),
        ("Task ID,Worker \\ ID,Judge \u{1} ment answer", None, 1),
        // The second error keeps what the first one proposed.
        ("task,worker,label", Some("task,true_label"), 2),
        ("instance_id,annotator_id,label", Some("item,truth"), 1),
        ("task,worker,label", Some("item,truth"), 2),
        ("question,worker,answer", None, 1),
        ("question,worker,answer", Some("question,truth"), 2),
    ] {
        let job = Job::new();
        job.write("in.csv", &format!("{header}\n1,a,x\n1,b,x\n2,a,y\n"));
        let mut pipeline = IN.replace("in.parquet", "in.csv");
        if let Some(gold) = gold {
            job.write("gold.csv", &format!("{gold}\n1,x\n"));
            pipeline += "source.gold = '{dir}gold.csv'\n";
        }
        assert_eq!(paste_until_it_runs(&job, &pipeline), errors, "{header} {gold:?}");
        let run = job.path("out/latest").canonicalize().unwrap();
        let labels = cells(&read_table(&run, "labels"), &["instance_id", "label"]);
        assert_eq!(labels, ["1 x", "2 y"], "{header} {gold:?}");
    }
}

/// Ids of text, and integers, in Parquet and CSV; the column that names the instances has another name in the features.
/// Numbers of a CSV file of features are doubles, so that there the proposed query casts them.
#[test]
fn the_query_that_is_proposed_for_features_runs() {
    for (prefix, extension) in [("i", "parquet"), ("i", "csv"), ("", "parquet"), ("", "csv")] {
        let (job, what) = (Job::new(), format!("ids such as {prefix}7 in {extension}"));
        let ids: Vec<String> = (0..20).map(|i| format!("{prefix}{i}")).collect();
        let ids = |n: usize| -> ArrayRef {
            let ids = (0..n).map(|row| ids[row % 20].as_str());
            if prefix.is_empty() {
                Arc::new(ids.map(|id| id.parse::<i64>().unwrap()).collect::<Int64Array>())
            } else {
                Arc::new(StringArray::from_iter_values(ids))
            }
        };
        let text = |name: fn(usize) -> String| -> ArrayRef {
            Arc::new(StringArray::from_iter_values((0..40).map(name)))
        };
        let batch = |columns: Vec<(&str, ArrayRef)>| RecordBatch::try_from_iter(columns).unwrap();
        let annotations = vec![
            ("instance_id", ids(40)),
            ("annotator_id", text(|row| format!("a{}", row / 20))),
            ("label", text(|row| if row % 3 == 0 { "y" } else { "x" }.to_owned())),
        ];
        write_as(&job.path(&format!("in.{extension}")), &batch(annotations));
        let height: ArrayRef =
            Arc::new(Float64Array::from_iter_values((0..20).map(|i| f64::from(i % 3) + 0.5)));
        let features = vec![("item", ids(20)), ("height", height)];
        write_as(&job.path(&format!("features.{extension}")), &batch(features));
        let pipeline = format!(
            "source.annotations = '{{dir}}in.{extension}'
             source.features = '{{dir}}features.{extension}'
             model = {{ kind = 'dl', device = 'cpu', train.epochs = 1 }}"
        );
        assert_eq!(paste_until_it_runs(&job, &pipeline), 1, "{what}");
        let run = job.path("out/latest").canonicalize().unwrap();
        let predictions = cells(&read_table(&run, "predictions"), &["instance_id"]);
        let has = |id: &str| predictions.iter().filter(|found| *found == id).count();
        assert_eq!([has(&format!("{prefix}7")), has(&format!("{prefix}19"))], [2, 2], "{what}");
        assert_eq!(predictions.len(), 40, "{what}");
    }
}

#[test]
fn the_truth_of_evaluate_names_the_options_that_map_its_columns() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\n1,a,x\n");
    job.run(&IN.replace("in.parquet", "in.csv"));
    let truth = job.write("truth.csv", "task,true_label\n1,x\n");
    let output = labelmill()
        .args(["evaluate", "--run", &job.url("out"), "--truth", &truth])
        .output()
        .unwrap();
    let error = stderr(&output);
    assert_says(&error, &["--truth", "--instance-column and --class-column"]);
    assert!(!error.contains("source.columns"), "{error}");
}

fn text(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

fn fails_with(column: (&str, ArrayRef), more: &str) -> String {
    let job = Job::new();
    let ids = [("instance_id", text("i")), ("annotator_id", text("a")), ("label", text("x"))];
    let others = ids.into_iter().filter(|(name, _)| *name != column.0);
    let columns = others.chain([column.clone()]).collect();
    write_parquet(&job.path("in.parquet"), columns);
    job.fails(&(IN.to_owned() + more), 3)
}

#[test]
fn a_list_is_no_label() {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)])]);
    let error = fails_with(("label", Arc::new(list)), "");
    let want = ["`label` does not hold single values", "List(Int64)", "source.sql.annotations"];
    assert_says(&error, &want);
}

#[test]
fn text_is_no_weight() {
    let error = fails_with(("weight", text("heavy")), "");
    let want = ["the column `weight` cannot be read as numbers", "Utf8", "source.sql.annotations"];
    assert_says(&error, &want);
}

#[test]
fn text_that_is_no_time_does_not_pass_for_an_old_one() {
    let error = fails_with(("annotated_at", text("soon")), "frame.duplicates = 'last'");
    let want =
        ["the column `annotated_at` cannot be read as times", "Utf8", "source.sql.annotations"];
    assert_says(&error, &want);
}

#[test]
fn listed_classes_of_another_type_are_a_spec_error() {
    let job = Job::new();
    write_parquet(
        &job.path("in.parquet"),
        vec![
            ("instance_id", text("i")),
            ("annotator_id", text("a")),
            ("label", Arc::new(Int64Array::from(vec![1]))),
        ],
    );
    let error = job.fails(&(IN.to_owned() + "frame.classes = [1, 'no']"), 2);
    assert_says(
        &error,
        &["not a value of the labels' type", "frame.classes[1]", "`no`, while labels are Int64"],
    );
}

#[test]
fn sql_that_does_not_plan_is_a_spec_error_at_its_key() {
    let job = Job::new();
    crowd(&job);
    let sql = "source.sql.annotations = 'select instance_id, annotator_id, lable as label from annotations'";
    let error = job.fails(&(IN.to_owned() + sql), 2);
    assert_says(&error, &["lable", "source.sql.annotations"]);
}

#[test]
fn sql_that_changes_anything_is_refused_before_it_does() {
    for sql in ["create table t as select 1 as x", "copy annotations to '{dir}copy.csv'"] {
        let job = Job::new();
        crowd(&job);
        let error = job.fails(&format!("{IN}source.sql.annotations = \"{sql}\""), 2);
        assert_says(&error, &["not supported", "source.sql.annotations"]);
        assert!(!job.path("copy.csv").exists());
    }
}

#[test]
fn a_table_of_a_run_that_cannot_be_read_is_not_taken_for_a_missing_file() {
    let job = Job::new();
    let run = job.run("source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'");
    let manifest = run.parent().unwrap().join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    let (table, statement) = (format!("t={}", job.url("out/labels")), "select * from t");
    let error = run_fails(&["sql", "--table", &table, "-c", statement], 3);
    assert_says(&error, &["the run that latest.json names is not committed any more", "runs/"]);
}
