//! `labelmill simulate` as a user runs it: draw a crowd, aggregate it, and score the result against the known truth.

use std::fmt::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::job::{Job, assert_says, cells};
use crate::support::{
    labelmill, number, read_table, run_fails, run_ok, stderr, stdout, table_files, text,
};

/// Rows of `item,gold`: 400 instances of four classes, in the order that `location` gives.
fn truth(job: &Job, name: &str, location: impl Fn(usize) -> usize) -> String {
    let mut csv = "item,gold\n".to_owned();
    for n in 0..400 {
        let i = location(n);
        let _ = writeln!(csv, "{i},{}", ["ant", "bee", "cow", "dog"][i * 7 % 4]);
    }
    job.write(name, &csv)
}

fn simulate(job: &Job, truth: &str, output: &str, more: &[&str]) -> std::process::Output {
    let output = job.url(output);
    let columns = ["--instance-column", "item", "--class-column", "gold"];
    let arguments = ["simulate", "--truth", truth, "--output", &output];
    run_ok(&[&arguments[..], &columns[..], more].concat())
}

#[test]
fn a_drawn_crowd_is_aggregated_and_scored_against_itself() {
    let job = Job::new();
    let truth = truth(&job, "truth.csv", |n| n);
    let groups = "groups=4*pairwise-flipper(0.7), hammer-spammer(0.5), imitative(a00)";
    let recipe = ["--recipe", "groups", "--seed", "3", "--set", groups, "--json"];
    let summary: Value =
        serde_json::from_str(&stdout(&simulate(&job, &truth, "crowd", &recipe))).unwrap();
    assert_eq!(summary["annotations"], 6 * 400);
    // Five annotators with 0.7, and one with 0.5 + 0.5 / 4.
    let expected = summary["expected_accuracy"].as_f64().unwrap();
    assert!((expected - (5.0 * 0.7 + 0.625) / 6.0).abs() < 1e-12, "{expected}");
    assert!((summary["accuracy"].as_f64().unwrap() - expected).abs() < 0.05);
    let crowd = job.path("crowd");
    assert_eq!(read_table(&crowd, "truth").len(), 400);
    let annotators = read_table(&crowd, "annotators");
    assert_eq!(text(&annotators[5], "type"), "imitative(a00)");
    assert_eq!(text(&annotators[5], "annotator_id"), "a05");
    let cells = read_table(&crowd, "true_confusion");
    assert_eq!(cells.len(), 6 * 4 * 4);
    for row in cells.chunks(4) {
        assert!((row.iter().map(|c| number(c, "probability")).sum::<f64>() - 1.0).abs() < 1e-12);
    }
    let (annotations, out) = (job.url("crowd/annotations"), job.url("out"));
    let model = ["aggregate", "--annotations", &annotations, "--model", "dawid_skene"];
    run_ok(&[&model[..], &["--output", &out]].concat());
    let (truth, confusion) = (job.url("crowd/truth"), job.url("crowd/true_confusion"));
    let arguments = ["evaluate", "--run", &out, "--truth", &truth, "--confusion", &confusion];
    let scores: Value =
        serde_json::from_str(&stdout(&run_ok(&[&arguments[..], &["--json"]].concat()))).unwrap();
    let score = |name: &str| scores[name].as_f64().unwrap();
    // The truth covers every instance, and the true matrices are those that the annotations were drawn from.
    assert_eq!(score("instances"), 400.0);
    assert!(score("accuracy") > 0.8, "{scores}");
    assert!(score("confusion_error") < 0.06, "{scores}");
}

#[test]
fn a_crowd_is_its_seed_whatever_the_order_of_the_rows() {
    let job = Job::new();
    let (sorted, shuffled) =
        (truth(&job, "truth.csv", |n| n), truth(&job, "shuffled.csv", |n| n * 131 % 400));
    let crowd = |truth: &str, name: &str, seed: &str| {
        let recipe = ["--recipe", "mbem", "--set", "redundancy=2", "--seed", seed];
        simulate(&job, truth, name, &recipe);
        table_files(&job.path(name).join("latest").canonicalize().unwrap())
    };
    let first = crowd(&sorted, "one", "1");
    assert_eq!(first.len(), 5);
    assert!(first == crowd(&sorted, "again", "1"));
    assert!(first == crowd(&shuffled, "shuffled", "1"));
    let other = crowd(&sorted, "two", "2");
    let annotations = "annotations/part-00000.parquet";
    assert!(first[annotations] != other[annotations]);
    assert!(first["truth/part-00000.parquet"] == other["truth/part-00000.parquet"]);
}

#[test]
fn the_same_crowd_twice_is_a_no_op_and_another_is_refused() {
    let job = Job::new();
    let truth = truth(&job, "truth.csv", |n| n);
    simulate(&job, &truth, "crowd", &["--recipe", "tcl-cor-2"]);
    let before = table_files(&job.path("crowd"));
    assert!(before.contains_key("gold/part-00000.parquet"));
    let again = simulate(&job, &truth, "crowd", &["--recipe", "tcl-cor-2"]);
    assert_says(&stderr(&again), &["nothing to do"]);
    let output = job.url("crowd");
    let other = ["simulate", "--truth", &truth, "--recipe", "tcl-cor-1", "--output", &output];
    assert_says(&run_fails(&other, 2), &["something else already", "choose another folder"]);
    assert!(before == table_files(&job.path("crowd")));
    // If the writer died before it made a link, the same command run again makes it.
    std::fs::remove_file(job.path("crowd/truth")).unwrap();
    simulate(&job, &truth, "crowd", &["--recipe", "tcl-cor-2"]);
    assert!(job.path("crowd/truth").join("part-00000.parquet").exists());
    // No hidden file is left behind.
    let hidden = std::fs::read_dir(job.path("")).unwrap().map(|e| e.unwrap().file_name());
    assert!(hidden.into_iter().all(|name| !name.to_string_lossy().starts_with('.')));
}

#[test]
fn of_two_crowds_that_are_drawn_into_one_folder_at_once_one_is_there() {
    let job = Job::new();
    let truth = truth(&job, "truth.csv", |n| n);
    let output = job.url("crowd");
    let draw = |seed: &'static str| {
        let columns = ["--instance-column", "item", "--class-column", "gold", "--recipe", "groups"];
        let more = ["--set", "groups=4*pairwise-flipper(0.7)", "--seed", seed, "--json"];
        let mut command = labelmill();
        command.args(["simulate", "--truth", &truth, "--output", &output]).args(columns).args(more);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let drawn: Vec<bool> =
        ["1", "2", "3"].map(draw).map(|mut child| child.wait().unwrap().success()).to_vec();
    assert_eq!(drawn.iter().filter(|done| **done).count(), 1, "{drawn:?}");
    assert_eq!(std::fs::read_dir(job.path("crowd/runs")).unwrap().count(), 1);
}

#[test]
fn a_name_that_is_taken_is_an_error_and_stays() {
    let job = Job::new();
    let truth = truth(&job, "truth.csv", |n| n);
    let mine = job.write("crowd/annotations/mine.csv", "mine");
    let output = job.url("crowd");
    let arguments = ["simulate", "--truth", &truth, "--recipe", "tcl-cor-2", "--output", &output];
    let columns = ["--instance-column", "item", "--class-column", "gold"];
    let error = run_fails(&[&arguments[..], &columns].concat(), 2);
    assert_says(&error, &["crowd/annotations", "move it away"]);
    assert_eq!(std::fs::read_to_string(mine).unwrap(), "mine");
    assert!(!job.path("crowd/latest").exists());
}

#[test]
fn common_noise_says_where_every_answer_came_from() {
    let job = Job::new();
    let (drawn, given) = (job.url("drawn"), job.url("given"));
    let size = ["--set", "instances=200", "--set", "annotated=0.5", "--set", "classes=3"];
    let arguments = ["simulate", "--recipe", "conal-synthetic", "--output", &drawn];
    run_ok(&[&arguments[..], &size[..]].concat());
    let folder = job.path("drawn");
    assert_eq!(read_table(&folder, "truth").len(), 200);
    assert_eq!(read_table(&folder, "features").len(), 200);
    let (labels, sources) =
        (read_table(&folder, "annotations"), read_table(&folder, "sources_of_noise"));
    assert_eq!((labels.len(), sources.len()), (300, 300));
    for (label, source) in labels.iter().zip(&sources) {
        assert_eq!(text(label, "instance_id"), text(source, "instance_id"));
        assert_eq!(text(label, "annotator_id"), text(source, "annotator_id"));
        assert!(["common", "individual"].contains(&text(source, "source").as_str()));
    }
    assert_eq!(read_table(&folder, "individual_confusion").len(), 30 * 9);
    assert_eq!(read_table(&folder, "common_confusion").len(), 9);
    // The truth and the features that were drawn can be given to another simulation.
    let (truth, features) = (job.url("drawn/truth"), job.url("drawn/features"));
    let arguments = ["simulate", "--recipe", "conal", "--truth", &truth, "--output", &given];
    run_ok(&[&arguments[..], &["--features", &features]].concat());
    assert_eq!(read_table(&job.path("given"), "annotations").len(), 600);
    assert!(!job.path("given/features").exists());
}

/// The rows of the table `recipe`.
fn facts(job: &Job, crowd: &str) -> Vec<String> {
    cells(&read_table(&job.path(crowd), "recipe"), &["name", "value"])
}

#[test]
fn clouds_around_a_given_truth_have_its_instances_and_classes() {
    let job = Job::new();
    let truth = truth(&job, "truth.csv", |n| n);
    simulate(&job, &truth, "crowd", &["--recipe", "conal-synthetic", "--set", "width=3"]);
    let facts = facts(&job, "crowd");
    assert!(["instances 400", "classes 4", "width 3"].iter().all(|f| facts.iter().any(|g| g == f)));
    assert_eq!(read_table(&job.path("crowd"), "features").len(), 400);
    for setting in ["instances=7", "classes=3"] {
        let arguments = ["simulate", "--truth", &truth, "--recipe", "conal-synthetic"];
        let output = job.url("other");
        let more = ["--output", &output, "--set", setting];
        assert_says(
            &run_fails(&[&arguments[..], &more].concat(), 2),
            &["the truth has instances and classes of its own", setting, "leave out --truth"],
        );
        assert!(!job.path("other").exists());
    }
}

#[test]
fn a_network_chooses_its_epoch_by_the_classes_that_were_held_out() {
    let job = Job::new();
    let crowd = job.url("crowd");
    let arguments = ["simulate", "--recipe", "conal-synthetic", "--output", &crowd, "--json"];
    let size = ["--set", "instances=300", "--set", "classes=3", "--set", "width=4"];
    let summary: Value =
        serde_json::from_str(&stdout(&run_ok(&[&arguments[..], &size].concat()))).unwrap();
    assert_eq!((&summary["valid"], &summary["holdout"]), (&json!(30), &json!(30)));
    let gold = read_table(&job.path("crowd"), "gold");
    assert_eq!(gold.iter().filter(|row| text(row, "role") == "valid").count(), 30);
    let run = job.run(&pipeline("dl", "gold = '{dir}crowd/gold'", "select = 'valid'"));
    let splits = cells(&read_table(&run, "metrics"), &["name", "split"]);
    for split in ["valid", "holdout"] {
        assert!(splits.contains(&format!("prediction_accuracy {split}")), "{splits:?}");
    }
}

/// A pipeline on a simulated crowd with features and another relation.
fn pipeline(model: &str, relation: &str, train: &str) -> String {
    format!(
        "[source]\nannotations = '{{dir}}crowd/annotations'\nfeatures = '{{dir}}crowd/features'\n{relation}
         [model]\nkind = '{model}'\ndevice = 'cpu'\nbackbone.hidden = [8]\n
         [model.train]\nepochs = 2\n{train}\n"
    )
}

// keys: source.annotator_features
#[test]
fn conal_is_told_which_classes_an_annotator_confuses() {
    let job = Job::new();
    let drawn = job.url("drawn");
    let size = ["--set", "instances=120", "--set", "classes=3", "--set", "width=4"];
    let arguments = ["simulate", "--recipe", "conal-synthetic", "--output", &drawn];
    run_ok(&[&arguments[..], &size].concat());
    let (truth, crowd) = (job.url("drawn/truth"), job.url("crowd"));
    let arguments = ["simulate", "--recipe", "lia-predictors", "--truth", &truth];
    run_ok(&[&arguments[..], &["--output", &crowd, "--set", "kept=2"]].concat());
    let folder = job.path("crowd");
    let annotators = cells(&read_table(&folder, "annotators"), &["annotator_id", "type"]);
    assert_eq!(annotators[0], "a00 confuser(0 0>1)");
    assert_eq!(annotators[9], "a09 confuser(0.5 0>2 2>0)");
    assert_eq!(read_table(&folder, "annotations").len(), 240);
    let told = cells(&read_table(&folder, "annotator_features"), &["annotator_id", "features"]);
    assert_eq!(told[0], "a00 [-1.0, 0.0, 0.0, 0.0, 1.0, 0.0]");
    assert_eq!(told[9], "a09 [-0.5, 0.0, -0.5, 0.5, 0.0, 0.5]");
    let model = |relation: &str| {
        let file = pipeline("conal", relation, "").replace("crowd/features", "drawn/features");
        read_table(&job.run(&file), "confusion_matrices")
    };
    let with_features = model("annotator_features = '{dir}crowd/annotator_features'");
    assert!(with_features != model(""));
}

#[test]
fn an_id_looks_the_same_wherever_it_is_written() {
    let job = Job::new();
    let truth = truth(&job, "truth.csv", |n| n);
    let groups = "groups=100*random, imitative(a7)";
    simulate(&job, &truth, "crowd", &["--recipe", "groups", "--set", groups]);
    let annotators = read_table(&job.path("crowd"), "annotators");
    let written = cells(&annotators, &["annotator_id", "type"]);
    assert_eq!(written[7], "a007 random");
    assert_eq!(written[100], "a100 imitative(a007)");
}

#[test]
fn mistakes_say_what_where_and_what_to_do() {
    let job = Job::new();
    let (truth, output) = (truth(&job, "truth.csv", |n| n), job.url("crowd"));
    let error = |more: &[&str], code: i32| {
        let columns = ["--instance-column", "item", "--class-column", "gold"];
        let arguments = ["simulate", "--output", &output];
        let error = run_fails(&[&arguments[..], &columns[..], more].concat(), code);
        assert!(!job.path("crowd").exists());
        error
    };
    let of = |recipe: &'static str| ["--truth", truth.as_str(), "--recipe", recipe];
    assert_says(&error(&of("tcl-ind1"), 2), &["no recipe `tcl-ind1`", "did you mean `tcl-ind-1`?"]);
    assert_says(
        &error(&of("tcl-ind-3"), 3),
        &["`tcl-ind-3` needs 10 classes", "--truth", "4: `ant`, `bee`, `cow`, `dog`"],
    );
    assert_says(
        &error(&[&of("tanno-mnist")[..], &["--set", "q=1", "--set", "p=2"]].concat(), 2),
        &["unknown key `q`", "the number must be at most 1"],
    );
    assert_says(
        &error(&[&of("groups")[..], &["--set", "groups=5*symetric(0.4)"]].concat(), 2),
        &["no annotator type `symetric`", "did you mean `symmetric`?"],
    );
    assert_says(
        &error(&[&of("tanno-mnist")[..], &["--set", "annotator=confuser"]].concat(), 2),
        &["`confuser` is not known here", "--set: annotator", "`pairwise-flipper`"],
    );
    assert_says(
        &error(&[&of("groups")[..], &["--set", "groups=adversarial(0.2 1>1)"]].concat(), 2),
        &["class 1 is linked to itself", "adversarial(A [N | K>L ...])"],
    );
    assert_says(&error(&["--recipe", "mbem"], 2), &["needs true classes", "--truth"]);
    assert_says(&error(&of("conal"), 2), &["needs features", "--features"]);
    let twice = job.write("twice.csv", "item,gold\n1,a\n1,b\n2,a\n");
    let arguments = ["--recipe", "mbem", "--truth", &twice];
    assert_says(&error(&arguments, 3), &["two classes", "--truth", "`1`"]);
    assert_says(
        &error(&["--recipe", "mbem", "--truth", &job.url("no.csv")], 8),
        &["there is no such file", "--truth"],
    );
    let list = stdout(&run_ok(&["simulate", "--list"]));
    assert_says(&list, &["tcl-cor-4", "max-mig-high", "p=0.3", "naive-majority"]);
}

/// Two annotators who are right on three of four instances each. The truth lacks instance `9`, and `unsure` is not a
/// class of the truth.
#[test]
fn a_given_crowd_is_thinned_and_has_oracles_beside() {
    let job = Job::new();
    let truth = job.write("gold.csv", "item,class\n1,cat\n2,cat\n3,dog\n4,dog\n");
    let labels = "item,worker,answer\n1,ann,cat\n2,ann,cat\n3,ann,dog\n4,ann,cat\n1,bob,cat\n2,bob,dog\n\
                  3,bob,dog\n4,bob,dog\n4,cid,unsure\n9,cid,cat\n";
    let annotations = job.write("annotations.csv", labels);
    let output = job.url("crowd");
    let columns = ["--instance-column", "item", "--annotator-column", "worker"];
    let labels = ["--label-column", "answer", "--annotations", &annotations, "--truth", &truth];
    let arguments = [&["simulate", "--recipe", "real"][..], &columns, &labels].concat();
    let settings = ["--set", "kept=1", "--set", "added=right, wrong", "--output", &output];
    let drawn = run_ok(&[&arguments[..], &settings].concat());
    assert_says(&stderr(&drawn), &["1 annotations are left out"]);
    let crowd = job.path("crowd");
    let annotators = cells(&read_table(&crowd, "annotators"), &["annotator_id", "type", "group"]);
    assert_eq!(
        annotators,
        ["ann given 0", "bob given 0", "cid given 0", "a03 right 1", "a04 wrong 2"]
    );
    let labels_given =
        cells(&read_table(&crowd, "annotations"), &["instance_id", "annotator_id", "label"]);
    assert_eq!(labels_given.len(), 4 * 3);
    for right in ["1 a03 cat", "2 a03 cat", "3 a03 dog", "4 a03 dog"] {
        assert!(labels_given.contains(&right.to_owned()), "{labels_given:?}");
    }
    let confusion = read_table(&crowd, "true_confusion");
    let cells = cells(&confusion, &["annotator_id", "class", "label", "probability"]);
    for cell in ["ann cat cat 1", "ann dog cat 0.5", "ann dog dog 0.5", "cid dog unsure 1"] {
        assert!(cells.iter().any(|c| c.trim_end_matches(".0") == cell), "{cell}: {cells:?}");
    }
    let error = |more: &[&str], code: i32| run_fails(&[&arguments[..], more].concat(), code);
    let other = job.url("other");
    assert_says(
        &error(&["--set", "redundancy=1", "--output", &other], 2),
        &["--set redundancy", "resample=true"],
    );
    let weighted = job.write("weighted.csv", "item,worker,answer,weight\n1,ann,cat,0.5\n");
    let arguments = ["simulate", "--recipe", "real", "--truth", &truth, "--output", &other];
    let named =
        ["--annotator-column", "worker", "--label-column", "answer", "--instance-column", "item"];
    assert_says(
        &run_fails(&[&arguments[..], &named, &["--annotations", &weighted]].concat(), 3),
        &["one label an annotation", "`weight`"],
    );
    assert_says(&run_fails(&arguments, 2), &["`real` needs annotations", "--annotations"]);
    let groups = ["simulate", "--recipe", "groups", "--truth", &truth, "--output", &other];
    assert_says(
        &run_fails(&[&groups[..], &["--annotations", &weighted]].concat(), 2),
        &["`groups` draws all annotations", "--annotations"],
    );
    assert!(!job.path("other").exists());
}
