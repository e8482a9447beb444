//! A URL with a user, a password or a query is refused, and none of these is printed, logged or written.

use std::path::Path;

use crate::job::{Job, assert_says};
use crate::support::{labelmill, read_table, stderr, stdout};

const SECRET: &str = "hunter2";

/// Locations that contain the secret.
const LOCATIONS: [&str; 8] = [
    "https://me:hunter2@127.0.0.1:1/x.csv",
    "https://hunter2@127.0.0.1:1/x.csv",
    "http://127.0.0.1:1/x.csv?X-Amz-Signature=hunter2",
    "s3://AKIA0:hunter2@bucket/x.parquet",
    "s3://bucket/x.parquet?X-Amz-Security-Token=hunter2",
    "https://me:hun/ter2@127.0.0.1:1/hunter2@x.csv",
    "https://m e:hunter2@127.0.0.1:1/x.csv",
    "me:hunter2@127.0.0.1:1/x.csv",
];

/// Runs the binary and returns its exit code and its whole output, which must not contain the secret.
fn says(args: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = labelmill();
    command.args(args).envs(environment.iter().copied());
    let output = command.output().unwrap();
    let message = stdout(&output) + &stderr(&output);
    assert!(!message.contains(SECRET) && !message.contains("ter2"), "{args:?}\n{message}");
    (output.status.code(), message)
}

#[test]
fn a_location_with_a_secret_is_refused_by_every_command() {
    let job = Job::new();
    let crowd = job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let out = job.url("out");
    for url in LOCATIONS {
        let pipeline = |keys: &str| {
            job.write("pipeline.toml", &format!("{keys}\nmodel.kind = 'majority_vote'"))
        };
        let table = format!("t={url}");
        let annotate = ["--model", "majority_vote", "--annotations"];
        let commands = [
            [&["aggregate", "--output", &out][..], &annotate, &[url]].concat(),
            [&["aggregate", "--output", url][..], &annotate, &[&crowd]].concat(),
            [&["aggregate", "--gold", url, "--output", &out][..], &annotate, &[&crowd]].concat(),
            vec!["sql", "-c", "select 1", "--table", &table],
            vec!["sql", "-c", "select 1", "--run", url],
            vec!["evaluate", "--run", url, "--truth", &crowd],
            vec!["predict", "--model", url, "--features", &crowd, "--output", &out],
            vec!["simulate", "--recipe", "tanno-mnist", "--truth", url, "--output", &out],
        ];
        for args in commands {
            // Logging takes time, so only one location runs at the most verbose level.
            let levels: &[&str] = if url == LOCATIONS[0] { &["-q", "-vvv"] } else { &["-q"] };
            for level in levels {
                let (code, message) = says(&[&args[..], &[*level]].concat(), &[]);
                assert_eq!(code, Some(2), "{args:?}\n{message}");
                assert!(
                    message.contains("is refused") && message.contains("help:"),
                    "{args:?}\n{message}"
                );
            }
        }
        // All three commands load the pipeline in the same way, so two of them run with two locations only.
        let is_first_or_last = url == LOCATIONS[0] || url == LOCATIONS[7];
        let commands: &[&str] =
            if is_first_or_last { &["check", "run", "explain"] } else { &["check"] };
        for command in commands {
            for keys in [
                format!("source.annotations = \"{url}\""),
                format!("source.annotations = '{crowd}'\nsource.tables.extra = \"{url}\""),
                format!("source.annotations = '{crowd}'\nsink.url = \"{url}\""),
                format!(
                    "source.annotations = '{crowd}'\nsink.url = '{out}'\nstore.endpoint = \"{url}\""
                ),
            ] {
                let (code, message) = says(&[*command, &pipeline(&keys)], &[]);
                assert_eq!(code, Some(2), "{command} {keys}\n{message}");
                assert!(message.contains("is refused"), "{command} {keys}\n{message}");
            }
        }
        assert!(!Path::new(&out).exists(), "{url}");
    }
}

#[test]
fn no_message_repeats_a_secret_that_stands_in_the_wrong_place() {
    let job = Job::new();
    // The last location has no scheme, so nothing distinguishes its secret from other text.
    let (_, with_scheme) = LOCATIONS.split_last().unwrap();
    for url in with_scheme {
        let file = job.write("pipeline.toml", "source.annotations = [['i', 'a', 'x']]");
        let list = format!("sink.url=[\"{url}\"]");
        let key = format!("{url}=1");
        let model = format!("model.kind={url}");
        for args in [
            vec!["run", &file, "--set", &list],
            vec!["run", &file, "--set", url],
            vec!["run", &file, "--set", &key],
            vec!["run", &file, "--set", &model],
            vec!["run", url],
            vec!["run", &file, url],
            vec!["sql", "-c", "select 1", "--table", url],
            vec![url],
        ] {
            let (code, message) = says(&args, &[]);
            assert_eq!(code, Some(2), "{args:?}\n{message}");
        }
    }
}

#[test]
fn an_endpoint_of_the_environment_is_not_shown_either() {
    let endpoints = ["http://me:hunter2@127.0.0.1:1", "me:hunter2@127.0.0.1:1"];
    let retries = ["--set", "store.max_retries=0"];
    let job = [
        "aggregate",
        "--annotations",
        "s3://b/x.csv",
        "--model",
        "majority_vote",
        "--output",
        "s3://b/o",
    ];
    for level in ["-q", "-v", "-vv", "-vvv"] {
        for format in ["text", "json"] {
            let args = [&job[..], &retries, &[level, "--log-format", format]].concat();
            for endpoint in endpoints.map(|url| ("AWS_ENDPOINT_URL", url)) {
                let keys = [endpoint, ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y")];
                let (code, message) = says(&args, &keys);
                assert_eq!(code, Some(2), "{message}");
            }
        }
    }
}

#[test]
fn no_file_of_a_run_holds_a_secret_of_the_spec() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,y\n");
    let run = job.run(
        "source.annotations = '{dir}in.csv'
         source.sql.annotations = '''select * from annotations -- see https://me:hunter2@host/x?sig=hunter2'''
         model.kind = 'majority_vote'
         sink.compression = 'none'
         [[test]]
         name = 'https://me:hunter2@host'
         expect.labels = [{ label = 'x' }]",
    );
    let spec = read_table(&run, "run")[0]["spec"].clone().unwrap();
    assert!(spec.contains("https://***@host/x?***"), "{spec}");
    let is_secret = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
    let mut folders = vec![job.path("out")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files += 1;
                assert!(!is_secret(&std::fs::read(&path).unwrap()), "{}", path.display());
            }
        }
    }
    assert!(files > 12, "{files}");
}

#[test]
fn an_endpoint_that_is_no_url_is_refused_and_not_shown() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    for (endpoint, message) in [
        ("u:hunter2@h:9", "a URL with a user or a password in it is refused"),
        ("hunter2:pw@h", "a URL with a user or a password in it is refused"),
        ("me@hunter2", "the endpoint is no URL of a server"),
        ("ftp://h:9/hunter2", "the endpoint is no URL of a server"),
    ] {
        let pipeline = format!(
            "source.annotations = '{{dir}}in.csv'\nmodel.kind = 'majority_vote'\nstore.endpoint = '{endpoint}'\n"
        );
        let error = job.fails(&pipeline, 2);
        assert_says(&error, &[message, "store.endpoint", "help:"]);
        assert!(!error.contains("hunter2"), "{error}");
    }
}
