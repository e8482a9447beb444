//! The queries of `sql/`, on a run without questions, on one with two, and on one with features.

use labelmill::sql::NAMED_QUERIES;
use serde_json::Value;

use crate::job::Job;
use crate::support::{run_fails, run_ok, stdout};

/// i3 is a tie, and i4 has no label.
const VOTES: &str = "\
item,worker,label,annotated_at
i1,a,yes,2026-01-05T10:00:00
i1,b,yes,2026-01-06T10:00:00
i1,c,no,2026-01-12T10:00:00
i2,a,no,2026-01-13T10:00:00
i2,b,no,2026-01-13T10:00:00
i3,a,yes,2026-01-13T10:00:00
i3,b,no,2026-01-18T23:00:00
i4,a,,2026-01-13T10:00:00
";

const GOLD: &str = "item,class,role\ni1,yes,holdout\ni3,yes,holdout\n";

const PIPELINE: &str = r#"
[source]
annotations = "{dir}votes.csv"
gold = "{dir}gold.csv"
columns = { instance = "item", annotator = "worker" }
[model]
kind = "majority_vote"
"#;

fn without_questions() -> Job {
    let job = Job::new();
    job.write("votes.csv", VOTES);
    job.write("gold.csv", GOLD);
    job.run(PIPELINE);
    job
}

/// The same rows for each of two questions, whose annotators are one.
fn with_questions() -> Job {
    let job = Job::new();
    let rows = |text: &str| -> String {
        let (head, rows) = text.split_once('\n').unwrap();
        let of = |q: &'static str| rows.lines().map(move |row| format!("{row},{q}\n"));
        format!("{head},question\n{}", of("p").chain(of("q")).collect::<String>())
    };
    job.write("votes.csv", &rows(VOTES));
    job.write("gold.csv", &rows(GOLD));
    job.run(&PIPELINE.replace("majority_vote", "dawid_skene"));
    job
}

/// The rows of a query, as lines of JSON.
fn query(job: &Job, name: &str, arguments: &[&str]) -> String {
    let out = job.url("out");
    let arguments = [&["sql", "--json", "--run", &out, "--query", name], arguments].concat();
    stdout(&run_ok(&arguments))
}

#[track_caller]
fn assert_rows(job: &Job, name: &str, arguments: &[&str], expected: &[&str]) {
    let parsed = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let found: Vec<Value> = query(job, name, arguments).lines().map(parsed).collect();
    let expected: Vec<Value> = expected.iter().map(|line| parsed(line)).collect();
    assert_eq!(found, expected, "{name}");
}

#[test]
fn queries_of_a_run_without_questions_give_the_rows_worked_out_by_hand() {
    let job = without_questions();
    let third = 1.0 / 3.0;
    assert_rows(
        &job,
        "review_queue",
        &["--param", "n=2"],
        &[
            r#"{"instance_id":"i4","n_annotations":0,"decision":"abstained"}"#,
            r#"{"instance_id":"i3","label":"no","confidence":0.5,"second":"yes","margin":0.0,"n_annotations":2,"decision":"tied"}"#,
        ],
    );
    assert_rows(
        &job,
        "split_instances",
        &["--param", "n=1"],
        &[
            r#"{"instance_id":"i3","n_annotations":2,"top_share":0.5,"n_labels":2,"label":"no","confidence":0.5}"#,
        ],
    );
    assert_rows(
        &job,
        "coverage",
        &[],
        &[
            r#"{"n_annotations":0,"n_instances":1,"share":0.25,"tied":0,"abstained":1}"#,
            r#"{"n_annotations":2,"n_instances":2,"share":0.5,"confidence":0.75,"tied":1,"abstained":0}"#,
            &format!(
                r#"{{"n_annotations":3,"n_instances":1,"share":0.25,"confidence":{},"tied":0,"abstained":0}}"#,
                2.0 / 3.0
            ),
        ],
    );
    assert_rows(
        &job,
        "work_by_week",
        &[],
        &[
            r#"{"week":"2026-01-05T00:00:00","annotator_id":"a","n_annotations":1,"agreement":1.0}"#,
            r#"{"week":"2026-01-05T00:00:00","annotator_id":"b","n_annotations":1,"agreement":1.0}"#,
            r#"{"week":"2026-01-12T00:00:00","annotator_id":"a","n_annotations":2,"agreement":0.5}"#,
            r#"{"week":"2026-01-12T00:00:00","annotator_id":"b","n_annotations":2,"agreement":1.0}"#,
            r#"{"week":"2026-01-12T00:00:00","annotator_id":"c","n_annotations":1,"agreement":0.0}"#,
        ],
    );
    assert_rows(
        &job,
        "gold_against_labels",
        &[],
        &[
            r#"{"role":"holdout","class":"yes","label":"no","n":1,"confidence":0.5}"#,
            &format!(
                r#"{{"role":"holdout","class":"yes","label":"yes","n":1,"confidence":{}}}"#,
                2.0 / 3.0
            ),
        ],
    );
    assert_rows(
        &job,
        "soft_labels",
        &[],
        &[
            &format!(r#"{{"instance_id":"i1","no":{third},"yes":{}}}"#, 2.0 * third),
            r#"{"instance_id":"i2","no":1.0,"yes":0.0}"#,
            r#"{"instance_id":"i3","no":0.5,"yes":0.5}"#,
        ],
    );
    assert_rows(
        &job,
        "rejects_by_reason",
        &[],
        &[r#"{"reason":"null_label","count":1,"share":0.125,"values":["i4"]}"#],
    );
    let annotators = query(&job, "annotators_by_skill", &[]);
    let order: Vec<&str> = annotators.lines().map(|line| &line[..20]).collect();
    assert_eq!(
        order,
        [r#"{"annotator_id":"c","#, r#"{"annotator_id":"a","#, r#"{"annotator_id":"b","#]
    );
    // a and b give "yes" two and one times in three: by chance they would agree on 4 of 9.
    let pairs = query(&job, "agreement_of_pairs", &["--param", "min_n=1"]);
    let of_a_and_b: Value = serde_json::from_str(pairs.lines().last().unwrap()).unwrap();
    assert_eq!(pairs.lines().count(), 3);
    assert_eq!((&of_a_and_b["annotator_id"], &of_a_and_b["other_id"]), (&"a".into(), &"b".into()));
    let is = |name: &str, value: f64| (of_a_and_b[name].as_f64().unwrap() - value).abs() < 1e-12;
    assert!(is("agreement", 2.0 / 3.0) && is("kappa", 0.4), "{pairs}");
    let copies = ["--param", "min_n=1", "--param", "min_agreement=0.6"];
    assert_eq!(query(&job, "near_copies", &copies).lines().count(), 1);
    assert!(query(&job, "near_copies", &copies[..2]).is_empty());
}

/// Of five annotations of class "yes", c's of i1 and b's of i3 are wrong.
#[test]
fn queries_of_a_run_with_features_give_the_rows_worked_out_by_hand() {
    let job = Job::new();
    job.write("votes.csv", VOTES);
    job.write("gold.csv", "item,class,role\ni1,yes,train\ni2,no,train\ni3,yes,train\n");
    job.write("features.csv", "item,x\ni1,1.0\ni2,-1.0\ni3,0.9\ni4,0.1\n");
    let source = "[source]\nfeatures = \"{dir}features.csv\"";
    job.run(&PIPELINE.replace("[source]", source).replace("majority_vote", "gem"));
    assert_rows(
        &job,
        "confused_classes",
        &[],
        &[r#"{"class":"yes","label":"no","expected_count":2.0,"share":0.4,"n_annotators":2}"#],
    );
    let shares = query(&job, "class_shares", &[]);
    let shares = shares.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    for (row, (class, n)) in shares.zip([("no", 1), ("yes", 2)]) {
        assert_eq!((&row["class"], &row["n_labels"]), (&class.into(), &n.into()));
        for share in ["label_share", "expected_share", "prior"] {
            let found = row[share].as_f64().unwrap();
            assert!((found - f64::from(n) / 3.0).abs() < 1e-9, "{row}");
        }
    }
    for named in NAMED_QUERIES {
        let may_be_empty = ["near_copies", "agreement_of_pairs"].contains(&named.name);
        assert!(may_be_empty || !query(&job, named.name, &[]).is_empty(), "{}", named.name);
    }
}

#[test]
fn every_query_holds_for_each_question() {
    let job = with_questions();
    for named in NAMED_QUERIES {
        let found = query(&job, named.name, &[]);
        let of = |q: &str| {
            let begin = format!("{{\"question\":\"{q}\",");
            let rows = found.lines().filter(|line| line.starts_with(&begin));
            rows.map(|line| line.replacen(&begin, "{", 1)).collect::<Vec<_>>()
        };
        // Both questions have the same rows.
        assert_eq!(of("p"), of("q"), "{}", named.name);
        // The pairs of so few instances may have none.
        let may_be_empty = ["near_copies", "agreement_of_pairs"].contains(&named.name);
        assert!(may_be_empty || !of("p").is_empty(), "{}: {found}", named.name);
    }
}

#[test]
fn a_query_says_what_it_lacks() {
    let job = without_questions();
    let out = job.url("out");
    let fails = |arguments: &[&str]| run_fails(&[&["sql", "--run", &out], arguments].concat(), 2);
    assert!(fails(&["--query", "coverag"]).contains("coverage"));
    assert!(fails(&["--query", "review_queue", "--param", "n=ten"]).contains("is a number"));
    assert!(fails(&["--query", "coverage", "--param", "n=1"]).contains("has no parameters"));
    // The files of the run are gone, and are given at another place.
    let moved = job.write("moved.csv", VOTES);
    std::fs::remove_file(job.path("votes.csv")).unwrap();
    let table = format!("annotations={moved}");
    query(&job, "split_instances", &["--table", &table]);
    for (table, said) in [
        ("anotations=/nope.csv", "did you mean `annotations`?"),
        ("nonsense", "write --table name=URL"),
    ] {
        let error = fails(&["--query", "split_instances", "--table", table]);
        assert!(error.contains(said), "{error}");
        // Also where the query reads none of the sources.
        assert!(fails(&["--query", "coverage", "--table", table]).contains(said));
    }
    let list = stdout(&run_ok(&["sql", "--list"]));
    assert!(NAMED_QUERIES.iter().all(|query| list.contains(query.name)), "{list}");
    assert!(list.contains("\n    skill_low: the lower end of its interval"), "{list}");
}

/// The labels and the ids of one annotator are floats, as pandas writes integers beside a missing value.
#[test]
fn queries_read_equal_numbers_as_the_run_did() {
    for (zero, one) in [("0", "1"), ("0.5", "1.5")] {
        let job = Job::new();
        let other =
            |text: &str| if text.contains('.') { format!("{text}0") } else { format!("{text}.0") };
        let mut votes = "item,worker,label,annotated_at\n".to_owned();
        for item in 1..=2 {
            let label = if item == 1 { zero } else { one };
            let time = "2026-01-06T10:00:00";
            for worker in ["a", "b"] {
                votes += &format!("{item},{worker},{label},{time}\n");
            }
            votes += &format!("{item}.0,c,{},{time}\n", other(label));
        }
        job.write("votes.csv", &votes);
        job.write("gold.csv", &format!("item,class,role\n1.0,{},holdout\n", other(zero)));
        job.run(PIPELINE);
        let split = query(&job, "split_instances", &[]);
        assert!(
            split.lines().count() == 2 && split.matches("\"top_share\":1.0,").count() == 2,
            "{split}"
        );
        let work = query(&job, "work_by_week", &[]);
        assert_eq!(work.matches("\"n_annotations\":2,\"agreement\":1.0").count(), 3, "{work}");
        let gold = query(&job, "gold_against_labels", &[]);
        let shown =
            |text: &str| if text.contains('.') { format!("\"{text}\"") } else { text.to_owned() };
        let pair = format!("\"class\":{0},\"label\":{0},\"n\":1", shown(zero));
        assert!(gold.contains(&pair), "{gold}");
    }
}

/// The labels of one question are words, so that those of the other are text as well.
#[test]
fn queries_read_the_equal_numbers_of_one_question_as_the_run_did() {
    let job = Job::new();
    let mut votes = "item,worker,label,question\n".to_owned();
    for (worker, one) in [("a", "1"), ("b", "1"), ("c", "1.0")] {
        votes +=
            &format!("i1,{worker},{one},p\ni2,{worker},0,p\ni1,{worker},yes,q\ni2,{worker},no,q\n");
    }
    job.write("votes.csv", &votes);
    job.write("gold.csv", "item,class,role,question\ni1,1.0,holdout,p\n");
    job.run(PIPELINE);
    let split = query(&job, "split_instances", &[]);
    let unanimous = split.matches("\"n_annotations\":3,\"top_share\":1.0,\"n_labels\":1,").count();
    assert_eq!((split.lines().count(), unanimous), (4, 4), "{split}");
    let gold = query(&job, "gold_against_labels", &[]);
    assert!(gold.contains("\"class\":\"1\",\"label\":\"1\""), "{gold}");
}
