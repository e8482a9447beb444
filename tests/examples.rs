//! `[[test]]` blocks with features, and what a block that fails shows.

use crate::job::{Job, assert_says};
use crate::support::{run_fails, run_ok, stderr};

const HEAD: &str =
    "source.annotations = 'not-read.parquet'\nsource.features = 'not-read.parquet'\n";

const VOTES: &str =
    "[['i1', 'a', 'yes'], ['i1', 'b', 'yes'], ['i2', 'a', 'yes'], ['i2', 'b', 'yes'],
    ['i3', 'a', 'no'], ['i3', 'b', 'no'], ['i4', 'a', 'no'], ['i4', 'b', 'no']]";

const FEATURES: &str =
    "[['i1', 1.0, 3], ['i2', 2.0, 1], ['i3', -1.0, 2], ['i4', -2.0, 2], ['i5', 1.5, 2]]";

/// A pipeline with a model that learns from features, and one block.
fn pipeline(features: &str) -> String {
    format!(
        "{HEAD}model.kind = 'gem'\n[[test]]\ngiven.annotations = {VOTES}\n{features}
         expect.labels = [{{ instance_id = 'i1', label = 'yes' }}, {{ instance_id = 'i4', label = 'no' }}]
         expect.predictions = [{{ instance_id = 'i5', class = 'yes' }}]\n"
    )
}

// keys: test
#[test]
fn a_test_gives_the_features_that_the_model_learns_from() {
    let job = Job::new();
    let file = job.write("pipeline.toml", &pipeline(&format!("given.features = {FEATURES}")));
    assert_says(&stderr(&run_ok(&["test", &file])), &["1 passed, 0 failed"]);
    let file = job.write("pipeline.toml", &pipeline(""));
    for command in ["check", "test"] {
        let parts =
            ["`gem` learns from features, and the test gives none", "test[0].given.features"];
        assert_says(&run_fails(&[command, &file], 2), &parts);
    }
    for (features, location) in [
        ("[['i1', 'red']]", "test[0].given.features[0]"),
        ("[['i1', 1.0], ['i2', 1.0, 2.0]]", "test[0].given.features[1]"),
        ("[['i1', 1.0], [2, 1.0]]", "test[0].given.features[1]"),
        ("[['i1'], ['i2']]", "test[0].given.features[0]"),
    ] {
        let file = job.write("pipeline.toml", &pipeline(&format!("given.features = {features}")));
        assert_says(&run_fails(&["test", &file], 2), &[&format!("where: {location}\n")]);
    }
}

/// Features of annotators are read where their ids are those of the annotations.
// keys: test
#[test]
fn a_test_gives_the_features_of_annotators() {
    let job = Job::new();
    let given = |annotators: &str| {
        let features = format!("given.features = {FEATURES}");
        pipeline(&format!("{features}\ngiven.annotator_features = {annotators}"))
    };
    let file = job.write("pipeline.toml", &given("[['a', 1], ['b', 2]]"));
    run_ok(&["test", &file]);
    let file = job.write("pipeline.toml", &given("[[1, 1], [2, 2]]"));
    let error = run_fails(&["test", &file], 3);
    assert_says(&error, &["where: test[0].given.annotator_features\n"]);
}

/// The rows of a job may stand in its file, as those of its annotations.
// keys: source.features
#[test]
fn the_features_of_a_job_may_stand_in_its_file() {
    let job = Job::new();
    let source = format!("source.annotations = {VOTES}\nsource.features = {FEATURES}\n");
    job.run(&format!("{source}model.kind = 'gem'"));
}

// keys: test
#[test]
fn a_test_that_fails_shows_the_rows_that_are_most_like_the_missing_one() {
    let job = Job::new();
    let printed = |expect: &str| {
        let head = "source.annotations = 'not-read.parquet'\nmodel.kind = 'majority_vote'\n";
        let frame = "frame.classes = ['yes', 'no']\n";
        let given = format!("given.annotations = {}, ['i4', 'c', 'z']]", &VOTES[..VOTES.len() - 1]);
        let test = format!("{head}{frame}[[test]]\n{given}\n{expect}");
        run_fails(&["test", &job.write("pipeline.toml", &test)], 6)
    };
    // The row of the instance, though others have more of the values.
    let error =
        printed("expect.labels = [{ instance_id = 'i4', label = 'yes', n_annotations = 9 }]");
    assert_says(&error, &["\n          found: instance_id = i4, label = no, n_annotations = 2\n"]);
    assert_eq!(error.matches("found: ").count(), 1, "{error}");
    let error = printed("expect.labels = [{ instance_id = 'i9', decision = 'decided' }]");
    assert_eq!(error.matches("found: ").count(), 3, "{error}");
    let error = printed("expect.annotators = [{ annotator_id = 'a', skill_low = 0.5 }]");
    assert_says(&error, &["found: annotator_id = a, skill_low = null, which no test can expect"]);
    let error = printed("expect.run = [{ rows_read = 0 }]");
    assert_says(&error, &["found: rows_read = 9\n"]);
    // A list is expected as text.
    let error = printed("expect.rejects = [{ count = 1, values = '[x]' }]");
    assert_says(&error, &["found: count = 1, values = [z]\n"]);
}

// keys: test
#[test]
fn a_test_expects_the_facts_about_its_fit_and_none_about_a_published_run() {
    let job = Job::new();
    let file = |expect: &str| {
        let head = "source.annotations = 'not-read.parquet'\nseed = 7\nmodel.kind = 'one_coin'\n";
        let test = format!("[[test]]\ngiven.annotations = {VOTES}\nexpect.run = [{{ {expect} }}]");
        job.write("pipeline.toml", &format!("{head}{test}"))
    };
    let facts = "seed = 7, rows_read = 8, rows_used = 8, rows_rejected = 0, converged = true";
    let facts = format!("{facts}, device = 'cpu', warnings = '[]'");
    assert_says(&stderr(&run_ok(&["test", &file(&facts)])), &["1 passed, 0 failed"]);
    for expect in ["rows_read = 0", "rows_used = 0", "converged = false", "device = ''"] {
        run_fails(&["test", &file(expect)], 6);
    }
    for column in
        ["run_id", "spec", "inputs", "seconds_reading", "seconds_fitting", "peak_memory_bytes"]
    {
        for command in ["check", "test"] {
            let error = run_fails(&[command, &file(&format!("{column} = 0, converged = true"))], 2);
            let location = format!("test[0].expect.run[0].{column}\n");
            assert_says(&error, &[&format!("a test has no `{column}`"), &location]);
        }
    }
}
