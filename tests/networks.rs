//! Models that learn from features, from files to files: tables, prediction, forms of features, interrupted training.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Float64Array, ListArray, UInt32Array};
use arrow::datatypes::Float32Type;
use labelmill::model::{MODELS, ModelKind};

use crate::job::{Job, assert_says, cells};
use crate::network_job::{
    WIDTH, crowd, features, ids, job, list, pipeline, winners, write_features,
};
use crate::support::{
    assert_close, labelmill, number, read_table, run_ok, stdout, table_files, text, trains_network,
    write_parquet,
};

/// A pipeline for [`job`] with this kind of model, as small as [`pipeline`] where it is a network.
fn pipeline_of(model: &ModelKind) -> String {
    // The crowd is sparse.
    let missing = if model.kind == "tcls" { "\nmax_missing = 1.0" } else { "" };
    let kind = format!("kind = '{}'{missing}", model.kind);
    let all = pipeline(&kind);
    if trains_network(model) {
        all
    } else {
        all[..all.find(&kind).unwrap() + kind.len()].to_owned()
    }
}

#[test]
fn every_model_writes_its_tables_and_a_model_that_predicts_the_same() {
    for model in MODELS.iter().filter(|f| f.predict.is_some()) {
        let job = job();
        let run = job.run(&pipeline_of(model));
        let predictions = read_table(&run, "predictions");
        assert_eq!(predictions.len(), 200 * 3, "{}", model.kind);
        let truth = crowd().truth;
        let right =
            winners(&predictions).into_iter().filter(|(i, k)| truth.get(*i as usize) == Some(k));
        assert!(right.count() > 130, "{} learns", model.kind);
        assert_eq!(read_table(&run, "labels").len(), 150, "no label is invented");
        let (saved, new) = (run.display().to_string(), job.url("features.parquet"));
        let out = job.url("predicted");
        run_ok(&["predict", "--model", &saved, "--features", &new, "--output", &out]);
        let again = read_table(&job.path("predicted/latest"), "predictions");
        assert_eq!(predictions, again, "{}", model.kind);
        let output = run_ok(&[
            "predict",
            "--model",
            &format!("{saved}/model"),
            "--features",
            &new,
            "--output",
            &out,
        ]);
        assert_says(&String::from_utf8_lossy(&output.stderr), &["nothing to do"]);
    }
}

// keys: conal.embedding, conal.instance_embeddings
#[test]
fn common_confusion_and_parameters_are_tables() {
    let job = job();
    let run = job.run(&pipeline("kind = 'conal'\nembedding = 4"));
    let matrices = read_table(&run, "confusion_matrices");
    let common = matrices.iter().filter(|row| text(row, "scope") == "common");
    let counts: Vec<f64> = common.map(|row| number(row, "expected_count")).collect();
    assert_eq!(counts.len(), 9);
    // They sum to the number of annotations: each annotation is spread over the classes.
    let annotations = read_table(&run, "annotators");
    let annotations: f64 = annotations.iter().map(|row| number(row, "n_annotations")).sum();
    assert!((counts.iter().sum::<f64>() - annotations).abs() < 1e-6, "{counts:?}");
    // Each cell is the sum of that cell over the annotators.
    let mut sums = [0.0; 9];
    for row in matrices.iter().filter(|row| text(row, "scope") == "annotator") {
        let cell = 3.0 * number(row, "class") + number(row, "label");
        sums[cell as usize] += number(row, "expected_count");
    }
    assert_close(&counts, &sums, 1e-9, "expected_count");
    let rows = |k: usize| counts[3 * k..3 * k + 3].iter().sum::<f64>();
    assert!(rows(0) != rows(1) && rows(1) != rows(2), "the classes are not met alike: {counts:?}");
    assert_eq!(read_table(&run, "annotator_parameters").len(), 8 * 4);
    let shares = read_table(&run, "instance_parameters");
    assert_eq!(shares.len(), 150);
    for row in &shares {
        // Normalised embeddings keep the mixture weight between sigmoid(-1) and sigmoid(1).
        assert!((0.268..0.732).contains(&number(row, "value")), "{row:?}");
    }
    let run = job.run(&pipeline("kind = 'conal'\nembedding = 4\ninstance_embeddings = true"));
    let rows = read_table(&run, "instance_parameters");
    assert_eq!(rows.len(), 150 * 5);
    let of_first = rows.iter().filter(|row| number(row, "instance_id") == 0.0);
    let embedding = of_first.filter(|row| text(row, "name").starts_with("embedding_"));
    let length: f64 = embedding.map(|row| number(row, "value").powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-6, "{length}");
}

// keys: source.features
#[test]
fn features_of_every_form_give_the_same_predictions() {
    let job = job();
    let text_of = |pipeline: &str| {
        let run = job.run(pipeline);
        cells(&read_table(&run, "predictions"), &["instance_id", "class", "probability"])
    };
    let model = "kind = 'crowd_layer'";
    let expected = text_of(&pipeline(model));
    let values = features();
    let lists = values.chunks(WIDTH).map(|row| Some(row.iter().map(|v| Some(*v))));
    let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(lists);
    write_features(&job.path("features.parquet"), Arc::new(lists));
    assert_eq!(text_of(&pipeline(model)), expected, "lists");
    let column = |k: usize| {
        let own = values.iter().skip(k).step_by(WIDTH).map(|v| f64::from(*v));
        Arc::new(Float64Array::from_iter_values(own)) as ArrayRef
    };
    let names = ["a", "b", "c", "d", "e"];
    let mut columns = vec![("instance_id", ids(200))];
    columns.extend(names.iter().enumerate().map(|(k, name)| (*name, column(k))));
    write_parquet(&job.path("features.parquet"), columns);
    assert_eq!(text_of(&pipeline(model)), expected, "columns");
    let row = |i: usize| {
        let own = values[i * WIDTH..(i + 1) * WIDTH].iter().map(|v| format!("{v:?}"));
        format!("{i},{}", own.collect::<Vec<_>>().join(","))
    };
    let csv: Vec<String> = (0..200).rev().map(row).collect();
    job.write("features.csv", &format!("instance_id,a,b,c,d,e\n{}\n", csv.join("\n")));
    let from_csv = pipeline(model).replace("features.parquet", "features.csv");
    assert_eq!(text_of(&from_csv), expected, "CSV in another order");
    write_features(&job.path("features.parquet"), list(&values, WIDTH));
    let small =
        format!("{}[engine]\nmemory_limit = '6kB'\n[sink]\nrun_id = 'small'\n", pipeline(model));
    let spilled = text_of(&small);
    assert_eq!(spilled, expected, "a scratch file");
}

#[test]
fn bad_features_are_named() {
    let job = job();
    let with = |values: ArrayRef| {
        write_features(&job.path("features.parquet"), values);
        job.fails(&pipeline("kind = 'dl'"), 3)
    };
    let mut values = features();
    values[7 * WIDTH + 2] = f32::NAN;
    assert_says(
        &with(list(&values, WIDTH)),
        &["a feature is not a finite number", "NaN in number 2 of `7`"],
    );
    let ragged = ListArray::from_iter_primitive::<Float32Type, _, _>([
        Some(vec![Some(1.0), Some(2.0)]),
        Some(vec![Some(1.0)]),
    ]);
    assert_says(&with(Arc::new(ragged)), &["differ in length", "1 numbers for `1`, 2 for `0`"]);
    let holes = ListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0)]), None]);
    assert_says(&with(Arc::new(holes)), &["is missing", "null for `1`"]);
    let twice: ArrayRef = Arc::new(UInt32Array::from(vec![3, 4, 3]));
    let columns = vec![("instance_id", twice), ("features", list(&[1.0; 15], WIDTH))];
    write_parquet(&job.path("features.parquet"), columns);
    assert_says(&job.fails(&pipeline("kind = 'dl'"), 3), &["several rows of features", "`3`"]);
    for (own, found) in [
        ([None, Some(4), Some(5)], "null before the row of `4`"),
        ([Some(3), None, None], "null after the row of `3`"),
        ([None; 3], "null in each of 3 rows"),
    ] {
        let nulls: ArrayRef = Arc::new(UInt32Array::from(own.to_vec()));
        let columns = vec![("instance_id", nulls), ("features", list(&[1.0; 15], WIDTH))];
        write_parquet(&job.path("features.parquet"), columns);
        assert_says(&job.fails(&pipeline("kind = 'dl'"), 3), &["has no id", found]);
    }
    let text: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["x"]));
    write_parquet(&job.path("features.parquet"), vec![("instance_id", ids(1)), ("features", text)]);
    assert_says(&job.fails(&pipeline("kind = 'dl'"), 3), &["does not hold numbers", "Utf8"]);
    let strangers: ArrayRef = Arc::new(UInt32Array::from(vec![900, 901]));
    let columns = vec![("instance_id", strangers), ("features", list(&[1.0; 10], WIDTH))];
    write_parquet(&job.path("features.parquet"), columns);
    assert_says(
        &job.fails(&pipeline("kind = 'dl'"), 3),
        &["the annotations and the features have no instance in common"],
    );
    let without = pipeline("kind = 'dl'").replace("features = '{dir}features.parquet'", "");
    assert_says(&job.fails(&without, 2), &["`dl` learns from features", "source.features"]);
}

#[test]
fn gold_chooses_the_epoch_and_held_out_annotations_do_without() {
    let job = job();
    let without = pipeline("kind = 'conal'\ntrain.select = 'valid'");
    assert_says(
        &job.fails(&without, 2),
        &["no gold to select the best epoch by", "without source.gold", "annotation_likelihood"],
    );
    job.write("train.csv", &format!("instance_id,class,role\n0,{},train\n", crowd().truth[0]));
    let of_another_role = without.replace("[model]", "gold = '{dir}train.csv'\n[model]");
    assert_says(&job.fails(&of_another_role, 3), &["no gold row of role `valid`"]);
    let rows: Vec<String> = (0..40).map(|i| format!("{i},{},valid", crowd().truth[i])).collect();
    job.write("gold.csv", &format!("instance_id,class,role\n{}\n", rows.join("\n")));
    let gold = without.replace("[model]", "gold = '{dir}gold.csv'\n[model]");
    let metrics = read_table(&job.run(&gold), "metrics");
    let named = |name: &str| {
        metrics.iter().any(|row| text(row, "name") == name && text(row, "split") == "valid")
    };
    assert!(named("accuracy") && named("prediction_accuracy"), "{metrics:?}");
    job.run(&pipeline(
        "kind = 'conal'\ntrain.select = 'annotation_likelihood'\ntrain.patience = 4",
    ));
}

/// The learning rate makes every parameter infinite; the job ends with the error of a fit and publishes no table.
#[test]
fn a_training_that_diverges_is_an_error_of_the_fit() {
    let optimiser = "train.optimiser = { rule = 'sgd', learning_rate = 1e30 }";
    for select in ["last", "annotation_likelihood"] {
        let model = format!("kind = 'crowd_layer'\n{optimiser}\ntrain.select = '{select}'");
        let error = job().fails(&pipeline(&model), 4);
        assert_says(
            &error,
            &["the training diverged", "learning_rate", "epoch 1 of phase `train`"],
        );
    }
}

// keys: model.preset
#[test]
fn the_paper_s_settings_are_a_preset_that_the_run_records() {
    let job = job();
    let run = job.run(&pipeline("kind = 'max_mig'\npreset = 'paper'\nu = 0.001"));
    let spec: serde_json::Value =
        serde_json::from_str(&text(&read_table(&run, "run")[0], "spec")).unwrap();
    let model = &spec["model"];
    let optimiser = &model["train"]["optimiser"];
    assert_eq!((&model["preset"], &model["u"]), (&"paper".into(), &0.001.into()));
    assert_eq!(
        (&optimiser["learning_rate"], &optimiser["annotator_delay"]),
        (&1e-4.into(), &0.into())
    );
    assert_eq!(
        (&model["train"]["epochs"], &model["train"]["batch_size"]),
        (&20.into(), &16.into())
    );
    let typo = job.ends(&pipeline("kind = 'max_mig'\npreset = 'papre'"), &[], 2);
    assert_says(&typo, &["model.preset", "papre"]);
    let number = job.ends(&pipeline("kind = 'max_mig'\npreset = 3"), &[], 2);
    assert_says(&number, &["model.preset", "expected \"labelmill\" or \"paper\" or \"code\""]);
}

#[test]
fn evaluate_scores_a_classifier_as_the_run_itself_does() {
    let job = job();
    let rows: Vec<String> = (0..40).map(|i| format!("{i},{},holdout", crowd().truth[i])).collect();
    let gold = job.write("gold.csv", &format!("instance_id,class,role\n{}\n", rows.join("\n")));
    let model = pipeline("kind = 'max_mig'");
    let run = job.run(&model.replace("[model]", "gold = '{dir}gold.csv'\n[model]"));
    let arguments = ["evaluate", "--run", &job.url("out"), "--truth", &gold, "--json"];
    let told: serde_json::Value = serde_json::from_str(&stdout(&run_ok(&arguments))).unwrap();
    let metrics = read_table(&run, "metrics");
    assert!(metrics.iter().any(|row| text(row, "name") == "prediction_ece_adaptive"));
    for row in &metrics {
        let (own, told) = (number(row, "value"), told[text(row, "name")].as_f64().unwrap());
        assert!((own - told).abs() < 1e-12, "{row:?} {told}");
    }
}

/// The number of checkpoints in a job's folder, without a file that a kill left unfinished.
fn checkpoints(job: &Job) -> usize {
    let files = std::fs::read_dir(job.path("checkpoints")).into_iter().flatten().flatten();
    files.filter(|file| file.path().extension().is_some_and(|e| e == "checkpoint")).count()
}

/// Runs a pipeline in a process that is killed as soon as there is a checkpoint.
fn kill_in_training(job: &Job, pipeline: &str) {
    let file = job.write("pipeline.toml", pipeline);
    let sink = format!("sink.url={}", job.url("out"));
    let mut command = labelmill();
    let mut child =
        command.args(["run", &file, "--set", &sink]).stderr(Stdio::null()).spawn().unwrap();
    while checkpoints(job) == 0 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(checkpoints(job), 1, "a checkpoint outlives the process: {pipeline}");
    assert!(!job.path("out/latest").exists(), "nothing is published: {pipeline}");
}

fn assert_same_tables(found: &Path, expected: &Path, what: &str) {
    let (found, expected) = (table_files(found), table_files(expected));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in expected.iter().filter(|(name, _)| !name.starts_with("trace/")) {
        assert!(found.get(name) == Some(bytes), "{what}: {name}");
    }
}

/// The training resumes after epoch 28: `agg_net` and `tcl` then have posteriors that they have computed themselves,
/// `tcl` a calibrator, too. With `initialise = "trusted"` (TCL+I) it is still in the first round, whose targets a
/// checkpoint does not hold; `conal` trains the parameters of annotators from the next epoch, the 29th of 140, on.
// keys: engine.checkpoints
#[test]
fn a_killed_training_goes_on_to_the_same_bytes() {
    let rows: Vec<String> = (0..40).map(|i| format!("{i},{},train", crowd().truth[i])).collect();
    let gold = format!("instance_id,class,role\n{}\n", rows.join("\n"));
    for model in [
        "kind = 'conal'\ntrain.select = 'annotation_likelihood'",
        "kind = 'agg_net'",
        "kind = 'tcl'",
        "kind = 'tcl'\ninitialise = 'trusted'\nfirst_epochs = 35",
    ] {
        let [whole, killed] = [job(), job()];
        for job in [&whole, &killed] {
            job.write("gold.csv", &gold);
        }
        let long = pipeline(model)
            .replace("[model]", "gold = '{dir}gold.csv'\n[model]")
            .replace("epochs = 20", "epochs = 140\ntrain.checkpoint_epochs = 28");
        let text = format!("{long}[engine]\ncheckpoints = '{{dir}}checkpoints'\n");
        kill_in_training(&killed, &text);
        let resumed = killed.run(&text);
        let left = std::fs::read_dir(killed.path("checkpoints")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "a committed job leaves no checkpoint: {model}");
        assert_same_tables(&resumed, &whole.run(&long), model);
    }
}

#[test]
fn a_checkpoint_of_another_job_is_not_taken_up() {
    let model = "kind = 'dl'\ntrain.select = 'annotation_likelihood'";
    let long = |seed: u32| {
        format!("seed = {seed}\n{}", pipeline(model).replace("epochs = 20", "epochs = 400"))
    };
    let short = |seed: u32| format!("seed = {seed}\n{}", pipeline(model));
    let with = |text: String| text + "[engine]\ncheckpoints = '{dir}checkpoints'\n";
    let [whole, other] = [job(), job()];
    kill_in_training(&other, &with(long(1)));
    let found = other.run(&with(short(2)));
    assert_eq!(checkpoints(&other), 1, "the first job's checkpoint is still there");
    assert_same_tables(&found, &whole.run(&short(2)), "seed 2");
}

/// The crowd of [`job`] asks one question; a second one asks for the opposite of its first two classes, of every second
/// instance. A killed fit of both goes on to the same tables.
#[test]
fn lia_multi_fits_two_questions_at_once() {
    let (job, crowd) = (job(), crowd());
    let mut rows = "instance_id,annotator_id,label,question\n".to_owned();
    for (i, r, l) in &crowd.rows {
        rows += &format!("{i},{r},{l},first\n");
        if i % 2 == 0 && *l < 2 {
            rows += &format!("{i},{r},{},second\n", ["b", "a"][*l as usize]);
        }
    }
    job.write("questions.csv", &rows);
    let text = pipeline("kind = 'lia_multi'\nrounds = 2\nround_epochs = 4")
        .replace("{dir}annotations.parquet", "{dir}questions.csv")
        .replace("[model]", "[source.columns]\nquestion = 'question'\n[model]");
    for text in [text.replace("features = '{dir}features.parquet'\n", ""), text] {
        let run = job.run(&text);
        let of = |table: &str, question: &str| {
            let rows = read_table(&run, table).into_iter();
            rows.filter(|row| self::text(row, "question") == question).count()
        };
        assert_eq!(of("confusion_matrices", "first"), 8 * 9);
        assert_eq!(of("confusion_matrices", "second"), 8 * 4);
        let seconds = crowd.rows.iter().filter(|(i, _, l)| i % 2 == 0 && *l < 2);
        let instances: std::collections::BTreeSet<u32> = seconds.map(|row| row.0).collect();
        assert_eq!(of("labels", "second"), instances.len());
        let traces = ["first", "second"].map(|question| of("trace", question));
        assert!(traces[0] == traces[1] && traces[0] > 8, "{traces:?}");
        assert_eq!(run.join("model/1").exists(), text.contains("features ="));
    }
}
