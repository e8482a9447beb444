//! Settings of input, output and stores at other values than their defaults, and what they change.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use labelmill::testing::synth::CrowdShape;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::job::{Job, assert_says, cells};
use crate::network_job::{job as job_with_features, pipeline};
use crate::s3_job;
use crate::s3_server::{Fault, KEY_ID, SECRET, Server};
use crate::support::{files_of, labelmill, read_table, run_ok, stderr, table_files, write_numbers};

const VOTE: &str = "model.kind = 'majority_vote'\n";

/// The last of two annotations of `a` has the weight 1, the one of `b` has 3; the other question has one annotation.
// keys: source.columns.instance, source.columns.annotator, source.columns.label, source.columns.weight
// keys: source.columns.annotated_at, source.columns.question
#[test]
fn every_column_of_the_annotations_may_have_another_name() {
    let job = Job::new();
    job.write(
        "in.csv",
        "item,who,answer,trust,stamp,topic\ni,a,no,1,2026-01-01,p\ni,a,yes,1,2026-01-02,p\n\
         i,b,no,3,2026-01-01,p\ni,c,yes,1,2026-01-01,q\n",
    );
    let run = job.run(&format!(
        "source.annotations = '{{dir}}in.csv'\n{VOTE}frame.duplicates = 'last'\n[source.columns]\n\
         instance = 'item'\nannotator = 'who'\nlabel = 'answer'\nweight = 'trust'\n\
         annotated_at = 'stamp'\nquestion = 'topic'"
    ));
    let labels = read_table(&run, "labels");
    assert_eq!(
        cells(&labels, &["question", "instance_id", "label", "confidence"]),
        ["p i no 0.75", "q i yes 1.0"]
    );
    assert_eq!(cells(&read_table(&run, "rejects"), &["reason", "count"]), ["superseded 1"]);
}

// keys: source.columns.class, source.columns.role
#[test]
fn every_column_of_gold_may_have_another_name() {
    let job = Job::new();
    job.write("gold.csv", "instance_id,truth,use\ni,yes,holdout\nj,yes,train\n");
    let run = job.run(&format!(
        "source.annotations = [['i', 'a', 'yes'], ['j', 'a', 'no']]\n{VOTE}\
         source.gold = '{{dir}}gold.csv'\nsource.columns = {{ class = 'truth', role = 'use' }}"
    ));
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels, &["label", "decision"]), ["yes decided", "yes gold"]);
    let metrics = cells(&read_table(&run, "metrics"), &["name", "split", "value"]);
    assert_eq!(metrics[0], "instances holdout 1.0");
}

// keys: source.columns.features
#[test]
fn a_column_of_features_that_is_named_is_the_only_one() {
    let job = job_with_features();
    let line = |i: u32| {
        format!("{{\"instance_id\":{i},\"age\":{},\"vector\":[{},{}]}}\n", i % 50, i % 3, i % 7)
    };
    job.write("features.ndjson", &(0..200).map(line).collect::<String>());
    let file = pipeline("kind = 'dl'").replace("features.parquet", "features.ndjson");
    let run = job.run(&file.replace("[model]", "columns.features = 'vector'\n[model]"));
    let bytes = std::fs::read(run.join("model/model.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&bytes[8..]).into_owned();
    let hidden = header.split("hidden0.weight").nth(1).unwrap();
    assert!(hidden.split("\"shape\":").nth(1).unwrap().starts_with("[16,2]"), "{hidden:.100}");
}

// keys: source.sql.features, source.sql.gold, source.sql.annotator_features
#[test]
fn every_relation_may_be_a_query() {
    let job = job_with_features();
    job.write("gold.csv", "item,truth\n3,0\n4,1\n");
    let workers: Vec<String> = (0..8).map(|r| format!("{r},{},{}", r % 3, r * r)).collect();
    job.write("workers.csv", &format!("annotator_id,a,b\n{}\n", workers.join("\n")));
    let model = "kind = 'conal'\nembedding = 2";
    let relations = "gold = '{dir}gold.csv'\nannotator_features = '{dir}workers.csv'\n";
    let run = |sql: &str| {
        job.run(&pipeline(model).replace("[model]", &format!("{relations}{sql}[model]")))
    };
    let gold = "sql.gold = 'select item as instance_id, truth as class from gold'\n";
    let one =
        run(&format!("{gold}sql.features = 'select * from features where instance_id < 160'\n"));
    let decisions = cells(&read_table(&one, "labels"), &["instance_id", "label", "decision"]);
    assert_eq!(decisions[3..5], ["3 0 gold", "4 1 gold"]);
    assert_eq!(read_table(&one, "predictions").len(), 160 * 3);
    // Equal features of all annotators give equal embeddings.
    let alike = "select annotator_id, a - a as a, b - b as b from annotator_features";
    let two = run(&format!("{gold}sql.annotator_features = '{alike}'\n"));
    let embeddings = cells(&read_table(&two, "annotator_parameters"), &["name", "value"]);
    let first = embeddings.iter().filter(|row| row.starts_with("embedding_0"));
    assert!(first.clone().all(|row| row == &embeddings[0]), "{embeddings:?}");
    let told = cells(&read_table(&one, "annotator_parameters"), &["name", "value"]);
    assert!(told.iter().filter(|row| row.starts_with("embedding_0")).any(|row| row != &told[0]));
}

// keys: source.annotator_features
#[test]
fn features_of_annotators_are_matched_or_the_run_says_what_they_change() {
    let job = job_with_features();
    let workers = |ids: [u32; 2]| {
        job.write("workers.csv", &format!("annotator_id,a\n{},1\n{},2\n", ids[0], ids[1]))
    };
    let file = |kind: &str| {
        let source = "annotator_features = '{dir}workers.csv'\n[model]";
        let file = pipeline(&format!("kind = '{kind}'")).replace("[model]", source);
        file.replace("epochs = 20", "epochs = 1")
    };
    workers([900, 901]);
    let error = job.fails(&file("conal"), 3);
    assert_says(
        &error,
        &[
            "the annotations and the features of annotators have no annotator in common",
            "where: source.annotator_features",
            "2 annotators in the features of annotators: `900`, `901`; 8 annotators in the annotations: `0`, `1`",
        ],
    );
    let unread = |kind: &str| format!("`{kind}` does not learn from features of annotators");
    workers([0, 1]);
    let gem = file("gem").split("device").next().unwrap().to_owned();
    for (file, warning) in [
        (file("conal"), "6 of 8 annotators have no features".to_owned()),
        (file("dl"), unread("dl")),
        (gem, unread("gem")),
    ] {
        let run = job.run(&file);
        assert_says(&cells(&read_table(&run, "run"), &["warnings"])[0], &[&warning]);
    }
}

// keys: sink.tables, sink.compression
#[test]
fn the_tables_that_are_named_are_written_as_compressed_as_asked() {
    let compression_of = |more: &str, tables: &[&str]| {
        let job = Job::new();
        let run = job.run(&format!("source.annotations = [['i', 'a', 'x']]\n{VOTE}{more}"));
        let files = table_files(&run);
        let mut found: Vec<&str> =
            files.keys().map(|name| name.split('/').next().unwrap()).collect();
        found.dedup();
        assert_eq!(found, tables, "{more}");
        let part = run.join("labels/part-00000.parquet");
        let part = if part.exists() { part } else { run.join(files.keys().next().unwrap()) };
        let file = std::fs::File::open(part).unwrap();
        let metadata = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        format!("{:?}", metadata.metadata().row_group(0).column(0).compression())
    };
    let only = |compression: &str| {
        format!("sink.tables = ['labels', 'classes']\nsink.compression = '{compression}'")
    };
    for (compression, wanted) in [("none", "UNCOMPRESSED"), ("snappy", "SNAPPY"), ("zstd", "ZSTD")]
    {
        let found = compression_of(&only(compression), &["classes", "labels"]);
        assert!(found.starts_with(wanted), "{found}");
    }
}

// keys: seed
#[test]
fn the_seed_decides_what_is_drawn() {
    let rows: Vec<(u32, u32, u32)> = (0..128).map(|n| (n / 2, n % 2, n % 2)).collect();
    let labels = |seed: u32| {
        let job = Job::new();
        write_numbers(&job.path("in.parquet"), &rows);
        let run = job.run(&format!(
            "seed = {seed}\nsource.annotations = '{{dir}}in.parquet'\n{VOTE}decide.ties = 'random'"
        ));
        cells(&read_table(&run, "labels"), &["label"])
    };
    assert_eq!(labels(1), labels(1));
    assert_ne!(labels(1), labels(2));
}

/// Both questions have the same 64 ties.
// keys: decide.ties
#[test]
fn random_ties_fall_otherwise_in_another_question() {
    let job = Job::new();
    let tie = |question: &str, i: u32| format!("i{i},a,0,{question}\ni{i},b,1,{question}\n");
    let ties = |question| (0..64).map(move |i| tie(question, i)).collect::<String>();
    let rows = ["p", "q"].map(ties).concat();
    job.write("in.csv", &format!("instance_id,annotator_id,label,question\n{rows}"));
    let run = job.run(&format!(
        "source.annotations = '{{dir}}in.csv'\nsource.columns.question = 'question'\n{VOTE}decide.ties = 'random'"
    ));
    let labels = cells(&read_table(&run, "labels"), &["question", "label", "decision"]);
    let of = |question: &str| -> Vec<&str> {
        labels.iter().filter_map(|cells| cells.strip_prefix(question)).collect()
    };
    assert_eq!((of("p ").len(), of("q ").len()), (64, 64));
    assert!(labels.iter().all(|cells| cells.ends_with(" tied")), "{labels:?}");
    assert_ne!(of("p "), of("q "));
}

// keys: engine.scratch
#[test]
fn features_that_do_not_fit_go_to_the_scratch_folder() {
    let job = job_with_features();
    let with = |scratch: &str| {
        let engine = format!("[engine]\nmemory_limit = '6kB'\nscratch = '{scratch}'\n");
        format!("{}{engine}", pipeline("kind = 'crowd_layer'"))
    };
    assert_says(&job.fails(&with("/dev/null/nowhere"), 2), &["/dev/null/nowhere"]);
    job.write("file", "");
    std::os::unix::fs::symlink("nowhere", job.path("link")).unwrap();
    for unusable in ["no/scratch", "file", "link"] {
        let error = job.fails(&with(&format!("{{dir}}{unusable}")), 2);
        assert_says(&error, &["where: engine.scratch\n", unusable]);
    }
    let file = job.write("pipeline.toml", &with("{dir}scratch"));
    for command in ["check", "explain"] {
        run_ok(&[command, &file, "--set", &format!("sink.url={}", job.url("out"))]);
        assert!(!job.path("scratch").exists(), "{command}");
    }
    let run = job.run(&with("{dir}scratch"));
    assert!(job.path("scratch").is_dir());
    assert_eq!(read_table(&run, "predictions").len(), 200 * 3);
}

/// Runs the job against a server that refuses every request; returns the text of the first request.
fn first_request(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("store.endpoint=http://{}", listener.local_addr().unwrap());
    let heard = std::thread::spawn(move || {
        let mut first = None;
        while let Ok((mut stream, _)) = listener.accept() {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).unwrap_or(0);
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
            first.get_or_insert_with(|| String::from_utf8_lossy(&bytes[..n]).into_owned());
            if bytes.starts_with(b"END") {
                break;
            }
        }
        first.unwrap()
    });
    let mut command = labelmill();
    command.args(s3_job::job(&["--set", &endpoint])).args(arguments);
    command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let address: SocketAddr = endpoint.rsplit_once('/').unwrap().1.parse().unwrap();
    TcpStream::connect(address).unwrap().write_all(b"END").unwrap();
    heard.join().unwrap()
}

// keys: store.endpoint, store.region
#[test]
fn requests_go_to_the_endpoint_and_are_signed_for_the_region() {
    let elsewhere = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("AWS_REGION", "eu-west-3")];
    let told = first_request(&["--set", "store.region=eu-north-1"], &elsewhere);
    assert_says(&told, &["/eu-north-1/s3/aws4_request"]);
    assert_says(&first_request(&[], &elsewhere), &["/eu-west-3/s3/aws4_request"]);
    assert_says(&first_request(&[], &elsewhere[..1]), &["/us-east-1/s3/aws4_request"]);
}

// keys: store.max_retries, store.retry_seconds
#[test]
fn a_request_is_sent_again_as_often_and_as_long_as_asked() {
    let server = s3_job::server();
    let is_read = |line: &str| line.starts_with("GetObject ") && line.contains("/in/");
    let attempts = |more: &[&str]| {
        server.forget_requests();
        server.fault(Fault::Busy, "GetObject /in/", 0, 100_000);
        let output = server.run(&s3_job::job(more));
        server.forget_faults();
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let lines = (0..server.count("")).map(|n| server.line(n));
        let reads: Vec<String> = lines.filter(|line| is_read(line)).collect();
        reads.iter().filter(|line| **line == reads[0]).count()
    };
    assert_eq!(attempts(&["--set", "store.max_retries=0"]), 1);
    assert_eq!(attempts(&["--set", "store.max_retries=2"]), 3);
    let began = Instant::now();
    let long = ["--set", "store.max_retries=1000", "--set", "store.retry_seconds=1"];
    assert!(attempts(&long) > 1);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

// keys: store.pieces_in_flight, store.piece_size
#[test]
fn no_more_pieces_are_on_their_way_than_asked() {
    let server = Server::start();
    let crowd =
        CrowdShape { instances: 10_000, classes: 90, redundancy: 2, ..CrowdShape::default() };
    write_numbers(&server.bucket().join("in/crowd.parquet"), &crowd.draw(1).rows);
    let mut pieces = Vec::new();
    for (in_flight, size) in [(1, "5MiB"), (2, "5MiB"), (2, "8MiB")] {
        server.forget_requests();
        server.fault(Fault::Hold, "UploadPart", 0, 100);
        let more = [
            format!("store.pieces_in_flight={in_flight}"),
            format!("store.piece_size={size}"),
            format!("sink.run_id=flight-{}", pieces.len()),
        ];
        let mut arguments =
            vec!["-q", "--set", "sink.compression=none", "--set", "model.stop.max_iter=2"];
        more.iter().for_each(|set| arguments.extend(["--set", set.as_str()]));
        let mut sending = server.labelmill(&s3_job::job(&arguments)).spawn().unwrap();
        server.wait_for("UploadPart partNumber", in_flight);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(server.count("UploadPart partNumber"), in_flight);
        server.forget_faults();
        assert!(sending.wait().unwrap().success());
        pieces.push(server.count("UploadPart partNumber"));
    }
    assert_eq!(pieces, [3, 3, 2], "of 14 MiB");
    let run = files_of(&server.bucket().join("out/runs/flight-0"));
    assert_eq!(read_table(&run, "labels").len(), 10_000);
}

/// The queue of the listener is full, so another connection has to wait.
// keys: store.connect_seconds
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_does_not_come_about_is_given_up() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let short = Duration::from_millis(300);
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, short) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the listener takes everybody");
    }
    let endpoint = format!("store.endpoint=http://{address}");
    let arguments =
        ["--set", &endpoint, "--set", "store.connect_seconds=1", "--set", "store.max_retries=0"];
    let began = Instant::now();
    let mut command = labelmill();
    command.args(s3_job::job(&arguments));
    command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    // The default is ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}
