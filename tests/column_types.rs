//! A column gets the type that holds every value of every file; if there is none, the error names the files that
//! disagree.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use crate::job::{Job, assert_says, cells, rows_read, vote};
use crate::support::{
    number, read_batches, read_table, run_fails, run_ok, stdout, text, write_parquet,
};

/// NDJSON of `n` rows with the extra fields `early`, and one last row with the extra fields `last`.
fn late(n: usize, early: &str, last: &str) -> String {
    let row = |i: usize, annotator: &str, label: &str, more: &str| {
        format!(
            "{{\"instance_id\":\"i{i}\",\"annotator_id\":\"{annotator}\",\"label\":\"{label}\"{more}}}\n"
        )
    };
    let mut text: String = (0..n).map(|i| row(i, "a", "x", early)).collect();
    text.push_str(&row(0, "b", "y", last));
    text
}

#[test]
fn a_field_that_comes_late_is_read() {
    let job = Job::new();
    job.write("in.ndjson", &late(1500, ",\"weight\":1.0", ",\"weight\":3.5"));
    let early = read_table(&job.run(&vote("in.ndjson", "sink.run_id = 'early'")), "labels");
    assert_eq!(cells(&early[..1], &["instance_id", "label"]), ["i0 y"]);
    // 1500 rows without the weight that the last row has are rejected, and do not count as 1.
    job.write("in.ndjson", &late(1500, "", ",\"weight\":3.5"));
    let run = job.run(&vote("in.ndjson", "sink.run_id = 'late'"));
    assert_eq!(rows_read(&run), "1501 1");
    assert_eq!(cells(&read_table(&run, "rejects"), &["reason", "count"]), ["bad_weight 1500"]);
    let told = cells(&read_table(&run, "run"), &["warnings"]).remove(0);
    assert_says(&told, &["1500 of 1501 rows are rejected as `bad_weight`"]);
}

#[test]
fn values_of_several_types_in_one_field_are_an_error_that_names_the_line() {
    let job = Job::new();
    let text = late(1200, ",\"annotated_at\":17", ",\"annotated_at\":\"2026-01-01T00:00:00Z\"");
    job.write("in.ndjson", &text);
    let error = job.fails(&vote("in.ndjson", "frame.duplicates = 'last'"), 3);
    assert_says(&error, &["`annotated_at`", "several types", "integers and text"]);
}

#[test]
fn dates_that_become_times_further_down_keep_their_hours() {
    let job = Job::new();
    let mut text = String::from("instance_id,annotator_id,label,annotated_at\n");
    for n in 0..1200 {
        let _ = writeln!(text, "j{n},a,x,2026-01-01");
    }
    text.push_str("i,a,early,2026-02-01T08:00:00\ni,a,late,2026-02-01T20:00:00\n");
    job.write("in.csv", &text);
    let run = job.run(&vote("in.csv", "frame.duplicates = 'last'"));
    assert_eq!(cells(&read_table(&run, "labels")[..1], &["instance_id", "label"]), ["i late"]);
}

#[test]
fn text_in_a_column_of_features_is_an_error_wherever_it_comes() {
    let job = Job::new();
    let crowd = "source.annotations = [['i0', 'a', 'x'], ['i0', 'b', 'x'], ['i1', 'a', 'y'], ['i1', 'b', 'y']]\n\
                 source.features = '{dir}features'\nmodel.kind = 'crowd_layer'\n";
    let write = |name: &str, last: &str| {
        let mut text = String::from("instance_id,width,height\n");
        for n in 0..1100 {
            let _ = writeln!(text, "i{n},{n},2");
        }
        text.push_str(last);
        job.write(&format!("features/{name}.csv"), &text);
    };
    write("a", "late,1,tall\n");
    let error = job.fails(crowd, 3);
    assert_says(&error, &["'tall'", "`height`", "record 1101", "features/a.csv"]);
    // The column is not dropped either when the text is in another file.
    write("a", "");
    job.write("features/b.csv", "height,instance_id,width\ntall,j,1\n");
    let error = job.fails(crowd, 3);
    assert_says(
        &error,
        &["`height` has no one type", "integers in `", "text in `", "features/b.csv"],
    );
}

#[test]
fn types_that_differ_between_files_are_widened_where_no_value_changes() {
    let ids = |values: &[&str]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let write = |job: &Job, name: &str, instance: ArrayRef, weight: ArrayRef| {
        let columns = vec![
            ("instance_id", instance),
            ("annotator_id", ids(&[name])),
            ("label", ids(&["x"])),
            ("weight", weight),
        ];
        write_parquet(&job.path(&format!("in/{name}.parquet")), columns);
    };
    let job = Job::new();
    write(&job, "a", Arc::new(Int32Array::from(vec![7])), Arc::new(Int64Array::from(vec![2])));
    write(&job, "b", Arc::new(Int64Array::from(vec![7])), Arc::new(Float32Array::from(vec![0.5])));
    write(
        &job,
        "c",
        Arc::new(Int64Array::from(vec![1_i64 << 40])),
        Arc::new(Float64Array::from(vec![0.25])),
    );
    let run = job.run(&vote("in", ""));
    let labels = read_table(&run, "labels");
    assert_eq!(cells(&labels, &["instance_id", "n_annotations"]), ["7 2", "1099511627776 1"]);
    let job = Job::new();
    write(
        &job,
        "a",
        Arc::new(Int32Array::from(vec![7])),
        Arc::new(Int64Array::from(vec![(1 << 53) + 1])),
    );
    write(&job, "b", Arc::new(Int32Array::from(vec![7])), Arc::new(Float64Array::from(vec![0.5])));
    assert_says(
        &job.fails(&vote("in", ""), 3),
        &[
            "`weight`",
            "9007199254740993",
            "integers in `",
            "a.parquet`, decimals in `",
            "b.parquet`",
        ],
    );
    let job = Job::new();
    write(&job, "a", Arc::new(Int32Array::from(vec![7])), Arc::new(Int64Array::from(vec![1])));
    write(&job, "b", ids(&["7"]), Arc::new(Int64Array::from(vec![1])));
    let error = job.fails(&vote("in", ""), 3);
    assert_says(
        &error,
        &["`instance_id` has no one type", "Int32 in `", "a.parquet`, Utf8 in `", "b.parquet`"],
    );
}

#[test]
fn numbers_of_text_files_widen_over_files_and_numbers_with_leading_zeros_are_text() {
    let job = Job::new();
    job.write("csv/a.csv", "instance_id,annotator_id,label,weight,code\ni,a,x,3,007\n");
    job.write("csv/b.csv", "instance_id,annotator_id,label,weight,code\ni,b,y,0.5,7\n");
    let row = |annotator: &str, label: &str, weight: &str, code: &str| {
        format!(
            r#"{{"instance_id":"i","annotator_id":"{annotator}","label":"{label}","weight":{weight},"code":"{code}"}}"#
        )
    };
    job.write("json/a.ndjson", &row("a", "x", "3", "007"));
    job.write("json/b.ndjson", &row("b", "y", "0.5", "7"));
    for folder in ["csv", "json"] {
        let more = format!(
            "sink.run_id = '{folder}'\n\
             source.sql.annotations = \"select * from annotations where code in ('007', '7')\""
        );
        let run = job.run(&vote(folder, &more));
        // The weights are 3 and 0.5, of 3.5 in all.
        let posteriors = cells(&read_table(&run, "posteriors"), &["class", "probability"]);
        assert_eq!(posteriors, ["x 0.8571428571428571", "y 0.14285714285714285"], "{folder}");
        let table = format!("t={}", job.url(folder));
        let codes = ["sql", "--table", &table, "-c", "select code from t order by 1", "--json"];
        assert_eq!(stdout(&run_ok(&codes)), "{\"code\":\"007\"}\n{\"code\":\"7\"}\n", "{folder}");
    }
}

#[test]
fn a_value_past_the_first_rows_of_csv_is_none_of_another_kind() {
    let job = Job::new();
    let table = format!("t={}", job.url("in.csv"));
    let codes = ["sql", "--json", "--table", &table, "-c", "select max(code) as m from t"];
    let write = |last: &str, decimal: &str| {
        let rows: Vec<String> = (0..1_200).map(|n| format!("i{n},{}{decimal}", n % 5)).collect();
        job.write("in.csv", &format!("id,code\n{}\ni,{last}\n", rows.join("\n")));
    };
    for (last, decimal) in [
        ("007", ""),
        ("+7", ""),
        (" 7", ""),
        ("-0", ""),
        ("1.5", ""),
        ("9007199254740993", ".5"),
        ("007", ".5"),
    ] {
        write(last, decimal);
        let error = run_fails(&codes, 3);
        let found = format!("`{last}` in the column `code` of record 1201");
        assert_says(&error, &["a record does not fit the columns", &found, "in.csv"]);
    }
    for (last, decimal, most) in
        [("9007199254740993", "", "9007199254740993"), ("7", ".5", "7.0"), ("+7", ".5", "7.0")]
    {
        write(last, decimal);
        assert_eq!(stdout(&run_ok(&codes)), format!("{{\"m\":{most}}}\n"));
    }
}

/// As codes these are different texts; as weights and times they are numbers.
#[test]
fn numbers_with_a_plus_or_a_space_are_text_unless_a_measure_is_wanted() {
    let job = Job::new();
    let others: String = (0..1_200).map(|n| format!("j{n},a,x,1,5,7\n")).collect();
    job.write(
        "in.csv",
        &format!(
            "instance_id,annotator_id,label,weight,annotated_at,code\n\
             i,a,early, 3, 7,+7\ni,b,other,+1,1,7\n{others}i,a,late,3,+8,+7\n"
        ),
    );
    let more = "frame.duplicates = 'last'
                source.sql.annotations = \"select * from annotations where code in ('+7', '7')\"";
    let run = job.run(&vote("in.csv", more));
    assert_eq!(rows_read(&run), "1203 1202");
    assert_eq!(cells(&read_table(&run, "labels")[..1], &["instance_id", "label"]), ["i late"]);
    let table = format!("t={}", job.url("in.csv"));
    let query = "select distinct code from t order by 1";
    let codes = stdout(&run_ok(&["sql", "--json", "--table", &table, "-c", query]));
    assert_eq!(codes, "{\"code\":\"+7\"}\n{\"code\":\"7\"}\n");
}

#[test]
fn a_column_of_features_that_holds_text_among_numbers_is_no_silent_loss() {
    let job = Job::new();
    let rows: String = (0..40)
        .map(|i| format!("{},{i},{}\n", i % 20, if i % 3 == 0 { "y" } else { "x" }))
        .collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{rows}"));
    let with = |bad: &str| {
        let rows: String = (0..20)
            .map(|i| {
                format!(
                    "{i},{}.5,{},name {i}\n",
                    i % 7,
                    if i == 11 { bad.to_owned() } else { i.to_string() }
                )
            })
            .collect();
        job.write("features.csv", &format!("instance_id,h,k,words\n{rows}"));
    };
    let pipeline = "source = { annotations = '{dir}in.csv', features = '{dir}features.csv' }
                    model = { kind = 'dl', train.epochs = 1 }\n";
    with("n/a");
    assert_says(
        &job.fails(pipeline, 3),
        &["source.features", "hold numbers, and other values", "`k`"],
    );
    // A column of text alone (`words`) is not a feature, nor is a column that the query leaves out (`k`).
    let query = "sql.features = 'SELECT instance_id, h, words FROM features', features";
    job.ends(&pipeline.replacen("features", query, 1), &[], 0);
    for number in ["7", " 7", "+7", "-0"] {
        with(number);
        job.ends(pipeline, &[], 0);
    }
}

/// The valid id was named as the wrong one, or was not found, because of the other.
#[test]
fn gold_of_a_csv_may_have_negative_ids_and_ids_above_all_signed_integers() {
    let job = Job::new();
    let rows = vec![
        ("instance_id", Arc::new(Int64Array::from(vec![-5, 7])) as ArrayRef),
        ("annotator_id", Arc::new(StringArray::from(vec!["a", "a"]))),
        ("label", Arc::new(StringArray::from(vec!["x", "y"]))),
    ];
    write_parquet(&job.path("in.parquet"), rows);
    let pipeline = "source = { annotations = '{dir}in.parquet', gold = '{dir}gold.csv' }
                    model.kind = 'majority_vote'";
    let gold = |role: &str| {
        let rows = ["-5,x", "18446744073709551615,x", "7,y"].map(|row| format!("{row},{role}\n"));
        job.write("gold.csv", &format!("instance_id,class,role\n{}", rows.concat()));
    };
    gold("train");
    let error = job.fails(pipeline, 3);
    assert_says(&error, &["source.gold", "`18446744073709551615`", "hold Int64"]);
    gold("holdout");
    let metrics = read_table(&job.run(pipeline), "metrics");
    for (name, value) in [("instances", 2.0), ("accuracy", 1.0)] {
        let found = metrics.iter().find(|row| text(row, "name") == name);
        assert_eq!(found.map(|row| number(row, "value")), Some(value), "{name}");
    }
}

/// Each file has few ids, as has question `p`; those of question `q` are too many for indices of 8 bits.
#[test]
fn a_dictionary_too_narrow_for_one_question_is_plain_text_in_all_of_them() {
    let job = Job::new();
    let coded = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    for (file, question, ids) in [("a", "p", 0..2), ("b", "q", 0..100), ("c", "q", 100..200)] {
        let n = ids.len();
        let ids: ArrayRef = Arc::new(ids.map(|i| Some(format!("i{i}"))).collect::<StringArray>());
        let same = |value: &str| Arc::new(StringArray::from(vec![value; n])) as ArrayRef;
        let columns = vec![
            ("instance_id", cast(&ids, &coded).unwrap()),
            ("annotator_id", same("a")),
            ("label", same("x")),
            ("question", same(question)),
        ];
        write_parquet(&job.path(&format!("in/{file}.parquet")), columns);
    }
    let labels = read_batches(&job.run(&vote("in", "")), "labels");
    assert_eq!(labels.iter().map(RecordBatch::num_rows).sum::<usize>(), 202);
    let types = labels.iter().map(|batch| batch["instance_id"].data_type().clone());
    assert_eq!(types.collect::<BTreeSet<_>>(), BTreeSet::from([DataType::Utf8]));
}
