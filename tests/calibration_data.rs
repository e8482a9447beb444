//! Data that calibrate only a part of a job: the rest stays as the model gave it, and a warning says so.

use std::fmt::Write as _;
use std::path::Path;

use crate::calibration::metrics;
use crate::job::{Job, assert_says, cells};
use crate::network_job;
use crate::support::{Row, read_table, text};

#[test]
fn gold_of_instances_without_annotations_leaves_the_posteriors_with_a_warning() {
    let job = network_job::job_with_gold(150..200);
    let pipeline = network_job::calibrated("kind = 'crowd_layer'", "temperature");
    let stderr = job.ends(&pipeline, &[], 0);
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

/// Sixty instances of question `a`, each with the answers of two annotators.
fn question_a() -> String {
    let mut rows = "instance_id,annotator_id,label,question\n".to_owned();
    for i in 0..60 {
        let label = if i % 3 == 0 { "no" } else { "yes" };
        let other = if i % 7 == 0 { "no" } else { label };
        let _ = write!(rows, "i{i},a0,{label},a\ni{i},a1,{other},a\n");
    }
    rows
}

const FIT: &str = "source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'\n";

/// In question `b` each annotator has one annotation, which is never held out, and no gold calibrates.
#[test]
fn a_question_that_nothing_calibrates_stays_as_it_is_with_a_warning() {
    let job = Job::new();
    job.write("in.csv", &(question_a() + "i0,b0,yes,b\ni0,b1,yes,b\ni1,b2,no,b\n"));
    let gold = "i0,no,calibrate,a\ni1,yes,calibrate,a\ni2,yes,holdout,a\ni0,yes,holdout,b\n";
    job.write("gold.csv", &format!("instance_id,class,role,question\n{gold}"));
    let plain = format!("{FIT}source.gold = '{{dir}}gold.csv'\n");
    let of = |question: &str, run: &Path, table: &str| -> Vec<Row> {
        let rows = read_table(run, table).into_iter();
        rows.filter(|row| text(row, "question") == question).collect()
    };
    let before = job.run(&plain);
    for (fit_on, reason, help) in [
        ("annotations", "each annotator has a single annotation", "give gold of the role"),
        ("gold", "no gold row of the role `calibrate`", "give some in source.gold"),
    ] {
        let calibration =
            format!("calibration = {{ method = 'temperature', fit_on = '{fit_on}' }}");
        let stderr = job.ends(&format!("{plain}{calibration}"), &[], 0);
        assert_says(
            &stderr,
            &["1 of 2 questions", "question `b`: ", reason, "keep the model's probabilities", help],
        );
        let after = job.path("out/latest");
        let posteriors = ["instance_id", "class", "probability"];
        let [a, b] = ["a", "b"].map(|question| {
            [&before, &after].map(|run| cells(&of(question, run, "posteriors"), &posteriors))
        });
        assert!(a[0] != a[1] && b[0] == b[1], "{fit_on}: {b:?}");
        let names = |question, run: &Path| cells(&of(question, run, "metrics"), &["name"]);
        let of_a = names("a", &after);
        for name in ["calibration_instances", "uncalibrated_ece"] {
            assert!(of_a.iter().any(|found| found == name), "{fit_on}: {of_a:?}");
        }
        assert_eq!(names("b", &after), names("b", &before), "{fit_on}");
    }
}

#[test]
fn a_job_of_which_nothing_calibrates_any_question_fails() {
    let job = Job::new();
    let calibration = "calibration = { method = 'temperature', held_out = 0.01 }\n";
    // Before the fit: nothing can be held out.
    job.write("in.csv", "instance_id,annotator_id,label,question\ni,a,x,p\nj,b,y,p\ni,a,x,q\n");
    let error = job.fails(&format!("{FIT}{calibration}"), 3);
    let each = ["question `p`: each annotator", "question `q`: each annotator"];
    assert_says(&error, &["no question has anything to calibrate by"]);
    assert_says(&error, &each);
    // After it: of so few annotations none is drawn.
    let first: String = question_a().split_inclusive('\n').take(13).collect();
    job.write("in.csv", &first);
    let error = job.fails(&format!("{FIT}{calibration}"), 3);
    let what = "question `a`: no annotation is held out to calibrate by";
    assert_says(&error, &[what, "hold out more"]);
    let rows = first.split_inclusive('\n').skip(1);
    let second: String = rows.map(|row| row.replace(",a\n", ",b\n")).collect();
    job.write("in.csv", &(first.clone() + &second));
    let error = job.fails(&format!("{FIT}{calibration}"), 3);
    assert_says(&error, &["no question has anything to calibrate by", "question `b`: ", "0.01"]);
}

#[test]
fn gold_that_was_given_to_calibrate_and_does_not_is_a_warning() {
    let job = Job::new();
    let gold = "source.gold = [['i', 'x', 'calibrate'], ['j', 'y', 'holdout']]\n";
    let crowd = "source.annotations = [['i', 'a', 'x'], ['i', 'b', 'x'], ['j', 'a', 'y'], ['j', 'b', 'y']]\n";
    let says = |more: &str| {
        let stderr =
            job.ends(&format!("{crowd}{gold}model.kind = 'majority_vote'\n{more}"), &[], 0);
        stderr.contains("gold of the role `calibrate` is not used (1 instances)")
    };
    assert!(says(""));
    assert!(!says("calibration.method = 'temperature'\n"));
}
