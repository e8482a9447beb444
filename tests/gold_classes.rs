//! The classes of gold: which of them are classes of the run, and what becomes of the others.

use crate::gold::{CROWD, NETWORK, with_features, with_gold};
use crate::job::{Job, assert_says, cells};
use crate::support::{number, read_table};

#[test]
fn gold_that_only_scores_adds_no_class_and_counts_as_wrong() {
    let (plain, job) = (Job::new(), Job::new());
    let told_nothing = plain.run(CROWD);
    let run = job.run(&with_gold(
        "[['i', 'perhaps', 'holdout'], ['k', 'no', 'holdout'], ['elsewhere', 'never', 'holdout']]",
    ));
    for table in ["labels", "posteriors", "annotators", "confusion_matrices", "classes"] {
        assert_eq!(read_table(&run, table), read_table(&told_nothing, table), "{table}");
    }
    let metrics = cells(&read_table(&run, "metrics"), &["split", "name", "value"]);
    for found in ["holdout instances 2.0", "holdout accuracy 0.5"] {
        assert!(metrics.contains(&found.to_owned()), "{found} of {metrics:?}");
    }
    // A class that is not among the listed ones is an error.
    let listed = "\nframe.classes = ['no', 'yes']";
    let error = Job::new().fails(&(with_gold("[['i', 'perhaps', 'holdout']]") + listed), 3);
    assert_says(&error, &["gold has classes that are not listed", "`perhaps`"]);
}

// keys: frame.classes
#[test]
fn gold_of_every_role_but_holdout_adds_its_class_to_the_classes() {
    for role in ["train", "valid", "calibrate"] {
        let job = Job::new();
        let run = job.run(&with_gold(&format!("[['i', 'perhaps', '{role}']]")));
        let classes = cells(&read_table(&run, "classes"), &["class"]);
        assert_eq!(classes, ["no", "perhaps", "yes"], "{role}");
    }
}

/// Such gold was left out, which is the gold that the model is wrong on: of 100 instances labelled yes, where 60 are, the
/// posteriors were calibrated to be certain.
#[test]
fn gold_that_calibrates_counts_where_nobody_gave_its_class_as_a_label() {
    let job = Job::new();
    let (mut annotations, mut gold) =
        ("instance_id,annotator_id,label\n".to_owned(), "instance_id,class,role\n".to_owned());
    for i in 0..100 {
        for r in 0..3 {
            let label = if (i + r) % 7 == 0 { "maybe" } else { "yes" };
            annotations += &format!("i{i:02},a{r},{label}\n");
        }
        gold += &format!("i{i:02},{},calibrate\n", if i < 60 { "yes" } else { "no" });
    }
    job.write("in.csv", &annotations);
    job.write("gold.csv", &gold);
    let run = job.run(
        "source = { annotations = '{dir}in.csv', gold = '{dir}gold.csv' }
         model.kind = 'majority_vote'\ncalibration = { method = 'temperature', fit_on = 'gold' }",
    );
    let metrics = cells(&read_table(&run, "metrics"), &["name", "value"]);
    assert!(metrics.contains(&"calibration_instances 100.0".to_owned()), "{metrics:?}");
    let labels = read_table(&run, "labels");
    let most = labels.iter().map(|row| number(row, "confidence")).fold(0.0, f64::max);
    assert!(most < 0.7, "{most}");
}

/// With gold of no other class, an epoch is selected all the same: each of them is wrong.
#[test]
fn an_epoch_is_selected_by_gold_of_a_class_that_nobody_gave_as_a_label() {
    let job = with_features("i02,c9,valid,p\ni03,c9,valid,p\ni02,c0,valid,q\n");
    let select = NETWORK.replace("train.epochs", "train.select = 'valid', train.epochs");
    let run = job.run(&format!("{select}source.gold = '{{dir}}gold.csv'"));
    let classes = cells(&read_table(&run, "classes"), &["question", "class"]);
    assert_eq!(classes, ["p c0", "p c1", "p c9", "q c0", "q c1"]);
}

#[test]
fn gold_of_an_unlisted_class_is_refused() {
    let gold = with_gold("[['i', 'perhaps']]") + "\nframe.classes = ['no', 'yes']";
    let error = Job::new().fails(&gold, 3);
    assert_says(&error, &["classes that are not listed", "`perhaps`", "frame.classes"]);
}
