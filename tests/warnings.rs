//! The warnings of what the data cannot support: their codes, counts and absence.

use std::fmt::Write as _;
use std::path::Path;

use crate::job::{Job, assert_says};
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

/// Half of the instances are gold, whose classes are those of other instances.
#[test]
fn gold_that_contradicts_the_crowd_is_named_instead_of_the_annotators() {
    let rows = crowd(600, 12, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let gold = folder.path().join("gold.csv");
    let lines = (0..300).map(|i| format!("{i},{}\n", (draw(9, i) * 2.0) as u32));
    std::fs::write(&gold, format!("instance_id,class\n{}", lines.collect::<String>())).unwrap();
    let settings = ["--gold", gold.to_str().unwrap()];
    let (_, printed) = aggregate(folder.path(), &rows, "dawid_skene", &settings);
    assert!(has(&printed, "dependent_annotators"), "{printed}");
    assert!(printed.contains("or the gold that trains is wrong"), "{printed}");
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
        printed.contains("more than their skills explain: 1: ") && printed.contains("`2 and 5`"),
        "{printed}"
    );
    let first = &read_table(&run, "annotator_pairs")[0];
    assert_eq!((text(first, "annotator_id"), text(first, "other_id")), ("2".into(), "5".into()));
    assert_eq!((number(first, "agreement"), number(first, "kappa")), (1.0, 1.0));
}

/// Nearly all instances are of one class: the agreement by chance is .9, and two copies agree only a tenth more.
#[test]
fn a_copy_among_annotators_of_a_rare_class_is_told_and_an_independent_one_is_not() {
    let is_positive = |i| draw(4, i) < 0.05;
    for (copied, hits, errors) in [(true, 0.5, 0.02), (false, 0.5, 0.02), (false, 0.95, 0.005)] {
        let said = |i, r| {
            let r = if copied && r == 1 { 0 } else { r };
            u32::from(draw(5, i * 100 + r) < if is_positive(i) { hits } else { errors })
        };
        let rows: Vec<_> =
            (0..1_000).flat_map(|i| (0..6).map(move |r| (i, r, said(i, r)))).collect();
        for kind in ["dawid_skene", "majority_vote"] {
            let folder = tempfile::tempdir().unwrap();
            let (_, printed) = aggregate(folder.path(), &rows, kind, &[]);
            assert_eq!(has(&printed, "near_copies"), copied, "{kind} {hits}\n{printed}");
            assert_eq!(printed.contains("`0 and 1`"), copied, "{printed}");
            assert!(!has(&printed, "agreement_by_chance"), "{printed}");
        }
    }
}

/// Two of forty instances are of the other class, and all annotators agree.
#[test]
fn annotators_of_a_rare_class_agree_better_than_chance() {
    for (instances, rare) in [(40, 2), (600, 6)] {
        let folder = tempfile::tempdir().unwrap();
        let said = |i| u32::from(i < rare);
        let rows: Vec<_> =
            (0..instances).flat_map(|i| (0..3).map(move |r| (i, r, said(i)))).collect();
        let (_, printed) = aggregate(folder.path(), &rows, "majority_vote", &[]);
        assert!(!printed.contains("agreement_by_chance"), "{printed}");
    }
}

/// Each of three annotators gives two rows an instance, with the weights .9 and .1.
#[test]
fn soft_annotations_are_no_pairs_that_disagree() {
    let folder = tempfile::tempdir().unwrap();
    let (votes, out) = (folder.path().join("votes.csv"), folder.path().join("out"));
    let mut lines = String::from("instance_id,annotator_id,label,weight\n");
    for i in 0..40 {
        for r in 0..3 {
            let (likely, other) = (i % 2, (i + 1) % 2);
            let _ = writeln!(lines, "i{i},a{r},c{likely},0.9\ni{i},a{r},c{other},0.1");
        }
    }
    std::fs::write(&votes, lines).unwrap();
    let (votes, url) = (votes.display().to_string(), out.display().to_string());
    let args = ["aggregate", "--annotations", &votes, "--model", "dawid_skene", "--output", &url];
    let printed = stderr(&run_ok(&args));
    assert!(!printed.contains("agreement_by_chance"), "{printed}");
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
        assert!(printed.contains("compare with majority_vote or ibcc [one_time"), "{printed}");
        assert!(printed.contains("not ranked: no annotator has 5 annotations"), "{printed}");
    }
    // A kind is not told to use itself, nor ids that several people share, which would count as one.
    for (kind, other) in [("ibcc", "majority_vote"), ("majority_vote", "ibcc")] {
        let folder = tempfile::tempdir().unwrap();
        let (_, printed) = aggregate(folder.path(), &rows, kind, &[]);
        assert!(printed.contains(&format!("compare with {other} [one_time")), "{printed}");
    }
    // Annotator 2 contradicts two others on 200 instances, and has 20 for himself.
    let mut rows: Vec<_> = (0..200).flat_map(|i| [(i, 0, i % 2), (i, 1, i % 2)]).collect();
    rows.extend((0..200).map(|i| (i, 2, (i + 1) % 2)));
    rows.extend((200..220).map(|i| (i, 2, i % 2)));
    let folder = tempfile::tempdir().unwrap();
    let (_, printed) = aggregate(folder.path(), &rows, "dawid_skene", &[]);
    assert!(has(&printed, "labels_nobody_gave"), "{printed}");
    assert!(printed.contains("20 of 220 labels contradict all annotations"), "{printed}");
    assert!(printed.contains("compare with majority_vote or ibcc [labels_nobody"), "{printed}");
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

/// Annotators 0 to `n` are right with their probabilities, and else give another class, independently.
fn independent(instances: u32, classes: u32, right: &[f64]) -> Vec<(u32, u32, u32)> {
    let class = |i| (draw(6, i) * f64::from(classes)) as u32;
    let label = |i: u32, r: u32| {
        let n = i * 100 + r;
        let is_right = draw(7, n) < right[r as usize];
        let wrong = 1 + (draw(8, n) * f64::from(classes - 1)) as u32;
        (class(i) + if is_right { 0 } else { wrong }) % classes
    };
    let annotators = 0..right.len() as u32;
    (0..instances).flat_map(|i| annotators.clone().map(move |r| (i, r, label(i, r)))).collect()
}

/// Two instances of a class tell nearly nothing of the labels that an annotator gives to it.
#[test]
fn independent_annotators_of_many_classes_do_not_err_together() {
    for (instances, classes, right) in
        [(200, 100, &[0.8; 5][..]), (300, 100, &[0.8; 10]), (100, 200, &[0.95; 3])]
    {
        for kind in ["dawid_skene", "majority_vote", "ibcc"] {
            let folder = tempfile::tempdir().unwrap();
            let rows = independent(instances, classes, right);
            let (run, printed) = aggregate(folder.path(), &rows, kind, &[]);
            assert!(!has(&printed, "dependent_annotators"), "{kind}\n{printed}");
            let pairs = read_table(&run, "annotator_pairs");
            let sum: f64 = pairs.iter().map(|pair| number(pair, "excess")).sum();
            let mean = sum / pairs.len() as f64;
            assert!(mean.abs() < 0.05, "{classes} {kind}: {mean}");
        }
    }
}

/// Experts agree more than the crowd does: their skills explain it.
#[test]
fn independent_experts_in_a_weak_crowd_are_no_copies() {
    let skills = |n: usize, expert: f64, others: usize, other: f64| {
        [vec![expert; n], vec![other; others]].concat()
    };
    for (instances, classes, right) in [
        (200, 3, skills(3, 0.985, 5, 0.6)),
        (300, 2, skills(2, 1.0, 6, 0.6)),
        (300, 3, skills(2, 0.985, 4, 0.8)),
    ] {
        let rows = independent(instances, classes, &right);
        // The last annotator gives the labels of the one before.
        let copied: Vec<_> = rows
            .iter()
            .filter(|row| row.1 as usize == right.len() - 1)
            .map(|row| (row.0, row.1 + 1, row.2))
            .collect();
        for kind in ["dawid_skene", "majority_vote"] {
            let folder = tempfile::tempdir().unwrap();
            let (_, printed) = aggregate(folder.path(), &rows, kind, &[]);
            assert!(!has(&printed, "near_copies"), "{kind}\n{printed}");
            let folder = tempfile::tempdir().unwrap();
            let with_copy = [&rows[..], &copied].concat();
            let (_, printed) = aggregate(folder.path(), &with_copy, kind, &[]);
            let names = format!("explain: 1: `{} and {}`", right.len() - 1, right.len());
            assert!(printed.contains(&names), "{kind}\n{printed}");
        }
    }
}

/// Three annotators are right, two give the opposite; each answer once, or four times.
#[test]
fn annotators_who_give_the_opposite_do_not_agree_by_chance_and_are_no_copies() {
    for (expected, opposite) in [(true, 1.0), (true, 0.9), (false, 0.5)] {
        // Annotators 3 and 4 are right with the probability that the label is not turned; .5 is a coin, as are all then.
        let right = if expected { [0.9, 0.9, 0.9, opposite, opposite] } else { [0.5; 5] };
        let mut rows = independent(300, 2, &right);
        rows.iter_mut().filter(|row| row.1 > 2).for_each(|row| row.2 = 1 - row.2);
        let repeated: Vec<_> = rows.iter().flat_map(|row| [*row; 4]).collect();
        for (rows, duplicates) in [(&rows, "share"), (&repeated, "share"), (&repeated, "keep")] {
            for kind in ["dawid_skene", "majority_vote"] {
                let folder = tempfile::tempdir().unwrap();
                let set = format!("frame.duplicates={duplicates}");
                let (_, printed) = aggregate(folder.path(), rows, kind, &["--set", &set]);
                assert_eq!(has(&printed, "agreement_by_chance"), !expected, "{kind}\n{printed}");
                assert!(!has(&printed, "near_copies"), "{kind}\n{printed}");
            }
        }
    }
    // All annotators of an instance give other labels, as if options were ranked: nobody agrees.
    let rows: Vec<_> = (0..300)
        .flat_map(|i| (0..3).map(move |r| (i, r, ((draw(9, i) * 4.0) as u32 + r) % 4)))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let (_, printed) = aggregate(folder.path(), &rows, "majority_vote", &[]);
    assert!(has(&printed, "agreement_by_chance"), "{printed}");
}

/// Each annotator answers four times, independently: those who never contradict themselves are nearly always right.
#[test]
fn annotators_who_repeat_their_answers_are_no_copies() {
    let each = independent(300, 3, &[0.7; 12]);
    let rows: Vec<_> = each.iter().map(|(i, r, label)| (*i, r % 3, *label)).collect();
    for duplicates in ["share", "keep"] {
        for kind in ["dawid_skene", "majority_vote"] {
            let folder = tempfile::tempdir().unwrap();
            let set = format!("frame.duplicates={duplicates}");
            let (run, printed) = aggregate(folder.path(), &rows, kind, &["--set", &set]);
            assert!(!has(&printed, "near_copies"), "{kind}\n{printed}");
            let pairs = read_table(&run, "annotator_pairs");
            assert!(pairs.iter().all(|pair| number(pair, "n") == 300.0));
            assert!(pairs.iter().all(|pair| number(pair, "excess") < 0.2), "{kind}");
        }
    }
}

#[test]
fn what_a_kind_cannot_make_use_of_is_told_before_a_fit() {
    let job = Job::new();
    job.write("in.csv", "instance_id,annotator_id,label\ni,a,1\n");
    job.write("gold.csv", "instance_id,class\ni,1\n");
    let check = |model: &str, more: &str| {
        let text = format!("source.annotations = '{{dir}}in.csv'\nmodel.kind = '{model}'\n{more}");
        stderr(&run_ok(&["check", &job.write("pipeline.toml", &text)]))
    };
    let gold = "source.gold = '{dir}gold.csv'\n";
    assert_says(&check("majority_vote", gold), &["learns nothing from trusted classes"]);
    assert!(!check("wawa", gold).contains("trusted classes"));
    let classes = |n: u32| format!("frame.classes = {:?}\n", (1..=n).collect::<Vec<_>>());
    let told = check("spectral_dawid_skene", &classes(33));
    assert_says(&told, &["at most 32 classes", "frame.classes lists 33"]);
    assert!(!check("spectral_dawid_skene", &classes(32)).contains("classes"));
}
