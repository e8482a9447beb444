//! The same rows in any format, as a file, a folder or a pattern, give the same tables, byte for byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use labelmill::testing::synth::CrowdShape;

use crate::job::{Job, assert_says, cells, write_as};
use crate::support::{read_table, run_ok, stderr, stdout, table_files};

const FORMATS: [&str; 6] = ["parquet", "csv", "csv.gz", "ndjson", "ndjson.gz", "arrow"];
const LAYOUTS: [&str; 4] = ["one.EXT", "days", "many", "daily/day=*/part-?.EXT"];

/// Integers, text that is not a number, and weights that two digits hold exactly.
fn crowd() -> RecordBatch {
    let rows = CrowdShape { instances: 40, ..CrowdShape::default() }.draw(5).rows;
    let weights = rows.iter().map(|r| 0.25 * f64::from(1 + r.0 % 4));
    let columns: [(&str, ArrayRef); 4] = [
        ("instance_id", Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.0.into())))),
        (
            "annotator_id",
            Arc::new(StringArray::from_iter_values(
                rows.iter().map(|r| format!("ann, \"{}\"", r.1)),
            )),
        ),
        (
            "label",
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| format!("ü{}", r.2)))),
        ),
        ("weight", Arc::new(Float64Array::from_iter_values(weights))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap()
}

/// Writes the crowd in every layout that `LAYOUTS` names, next to files that hold no data.
fn lay_out(job: &Job, extension: &str, crowd: &RecordBatch) {
    let half = crowd.num_rows() / 2;
    let halves = [crowd.slice(half, crowd.num_rows() - half), crowd.slice(0, half)];
    write_as(&job.path(&format!("one.{extension}")), crowd);
    write_as(&job.path(&format!("many/part-0.{extension}")), &halves[0]);
    write_as(&job.path(&format!("many/deeper/part-1.{extension}")), &halves[1]);
    write_as(&job.path(&format!("many/_temporary/part-2.{extension}")), crowd);
    write_as(&job.path(&format!("many/.part-3.{extension}")), crowd);
    job.write("many/_SUCCESS", "");
    job.write("many/.part-0.crc", "crc");
    for (n, part) in halves.iter().enumerate() {
        write_as(&job.path(&format!("days/{n}/part-{n}.{extension}")), part);
        write_as(&job.path(&format!("daily/day={n}/part-{n}.{extension}")), part);
    }
    write_as(&job.path(&format!("daily/day=0/other-0.{extension}")), crowd);
    write_as(&job.path(&format!("daily/day=0/deeper/part-0.{extension}")), crowd);
}

/// Publishes the crowd and returns every file but those of `trace`, which holds wall times.
fn publish(job: &Job, url: &str) -> BTreeMap<String, Vec<u8>> {
    let run = job.run(&format!("source.annotations = '{{dir}}{url}'\nmodel.kind = 'dawid_skene'"));
    assert_eq!(read_table(&run, "labels").len(), 40, "{url}");
    let mut files = table_files(&run);
    files.retain(|name, _| !name.starts_with("trace/"));
    files
}

#[test]
fn no_format_and_no_layout_changes_a_byte() {
    let crowd = crowd();
    let mut first: Option<BTreeMap<String, Vec<u8>>> = None;
    for extension in FORMATS {
        let job = Job::new();
        lay_out(&job, extension, &crowd);
        for layout in LAYOUTS {
            let url = layout.replace("EXT", extension);
            let files = publish(&job, &url);
            let want = first.get_or_insert_with(|| files.clone());
            assert_eq!(want.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>(), "{url}");
            for (name, bytes) in want {
                assert!(files[name] == *bytes, "{name} of {url} differs");
            }
        }
    }
}

// keys: source.format
#[test]
fn a_folder_of_several_formats_is_refused_unless_one_is_named() {
    let job = Job::new();
    let crowd = crowd();
    write_as(&job.path("in/a.parquet"), &crowd);
    write_as(&job.path("in/b.csv"), &crowd.slice(0, 4));
    let pipeline = "source.annotations = '{dir}in'\nmodel.kind = 'majority_vote'";
    let error = job.fails(pipeline, 3);
    assert_says(&error, &["several formats", "`.csv`, `.parquet`", "source.format"]);
    let run = job.run(&format!("{pipeline}\nsource.format = 'csv'"));
    assert_eq!(read_table(&run, "run")[0]["rows_read"].as_deref(), Some("4"));
}

#[test]
fn labels_and_ids_are_no_features_in_any_format() {
    let job = Job::new();
    let n = 60;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..n));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("instance_id", Arc::clone(&ids)),
        ("height", Arc::new(Float64Array::from_iter_values((0..n).map(|i| (i % 7) as f64)))),
        ("label", Arc::new(Int64Array::from_iter_values((0..n).map(|i| i % 2)))),
        ("person", ids),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let rows: Vec<String> = (0..n).map(|i| format!("{i},a,{}\n", i % 2)).collect();
    job.write("in.csv", &format!("instance_id,person,answer\n{}", rows.concat()));
    for name in ["f.csv", "f.parquet", "f.ndjson", "f.arrow"] {
        write_as(&job.path(name), &batch);
        let run = job.run(&format!(
            "source.annotations = '{{dir}}in.csv'\nsource.features = '{{dir}}{name}'\nsink.run_id = '{name}'\n\
             source.columns = {{ annotator = 'person', label = 'answer' }}\n\
             model.kind = 'dl'\nmodel.train.epochs = 1\n"
        ));
        let text = std::fs::read(run.join("model/model.json")).unwrap();
        let description: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(description["columns"], serde_json::json!(["height"]), "{name}");
        // In a text format such columns are read as text, of which nobody expects features.
        if !["f.parquet", "f.arrow"].contains(&name) {
            continue;
        }
        let warning =
            "columns of `features` that have the names of ids and labels are not features";
        let warnings = cells(&read_table(&run, "run"), &["warnings"]).remove(0);
        assert_says(&warnings, &[warning, "`label`", "`person`"]);
        let (model, new, output) =
            (run.display().to_string(), job.url(name), job.url(&format!("{name}.predicted")));
        let predict =
            ["predict", "--json", "--model", &model, "--features", &new, "--output", &output];
        let summary = stdout(&run_ok(&predict));
        assert_says(&summary, &[warning, "`label`"]);
    }
}

/// Which columns are features follows from names and types where source.columns.features does not name one.
// keys: source.columns.features
#[test]
fn columns_that_are_no_features_beside_those_that_are_give_a_warning() {
    let job = Job::new();
    let rows: String = (0..40).map(|i| format!("{},{},{}\n", i % 20, i / 20, i % 2)).collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{rows}"));
    let warnings = |list: &str, more: &str| {
        let line = |i: i32| {
            format!(
                "{{\"instance_id\":{i},\"age\":{},\"label\":1,\"name\":\"n\",\"{list}\":[{}.5,2.5]}}\n",
                i % 7,
                i % 2
            )
        };
        job.write("features.ndjson", &(0..20).map(line).collect::<String>());
        let pipeline = format!(
            "source.annotations = '{{dir}}in.csv'\nsource.features = '{{dir}}features.ndjson'\n{more}
             model.kind = 'gem'\nsink.url = '{{dir}}out'\n"
        );
        let file = job.write("pipeline.toml", &pipeline);
        let checked = stderr(&run_ok(&["check", &file]));
        let table = cells(&read_table(&job.run(&pipeline), "run"), &["warnings"]).remove(0);
        let told: Vec<String> = serde_json::from_str(&table).unwrap();
        let told: Vec<String> =
            told.into_iter().filter(|w| w.contains("not read as features")).collect();
        told.iter().for_each(|warning| assert_says(&checked, &[warning]));
        told
    };
    let told = warnings("vector", "");
    assert_eq!(told.len(), 1);
    assert_says(
        &told[0],
        &[
            "not read as features: `",
            "`name`",
            "`vector`",
            "; only the columns of numbers are (",
            "source.sql.features",
        ],
    );
    assert!(!told[0].contains("`label`") && !told[0].contains("`instance_id`"), "{told:?}");
    let query = "source.sql.features = 'SELECT instance_id, age, name FROM features'";
    assert_eq!(warnings("vector", query).len(), 0);
    let told = warnings("features", "");
    assert_eq!(told.len(), 1);
    assert_says(
        &told[0],
        &["not read as features: `age`; only the column `features` is (source.columns.features"],
    );
    assert_eq!(warnings("features", "source.columns.features = 'features'").len(), 0);
    assert_eq!(warnings("vector", "source.columns.features = 'vector'").len(), 0);
}
