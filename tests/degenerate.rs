//! Degenerate crowds: each has a defined result, and no table holds NaN or infinity.

use crate::job::{Job, assert_says, cells, table_of};
use crate::support::{
    Row, assert_close, label_only, number, read_table, write_crowd, write_numbers,
};

/// Publishes (instance, annotator, label) triples of numbers; returns the labels, the posteriors and the annotators.
fn fit(kind: &str, rows: &[(u32, u32, u32)], more: &str) -> [Vec<Row>; 3] {
    let job = Job::new();
    write_numbers(&job.path("in.parquet"), rows);
    let run = job
        .run(&format!("source.annotations = '{{dir}}in.parquet'\nmodel.kind = '{kind}'\n{more}"));
    ["labels", "posteriors", "annotators"].map(|table| {
        let rows = read_table(&run, table);
        let all_finite = rows
            .iter()
            .flat_map(|r| r.values().flatten())
            .all(|v| !["NaN", "inf", "-inf"].contains(&v.as_str()));
        assert!(all_finite, "{kind}: {table} holds NaN or an infinity");
        rows
    })
}

const DECIDED: [&str; 4] = ["instance_id", "label", "n_annotations", "decision"];

#[test]
fn ten_thousand_agreeing_annotators_are_certain() {
    let rows: Vec<_> = (0..10_000).map(|r| (1, r, 7)).chain([(2, 0, 8), (2, 1, 8)]).collect();
    for kind in label_only().map(|model| model.kind) {
        let [labels, posteriors, annotators] = fit(kind, &rows, "");
        assert_eq!(cells(&labels, &DECIDED), ["1 7 10000 decided", "2 8 2 decided"], "{kind}");
        let found: Vec<f64> = posteriors.iter().map(|r| number(r, "probability")).collect();
        assert_close(&found[..2], &[1.0, 0.0], 1e-9, kind);
        // The priors of some models temper the evidence of two annotations.
        let doubt = match kind {
            // Its squares outweigh two annotations.
            "mmce" => 0.5,
            // No skill of its is above 1 - 1 / sqrt(instances).
            "mmsr" => 0.2,
            "ibcc" | "mace" | "snorkel" | "community_bcc" => 0.05,
            "glad" | "conal_em" | "random_effects" => 1e-3,
            _ => 1e-9,
        };
        assert_close(&found[2..], &[0.0, 1.0], doubt, kind);
        assert_eq!(annotators.len(), 10_000, "{kind}");
    }
}

#[test]
fn ten_thousand_for_and_ten_thousand_against_tie() {
    let rows: Vec<_> = (0..20_000).map(|r| (1, r, r % 2)).collect();
    for kind in label_only().map(|model| model.kind) {
        let [labels, posteriors, _] = fit(kind, &rows, "");
        assert_eq!(cells(&labels, &DECIDED), ["1 0 20000 tied"], "{kind}");
        let found: Vec<f64> = posteriors.iter().map(|r| number(r, "probability")).collect();
        assert_close(&found, &[0.5, 0.5], 1e-9, kind);
        assert_eq!(number(&labels[0], "margin"), 0.0, "{kind}");
    }
}

#[test]
fn where_all_tie_the_lowest_class_is_chosen_and_the_decision_is_tied() {
    let rows: Vec<_> = (0..6).flat_map(|i| [(i, 0, 3), (i, 1, 1), (i, 2, 2)]).collect();
    for kind in label_only().map(|model| model.kind) {
        let [labels, ..] = fit(kind, &rows, "");
        let want: Vec<String> = (0..6).map(|i| format!("{i} 1 3 tied")).collect();
        assert_eq!(cells(&labels, &DECIDED), want, "{kind}");
    }
    let [labels, ..] = fit("majority_vote", &rows, "decide.ties = 'abstain'");
    assert_eq!(cells(&labels[..1], &DECIDED), ["0  3 abstained"]);
}

#[test]
fn one_class_is_certain() {
    for kind in label_only().map(|model| model.kind) {
        let [labels, posteriors, annotators] = fit(kind, &[(1, 1, 5), (1, 2, 5), (2, 1, 5)], "");
        assert_eq!(cells(&labels, &DECIDED), ["1 5 2 decided", "2 5 1 decided"], "{kind}");
        let found: Vec<f64> = posteriors.iter().map(|r| number(r, "probability")).collect();
        assert_close(&found, &[1.0, 1.0], 0.0, kind);
        let skill: Vec<f64> = annotators.iter().map(|r| number(r, "skill")).collect();
        assert_close(&skill, &[1.0, 1.0], 1e-12, kind);
    }
}

#[test]
fn one_annotators_labels_are_the_result() {
    for kind in label_only().map(|model| model.kind) {
        let [labels, ..] = fit(kind, &[(1, 9, 0), (2, 9, 1), (3, 9, 1)], "");
        let want = ["1 0 1 decided", "2 1 1 decided", "3 1 1 decided"];
        assert_eq!(cells(&labels, &DECIDED), want, "{kind}");
    }
}

#[test]
fn one_annotation_is_a_crowd() {
    for kind in label_only().map(|model| model.kind) {
        let [labels, ..] = fit(kind, &[(1, 9, 4)], "");
        assert_eq!(cells(&labels, &DECIDED), ["1 4 1 decided"], "{kind}");
    }
}

#[test]
fn no_annotation_at_all_is_an_error_and_no_empty_result() {
    for kind in label_only().map(|model| model.kind) {
        let job = Job::new();
        write_numbers(&job.path("in.parquet"), &[]);
        let error = job
            .fails(&format!("source.annotations = '{{dir}}in.parquet'\nmodel.kind = '{kind}'"), 8);
        let want = [
            "there is no annotation to learn from",
            "source.annotations",
            "0 rows, 0 of them rejected",
        ];
        assert_says(&error, &want);
    }
}

#[test]
fn annotations_without_a_class_are_an_error() {
    for kind in label_only().map(|model| model.kind) {
        let crowd = "source.annotations = [['i', 'a', 'unsure'], ['j', 'b', 'unsure']]
                     frame.extra_labels = ['unsure']";
        let error = Job::new().fails(&format!("{crowd}\nmodel.kind = '{kind}'"), 3);
        assert_says(&error, &["nobody chose a class", "frame.extra_labels", "frame.classes"]);
    }
}

#[test]
fn weights_of_any_size_give_numbers() {
    let crowd = "source.annotations = [['i', 'a', 'x', 1e100], ['i', 'b', 'x', 5e-324], ['i', 'c', 'y', 1e100],
        ['i', 'a', 'x', 1e-300], ['j', 'a', 'y', 1.0], ['j', 'b', 'x', 1e99], ['j', 'b', 'x', 1e100]]";
    for (kind, duplicates) in label_only().flat_map(|m| [(m.kind, "share"), (m.kind, "keep")]) {
        let more = format!("model.kind = '{kind}'\nframe.duplicates = '{duplicates}'");
        let labels = table_of(&format!("{crowd}\n{more}"), "labels");
        assert_eq!(cells(&labels, &["instance_id", "n_annotations"]), ["i 4", "j 3"]);
        for row in &labels {
            let confidence = number(row, "confidence");
            assert!((0.5..=1.0).contains(&confidence), "{kind} {duplicates}: {row:?}");
        }
    }
}

#[test]
fn long_and_strange_ids_come_back_unchanged() {
    let long = "語".repeat(3_500);
    let ids = ["", "\n", " ", "a/b", "null", &long, "🦜🏳️‍🌈"];
    let job = Job::new();
    let rows: Vec<(&str, &str, &str)> =
        ids.iter().flat_map(|i| [(*i, *i, *i), (*i, "other", *i)]).collect();
    write_crowd(&job.path("in.parquet"), &rows);
    let run = job.run("source.annotations = '{dir}in.parquet'\nmodel.kind = 'dawid_skene'");
    let want: Vec<String> = ids.iter().map(|i| format!("{i}|{i}")).collect();
    let labels = read_table(&run, "labels");
    let found: Vec<String> = labels
        .iter()
        .map(|r| format!("{}|{}", r["instance_id"].as_ref().unwrap(), r["label"].as_ref().unwrap()))
        .collect();
    assert_eq!(found, want);
    assert_eq!(read_table(&run, "annotators").len(), ids.len() + 1);
}

// keys: model.stop.on_exhausted
#[test]
fn iterations_that_run_out_are_a_warning_or_an_error_as_asked() {
    let crowd =
        "source.annotations = [['i', 'a', 'x'], ['i', 'b', 'y'], ['j', 'a', 'x'], ['j', 'b', 'x']]
        model = { kind = 'dawid_skene', stop = { max_iter = 1, on_exhausted = 'ASKED' } }";
    let error = Job::new().fails(&crowd.replace("ASKED", "fail"), 4);
    assert_says(&error, &["1 iteration", "model.stop"]);
    let run = table_of(&crowd.replace("ASKED", "warn"), "run");
    assert_eq!(cells(&run, &["converged"]), ["false"]);
    assert!(run[0]["warnings"].as_ref().unwrap().contains("1 iteration"), "{run:?}");
}

/// `a` gave one annotation, fewer than there are labels, on an instance whose class is almost certain.
#[test]
fn a_matrix_of_few_annotations_has_the_cells_that_were_met() {
    let crowd =
        "source.annotations = [['i', 'a', 'x'], ['i', 'b', 'x'], ['i', 'c', 'x'], ['j', 'b', 'y'],
        ['j', 'c', 'y'], ['k', 'b', 'z'], ['k', 'c', 'z']]\nmodel.kind = 'dawid_skene'\n";
    let matrices = table_of(crowd, "confusion_matrices");
    let columns = ["annotator_id", "class", "label"];
    let of_a: Vec<String> =
        cells(&matrices, &columns).into_iter().filter(|row| row.starts_with("a ")).collect();
    assert_eq!(of_a, ["a x x"]);
    assert_eq!(matrices.len(), 1 + 2 * 9);
}
