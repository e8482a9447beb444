//! Jobs from S3 to S3 through the real binary.

use std::path::PathBuf;

use labelmill::testing::synth::CrowdShape;
use serde_json::Value;

use crate::s3_job::{
    assert_equals_local_run, assert_same_files, latest, leases, run_folder, run_id, server, summary,
};
use crate::s3_server::{BUCKET, Server};
use crate::support::{files_of, read_table, stderr, stdout, text, write_crowd, write_numbers};

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
        ("s3://crowd/nothing-here", 8),
        ("s3://crowd/in/part-9.parquet", 8),
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
        let scores: Value = serde_json::from_str(&stdout(&answer)).unwrap();
        let accuracy = scores["accuracy"].as_f64().unwrap();
        assert!((accuracy - 2.0 / 3.0).abs() < 1e-12, "{accuracy}");
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
