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
    // Annotators with fewer than five annotations are not ranked.
    let rows: String = (0..5).map(|i| format!("['i{i}', '{name}', '{name}'], ")).collect();
    let printed = Job::new().ends(
        &format!("source.annotations = [{rows}]\nmodel.kind = 'majority_vote'"),
        &[],
        0,
    );
    assert_says(&printed, &[&format!("classes     {}... 5", "é".repeat(40)), "é... 1.00 (5)"]);
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

/// What cannot be told changes nothing about the job and its exit code.
#[test]
fn a_log_that_cannot_be_written_changes_no_exit_code() {
    if !std::path::Path::new("/dev/full").exists() {
        return eprintln!("SKIPPED: there is no /dev/full");
    }
    let job = Job::new();
    let rows = "source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'\n";
    let pipeline = job.write("pipeline.toml", &format!("{rows}sink.url = '{{dir}}out'"));
    for format in ["text", "json"] {
        for (args, code) in
            [(vec!["run", &pipeline, "-vv"], 0), (vec!["run", "nofile"], 2), (vec!["nothing"], 2)]
        {
            let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
            let mut command = labelmill();
            command.args(&args).args(["--log-format", format]).stderr(full);
            assert_eq!(command.status().unwrap().code(), Some(code), "{args:?}, {format}");
        }
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

/// The lines of stderr of a command with `--log-format json`, each of which must be an object of the log.
fn log_lines(args: &[&str], code: i32) -> Vec<serde_json::Value> {
    let args = [args, &["--log-format", "json"]].concat();
    let output = labelmill().args(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    let object = |line: &str| -> serde_json::Value {
        let object: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{args:?}: {e}: {line}"));
        assert!(object["level"].is_string() && object["fields"]["message"].is_string(), "{line}");
        object
    };
    stderr(&output).lines().map(object).collect()
}

#[test]
fn with_json_logs_every_line_is_an_object() {
    let job = Job::new();
    let rows = "source.annotations = [['i', 'a', 'x'], ['j', 'a', 'x'], ['j', 'b', 'y']]\n";
    let kind = "model.kind = 'dawid_skene'\nmodel.prior = 'none'\nmodel.stop.max_iter = 1\nmodel.stop.tol = 0\n";
    let pipeline = job.write("pipeline.toml", &format!("{rows}{kind}sink.url = '{{dir}}out'"));
    let of_level = |lines: &[serde_json::Value], level: &str| {
        let of_level = |line: &&serde_json::Value| line["level"] == level;
        lines.iter().filter(of_level).map(|line| line["fields"].clone()).collect::<Vec<_>>()
    };
    let lines = log_lines(&["run", &pipeline], 0);
    assert!(!of_level(&lines, "WARN").is_empty(), "{lines:?}");
    let told = of_level(&lines, "INFO");
    assert!(told.len() == 1 && told[0]["message"].as_str().unwrap().contains("3 read"), "{told:?}");
    let lines = log_lines(&["run", &pipeline, "-v", "--force"], 0);
    assert!(of_level(&lines, "INFO").len() > 1, "{lines:?}");
    assert_eq!(log_lines(&["run", &pipeline, "-q"], 0).len(), 0);
    assert_eq!(log_lines(&["check", &pipeline], 0).len(), 1);
    assert_eq!(log_lines(&["predict", "x"], 2).len(), 1);
    let given = "given.annotations = [['i', 'a', 'x'";
    let tests = format!(
        "[[test]]\nname = 'good'\n{given}]]\nexpect.labels = [{{ label = 'x' }}]\n[[test]]\nname = 'wrong'\n{given}]]\nexpect.labels = [{{ label = 'y' }}]\n\
         [[test]]\nname = 'broken'\n{given}], ['j']]\nexpect.labels = [{{ label = 'x' }}]\n"
    );
    let tested = job.write("tested.toml", &format!("{rows}{kind}{tests}"));
    let lines = log_lines(&["test", &tested], 6);
    let [wrong, broken] = &of_level(&lines, "ERROR")[..] else { panic!("{lines:?}") };
    assert_eq!(wrong["message"], "the test `wrong` failed");
    assert!(wrong["found"].as_str().unwrap().contains("no row has label = y"), "{wrong}");
    assert!(broken["where"].as_str().unwrap().starts_with("test[2]"), "{broken}");
    // Each problem of an error has a line of its own, with the parts of the text.
    let wrong = ["run", &pipeline, "-q", "--set", "model.stop.max_itr=1", "--set", "sed=1"];
    let lines = log_lines(&wrong, 2);
    assert_eq!(of_level(&lines, "ERROR").len(), 2, "{lines:?}");
    let first = &lines[0]["fields"];
    let location = format!("{pipeline}: model.stop.max_itr");
    assert_eq!((&first["exit_code"], &first["where"]), (&2.into(), &location.into()));
    assert!(first["help"].as_str().unwrap().contains("max_iter"), "{first}");
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
