//! A job to which the system gives too little memory, or too few threads or files, ends with an error that says so.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::job::{Job, assert_says};
use crate::support::{labelmill, stderr, write_numbers};

/// The exit code and the messages of Dawid-Skene on `input`, after a shell has set a limit.
fn limited(job: &Job, limit: &str, input: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{limit}; exec \"$@\""), "bash"]).arg(labelmill().get_program());
    command.args(["aggregate", "-q", "--force", "--model", "dawid_skene"]);
    command.args(["--annotations", &job.url(input), "--output", &job.url("out")]);
    let output = command.output().unwrap();
    (output.status.code(), stderr(&output))
}

/// Runs the job under growing limits of the address space, from one that just lets the process start.
#[test]
fn too_little_memory_is_neither_a_defect_nor_the_damage_of_a_file() {
    let job = Job::new();
    let rows: Vec<(u32, u32, u32)> = (0..200_000).map(|n| (n / 4, n % 97, n % 3)).collect();
    write_numbers(&job.path("in.parquet"), &rows);
    let (mut refused, mut enough) = (0, 0);
    for megabytes in (300..2_000).step_by(20) {
        // Larger limits are nearly always enough too.
        if enough == 2 {
            break;
        }
        match limited(&job, &format!("ulimit -v {}", megabytes * 1024), "in.parquet") {
            (Some(0), _) => enough += 1,
            (Some(2), printed) => {
                (refused, enough) = (refused + 1, 0);
                assert_says(&printed, &["error: ", "memory", "help: "]);
                let errors = printed.lines().filter(|line| line.starts_with("error: "));
                assert_eq!(errors.count(), 1, "{printed}");
            }
            (code, printed) => panic!("{code:?} with {megabytes} MB: {printed}"),
        }
    }
    assert!(refused > 0 && enough == 2, "{refused} limits were too small, {enough} enough");
}

/// From the fewest files with which the process starts.
#[test]
fn too_few_open_files_are_distinguished_from_a_failing_disk() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let is_enough = |files: &u32| match limited(&job, &format!("ulimit -n {files}"), "in.csv") {
        (Some(0), _) => true,
        (Some(2), printed) => {
            let help = "help: allow this process (ulimit -n";
            assert_says(&printed, &["opens no more files", "Too many open files", help]);
            false
        }
        (code, printed) => panic!("{code:?} with {files} files: {printed}"),
    };
    let enough = (4..64).find(is_enough);
    assert!(enough.is_some_and(|files| files > 4), "{enough:?}");
}

#[test]
fn an_invalid_number_of_workers_is_an_error_that_names_the_variable() {
    let mut command = labelmill();
    let output = command.args(["models"]).env("TOKIO_WORKER_THREADS", "0").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_says(
        &stderr(&output),
        &["cannot be set to 0", "help: leave TOKIO_WORKER_THREADS unset"],
    );
}

/// The job runs as another user: a limit on processes does not bind the superuser, and it counts everything else that
/// a user runs.
#[test]
fn a_job_ends_where_the_system_gives_few_threads() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    std::fs::set_permissions(job.path(""), Permissions::from_mode(0o777)).unwrap();
    let code = |limit: &str, out: &str| {
        let script = format!("{limit}; exec \"$@\"");
        let mut command = Command::new("timeout");
        command.args(["60", "bash", "-c", &script, "bash", "setpriv", "--reuid=65531"]);
        command.args(["--regid=65531", "--clear-groups"]).arg(labelmill().get_program());
        command.args(["aggregate", "--model", "dawid_skene", "--annotations", &job.url("in.csv")]);
        let output = command.args(["--output", &job.url(out)]).output().ok()?;
        Some((output.status.code(), stderr(&output)))
    };
    if code("true", "free").is_none_or(|(code, _)| code != Some(0)) {
        let why = "skipped: nobody may run this program as another user here";
        writeln!(std::io::stderr(), "{why}").unwrap();
        return;
    }
    for threads in 2..8 {
        let (code, printed) = code(&format!("ulimit -u {threads}"), "out").unwrap();
        assert!([Some(0), Some(2)].contains(&code), "{threads}: {code:?} {printed}");
    }
}
