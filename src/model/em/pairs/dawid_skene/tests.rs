use super::*;
use crate::model::Model as _;
use crate::model::em::PairEm;
use crate::model::em::pairs::pair_em::StepFrom;
use crate::model::posterior::Posterior;
use crate::testing::{assert_close, fit, iterations, tiny, weighted};

/// The second fit has fewer annotations than the first.
#[test]
fn few_annotations_are_cautioned_against_once_for_a_subject() {
    let rows: Vec<_> = (0..9).flat_map(|i| [(i, 0, i % 2), (i, 1, i % 2)]).collect();
    let mut job = JobContext::new(0);
    for n in [18, 12] {
        let a = tiny(2, &rows[..n]);
        PairEm(DawidSkene::maximum_likelihood()).fit((&a).into(), &mut job).unwrap();
    }
    assert_eq!(job.warnings().len(), 1, "{:?}", job.warnings());
    assert!(job.warnings()[0].contains("fewer than 10 annotations, few for a 2 x 2"));
    let a = tiny(2, &rows);
    // A small pseudo-count changes nothing, and so silences nothing.
    for (smoothing, diagonal, n) in [(0.1, 0.0, 1), (0.0, 0.1, 1), (1.0, 0.0, 0), (0.0, 1.0, 0)] {
        let spec = DawidSkene { smoothing, diagonal, ..DawidSkene::maximum_likelihood() };
        let mut job = JobContext::new(0);
        PairEm(spec).fit((&a).into(), &mut job).unwrap();
        assert_eq!(job.warnings().len(), n, "{smoothing} {diagonal}: {:?}", job.warnings());
    }
}

// keys: dawid_skene.smoothing, dawid_skene.diagonal
#[test]
fn an_m_step_gives_the_matrices_worked_out_by_hand() {
    // Annotator 0 gives 0 to instance 0 (T = 1, 0) and 1 to instance 1 (T = 0.5, 0.5), annotator 1 gives 0 to the latter.
    // Smoothing 0.1, class 0: counts 1 and 0.5, row sum 1.7: (1.1, 0.6) / 1.7; class 1: counts 0 and 0.5: (0.1, 0.6) /
    // 0.7. With 0.4 more on the diagonal (1.5, 0.6) / 2.1 and (0.1, 1.0) / 1.1.
    let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
    let plain = [
        (0, 0, [1.1 / 1.7, 0.1 / 0.7]),
        (0, 1, [0.6 / 1.7, 0.6 / 0.7]),
        (1, 1, [0.1 / 0.7, 0.1 / 0.7]),
    ];
    let trusted = [
        (0, 0, [1.5 / 2.1, 0.1 / 1.1]),
        (0, 1, [0.6 / 2.1, 1.0 / 1.1]),
        (1, 1, [0.1 / 1.1, 0.5 / 1.1]),
    ];
    for (diagonal, expected) in [(0.0, plain), (0.4, trusted)] {
        let spec = DawidSkene { smoothing: 0.1, diagonal, ..DawidSkene::maximum_likelihood() };
        let step = StepFrom::new(&spec, &a, &Posterior::from_votes(&a));
        let confusion = step.report.confusion.unwrap();
        for (annotator, label, column) in expected {
            for (got, want) in confusion.column(&a, annotator, label).iter().zip(column) {
                assert!((got - want).abs() < 1e-12, "{annotator} {label}: {got} is not {want}");
            }
        }
    }
}

/// T0 = (1, 0), T1 = (0.5, 0.5), as above. All annotators together have 1.5 and 0.5 annotations of label 0 in the two
/// classes, and 0.5 and 0.5 of label 1. With 0.1 in each cell, class 0 has (1.6, 0.6) / 2.2 and class 1 a half each.
/// Twice these are added: annotator 0 has, in class 0, (1 + 3.2 / 2.2, 0.5 + 1.2 / 2.2) / 3.5.
// keys: dawid_skene.prior, dawid_skene.strength
#[test]
fn rows_are_drawn_to_those_of_the_crowd() {
    let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
    let t = Posterior::from_votes(&a);
    for (strength, smoothing) in [(2.0, 0.0), (0.5, 0.0), (2.0, 0.3)] {
        let spec =
            DawidSkene { prior: MatrixPrior::Crowd, strength, smoothing, ..DawidSkene::default() };
        let StepFrom { report, objective, .. } = StepFrom::new(&spec, &a, &t);
        assert_close(&report.prior.unwrap(), &[0.75, 0.25], 1e-12, "q");
        let crowd = [[1.6 / 2.2, 0.5], [0.6 / 2.2, 0.5]];
        let counts = [[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.0, 0.0]]];
        let added = strength + 2.0 * smoothing;
        let share = |r: usize, l: usize, k: usize| {
            let all = counts[r][0][k] + counts[r][1][k] + added;
            (counts[r][l][k] + strength * crowd[l][k] + smoothing) / all
        };
        let mut terms = 0.0;
        for (r, l, k) in (0..8).map(|n: usize| (n / 4, n / 2 % 2, n % 2)) {
            let mode = (strength * crowd[l][k] + smoothing) / added;
            terms += mode * added * (share(r, l, k) / mode).ln();
        }
        let got = objective.maximised - objective.traced;
        assert!((got - terms).abs() < 1e-12, "{got} is not {terms}");
        let confusion = report.confusion.unwrap();
        for (r, l) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let want = [share(r, l, 0), share(r, l, 1)];
            assert_close(&confusion.column(&a, r, l), &want, 1e-12, "pi");
        }
        let skill = f64::midpoint(share(0, 0, 0), share(0, 1, 1));
        assert_close(&report.skill[..1], &[skill], 1e-12, "skill");
    }
}

/// With more classes than the crowd's matrix may have cells, its rows are made of one accuracy.
#[test]
fn thousands_of_classes_are_drawn_to_the_accuracy_of_the_crowd() {
    let n = 1500;
    let rows: Vec<_> = (0..40).flat_map(|i| (0..3).map(move |r| (i, r, i * 30))).collect();
    let dims = crate::frame::Dims { instances: 40, annotators: 3, classes: n, labels: n };
    let a = crate::testing::annotations(dims, &rows);
    let fitted = fit(DawidSkene::default(), &a);
    assert!(fitted.posterior.row(7)[210] > 0.99);
    // Of a class that an annotator met once: (1 + 2 m) / 3, with m nearly 1.
    let column = fitted.report.confusion.unwrap().column(&a, 0, 210);
    assert!((column[210] - 1.0).abs() < 0.01, "{}", column[210]);
}

/// One annotator gives class 0, and three give class 1. Each has one label, whose share is 1 in both classes. With these
/// weights a share that is the product of a count and a rounded reciprocal is 1 - 1e-16 in one of the two.
#[test]
fn a_large_weight_does_not_multiply_the_rounding_of_a_share() {
    let instance = |i| [(i, 0, 0), (i, 1, 1), (i, 2, 1), (i, 3, 1)];
    for (diagonal, instances) in [(0.0, 2), (1e-12, 1), (0.0, 1)] {
        for weight in [1.3e9, 2.3e30, 1.4e99] {
            let rows: Vec<_> = (0..instances).flat_map(instance).collect();
            let a = weighted(tiny(3, &rows).dims(), &rows, vec![weight; rows.len()]);
            let stop = iterations(1);
            let fitted = fit(DawidSkene { diagonal, stop, ..DawidSkene::maximum_likelihood() }, &a);
            assert_close(
                &fitted.posterior.row(0),
                &[0.25, 0.75, 0.0],
                1e-8,
                &format!("{weight:e}"),
            );
        }
    }
}

/// The matrices are those of the second case above. Compared with its mode, the prior of annotator 0 has the density
/// ((1.5 / 2.1) / (.5 / .6))^.5 ((.6 / 2.1) / (.1 / .6))^.1 in class 0, and so on. Annotator 1, with a single
/// annotation, has the count .5 of label 0 in both classes: (1, .1) / 1.1 and (.6, .5) / 1.1.
#[test]
fn the_objective_adds_the_log_prior_of_every_matrix() {
    let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 0)]);
    let rows = [
        ([1.5 / 2.1, 0.6 / 2.1], [0.5, 0.1]),
        ([0.1 / 1.1, 1.0 / 1.1], [0.1, 0.5]),
        ([1.0 / 1.1, 0.1 / 1.1], [0.5, 0.1]),
        ([0.6 / 1.1, 0.5 / 1.1], [0.1, 0.5]),
    ];
    let term = |(p, added): (f64, f64)| added * (p / (added / 0.6)).ln();
    let want: f64 =
        rows.iter().flat_map(|(p, added)| p.iter().copied().zip(*added)).map(term).sum();
    let spec = DawidSkene { smoothing: 0.1, diagonal: 0.4, ..DawidSkene::maximum_likelihood() };
    let objective = StepFrom::new(&spec, &a, &Posterior::from_votes(&a)).objective;
    let got = objective.maximised - objective.traced;
    assert!((got - want).abs() < 1e-12 && want < -0.1, "{got} is not {want}");
}

/// T of the votes is (.75, .25) and (1, 0). Annotator 3 answers 1 about instance 0 and 0 about instance 1: the count of
/// its label 0 in class 1 is the floor, 1e-10, in a row with the sum .25. The class shares are .875 and .125.
#[test]
fn the_floor_is_one_of_counts_and_not_of_probabilities() {
    let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (1, 3, 0)]);
    let stop = iterations(1);
    let fitted = fit(DawidSkene { stop, ..DawidSkene::maximum_likelihood() }, &a);
    let (class_0, class_1) = (0.875 * 1.0 / 1.75, 0.125 * 1e-10 / 0.25);
    let (got, want) = (fitted.posterior.row(1)[1], class_1 / (class_0 + class_1));
    assert!((got / want - 1.0).abs() < 1e-6, "{got}, expected {want}");
}

#[test]
fn a_single_annotators_labels_are_the_result() {
    let fitted = fit(DawidSkene::maximum_likelihood(), &tiny(2, &[(0, 0, 0), (1, 0, 1)]));
    assert!(fitted.posterior.row(0)[0] > 0.999 && fitted.posterior.row(1)[1] > 0.999);
}

#[test]
fn a_class_nobody_met_has_a_uniform_row() {
    let a = tiny(3, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)]);
    let step = StepFrom::new(&DawidSkene::maximum_likelihood(), &a, &Posterior::from_votes(&a));
    let confusion = step.report.confusion.unwrap();
    for label in 0..3 {
        assert!((confusion.column(&a, 0, label)[2] - 1.0 / 3.0).abs() < 1e-9);
    }
}

/// One annotation an instance cannot tell a rare class from a confused one.
#[test]
fn class_shares_are_learned_only_from_redundant_annotations() {
    let prior = |rows: &[(u32, u32, u32)]| fit(DawidSkene::default(), &tiny(2, rows)).report.prior;
    assert_eq!(prior(&[(0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 1, 1)]), Some(vec![0.5, 0.5]));
    let learned = prior(&[(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]).unwrap();
    assert!(learned[0] > 0.6, "{learned:?}");
}

/// One annotator an instance is one opinion, in however many labels.
#[test]
fn a_soft_annotation_does_not_make_an_instance_redundant() {
    let rows: Vec<_> = (0..8).flat_map(|i| [(i, i % 2, 0), (i, i % 2, 1)]).collect();
    let weights = rows.iter().map(|(.., label)| if *label == 0 { 0.9 } else { 0.1 }).collect();
    let a = weighted(tiny(2, &rows).dims(), &rows, weights);
    assert_eq!(fit(DawidSkene::default(), &a).report.prior, Some(vec![0.5, 0.5]));
}
