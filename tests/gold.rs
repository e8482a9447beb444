//! Gold: what the model is told stays, what only scores is never told, and what contradicts itself is refused.

use crate::job::{Job, assert_says, cells};
use crate::support::{assert_close, number, read_table};

/// Two against one on `i`, one each on `j`, all for `no` on `k`.
const CROWD: &str = "source.annotations = [['i', 'a', 'no'], ['i', 'b', 'no'], ['i', 'c', 'yes'],
    ['j', 'a', 'no'], ['j', 'c', 'yes'], ['k', 'a', 'no'], ['k', 'b', 'no']]\nmodel.kind = 'dawid_skene'\n";

fn with_gold(rows: &str) -> String {
    format!("{CROWD}source.gold = {rows}")
}

#[test]
fn a_trusted_class_is_clamped_and_says_so() {
    // `new` has no annotation but is trusted; without a role, gold trains.
    let job = Job::new();
    let run = job.run(&with_gold("[['i', 'yes'], ['new', 'no']]"));
    let labels = read_table(&run, "labels");
    let columns = ["instance_id", "label", "decision", "confidence", "n_annotations"];
    let found = cells(&labels, &columns);
    assert_eq!([&found[0], &found[3]], ["i yes gold 1.0 3", "new no gold 1.0 0"]);
    assert_eq!(cells(&labels[1..3], &["instance_id", "decision"]), ["j decided", "k decided"]);
    assert_eq!(read_table(&run, "metrics").len(), 0, "gold that trains does not score");
    // Who contradicts the gold is held for the worse: `c` was right on `i`, so `j` is a yes.
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
fn an_unknown_role_is_refused_with_the_nearest() {
    let error = Job::new().fails(&with_gold("[['i', 'yes', 'holdut']]"), 3);
    assert_says(&error, &["unknown role", "source.gold", "`holdut`", "did you mean `holdout`?"]);
}

#[test]
fn gold_of_an_unlisted_class_is_refused() {
    let gold = with_gold("[['i', 'perhaps']]") + "\nframe.classes = ['no', 'yes']";
    let error = Job::new().fails(&gold, 3);
    assert_says(&error, &["classes that are not listed", "`perhaps`", "frame.classes"]);
}

#[test]
fn ids_that_collide_across_types_are_refused_not_guessed() {
    let crowd = "source.annotations = [['1', 'a', 'no']]\nsource.gold = [[1, 'no']]\nmodel.kind = 'majority_vote'";
    let error = Job::new().fails(crowd, 3);
    assert_says(
        &error,
        &["`instance_id` has another type", "Int64 here, Utf8 there", "source.gold", "two ids"],
    );
}
