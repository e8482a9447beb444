//! The command line as a user meets it: texts, exit codes, no-ops, JSON.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::job::{Job, assert_says};
use crate::support::{files_of, labelmill, read_table, run, run_fails, run_ok, stderr, stdout};

const QUICKSTART: &str = "pipelines/quickstart.toml";

fn quickstart(job: &Job, arguments: &[&str]) -> std::process::Output {
    let sink = format!("sink.url={}", job.url("out"));
    let mut command = labelmill();
    command.args(["run", QUICKSTART, "--set", &sink]).args(arguments).output().unwrap()
}

fn json(output: &std::process::Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|e| panic!("{e}\n{}", stderr(output)))
}

#[test]
fn the_same_job_twice_is_a_no_op_and_force_runs_it_beside_the_first() {
    let job = Job::new();
    let first = json(&quickstart(&job, &["--json"]));
    assert_eq!(first["no_op"], false);
    assert_eq!(first["rows"], serde_json::json!({"read": 315, "used": 315, "rejected": 0}));
    assert_eq!(first["labels"]["decided"], 45);
    let again = quickstart(&job, &[]);
    assert_says(&stderr(&again), &["nothing to do", first["run_id"].as_str().unwrap(), "--force"]);
    let forced = json(&quickstart(&job, &["--json", "--force"]));
    assert_eq!(forced["run_id"], format!("{}-2", first["run_id"].as_str().unwrap()));
    assert_eq!(forced["digest"], first["digest"]);
    let latest = std::fs::read_link(job.path("out/latest")).unwrap();
    assert_eq!(latest.parent(), Some(&*Path::new("runs").join(forced["run_id"].as_str().unwrap())));
    let folder =
        |run: &Value| files_of(&job.path("out/runs").join(run["run_id"].as_str().unwrap()));
    assert_eq!(read_table(&folder(&first), "labels"), read_table(&folder(&forced), "labels"));
}

// keys: sink.run_id
#[test]
fn a_run_id_of_another_job_is_refused() {
    let job = Job::new();
    assert!(quickstart(&job, &["--set", "sink.run_id=day1"]).status.success());
    let other = quickstart(&job, &["--set", "sink.run_id=day1", "--set", "model.smoothing=0.1"]);
    assert_eq!(other.status.code(), Some(2));
    assert_says(&stderr(&other), &["belongs to another job", "sink.run_id", "--force"]);
}

#[test]
fn a_query_that_is_missing_and_a_file_of_another_encoding_are_asked_for_as_they_can_be_read() {
    let error = run_fails(&["sql"], 2);
    assert_says(&error, &["there is no query", "give one with -c, or a file"]);
    let job = Job::new();
    let file = job.write("pipeline.toml", "");
    std::fs::write(&file, b"# caf\xe9\n").unwrap();
    assert_says(&run_fails(&["check", &file], 2), &["valid UTF-8", "write the file in UTF-8"]);
}

#[test]
fn every_mistake_of_a_file_is_reported_at_once() {
    let job = Job::new();
    let error = job.fails(
        "sed = 1
         [source]
         anotations = 'x.csv'
         [frame]
         duplicates = 'shared'
         [model]
         kind = 'dawid_skene'
         smoothing = 'much'
         stop = { max_iter = 0, tolerance = 1.0 }
         [engine]
         memory_limit = 3",
        2,
    );
    insta::with_settings!({ filters => vec![(r"(?m)/\S+pipeline\.toml", "pipeline.toml")] }, {
        insta::assert_snapshot!("spec_errors", error);
    });
}

#[test]
fn usage_errors_end_with_code_2() {
    assert_says(&run_fails(&["rum"], 2), &["rum"]);
    assert_says(&run_fails(&["run", "no/such.toml"], 2), &["no/such.toml"]);
    assert_says(&run_fails(&["models", "dawidskene"], 2), &["did you mean `dawid_skene`?"]);
    assert_says(&run_fails(&["run", QUICKSTART, "--set", "model"], 2), &["--set", "needs a value"]);
}

#[test]
fn help_and_models_read_as_approved() {
    insta::assert_snapshot!("help", stdout(&run_ok(&["--help"])));
    for command in [
        "run",
        "aggregate",
        "predict",
        "simulate",
        "check",
        "explain",
        "models",
        "schema",
        "sql",
        "evaluate",
        "agreement",
        "test",
    ] {
        insta::assert_snapshot!(format!("help_{command}"), stdout(&run_ok(&[command, "--help"])));
    }
    insta::assert_snapshot!("models", stdout(&run_ok(&["models"])));
    insta::assert_snapshot!("models_dawid_skene", stdout(&run_ok(&["models", "dawid_skene"])));
    let models: Value = json(&run_ok(&["models", "--json"]));
    let dawid_skene = models.as_array().unwrap().iter().find(|m| m["kind"] == "dawid_skene");
    assert_eq!(dawid_skene.unwrap()["defaults"]["stop"]["max_iter"], 100);
}

#[test]
fn explain_reads_as_approved_and_writes_nothing() {
    let job = Job::new();
    let sink = format!("sink.url={}", job.url("out"));
    let text = stdout(&run_ok(&["explain", QUICKSTART, "--set", &sink]));
    assert!(!job.path("out").exists());
    let filters = vec![(r"/\S+/out", "OUT"), (r"runs/[0-9a-f]{16}", "runs/ID")];
    insta::with_settings!({ filters => filters }, { insta::assert_snapshot!("explain", text) });
}

#[test]
fn the_committed_schema_is_the_one_that_is_printed() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pipelines/schema.json");
    let printed = stdout(&run_ok(&["schema"]));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == printed, "`UPDATE=1 cargo test` rewrites {}", path.display());
}

#[test]
fn every_pipeline_file_of_ours_passes_its_own_tests() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pipelines");
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut tested = 0;
    for file in files.filter(|f| f.extension().is_some_and(|e| e == "toml")) {
        let output = run_ok(&["test", file.to_str().unwrap()]);
        let told = stderr(&output);
        let last = told.lines().last().unwrap_or_default();
        assert!(last.ends_with(" passed, 0 failed") && !last.starts_with("0 "), "{told}");
        tested += 1;
    }
    assert!(tested > 0);
}

// keys: test
#[test]
fn a_test_that_fails_says_which_row_is_missing_and_ends_with_code_6() {
    let job = Job::new();
    let file = job.write(
        "pipeline.toml",
        "source.annotations = 'not-read.parquet'\nmodel.kind = 'majority_vote'
         [[test]]
         name = 'wishful'
         given.annotations = [['i', 'a', 'yes']]
         given.gold = [['I', 'yes', 'holdout'], ['i', 'yes', 'holdout']]
         expect.labels = [{ instance_id = 'i', label = 'no' }]",
    );
    let error = run_fails(&["test", &file], 6);
    let warning = "warning: 1 of 2 instances of gold is not in the annotations: `I`";
    assert_says(&error, &[warning]);
    assert_says(
        &error,
        &["FAILED", "wishful", "instance_id = i, label = no", "0 passed, 1 failed"],
    );
}

// keys: test
#[test]
fn every_test_runs_and_one_that_ends_with_an_error_is_named() {
    let job = Job::new();
    let block = |name: &str, label: &str, expect: &str| {
        format!(
            "[[test]]\nname = '{name}'\ngiven.annotations = [['i', 'a', '{label}']]\n{expect}\n"
        )
    };
    let head = "source.annotations = 'not-read.parquet'\nmodel.kind = 'majority_vote'\nframe.classes = ['x', 'y']\n";
    let broken = block("broken", "z", "expect.labels = [{ label = 'x' }]");
    let mixed = "given.annotations = [['i', 'a', 'x'], ['j', 'a', 1]]";
    let mixed = format!("[[test]]\nname = 'mixed'\n{mixed}\nexpect.labels = [{{ label = 'x' }}]\n");
    let wrong = block("wrong", "x", "expect.labels = [{ label = 'y' }]");
    let right = block("right", "x", "expect.labels = [{ label = 'x' }]");
    let ends = |blocks: &[&String], code: i32| {
        let blocks: String = blocks.iter().map(|block| block.as_str()).collect();
        let file = job.write("pipeline.toml", &format!("{head}{blocks}"));
        run_fails(&["test", &file], code)
    };
    let printed = ends(&[&broken, &mixed, &right, &wrong], 6);
    assert_says(
        &printed,
        &[
            "FAILED  broken\n        error: ",
            "FAILED  mixed\n        error: the values of a column must have one type\n          where: test[1].given.annotations[1]\n          \
             found: `1` in the column `label` among texts",
            "ok      right",
            "FAILED  wrong\n        labels: no row has label = y\n          found: label = x\n",
            "1 passed, 3 failed",
        ],
    );
    // Without a row that is missing, the code is that of the first error: of data, then of the spec.
    ends(&[&right, &broken, &mixed], 3);
    ends(&[&mixed, &broken], 2);
    // The warning shows why the row is missing.
    let rejected = "given.annotations = [['i', 'a', 'x'], ['j', 'a', 'z'], ['k', 'a', 'z']]";
    let rejected =
        format!("[[test]]\n{rejected}\nexpect.labels = [{{ instance_id = 'j', label = 'x' }}]\n");
    let printed = ends(&[&rejected], 6);
    assert_says(&printed, &["warning: 2 of 3 rows are rejected as `unknown_class`"]);
}

// keys: test
#[test]
fn a_test_that_expects_nothing_is_refused() {
    for (expect, what, key) in [
        ("", "expects no row", "test[0].expect"),
        ("expect.labels = []", "expects no row", "test[0].expect.labels"),
        ("expect.labels = [{}]", "expects a row without cells", "test[0].expect.labels[0]"),
    ] {
        let job = Job::new();
        let file = job.write(
            "pipeline.toml",
            &format!(
                "source.annotations = 'not-read.parquet'\nmodel.kind = 'majority_vote'\n[[test]]\n\
                 given.annotations = [['i', 'a', 'yes']]\n{expect}"
            ),
        );
        let error = run_fails(&["test", &file], 2);
        assert_says(&error, &[what, key, "help: list rows"]);
        run_fails(&["check", &file], 2);
    }
}

// keys: test
#[test]
fn a_test_of_a_table_or_a_column_that_no_run_writes_is_refused_before_a_fit() {
    let pipeline = |expect: &str| {
        let test = format!("given.annotations = [['i', 'a', 'yes']]\n{expect}");
        format!(
            "source.annotations = 'not-read.parquet'\nmodel.kind = 'majority_vote'\n[[test]]\n{test}"
        )
    };
    let job = Job::new();
    let file = job.write(
        "pipeline.toml",
        &pipeline(
            "expect.label = [{ label = 'yes' }]
             expect.labels = [{ label = 'yes' }, { labl = 'yes', question = 'q' }]
             expect.run = [{ question = 'q' }]",
        ),
    );
    for command in ["test", "check"] {
        let error = run_fails(&[command, &file], 2);
        assert_eq!(error.matches("error: ").count(), 3, "{error}");
        assert_says(&error, &["there is no table `label`", "test[0].expect.label\n"]);
        assert_says(&error, &["`labels` has no column `labl`", "test[0].expect.labels[1]"]);
        assert_says(&error, &["did you mean `label`?", "`run` has no column `question`"]);
    }
}

#[test]
fn check_reads_schemas_and_no_rows() {
    let job = Job::new();
    // Two rows, because the statistics alone give the values of a column that has only one.
    let published = job.run(
        "source.annotations = [['i', 'a', 'yes'], ['j', 'a', 'no']]\nmodel.kind = 'majority_vote'",
    );
    let mut bytes = std::fs::read(published.join("labels/part-00000.parquet")).unwrap();
    // The data pages come first, so the footer stays intact.
    bytes[4..40].fill(0xff);
    std::fs::write(job.path("damaged.parquet"), bytes).unwrap();
    let pipeline =
        "source.annotations = '{dir}damaged.parquet'\nsource.columns.annotator = 'decision'
                    model.kind = 'majority_vote'";
    let file = job.write("pipeline.toml", pipeline);
    run_ok(&["check", &file]);
    assert_says(&job.ends(pipeline, &[], 3), &["error: "]);
    let file = job.write("pipeline.toml", "source.annotations = '{dir}damaged.parquet'");
    assert_says(
        &run_fails(&["check", &file], 3),
        &["`annotator_id` is missing", "source.columns.annotator"],
    );
}

#[test]
fn sql_runs_over_a_run_and_any_other_table() {
    let job = Job::new();
    quickstart(&job, &[]);
    let other = job.write("names.csv", "observer,name\n1,Ann\n2,Bob\n");
    let query = "select name, n_annotations from annotators join names on annotator_id = observer order by name";
    let (run, table) = (job.url("out"), format!("names={other}"));
    let arguments = ["sql", "--run", &run, "--table", &table, "--json"];
    let output = run_ok(&[&arguments[..], &["-c", query]].concat());
    let rows =
        "{\"name\":\"Ann\",\"n_annotations\":135}\n{\"name\":\"Bob\",\"n_annotations\":45}\n";
    assert_eq!(stdout(&output), rows);
    let file = job.write("query.sql", query);
    assert_eq!(stdout(&run_ok(&[&arguments[..], &[&file]].concat())), rows);
    assert_says(&run_fails(&["sql", "-c", "select nothing from nowhere"], 2), &["nowhere"]);
    assert_says(
        &run_fails(&["sql", "--run", &job.url(""), "-c", "select 1"], 3),
        &["no committed run"],
    );
}

#[test]
fn every_table_of_sql_has_a_name_of_its_own() {
    let job = Job::new();
    quickstart(&job, &[]);
    let (run, file) = (job.url("out"), job.write("t.csv", "x\n1\n"));
    for (names, what) in [
        (["a", "a"], "the table name `a` is taken"),
        (["a", "A"], "the table name `A` is taken"),
        (["b", "Labels"], "the table name `Labels` is taken"),
        (["b", "main.a"], "the table name `main.a` holds a dot"),
        (["b", ""], "a table has an empty name"),
    ] {
        let [first, second] = names.map(|name| format!("{name}={file}"));
        let tables = ["--table", first.as_str(), "--table", &second, "-c", "select 1"];
        let error = run_fails(&[&["sql", "--run", &run][..], &tables].concat(), 2);
        assert_says(&error, &[what, &format!("where: --table {}\n", names[1]), "help: choose"]);
    }
    let missing = job.url("no.csv");
    let error = run_fails(&["sql", "--table", &format!("t={missing}"), "-c", "select 1"], 8);
    assert_says(&error, &["there is no such file", &format!("where: --table t {missing}\n")]);
}

#[test]
fn evaluate_gives_the_scores_worked_out_by_hand() {
    let job = Job::new();
    job.run(
        "source.annotations = [['1', 'a', 'y'], ['1', 'b', 'y'], ['2', 'a', 'n'], ['2', 'b', 'y'],
            ['3', 'a', 'n'], ['3', 'b', 'n']]
         model.kind = 'majority_vote'",
    );
    let truth = job.write("truth.csv", "id,truth\n1,y\n2,y\n3,y\n9,n\n");
    let (out, columns) = (job.url("out"), ["--instance-column", "id", "--class-column", "truth"]);
    let arguments = ["evaluate", "--run", &out, "--truth", &truth, "--json"];
    let scores = json(&run_ok(&[&arguments[..], &columns[..]].concat()));
    let score = |name: &str| scores[name].as_f64();
    // The labels are y, n (a tie: the lowest class) and n; the true class of all is y. The run has no instance 9.
    assert_eq!(score("instances"), Some(3.0));
    assert!((score("accuracy").unwrap() - 1.0 / 3.0).abs() < 1e-12);
    assert!((score("accuracy_expected_ties").unwrap() - 0.5).abs() < 1e-12);
    // F1 of y: one hit, one label y, three instances of y: 2 * 1 / (1 + 3). F1 of n: no hit, 0.
    assert!((score("macro_f1").unwrap() - 0.25).abs() < 1e-12);
    assert_eq!(score("auc"), None);
    let nothing = job.write("other.csv", "id,truth\n77,y\n");
    let arguments = ["evaluate", "--run", &out, "--truth", &nothing];
    assert_says(
        &run_fails(&[&arguments[..], &columns[..]].concat(), 3),
        &["no instance in common"],
    );
}

/// There are 21 questions, and the summary shows 20. Question `q00` alone is answered wrong.
#[test]
fn the_summary_shows_accuracies_below_their_questions() {
    let job = Job::new();
    let (mut rows, mut gold) = (String::new(), String::new());
    for q in 0..21 {
        let class = if q == 0 { "no" } else { "yes" };
        rows += &format!("i,a,yes,q{q:02}\ni,b,yes,q{q:02}\n");
        gold += &format!("i,{class},holdout,q{q:02}\n");
    }
    job.write("in.csv", &format!("instance_id,annotator_id,label,question\n{rows}"));
    job.write("gold.csv", &format!("instance_id,class,role,question\n{gold}"));
    let pipeline = "source = { annotations = '{dir}in.csv', gold = '{dir}gold.csv' }
         model.kind = 'majority_vote'";
    let printed = job.ends(pipeline, &[], 0);
    let is_told = |line: &&str| line.starts_with("question") || line.starts_with("accuracy");
    let told: Vec<&str> = printed.lines().filter(is_told).collect();
    let wanted = (0..20).flat_map(|q| {
        let accuracy = if q == 0 { "0.0000" } else { "1.0000" };
        [format!("question    q{q:02}"), format!("accuracy    {accuracy} on holdout gold")]
    });
    let last = "questions   1 more: see the tables".to_owned();
    assert_eq!(told, wanted.chain([last]).collect::<Vec<_>>(), "{printed}");
}

#[test]
fn quiet_says_nothing() {
    assert_eq!(stderr(&quickstart(&Job::new(), &["-q"])), "");
    assert!(run(&["--version"]).status.success());
}
