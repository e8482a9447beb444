use statrs::function::gamma::{digamma, ln_gamma};

use super::*;
use crate::model::Model;
use crate::model::em::PairEm;
use crate::model::em::pairs::pair_em::StepFrom;
use crate::model::fitted::Fitted;
use crate::model::numerics::MIN_LIKELIHOOD;
use crate::model::posterior::Posterior;
use crate::testing::{annotations, assert_close, fit, iterations, tiny};

/// The bound of the given posteriors by its definition, term by term: E ln p(y, z, q, pi) - E ln r(z) r(q) r(pi),
/// where r(q) and r(pi) are the Dirichlets that follow from `t`, and r(z) the posteriors that follow from these.
fn bound(spec: &Ibcc, a: &Annotations, t: &Posterior) -> f64 {
    let d = a.dims();
    let mut nu = vec![spec.prior_class; d.classes];
    let off_diagonal = spec.off_diagonal(d.labels);
    let prior = |k: usize, l: usize| match &spec.pseudo_counts {
        Some(rows) => rows[k][l],
        None if k == l => spec.prior_diagonal,
        None => off_diagonal,
    };
    let row = |k| (0..d.labels).map(|l| prior(k, l)).collect::<Vec<_>>();
    let mut al: Vec<Vec<Vec<f64>>> = vec![(0..d.classes).map(row).collect(); d.annotators];
    for i in 0..d.instances {
        for k in 0..d.classes {
            nu[k] += t.row(i)[k];
            for (r, l, w) in a.triples_of_instance(i) {
                al[r as usize][k][l as usize] += w * t.row(i)[k];
            }
        }
    }
    let log_means = |a: &[f64]| -> Vec<f64> {
        a.iter().map(|x| digamma(*x) - digamma(a.iter().sum())).collect()
    };
    let log_density = |prior: &[f64], log_means: &[f64]| {
        ln_gamma(prior.iter().sum()) - prior.iter().map(|a| ln_gamma(*a)).sum::<f64>()
            + prior.iter().zip(log_means).map(|(a, m)| (a - 1.0) * m).sum::<f64>()
    };
    let against = |posterior: &[f64], prior: &[f64]| {
        let means = log_means(posterior);
        log_density(prior, &means) - log_density(posterior, &means)
    };
    let mut bound = against(&nu, &vec![spec.prior_class; d.classes]);
    for matrix in &al {
        for (k, posterior) in matrix.iter().enumerate() {
            bound += against(posterior, &row(k));
        }
    }
    for i in 0..d.instances {
        let logs: Vec<f64> = (0..d.classes)
            .map(|k| {
                let own = a.triples_of_instance(i);
                let terms = own.map(|(r, l, w)| w * log_means(&al[r as usize][k])[l as usize]);
                log_means(&nu)[k] + terms.sum::<f64>()
            })
            .collect();
        let sum: f64 = logs.iter().map(|l| l.exp()).sum();
        for log in &logs {
            let p = log.exp() / sum;
            bound += p * (log - p.ln());
        }
    }
    bound
}

/// The objectives of four steps from the votes are the bounds.
fn assert_bounds(spec: &Ibcc, a: &Annotations) {
    let mut t = Posterior::from_votes(a);
    for _ in 0..4 {
        let want = bound(spec, a, &t);
        let step = StepFrom::new(spec, a, &t);
        let got = step.objective.maximised;
        assert!((got - want).abs() < 1e-10 * want.abs(), "{got} is not {want}");
        t = step.posterior;
    }
}

/// 40 instances with one annotation each, of 30 labels by four annotators.
#[test]
fn many_labels_with_one_annotation_an_instance_do_not_become_one_class() {
    let rows: Vec<_> = (0..120).map(|i| (i, i % 4, i * 7 % 30)).collect();
    let fitted = fit(Ibcc::default(), &tiny(30, &rows));
    for (i, _, label) in rows {
        let (best, _) = crate::model::posterior::best(&fitted.posterior.row(i as usize)).unwrap();
        assert_eq!(best, label as usize, "instance {i}");
    }
}

/// A parameter that is given is used, however many labels there are.
#[test]
fn only_the_default_of_wrong_answers_follows_the_number_of_labels() {
    let of = |prior_off_diagonal| Ibcc { prior_off_diagonal, ..Ibcc::default() };
    assert_eq!([2, 5, 9].map(|labels| of(None).off_diagonal(labels)), [1.0, 1.0, 0.5]);
    assert_eq!(of(Some(3.0)).off_diagonal(9), 3.0);
}

// keys: ibcc.prior_class, ibcc.prior_diagonal, ibcc.prior_off_diagonal
#[test]
fn the_objective_is_the_bound_by_its_definition() {
    let rows: Vec<_> =
        (0..60).map(|n| (n / 4, n % 4 + n / 30, (n / 4 + n * n % 5 / 3) % 3)).collect();
    let spec = Ibcc {
        prior_class: 0.5,
        prior_diagonal: 3.0,
        prior_off_diagonal: Some(0.7),
        ..Ibcc::default()
    };
    for n_classes in [2, 3] {
        assert_bounds(&spec, &tiny(n_classes, &rows));
    }
}

/// The bounds of three iterations by their definition, from the shares of the votes, computed with 320 digits by
/// mpmath.
#[test]
fn the_bound_of_large_parameters_does_not_cancel() {
    let a = tiny(
        2,
        &[(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 0), (2, 1, 1)],
    );
    for (prior_class, prior_diagonal, prior_off_diagonal, want) in [
        (2e3, 4e3, 1e3, [-5.706_344_742_756_222, -5.706_310_618_708_993, -5.706_310_618_687_607]),
        (
            1e12,
            3e11,
            1e11,
            [-5.560_925_801_455_027, -5.560_925_801_454_915, -5.560_925_801_454_915],
        ),
        (1.0, 4e16, 1e16, [-6.205_407_525_324_16, -6.205_390_788_237_811, -6.205_387_428_507_428]),
    ] {
        let stop = iterations(3);
        let prior_off_diagonal = Some(prior_off_diagonal);
        let spec =
            Ibcc { prior_class, prior_diagonal, prior_off_diagonal, stop, ..Ibcc::default() };
        let fitted = fit(spec, &a);
        for (row, want) in fitted.trace.iter().zip(want) {
            let got = row.objective;
            assert!((got - want).abs() < 1e-11, "{prior_diagonal}: {got} is not {want}");
        }
    }
}

// keys: ibcc.pseudo_counts
#[test]
fn the_bound_of_whole_matrices_of_pseudo_counts_is_that_by_its_definition() {
    let rows: Vec<_> =
        (0..60).map(|n| (n / 4, n % 4 + n / 30, (n / 4 + n * n % 5 / 3) % 4)).collect();
    let counts =
        vec![vec![3.0, 0.5, 1.0, 0.2], vec![0.4, 5.0, 0.6, 0.3], vec![1.5, 0.7, 2.0, 900.0]];
    let spec = Ibcc { pseudo_counts: Some(counts), ..Ibcc::default() };
    let a = annotations(Dims { instances: 15, annotators: 5, classes: 3, labels: 4 }, &rows);
    assert_bounds(&spec, &a);
}

/// The matrix that the other keys stand for, and one that is not symmetric, of an annotator with few annotations.
#[test]
fn pseudo_counts_of_the_other_keys_change_nothing_and_others_are_the_mean_of_a_prior() {
    let rows: Vec<_> = (0..30).map(|n| (n / 3, n % 3, n / 3 % 2)).chain([(0, 3, 1)]).collect();
    let a = tiny(2, &rows);
    let of = |counts| fit(Ibcc { pseudo_counts: Some(counts), ..Ibcc::default() }, &a);
    let (same, plain) = (of(vec![vec![4.0, 1.0], vec![1.0, 4.0]]), fit(Ibcc::default(), &a));
    assert_close(&same.report.skill, &plain.report.skill, 1e-12, "skill");
    let columns = |fitted: &Fitted| fitted.report.confusion.as_ref().unwrap().column(&a, 3, 1);
    assert_close(&columns(&same), &columns(&plain), 1e-12, "P(1)");
    // Class 1 of annotator 3: no annotation, and the share 6 / 8 of the prior; class 0: (2 + 1) / (10 + 1).
    let other = of(vec![vec![8.0, 2.0], vec![2.0, 6.0]]);
    assert_close(&columns(&other), &[3.0 / 11.0, 0.75], 1e-3, "P(1)");
}

#[test]
fn pseudo_counts_of_another_shape_or_below_the_least_are_refused() {
    let problems = |pseudo_counts, prior_off_diagonal| {
        let spec =
            Ibcc { pseudo_counts: Some(pseudo_counts), prior_off_diagonal, ..Ibcc::default() };
        let mut problems = Problems::default();
        spec.check("model", &mut problems);
        problems.into_result().map_err(|e| e.to_string())
    };
    assert_eq!(problems(vec![vec![1.0, 0.05]; 2], None), Ok(()));
    for (counts, off, what) in [
        (vec![vec![1.0, 0.04]; 2], None, "at least 0.05"),
        (vec![vec![1.0, f64::NAN]; 2], None, "at least 0.05"),
        (vec![vec![1.0], vec![1.0, 1.0]], None, "differ in length"),
        (vec![vec![1.0; 2]; 2], Some(1.0), "given twice"),
    ] {
        let error = problems(counts, off).unwrap_err();
        assert!(error.contains(what) && error.contains("model.pseudo_counts"), "{error}");
    }
    let model = PairEm(Ibcc { pseudo_counts: Some(vec![vec![1.0; 2]; 2]), ..Ibcc::default() });
    let error = model.fit((&tiny(3, &[(0, 0, 2)])).into(), &mut JobContext::new(0)).unwrap_err();
    assert!(error.to_string().contains("2 x 2, where there are 3 classes"), "{error}");
}

#[test]
fn an_annotator_with_one_annotation_stays_near_the_prior() {
    let rows: Vec<_> = (0..30).map(|n| (n / 3, n % 3, n / 3 % 2)).chain([(0, 3, 1)]).collect();
    let fitted = fit(Ibcc::default(), &tiny(2, &rows));
    // Class 0: (4, 1) and one wrong answer, 4 / 6; class 1: 4 / 5.
    let want = f64::midpoint(4.0 / 6.0, 4.0 / 5.0);
    assert!((fitted.report.skill[3] - want).abs() < 1e-3, "{:?}", fitted.report.skill);
    // Variances of the diagonal: 4/6 2/6 / 7 and 4/5 1/5 / 6.
    let deviation = (2.0 / 63.0 + 2.0 / 75.0_f64).sqrt() / 2.0;
    let (low, high) = fitted.report.skill_interval.unwrap()[3];
    assert!((low - (want - 1.96 * deviation)).abs() < 2e-3, "{low}");
    assert!((high - (want + 1.96 * deviation)).abs() < 2e-3, "{high}");
}

/// nu is (1 + 2, 1 + 0). exp(E ln q) would be as exp(1 + 1/2) to 1: digamma(3) is so much more than digamma(1).
#[test]
fn an_instance_without_annotations_has_the_mean_of_the_class_shares() {
    let dims = Dims { instances: 4, annotators: 2, classes: 2, labels: 2 };
    let mut a = annotations(dims, &[(0, 0, 0), (0, 1, 0), (2, 0, 0)]);
    a.trusted = Some(vec![None, None, None, Some(1)]);
    let stop = iterations(1);
    let spec = Ibcc { stop, ..Ibcc::default() };
    let fitted = fit(spec, &a);
    assert_eq!(*fitted.posterior.row(1), [0.75, 0.25]);
    assert_eq!(*fitted.posterior.row(3), [0.0, 1.0]);
}

/// Beside 1e10 annotations, exp(E ln pi) is exp(digamma(parameter)) / 1e10: 1.2e-19 of .05, and 8e-22 of .04.
#[test]
fn the_smallest_parameter_keeps_the_likelihood_above_its_floor() {
    let least = |parameter: f64| (digamma(parameter) - digamma(1e10)).exp();
    assert!(least(MIN_PARAMETER) > MIN_LIKELIHOOD && least(0.04) < MIN_LIKELIHOOD);
}
