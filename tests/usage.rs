//! Messages of a first user's mistakes say what is there, and what to write instead.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::job::{Job, assert_says, vote};
use crate::support::{run_fails, run_ok, stdout};

const CROWD: &str = "instance_id,annotator_id,label\ni,a,x\ni,b,x\nj,a,y\n";

#[test]
fn an_unknown_table_or_column_of_a_query_names_those_there_are() {
    let job = Job::new();
    let table = format!("labels={}", job.write("in.csv", "instance_id,label\ni,x\n"));
    let fails = |query: &str| run_fails(&["sql", "--table", &table, "-c", query], 2);
    assert_says(
        &fails("select * from label"),
        &[
            "there is no table `label`",
            "where: -c",
            "the tables `labels`",
            "did you mean `labels`?",
        ],
    );
    assert_says(
        &fails("select id, label from labels"),
        &["there is no column `id`", "labels.instance_id", "labels.label", "where: -c", "help:"],
    );
    assert_says(&fails("select lable from labels"), &["did you mean `label`?"]);
    assert_says(&fails("selec 1"), &["where: -c", "help:"]);
    let pipeline = vote("in.csv", "source.sql.annotations = 'select * from annotation'");
    job.write("in.csv", CROWD);
    assert_says(
        &job.fails(&pipeline, 2),
        &[
            "there is no table `annotation`",
            "source.sql.annotations",
            "did you mean `annotations`?",
        ],
    );
}

#[test]
fn text_without_quotes_is_named_as_such() {
    for value in ["infinity", "nobody", "true_vote", "dawid_skene", "s3://bucket/x"] {
        let pipeline = format!("source.annotations = 'x.csv'\nmodel.kind = {value}\n");
        let file = Job::new();
        let error = run_fails(&["check", &file.write("pipeline.toml", &pipeline)], 2);
        assert_says(&error, &["text needs quotes", "pipeline.toml:2", &format!("`{value}`")]);
    }
}

#[test]
fn a_list_where_one_url_is_expected_is_named_as_such() {
    let error = Job::new()
        .fails("source.annotations = ['a.csv', 'b.csv']\nmodel.kind = 'majority_vote'\n", 2);
    assert_says(&error, &["expected one text, not a list", "source.annotations", "in/*.csv"]);
}

#[test]
fn a_parameter_of_other_kinds_names_them_and_those_of_the_kind() {
    let job = Job::new();
    job.write("in.csv", CROWD);
    let pipeline = vote("in.csv", "model.smoothing = 0.1");
    let error = job.ends(&pipeline, &["--set", "model.kind=glad"], 2);
    assert_says(
        &error,
        &["`smoothing`: it is no parameter of `glad`", "model.smoothing", "`dawid_skene`"],
    );
    assert!(!error.contains("calibration.smoothing"), "{error}");
}

#[test]
fn a_variable_that_nothing_reads_is_refused() {
    let job = Job::new();
    job.write("in.csv", CROWD);
    let error = job.ends(&vote("${file}.csv", ""), &["--var", "file=in", "--var", "fiel=x"], 2);
    assert_says(
        &error,
        &["nothing reads the variable `fiel`", "where: --var", "did you mean `file`?"],
    );
}

#[test]
fn tests_need_no_variables_of_the_sources_that_they_replace() {
    let job = Job::new();
    let file = job.write(
        "pipeline.toml",
        "source.annotations = 's3://b/${day}/x.csv'\nmodel.kind = 'majority_vote'\nsink.url = 'out/${day}'
         [[test]]\ngiven.annotations = [['i', 'a', 'x']]\nexpect.labels = [{ instance_id = 'i', label = 'x' }]",
    );
    run_ok(&["test", &file]);
    run_ok(&["test", &file, "--var", "day=2026-01-01"]);
    assert_says(&run_fails(&["check", &file], 2), &["no value for the variable `day`"]);
}

#[test]
fn a_run_that_is_not_there_any_more_names_the_latest() {
    let job = Job::new();
    job.write("in.csv", CROWD);
    for id in ["one", "two"] {
        let more = format!("name = 'p'\nsink.keep_runs = 1\nsink.run_id = '{id}'\n");
        job.ends(&(more + &vote("in.csv", "")), &["--force"], 0);
    }
    let run = job.url("out/runs/one");
    let error = run_fails(&["sql", "-c", "select 1", "--run", &run], 3);
    assert_says(&error, &["the run `one` is not there", "sink.keep_runs", "latest run is `two`"]);
    let two = job.url("out/runs/two");
    assert_says(&error, &[&format!("help: name {two} for the latest run")]);
    run_ok(&["sql", "-c", "select 1", "--run", &two]);
    // A link to the folder of runs, from which the text does not tell the place.
    std::os::unix::fs::symlink(job.path("out/runs"), job.path("all")).unwrap();
    let error = run_fails(&["sql", "-c", "select 1", "--run", &job.url("all/one")], 3);
    assert!(!error.contains("one/runs"), "{error}");
}

#[test]
fn the_memory_limit_of_commands_without_a_pipeline_is_an_option() {
    let job = Job::new();
    let rows: String = (0..50_000).map(|i| format!("instance number {i},{}\n", i % 2)).collect();
    let truth = job.write("truth.csv", &format!("instance_id,class\n{rows}"));
    let rows: String = (0..50_000).map(|i| format!("instance number {i},a,{}\n", i % 2)).collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{rows}"));
    job.run(&vote("in.csv", "sink.tables = ['labels', 'run']"));
    let (run, out) = (job.url("out"), job.url("crowd"));
    let evaluate = ["evaluate", "--run", &run, "--truth", &truth, "--memory-limit"];
    let simulate =
        ["simulate", "--truth", &truth, "--output", &out, "--recipe", "groups", "--memory-limit"];
    for command in [&evaluate[..], &simulate[..]] {
        let error = run_fails(&[command, &["64KiB"]].concat(), 2);
        assert_says(&error, &["memory", "raise --memory-limit"]);
        run_ok(&[command, &["1GiB"]].concat());
    }
}

#[test]
fn the_memory_limit_of_sql_bounds_the_process_whatever_function_takes_it() {
    // Doubles a text in each of fourteen steps, to 16 GB.
    let double = |query: String, n| format!("select s{n} || s{n} as s{} from ({query})", n + 1);
    let query = (0..14).fold("select repeat('x', 1000000) as s0".to_owned(), double);
    let query = format!("select length(s14) as n from ({query})");
    let error = run_fails(&["sql", "--memory-limit", "64MiB", "-c", &query], 2);
    // The limit and 2 GiB.
    assert_says(&error, &["the memory limit allows 2214592512", "--memory-limit"]);
    let error = run_fails(&["sql", "--memory-limit", "lots", "-c", "select 1"], 2);
    assert_says(&error, &["--memory-limit", "512MiB"]);
    let rows = run_ok(&["sql", "--memory-limit", "64MiB", "--json", "-c", "select 1 as n"]);
    assert_eq!(stdout(&rows).trim_end(), "{\"n\":1}");
}

#[test]
#[cfg(unix)]
fn a_pipe_or_a_device_in_the_place_of_a_file_is_refused_at_once() {
    let job = Job::new();
    let pipe = job.url("pipe.sql");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let features = job.write("features.csv", "instance_id,x\ni,1\n");
    std::fs::create_dir(job.path("model")).unwrap();
    let description = job.url("model/model.json");
    assert!(Command::new("mkfifo").arg(&description).status().unwrap().success());
    let (model, out) = (job.url("model"), job.url("out"));
    let began = Instant::now();
    for args in [
        vec!["sql", &pipe],
        vec!["sql", "/dev/zero"],
        vec!["run", &pipe],
        vec!["check", "/dev/zero"],
    ] {
        assert_says(&run_fails(&args, 2), &["no regular file", "help:"]);
    }
    let args = ["predict", "--model", &model, "--features", &features, "--output", &out];
    assert_says(&run_fails(&args, 3), &["no regular file", "model.json"]);
    assert!(began.elapsed() < Duration::from_secs(30));
}
