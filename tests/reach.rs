//! What a location reaches: links, patterns, and characters that mean something elsewhere.

use std::os::unix::fs::symlink;

use crate::job::{Job, assert_says, cells};
use crate::support::{read_table, run_fails, run_ok};

const ROWS: &str = "instance_id,annotator_id,label\n";

fn file(job: &Job, name: &str, instance: &str) {
    std::fs::create_dir_all(job.path(name).parent().unwrap()).unwrap();
    job.write(name, &format!("{ROWS}{instance},a,x\n"));
}

/// The instances of a run over this location.
fn instances(job: &Job, location: &str) -> Vec<String> {
    let out = job.url("out");
    let model = ["--model", "majority_vote", "--output", &out, "--force"];
    run_ok(&[&["aggregate", "-q", "--annotations", location], &model[..]].concat());
    cells(&read_table(&job.path("out/latest").canonicalize().unwrap(), "labels"), &["instance_id"])
}

#[test]
fn folders_that_link_to_each_other_are_a_circle_and_only_where_they_are_read() {
    let job = Job::new();
    file(&job, "top.csv", "top");
    file(&job, "A/a.csv", "a");
    file(&job, "B/b.csv", "b");
    for n in 0..6 {
        symlink("../B", job.path(&format!("A/x{n}"))).unwrap();
        symlink("../A", job.path(&format!("B/y{n}"))).unwrap();
    }
    for location in [job.url("A"), job.url(""), job.url("**/*.csv")] {
        let args = ["aggregate", "--annotations", &location, "--model", "majority_vote"];
        let error = run_fails(&[&args[..], &["--output", &job.url("out")]].concat(), 3);
        assert_says(&error, &["a link leads back to a folder above it", "remove it"]);
    }
    assert_eq!(instances(&job, &job.url("*.csv")), ["top"]);
    assert_eq!(instances(&job, &job.url("A/*.csv")), ["a"]);
    assert_eq!(instances(&job, &job.url("[B]/*.csv")), ["b"]);
    // A folder that two links lead to is no circle.
    file(&job, "C/real/c.csv", "c");
    symlink("real", job.path("C/again")).unwrap();
    assert_eq!(instances(&job, &job.url("C")), ["c"]);
}

#[test]
fn a_folder_is_meant_by_its_own_name_whatever_characters_are_in_it() {
    let job = Job::new();
    file(&job, "d[1]/a.csv", "brackets");
    file(&job, "d1/a.csv", "one");
    file(&job, "d[1]/deep?/a.csv", "deep");
    assert_eq!(instances(&job, &job.url("d[1]/*.csv")), ["brackets"]);
    assert_eq!(instances(&job, &job.url("d[1]/deep?/*.csv")), ["deep"]);
    assert_eq!(instances(&job, &job.url("d?/*.csv")), ["one"]);
}

#[test]
fn signs_of_the_web_are_part_of_a_name_elsewhere() {
    let job = Job::new();
    for name in ["run", "run#3", "run?3"] {
        file(&job, &format!("{name}/a.csv"), name);
    }
    for name in ["run", "run#3", "run?3"] {
        assert_eq!(instances(&job, &job.url(name)), [name]);
        assert_eq!(instances(&job, &format!("file://{}", job.url(name))), [name]);
    }
    let output = format!("file://{}", job.url("out#7"));
    let input = job.url("run");
    let args = ["aggregate", "-q", "--annotations", &input, "--model", "majority_vote"];
    run_ok(&[&args[..], &["--output", &output]].concat());
    assert!(job.path("out#7/latest.json").exists());
}
