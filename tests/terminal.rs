//! Data cannot send control sequences to a terminal; output for programs keeps every value, and output that cannot be
//! written is an error.

use std::process::Stdio;

use crate::job::{Job, assert_says};
use crate::support::{labelmill, run_fails, run_ok, stderr, stdout};

/// Control sequences that clear the screen, set the title, reverse the writing direction and end the line.
const HOSTILE: &str = "x\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}gnol\u{9b}1m\r\u{2028}";

const WRITTEN: &str = "x\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\u{202e}gnol\\u{9b}1m\\r\\u{2028}";

fn is_active(c: char) -> bool {
    (c.is_control() && c != '\n') || ('\u{2028}'..='\u{202e}').contains(&c)
}

fn assert_harmless(text: &str) {
    assert!(!text.chars().any(is_active), "{text:?}");
}

/// Publishes a job with hostile ids and labels to `out`; returns what it printed for the user.
fn publish(job: &Job) -> String {
    let value = serde_json::json!(HOSTILE).to_string();
    let row = format!("{{\"instance_id\":{value},\"annotator_id\":{value},\"label\":{value}}}\n");
    let other =
        "{\"instance_id\":\"j\",\"annotator_id\":\"b\",\"label\":\"y\\nlabels      9 decided\"}\n";
    job.write("in.ndjson", &(row + other));
    job.ends("source.annotations = '{dir}in.ndjson'\nmodel.kind = 'majority_vote'", &[], 0)
}

#[test]
fn the_summary_of_a_hostile_crowd_is_harmless() {
    let printed = publish(&Job::new());
    assert_harmless(&printed);
    assert_says(&printed, &[WRITTEN, "y\\nlabels      9 decided"]);
    assert_eq!(printed.lines().filter(|line| line.starts_with("labels ")).count(), 1, "{printed}");
}

#[test]
fn names_of_any_length_leave_the_summary_readable() {
    let name = "é".repeat(100_000);
    let printed = Job::new().ends(
        &format!("source.annotations = [['i', '{name}', '{name}']]\nmodel.kind = 'majority_vote'"),
        &[],
        0,
    );
    assert_says(&printed, &[&format!("classes     {}... 1", "é".repeat(40)), "é... 1.00 (1)"]);
    assert!(printed.len() < 2_000, "{} bytes", printed.len());
}

/// The write of any byte to the file `/dev/full` fails, as on a full disk.
#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_an_error_of_the_store() {
    let job = Job::new();
    let rows = "source.annotations = [['i', 'a', 'x'], ['j', 'a', 'y']]\n";
    job.run(&format!("{rows}model.kind = 'majority_vote'"));
    let (file, out) = (job.url("pipeline.toml"), job.url("out"));
    let sink = format!("sink.url={out}");
    let truth = job.write("truth.csv", "instance_id,class\ni,x\n");
    for args in [
        vec!["run", &file, "--set", &sink, "--json"],
        vec!["run", &file, "--set", &sink, "--json", "--force"],
        vec!["evaluate", "--run", &out, "--truth", &truth],
        vec!["evaluate", "--run", &out, "--truth", &truth, "--json"],
        vec!["explain", &file],
        vec!["schema"],
        vec!["models"],
        vec!["models", "dawid_skene"],
        vec!["models", "--json"],
        vec!["simulate", "--list"],
        vec!["simulate", "--list", "--json"],
        vec!["sql", "-c", "select 1"],
        vec!["--version"],
        vec!["--help"],
        vec!["run", "--help"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = labelmill().args(&args).stdout(full).output().unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{args:?}\n{error}");
        assert_says(&error, &["error: the output cannot be written", "where: stdout", "help: "]);
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for args in [["schema", "-q"], ["models", "--json"], ["simulate", "--list"], ["run", "--help"]]
    {
        let mut child = labelmill().args(args).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_table_of_a_query_is_harmless_and_its_json_exact() {
    let job = Job::new();
    publish(&job);
    let out = job.url("out");
    let args = ["sql", "--run", &out, "-c", "select * from labels order by instance_id desc"];
    let text = stdout(&run_ok(&args));
    assert_harmless(&text);
    assert_says(&text, &[WRITTEN]);
    assert_eq!(text.lines().count(), 6, "{text}");
    let json = stdout(&run_ok(&[&args[..], &["--json"]].concat()));
    assert_harmless(&json);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["label"], HOSTILE);
    // A column's name is data too.
    let query = format!("select 1 as \"{HOSTILE}\"");
    assert_harmless(&stdout(&run_ok(&["sql", "-c", &query])));
    let plan = stdout(&run_ok(&["sql", "-c", "explain select 1"]));
    assert!(plan.lines().count() > 6 && !plan.contains("\\n"), "{plan}");
}

#[test]
fn errors_and_logs_that_repeat_data_are_harmless() {
    let job = Job::new();
    let error = job.fails(
        &format!("source.annotations = [['i', 'a', 'x']]\nsource.gold = [['i', 'x', {}]]\nmodel.kind = 'majority_vote'",
            serde_json::json!(HOSTILE)),
        3,
    );
    assert_harmless(&error);
    assert_says(&error, &[WRITTEN]);
    for args in [
        vec!["run", HOSTILE],
        vec![HOSTILE],
        vec!["models", HOSTILE],
        vec!["sql", "-c", HOSTILE],
        vec!["sql", "-c", "select 1", "--table", HOSTILE],
    ] {
        assert_harmless(&run_fails(&args, 2));
    }
    let query = format!("select '{HOSTILE}' from nowhere");
    for format in ["text", "json"] {
        let args = ["sql", "-c", &query, "-vvv", "--log-format", format];
        assert_harmless(&stderr(&labelmill().args(args).output().unwrap()));
    }
}

#[test]
fn the_verdicts_and_scores_of_hostile_names_are_harmless() {
    let job = Job::new();
    let name = serde_json::json!(HOSTILE);
    let file = job.write(
        "pipeline.toml",
        &format!(
            "source.annotations = [['i', 'a', 'x']]
             model.kind = 'majority_vote'
             frame.classes = [{name}, 'x']
             [[test]]
             name = {name}
             given.annotations = [['i', 'a', 'x']]
             expect.labels = [{{ label = {name} }}]"
        ),
    );
    assert_harmless(&run_fails(&["test", &file], 6));
    assert_harmless(&stdout(&run_ok(&["explain", &file])));
}
