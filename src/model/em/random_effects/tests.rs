use super::*;
use crate::testing::synth::CrowdShape;
use crate::testing::{annotations, assert_close, fit, iterations, tiny, toy};

/// The model alone, with so many E-steps.
fn alone(e_steps: u32) -> RandomEffects {
    RandomEffects { dawid_skene_share: 0.0, discount: 0.0, stop: iterations(e_steps - 1) }
}

/// Figures of the reference in numpy that the model was specified by, after one and five E-steps without a tolerance.
#[test]
fn the_toy_crowd_is_that_of_the_reference() {
    let fitted = fit(alone(1), &toy());
    let t5 = [0.075_164_68, 0.838_318_03, 0.086_517_29];
    assert_close(&fitted.posterior.row(5), &t5, 1e-8, "T5");
    let follows = [0.698_578_91, 0.697_788_24, 0.697_910_64, 0.696_064_07];
    assert_close(&fitted.report.annotator_parameters[0].1, &follows, 1e-8, "b");
    let fitted = fit(alone(5), &toy());
    let rows = [
        [0.938_912_52, 0.001_494_93, 0.059_592_55],
        [0.018_572_40, 0.980_517_24, 0.000_910_37],
        [0.128_715_93, 0.003_727_61, 0.867_556_46],
        [0.565_624_38, 0.000_198_52, 0.434_177_11],
        [0.011_185_94, 0.987_428_36, 0.001_385_69],
        [0.107_946_58, 0.790_414_02, 0.101_639_40],
    ];
    for (i, row) in rows.iter().enumerate() {
        assert_close(&fitted.posterior.row(i), row, 2e-8, "T");
    }
    assert!((fitted.stop.objective.unwrap() + 16.262_718_57).abs() < 1e-8, "{:?}", fitted.stop);
    let follows = [0.689_718_07, 0.688_920_60, 0.689_226_41, 0.686_610_18];
    assert_close(&fitted.report.annotator_parameters[0].1, &follows, 1e-8, "b");
}

// keys: random_effects.dawid_skene_share, random_effects.discount
/// Instance 4 has four annotations, which are worth two by default.
#[test]
fn posteriors_are_the_power_of_a_mean() {
    let posterior = |dawid_skene_share, discount| {
        let spec = RandomEffects { dawid_skene_share, discount, stop: iterations(3) };
        fit(spec, &toy()).posterior.row(4).to_vec()
    };
    let (effects, independent) = (posterior(0.0, 0.0), posterior(1.0, 0.0));
    assert!((effects[2] - independent[2]).abs() > 1e-4);
    let mean: Vec<f64> =
        effects.iter().zip(&independent).map(|(t, t0)| 0.75 * t + 0.25 * t0).collect();
    assert_close(&posterior(0.25, 0.0), &mean, 1e-12, "mean");
    let roots: Vec<f64> = mean.iter().map(|p| p.sqrt()).collect();
    let sum: f64 = roots.iter().sum();
    let want: Vec<f64> = roots.iter().map(|p| p / sum).collect();
    assert_close(&posterior(0.25, 0.5), &want, 1e-12, "power");
}

/// Seven annotators are right on most instances. Instances 0 to 9 of class 0 look like class 1 to all but two of them.
#[test]
fn a_misleading_look_is_an_effect_and_leaves_a_doubt() {
    let wrong = |i: u32, r: u32| (i * 7 + r * 3).is_multiple_of(11);
    let label = |i: u32, r: u32| {
        let class = u32::from(i >= 60);
        if i < 10 { u32::from((r + i) % 7 > 1) } else { class ^ u32::from(wrong(i, r)) }
    };
    let rows: Vec<_> = (0..120 * 7).map(|n| (n / 7, n % 7, label(n / 7, n % 7))).collect();
    let a = tiny(2, &rows);
    let fitted = fit(RandomEffects::default(), &a);
    let [(_, effect), (_, label)] = [0, 1].map(|n| &fitted.report.instance_parameters[n]);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    assert!(mean(&effect[..10]) > mean(&effect[10..]), "{effect:?}");
    assert!(label[1..10].iter().all(|other| *other == label[0]), "{label:?}");
    assert_eq!(fitted.report.annotator_parameters[0].0, "follows");
    let sure = fit(crate::model::em::DawidSkene::default(), &a);
    for i in 0..10 {
        assert!(fitted.posterior.row(i)[0] > 10.0 * sure.posterior.row(i)[0], "{i}");
    }
}

/// Annotator 40 alone gives the label 20: with 21 labels, instances have effects of their own labels only.
#[test]
fn with_many_labels_the_effects_of_labels_that_an_instance_lacks_count_as_none() {
    let shape = CrowdShape { classes: 20, instances: 400, ..CrowdShape::default() };
    let drawn = shape.draw(3);
    let (few, mut rows) = (tiny(20, &drawn.rows), drawn.rows);
    rows.push((400, 40, 20));
    let many = tiny(20, &rows);
    assert_eq!((few.dims().labels, many.dims().labels), (20, 21));
    let (few, many) = (fit(alone(20), &few), fit(alone(20), &many));
    for i in 0..400 {
        assert_close(&few.posterior.row(i), &many.posterior.row(i), 0.03, "T");
    }
}

#[test]
fn an_instance_without_annotations_has_no_effect() {
    let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
    let rows = [(0, 0, 0), (0, 1, 0), (2, 0, 1), (2, 1, 0)];
    let fitted = fit(RandomEffects::default(), &annotations(dims, &rows));
    let effect = &fitted.report.instance_parameters[0].1;
    assert!(effect[0].is_finite() && effect[1].is_nan() && effect[2].is_finite(), "{effect:?}");
}

#[test]
fn single_annotations_are_warned_of() {
    let warnings = |rows: &[(u32, u32, u32)]| {
        let (a, mut job) = (tiny(2, rows), JobContext::new(0));
        let model = crate::model::em::Em(RandomEffects::default());
        crate::model::Model::fit(&model, (&a).into(), &mut job).unwrap();
        job.warnings().join("\n")
    };
    assert!(warnings(&[(0, 0, 0), (1, 1, 1), (2, 0, 1)]).contains("fewer than 1.5 annotators"));
    assert!(!warnings(&[(0, 0, 0), (0, 1, 1), (2, 0, 1), (2, 1, 1)]).contains("1.5"));
}

/// 3 instances with 1 + 2 * 2 states, or 1 and two of each annotation; 4 tables of 5 annotators; T0.
#[test]
fn the_memory_is_that_of_all_states_and_of_dense_matrices() {
    let dims = Dims { instances: 3, annotators: 5, classes: 2, labels: 2 };
    let bytes = |dims: Dims| {
        let sizes = QuestionSizes { dims, annotations: 4, pairs: 4, gold_roles: Vec::new() };
        let (own, start) =
            (RandomEffects::memory_estimate(&sizes), kernels::memory_estimate(&sizes));
        own.unwrap().working - start.unwrap().working
    };
    assert_eq!(bytes(dims), 8 * (15 * 2 + 3 * 2 + 4 * 5 * 4));
    assert_eq!(bytes(Dims { labels: 30, ..dims }), 8 * (11 * 2 + 3 * 2 + 4 * 5 * 60));
}
