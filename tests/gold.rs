//! Gold: trusted classes stay fixed, gold that only scores never reaches the model, and contradictory gold is refused.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, UInt64Array};
use arrow::datatypes::DataType;
use serde_json::Value;

use crate::job::{Job, assert_says, cells};
use crate::support::{
    assert_close, number, read_batches, read_table, run_fails, run_ok, stderr, stdout, text,
    write_parquet,
};

/// Two `no` and one `yes` on `i`, one of each on `j`, only `no` on `k`.
pub const CROWD: &str = "source.annotations = [['i', 'a', 'no'], ['i', 'b', 'no'], ['i', 'c', 'yes'],
    ['j', 'a', 'no'], ['j', 'c', 'yes'], ['k', 'a', 'no'], ['k', 'b', 'no']]\nmodel.kind = 'dawid_skene'\n";

pub fn with_gold(rows: &str) -> String {
    format!("{CROWD}source.gold = {rows}")
}

// keys: source.gold
#[test]
fn a_trusted_class_is_clamped_and_says_so() {
    // `new` has no annotation but has gold; gold without a role trains.
    let job = Job::new();
    let run = job.run(&with_gold("[['i', 'yes'], ['new', 'no']]"));
    let labels = read_table(&run, "labels");
    let columns = ["instance_id", "label", "decision", "confidence", "n_annotations"];
    let found = cells(&labels, &columns);
    assert_eq!([&found[0], &found[3]], ["i yes gold 1.0 3", "new no gold 1.0 0"]);
    assert_eq!(cells(&labels[1..3], &["instance_id", "decision"]), ["j decided", "k decided"]);
    assert_eq!(read_table(&run, "metrics").len(), 0, "gold that trains does not score");
    // Gold on `i` makes `c`, who was right there, more accurate than `a`, so `j` is a yes.
    assert_eq!(cells(&labels[1..2], &["label"]), ["yes"]);
}

#[test]
fn holdout_scores_and_changes_nothing_else() {
    let (plain, job) = (Job::new(), Job::new());
    let told_nothing = plain.run(CROWD);
    let run = job.run(&with_gold(
        "[['i', 'yes', 'holdout'], ['k', 'no', 'holdout'], ['elsewhere', 'no', 'holdout'], ['j', 'no', 'valid']]",
    ));
    for table in ["labels", "posteriors", "annotators", "confusion_matrices", "classes"] {
        assert_eq!(read_table(&run, table), read_table(&told_nothing, table), "{table}");
    }
    let metrics = read_table(&run, "metrics");
    let value = |split: &str, name: &str| {
        let mut found = metrics
            .iter()
            .filter(|r| r["split"].as_deref() == Some(split) && r["name"].as_deref() == Some(name));
        number(found.next().unwrap_or_else(|| panic!("no {name} of {split}")), "value")
    };
    let found =
        [value("holdout", "instances"), value("holdout", "accuracy"), value("valid", "instances")];
    assert_close(&found, &[2.0, 0.5, 1.0], 1e-12, "metrics");
}

#[test]
fn a_truth_table_may_call_its_class_label_or_anything() {
    for (header, more) in
        [("instance_id,label", ""), ("instance_id,truth", "\nsource.columns.class = 'truth'")]
    {
        let job = Job::new();
        job.write("gold.csv", &format!("{header}\ni,yes\n"));
        let run = job.run(&format!("{CROWD}source.gold = '{{dir}}gold.csv'{more}"));
        assert_eq!(cells(&read_table(&run, "labels")[..1], &["label", "decision"]), ["yes gold"]);
    }
}

/// A column of the contract's own name is there, too, and would be read without a word.
#[test]
fn a_column_of_gold_that_is_not_there_is_an_error() {
    for (key, name) in [("class", "klas"), ("role", "roll")] {
        let job = Job::new();
        job.write("gold.csv", "instance_id,class,role,klass\ni,yes,train,no\n");
        let columns = format!("source.columns.{key} = '{name}'");
        let pipeline = format!("{CROWD}source.gold = '{{dir}}gold.csv'\n{columns}");
        let missing = format!("the column `{name}` is missing");
        assert_says(&job.ends(&pipeline, &[], 3), &[&missing, "source.gold"]);
    }
}

/// As above, in `evaluate`, where not even the instances may have another name than the one given.
#[test]
fn a_column_of_the_truth_that_is_not_there_is_an_error() {
    let job = Job::new();
    let run = job.run(CROWD).display().to_string();
    let truth = job.write("truth.csv", "instance_id,class,klass\ni,yes,no\n");
    for (option, name) in [("--class-column", "klas"), ("--instance-column", "nope")] {
        let error = run_fails(&["evaluate", "--run", &run, "--truth", &truth, option, name], 3);
        let missing = format!("the column `{name}` is missing");
        assert_says(&error, &[&missing, "--truth", option]);
    }
}

#[test]
fn gold_may_have_the_names_of_the_contract_beside_annotations_that_have_others() {
    let job = Job::new();
    job.write("in.csv", "task,worker,answer,q\ni,a,no,s\ni,b,no,s\nj,a,yes,s\n");
    job.write("gold.csv", "instance_id,class\ni,yes\n");
    let run = job.run(
        "source.annotations = '{dir}in.csv'\nsource.gold = '{dir}gold.csv'\nmodel.kind = 'majority_vote'
         source.columns = { instance = 'task', annotator = 'worker', label = 'answer', question = 'q' }",
    );
    let found = cells(&read_table(&run, "labels"), &["instance_id", "label", "decision"]);
    assert_eq!(found, ["i yes gold", "j yes decided"]);
}

#[test]
fn gold_of_one_question_is_not_anothers() {
    let job = Job::new();
    job.write(
        "in.csv",
        "instance_id,annotator_id,label,question\ni,a,no,p\ni,b,yes,p\ni,a,no,q\ni,b,yes,q\n",
    );
    job.write("gold.csv", "instance_id,class,question\ni,yes,q\n");
    let run = job.run(
        "source.annotations = '{dir}in.csv'\nsource.gold = '{dir}gold.csv'\nmodel.kind = 'majority_vote'",
    );
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels, &["question", "label", "decision"]), ["p no tied", "q yes gold"]);
}

#[test]
fn gold_that_contradicts_itself_is_refused() {
    let error = Job::new().fails(&with_gold("[['i', 'yes'], ['j', 'no'], ['i', 'no']]"), 3);
    assert_says(&error, &["gold gives an instance two classes", "source.gold", "found: `i`"]);
}

#[test]
fn an_instance_that_trains_cannot_score_too() {
    let rows = "[['i', 'no', 'holdout'], ['i', 'no', 'train'], ['j', 'no', 'holdout']]";
    let error = Job::new().fails(&with_gold(rows), 3);
    assert_says(&error, &["gold gives an instance two roles", "source.gold", "`i`", "one role"]);
    let twice = "[['i', 'no', 'holdout'], ['i', 'no', 'holdout']]";
    Job::new().run(&with_gold(twice));
}

#[test]
fn gold_that_says_nothing_is_a_warning() {
    let job = Job::new();
    job.write("gold.csv", "instance_id,class\ni,\n,no\nj,yes\n");
    let printed = job.ends(&with_gold("'{dir}gold.csv'"), &[], 0);
    assert_says(
        &printed,
        &["warning: rows of gold without an instance or a class are left out: 2"],
    );
}

#[test]
fn an_unknown_role_is_refused_with_the_nearest() {
    let error = Job::new().fails(&with_gold("[['i', 'yes', 'holdut']]"), 3);
    assert_says(&error, &["unknown role", "source.gold", "`holdut`", "did you mean `holdout`?"]);
}

#[test]
fn ids_that_collide_across_types_are_refused_not_guessed() {
    let crowd = "source.annotations = [['1', 'a', 'no']]\nsource.gold = [[1, 'no']]\nmodel.kind = 'majority_vote'";
    let error = Job::new().fails(crowd, 3);
    assert_says(
        &error,
        &["`instance_id` has another type", "Int64 here, Utf8 there", "source.gold", "two values"],
    );
    let crowd = "source.annotations = [['1', 'a', 7]]\nsource.gold = [['1', 'no']]\nmodel.kind = 'majority_vote'";
    let error = Job::new().fails(crowd, 3);
    assert_says(&error, &["`class` has another type", "Utf8 here, Int64 there", "source.gold"]);
}

#[test]
fn gold_of_every_other_role_than_train_tells_the_model_nothing() {
    const TABLES: [&str; 5] =
        ["labels", "posteriors", "annotators", "confusion_matrices", "classes"];
    let plain = Job::new();
    let untold = plain.run(CROWD);
    for role in ["valid", "calibrate", "holdout"] {
        let job = Job::new();
        let rows =
            format!("[['i', 'yes', '{role}'], ['k', 'yes', '{role}'], ['j', 'yes', '{role}']]");
        let run = job.run(&with_gold(&rows));
        for table in TABLES {
            assert_eq!(read_table(&run, table), read_table(&untold, table), "{table} with {role}");
        }
        let metrics = cells(&read_table(&run, "metrics"), &["split", "name"]);
        assert!(metrics.contains(&format!("{role} accuracy")), "{metrics:?}");
    }
}

/// Two questions about the same instances, and features of them.
pub fn with_features(gold: &str) -> Job {
    let job = Job::new();
    let rows = (0..60).flat_map(|i| (0..3).map(move |r| (i, r)));
    let mut annotations = "instance_id,annotator_id,label,question\n".to_owned();
    let mut features = "instance_id,a,b\n".to_owned();
    for (i, r) in rows {
        for (question, class) in [("p", i % 2), ("q", (i / 2) % 2)] {
            let label = if (i + r) % 7 == 0 { 1 - class } else { class };
            annotations += &format!("i{i:02},a{r},c{label},{question}\n");
        }
    }
    (0..60).for_each(|i| features += &format!("i{i:02},{}.5,{}.5\n", i % 2, (i / 2) % 2));
    job.write("in.csv", &annotations);
    job.write("features.csv", &features);
    job.write("gold.csv", &format!("instance_id,class,role,question\n{gold}"));
    job
}

pub const NETWORK: &str =
    "source.annotations = '{dir}in.csv'\nsource.features = '{dir}features.csv'
    model = { kind = 'dl', device = 'cpu', backbone.hidden = [4], train.epochs = 5 }\n";

#[test]
fn gold_of_one_question_trains_no_other_question_s_classifier() {
    let wrong = |question: &str, role: &str| -> String {
        (0..40).map(|i| format!("i{i:02},c{},{role},{question}\n", 1 - i % 2)).collect()
    };
    let predictions = |gold: &str, question: &str| {
        let job = with_features(gold);
        let run = job.run(&format!("{NETWORK}source.gold = '{{dir}}gold.csv'"));
        let rows = read_table(&run, "predictions");
        let rows: Vec<_> =
            rows.into_iter().filter(|r| r["question"].as_deref() == Some(question)).collect();
        cells(&rows, &["instance_id", "class", "probability"])
    };
    let untold = predictions("", "p");
    assert_eq!(untold.len(), 120);
    assert_eq!(predictions(&wrong("q", "train"), "p"), untold);
    assert_ne!(predictions(&wrong("p", "train"), "p"), untold, "gold of its own does train");
    for role in ["calibrate", "holdout"] {
        assert_eq!(predictions(&wrong("p", role), "p"), untold, "{role}");
    }
}

#[test]
fn gold_of_one_question_neither_chooses_nor_scores_another_question_s_classifier() {
    let of_p = |gold: &str| {
        let job = with_features(gold);
        let run = job.run(&format!("{NETWORK}source.gold = '{{dir}}gold.csv'"));
        ["predictions", "metrics"].map(|table| {
            let rows = read_table(&run, table);
            rows.into_iter().filter(|r| r["question"].as_deref() == Some("p")).collect::<Vec<_>>()
        })
    };
    for role in ["valid", "calibrate", "holdout"] {
        let gold = |question: &str, offset: usize| -> String {
            let class = |i: usize| (i + offset) % 2;
            (0..40).map(|i| format!("i{i:02},c{},{role},{question}\n", class(i))).collect()
        };
        let own = of_p(&gold("p", 0));
        assert!(own[1].iter().any(|r| text(r, "name").starts_with("prediction_")), "{role}");
        assert_eq!(of_p(&(gold("p", 0) + &gold("q", 1))), own, "{role}");
    }
}

/// In files without types, values that are not labels of the run decide neither the type nor the order of the labels.
#[test]
fn gold_that_only_scores_and_rejected_rows_change_no_type() {
    let rows = "instance_id,annotator_id,label\n1,a,9\n1,b,10\n2,a,9\n2,b,9\n";
    let labels = |gold: &str, more: &str, classes: &str| {
        let job = Job::new();
        job.write("in.csv", &format!("{rows}{more}"));
        job.write("gold.csv", &format!("instance_id,class,role\n{gold}"));
        let run = job.run(&format!(
            "source.annotations = '{{dir}}in.csv'\nsource.gold = '{{dir}}gold.csv'\nmodel.kind = 'majority_vote'\n{classes}"
        ));
        let batch = &read_batches(&run, "labels")[0];
        let types = ["instance_id", "label"]
            .map(|name| batch.column_by_name(name).unwrap().data_type().clone());
        (types, cells(&read_table(&run, "labels"), &["instance_id", "label", "decision"]))
    };
    let plain = labels("2,9,holdout\n", "", "");
    assert_eq!(plain.0, [DataType::Int64, DataType::Int64]);
    assert_eq!(plain.1, ["1 9 tied", "2 9 decided"]);
    assert_eq!(labels("2,9,holdout\n1,n/a,holdout\nelsewhere,9,holdout\n", "", ""), plain);
    let classes = "frame.classes = [9, 10]\n";
    assert_eq!(labels("2,9,holdout\n", "1,c,junk\n", classes), plain);
}

#[test]
fn warnings_about_gold_are_shown_once_and_stand_in_the_table_run_and_in_the_json() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label,question\ni,a,x,p\ni,a,y,q\n");
    let warned = |gold: &str| {
        job.write("gold.csv", gold);
        let file = job.write(
            "pipeline.toml",
            "source = { annotations = '{dir}in.csv', gold = '{dir}gold.csv' }\nmodel.kind = 'majority_vote'\nsink.url = '{dir}out'",
        );
        let done = run_ok(&["run", &file, "--force", "--json"]);
        let summary: Value = serde_json::from_str(&stdout(&done)).unwrap();
        let table = cells(&read_table(&job.path("out/latest"), "run"), &["warnings"]).remove(0);
        assert_eq!(summary["warnings"], serde_json::from_str::<Value>(&table).unwrap());
        let warnings: Vec<String> = serde_json::from_str(&table).unwrap();
        let shown = stderr(&done);
        assert_eq!(shown.matches("warning: ").count(), warnings.len(), "{shown}");
        warnings.iter().for_each(|warning| assert_says(&shown, &[warning]));
        warnings
    };
    assert_eq!(
        warned("instance_id,class,role,question\ni,x,holdout,p\ni,x,holdout,Q\ni,x,holdout,\n"),
        [
            "rows of gold without a question, or of one that no annotation names, are left out: 2 (`Q`)"
        ]
    );
    assert_eq!(
        warned("instance_id,class,role\ni,x,holdout\n,x,holdout\nj,,holdout\n"),
        [
            "rows of gold without an instance or a class are left out: 2",
            "gold names no question: each of its classes holds for all 2 questions"
        ]
    );
    assert_eq!(
        warned("instance_id,class,role,question\nI,x,holdout,p\ni,y,holdout,q\n"),
        [
            "question `p`: 1 of 1 instance of gold is not in the annotations: `I`; `I` of gold may be `i` of the \
             annotations, which differs in case or spaces: source.normalise = [\"lower\"] makes them one, in all tables [tables_partly_match]"
        ]
    );
    let all_used = "instance_id,class,role,question\ni,x,holdout,p\ni,y,holdout,q\n";
    assert_eq!(warned(all_used), [""; 0]);
}

#[test]
fn gold_of_several_questions_beside_annotations_of_none_is_refused() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,y\n");
    let spec = |gold: &str| {
        job.write("gold.csv", gold);
        "source = { annotations = '{dir}in.csv', gold = '{dir}gold.csv' }\nmodel.kind = 'majority_vote'"
    };
    let error = job.fails(spec("instance_id,class,question\ni,x,p\nj,y,q\n"), 3);
    assert_says(&error, &["gold is of several questions", "source.gold", "`p`, `q`"]);
    // Gold of a single question must be gold of the only question that there is.
    let run = job.run(spec("instance_id,class,question\ni,y,p\n"));
    assert_eq!(cells(&read_table(&run, "labels"), &["label", "decision"]), ["y gold"]);
}

/// All instances are labelled a, b and c, and are trusted to be b, c and a.
#[test]
fn the_warning_of_switched_classes_gives_each_class_the_label_that_it_has() {
    let printed = Job::new().ends(
        "source.annotations = [['i', 'x', 'a'], ['j', 'x', 'b'], ['k', 'x', 'c']]
         source.gold = [['i', 'b', 'train'], ['j', 'c', 'train'], ['k', 'a', 'train']]
         model.kind = 'dawid_skene'",
        &[],
        0,
    );
    assert_says(&printed, &["they contradict the gold", "`a as c`", "`b as a`", "`c as b`"]);
}

/// Text of such a class was no integer, and all of the gold was refused.
#[test]
fn gold_of_a_csv_may_have_integers_above_all_signed_ones() {
    let job = Job::new();
    let texts = |values: [&str; 2]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let rows = |labels: ArrayRef| {
        vec![
            ("instance_id", texts(["i", "j"])),
            ("annotator_id", texts(["a", "a"])),
            ("label", labels),
        ]
    };
    let pipeline = "source = { annotations = '{dir}in.parquet', gold = '{dir}gold.csv' }
                    model.kind = 'majority_vote'";
    let unsigned: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
    write_parquet(&job.path("in.parquet"), rows(unsigned));
    job.write("gold.csv", "instance_id,class\ni,18446744073709551615\nk,9223372036854775808\n");
    let labels = read_table(&job.run(pipeline), "labels");
    assert_eq!(
        cells(&labels, &["instance_id", "label", "decision"]),
        [
            "i 18446744073709551615 gold",
            "j 18446744073709551615 decided",
            "k 9223372036854775808 gold"
        ]
    );
    job.write("gold.csv", "instance_id,class\ni,18446744073709551615\nj,-1\n");
    let error = job.ends(pipeline, &[], 3);
    assert_says(&error, &["a class that the annotations could not have", "`-1`, where"]);

    let signed: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    write_parquet(&job.path("in.parquet"), rows(signed));
    job.write("gold.csv", "instance_id,class\ni,18446744073709551615\n");
    let error = job.ends(pipeline, &[], 3);
    assert_says(&error, &["a class that the annotations could not have", "18446744073709551615"]);
}
