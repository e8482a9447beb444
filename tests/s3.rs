//! Jobs from S3 to S3 through the real binary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use labelmill::testing::synth::CrowdShape;
use serde_json::Value;

use crate::s3_server::{BUCKET, Server};
use crate::support::{
    Row, files_of, read_table, run_ok, stderr, stdout, table_files, text, write_crowd,
    write_numbers,
};

const ROWS: &[(&str, &str, &str)] = &[
    ("i1", "a1", "yes"),
    ("i1", "a2", "yes"),
    ("i1", "a3", "no"),
    ("i2", "a1", "no"),
    ("i2", "a2", "no"),
    ("i2", "a3", "no"),
    ("i3", "a1", "yes"),
    ("i3", "a3", "yes"),
    ("i4", "a2", "no"),
    ("i4", "a3", "yes"),
];

/// A server with a small crowd at s3://crowd/in/.
pub fn server() -> Server {
    let server = Server::start();
    write_crowd(&server.bucket().join("in/part-0.parquet"), ROWS);
    server
}

/// The job from s3://crowd/in to s3://crowd/out, with more arguments.
pub fn job<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "aggregate",
        "--annotations",
        "s3://crowd/in",
        "--model",
        "dawid_skene",
        "--output",
        "s3://crowd/out",
    ];
    fixed.iter().chain(more).copied().collect()
}

/// Runs the job, which must end well, and returns its summary.
pub fn summary(server: &Server, more: &[&str]) -> Value {
    let args: Vec<&str> = job(more).into_iter().chain(["--json"]).collect();
    serde_json::from_str(&stdout(&server.run_ok(&args))).unwrap()
}

pub fn run_id(summary: &Value) -> String {
    summary["run_id"].as_str().unwrap().to_owned()
}

/// The folder with the files of a run.
pub fn run_folder(server: &Server, summary: &Value) -> PathBuf {
    files_of(&server.bucket().join("out/runs").join(run_id(summary)))
}

/// The leases of all writers, running or dead.
pub fn leases(server: &Server) -> Vec<PathBuf> {
    let leases = std::fs::read_dir(server.bucket().join("out/_leases")).into_iter().flatten();
    leases.map(|e| e.unwrap().path()).collect()
}

pub fn latest(server: &Server) -> String {
    let text = std::fs::read(server.bucket().join("out/latest.json")).unwrap();
    run_id(&serde_json::from_slice(&text).unwrap())
}

/// Asserts that the same job from the same files on local disk writes the same bytes as the job on S3.
pub fn assert_equals_local_run(server: &Server, summary: &Value, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (server.bucket().join("in"), folder.path().display().to_string());
    let input = input.display().to_string();
    let fixed =
        ["aggregate", "--annotations", &input, "--model", "dawid_skene", "--output", &output];
    run_ok(&fixed.iter().chain(more).copied().collect::<Vec<_>>());
    assert_same_files(&run_folder(server, summary), &folder.path().join("latest"));
}

/// Asserts that every table but `run` has the same bytes. Of `trace`, which holds wall times, it compares the other
/// columns.
pub fn assert_same_files(got: &Path, want: &Path) {
    let steps = |run: &Path| -> Vec<Row> {
        let mut rows = read_table(run, "trace");
        rows.iter_mut().for_each(|row| row.insert("seconds".to_owned(), None).map_or((), drop));
        rows
    };
    assert_eq!(steps(got), steps(want));
    let timeless = |run: &Path| -> BTreeMap<String, Vec<u8>> {
        table_files(run).into_iter().filter(|(name, _)| !name.starts_with("trace/")).collect()
    };
    let (got, want) = (timeless(got), timeless(want));
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    assert!(want.len() >= 7, "{:?}", want.keys());
    for (name, bytes) in &want {
        assert!(got[name] == *bytes, "{name} differs");
    }
}

#[test]
fn a_job_on_s3_gives_the_bytes_of_the_local_job() {
    let server = server();
    let done = summary(&server, &[]);
    assert_eq!(done["url"], format!("s3://crowd/out/runs/{}", run_id(&done)));
    assert_equals_local_run(&server, &done, &[]);
    assert_eq!(latest(&server), run_id(&done));
    assert_eq!(leases(&server), Vec::<PathBuf>::new());
}

// keys: source.annotations, sink.url
#[test]
fn a_pipeline_file_runs_from_s3_to_s3_whether_or_not_a_folder_ends_in_a_slash() {
    let server = server();
    std::fs::create_dir_all(server.bucket().join("in")).unwrap();
    for (n, input) in [
        "s3://crowd/in",
        "s3://crowd/in/",
        "s3://crowd/in/part-*.parquet",
        "s3://crowd/in/part-0.parquet",
    ]
    .iter()
    .enumerate()
    {
        let source = format!("source.annotations={input}");
        let columns = "source.columns={ instance = \"instance_id\", annotator = \"annotator_id\", label = \"label\" }";
        let sink = format!("sink.url=s3://crowd/piped-{n}{}", if n % 2 == 0 { "/" } else { "" });
        let sets = [
            "--set",
            &source,
            "--set",
            columns,
            "--set",
            &sink,
            "--set",
            "frame.classes=[\"no\", \"yes\"]",
        ];
        let args: Vec<&str> =
            ["run", "pipelines/quickstart.toml", "--json"].iter().chain(&sets).copied().collect();
        let done: Value = serde_json::from_str(&stdout(&server.run_ok(&args))).unwrap();
        let folder = files_of(&server.bucket().join(format!("piped-{n}/runs/{}", run_id(&done))));
        assert_eq!(read_table(&folder, "labels").len(), 4, "{input}");
    }
}

#[test]
fn a_folder_of_more_than_a_thousand_keys_is_read_whole() {
    let server = Server::start();
    for n in 0..1_100 {
        let path = server.bucket().join(format!("in/day-{n:04}.csv"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("instance_id,annotator_id,label\ni{n},a1,yes\ni{n},a2,no\n"))
            .unwrap();
    }
    let done = summary(&server, &[]);
    assert!(server.count("ListObjectsV2 continuation-token") > 0, "one page held all");
    assert_eq!(done["rows"]["read"], 2_200);
    let mut ids: Vec<String> = read_table(&run_folder(&server, &done), "labels")
        .iter()
        .map(|r| text(r, "instance_id"))
        .collect();
    let mut want: Vec<String> = (0..1_100).map(|n| format!("i{n}")).collect();
    ids.sort();
    want.sort();
    assert_eq!(ids, want);
}

#[test]
fn a_large_part_is_uploaded_in_pieces_and_reads_back() {
    let server = Server::start();
    let crowd =
        CrowdShape { instances: 10_000, classes: 90, redundancy: 2, ..CrowdShape::default() };
    write_numbers(&server.bucket().join("in/crowd.parquet"), &crowd.draw(1).rows);
    let more = ["--set", "sink.compression=none", "--set", "model.stop.max_iter=2"];
    let done = summary(&server, &more);
    let part = &done["tables"]["posteriors"][0];
    assert!(part["bytes"].as_u64().unwrap() > 8 << 20, "{part}");
    assert_eq!(server.count("CreateMultipartUpload posteriors/"), 1);
    assert!(server.count("UploadPart posteriors/") > 1);
    assert_eq!(server.count("CompleteMultipartUpload posteriors/"), 1);
    assert_equals_local_run(&server, &done, &more);
}

#[test]
fn a_missing_bucket_or_key_is_named() {
    let server = server();
    let inputs = [
        ("s3://crowd/nothing-here", 3),
        ("s3://crowd/in/part-9.parquet", 3),
        ("s3://no-such-bucket/in/", 5),
    ];
    for (url, code) in inputs {
        let args = [
            "aggregate",
            "--annotations",
            url,
            "--model",
            "majority_vote",
            "--output",
            "s3://crowd/out",
        ];
        let output = server.run(&args);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(url), "{}", stderr(&output));
        assert!(stderr(&output).contains("help:"), "{}", stderr(&output));
    }
    let output = server.run(&[
        "aggregate",
        "--annotations",
        "s3://crowd/in",
        "--model",
        "majority_vote",
        "--output",
        "s3://no-such-bucket/out",
    ]);
    assert!([Some(3), Some(5)].contains(&output.status.code()), "{}", stderr(&output));
    assert!(stderr(&output).contains("sink.url"), "{}", stderr(&output));
    assert!(stderr(&output).contains("no-such-bucket"), "{}", stderr(&output));
}

#[test]
fn the_same_job_is_done_once_and_force_publishes_beside_it() {
    let server = server();
    let first = summary(&server, &[]);
    server.forget_requests();
    let again = summary(&server, &[]);
    assert_eq!((run_id(&again), &again["no_op"]), (run_id(&first), &Value::Bool(true)));
    assert_eq!(server.count("PutObject"), 0);
    let forced = summary(&server, &["--force"]);
    assert_eq!(run_id(&forced), format!("{}-2", run_id(&first)));
    assert_eq!(latest(&server), run_id(&forced));
    assert_same_files(&run_folder(&server, &forced), &run_folder(&server, &first));
    // The first job again has still nothing to do, does not move `latest` back, and names the run that `latest` names.
    let again = summary(&server, &[]);
    assert_eq!((&again["no_op"], &again["latest"]), (&Value::Bool(true), &forced["run_id"]));
    assert_eq!(latest(&server), run_id(&forced));
}

#[test]
fn sql_and_evaluate_read_a_run_from_s3() {
    let server = server();
    let done = summary(&server, &[]);
    let truth = server.bucket().join("truth/gold.csv");
    std::fs::create_dir_all(truth.parent().unwrap()).unwrap();
    std::fs::write(truth, "instance_id,class\ni1,yes\ni2,no\ni3,no\n").unwrap();
    let folder = format!("s3://{BUCKET}/out/runs/{}", run_id(&done));
    for run in ["s3://crowd/out", "s3://crowd/out/", &folder] {
        let query = "select instance_id, label from labels where instance_id < 'i4' order by 1";
        let answer = server.run_ok(&["sql", "--json", "--run", run, "-c", query]);
        let rows: Vec<Value> =
            stdout(&answer).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let labels: Vec<&str> = rows.iter().map(|r| r["label"].as_str().unwrap()).collect();
        assert_eq!(labels, ["yes", "no", "yes"], "{run}");
        let answer =
            server.run_ok(&["evaluate", "--json", "--run", run, "--truth", "s3://crowd/truth"]);
        let scores: Vec<Value> = serde_json::from_str(&stdout(&answer)).unwrap();
        let accuracy = scores.iter().find(|s| s["name"] == "accuracy").unwrap();
        assert!((accuracy["value"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-12, "{accuracy}");
    }
}

#[test]
fn folders_below_a_folder_are_read_and_marker_files_are_not() {
    let server = Server::start();
    let files =
        ["2026-01/a.parquet", "2026-02/b.parquet", "_temporary/0/c.parquet", "2026-02/_d.parquet"];
    for (n, file) in files.iter().enumerate() {
        let instance = format!("i{n}");
        write_crowd(&server.bucket().join("in").join(file), &[(&instance, "a1", "yes")]);
    }
    std::fs::write(server.bucket().join("in/_SUCCESS"), "").unwrap();
    for url in ["s3://crowd/in", "s3://crowd/in/", "s3://crowd/in/2026-*/*.parquet"] {
        let args = [
            "aggregate",
            "--annotations",
            url,
            "--model",
            "majority_vote",
            "--output",
            "s3://crowd/out",
            "--force",
            "--json",
        ];
        let done: Value = serde_json::from_str(&stdout(&server.run_ok(&args))).unwrap();
        let labels = read_table(&run_folder(&server, &done), "labels");
        let ids: Vec<String> = labels.iter().map(|r| text(r, "instance_id")).collect();
        assert_eq!(ids, ["i0", "i1"], "{url}");
    }
}

#[test]
fn a_crowd_on_s3_is_read_by_its_tables_names() {
    let server = Server::start();
    let recipe = ["--recipe", "conal-synthetic", "--set", "instances=40", "--set", "annotated=1"];
    let output = ["simulate", "--output", "s3://crowd/made"];
    server.run_ok(&[&output[..], &recipe[..]].concat());
    let job = [
        "aggregate",
        "--annotations",
        "s3://crowd/made/annotations",
        "--model",
        "majority_vote",
        "--output",
        "s3://crowd/out",
    ];
    server.run_ok(&job);
    let truth = "s3://crowd/made/truth";
    server.run_ok(&["evaluate", "--run", "s3://crowd/out", "--truth", truth]);
}
