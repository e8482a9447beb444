//! A truth with columns of other types than the run or the crowd: a class counts as right only where it is equal to the
//! label.

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Float32Array, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use crate::evaluate::{assert_scores, f64s, scores, words};
use crate::job::{Job, assert_says, cells};
use crate::support::{read_table, run_fails, run_ok, stderr, stdout, write_numbers, write_parquet};

/// A run with the labels 7, 8 and 8 of the instances 1, 2 and 3.
fn integers() -> Job {
    let job = Job::new();
    job.run(
        "source.annotations = [['1', 'a', 7], ['2', 'a', 8], ['3', 'a', 8]]\nmodel.kind = 'majority_vote'",
    );
    job
}

/// Writes the classes of instances, and returns the path.
fn truth_of(job: &Job, instances: &str, classes: ArrayRef) -> String {
    let path = job.path("truth.parquet");
    write_parquet(&path, vec![("instance_id", words(instances)), ("class", classes)]);
    path.display().to_string()
}

#[test]
fn a_class_that_the_runs_type_cannot_say_is_wrong() {
    let job = integers();
    let labels = "select arrow_typeof(label) as t from labels limit 1";
    let output = run_ok(&["sql", "--run", &job.url("out"), "--json", "-c", labels]);
    assert_says(&stdout(&output), &["Int64"]);
    let classes: ArrayRef = Arc::new(StringArray::from(vec![Some("7"), Some("cat"), None, None]));
    let truth = truth_of(&job, "1 2 3 9", classes);
    let found = scores(&job.url("out"), &truth, &[]);
    // The third and the last row have no true class.
    assert_scores(&found, &[("instances", 2.0), ("accuracy", 0.5), ("unknown_instances", 0.0)]);
    // Integers with nulls often come as floats; 8.5 is not 8.
    let truth = truth_of(&job, "1 2", f64s(&[7.0, 8.5]));
    let found = scores(&job.url("out"), &truth, &[]);
    assert_scores(&found, &[("instances", 2.0), ("accuracy", 0.5)]);
}

#[test]
fn a_float_that_is_not_finite_is_no_class() {
    let job = integers();
    let values = [7.0, f64::NAN, f64::INFINITY, -f64::NAN, f64::NEG_INFINITY, 7.0];
    let narrow = values.map(|value| value as f32).to_vec();
    // Instances 1 and 3 have one class each.
    for classes in [f64s(&values), Arc::new(Float32Array::from(narrow)) as ArrayRef] {
        let truth = truth_of(&job, "1 1 2 3 9 3", classes);
        let found = scores(&job.url("out"), &truth, &[]);
        let wanted = [("instances", 2.0), ("accuracy", 0.5), ("unknown_instances", 0.0)];
        assert_scores(&found, &wanted);
    }
}

#[test]
fn a_class_that_a_cast_would_change_is_wrong() {
    let job = integers();
    let decimals = Decimal128Array::from(vec![70, 85, 80]).with_precision_and_scale(5, 1).unwrap();
    let truth = truth_of(&job, "1 2 3", Arc::new(decimals));
    let found = scores(&job.url("out"), &truth, &[]);
    assert_scores(&found, &[("instances", 3.0), ("accuracy", 2.0 / 3.0)]);

    job.run(
        "source.annotations = [['1', 'a', true], ['2', 'a', true], ['3', 'a', false]]
         model.kind = 'majority_vote'",
    );
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 0]));
    for data_type in [DataType::Int64, DataType::Float64] {
        let truth = truth_of(&job, "1 2 3", cast(&numbers, &data_type).unwrap());
        let found = scores(&job.url("out"), &truth, &[]);
        assert_scores(&found, &[("instances", 3.0), ("accuracy", 2.0 / 3.0)]);
    }
}

#[test]
fn a_float_is_the_class_of_the_numbers_to_which_it_is_the_nearest() {
    let job = Job::new();
    let labels: ArrayRef = Arc::new(Float32Array::from(vec![0.1, 0.3]));
    write_parquet(
        &job.path("in.parquet"),
        vec![("instance_id", words("1 2")), ("annotator_id", words("a a")), ("label", labels)],
    );
    job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'");
    let decimals = Decimal128Array::from(vec![10_i128.pow(19), 3 * 10_i128.pow(19)]);
    let decimals = decimals.with_precision_and_scale(38, 20).unwrap();
    for classes in [f64s(&[0.1, 0.3]), Arc::new(decimals) as ArrayRef] {
        let truth = truth_of(&job, "1 2", classes);
        assert_scores(&scores(&job.url("out"), &truth, &[]), &[("accuracy", 1.0)]);
    }
}

#[test]
fn a_class_of_a_type_that_the_runs_type_cannot_be_is_refused() {
    let job = Job::new();
    let bytes = cast(&words("x y"), &DataType::Binary).unwrap();
    write_parquet(
        &job.path("in.parquet"),
        vec![("instance_id", words("1 2")), ("annotator_id", words("a a")), ("label", bytes)],
    );
    job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'");
    // Arrow casts integers to bytes, but not back.
    let truth = truth_of(&job, "1 2", Arc::new(Int64Array::from(vec![1, 2])));
    let error = run_fails(&["evaluate", "--run", &job.url("out"), "--truth", &truth], 3);
    let expected =
        ["the truth's Int64 cannot be read as", "where: --truth, column class\n", "help:"];
    assert_says(&error, &expected);
}

#[test]
fn text_that_the_runs_type_would_round_is_another_class() {
    let decimals = Decimal128Array::from(vec![0, 100]).with_precision_and_scale(10, 2).unwrap();
    let dates = cast(&words("2020-01-01 2020-01-02"), &DataType::Date32).unwrap();
    for (labels, right, rounded) in [
        (Arc::new(decimals) as ArrayRef, "0 1.00", "0.004 0.996"),
        (dates, "2020-01-01 2020-01-02T00:00:00", "2020-01-01T23:59:59 2020-01-02T00:00:01"),
    ] {
        let job = Job::new();
        write_parquet(
            &job.path("in.parquet"),
            vec![("instance_id", words("1 2")), ("annotator_id", words("a a")), ("label", labels)],
        );
        job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'");
        let truth = truth_of(&job, "1 2", words(right));
        let found = scores(&job.url("out"), &truth, &[]);
        assert_scores(&found, &[("instances", 2.0), ("accuracy", 1.0)]);
        let truth = truth_of(&job, "1 2", words(rounded));
        let error = run_fails(&["evaluate", "--run", &job.url("out"), "--truth", &truth], 3);
        assert_says(&error, &["no class in common"]);
    }
}

/// As in gold, text is an integer only in its plain form.
#[test]
fn an_instance_is_scored_once_whatever_text_its_id_is() {
    let job = Job::new();
    job.run("source.annotations = [[1, 'a', 'x'], [2, 'a', 'y']]\nmodel.kind = 'majority_vote'");
    let truth = job.write("truth.csv", "instance_id,class\n1,x\n01,y\n 1,y\n+1,y\n2,y\n");
    let found = scores(&job.url("out"), &truth, &[]);
    assert_scores(&found, &[("instances", 2.0), ("accuracy", 1.0), ("unknown_instances", 3.0)]);

    let crowd = vec![
        ("instance_id", f64s(&[1.0, 2.0])),
        ("annotator_id", words("a a")),
        ("label", words("x y")),
    ];
    write_parquet(&job.path("in.parquet"), crowd);
    job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'majority_vote'");
    let truth = truth_of(&job, "1 1.0 2", words("x x x"));
    let found = scores(&job.url("out"), &truth, &[]);
    assert_scores(&found, &[("instances", 2.0), ("accuracy", 0.5), ("unknown_instances", 0.0)]);
    let truth = truth_of(&job, "1 1.0 2", words("x y y"));
    let error = run_fails(&["evaluate", "--run", &job.url("out"), "--truth", &truth], 3);
    assert_says(&error, &["the truth gives an instance two classes", "found: `1.0`\n"]);
    // NaN is no instance.
    let path = job.path("truth.parquet");
    let ids = f64s(&[1.0, f64::NAN, f64::NAN]);
    write_parquet(&path, vec![("instance_id", ids), ("class", words("x x y"))]);
    let found = scores(&job.url("out"), &path.display().to_string(), &[]);
    assert_scores(&found, &[("instances", 1.0), ("accuracy", 1.0)]);
}

/// As text, `10` would come before `9`, and neither would be an instance of the crowd.
#[test]
fn a_crowd_of_integers_is_simulated_with_a_truth_of_a_csv() {
    let job = Job::new();
    let truth = job.write("truth.csv", "instance_id,class\n10,1\n9,0\n");
    write_numbers(&job.path("in.parquet"), &[(9, 0, 0), (10, 0, 1), (10, 1, 0), (7, 1, 1)]);
    let (annotations, output) = (job.url("in.parquet"), job.url("crowd"));
    let arguments = ["simulate", "--recipe", "real", "--truth", &truth, "--output", &output];
    let drawn = run_ok(&[&arguments[..], &["--annotations", &annotations]].concat());
    assert_says(&stderr(&drawn), &["1 annotations are left out"]);
    let crowd = job.path("crowd");
    assert_eq!(cells(&read_table(&crowd, "truth"), &["instance_id", "class"]), ["9 0", "10 1"]);
    let columns = ["instance_id", "annotator_id", "label"];
    let mut given = cells(&read_table(&crowd, "annotations"), &columns);
    given.sort_unstable();
    assert_eq!(given, ["10 0 1", "10 1 0", "9 0 0"]);
}
