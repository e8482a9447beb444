//! The warnings of what the data cannot support: their codes, counts and absence.

use std::path::Path;

use crate::support::{number, read_table, run_ok, stderr, text, write_numbers};

/// Numbers that look random and are the same everywhere.
fn draw(seed: u32, n: u32) -> f64 {
    let mut x = u64::from(seed) << 32 | u64::from(n);
    for _ in 0..2 {
        x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
    }
    (x >> 11) as f64 / (1_u64 << 53) as f64
}

/// The run of a kind over rows, and what it printed.
fn aggregate(
    folder: &Path,
    rows: &[(u32, u32, u32)],
    kind: &str,
    more: &[&str],
) -> (std::path::PathBuf, String) {
    let (votes, out) = (folder.join("votes.parquet"), folder.join("out"));
    write_numbers(&votes, rows);
    let (votes, url) = (votes.display().to_string(), out.display().to_string());
    let args = ["aggregate", "--annotations", &votes, "--model", kind, "--output", &url];
    let output = run_ok(&[&args, more].concat());
    (out.join("latest"), stderr(&output))
}

/// Annotators who are wrong with a probability of .3, with the probability `shared` with every third one.
fn crowd(instances: u32, annotators: u32, shared: f64) -> Vec<(u32, u32, u32)> {
    let pairs = (0..instances).flat_map(|i| (0..annotators).map(move |r| (i, r)));
    let label = |(i, r)| {
        let common = draw(3, i * 100 + r) < shared;
        let is_wrong = if common { draw(1, i * 100 + r % 3) } else { draw(2, i * 100 + r) } < 0.3;
        (i, r, (i % 2) ^ u32::from(is_wrong))
    };
    pairs.map(label).collect()
}

fn has(printed: &str, code: &str) -> bool {
    printed.contains(&format!("[{code}]"))
}

/// As where the key of the rows is taken for the instance: the same rows, and nothing to learn from.
#[test]
fn one_annotation_for_each_instance_is_told() {
    let rows = crowd(20, 3, 0.0);
    let keyed: Vec<(u32, u32, u32)> = (0..).zip(&rows).map(|(n, (_, r, l))| (n, *r, *l)).collect();
    for (rows, is_told) in [(&keyed[..], true), (&keyed[..9], false), (&rows, false)] {
        let folder = tempfile::tempdir().unwrap();
        let (_, printed) = aggregate(folder.path(), rows, "dawid_skene", &[]);
        assert_eq!(has(&printed, "one_annotation_each"), is_told, "{printed}");
    }
}

#[test]
fn annotators_who_err_together_are_told_and_independent_ones_are_not() {
    for kind in ["dawid_skene", "majority_vote", "ibcc", "one_coin", "glad"] {
        let folder = tempfile::tempdir().unwrap();
        let (_, printed) = aggregate(folder.path(), &crowd(600, 24, 0.6), kind, &[]);
        assert!(has(&printed, "dependent_annotators"), "{kind}\n{printed}");
        assert!(printed.contains("role `calibrate`"), "{printed}");
        let folder = tempfile::tempdir().unwrap();
        let (run, printed) = aggregate(folder.path(), &crowd(600, 12, 0.0), kind, &[]);
        assert!(!printed.contains("warning"), "{kind}\n{printed}");
        let pairs = read_table(&run, "annotator_pairs");
        assert_eq!(pairs.len(), 66, "{kind}");
        assert!(pairs.iter().all(|pair| number(pair, "n") == 600.0));
        assert!(pairs.iter().all(|pair| number(pair, "excess").abs() < 0.1), "{kind}");
    }
}

#[test]
fn a_copied_annotator_is_the_first_pair_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = crowd(300, 8, 0.0);
    rows.retain(|row| row.1 != 5);
    let copied: Vec<_> =
        rows.iter().filter(|row| row.1 == 2).map(|row| (row.0, 5, row.2)).collect();
    rows.extend(copied);
    let (run, printed) = aggregate(folder.path(), &rows, "one_coin", &[]);
    assert!(has(&printed, "near_copies"), "{printed}");
    assert!(
        printed.contains("1 pairs of annotators") && printed.contains("`2 and 5`"),
        "{printed}"
    );
    let first = &read_table(&run, "annotator_pairs")[0];
    assert_eq!((text(first, "annotator_id"), text(first, "other_id")), ("2".into(), "5".into()));
    assert_eq!((number(first, "agreement"), number(first, "kappa")), (1.0, 1.0));
}

#[test]
fn random_labels_agree_no_better_than_chance() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<_> = (0..4_000).map(|n| (n / 4, n % 40, (draw(9, n) * 3.0) as u32)).collect();
    let (run, printed) = aggregate(folder.path(), &rows, "ibcc", &[]);
    assert!(has(&printed, "agreement_by_chance"), "{printed}");
    assert!(printed.contains("of 6000 pairs"), "{printed}");
    assert!(text(&read_table(&run, "run")[0], "warnings").contains("[agreement_by_chance]"));
    assert!(
        printed.lines().any(|l| l.starts_with("warnings") && l.contains("agreement_by_chance"))
    );
}

/// Every instance has one annotation, by its own annotator.
#[test]
fn labels_that_nobody_gave_are_counted_and_a_small_smoothing_silences_nothing() {
    let rows: Vec<_> = (0..120).map(|n| (n, n, u32::from(n < 66))).collect();
    for smoothing in ["0", "0.1"] {
        let folder = tempfile::tempdir().unwrap();
        let smoothing = format!("model.smoothing={smoothing}");
        let (_, printed) = aggregate(folder.path(), &rows, "dawid_skene", &["--set", &smoothing]);
        assert!(has(&printed, "one_time_annotators"), "{printed}");
        assert!(printed.contains("120 of 120 annotators gave one annotation each"), "{printed}");
        assert!(printed.contains("not ranked: no annotator has 5 annotations"), "{printed}");
    }
    // Annotator 2 contradicts two others on 200 instances, and has 20 for himself.
    let mut rows: Vec<_> = (0..200).flat_map(|i| [(i, 0, i % 2), (i, 1, i % 2)]).collect();
    rows.extend((0..200).map(|i| (i, 2, (i + 1) % 2)));
    rows.extend((200..220).map(|i| (i, 2, i % 2)));
    let folder = tempfile::tempdir().unwrap();
    let (_, printed) = aggregate(folder.path(), &rows, "dawid_skene", &[]);
    assert!(has(&printed, "labels_nobody_gave"), "{printed}");
    assert!(printed.contains("20 of 220 labels contradict all annotations"), "{printed}");
    assert!(printed.contains("differs on 20 of 220 labels (9.1 %); 20 that no"), "{printed}");
}

#[test]
fn a_kind_that_loses_to_the_vote_on_gold_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows: Vec<_> = (0..200).flat_map(|i| [(i, 0, i % 2), (i, 1, i % 2)]).collect();
    rows.extend((0..200).map(|i| (i, 2, (i + 1) % 2)));
    rows.extend((200..220).map(|i| (i, 2, i % 2)));
    let gold = folder.path().join("gold.csv");
    let lines: String = (200..220).map(|i| format!("{i},{},holdout\n", i % 2)).collect();
    std::fs::write(&gold, format!("instance_id,class,role\n{lines}")).unwrap();
    let gold = gold.display().to_string();
    let (_, printed) = aggregate(folder.path(), &rows, "dawid_skene", &["--gold", &gold]);
    assert!(has(&printed, "worse_than_vote"), "{printed}");
    assert!(
        printed.contains("right on 0.0 % of 20 instances of gold, the majority vote on 100.0 %")
    );
}
