//! Columns as other programs write them: categories, row numbers, missing weights, and help for files that cannot be read.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, RecordBatch, StringArray,
    StringViewArray, UInt32Array,
};
use arrow::datatypes::UInt32Type;
use arrow::ipc::writer::FileWriter;

use crate::job::{Job, assert_says, cells, rows_read, vote};
use crate::support::{read_table, run, run_fails, stderr, write_parquet};

/// A column of polars' categories.
fn categories(keys: &[u32], values: &[&str]) -> ArrayRef {
    let values = Arc::new(StringViewArray::from_iter_values(values));
    Arc::new(
        DictionaryArray::<UInt32Type>::try_new(UInt32Array::from(keys.to_vec()), values).unwrap(),
    )
}

#[test]
fn categories_of_polars_are_read_as_ids_labels_and_questions() {
    let all = [
        ("instance_id", categories(&[0, 0, 1, 1], &["i", "j"])),
        ("annotator_id", categories(&[0, 1, 0, 1], &["a", "b"])),
        ("label", categories(&[1, 1, 0, 0], &["neg", "a text that is longer than a view holds"])),
        ("question", categories(&[0, 0, 0, 0], &["q"])),
    ];
    let job = Job::new();
    let batch = RecordBatch::try_from_iter(all).unwrap();
    let file = std::fs::File::create(job.path("in.arrow")).unwrap();
    let mut writer = FileWriter::try_new(file, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let run = job.run(&vote("in.arrow", ""));
    assert_eq!(
        cells(&read_table(&run, "labels"), &["question", "instance_id", "label"]),
        ["q i a text that is longer than a view holds", "q j neg"]
    );
}

/// A forest on a column of row numbers would learn the order of the file.
#[test]
fn row_numbers_of_pandas_are_no_features() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\ni,b,x\nj,a,y\nj,b,y\n");
    job.write("features.csv", ",Unnamed: 0.1,instance_id,h\n0,0,i,0.5\n1,1,j,1.5\n");
    let numbers = |values: [f64; 2]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    write_parquet(
        &job.path("features.parquet"),
        vec![
            ("h", numbers([0.5, 1.5])),
            ("item", Arc::new(StringArray::from(vec!["i", "j"])) as ArrayRef),
            ("__index_level_0__", numbers([0.0, 1.0])),
        ],
    );
    for (file, columns, names) in [
        ("features.csv", "", "not read as features: ``, `Unnamed: 0.1`;"),
        ("features.parquet", "", "not read as features: `__index_level_0__`;"),
    ] {
        let sql = if file.ends_with("parquet") {
            "source.sql.features = 'select item as instance_id, * exclude (item) from features'\n"
        } else {
            ""
        };
        let pipeline = format!(
            "source.annotations = '{{dir}}in.csv'\nsource.features = '{{dir}}{file}'\n{columns}{sql}\
             model = {{ kind = 'gem', classifier = {{ kind = 'decision_tree' }} }}\n"
        );
        let told = job.ends(&pipeline, &["--set", &format!("sink.run_id={}", &file[9..])], 0);
        assert_says(&told, &[names, "row_numbers"]);
    }
}

/// Excel's "Unicode text" is UTF-16: read as latin1, it has zeros between its letters.
#[test]
fn a_file_in_utf_16_names_its_encoding() {
    let job = Job::new();
    let text = "\u{feff}instance_id,annotator_id,label\ni,a,x\ni,b,x\n";
    let forms: [fn(u16) -> [u8; 2]; 2] = [u16::to_le_bytes, u16::to_be_bytes];
    for form in forms {
        let bytes: Vec<u8> = text.encode_utf16().flat_map(form).collect();
        std::fs::write(job.path("in.csv"), bytes).unwrap();
        let error = job.fails(&vote("in.csv", ""), 3);
        assert_says(&error, &["not UTF-8", "UTF-16", "iconv -f utf-16 -t utf-8"]);
        assert!(!error.contains("latin1"), "{error}");
    }
}

/// Such a column panics in the library that reads it.
#[test]
fn categories_of_truth_values_in_a_parquet_file_have_an_error_of_their_own() {
    let job = Job::new();
    let text = |values: &[&str]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let values = Arc::new(BooleanArray::from(vec![false, true]));
    let keys = UInt32Array::from(vec![0, 1, 1]);
    let labels = Arc::new(DictionaryArray::<UInt32Type>::try_new(keys, values).unwrap());
    let columns = vec![
        ("instance_id", text(&["i", "i", "j"])),
        ("annotator_id", text(&["a", "b", "a"])),
        ("label", labels as ArrayRef),
    ];
    write_parquet(&job.path("in.parquet"), columns);
    let error = job.fails(&vote("in.parquet", ""), 3);
    assert_says(&error, &["type that cannot be read", "source.annotations", "plain values"]);
    assert!(!error.contains("panic"), "{error}");
}

/// As pandas' `reset_index`, R and others write them; a column of such a name may be a feature too.
#[test]
fn columns_that_number_the_rows_are_no_features() {
    let names = ["index", "level_0", "X", "...1", "row_nr", "h"];
    for (begin, step, is_feature) in [(0, 1, false), (1, 1, false), (0, 2, true), (2, 1, true)] {
        let job = Job::new();
        let (mut votes, mut rows) = (String::new(), String::new());
        for n in 0..10 {
            let _ = writeln!(votes, "i{n},a,{0}\ni{n},b,{0}", n % 2);
            let number = (begin + step * n).to_string() + ",";
            let _ = writeln!(rows, "i{n},{}{}", number.repeat(names.len() - 1), n % 2);
        }
        job.write("in.csv", &format!("instance_id,annotator_id,label\n{votes}"));
        job.write("f.csv", &format!("instance_id,{}\n{rows}", names.join(",")));
        let pipeline = "source.annotations = '{dir}in.csv'\nsource.features = '{dir}f.csv'\n\
                        model = { kind = 'gem', classifier = { kind = 'decision_tree' } }\n";
        let told = job.ends(pipeline, &[], 0);
        let named = "not read as features: `index`, `level_0`, `X`, `...1`, `row_nr`;";
        assert_eq!(told.contains(named), !is_feature, "{told}");
        assert_eq!(told.contains("[row_numbers]"), !is_feature, "{told}");
    }
}

#[test]
fn a_weight_that_is_missing_rejects_its_row_and_a_query_can_give_it() {
    let job = Job::new();
    let head = "instance_id,annotator_id,label,weight\n";
    job.write("in.csv", &format!("{head}i,a,x,0.5\ni,b,y,NA\nj,a,x,nan\nj,b,y,2\nk,a,x,N/A\n"));
    let run = job.run(&vote("in.csv", ""));
    assert_eq!(rows_read(&run), "5 2");
    let rejects = cells(&read_table(&run, "rejects"), &["reason", "count"]);
    assert_eq!(rejects, ["bad_weight 3"]);
    let query = "source.sql.annotations = 'select instance_id, annotator_id, label, coalesce(weight, 1) as weight \
                 from annotations'\nsink.run_id = 'given'\n";
    job.ends(&vote("in.csv", query), &[], 0);
    let run = crate::support::files_of(&job.path("out/runs/given"));
    assert_eq!(rows_read(&run), "5 5");
    let job = Job::new();
    job.write("in.csv", &format!("{head}i,a,x,0.5\ni,b,y,high\n"));
    let error = job.fails(&vote("in.csv", ""), 3);
    assert_says(&error, &["a weight is not a number", "`high` in the column `weight` of record 2"]);
}

#[test]
fn csv_files_may_differ_in_columns_that_nothing_reads() {
    let job = Job::new();
    job.write("in/a.csv", "instance_id,annotator_id,label,seconds\ni,a,x,5\n");
    job.write("in/b.csv", "note,label,instance_id,annotator_id\nn,y,j,b\n");
    let run = job.run(&vote("in/", ""));
    assert_eq!(cells(&read_table(&run, "labels"), &["instance_id", "label"]), ["i x", "j y"]);
    // A query may read every column.
    let query = "source.sql.annotations = 'select * from annotations'\n";
    let error = job.ends(&vote("in/", query), &[], 3);
    assert_says(&error, &["different columns", "it lacks `seconds`; it alone has `note`"]);
}

#[test]
fn every_missing_column_is_reported() {
    let job = Job::new();
    let fails = |content: &str| {
        let (file, sink) = (job.write("in.csv", content), job.url("out"));
        let vote = ["--annotations", &file, "--model", "majority_vote", "--output", &sink];
        run_fails(&[&["aggregate"], &vote[..]].concat(), 3)
    };
    let error = fails("instance_id,p,q\ni,1,2\n");
    assert_says(&error, &["the column `annotator_id` is missing", "the column `label` is missing"]);
    // One line mends all three, and stands once.
    let error = fails("task,worker,answer\ni,a,x\n");
    assert_says(
        &error,
        &["the column `label` is missing", "source.columns = { instance = \"task\""],
    );
    let counts = ["is missing", "help:"].map(|part| error.matches(part).count());
    assert_eq!(counts, [3, 1], "{error}");
}

#[test]
fn a_file_that_cannot_be_read_has_help_that_fits() {
    for (name, content, parts) in [
        ("in.csv.zip", "PK", ["unpack it", "in.csv.zip"]),
        ("in.XLSX", "PK", ["save the sheet as CSV", "in.XLSX"]),
        ("in.pkl", "x", ["export its rows as Parquet or CSV", "in.pkl"]),
        ("in.txt", "x", ["end its name in .parquet", "in.txt"]),
        (
            "in.ndjson",
            "{\"instance_id\": \"i\", \"annotator_id\": \"a\", \"label\": NaN}\n",
            ["NaN in line 1, at byte", "NaN is no JSON: write null"],
        ),
        (
            "in.jsonl",
            "{\"instance_id\": \"i\", \"annotator_id\": \"a\", \"label\": -Infinity}\n",
            ["Infinity in line 1", "write null"],
        ),
    ] {
        let job = Job::new();
        job.write(name, content);
        assert_says(&job.fails(&vote(name, ""), 3), &parts);
    }
}

#[test]
#[cfg(not(feature = "gcs"))]
fn a_store_that_was_not_built_in_is_named_with_the_ways_to_it() {
    let arguments = ["--model", "majority_vote", "--output", "out"];
    let error =
        run_fails(&[&["aggregate", "--annotations", "gs://b/x.csv"], &arguments[..]].concat(), 2);
    assert_says(&error, &["--features gcs", "AWS_ENDPOINT_URL=https://storage.googleapis.com"]);
}

/// The help for a file of these rows.
fn help_for(head: &str, row: impl Fn(usize) -> String) -> String {
    let job = Job::new();
    let rows: String = (0..12).map(row).collect();
    let file = job.write("in.csv", &format!("{head}\n{rows}"));
    let sink = job.url("out");
    let arguments =
        ["aggregate", "--annotations", &file, "--model", "majority_vote", "--output", &sink];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn no_key_and_no_status_is_proposed_as_a_label() {
    // Label Studio: the task's id names the instance, and the name of the labels' column is the project's own.
    let help = help_for("annotation_id,annotator,created_at,id,sentiment,text", |n| {
        format!(
            "{n},{},2024,t{},{},the text\n",
            ["ada", "ben"][n % 2],
            n / 3,
            ["pos", "neg"][n % 2]
        )
    });
    assert_says(&help, &["instance = \"id\"", "annotator = \"annotator\"", "one of: `sentiment`"]);
    assert!(!help.contains("label = \"annotation_id\""), "{help}");
    // Prodigy: `answer` says whether a row counts.
    let help = help_for("_input_hash,text,_annotator_id,answer,mood", |n| {
        format!("{},text {},a{},{},{}\n", n / 2, n / 2, n % 2, ["accept", "ignore"][n % 2], n % 3)
    });
    assert_says(&help, &["instance = \"_input_hash\"", "one of: `mood`"]);
    assert!(!help.contains("\"answer\""), "{help}");
    // An answer that is one, and a column of the same kind of name that is a key.
    let help = help_for("item,user,answer,response", |n| {
        format!("{},u{},{},r{n}\n", n / 2, n % 2, ["yes", "no"][n % 2])
    });
    let line = "{ instance = \"item\", annotator = \"user\", label = \"answer\" }";
    assert_says(&help, &[line]);
    // Every annotator has a column.
    let help =
        help_for("text,ada,ben,cyd", |n| format!("text {n},{},{},{}\n", n % 2, n % 3, n % 2));
    assert_says(&help, &["the table is wide", "one row for each annotation"]);
}

/// `id` numbers the rows of one, `classification_id` those of the other.
#[test]
fn no_key_of_the_rows_is_proposed_as_an_instance() {
    let help = help_for("id,prompt_id,model,response,verdict,status", |n| {
        format!("{n},{},m{},text {n},{},ok\n", n / 3, n % 3, ["pos", "neg"][n % 2])
    });
    let line = "{ instance = \"prompt_id\", annotator = \"model\", label = \"verdict\" }";
    assert_says(&help, &[line]);
    let head = "classification_id,user_name,user_id,workflow_id,created_at,annotations,subject_ids";
    let help = help_for(head, |n| {
        format!("{n},u{},{},11,00:{n},{},{}\n", n % 3, n % 3, ["x", "y"][n % 2], n / 3)
    });
    assert_says(&help, &["instance = \"subject_ids\", annotator = \"user_id\""]);
    // Prodigy's choices are in `accept`, and a hash is no label.
    let help = help_for("text,_input_hash,_task_hash,accept,answer,_annotator_id", |n| {
        format!("t{0},{0},{0},{1},accept,a{2}\n", n / 3, ["x", "y"][n % 2], n % 3)
    });
    assert_says(&help, &["instance = \"_input_hash\"", "label is one of: `accept`\n"]);
    // Of two that are possible, the user chooses: no key, and no column of one value, is among them.
    let help = help_for("id,scene_id,clip_id,model,choice,site_id", |n| {
        format!("{n},s{},c{},m{},{},1\n", n / 3, n / 3, n % 3, ["x", "y"][n % 2])
    });
    assert_says(&help, &["source.columns.instance is one of: `scene_id`, `clip_id`"]);
    assert!(!help.contains("site_id`;") && !help.contains("of: `id`"), "{help}");
}

#[test]
fn wide_tables_keep_the_order_of_their_columns_wherever_the_id_stands() {
    let job = Job::new();
    job.write("in.csv", "item,annotator_id,label\ni,a,x\ni,b,x\nj,a,y\nj,b,y\n");
    job.write("ends.csv", "h,w,item\n0,5,i\n1,5,j\n");
    job.write("begins.csv", "item,h,w\nj,1,5\ni,0,5\n");
    let labels = |file: &str| {
        let pipeline = format!(
            "source.annotations = '{{dir}}in.csv'\nsource.features = '{{dir}}{file}'\n\
             source.columns.instance = 'item'\nmodel = {{ kind = 'gem', classifier = {{ kind = 'decision_tree' }} }}\n\
             sink.run_id = '{file}'\n"
        );
        job.ends(&pipeline, &[], 0);
        let run = crate::support::files_of(&job.path(&format!("out/runs/{file}")));
        (
            cells(&read_table(&run, "labels"), &["instance_id", "label"]),
            cells(&read_table(&run, "predictions"), &["instance_id", "class", "probability"]),
        )
    };
    let (ends, begins) = (labels("ends.csv"), labels("begins.csv"));
    assert_eq!(ends, begins);
    assert_eq!(ends.0, ["i x", "j y"]);
}
