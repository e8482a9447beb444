use super::*;
use crate::testing::synth::CrowdShape;
use crate::testing::{annotations, fit, iterations, tiny, weighted};

/// L-BFGS holds 23 numbers for each parameter.
#[test]
fn the_memory_of_a_search_is_more_than_that_of_the_posteriors() {
    let dims = Dims { instances: 3_000_000, annotators: 1000, classes: 2, labels: 2 };
    let sizes = QuestionSizes { dims, annotations: 1, pairs: 1, gold_roles: Vec::new() };
    let want = MemoryEstimate { posteriors: 48_000_000, matrices: 0, working: 3_001_000 * 184 };
    assert_eq!(Glad::memory_estimate(&sizes), Some(want));
}

#[test]
fn the_first_e_step_is_that_worked_out_by_hand() {
    // sigma = sigmoid(e): two labels are 0, one is 1 of two classes: odds = e^e.
    let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1)]);
    let mut params = Glad::default().params(&a);
    params.x.fill(1.0);
    let objective = Glad::default().e_step(&a, &mut params).maximised;
    let sigma = sigmoid(1.0_f64.exp());
    let joint = [0.5 * sigma * sigma * (1.0 - sigma), 0.5 * (1.0 - sigma).powi(2) * sigma];
    assert!((objective - (joint[0] + joint[1]).ln()).abs() < 1e-12);
    assert!((params.t.row(0)[0] - joint[0] / (joint[0] + joint[1])).abs() < 1e-12);
}

/// At b = 11 and -12 the likelihood is that of b = 10 and -10: only the prior pulls b back.
#[test]
fn the_gradient_is_that_of_the_value() {
    let rows: Vec<_> = (0..24).map(|n| (n / 4, n % 4, (n / 4 + n * n % 7 / 4) % 4)).collect();
    let weights = (0..24).map(|n| [1.0, 0.25, 1.0, 2.5][n * n % 7 % 4]).collect();
    let dims = Dims { instances: 6, annotators: 4, classes: 3, labels: 4 };
    let a = weighted(dims, &rows, weights);
    let (spec, t) = (Glad::default(), Posterior::from_votes(&a));
    let mut objective = MStepObjective::new(&spec, &a, &t);
    let mut x: Vec<f64> = (0..10).map(|n| f64::from(n) / 4.0 - 1.0).collect();
    (x[5], x[6]) = (11.0, -12.0);
    let (mut gradient, mut ignored) = (vec![0.0; 10], vec![0.0; 10]);
    objective.value(&x, &mut gradient);
    assert_eq!(gradient[5..7], [-10.0, 13.0]);
    for (n, got) in gradient.iter().enumerate() {
        let mut at = |d: f64| {
            let mut x = x.clone();
            x[n] += d;
            objective.value(&x, &mut ignored)
        };
        let want = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((got - want).abs() < 1e-6 * want.abs().max(1.0), "{n}: {got} is not {want}");
    }
}

#[test]
fn a_difficulty_is_that_of_the_clamped_b() {
    let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 0, 1)]);
    let (x, t) = (vec![1.0, 900.0, -900.0, 0.5], Posterior::from_votes(&a));
    let report = Params { x, t, prior: vec![0.5, 0.5] }.report(&a);
    let difficulty = &report.instance_parameters[0].1;
    for (got, want) in difficulty.iter().zip([(-10.0_f64).exp(), 10.0_f64.exp(), (-0.5_f64).exp()])
    {
        assert!((got - want).abs() < 1e-12 * want, "{difficulty:?}");
    }
}

#[test]
fn an_instance_without_annotations_has_no_difficulty() {
    let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
    let rows = [(0, 0, 0), (0, 1, 0), (2, 0, 1), (2, 1, 0)];
    let report = fit(Glad::default(), &annotations(dims, &rows)).report;
    let difficulty = &report.instance_parameters[0].1;
    let has: Vec<bool> = difficulty.iter().map(|d| d.is_finite()).collect();
    assert_eq!(has, [true, false, true], "{difficulty:?}");
    assert!(difficulty[1].is_nan() && difficulty[0] < difficulty[2], "{difficulty:?}");
}

/// By the tolerances of other kinds, the posteriors of these crowds are further away.
#[test]
fn the_defaults_end_near_the_limit() {
    let shape = CrowdShape { instances: 200, annotators: 20, ..CrowdShape::default() };
    let loose = Glad { gradient_tol: 1e-2, stop: StopRule::default(), ..Glad::default() };
    let mut furthest = [0.0_f64; 2];
    for seed in 0..3 {
        let rows = shape.draw(seed).rows;
        let dims = tiny(shape.classes as usize, &rows).dims();
        let posterior = |spec: Glad| fit(spec, &annotations(dims, &rows)).posterior;
        let end =
            Glad { gradient_tol: 1e-9, max_steps: 200, stop: iterations(100), ..Glad::default() };
        let end = posterior(end).dense().values().to_vec();
        for (furthest, spec) in furthest.iter_mut().zip([Glad::default(), loose.clone()]) {
            let gaps = posterior(spec)
                .dense()
                .values()
                .iter()
                .zip(&end)
                .map(|(p, q)| (p - q).abs())
                .collect::<Vec<_>>();
            *furthest = gaps.into_iter().fold(*furthest, f64::max);
        }
    }
    assert!(furthest[0] < 1e-3 && furthest[1] > 1e-3, "{furthest:?}");
}

#[test]
fn an_m_step_can_be_interrupted() {
    let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1)]);
    let (spec, cancel) = (Glad::default(), Cancel::default());
    let mut params = spec.params(&a);
    assert!(cancel.request(15));
    spec.start(&a, 0, &mut params, &JobContext::new(0));
    let ended = spec.m_step(&a, &mut params, &cancel);
    assert_eq!(ended.unwrap_err().exit_code(), 143);
}

#[test]
fn an_adversary_has_a_negative_ability() {
    let row = |i: u32, r: u32| (i, r, if r == 3 { 1 - i % 2 } else { i % 2 });
    let rows: Vec<_> = (0..80).map(|n| row(n / 4, n % 4)).collect();
    let fitted = fit(Glad::default(), &tiny(2, &rows));
    let ability = &fitted.report.annotator_parameters[0].1;
    assert!(ability[3] < 0.0 && ability[0] > 1.0, "{ability:?}");
}

/// Of two classes, the given prior alone decides a tie; its terms are those of the first E-step.
// keys: glad.class_prior
#[test]
fn a_given_prior_weighs_the_classes() {
    let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1)]);
    let first = |class_prior| {
        let spec = Glad { class_prior, ..Glad::default() };
        let mut params = spec.params(&a);
        spec.start(&a, 0, &mut params, &JobContext::new(0));
        params.t.row(0)[0]
    };
    assert!((first(None) - 0.5).abs() < 1e-12);
    let shares = Some(vec![0.2, 0.8]);
    assert!((first(shares.clone()) - 0.2).abs() < 1e-12);
    let given = fit(Glad { class_prior: shares.clone(), ..Glad::default() }, &a);
    assert!(given.posterior.row(0)[0] < 0.2, "{:?}", given.posterior.row(0));
    assert_eq!(given.report.prior, shares);
    let spec = Glad { class_prior: Some(vec![1.0]), ..Glad::default() };
    let model = crate::model::em::Em(spec);
    let error = crate::model::Model::fit(&model, (&a).into(), &mut JobContext::new(0)).unwrap_err();
    assert!(error.to_string().contains("found: 1 shares, 2 classes"), "{error}");
}

/// Without annotations a parameter is at the mean of its prior; a small variance keeps it there with annotations too.
// keys: glad.ability_mean, glad.ability_variance, glad.easiness_mean, glad.easiness_variance
#[test]
fn parameters_are_drawn_to_the_means_of_their_priors() {
    let rows: Vec<_> =
        (0..40).map(|n| (n / 4, n % 4, (n / 4 + u32::from(n % 4 == 3)) % 2)).collect();
    let near = Glad {
        ability_mean: 2.0,
        ability_variance: 0.001,
        easiness_mean: -0.5,
        easiness_variance: 0.001,
        ..Glad::default()
    };
    let fitted = fit(near.clone(), &tiny(2, &rows));
    let [(_, ability), (_, difficulty)] =
        [&fitted.report.annotator_parameters[0], &fitted.report.instance_parameters[0]];
    assert!(ability.iter().all(|a| (a - 2.0).abs() < 0.05), "{ability:?}");
    assert!(difficulty.iter().all(|d| (d.ln() - 0.5).abs() < 0.05), "{difficulty:?}");
    let wide = Glad { ability_variance: 4.0, ..near };
    let free = &fit(wide, &tiny(2, &rows)).report.annotator_parameters[0].1;
    assert!(free[3] < 0.0 && free[0] > 2.1, "{free:?}");
}

/// The value and the gradient of the M-step at other means and variances than 1.
#[test]
fn the_gradient_is_that_of_the_value_with_other_priors() {
    let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 1)]);
    let spec = Glad {
        ability_mean: 0.5,
        ability_variance: 2.0,
        easiness_mean: -1.0,
        easiness_variance: 0.25,
        ..Glad::default()
    };
    let t = Posterior::from_votes(&a);
    let mut objective = MStepObjective::new(&spec, &a, &t);
    let (x, mut gradient, mut ignored) = ([0.3, -0.2, 0.4, 0.1], vec![0.0; 4], vec![0.0; 4]);
    objective.value(&x, &mut gradient);
    for (n, got) in gradient.iter().enumerate() {
        let mut at = |d: f64| {
            let mut x = x;
            x[n] += d;
            objective.value(&x, &mut ignored)
        };
        let want = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((got - want).abs() < 1e-6 * want.abs().max(1.0), "{n}: {got} is not {want}");
    }
}
