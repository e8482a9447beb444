//! `labelmill agreement`, and the table `agreement` of a run.

use serde_json::Value;

use crate::job::Job;
use crate::support::{read_table, run_fails, run_ok, stdout};

/// Two annotators of four instances and one of a fifth; of the first question they agree on 3 of 4.
const VOTES: &str = "\
item,worker,label,site,question
i1,a,yes,x,p
i1,b,yes,x,p
i2,a,no,x,p
i2,b,no,x,p
i3,a,yes,y,p
i3,b,no,y,p
i4,a,no,y,p
i4,b,no,y,p
i5,a,yes,,p
i1,a,u,x,q
i1,b,v,x,q
";

const COLUMNS: [&str; 4] =
    ["--set", "source.columns.instance=item", "--set", "source.columns.annotator=worker"];

/// The votes of the first question, without its name.
fn one_question() -> String {
    let rows = VOTES.lines().filter(|row| !row.ends_with(",q"));
    let rows = rows.map(|row| row.rsplit_once(',').unwrap().0);
    rows.map(|row| format!("{row}\n")).collect()
}

fn measured(job: &Job, more: &[&str]) -> Value {
    let votes = job.url("votes.csv");
    let shown =
        run_ok(&[&["agreement", "--json", "--annotations", &votes], &COLUMNS[..], more].concat());
    serde_json::from_str(&stdout(&shown)).unwrap()
}

/// The value of a statistic; `None` where it is null.
#[track_caller]
fn value(measured: &Value, question: Option<&str>, group: &str, statistic: &str) -> Option<f64> {
    let rows = measured["agreement"].as_array().unwrap().iter();
    let mut found = rows.filter(|row| {
        row["statistic"] == statistic
            && row["group"] == group
            && row.get("question").and_then(Value::as_str) == question
    });
    let row = found.next().unwrap_or_else(|| panic!("{question:?} {group} {statistic}"));
    assert!(found.next().is_none());
    row["value"].as_f64()
}

#[track_caller]
fn assert_near(got: Option<f64>, want: f64) {
    assert!(got.is_some_and(|got| (got - want).abs() < 1e-12), "{got:?} is not {want}");
}

#[test]
fn annotators_are_compared_as_a_whole_by_class_and_by_the_groups_of_a_column() {
    let job = Job::new();
    job.write("votes.csv", &one_question());
    let all = measured(&job, &["--by", "site"]);
    assert_near(value(&all, None, "all", "percent_agreement"), 0.75);
    // 5 of 8 answers say no: chance agrees on 25/64 + 9/64.
    assert_near(value(&all, None, "all", "scott_pi"), (0.75 - 34.0 / 64.0) / (30.0 / 64.0));
    // Of two classes, each against the other is the same. i5 counts in the shares: the mean share of yes is
    // (1 + 0 + 1/2 + 0 + 1) / 5.
    let expected = 0.25 + 0.25;
    for group in ["all", "class=no", "class=yes"] {
        assert_near(value(&all, None, group, "fleiss_kappa"), (0.75 - expected) / (1.0 - expected));
    }
    assert_near(value(&all, None, "site=x", "percent_agreement"), 1.0);
    assert_near(value(&all, None, "site=x", "scott_pi"), 1.0);
    assert_near(value(&all, None, "site=y", "percent_agreement"), 0.5);
    // Both classes count in a group that has one of them.
    assert_near(value(&all, None, "site=y", "brennan_prediger"), 0.0);
    let warning = "annotations without a value in `site` are in none of its groups: 1";
    assert_eq!(all["warnings"].as_array().unwrap(), &[warning]);
    let shown = stdout(&run_ok(
        &[&["agreement", "--annotations", &job.url("votes.csv")], &COLUMNS[..]].concat(),
    ));
    assert!(shown.trim_start().starts_with("group"), "{shown}");
    assert!(shown.contains("percent_agreement") && shown.contains("0.750000"), "{shown}");
    assert!(shown.contains("not defined"), "{shown}");
}

#[test]
fn questions_are_never_compared_with_each_other() {
    let job = Job::new();
    job.write("votes.csv", VOTES);
    let all = measured(&job, &["--by", "site"]);
    assert_near(value(&all, Some("p"), "all", "percent_agreement"), 0.75);
    assert_near(value(&all, Some("q"), "all", "percent_agreement"), 0.0);
    assert_near(value(&all, Some("p"), "site=x", "percent_agreement"), 1.0);
    assert_near(value(&all, Some("q"), "site=x", "percent_agreement"), 0.0);
    assert_near(value(&all, Some("p"), "site=y", "percent_agreement"), 0.5);
}

#[test]
fn the_order_of_rows_changes_nothing_and_numbers_are_on_a_scale() {
    let job = Job::new();
    let rows: Vec<String> = (0..60)
        .map(|n| {
            format!("i{},{},{}\n", n / 3, ["a", "b", "c"][n % 3], 8 + (n / 3 + n % 3 * n % 5) % 4)
        })
        .collect();
    let write = |rows: String| job.write("votes.csv", &format!("item,worker,label\n{rows}"));
    write(rows.concat());
    let before = measured(&job, &[]);
    write(rows.iter().rev().cloned().collect());
    assert_eq!(measured(&job, &[]), before);
    // 9 before 10: as text it would be the last.
    let groups = before["agreement"].as_array().unwrap().iter().map(|row| &row["group"]);
    let groups: Vec<&str> = groups.filter_map(Value::as_str).filter(|g| *g != "all").collect();
    assert_eq!(groups, ["class=8", "class=9", "class=10", "class=11"]);
    for name in ["krippendorff_ordinal", "krippendorff_interval", "gwet_ac2_quadratic"] {
        let row = before["agreement"].as_array().unwrap().iter().find(|r| r["statistic"] == name);
        let row = row.unwrap();
        let [low, value, high] = ["low", "value", "high"].map(|key| row[key].as_f64().unwrap());
        assert!(low <= value && value <= high && low < high, "{row}");
    }
}

#[test]
fn one_class_and_single_annotations_have_no_agreement_beyond_chance() {
    let job = Job::new();
    job.write("votes.csv", "item,worker,label\ni1,a,x\ni1,b,x\ni2,a,x\ni2,b,x\n");
    let one = measured(&job, &[]);
    assert_near(value(&one, None, "all", "percent_agreement"), 1.0);
    for name in ["scott_pi", "fleiss_kappa", "krippendorff_nominal", "gwet_ac1", "cohen_kappa"] {
        assert_eq!(value(&one, None, "all", name), None, "{name}");
    }
    // With a second class that nobody chose, Gwet's chance has something to choose.
    let listed = measured(&job, &["--set", "frame.classes=[\"x\", \"y\"]"]);
    assert_near(value(&listed, None, "all", "gwet_ac1"), 1.0);
    job.write("votes.csv", "item,worker,label\ni1,a,x\ni2,b,y\n");
    let single = measured(&job, &[]);
    assert_eq!(value(&single, None, "all", "percent_agreement"), None);
    let warning = "no instance has two annotators: no agreement is defined";
    assert!(single["warnings"].as_array().unwrap().contains(&warning.into()), "{single}");
}

#[test]
fn what_cannot_be_measured_names_its_option() {
    let job = Job::new();
    let votes = job.write("votes.csv", &one_question());
    let fails = |more: &[&str], code| {
        run_fails(&[&["agreement", "--annotations", &votes], &COLUMNS[..], more].concat(), code)
    };
    let unknown = fails(&["--by", "sit"], 3);
    assert!(unknown.contains("no column `sit`") && unknown.contains("did you mean `site`?"));
    let alone = fails(&["--by", "worker"], 2);
    assert!(alone.contains("one annotator") && alone.contains("agreement_of_pairs"), "{alone}");
    let key = fails(&["--set", "model.kind=glad"], 2);
    assert!(key.contains("model"), "{key}");
    let missing = run_fails(&["agreement", "--annotations", "no/such.csv"], 8);
    assert!(missing.contains("--annotations no/such.csv"), "{missing}");
}

#[test]
fn a_run_has_the_table_agreement() {
    let job = Job::new();
    job.write("votes.csv", VOTES);
    let run = job.run(
        "source = { annotations = \"{dir}votes.csv\", columns = { instance = \"item\", annotator = \"worker\" } }\n\
         model.kind = \"majority_vote\"\n",
    );
    let rows = read_table(&run, "agreement");
    let find = |question: &str, group: &str, statistic: &str| {
        let is = |row: &&crate::support::Row| {
            let [q, g, s] = ["question", "group", "statistic"].map(|c| row[c].clone().unwrap());
            (q.as_str(), g.as_str(), s.as_str()) == (question, group, statistic)
        };
        rows.iter().find(is).unwrap_or_else(|| panic!("{question} {group} {statistic}")).clone()
    };
    let percent = find("p", "all", "percent_agreement");
    assert_eq!((percent["value"].as_deref(), percent["n"].as_deref()), (Some("0.75"), Some("4")));
    assert!(percent["low"].is_some() && percent["high"].is_some());
    // One instance has no interval.
    let of_one = find("q", "class=u", "fleiss_kappa");
    assert_eq!((of_one["n"].as_deref(), of_one["low"].as_deref()), (Some("1"), None));
}

/// The rows of a query over the votes, as lines of JSON; several files make partial results that are merged.
#[test]
fn the_statistics_are_functions_of_queries() {
    let job = Job::new();
    let votes = one_question();
    let (head, rows) = votes.split_once('\n').unwrap();
    for (n, row) in rows.lines().enumerate() {
        job.write(&format!("votes/{n}.csv"), &format!("{head}\n{row}\n"));
    }
    job.write("votes/null.csv", &format!("{head}\ni5,b,,x\n"));
    let table = format!("votes={}", job.url("votes/"));
    let query = "select coalesce(site, '-') as site, percent_agreement(item, worker, label) as p, \
                 scott_pi(item, worker, label) as s, krippendorff_interval(item, worker, label) as k \
                 from votes group by site order by site";
    let shown = stdout(&run_ok(&["sql", "--json", "--table", &table, "-c", query]));
    let found: Vec<Value> = shown.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let want = r#"[{"site":"-"},{"site":"x","p":1.0,"s":1.0},{"site":"y","p":0.5}]"#;
    let mut want: Vec<Value> = serde_json::from_str(want).unwrap();
    // Of i3 and i4: three no and one yes, and one pair of two agrees.
    want[2]["s"] = ((0.5 - 0.625) / (1.0 - 0.625)).into();
    assert_eq!(found, want);
    let query = "select conger_kappa(item, worker, label) as c, gwet_ac1(item, worker, label) as g from votes";
    let shown = stdout(&run_ok(&["sql", "--json", "--table", &table, "-c", query]));
    let found: Value = serde_json::from_str(&shown).unwrap();
    job.write("votes.csv", &votes);
    let all = measured(&job, &[]);
    assert_near(found["c"].as_f64(), value(&all, None, "all", "conger_kappa").unwrap());
    assert_near(found["g"].as_f64(), value(&all, None, "all", "gwet_ac1").unwrap());
}
