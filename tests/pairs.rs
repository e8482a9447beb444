//! How likely annotators are right on instances: those that they labelled, and those that a job asks about.

use std::path::Path;

use crate::job::{assert_says, cells};
use crate::network_job::{crowd, job, pipeline};
use crate::support::{number, read_table, run_ok, text};

const LIA: &str = "kind = 'lia'\nrounds = 2\nround_epochs = 4";

fn asking(pipeline: &str) -> String {
    pipeline.replace(
        "[model]",
        "pairs = '{dir}pairs.csv'\nsql.pairs = 'select item as instance_id, annotator_id from pairs'\n[model]",
    )
}

/// An annotator who did not label instance 0.
fn unseen() -> u32 {
    let rows = crowd().rows;
    (0..8).find(|r| rows.iter().all(|(i, own, _)| (*i, *own) != (0, *r))).unwrap()
}

fn warnings(run: &Path) -> String {
    read_table(run, "run").iter().map(|row| text(row, "warnings")).collect()
}

/// The annotations' pairs have a row each, and so has one more pair that is asked about, twice. Another is of an instance
/// without annotations, and another of such an annotator.
// keys: source.pairs, source.sql.pairs
#[test]
fn pairs_of_annotations_and_those_that_are_asked_about_have_a_table() {
    let (job, unseen) = (job(), unseen());
    let pairs = format!("item,annotator_id\n0,{unseen}\n0,{unseen}\n150,1\n0,99\n");
    job.write("pairs.csv", &pairs);
    let run = job.run(&asking(&pipeline(LIA)));
    let found = read_table(&run, "pair_competence");
    let (annotated, asked): (Vec<_>, Vec<_>) =
        found.iter().cloned().partition(|row| text(row, "annotated") == "true");
    assert_eq!(cells(&asked, &["instance_id", "annotator_id"]), [format!("0 {unseen}")]);
    assert!(found.iter().all(|row| (0.0..1.0).contains(&number(row, "competence"))));
    let warnings = warnings(&run);
    for part in ["left out: 2 of 4", "1 of instances without", "1 of annotators without", "0, 99"] {
        assert!(warnings.contains(part), "{warnings}");
    }
    let alone = read_table(&job.run(&pipeline(LIA)), "pair_competence");
    let ids = |rows: &[_]| cells(rows, &["instance_id", "annotator_id"]);
    assert_eq!(ids(&alone), ids(&annotated));
    assert_eq!(alone.len(), crowd().rows.len());
}

#[test]
fn pairs_without_annotations_are_an_error_and_a_kind_that_does_not_read_them_says_so() {
    let job = job();
    job.write("pairs.csv", "item,annotator_id\n150,1\n0,99\n");
    let refused = job.ends(&asking(&pipeline(LIA)), &[], 3);
    assert_says(
        &refused,
        &[
            "no pair is of an instance and an annotator with annotations",
            "where: source.sql.pairs",
            "1 of instances without annotations, 1 of annotators without annotations",
            "`150, 1`, `0, 99`",
        ],
    );
    let ignored = job.ends(&asking(&pipeline("kind = 'dl'")), &[], 0);
    assert_says(&ignored, &["`dl` does not use source.pairs"]);
}

#[test]
fn the_command_aggregate_takes_pairs() {
    let (job, unseen) = (job(), unseen());
    job.write("pairs.csv", &format!("instance_id,annotator_id\n0,{unseen}\n"));
    let (annotations, pairs) = (job.url("annotations.parquet"), job.url("pairs.csv"));
    let output = job.url("out");
    let places = ["--annotations", &annotations, "--pairs", &pairs, "--output", &output];
    let small = ["rounds=1", "round_epochs=1", "train.epochs=1", "backbone.hidden=[4]"];
    let small = small.map(|setting| format!("model.{setting}"));
    let small = small.iter().flat_map(|setting| ["--set", setting]);
    run_ok(
        &["aggregate", "--model", "lia"].into_iter().chain(places).chain(small).collect::<Vec<_>>(),
    );
    let found = read_table(&job.path("out/latest"), "pair_competence");
    assert_eq!(found.len(), crowd().rows.len() + 1);
}
