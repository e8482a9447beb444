//! Input that is made to break the process ends in an error, never in an abort, an overflow or exhausted memory.

use serde_json::{Value, json};

use crate::job::Job;
use crate::network_job;
use crate::support::{labelmill, stderr, unsealed};

/// Runs the binary with limited memory and returns its exit code and stderr.
fn ends(args: &[&str]) -> (Option<i32>, String) {
    // A debug build needs much address space for itself; 8 GiB still stops what asks for more than any machine has.
    let binary = env!("CARGO_BIN_EXE_labelmill");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v 8388608; exec \"$0\" \"$@\"", binary]).args(args);
    command.env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    let output = command.output().unwrap();
    (output.status.code(), stderr(&output))
}

fn assert_error(args: &[&str], codes: &[i32]) -> String {
    let (code, message) = ends(args);
    let shown: String = message.chars().take(2_000).collect();
    assert!(code.is_some_and(|code| codes.contains(&code)), "{code:?}\n{shown}");
    assert!(message.contains("error: "), "{shown}");
    message
}

/// SQL that nests deeply by every construct whose depth a parser may fail to count.
fn deep_queries() -> Vec<(&'static str, String)> {
    const N: usize = 100_000;
    vec![
        ("a sum", format!("select 1{}", "+1".repeat(N))),
        ("a disjunction", format!("select 1 where 1=2{}", " or 1=2".repeat(N))),
        ("brackets", format!("select {}1{}", "(".repeat(N), ")".repeat(N))),
        ("calls", format!("select {}1{}", "abs(".repeat(N), ")".repeat(N))),
        ("signs", format!("select {}1", "- ".repeat(N))),
        ("negations", format!("select {}true", "not ".repeat(N))),
        ("casts", format!("select 1{}", "::int".repeat(N))),
        ("indices", format!("select [1]{}", "[1]".repeat(N))),
        ("unions", format!("select 1{}", " union all select 1".repeat(N))),
        ("unions of two", format!("select 1, 2{}", " union all select 1, 2".repeat(N))),
        ("intersections", format!("select 1, 2{}", " intersect select 1, 2".repeat(5_000))),
        ("differences", format!("select 1, 2{}", " except select 1, 2".repeat(5_000))),
        ("joins", format!("select 1 from t{}", " cross join t".repeat(N))),
        ("tests", format!("select 1{}", " is null".repeat(N))),
        ("subqueries", format!("select * from {}t{}", "(select * from ".repeat(N), ")".repeat(N))),
        ("cases", format!("select {}1{}", "case when true then ".repeat(N), " end".repeat(N))),
        ("open brackets", format!("select {}", "(1+".repeat(N))),
        ("lists", format!("select {}1{}", "[".repeat(N), "]".repeat(N))),
        ("texts", format!("select 'a'{}", "||'a'".repeat(N))),
        (
            "a list of tables",
            format!("select 1 from {}", list(3_000, |n| format!("(values (1)) t{n}"))),
        ),
        ("a chain", chained(3_000, |n| format!("select x + 1 as x from a{n}"))),
        ("joins in a chain", chained(300, |n| format!("select x from a{n}, t, t u, t v"))),
        ("a doubling", chained(40, |n| format!("select a.x from a{n} a cross join a{n} b"))),
        (
            "a doubling by subqueries",
            chained(40, |n| format!("select x from a{n} where x in (select x from a{n})")),
        ),
        (
            "a doubling by unions",
            chained(40, |n| format!("select x from a{n} union all select x from a{n}")),
        ),
        (
            "subsets",
            format!(
                "select 1 from (values (1)) t (x) group by cube ({})",
                list(40, |n| format!("x + {n}"))
            ),
        ),
    ]
}

fn list(n: usize, item: impl Fn(usize) -> String) -> String {
    (0..n).map(item).collect::<Vec<_>>().join(", ")
}

/// Common table expressions `a1`, `a2`, ..., each over the one before, and a query over the last.
fn chained(n: usize, query: impl Fn(usize) -> String) -> String {
    let with = list(n, |n| format!("a{} as ({})", n + 1, query(n)));
    format!("with t as (select 1 as x), a0 as (select 1 as x), {with} select * from a{n}")
}

#[test]
fn sql_of_a_hundred_thousand_terms_is_an_error() {
    let job = Job::new();
    for (what, query) in deep_queries() {
        let file = job.write("query.sql", &query);
        let message = assert_error(&["sql", &file], &[2]);
        assert!(message.len() < 10_000, "{what}: {} bytes", message.len());
        // A long text is refused by its tokens, before its parser can recurse, wherever it comes from.
        if query.len() > 150_000 && what != "a sum" {
            continue;
        }
        let pipeline = format!(
            "source.annotations = [['i', 'a', 'x']]\nsource.sql.annotations = '{file}'\nmodel.kind = 'majority_vote'"
        );
        let pipeline = job.write("pipeline.toml", &pipeline);
        let out = format!("sink.url={}", job.url("out"));
        for args in [&["check", &pipeline][..], &["run", &pipeline, "--set", &out]] {
            let message = assert_error(args, &[2]);
            assert!(message.contains("source.sql.annotations"), "{what}: {message}");
        }
    }
}

#[test]
fn sql_that_is_long_and_not_deep_runs() {
    let job = Job::new();
    let numbers: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
    let listed = format!("select 7 in ({}) as found", numbers.join(","));
    let chain = format!("select 1{} as found", "+1".repeat(400));
    let tables = format!("select 1 as found from {}", list(300, |n| format!("(values (1)) t{n}")));
    let named = chained(150, |n| format!("select x + 1 as x from a{n}"));
    let unread = chained(2_000, |_| "select x from t".to_owned());
    let united = format!("select 1, 2{}", " union all select 1, 2".repeat(400));
    for query in [listed, chain, tables, named, unread, united] {
        let file = job.write("query.sql", &query);
        let output = labelmill().args(["sql", &file]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

/// Pipeline files that nest deeply, are large or hold values out of range.
fn hostile_files() -> Vec<(&'static str, String)> {
    const N: usize = 100_000;
    let head = "source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'\n";
    let after = |text: String| head.to_owned() + &text;
    vec![
        ("arrays", after(format!("x = {}{}", "[".repeat(N), "]".repeat(N)))),
        ("tables", after(format!("x = {}{}", "{a=".repeat(N), "}".repeat(N)))),
        ("dotted keys", after(format!("{}a = 1", "a.".repeat(N)))),
        ("a dotted header", after(format!("[{}a]", "a.".repeat(N)))),
        ("an open array", after(format!("x = {}", "[".repeat(N)))),
        ("a large integer", after("seed = 99999999999999999999999".to_owned())),
        ("a negative count", after("seed = -1".to_owned())),
        ("threads", after("engine.threads = 9223372036854775807".to_owned())),
        ("a batch", after("engine.batch_size = 9223372036854775807".to_owned())),
        ("retries", after("store.retry_seconds = 9223372036854775807".to_owned())),
        ("idle time", after("store.idle_seconds = 9223372036854775807".to_owned())),
        ("pieces", after("store.pieces_in_flight = 9223372036854775807".to_owned())),
        ("a piece", after("store.piece_size = '9223372036854775807GiB'".to_owned())),
        ("no number", after("decide.min_confidence = nan".to_owned())),
        ("a bound of NaN", after("gate.max_tied = nan".to_owned())),
        ("an infinite bound", after("gate.max_tied = inf".to_owned())),
        ("a long key", after(format!("{} = 1", "k".repeat(5_000_000)))),
        ("a long word", after(format!("frame.duplicates = '{}'", "k".repeat(5_000_000)))),
    ]
}

#[test]
fn a_hostile_pipeline_file_is_an_error() {
    let job = Job::new();
    for (what, text) in hostile_files() {
        let file = job.write("pipeline.toml", &text);
        let out = format!("sink.url={}", job.url("out"));
        let (code, message) = ends(&["run", &file, "--set", &out]);
        let message: String = message.chars().take(2_000).collect();
        assert_eq!(code, Some(2), "{what}\n{message}");
        assert!(message.contains("error: "), "{what}\n{message}");
    }
}

#[test]
fn a_hostile_setting_is_an_error() {
    let job = Job::new();
    let file = job.write("pipeline.toml", "source.annotations = [['i', 'a', 'x']]");
    for setting in [
        format!("{}a=1", "a.".repeat(30_000)),
        format!("seed={}", "[".repeat(60_000)),
        format!("seed={}1{}", "{a=".repeat(20_000), "}".repeat(20_000)),
    ] {
        assert_error(&["run", &file, "--set", &setting], &[2]);
    }
}

/// A trained model in the folder `model`, and features to predict.
fn trained() -> Job {
    let job = network_job::job();
    let run = job.run(
        &network_job::pipeline("kind = 'single_confusion'").replace("epochs = 20", "epochs = 1"),
    );
    std::fs::create_dir(job.path("model")).unwrap();
    for file in ["model.json", "model.safetensors"] {
        std::fs::copy(run.join("model").join(file), job.path("model").join(file)).unwrap();
    }
    unsealed(&job.path("model"));
    job
}

fn predict(job: &Job) -> String {
    let urls = ["model", "features.parquet", "predicted"].map(|name| job.url(name));
    let [model, features, out] = &urls;
    let args = ["predict", "--force", "--model", model, "--features", features, "--output", out];
    // A prediction succeeds where the network does not use the hostile value.
    match ends(&args) {
        (Some(0), message) => message,
        _ => assert_error(&args, &[2, 3]),
    }
}

#[test]
fn a_hostile_description_of_a_model_is_an_error_before_anything_of_its_size_is_made() {
    let job = trained();
    let good: Value =
        serde_json::from_slice(&std::fs::read(job.path("model/model.json")).unwrap()).unwrap();
    let large = json!(u64::MAX);
    let long: Vec<u64> = vec![1_000_000_000; 4];
    let mut accepted = Vec::new();
    for (pointer, value) in [
        ("/sizes/features", json!([4_294_967_296_u64, 4_294_967_296_u64])),
        ("/sizes/features", json!([1_000_000_000_000_u64])),
        ("/sizes/features", json!([])),
        ("/sizes/features", json!([5, -1])),
        ("/sizes/classes", large.clone()),
        ("/sizes/classes", json!(0)),
        ("/sizes/labels", large.clone()),
        ("/sizes/labels", json!(0)),
        ("/sizes/labels", json!(2)),
        ("/sizes", json!("many")),
        ("/parameters/backbone/hidden", json!([1_000_000_000_000_u64])),
        ("/parameters/backbone/hidden", json!(long)),
        ("/parameters/backbone/hidden", json!([0])),
        ("/parameters/backbone/dropout", json!(7)),
        ("/parameters/backbone/input", json!([4_294_967_296_u64, 4_294_967_296_u64, 5])),
        ("/parameters/backbone/kind", json!("vgg16")),
        ("/parameters", json!([])),
        ("/kind", json!("majority_vote")),
        ("/kind", json!(7)),
        ("/classes/type", json!("List(".repeat(100_000))),
        ("/classes/type", json!("FixedSizeBinary(2147483647)")),
        ("/classes/values", json!([{}, [], 1e308])),
    ] {
        let mut hostile = good.clone();
        *hostile.pointer_mut(pointer).unwrap() = value.clone();
        std::fs::write(job.path("model/model.json"), hostile.to_string()).unwrap();
        let message = predict(&job);
        assert!(!message.contains("panicked"), "{pointer} = {value}\n{message}");
        if !message.contains("error: ") {
            accepted.push(format!("{pointer} = {value}"));
        }
    }
    // A prediction uses neither the number of labels nor, without images, the shape of an image.
    assert_eq!(
        accepted,
        [
            "/sizes/labels = 18446744073709551615",
            "/parameters/backbone/input = [4294967296,4294967296,5]"
        ]
    );
    let refused = |pointer: &str, value: Value| {
        let mut hostile = good.clone();
        *hostile.pointer_mut(pointer).unwrap() = value;
        std::fs::write(job.path("model/model.json"), hostile.to_string()).unwrap();
        assert!(predict(&job).contains("error: "), "{pointer}");
    };
    refused("/sizes/classes", json!(2));
    refused("/sizes/features", json!([6]));
    refused("/parameters/backbone/hidden", json!([1_000_000_000_000_u64]));
    refused("/parameters/backbone/hidden", json!([15]));
    for text in
        ["", "{", "null", "[]", "\u{feff}{}", &"[".repeat(1_000_000), &"{\"a\":".repeat(1_000_000)]
    {
        std::fs::write(job.path("model/model.json"), text).unwrap();
        assert!(predict(&job).contains("error: "));
    }
}

#[test]
fn numbers_of_a_model_that_are_none_or_too_few_are_an_error() {
    let job = trained();
    let good = std::fs::read(job.path("model/model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(job.path("model/model.safetensors"), bytes).unwrap();
        let message = predict(&job);
        assert!(message.contains("error: "), "{message}");
        message
    };
    let nan = f32::NAN.to_le_bytes();
    let message = with(&|b| b[header..].chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&nan)));
    assert!(message.contains("a prediction is not a number"), "{message}");
    with(&|b| b.truncate(header + 4));
    with(&|b| b.truncate(4));
    with(&|b| b.clear());
    with(&|b| b[..8].fill(0xff));
    with(&|b| b[..8].copy_from_slice(&(1_u64 << 40).to_le_bytes()));
    with(&|b| b.iter_mut().for_each(|b| *b = 0xff));
}
