//! What the command line adds to a pipeline file: values of `${name}` by `--var`, and `--set`.

use crate::job::{Job, assert_says, cells};
use crate::support::{files_of, read_table};

const PIPELINE: &str =
    "source.annotations = '{dir}${day}/in.csv'\nmodel.kind = '${kind}'\nsink.run_id = '${day}'\n";

fn job() -> Job {
    let job = Job::new();
    job.write("2026-01-02/in.csv", "instance_id,annotator_id,label\ni,a,no\ni,b,yes\n");
    job
}

#[test]
fn variables_stand_in_any_string() {
    let job = job();
    job.ends(PIPELINE, &["--var", "day=2026-01-02", "--var", "kind=majority_vote"], 0);
    assert_eq!(read_table(&files_of(&job.path("out/runs/2026-01-02")), "labels").len(), 1);
}

#[test]
fn every_variable_without_a_value_is_named_with_its_key() {
    let error = job().ends(PIPELINE, &["--var", "days=1"], 2);
    assert_says(
        &error,
        &[
            "no value for the variable `day`",
            "pipeline.toml: source.annotations",
            "did you mean `days`?",
            "no value for the variable `kind`",
            "pipeline.toml: model.kind",
            "pass --var kind=...",
        ],
    );
}

#[test]
fn settings_beat_the_file_and_make_sections() {
    let job = job();
    let arguments = [
        "--var",
        "day=2026-01-02",
        "--var",
        "kind=nothing",
        "--set",
        "model.kind=majority_vote",
        "--set",
        "frame.classes=[\"yes\", \"no\"]",
        "--set",
        "decide.ties=abstain",
    ];
    job.ends(PIPELINE, &arguments, 0);
    let run = job.path("out/latest");
    assert_eq!(cells(&read_table(&run, "classes"), &["class"]), ["yes", "no"]);
    assert_eq!(cells(&read_table(&run, "labels"), &["label", "decision"]), [" abstained"]);
}

#[test]
fn a_setting_that_does_not_fit_is_a_spec_error_like_any_other() {
    let arguments =
        ["--var", "day=d", "--var", "kind=dawid_skene", "--set", "model.stop.max_iter=0"];
    let error = job().ends(PIPELINE, &arguments, 2);
    assert_says(&error, &["model.stop.max_iter", "at least 1", "found: 0"]);
}

#[test]
fn an_unknown_model_names_the_nearest() {
    let error = job().ends(PIPELINE, &["--var", "day=d", "--var", "kind=dawid_skeene"], 2);
    assert_says(&error, &["`dawid_skeene`", "model.kind", "did you mean `dawid_skene`?"]);
}

#[test]
fn an_assignment_without_a_value_is_refused() {
    let error = job().ends(PIPELINE, &["--set", "seed"], 2);
    assert_says(&error, &["a setting needs a value", "--set", "`seed`"]);
    let error = job().ends(PIPELINE, &["--var", "day"], 2);
    assert_says(&error, &["a variable needs a value", "--var", "`day`"]);
}

#[test]
fn a_variable_that_is_never_closed_is_named() {
    let job = Job::new();
    let error =
        job.fails("source.annotations = 'e/${oops/a.csv'\nmodel.kind = 'majority_vote'\n", 2);
    assert_says(&error, &["a variable is never closed", "source.annotations", "`${oops/a.csv`"]);
    for secret in ["https://me${x:hunter2@h/a.csv", "https://${x:hunter2@h/${day}/a.csv"] {
        let error = job
            .fails(&format!("source.annotations = '{secret}'\nmodel.kind = 'majority_vote'\n"), 2);
        assert_says(&error, &["a variable is never closed", "`https://***`"]);
        assert!(!error.contains("hunter2"), "{error}");
    }
}
