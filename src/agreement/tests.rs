use super::*;
use crate::frame::Dims;
use crate::job_context::rng;
use crate::testing::{assert_close, tiny, weighted};

fn names(n: usize) -> Categories {
    let names: Vec<String> = (0..n).map(|k| format!("c{k}")).collect();
    Categories::new(&names, false)
}

fn value(rows: &[AgreementRow], name: &str) -> Option<f64> {
    rows.iter().find(|row| row.statistic == name && row.class.is_none()).and_then(|row| row.value)
}

/// Two instances: one annotator is half for 0 and half for 1, the other for 0; then both for 1.
#[test]
fn a_soft_annotation_agrees_by_its_parts() {
    let dims = Dims { instances: 2, annotators: 2, classes: 2, labels: 2 };
    let rows = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 1)];
    let a = weighted(dims, &rows, vec![3.0, 3.0, 1.0, 0.2, 9.0]);
    let found = values(&a, &names(2));
    assert_close(&[value(&found, "percent_agreement").unwrap()], &[0.75], 1e-12, "percent");
    // Label 0 has 1.5 of 4 answers; observed disagreements are 2 * 1/2, and 2 * 1.5 * 2.5 by chance.
    let alpha = 1.0 - 3.0 * 1.0 / (2.0 * 1.5 * 2.5);
    assert_close(&[value(&found, "krippendorff_nominal").unwrap()], &[alpha], 1e-12, "alpha");
}

#[test]
fn a_label_that_is_no_class_is_no_answer() {
    let with = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 2), (1, 0, 0), (1, 1, 1), (1, 2, 2)]);
    let without = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1)]);
    assert_eq!(values(&with, &names(2)), values(&without, &names(2)));
}

/// Cohen's expected distances by their sums over gaps are those over all pairs.
#[test]
fn weighted_kappas_are_those_of_the_whole_table() {
    let triples: Vec<_> = (0..40).flat_map(|i| [(i, 0, i % 5), (i, 1, (i * i / 3) % 5)]).collect();
    let a = tiny(5, &triples);
    let scores: [f64; 5] = [1.0, 2.0, 4.0, 4.5, 9.0];
    let texts = scores.map(|x| x.to_string());
    let found = values(&a, &Categories::new(&texts, false));
    for (name, power) in [("cohen_kappa_linear", 1), ("cohen_kappa_quadratic", 2)] {
        let (mut observed, mut expected) = (0.0, 0.0);
        for i in 0..40_usize {
            for j in 0..40_usize {
                let d = (scores[i % 5] - scores[(j * j / 3) % 5]).abs().powi(power);
                expected += d / 1600.0;
                observed += if i == j { d / 40.0 } else { 0.0 };
            }
        }
        let want = 1.0 - observed / expected;
        assert_close(&[value(&found, name).unwrap()], &[want], 1e-12, name);
    }
}

#[test]
fn two_annotators_who_answer_all_have_one_kappa_by_cohen_and_conger() {
    let triples: Vec<_> = (0..30).flat_map(|i| [(i, 0, i % 3), (i, 1, (i / 2) % 3)]).collect();
    let found = values(&tiny(3, &triples), &names(3));
    let [cohen, conger] = ["cohen_kappa", "conger_kappa"].map(|name| value(&found, name).unwrap());
    assert_close(&[cohen], &[conger], 1e-12, "kappa");
}

/// A part of the annotations has the classes of all, and their distances.
#[test]
fn a_part_without_some_classes_keeps_the_scale_of_all() {
    let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let all = Categories::new(&texts(&["1", "10", "2"]), false);
    assert_eq!(all.scores(), [1.0, 2.0, 10.0]);
    let part = all.of_part(&texts(&["10", "2"]));
    assert_eq!([part.category(0), part.category(1), part.category(2)], [Some(2), Some(1), None]);
    let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0)]);
    // Shares of 10 and 2 are .75 and .25; 10 and 2 are 8/9 of the greatest distance apart.
    let (d, chance) = (8.0 / 9.0, 2.0 * 0.75 * 0.25 / 6.0);
    let expected = (9.0 - 2.0 * (1.0 / 9.0 + 1.0 + d)) * chance;
    let want = (1.0 - d / 2.0 - expected) / (1.0 - expected);
    let found = value(&values(&a, &part), "gwet_ac2_linear").unwrap();
    assert_close(&[found], &[want], 1e-12, "AC2");
}

/// With more instances than blocks, the interval is as wide as the standard error of a share says.
#[test]
fn an_interval_has_the_width_of_independent_instances() {
    let n = 6_000_u32;
    let agree = |i: u32| u32::from(super::sums::mixed(u64::from(i)) % 10 < 3);
    let triples: Vec<_> = (0..n).flat_map(|i| [(i, 0, 0), (i, 1, agree(i))]).collect();
    let a = tiny(2, &triples);
    let found = measure(&a, &names(2), &mut rng(7, "agreement"), usize::MAX);
    let row = &found[0];
    let (p, width) = (row.value.unwrap(), row.high.unwrap() - row.low.unwrap());
    let want = 2.0 * 1.96 * (p * (1.0 - p) / f64::from(n)).sqrt();
    assert!((width / want - 1.0).abs() < 0.2, "{width} {want}");
    assert!(row.low.unwrap() < p && p < row.high.unwrap());
    assert_eq!(row.n, u64::from(n));
}

/// More classes than the statistics of an order allow leave those of names, and Krippendorff's interval alpha.
#[test]
fn many_numbers_have_an_interval_alpha() {
    let n = 300_u32;
    let triples: Vec<_> = (0..n).flat_map(|i| [(i, 0, i), (i, 1, (i + 1) % n)]).collect();
    let texts: Vec<String> = (0..n).map(|k| k.to_string()).collect();
    let found = values(&tiny(n as usize, &triples), &Categories::new(&texts, false));
    assert_eq!(value(&found, "krippendorff_ordinal"), None);
    let total = f64::from(n);
    // Each number occurs twice: the squared differences of all pairs of 600 answers.
    let expected = 8.0 * (total * total) * (total * total - 1.0) / 12.0;
    let observed = 2.0 * ((total - 1.0) + (total - 1.0).powi(2));
    let want = 1.0 - (2.0 * total - 1.0) * observed / expected;
    assert_close(&[value(&found, "krippendorff_interval").unwrap()], &[want], 1e-9, "alpha");
}

/// Two of three annotators agree on a third of the instances, and all on the others.
#[test]
fn a_sample_has_about_so_many_instances_and_about_the_same_agreement() {
    let rows: Vec<_> = (0..12_000).map(|n| (n / 3, n % 3, u32::from(n % 9 == 0))).collect();
    let a = tiny(2, &rows);
    let of = |at_most| measure(&a, &names(2), &mut rng(7, "agreement"), at_most);
    let (all, some) = (of(usize::MAX), of(1000));
    assert_eq!((all[0].statistic, all[0].n), ("percent_agreement", 4000));
    assert!((900..1100).contains(&some[0].n), "{}", some[0].n);
    let (all, some) = (all[0].value.unwrap(), some[0].value.unwrap());
    assert!((all - 7.0 / 9.0).abs() < 1e-3 && (some - all).abs() < 0.04, "{all} {some}");
}
