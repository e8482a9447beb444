//! The toy crowd with hand-checked numbers: six items, four annotators, three classes.

use labelmill::job_context::JobContext;
use labelmill::model::em::{
    ConalEm, DawidSkene, FastDawidSkene, FastStart, Glad, Ibcc, Mace, MaceMethod, OneCoin, Snorkel,
    StopRule, WorkerClustering,
};
use labelmill::model::fitted::Fitted;
use labelmill::model::posterior::{Posterior, best};
use labelmill::model::{Model, Spec, vote::MajorityVote};
use labelmill::testing::dense::{self, DenseModel};
use labelmill::testing::{self, iterations, objectives, toy};

use crate::support::assert_close;

const TOLERANCE: f64 = 1e-6;

fn fit(spec: impl Spec) -> Fitted {
    testing::fit(spec, &toy())
}

fn dawid_skene(smoothing: f64, n: u32) -> Fitted {
    fit(DawidSkene { smoothing, stop: iterations(n), ..DawidSkene::maximum_likelihood() })
}

#[test]
fn vote_shares_are_the_starting_posterior() {
    let t = Posterior::from_votes(&toy());
    assert_close(t.row(0), &[0.666_667, 0.333_333, 0.0], TOLERANCE, "T0");
    assert_close(t.row(2), &[0.333_333, 0.0, 0.666_667], TOLERANCE, "T2");
    assert_close(t.row(4), &[0.0, 0.75, 0.25], TOLERANCE, "T4");
    assert_close(t.row(5), &[0.0, 0.5, 0.5], TOLERANCE, "T5");
}

#[test]
fn the_skill_of_majority_vote_is_the_share_of_votes_with_the_majority() {
    let fitted = MajorityVote::default().fit((&toy()).into(), &mut JobContext::new(0)).unwrap();
    assert_close(&fitted.report.skill, &[0.8, 0.75, 0.75, 0.6], TOLERANCE, "skill");
}

#[test]
fn dawid_skene_is_that_of_the_reference_after_one_e_step() {
    let fitted = dawid_skene(0.0, 1);
    assert_close(&objectives(&fitted), &[-13.767_316], TOLERANCE, "LL");
    let t = fitted.posterior.dense();
    assert_close(t.row(0), &[0.892_857, 0.107_143, 0.0], TOLERANCE, "T0");
    assert_close(t.row(2), &[0.112_285, 0.0, 0.887_715], TOLERANCE, "T2");
    assert_close(t.row(4), &[0.0, 0.982_311, 0.017_689], TOLERANCE, "T4");
    assert_close(t.row(5), &[0.0, 0.447_368, 0.552_632], TOLERANCE, "T5");
    let prior = fitted.report.prior.unwrap();
    assert_close(&prior, &[0.317_096, 0.422_804, 0.260_100], TOLERANCE, "q");
}

#[test]
fn dawid_skene_is_that_of_the_reference_after_five_e_steps() {
    let fitted = dawid_skene(0.0, 5);
    let ll = [-13.767_316, -11.559_386, -10.791_753, -10.750_848, -10.750_557];
    assert_close(&objectives(&fitted), &ll, TOLERANCE, "LL");
    assert_close(&fitted.posterior.row(5), &[0.0, 0.442_596, 0.557_404], TOLERANCE, "T5");
    let prior = fitted.report.prior.clone().unwrap();
    assert_close(&prior, &[0.333_333, 0.407_099, 0.259_567], TOLERANCE, "q");
    let confusion = fitted.report.confusion.unwrap();
    let a = toy();
    let pi: Vec<Vec<f64>> = (0..3).map(|label| confusion.column(&a, 0, label)).collect();
    assert_close(&pi[0], &[1.0, 0.0, 0.0], TOLERANCE, "pi[0][.][0]");
    assert_close(&pi[1], &[0.0, 0.818_801, 0.0], TOLERANCE, "pi[0][.][1]");
    assert_close(&pi[2], &[0.0, 0.181_199, 1.0], TOLERANCE, "pi[0][.][2]");
}

// keys: dawid_skene.fixed_prior, one_coin.fixed_prior
#[test]
fn a_fixed_prior_stays_uniform_and_out_of_the_posterior() {
    let fitted = fit(DawidSkene {
        fixed_prior: true,
        stop: iterations(1),
        ..DawidSkene::maximum_likelihood()
    });
    // .447368 and .552632 are the posterior with the learned prior, (5 / 18, .430556, .291667), which is divided out.
    let t5 = [0.0, 0.447_368 / 0.430_556, 0.552_632 / 0.291_667];
    let sum: f64 = t5.iter().sum();
    assert_close(&fitted.posterior.row(5), &t5.map(|p| p / sum), 2e-6, "T5");
    let one_coin =
        OneCoin { fixed_prior: true, stop: iterations(5), ..OneCoin::maximum_likelihood() };
    for prior in [fitted.report.prior.unwrap(), fit(one_coin).report.prior.unwrap()] {
        assert_close(&prior, &[1.0 / 3.0; 3], 1e-15, "q");
    }
}

#[test]
fn smoothed_dawid_skene_has_the_likelihoods_of_the_reference() {
    let fitted = dawid_skene(0.1, 5);
    let ll = objectives(&fitted);
    assert_close(&[ll[0], ll[4]], &[-14.851_215, -12.354_825], TOLERANCE, "LL");
    assert_close(&fitted.posterior.row(0), &[0.991_850, 0.005_026, 0.003_125], TOLERANCE, "T0");
    assert_close(&fitted.posterior.row(5), &[0.017_987, 0.556_713, 0.425_300], TOLERANCE, "T5");
}

/// With as strong a prior, the log-likelihood falls in many steps, by up to 0.27; its sum with the log-prior never does.
/// It is the value that the loop compares: at this tolerance, of 0.02, the log-likelihood turns within step 4.
#[test]
fn with_a_strong_prior_the_penalised_objective_never_falls() {
    for (smoothing, diagonal) in [(1.0, 0.0), (0.5, 2.0), (3.0, 0.0), (1.0, 5.0), (50.0, 0.0)] {
        let spec = DawidSkene {
            smoothing,
            diagonal,
            stop: iterations(40),
            ..DawidSkene::maximum_likelihood()
        };
        let fitted = fit(spec);
        let falls = objectives(&fitted).windows(2).any(|pair| pair[1] < pair[0] - 1e-5);
        assert!(falls, "{smoothing} {diagonal}: the log-likelihood never falls");
        for row in &fitted.trace {
            let change = row.change.unwrap_or(0.0);
            assert!(change > -1e-12, "{smoothing} {diagonal}, step {}: {change}", row.step);
        }
    }
}

#[test]
fn one_coin_is_that_of_the_reference_after_five_e_steps() {
    let fitted = fit(OneCoin { stop: iterations(5), ..OneCoin::maximum_likelihood() });
    let ll = [-18.695_738, -18.464_520, -18.305_592, -18.159_151, -18.036_871];
    assert_close(&objectives(&fitted), &ll, TOLERANCE, "LL");
    assert_close(&fitted.posterior.row(5), &[0.033_153, 0.061_533, 0.905_314], TOLERANCE, "T5");
    let skill = [0.959_430, 0.711_226, 0.726_814, 0.420_075];
    assert_close(&fitted.report.skill, &skill, TOLERANCE, "s");
}

/// Instance 5 is a tie of classes 1 and 2: the lower one is chosen, as in the reference.
#[test]
fn fast_dawid_skene_has_the_labels_of_the_reference() {
    for start in [FastStart::Votes, FastStart::DawidSkene] {
        let fitted = fit(FastDawidSkene { start, ..FastDawidSkene::default() });
        let labels: Vec<_> = (0..6).map(|i| best(&fitted.posterior.row(i)).unwrap().0).collect();
        let (of_votes, of_hybrid) = ([0, 1, 2, 0, 1, 1], [0, 1, 2, 0, 1, 2]);
        assert_eq!(labels, if start == FastStart::Votes { of_votes } else { of_hybrid });
    }
}

/// From theta = 1, computed with arrays of numpy and a maximum found by halving.
#[test]
fn snorkel_has_the_likelihoods_of_the_reference_after_five_iterations() {
    let fitted = fit(Snorkel { stop: iterations(5), ..Snorkel::default() });
    let ll = [-18.494_132, -18.378_172, -18.323_110, -18.290_743, -18.272_529];
    assert_close(&objectives(&fitted), &ll, TOLERANCE, "LL");
    assert_close(&fitted.posterior.row(0), &[0.896_216, 0.083_416, 0.020_368], TOLERANCE, "T0");
    assert_close(&fitted.posterior.row(5), &[0.073_000, 0.103_194, 0.823_807], TOLERANCE, "T5");
    let theta = &fitted.report.annotator_parameters[0].1;
    assert_close(theta, &[1.224_441, 0.685_065, 0.707_074, 0.170_996], TOLERANCE, "theta");
    let accuracy = [0.852_675, 0.663_065, 0.672_827, 0.413_102];
    assert_close(&fitted.report.skill, &accuracy, TOLERANCE, "accuracy");
}

#[test]
fn conal_em_is_that_of_the_reference_after_five_e_steps() {
    let fitted = fit(ConalEm { stop: iterations(5), ..ConalEm::default() });
    let ll = [-15.616_599, -13.929_902, -12.688_995, -11.956_626, -11.513_627];
    assert_close(&objectives(&fitted), &ll, TOLERANCE, "LL");
    assert_close(&fitted.posterior.row(5), &[0.000_472, 0.656_632, 0.342_896], TOLERANCE, "T5");
    let (name, om) = &fitted.report.annotator_parameters[0];
    assert_eq!(name, "common_share");
    assert_close(om, &[0.365_961, 0.317_214, 0.331_136, 0.082_877], TOLERANCE, "om");
    let pg = [
        [0.975_956, 0.016_701, 0.007_343],
        [0.004_250, 0.951_039, 0.044_711],
        [0.053_887, 0.022_588, 0.923_525],
    ];
    assert_close(&fitted.report.common.unwrap().probability, &pg.concat(), TOLERANCE, "pg");
}

/// From knows = 1/2 and uniform spam, computed with arrays of numpy, annotation by annotation.
#[test]
fn mace_has_the_objectives_of_the_reference_after_five_iterations() {
    for (method, objective, t0, t5, knows) in [
        (
            MaceMethod::Vb,
            [-23.181_813, -22.951_603, -22.760_015, -22.609_706, -22.501_515],
            [0.936_574, 0.052_353, 0.011_074],
            [0.048_399, 0.088_874, 0.862_727],
            [0.881_853, 0.557_974, 0.572_487, 0.200_589],
        ),
        (
            MaceMethod::Em,
            [-17.856_094, -17.340_102, -16.917_439, -16.546_447, -16.244_016],
            [0.996_513, 0.002_533, 0.000_954],
            [0.090_807, 0.114_982, 0.794_210],
            [0.887_420, 0.680_390, 0.618_492, 0.088_734],
        ),
    ] {
        let fitted = fit(Mace { method, restarts: 0, stop: iterations(5) });
        assert_close(&objectives(&fitted), &objective, TOLERANCE, "objective");
        assert_close(&fitted.posterior.row(0), &t0, TOLERANCE, "T0");
        assert_close(&fitted.posterior.row(5), &t5, TOLERANCE, "T5");
        assert_close(&fitted.report.skill, &knows, TOLERANCE, "knows");
    }
}

#[test]
fn ibcc_has_the_bounds_of_the_reference_after_five_loops() {
    let fitted = fit(Ibcc { stop: iterations(5), ..Ibcc::default() });
    let elbo = [-21.973_323, -21.532_815, -21.490_083, -21.484_586, -21.483_217];
    assert_close(&objectives(&fitted), &elbo, TOLERANCE, "ELBO");
    assert_close(&fitted.posterior.row(5), &[0.043_077, 0.650_990, 0.305_933], TOLERANCE, "T5");
    // nu and al of the fifth iteration follow from the posteriors of the fourth.
    let fitted = fit(Ibcc { stop: iterations(4), ..Ibcc::default() });
    let nu: Vec<f64> = fitted.report.prior.unwrap().iter().map(|q| 9.0 * q).collect();
    assert_close(&nu, &[2.999_609, 3.699_003, 2.301_389], TOLERANCE, "nu");
    let al = [
        [4.942_011, 1.002_891, 1.098_187],
        [1.052_289, 5.989_985, 1.650_639],
        [1.005_699, 1.007_123, 5.251_175],
    ];
    let confusion = fitted.report.confusion.unwrap();
    for label in 0..3 {
        let mean = |row: &[f64; 3]| row[label] / row.iter().sum::<f64>();
        let want: Vec<f64> = al.iter().map(mean).collect();
        let got = confusion.column(&toy(), 0, label);
        assert_close(&got, &want, TOLERANCE, &format!("pi[0][.][{label}]"));
    }
}

/// The reference stops after nine iterations; its bound is that of the posteriors of the ninth with the parameters that
/// follow from them, which the loop shows in the tenth, or later.
#[test]
fn worker_clustering_has_the_clusters_of_the_reference_after_nine_iterations() {
    let fitted = fit(WorkerClustering { stop: iterations(9), ..WorkerClustering::default() });
    assert_close(&fitted.posterior.row(5), &[0.0, 0.947_726, 0.052_274], TOLERANCE, "T5");
    let report = &fitted.report;
    let prior = report.prior.as_ref().unwrap();
    assert_close(prior, &[0.333_333, 0.491_288, 0.175_379], TOLERANCE, "rho");
    let parameters = &report.annotator_parameters;
    assert_eq!(parameters[0], ("cluster".to_owned(), vec![1.0, 1.0, 1.0, 0.0]));
    // sum T ln(rho / T) + sum phi ln(tau / phi) + sum over clusters of counts ln lam
    let entropy = |p: f64, q: f64| if p > 0.0 { p * (q / p).ln() } else { 0.0 };
    let mut bound = 0.0;
    for i in 0..6 {
        let row = fitted.posterior.row(i);
        bound += row.iter().zip(prior).map(|(t, q)| entropy(*t, *q)).sum::<f64>();
    }
    for (_, shares) in &parameters[1..] {
        let size = shares.iter().sum::<f64>() / 4.0;
        bound += shares.iter().map(|p| entropy(*p, size)).sum::<f64>();
    }
    for cluster in &report.clusters {
        let cells = cluster.expected_count.iter().zip(&cluster.probability);
        bound += cells.map(|(count, p)| count * p.ln()).sum::<f64>();
    }
    assert!((bound + 14.639_336).abs() < TOLERANCE, "{bound}");
    let end = fit(WorkerClustering { stop: iterations(200), ..WorkerClustering::default() });
    assert_close(&objectives(&end)[199..], &[-14.638_888], TOLERANCE, "the last ELBO");
}

/// The reference parameters are those after sixteen iterations with exact M-steps, within 1e-5 of the limit.
#[test]
fn glad_has_the_parameters_of_the_reference_after_sixteen_loops() {
    let exact = |loops| Glad {
        gradient_tol: 1e-9,
        max_steps: 200,
        stop: iterations(loops),
        ..Glad::default()
    };
    let fitted = fit(exact(16));
    assert_close(&objectives(&fitted)[15..], &[-18.199_395], TOLERANCE, "objective");
    let ability = &fitted.report.annotator_parameters[0].1;
    assert_close(ability, &[1.275_658, 0.727_922, 0.622_315, -0.202_760], 1e-5, "a");
    let difficulty = &fitted.report.instance_parameters[0].1;
    let b: Vec<f64> = difficulty.iter().map(|d| -d.ln()).collect();
    let want = [0.556_142, 0.992_486, 1.452_505, 1.525_857, 0.409_241, 1.226_184];
    assert_close(&b, &want, 1e-5, "b");
    assert_close(&fitted.posterior.row(5), &[0.006_386, 0.006_399, 0.987_215], 1e-5, "T5");
    let end = objectives(&fit(exact(60)));
    assert_close(&end[59..], &end[58..59], 1e-12, "the end");
}

/// The second to the fifth iteration change the objective by 2.208, 0.768, 0.0409 and 0.0003.
// keys: model.stop.tol, model.stop.max_iter
#[test]
fn the_loop_ends_where_the_objective_changes_by_less_than_the_tolerance() {
    let n = toy().len() as f64;
    for (tol, iterations, converged) in
        [(0.1 / n, 4, true), (0.9 / n, 3, true), (3.0 / n, 2, true), (1e-4 / n, 5, false)]
    {
        let stop = StopRule { max_iter: 5, tol, ..StopRule::default() };
        let fitted = fit(DawidSkene { stop, ..DawidSkene::maximum_likelihood() });
        let ended = (fitted.stop.iterations, fitted.stop.converged);
        assert_eq!(ended, (iterations, converged), "{tol}");
        assert_eq!(objectives(&fitted).len(), iterations as usize);
    }
}

// keys: dawid_skene.restarts, one_coin.restarts, ibcc.restarts
#[test]
fn every_model_starts_as_often_as_asked_and_keeps_the_best() {
    let stop = iterations(2);
    let fits = [
        fit(DawidSkene { restarts: 2, stop: stop.clone(), ..DawidSkene::maximum_likelihood() }),
        fit(OneCoin { restarts: 2, stop: stop.clone(), ..OneCoin::maximum_likelihood() }),
        fit(Ibcc { restarts: 2, stop, ..Ibcc::default() }),
    ];
    for fitted in fits {
        let phases: Vec<&str> = fitted.trace.iter().map(|row| row.phase.as_str()).collect();
        assert_eq!(phases, ["em", "em", "restart 1", "restart 1", "restart 2", "restart 2"]);
        let ends: Vec<f64> = objectives(&fitted).into_iter().skip(1).step_by(2).collect();
        assert!(ends[0] != ends[1] && ends[1] != ends[2], "the starts differ: {ends:?}");
        assert_eq!(fitted.stop.objective, ends.iter().copied().max_by(f64::total_cmp), "{ends:?}");
    }
}

/// Where no other start is better than the votes, the posteriors, class shares and matrices are those of a fit that
/// starts once.
#[test]
fn the_parameters_are_those_of_the_best_start() {
    let alone = fit(DawidSkene { stop: iterations(2), ..DawidSkene::maximum_likelihood() });
    let spec = DawidSkene { restarts: 2, stop: iterations(2), ..DawidSkene::maximum_likelihood() };
    let fitted = fit(spec);
    let ends: Vec<f64> = objectives(&fitted).into_iter().skip(1).step_by(2).collect();
    assert!(ends[0] > ends[1] && ends[0] > ends[2], "{ends:?}");
    assert_eq!(fitted.posterior, alone.posterior);
    assert_eq!(fitted.report, alone.report);
}

/// With `max_steps = 1` an M-step ends early. Below the gradient tolerance it takes no step: all abilities stay at 1.
// keys: glad.max_steps, glad.gradient_tol
#[test]
fn an_m_step_ends_after_its_steps_or_where_its_gradient_is_small() {
    let glad = |gradient_tol, max_steps| {
        fit(Glad { gradient_tol, max_steps, stop: iterations(1), ..Glad::default() })
    };
    let unmoved = glad(1e9, 200);
    assert_eq!(unmoved.report.annotator_parameters[0].1, [1.0; 4]);
    // Then every annotation is right with the probability 1 / (1 + exp(-e)).
    assert_close(&unmoved.report.skill, &[0.938_097; 4], TOLERANCE, "skill");
    let (early, exact) = (glad(1e-9, 1), glad(1e-9, 200));
    let [unmoved, early, exact] = [unmoved, early, exact].map(|fitted| objectives(&fitted)[0]);
    assert!(unmoved + 1e-3 < early && early + 1e-3 < exact, "{unmoved} {early} {exact}");
}

#[test]
fn the_naive_dense_fit_agrees() {
    for (smoothing, diagonal) in [(0.0, 0.0), (0.1, 0.0), (0.05, 0.7)] {
        let a = toy();
        let stop = iterations(7);
        let spec = DawidSkene { smoothing, diagonal, stop, ..DawidSkene::maximum_likelihood() };
        let fitted = fit(spec);
        let model = dense::DenseDawidSkene { smoothing, diagonal };
        let naive = dense::fit(&a, &model, 7);
        assert_close(&objectives(&fitted), &naive.log_likelihoods, 1e-9, "LL");
        assert_close(fitted.posterior.dense().values(), &naive.t.concat(), 1e-9, "T");
        let q = model.prior(&naive.class_counts).0;
        assert_close(&fitted.report.prior.unwrap(), &q, 1e-9, "q");
        let confusion = fitted.report.confusion.unwrap();
        for r in 0..4 {
            let pi = model.likelihood(r, &naive.counts[r]).0;
            for label in 0..3 {
                let naive: Vec<f64> = pi.iter().map(|row| row[label]).collect();
                let column = confusion.column(&a, r, label);
                assert_close(&column, &naive, 1e-9, &format!("pi[{r}][.][{label}]"));
            }
        }
    }
}
