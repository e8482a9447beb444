//! `labelmill sql` reads and changes nothing, unless `--write` allows it.

use crate::job::{Job, assert_says};
use crate::support::{run_fails, run_ok, stdout};

/// Statements that write or change something, each with the word that its error names; `OUT` is a file.
const CHANGES: [(&str, &str); 14] = [
    ("copy t to 'OUT'", "COPY"),
    ("copy (select 1) to 'OUT' stored as csv", "COPY"),
    ("create table made as select 1", "CREATE"),
    ("create or replace view v as select 1", "CREATE"),
    ("create external table e stored as csv location 'OUT'", "CREATE"),
    ("drop table t", "DROP"),
    ("insert into t values ('x')", "INSERT"),
    ("set datafusion.execution.batch_size = 1", "SET"),
    ("prepare p as select 1", "PREPARE"),
    ("explain copy t to 'OUT'", "COPY"),
    ("explain analyze copy t to 'OUT'", "COPY"),
    ("select 1; copy t to 'OUT'", "COPY"),
    ("/* select */ copy t to 'OUT'", "COPY"),
    ("CoPy t to 'OUT'", "COPY"),
];

#[test]
fn whatever_changes_something_is_refused_by_name() {
    let job = Job::new();
    let table = format!("t={}", job.write("in.csv", "a\nx\n"));
    for (statement, word) in CHANGES {
        let statement = statement.replace("OUT", &job.url("written.csv"));
        let error = run_fails(&["sql", "--table", &table, "-c", &statement], 2);
        assert_says(&error, &[&format!("{word} is refused"), "help:", "--write"]);
        assert!(!job.path("written.csv").exists(), "{statement}");
        let file = job.write("query.sql", &statement);
        assert_says(&run_fails(&["sql", "--table", &table, &file], 2), &["is refused"]);
    }
}

#[test]
fn with_write_statements_run_one_after_the_other() {
    let job = Job::new();
    let table = format!("t={}", job.write("in.csv", "a\nx\n"));
    let written = job.url("written.csv");
    let statements = format!(
        "create table two as select a, 2 as n from t; copy two to '{written}'; select n from two"
    );
    let rows = stdout(&run_ok(&["sql", "--write", "--json", "--table", &table, "-c", &statements]));
    assert!(rows.trim_end().ends_with("{\"n\":2}"), "{rows}");
    assert_eq!(std::fs::read_to_string(&written).unwrap(), "a,n\nx,2\n");
}

#[test]
fn queries_need_no_right() {
    let job = Job::new();
    let table = format!("t={}", job.write("in.csv", "a\nx\n"));
    for query in [
        "with c as (select a from t) select * from c union all select 'copy t to y'",
        "explain analyze select * from t",
        "show tables",
        "describe t",
        "values (1), (2)",
        "select 1; select 2",
    ] {
        run_ok(&["sql", "--table", &table, "-c", query]);
    }
}
