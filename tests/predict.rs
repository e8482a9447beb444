//! Prediction from a saved model: features that fit, features that do not fit, and its memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, FixedSizeBinaryArray, StringArray, UInt32Array};
use serde_json::{Value, json};

use crate::job::{Job, assert_says};
use crate::network_job::{WIDTH, crowd, features, ids, job, list, pipeline, write_features};
use crate::support::{read_batches, read_table, run_fails, run_ok, text, unsealed, write_parquet};

/// The arguments of `predict` with this model, these features and more.
fn arguments(job: &Job, model: &str, features: &str, more: &[&str]) -> Vec<String> {
    let (features, output) = (job.url(features), job.url("predicted"));
    let mut all: Vec<String> =
        ["predict", "--model", model, "--features", &features, "--output", &output]
            .map(str::to_owned)
            .to_vec();
    all.extend(more.iter().map(|word| (*word).to_owned()));
    all
}

pub fn predicts(job: &Job, model: &str, features: &str, more: &[&str]) -> String {
    let all = arguments(job, model, features, more);
    let output = run_ok(&all.iter().map(String::as_str).collect::<Vec<_>>());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn refuses(job: &Job, model: &str, features: &str, more: &[&str], code: i32) -> String {
    let all = arguments(job, model, features, more);
    run_fails(&all.iter().map(String::as_str).collect::<Vec<_>>(), code)
}

#[test]
fn errors_of_predict_name_options_and_no_keys_of_a_pipeline() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1"));
    let model = run.display().to_string();
    let words = || Arc::new(StringArray::from(vec!["x"; 200])) as ArrayRef;
    write_parquet(&job.path("words.parquet"), vec![("instance_id", ids(200)), ("a", words())]);
    let no_id = vec![("item", ids(200)), ("features", list(&features(), WIDTH))];
    write_parquet(&job.path("no_id.parquet"), no_id);
    for (file, parts) in [
        ("words.parquet", ["no column holds features", "in `predict`, --features-column"]),
        ("no_id.parquet", ["`instance_id` is missing", "in `predict`, --instance-column"]),
        ("absent.parquet", ["absent.parquet", "where: --features "]),
    ] {
        let code = if file == "absent.parquet" { 8 } else { 3 };
        let stderr = refuses(&job, &model, file, &[], code);
        assert_says(&stderr, &parts);
        assert_says(&stderr, &["where: --features"]);
        assert!(!stderr.contains("where: source."), "{stderr}");
    }
}

/// The features have a column `instance_id`, too.
#[test]
fn an_instance_column_that_is_not_there_is_an_error() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1"));
    let model = run.display().to_string();
    let stderr = refuses(&job, &model, "features.parquet", &["--instance-column", "nope"], 3);
    assert_says(&stderr, &["the column `nope` is missing", "where: --features"]);
}

#[test]
fn another_column_is_another_prediction() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'"));
    let model = run.display().to_string();
    let (values, zeros) = (features(), vec![0.0; 200 * WIDTH]);
    let columns = vec![
        ("instance_id", ids(200)),
        ("features", list(&values, WIDTH)),
        ("nothing", list(&zeros, WIDTH)),
    ];
    write_parquet(&job.path("two.parquet"), columns);
    predicts(&job, &model, "two.parquet", &[]);
    let stderr = predicts(&job, &model, "two.parquet", &["--features-column", "nothing"]);
    assert!(!stderr.contains("nothing to do"), "{stderr}");
    assert_ne!(
        read_table(&job.path("predicted/latest"), "predictions"),
        read_table(&run, "predictions")
    );
    let row = &read_table(&job.path("predicted/latest"), "run")[0];
    assert_eq!(text(row, "device"), "cpu");
}

#[test]
fn another_device_is_another_prediction() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1"));
    let model = run.display().to_string();
    predicts(&job, &model, "features.parquet", &[]);
    let stderr = predicts(&job, &model, "features.parquet", &["--device", "cpu"]);
    assert!(!stderr.contains("nothing to do"), "{stderr}");
    let stderr = predicts(&job, &model, "features.parquet", &["--device", "cpu"]);
    assert_says(&stderr, &["nothing to do"]);
}

/// Of networks and of models without them.
#[test]
fn a_device_that_is_not_here_is_an_error_of_its_option() {
    let job = job();
    let network = pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1");
    let tree = pipeline("kind = 'gem'");
    let tree = &tree[..tree.find("device = ").unwrap()];
    for spec in [network.as_str(), tree] {
        let model = job.run(spec).display().to_string();
        for device in ["tpu", "gpu", "cuda:-1"] {
            let stderr = refuses(&job, &model, "features.parquet", &["--device", device], 2);
            let found = format!("found: `{device}`");
            assert_says(&stderr, &["there is no such device", "where: --device\n", &found]);
        }
        if !cfg!(feature = "cuda") {
            let stderr = refuses(&job, &model, "features.parquet", &["--device", "cuda:0"], 2);
            assert_says(&stderr, &["built without CUDA", "where: --device\n"]);
        }
    }
}

#[test]
fn the_folder_of_other_runs_keeps_its_latest_run() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1"));
    let (out, features) = (job.url("out"), job.url("features.parquet"));
    for more in [&[][..], &["--force"][..]] {
        let args = ["predict", "--model", &out, "--features", &features, "--output", &out];
        let error = run_fails(&[&args[..], more].concat(), 2);
        let id = run.parent().unwrap().file_name().unwrap().display().to_string();
        let found = format!("found: the run `{id}`\n");
        assert_says(
            &error,
            &[&format!("where: --output {out}\n"), &found, "choose another folder"],
        );
    }
    assert_eq!(job.path("out/latest").canonicalize().unwrap(), run);
    for device in ["auto", "cpu"] {
        predicts(&job, &out, "features.parquet", &["--device", device]);
    }
}

#[test]
fn memory_is_kept_to() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'"));
    let model = run.display().to_string();
    let scratch = job.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let scratch = scratch.display().to_string();
    let little = ["--memory-limit", "6kB", "--scratch", &scratch];
    predicts(&job, &model, "features.parquet", &little);
    let expected = read_table(&run, "predictions");
    assert_eq!(read_table(&job.path("predicted/latest"), "predictions"), expected);
    let none = ["--force", "--memory-limit", "6kB", "--scratch", "/dev/null/nowhere"];
    assert_says(&refuses(&job, &model, "features.parquet", &none, 2), &["/dev/null/nowhere"]);
    let stderr = refuses(&job, &model, "features.parquet", &["--memory-limit", "much"], 2);
    assert_says(&stderr, &["much", "512MiB"]);
}

#[test]
fn features_of_another_width_and_a_run_without_a_model_are_refused() {
    let job = job();
    let run = job.run(&pipeline("kind = 'conal'")).display().to_string();
    write_features(&job.path("wide.parquet"), list(&[0.5; 12], 6));
    let stderr = refuses(&job, &run, "wide.parquet", &[], 3);
    assert_says(&stderr, &["width", "6 numbers a row, where the model takes 5"]);
    let votes =
        job.run("source.annotations = '{dir}annotations.parquet'\nmodel.kind = 'majority_vote'");
    let stderr = refuses(&job, &votes.display().to_string(), "wide.parquet", &[], 3);
    assert_says(&stderr, &["there is no trained model here"]);
}

#[test]
fn classes_that_are_not_the_network_s_are_refused() {
    let job = job();
    let run = job.run(&pipeline("kind = 'conal'"));
    let file = run.join("model/model.json");
    let mut description: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    description["classes"]["values"] = json!(["2", "1", "0"]);
    std::fs::write(&file, format!("{description:#}")).unwrap();
    let stderr = refuses(&job, &run.display().to_string(), "features.parquet", &[], 3);
    assert_says(
        &stderr,
        &["the model's description was changed after it was written", "model.json"],
    );
    description.as_object_mut().unwrap().remove("description_sha256");
    for classes in [json!(["0", "1"]), json!(["0", "1", "2", "3"])] {
        description["classes"]["values"] = classes;
        std::fs::write(&file, description.to_string()).unwrap();
        let stderr = refuses(&job, &run.display().to_string(), "features.parquet", &[], 3);
        assert_says(&stderr, &["the model's classes are not those that it learned", "model.json"]);
    }
}

#[test]
fn classes_that_are_bytes_are_those_of_the_predictions() {
    let rows = crowd().rows;
    let number = |f: fn(&(u32, u32, u32)) -> u32| {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(f))) as ArrayRef
    };
    let uuids = rows.iter().map(|row| [0xfd + row.2 as u8; 16]);
    let uuids = FixedSizeBinaryArray::try_from_iter(uuids).unwrap();
    let bytes = BinaryArray::from_iter_values(rows.iter().map(|row| [row.2 as u8, 0xff]));
    for labels in [Arc::new(uuids) as ArrayRef, Arc::new(bytes)] {
        let job = job();
        let label_type = labels.data_type().clone();
        write_parquet(
            &job.path("annotations.parquet"),
            vec![
                ("instance_id", number(|row| row.0)),
                ("annotator_id", number(|row| row.1)),
                ("label", labels),
            ],
        );
        let run = job.run(&pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1"));
        predicts(&job, &run.display().to_string(), "features.parquet", &[]);
        let predicted = job.path("predicted/latest");
        assert_eq!(read_table(&predicted, "predictions"), read_table(&run, "predictions"));
        let batches = read_batches(&predicted, "predictions");
        assert_eq!(batches[0].column_by_name("class").unwrap().data_type(), &label_type);
    }
}

#[test]
fn a_model_of_another_layout_is_refused() {
    let job = job();
    let run = job.run(&pipeline("kind = 'conal'"));
    let file = run.join("model/model.json");
    let good: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(good["format"], json!(2));
    for (format, found) in
        [(json!(null), "no format"), (json!(1), "format 1"), (json!(3), "format 3")]
    {
        let mut description = good.clone();
        description["format"] = format;
        std::fs::write(&file, description.to_string()).unwrap();
        let stderr = refuses(&job, &run.display().to_string(), "features.parquet", &[], 3);
        assert_says(&stderr, &["a layout that this labelmill does not read", found, "--force"]);
    }
}

#[test]
fn of_a_run_with_several_questions_one_model_has_to_be_named() {
    let job = job();
    let rows = crowd().rows;
    let rows = || rows.iter().chain(&rows);
    let column = |f: fn(&(u32, u32, u32)) -> u32| {
        Arc::new(UInt32Array::from_iter_values(rows().map(f))) as ArrayRef
    };
    let question = (0..rows().count()).map(|n| if n < rows().count() / 2 { "p" } else { "q" });
    write_parquet(
        &job.path("annotations.parquet"),
        vec![
            ("instance_id", column(|r| r.0)),
            ("annotator_id", column(|r| r.1)),
            ("label", column(|r| r.2)),
            ("question", Arc::new(StringArray::from_iter_values(question))),
        ],
    );
    let model = pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1");
    let run = job.run(&model).display().to_string();
    let stderr = refuses(&job, &run, "features.parquet", &[], 3);
    assert_says(&stderr, &["a model for each of its questions", "/model/0", "/model/1"]);
    predicts(&job, &format!("{run}/model/1"), "features.parquet", &[]);
}

#[test]
fn the_description_of_one_run_and_the_numbers_of_another_are_no_model() {
    let job = job();
    let model = pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1");
    let first = job.run(&model);
    let second = job.run(&format!("seed = 9\n{model}"));
    std::fs::create_dir(job.path("mixed")).unwrap();
    for (run, file) in [(&first, "model.json"), (&second, "model.safetensors")] {
        std::fs::copy(run.join("model").join(file), job.path("mixed").join(file)).unwrap();
    }
    let stderr = refuses(&job, &job.url("mixed"), "features.parquet", &[], 3);
    assert_says(
        &stderr,
        &["not those that its description was written with", "mixed/model.safetensors"],
    );
    // Older files contain no digest.
    let file = job.path("mixed/model.json");
    let description = unsealed(&job.path("mixed"));
    predicts(&job, &job.url("mixed"), "features.parquet", &[]);
    for (key, value, expected) in [
        ("columns", json!({}), "cannot be read"),
        ("columns", json!([1, 2]), "cannot be read"),
        ("classes", json!({"type": "UInt32", "values": ["0", "0", "2"]}), "`0` twice"),
    ] {
        let mut other = description.clone();
        other[key] = value;
        std::fs::write(&file, other.to_string()).unwrap();
        assert_says(&refuses(&job, &job.url("mixed"), "features.parquet", &[], 3), &[expected]);
    }
}

/// A job of predictions is identified by its files, not by their names.
#[test]
fn features_that_changed_in_place_are_predicted_again() {
    let job = job();
    let run = job.run(&pipeline("kind = 'crowd_layer'").replace("epochs = 20", "epochs = 1"));
    let model = run.display().to_string();
    predicts(&job, &model, "features.parquet", &[]);
    let predicted = || read_table(&job.path("predicted/latest"), "predictions");
    let first = predicted();
    assert_says(&predicts(&job, &model, "features.parquet", &[]), &["nothing to do"]);
    let mut backwards = features();
    backwards.reverse();
    write_features(&job.path("features.parquet"), list(&backwards, WIDTH));
    let stderr = predicts(&job, &model, "features.parquet", &[]);
    assert!(!stderr.contains("nothing to do"), "{stderr}");
    assert_ne!(predicted(), first);
}

/// The ids of the features are those of the run, which reads them by its rules for text.
#[test]
fn ids_are_read_by_the_rules_for_text_of_the_model_s_run() {
    let job = Job::new();
    let rows = |cell: fn(usize) -> String| (0..40).map(cell).collect::<String>();
    let annotations = rows(|i| format!("I{i} ,a,{}\ni{i},b,{}\n", i % 2, i % 2));
    let features = rows(|i| format!(" i{i},{}.5\n", i % 2));
    job.write("in.csv", &format!("instance_id,annotator_id,label\n{annotations}"));
    let features = job.write("features.csv", &format!("instance_id,x\n{features}"));
    let run = job.run(&format!(
        "source.annotations = '{{dir}}in.csv'\nsource.features = '{features}'\nmodel.kind = 'dl'\nmodel.train.epochs = 1\n\
         source.null_values = ['NA']\nsource.normalise = ['trim', 'lower']\n"
    ));
    let model = run.display().to_string();
    job.write("new.csv", "instance_id,x\n I1,1.5\nNew ,0.5\n");
    predicts(&job, &model, "new.csv", &[]);
    let rows = read_table(&job.path("predicted/latest"), "predictions");
    let ids: Vec<String> = rows.iter().map(|row| text(row, "instance_id")).collect();
    assert_eq!(ids, ["i1", "i1", "new", "new"]);
    job.write("new.csv", "instance_id,x\ni1,1.5\nNA,0.5\n");
    assert_says(
        &refuses(&job, &model, "new.csv", &[], 3),
        &["a row of features has no id", "--features"],
    );
    // A model folder alone tells the rules too.
    let alone = run.join("model").display().to_string();
    job.write("new.csv", "instance_id,x\n I1,1.5\nNew ,0.5\n");
    predicts(&job, &alone, "new.csv", &["--force"]);
    let again = read_table(&job.path("predicted/latest"), "predictions");
    assert_eq!(again, rows);
}
