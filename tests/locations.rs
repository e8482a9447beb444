//! Which files a location reaches: links, patterns, and characters with a special meaning elsewhere.

use std::os::unix::fs::symlink;

use crate::job::{Job, assert_says, cells};
use crate::support::{read_table, run_fails, run_ok};

const ROWS: &str = "instance_id,annotator_id,label\n";

fn file(job: &Job, name: &str, instance: &str) {
    std::fs::create_dir_all(job.path(name).parent().unwrap()).unwrap();
    job.write(name, &format!("{ROWS}{instance},a,x\n"));
}

/// The instances of a run over this location.
fn instances(location: &str) -> Vec<String> {
    let elsewhere = Job::new();
    let out = elsewhere.url("out");
    let model = ["--model", "majority_vote", "--output", &out];
    run_ok(&[&["aggregate", "-q", "--annotations", location], &model[..]].concat());
    let run = elsewhere.path("out/latest").canonicalize().unwrap();
    cells(&read_table(&run, "labels"), &["instance_id"])
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
    let elsewhere = Job::new();
    for location in [job.url("A"), job.url(""), job.url("**/*.csv")] {
        let args = ["aggregate", "--annotations", &location, "--model", "majority_vote"];
        let error = run_fails(&[&args[..], &["--output", &elsewhere.url("out")]].concat(), 3);
        assert_says(&error, &["a link leads back to a folder above it", "remove it"]);
    }
    assert_eq!(instances(&job.url("*.csv")), ["top"]);
    assert_eq!(instances(&job.url("A/*.csv")), ["a"]);
    assert_eq!(instances(&job.url("[B]/*.csv")), ["b"]);
    // A folder that is reached twice, by its name and by a link, is not a circle.
    file(&job, "C/real/c.csv", "c");
    symlink("real", job.path("C/again")).unwrap();
    assert_eq!(instances(&job.url("C")), ["c"]);
}

#[test]
fn a_folder_is_meant_by_its_own_name_whatever_characters_are_in_it() {
    let job = Job::new();
    file(&job, "d[1]/a.csv", "brackets");
    file(&job, "d1/a.csv", "one");
    file(&job, "d[1]/deep?/a.csv", "deep");
    assert_eq!(instances(&job.url("d[1]/*.csv")), ["brackets"]);
    assert_eq!(instances(&job.url("d[1]/deep?/*.csv")), ["deep"]);
    assert_eq!(instances(&job.url("d?/*.csv")), ["one"]);
}

#[test]
fn what_lies_before_two_dots_is_a_folder_and_no_pattern() {
    let job = Job::new();
    file(&job, "x.csv", "above");
    file(&job, "d[1]/x.csv", "within");
    file(&job, "d[1]/part-1.csv", "part");
    assert_eq!(instances(&job.url("d[1]/../x.csv")), ["above"]);
    assert_eq!(instances(&job.url("d[1]/../d[1]/x.csv")), ["within"]);
    assert_eq!(instances(&job.url("d[1]/../d*/part-*.csv")), ["part"]);
    let args = ["aggregate", "--model", "majority_vote", "--output", &job.url("out")];
    let location = job.url("d*/../x.csv");
    let error = run_fails(&[&args[..], &["--annotations", &location]].concat(), 2);
    assert_says(&error, &["cannot go up", "d*/../x.csv", "without `..`"]);
}

#[test]
fn a_file_that_is_not_there_is_said_so_beside_a_manifest_of_somebody_else() {
    for name in ["manifest.json", "latest.json"] {
        let job = Job::new();
        job.write(name, "{\"version\": 3}");
        file(&job, "crowd.csv", "i");
        let args = ["aggregate", "--model", "majority_vote", "--output", &job.url("out")];
        let location = job.url("crowdd.csv");
        let error = run_fails(&[&args[..], &["--annotations", &location]].concat(), 8);
        assert_says(&error, &["no such file", "a file `crowd.csv` beside it"]);
    }
}

#[test]
fn signs_of_the_web_are_part_of_a_name_elsewhere() {
    let job = Job::new();
    for name in ["run", "run#3", "run?3"] {
        file(&job, &format!("{name}/a.csv"), name);
    }
    for name in ["run", "run#3", "run?3"] {
        assert_eq!(instances(&job.url(name)), [name]);
        assert_eq!(instances(&format!("file://{}", job.url(name))), [name]);
    }
    let output = format!("file://{}", job.url("out#7"));
    let input = job.url("run");
    let args = ["aggregate", "-q", "--annotations", &input, "--model", "majority_vote"];
    run_ok(&[&args[..], &["--output", &output]].concat());
    assert!(job.path("out#7/latest.json").exists());
}

#[test]
fn a_name_without_a_format_still_tells_its_compression() {
    let job = Job::new();
    file(&job, "rows", "packed");
    let gzip = std::process::Command::new("gzip").arg(job.path("rows")).status().unwrap();
    assert!(gzip.success());
    let args = ["aggregate", "-q", "--model", "majority_vote", "--set", "source.format=csv"];
    let (input, output) = (job.url("rows.gz"), job.url("out"));
    run_ok(&[&args[..], &["--annotations", &input, "--output", &output]].concat());
}

#[test]
fn tables_of_one_name_to_sql_are_refused_before_anything_is_read() {
    let job = Job::new();
    for (tables, what) in [
        ("People = 'a.csv'\npeople = 'b.csv'", "`people` is taken"),
        ("Annotations = 'a.csv'", "`Annotations` is taken"),
        ("'a.b' = 'a.csv'", "`a.b` holds a dot"),
    ] {
        let error = job.fails(
            &format!("source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'\n[source.tables]\n{tables}\n"),
            2,
        );
        assert_says(&error, &[what, "source.tables."]);
    }
}

#[test]
fn a_query_in_a_file_with_a_space_in_its_name_is_read() {
    let job = Job::new();
    let query =
        job.write("my query.sql", "select 'i' as instance_id, 'a' as annotator_id, 'x' as label");
    let run = job.run(&format!(
        "source.annotations = [['j', 'a', 'x']]\nsource.sql.annotations = '{query}'\nmodel.kind = 'majority_vote'"
    ));
    assert_eq!(cells(&read_table(&run, "labels"), &["instance_id"]), ["i"]);
}
