use super::*;
use crate::model::Model;
use crate::model::em::Em;
use crate::model::em::kernels::LogLikelihood as _;
use crate::testing::{annotations, assert_close, fit, iterations, tiny, toy, weighted};

fn exact(strength: f64, n: u32) -> Mmce {
    let stop = iterations(n);
    Mmce { strength, gradient_tol: 1e-9, max_steps: 300, stop, ..Mmce::default() }
}

// keys: mmce.strength
/// Figures of a program in numpy and scipy that solves each M-step to 1e-11.
#[test]
fn the_toy_crowd_is_that_of_the_reference() {
    let rows = |n: u32, i: usize| fit(exact(0.01, n), &toy()).posterior.row(i).to_vec();
    assert_close(&rows(1, 0), &[0.628_808_5, 0.357_781_3, 0.013_410_2], 1e-6, "T0");
    assert_close(&rows(1, 5), &[0.032_222_6, 0.479_159_3, 0.488_618_1], 1e-6, "T5");
    assert_close(&rows(2, 0), &[0.549_162_6, 0.429_868_4, 0.020_969_1], 1e-6, "T0");
    assert_close(&rows(2, 5), &[0.070_488_9, 0.418_738_6, 0.510_772_6], 1e-6, "T5");
    let fitted = fit(exact(0.01, 200), &toy());
    assert_close(&fitted.posterior.row(4), &[0.003_149_4, 0.765_643_2, 0.231_207_5], 1e-6, "T4");
    let difficulty = [0.934_030, 0.713_680, 1.003_994, 1.006_553, 0.972_267, 0.963_378];
    assert_close(&fitted.report.instance_parameters[0].1, &difficulty, 2e-6, "difficulty");
    // S of annotator 0, without its mean, which the squares keep at 0.
    let s = [[0.767_727, -0.964_552, 0.196_825], [-0.011_684, 0.321_352, -0.309_668]];
    let confusion = fitted.report.confusion.unwrap();
    for (k, s) in s.iter().enumerate() {
        let mut want = [0.0; 3];
        softmax(s, &mut want);
        let got: Vec<f64> = (0..3).map(|label| confusion.column(&toy(), 0, label)[k]).collect();
        assert_close(&got, &want, 2e-6, "softmax of S");
    }
}

/// The default strength outweighs the three or four annotations of an annotator.
#[test]
fn a_fit_that_ends_uniform_says_so() {
    let warnings = |spec: Mmce| {
        let (a, mut job) = (toy(), JobContext::new(0));
        let fitted = Em(spec).fit((&a).into(), &mut job).unwrap();
        (fitted, job.warnings().join("\n"))
    };
    let (fitted, warning) = warnings(exact(0.25, 60));
    for i in 0..6 {
        assert_close(&fitted.posterior.row(i), &[1.0 / 3.0; 3], 1e-5, "T");
    }
    assert!(warning.contains("nearly uniform") && warning.contains("strength"), "{warning}");
    assert!(!warnings(exact(0.01, 60)).1.contains("nearly uniform"));
}

// keys: mmce.instance_strength, mmce.max_steps, mmce.gradient_tol
#[test]
fn strong_squares_make_instances_alike_and_few_steps_end_elsewhere() {
    let spec = exact(0.01, 5);
    let difficulty = |spec: Mmce| fit(spec, &toy()).report.instance_parameters[0].1.clone();
    let strong = difficulty(Mmce { instance_strength: 1e6, ..spec.clone() });
    assert_close(&strong, &[3.0_f64.ln(); 6], 1e-6, "difficulty");
    let exact = difficulty(spec.clone());
    let gap = |other: Vec<f64>| -> f64 {
        other.iter().zip(&exact).map(|(d, e)| (d - e).abs()).fold(0.0, f64::max)
    };
    assert!(gap(difficulty(Mmce { max_steps: 1, ..spec.clone() })) > 1e-4);
    assert!(gap(difficulty(Mmce { gradient_tol: 0.5, ..spec })) > 1e-4);
}

/// The parameters of the first annotator, moved one by one.
#[test]
fn an_m_step_ends_where_the_objective_is_flat() {
    let rows: Vec<_> = (0..24).map(|n| (n / 4, n % 4, (n / 4 + n * n % 7 / 4) % 4)).collect();
    let weights = (0..24).map(|n| [1.0, 0.25, 1.0, 2.5][n * n % 7 % 4]).collect();
    let a = weighted(Dims { instances: 6, annotators: 4, classes: 3, labels: 4 }, &rows, weights);
    let spec = exact(0.02, 1);
    let mut params = spec.params(&a);
    spec.start(&a, 0, &mut params, &JobContext::new(0));
    spec.m_step(&a, &mut params, &Cancel::default()).unwrap();
    // F of W, which was moved last.
    let value = |params: &Params| {
        let mut sum = -params.strengths[1] / 2.0 * squares(&params.instances);
        for i in 0..6 {
            for (r, y, weight) in a.triples_of_instance(i) {
                let mut logs = [0.0; 3];
                let (annotators, instances) = (&params.annotators, &params.instances);
                Confusions { annotators, instances, n_labels: 4 }.add(i, r, y, &mut logs);
                let t = params.t.row(i);
                sum += weight * logs.iter().zip(t).map(|(l, t)| l * t).sum::<f64>();
            }
        }
        sum
    };
    for n in 0..params.instances.len() {
        let mut at = |d: f64| {
            params.instances[n] += d;
            let value = value(&params);
            params.instances[n] -= d;
            value
        };
        let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!(slope.abs() < 1e-5, "{n}: {slope}");
    }
}

/// The labels of instance 0 differ, which its own confusions explain: the entropy is below ln 2.
#[test]
fn an_instance_that_draws_annotators_to_labels_has_a_lower_entropy() {
    let rows: Vec<_> = (0..200)
        .map(|n| (n / 5, n % 5, if n < 5 { u32::from(n % 5 > 2) } else { n / 5 % 2 }))
        .collect();
    let fitted = fit(Mmce { strength: 0.05, ..Mmce::default() }, &tiny(2, &rows));
    let difficulty = &fitted.report.instance_parameters[0].1;
    assert!(difficulty[0] < 0.6 && difficulty[1..].iter().all(|d| *d > 0.69), "{difficulty:?}");
    let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
    let rows = [(0, 0, 0), (0, 1, 0), (2, 0, 1), (2, 1, 0)];
    let fitted = fit(Mmce::default(), &annotations(dims, &rows));
    let has: Vec<bool> =
        fitted.report.instance_parameters[0].1.iter().map(|d| d.is_finite()).collect();
    assert_eq!(has, [true, false, true]);
}

#[test]
fn an_m_step_can_be_interrupted() {
    let (a, spec, cancel) = (toy(), Mmce::default(), Cancel::default());
    let mut params = spec.params(&a);
    spec.start(&a, 0, &mut params, &JobContext::new(0));
    assert!(cancel.request(15));
    assert_eq!(spec.m_step(&a, &mut params, &cancel).unwrap_err().exit_code(), 143);
}

/// S and W of 2 x 3 cells for 4 annotators and 10 instances.
#[test]
fn the_memory_is_that_of_the_parameters() {
    let dims = Dims { instances: 10, annotators: 4, classes: 2, labels: 3 };
    let sizes = QuestionSizes { dims, annotations: 1, pairs: 5, gold_roles: Vec::new() };
    let want = MemoryEstimate { posteriors: 160, matrices: 8 * (24 + 10), working: 8 * 14 * 6 };
    assert_eq!(Mmce::memory_estimate(&sizes), Some(want));
}
