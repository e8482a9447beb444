//! Which files a location means: links, patterns, hidden files, and the errors for files that cannot be read.

use std::io::{Read, Write};

use crate::job::{Job, assert_says, cells, vote};
use crate::network_job;
use crate::support::{labelmill, read_table, run_fails, run_ok, stderr};

const HEADER: &str = "instance_id,annotator_id,label\n";
const VOTE: &str = "model.kind = 'majority_vote'\n";

#[test]
fn a_sink_in_a_source_is_refused_the_first_time_too_through_links() {
    let job = Job::new();
    job.write("crowd/in.csv", &format!("{HEADER}i,a,x\n"));
    std::os::unix::fs::symlink(job.path("crowd"), job.path("link")).unwrap();
    let insides = [
        ("crowd", "link/out"),
        ("link/", "crowd/out"),
        ("crowd/**/*.csv", "link/a/b"),
        ("crowd/ü*/*/*.csv", "crowd/übung/out"),
    ];
    for (source, sink) in insides {
        let file = job.write("pipeline.toml", &vote(source, ""));
        for command in ["check", "run"] {
            let set = format!("sink.url={}", job.url(sink));
            let error = run_fails(&[command, &file, "--set", &set], 2);
            assert_says(&error, &["the sink is inside a folder that is read", "sink.url", "help:"]);
        }
        assert!(!job.path("crowd/out").exists() && !job.path("crowd/a").exists());
    }
}

#[test]
fn predict_and_simulate_refuse_an_output_in_what_they_read() {
    let job = network_job::job();
    let features = job.url("");
    let inside = job.url("out");
    let model = job.url("model");
    let error =
        run_fails(&["predict", "--model", &model, "--features", &features, "--output", &inside], 2);
    assert_says(&error, &["inside a folder that is read", "--output", "--features"]);
    let truth = job.url("");
    let error = run_fails(
        &["simulate", "--recipe", "tanno-mnist", "--truth", &truth, "--output", &inside],
        2,
    );
    assert_says(&error, &["inside a folder that is read", "--output", "--truth"]);
    assert!(!job.path("out").exists());
}

#[test]
fn a_file_that_the_store_does_not_list_is_named() {
    let job = Job::new();
    job.write("in/a.csv", &format!("{HEADER}i,a,x\n"));
    job.write("in/b.csv#1", &format!("{HEADER}j,a,x\n"));
    assert_says(&job.fails(&vote("in", ""), 3), &["in/b.csv#1", "not listed", "rename it"]);
    std::fs::remove_file(job.path("in/b.csv#1")).unwrap();
    std::os::unix::fs::symlink("nowhere", job.path("in/c.csv")).unwrap();
    assert_says(&job.fails(&vote("in", ""), 3), &["in/c.csv", "a link that leads nowhere"]);
    assert_says(&job.fails(&vote("in/*.csv", ""), 3), &["in/c.csv", "a link that leads nowhere"]);
    let other = format!("sink.url={}", job.url("other"));
    job.ends(&vote("in/a*.csv", ""), &["--set", &other], 0);
    std::fs::remove_file(job.path("in/c.csv")).unwrap();
    let pipe = job.url("in/d.csv");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for source in ["in", "in/d.csv"] {
        assert_says(
            &job.fails(&vote(source, ""), 3),
            &["in/d.csv", "a pipe, a socket or a device"],
        );
    }
    std::fs::remove_file(pipe).unwrap();
    job.write("in/a\nb.csv", &format!("{HEADER}k,a,x\n"));
    for (source, code) in [("in", 3), ("in/a\\nb.csv", 2)] {
        let url = job.url(source);
        let named = format!("source.annotations = \"{url}\"\n{VOTE}");
        assert_says(
            &job.fails(&named, code),
            &["a\\nb.csv", "illegal character", "rename the file"],
        );
    }
    std::fs::remove_file(job.path("in/a\nb.csv")).unwrap();
    job.write("in/e.csv", "");
    assert_says(&job.ends(&vote("in", ""), &[], 0), &["in/e.csv", "0 bytes"]);
}

#[test]
fn a_delta_table_and_a_part_of_it_are_refused() {
    let job = Job::new();
    job.write("t/day=1/part-0.csv", &format!("{HEADER}i,a,x\n"));
    job.write("t/_delta_log/00000000000000000000.json", "{}");
    for url in ["t", "t/day=*/*.csv", "t/day=1", "t/day=1/", "t/day=1/*.csv"] {
        let printed = ["is a Delta table", "t/_delta_log", "export the table's current rows"];
        assert_says(&job.fails(&vote(url, ""), 3), &printed);
    }
    // A single file that is given by its name is read.
    assert_eq!(read_table(&job.run(&vote("t/day=1/part-0.csv", "")), "labels").len(), 1);
}

#[test]
fn a_column_that_only_the_names_of_folders_tell_is_refused() {
    let job = Job::new();
    job.write("in.csv", &format!("{HEADER}i,a,x\nj,a,y\n"));
    job.write("gold/role=train/g.csv", "instance_id,class\ni,x\n");
    job.write("gold/role=holdout/g.csv", "instance_id,class\nj,y\n");
    let gold = format!("{}source.gold = '{{dir}}gold'\n", vote("in.csv", ""));
    let gold = gold.replace(VOTE, "") + VOTE;
    for (location, name) in [
        ("gold", "`role="),
        ("gold/role=holdout", "`role=holdout`"),
        ("gold/role=holdout/g.csv", "`role=holdout`"),
    ] {
        let error = job.fails(&gold.replace("{dir}gold", &format!("{{dir}}{location}")), 3);
        assert_says(&error, &[name, "source.gold", "write the column into the files"]);
    }
    job.write("days/question=q1/day=1/a.csv", &format!("{HEADER}i,a,x\n"));
    assert_says(&job.fails(&vote("days", ""), 3), &["`question=q1`", "source.annotations"]);
    job.write("weeks/week=1/a.csv", &format!("{HEADER}i,a,x\n"));
    job.run(&vote("weeks", ""));
    // A query adds the column of one folder.
    let one = gold.replace("{dir}gold", "{dir}gold/role=holdout");
    let query = "source.sql.gold = \"SELECT *, 'holdout' AS role FROM gold\"\n";
    let run = job.run(&one.replace(VOTE, &format!("{query}{VOTE}")));
    assert_eq!(cells(&read_table(&run, "labels"), &["decision"]), ["decided", "decided"]);
}

#[test]
fn a_server_that_tells_no_version_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n");
        }
    });
    let job = Job::new();
    let error = job.fails(&format!("source.annotations = 'http://{address}/in.csv'\n{VOTE}"), 3);
    assert_says(&error, &["reports no version", "/in.csv", "ETag", "Last-Modified"]);
}

#[test]
fn numbers_that_a_double_would_merge_are_no_ids() {
    let job = Job::new();
    let row = |id: &str| format!("{{\"instance_id\":{id},\"annotator_id\":1,\"label\":\"x\"}}\n");
    for ids in [
        ["100000000000000000001", "100000000000000000002", "3"],
        ["9007199254740993", "9007199254740992", "1.5"],
    ] {
        job.write("in.ndjson", &ids.map(row).concat());
        let error = job.fails(&vote("in.ndjson", ""), 3);
        assert_says(&error, &["instance_id", "integers that a double rounds"]);
    }
    job.write("in.ndjson", &["9007199254740993", "9007199254740992"].map(row).concat());
    assert_eq!(read_table(&job.run(&vote("in.ndjson", "")), "labels").len(), 2);
}

#[test]
fn a_pattern_that_spells_the_first_character_of_a_mark_means_it() {
    let job = Job::new();
    job.write("in/_x.csv", &format!("{HEADER}i,a,x\n"));
    job.write("in/y.csv", &format!("{HEADER}j,a,x\n"));
    job.write("in/_SUCCESS", "");
    let ids = |url: &str, id: &str| {
        let run = job.run(&format!("{}sink.run_id = '{id}'", vote(url, "")));
        cells(&read_table(&run, "labels"), &["instance_id"])
    };
    assert_eq!(ids("in/_*.csv", "marks"), ["i"]);
    assert_eq!(ids("in/*.csv", "plain"), ["j"]);
    std::os::unix::fs::symlink("nowhere", job.path("in/_z.csv")).unwrap();
    let error = job.ends(&vote("in/_*.csv", ""), &[], 3);
    assert_says(&error, &["in/_z.csv", "a link that leads nowhere"]);
    assert_eq!(ids("in/*.csv", "hidden"), ["j"]);
    std::fs::remove_file(job.path("in/_z.csv")).unwrap();
    // A hidden file that looks like data gives a warning.
    let file = job.write("pipeline.toml", &vote("in", ""));
    let set = format!("sink.url={}", job.url("out2"));
    let output = labelmill().args(["run", &file, "--set", &set]).output().unwrap();
    let printed = stderr(&output);
    let warning =
        "source.annotations: files whose names, or whose folders' names, begin with _ or .";
    assert_says(&printed, &[warning, "`_x.csv`"]);
    let run = read_table(&job.path("out2/latest"), "run");
    assert_says(&cells(&run, &["warnings"])[0], &[warning, "`_x.csv`"]);
    for command in [&["check", &file][..], &["explain", &file]] {
        assert_says(&stderr(&run_ok(command)), &["warning: ", warning]);
    }
    let table = format!("t={}", job.url("in"));
    let warned = stderr(&run_ok(&["sql", "--table", &table, "-c", "select * from t"]));
    assert_says(&warned, &["warning: source.tables.t: files whose names", "`_x.csv`"]);
    job.write("marks/_SUCCESS", "x");
    job.write("marks/y.csv", &format!("{HEADER}j,a,x\n"));
    let file = job.write("pipeline.toml", &vote("marks", ""));
    let output = labelmill().args(["check", &file]).output().unwrap();
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
}

#[test]
fn two_stars_at_the_end_are_all_files_below() {
    let job = Job::new();
    job.write("in/a.csv", &format!("{HEADER}i,a,x\n"));
    job.write("in/b/c/d.csv", &format!("{HEADER}j,a,x\n"));
    let run = job.run(&vote("in/**", ""));
    assert_eq!(cells(&read_table(&run, "labels"), &["instance_id"]), ["i", "j"]);
}

#[test]
fn a_pattern_that_matches_nothing_tells_among_how_many_files() {
    let job = Job::new();
    for name in ["a.csv", "b.csv", "below/c.csv"] {
        job.write(&format!("in/{name}"), HEADER);
    }
    let error = job.fails(&vote("in/*.parquet", ""), 8);
    assert_says(
        &error,
        &["the pattern `*.parquet` matches none of the 3 files there", "`a.csv`", "** goes over"],
    );
}

#[test]
fn every_location_with_a_secret_is_named_at_once() {
    let job = Job::new();
    let file = job.write(
        "pipeline.toml",
        "source.annotations = 'https://me:hunter2@host/a.csv'
         source.gold = 'https://host/gold.csv?sig=hunter2'
         source.tables.people = 's3://k:hunter2@bucket/p.csv'
         sink.url = 's3://k:hunter2@bucket/out'
         store.endpoint = 'http://me:hunter2@host'
         model.kind = 'majority_vote'",
    );
    for command in ["check", "run", "explain"] {
        let error = run_fails(&[command, &file], 2);
        let keys = [
            "source.annotations",
            "source.gold",
            "source.tables.people",
            "sink.url",
            "store.endpoint",
        ];
        assert_says(&error, &keys);
        assert!(!error.contains("hunter2"), "{error}");
    }
    let tables =
        ["--table", "a=https://me:hunter2@host/a.csv", "--table", "b=https://h/b.csv?s=hunter2"];
    let error = run_fails(&[&["sql", "-c", "select 1"][..], &tables].concat(), 2);
    assert_eq!(error.matches("is refused").count(), 2, "{error}");
}

#[test]
fn errors_of_csv_files_say_what_is_wrong_and_what_to_do() {
    let job = Job::new();
    let fails = |content: &[u8]| {
        std::fs::write(job.path("in.csv"), content).unwrap();
        job.fails(&vote("in.csv", ""), 3)
    };
    let location = format!(" {}", job.url("in.csv"));
    let error = fails(b"instance_id,annotator_id,label\ni,a,x\ni,b,x,more\n");
    assert_says(
        &error,
        &["not as many values as the header", "record 2", "3 names", "in quotes", &location],
    );
    assert!(!error.contains("1000 rows"), "{error}");
    let error = fails(b"instance_id,annotator_id,label\ni,a,x\ni,a\n");
    assert_says(&error, &["2 values in record 2, 3 names in the header"]);
    let error = fails(b"instance_id,annotator_id,label\ni,a,x\rrest\ni,b,x\n");
    assert_says(&error, &["1 values in record 2", "a carriage return alone"]);
    let error = fails(b"instance_id,annotator_id,label\ni,a,x\ni,caf\xe9,x\n");
    assert_says(
        &error,
        &["the text is not UTF-8", "record 2, column `annotator_id`", "iconv", &location],
    );
    let error = fails(b"instance_id,annotat\xe9,label\ni,a,x\n");
    assert_says(&error, &["the text is not UTF-8", "iconv", &location]);
    let error = fails(b"instance_id;annotator_id;label\ni;a;x\n");
    assert_says(&error, &["`instance_id` is missing", "do `;` separate the columns?"]);
    let error = run_fails(&["sql", "-c", "select 1 +"], 2);
    assert_says(&error, &["the SQL cannot be parsed"]);
    assert!(!error.contains("ParserError"), "{error}");
}

#[test]
fn carriage_returns_alone_end_records() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ri,a,x\rj,a,y\r");
    let labels = read_table(&job.run(&vote("in.csv", "")), "labels");
    assert_eq!(cells(&labels, &["instance_id", "label"]), ["i x", "j y"]);
}

#[test]
fn a_job_that_was_done_before_opens_no_file() {
    let job = Job::new();
    let line = "{\"instance_id\":\"i\",\"annotator_id\":\"a\",\"label\":\"x\"}\n";
    job.write("in.ndjson", line);
    job.run(&vote("in.ndjson", ""));
    // The same length and time: a listing sees the same version.
    let time = std::fs::metadata(job.path("in.ndjson")).unwrap().modified().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(job.path("in.ndjson")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'!'; line.len()], 0).unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    let printed = job.ends(&vote("in.ndjson", ""), &[], 0);
    assert!(printed.contains("nothing to do"), "{printed}");
    assert_says(&job.ends(&vote("in.ndjson", ""), &["--force"], 3), &["no JSON object"]);
}

#[test]
fn gold_counts_as_memory() {
    let job = Job::new();
    job.write("in.csv", &format!("{HEADER}i,a,x\n"));
    let gold: String =
        (0..100_000).map(|n| format!("some-long-name-of-an-instance-{n},x\n")).collect();
    job.write("gold.csv", &format!("instance_id,class\n{gold}"));
    let pipeline = format!(
        "{}source.gold = '{{dir}}gold.csv'\nengine.memory_limit = '4MiB'",
        vote("in.csv", "")
    );
    assert_says(
        &job.fails(&pipeline, 2),
        &["does not fit into the memory", "rows of gold take", "engine.memory_limit"],
    );
}

#[test]
fn files_of_another_format_than_the_one_asked_for_are_named() {
    let job = Job::new();
    job.write("in/a.csv", &format!("{HEADER}i,a,x\n"));
    job.write("in/b.ndjson", "{}\n");
    let pipeline = format!("{}source.format = 'csv'\n", vote("in", "")).replace(VOTE, "") + VOTE;
    job.write("in/c.csv", "");
    let warnings = cells(&read_table(&job.run(&pipeline), "run"), &["warnings"]).remove(0);
    let warning = "files of another format than source.format are not read: `b.ndjson`";
    assert_says(&warnings, &[warning, "files of the folder are empty (0 bytes): ", "in/c.csv"]);
    let job = Job::new();
    job.write("in/b.ndjson", "{}\n");
    job.write("in/rows", &format!("{HEADER}i,a,x\n"));
    assert_says(
        &job.fails(&pipeline, 3),
        &["no file of the folder has the format", "`b.ndjson`", "csv"],
    );
    std::fs::remove_file(job.path("in/b.ndjson")).unwrap();
    job.run(&pipeline);
}

#[test]
fn links_to_folders_are_followed_and_circles_are_named() {
    use std::os::unix::fs::symlink;
    let job = Job::new();
    job.write("in/a.csv", &format!("{HEADER}i,a,x\n"));
    job.write("other/b.csv#1", &format!("{HEADER}i,b,x\n"));
    symlink(job.path("other"), job.path("in/more")).unwrap();
    assert_says(&job.fails(&vote("in", ""), 3), &["is not listed", "in/more/b.csv#1"]);
    std::fs::rename(job.path("other/b.csv#1"), job.path("other/b.csv")).unwrap();
    assert_eq!(crate::job::rows_read(&job.run(&vote("in", ""))), "2 2");
    let job = Job::new();
    job.write("in/deep/a.csv", &format!("{HEADER}i,a,x\n"));
    symlink(job.path("in"), job.path("in/deep/up")).unwrap();
    let printed = ["a link leads back to a folder above it", "in/deep/up"];
    assert_says(&job.fails(&vote("in", ""), 3), &printed);
}

#[test]
fn every_key_and_every_file_is_named_as_it_is_written() {
    let job = Job::new();
    job.write("in.csv", &format!("{HEADER}i,a,x\n"));
    let pipeline = vote("in.csv", "") + "[source.tables]\nextra = '{dir}none.csv'\n";
    assert_says(&job.fails(&pipeline, 8), &["source.tables.extra: /"]);
    job.write("in", &format!("{HEADER}i,a,x\n"));
    let file = job.url("in");
    assert_says(
        &job.fails(&vote("in", ""), 3),
        &["does not show the format", &format!("`{file}`")],
    );
    let run = job.run(&vote("in.csv", ""));
    let inputs = cells(&read_table(&run, "run"), &["inputs"]);
    let file = job.url("in.csv");
    assert_says(&inputs[0], &[&format!("\"path\":\"{file}\"")]);
}

#[test]
fn a_weight_that_is_no_number_is_named_with_what_the_column_holds() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,weight\ni,a,x,1\ni,b,x,abc\n");
    let error = job.fails(&vote("in.csv", ""), 3);
    assert_says(
        &error,
        &["column `weight` of record 2", "found: `abc` in the column `weight` of record 2"],
    );
}
