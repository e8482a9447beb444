//! Data that calibrate only a part of a job: the rest stays as the model gave it, and a warning says so.

use std::fmt::Write as _;
use std::path::Path;

use crate::calibration::metrics;
use crate::job::{Job, assert_says, cells};
use crate::network_job;
use crate::support::{Row, read_table, text};

#[test]
fn gold_of_instances_without_annotations_leaves_the_posteriors_with_a_warning() {
    let job = network_job::job();
    let truth = |i: u32| network_job::crowd().truth.get(i as usize).copied().unwrap_or(i % 3);
    let rows: String = (150..200).map(|i| format!("{i},{},calibrate\n", truth(i))).collect();
    job.write("gold.csv", &format!("instance_id,class,role\n{rows}"));
    let model = network_job::pipeline("kind = 'crowd_layer'");
    let model = model.replace("[source]", "[source]\ngold = '{dir}gold.csv'");
    let calibration = "calibration = { method = 'temperature', fit_on = 'gold' }\n";
    let stderr = job.ends(&format!("{calibration}{model}"), &[], 0);
    assert_says(&stderr, &["says how well the posteriors are calibrated: they stay"]);
    let found = metrics(&job.path("out/latest"), "calibrate");
    assert_eq!(found["prediction_calibration_instances"], 50.0);
    assert!(!found.contains_key("calibration_instances"), "{found:?}");
}

/// No instance with gold has features, and no annotator a second annotation that could be held out.
#[test]
fn predictions_that_nothing_calibrates_do_not_stop_a_run_whose_posteriors_gold_calibrates() {
    let job = Job::new();
    let rows = (0..12).map(|n| format!("i{},a{n},c{}\n", n / 2, n / 2 % 2)).collect::<String>();
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{rows}"));
    job.write("features.csv", "instance_id,x\ni0,0\ni1,1\ni2,0\ni3,1\n");
    let pipeline = "source.annotations = '{dir}in.csv'\nsource.features = '{dir}features.csv'
        source.gold = [['i4', 'c0', 'calibrate'], ['i5', 'c1', 'calibrate']]
        model.kind = 'gem'\ncalibration.method = 'temperature'";
    let stderr = job.ends(pipeline, &[], 0);
    assert_says(&stderr, &["says how well the predictions are calibrated: they stay"]);
    let found = metrics(&job.path("out/latest"), "calibrate");
    assert_eq!(found["calibration_instances"], 2.0);
}

/// In question `a` two annotators answer each of 60 instances; in question `b` each annotator answers once.
#[test]
fn a_question_that_nothing_calibrates_stays_as_it_is_with_a_warning() {
    let job = Job::new();
    let mut rows = "instance_id,annotator_id,label,question\n".to_owned();
    for i in 0..60 {
        let label = if i % 3 == 0 { "no" } else { "yes" };
        let other = if i % 7 == 0 { "no" } else { label };
        let _ = write!(rows, "i{i},a0,{label},a\ni{i},a1,{other},a\n");
    }
    let once = "i0,b0,yes,b\ni0,b1,yes,b\ni1,b2,no,b\n";
    job.write("in.csv", &(rows + once));
    job.write(
        "gold.csv",
        "instance_id,class,role,question\ni0,no,calibrate,a\ni1,yes,calibrate,a\n",
    );
    let plain = "source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'\n";
    let of = |question: &str, run: &Path, table: &str| -> Vec<Row> {
        let rows = read_table(run, table).into_iter();
        rows.filter(|row| text(row, "question") == question).collect()
    };
    let before = job.run(plain);
    let by_gold = "source.gold = '{dir}gold.csv'\ncalibration.fit_on = 'gold'";
    for (more, reason) in [
        ("calibration.held_out = 0.5", "each annotator has a single annotation"),
        (by_gold, "no gold row of the role `calibrate`"),
    ] {
        let pipeline = format!("{plain}calibration.method = 'temperature'\n{more}");
        let stderr = job.ends(&pipeline, &[], 0);
        assert_says(&stderr, &["question `b`", reason, "stay as the model gave them"]);
        let after = job.path("out/latest");
        let posteriors = ["instance_id", "class", "probability"];
        let [a, b] = ["a", "b"].map(|question| {
            [&before, &after].map(|run| cells(&of(question, run, "posteriors"), &posteriors))
        });
        assert!(a[0] != a[1] && b[0] == b[1], "{more}: {b:?}");
        let calibrated = |question| {
            let metrics = of(question, &after, "metrics");
            metrics.iter().any(|row| text(row, "name") == "calibration_instances")
        };
        assert!(calibrated("a") && !calibrated("b"), "{more}");
    }
    // Where that is every question, the job fails.
    job.write("in.csv", &format!("instance_id,annotator_id,label,question\n{once}i0,b0,no,c\n"));
    let other = job.ends(&format!("{plain}calibration.method = 'temperature'"), &[], 3);
    assert_says(&other, &["question `b`: no annotation can be held out to calibrate by"]);
}
