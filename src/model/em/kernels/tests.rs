//! E-steps and M-steps compared with a naive implementation in the log domain, for every weight, width and estimator.

use super::dirichlet::Dirichlet;
use super::e_step::Sweep;
use super::log_domain::{self, LogLikelihood};
use super::{Estimator, Likelihood, PairCounts, PairKernel, Prior, Statistics, n_groups};
use crate::frame::{Annotations, Dims};
use crate::model::confusion::Smoothing;
use crate::model::em::pairs::one_coin::OneCoinEstimator;
use crate::model::numerics::{MIN_LIKELIHOOD, MIN_PROBABILITY};
use crate::model::posterior::Posterior;
use crate::testing::dense::{self, DenseModel, Rows};
use crate::testing::{tiny, weighted};

fn close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        let bound = tolerance * want.abs().max(1.0);
        assert!((got - want).abs() <= bound, "{what}, {n}: {got} is not {want}");
    }
}

/// The posteriors and objective of an E-step with these likelihoods, `[pair, class]`.
fn e_step_of(a: &Annotations, prior: Prior<'_>, likelihood: &[[f64; 2]]) -> (Posterior, f64) {
    let mut kernel = PairKernel::new(a);
    kernel.likelihood.rows.cells_mut().copy_from_slice(likelihood.as_flattened());
    (kernel.likelihood.posteriors(a, prior), kernel.sweep(a, prior))
}

/// A kernel that has counted these posteriors.
fn counted(a: &Annotations, t: &Posterior) -> PairKernel {
    let (mut kernel, n) = (PairKernel::new(a), t.n_classes());
    kernel.count(a, |instances, rows| {
        rows.copy_from_slice(&t.values()[instances.start * n..instances.end * n]);
    });
    kernel
}

#[test]
fn ten_thousand_for_and_as_many_against_cancel() {
    // One instance; 10 000 annotators choose class 0, then 10 000 class 1, each with likelihoods 1e-10 and 1.
    let rows: Vec<(u32, u32, u32)> = (0..20_000).map(|r| (0, r, u32::from(r >= 10_000))).collect();
    let least = MIN_PROBABILITY;
    let cell = |r| if r < 10_000 { [1.0, least] } else { [least, 1.0] };
    let likelihood: Vec<[f64; 2]> = (0..20_000).map(cell).collect();
    let (t, objective) = e_step_of(&tiny(2, &rows), Prior::Class(&[0.25, 0.75]), &likelihood);
    close(t.row(0), &[0.25, 0.75], 1e-9, "posterior");
    assert!((objective - 10_000.0 * least.ln()).abs() < 1e-6 * objective.abs());
}

/// The prior excludes class 0; all annotations are 1e-10 times as likely in class 1 as in class 0. Forty factors are a
/// long product, fourteen are not.
#[test]
fn a_class_that_the_prior_excludes_stays_excluded() {
    for n in [14_u32, 40] {
        let rows: Vec<(u32, u32, u32)> = (0..n).map(|r| (0, r, 0)).collect();
        let likelihood = vec![[1.0, MIN_PROBABILITY]; n as usize];
        let (t, objective) = e_step_of(&tiny(2, &rows), Prior::Instance(&[0.0, 1.0]), &likelihood);
        assert_eq!(t.row(0), [0.0, 1.0], "{n}");
        close(&[objective], &[f64::from(n) * MIN_PROBABILITY.ln()], 1e-12, "objective");
    }
}

/// Fourteen of the least likelihoods times the least prior are above the least normal number; fifteen are not, and are
/// multiplied in runs.
#[test]
fn the_longest_plain_product_does_not_underflow() {
    for n in [14_u32, 15] {
        let rows: Vec<(u32, u32, u32)> = (0..n).map(|r| (0, r, 0)).collect();
        let likelihood = vec![[MIN_LIKELIHOOD; 2]; n as usize];
        let (t, objective) = e_step_of(&tiny(2, &rows), Prior::Class(&[1e-27, 1.0]), &likelihood);
        assert!((t.row(0)[0] / 1e-27 - 1.0).abs() < 1e-12, "{n}: {:?}", t.row(0));
        close(&[objective], &[f64::from(n) * MIN_LIKELIHOOD.ln()], 1e-12, "objective");
    }
}

/// The share of label 1 in class 0 is 1e-25: of an annotator with a weight of 1e15 there, or of one with a single annotation
/// and a diagonal of 1e15.
#[test]
fn smaller_likelihoods_are_raised_to_the_least_one() {
    for (annotator, diagonal) in [(0, 0.0), (1, 1e15)] {
        // With many others few annotations have a weight other than 1, and rows do not hold logarithms.
        for (weight, others) in [(1.0, 0), (0.5, 0), (1.0, 90)] {
            let others = (0..others).map(|n| (2 + n, 2, n % 2));
            let rows: Vec<_> = [(0, 0, 0), (1, annotator, 1)].into_iter().chain(others).collect();
            let mut weights = vec![1.0; rows.len()];
            weights[..2].copy_from_slice(&[1e15, weight]);
            let a = weighted(tiny(2, &rows).dims(), &rows, weights);
            let mut kernel = counted(&a, &Posterior::from_votes(&a));
            kernel.estimate(&a, &mut Smoothing::new(&a, 0.0, diagonal));
            let t = kernel.likelihood.posteriors(&a, Prior::Class(&[0.5, 0.5]));
            let (got, want) = (t.row(1)[0], MIN_LIKELIHOOD.powf(weight));
            let what = format!("{annotator} {weight} of {}", rows.len());
            assert!((got / want - 1.0).abs() < 1e-8, "{what}: {got} is not {want}");
        }
    }
}

/// Three annotators with many annotations, and singletons; one instance with so many annotations that they are
/// multiplied in runs, one without annotations, and two trusted instances, one of them without annotations; annotator
/// indices that do not occur. Every `interval`-th annotation has a weight; none if `interval` is 0.
fn crowd(n_classes: usize, interval: usize) -> Annotations {
    let regular = (0..90_u32).map(|n| (n / 3, n % 3, n * n / 7 + n / 3));
    let once = (0..30).map(|i| (i, 10 + i, i * 5 / 3));
    let many = (0..20).map(|r| (7, 100 + r, r)).chain((0..5).map(|r| (8, 200 + r, r)));
    let label = |(i, r, l)| (i, r, l % (n_classes as u32 + 1));
    let rows: Vec<(u32, u32, u32)> = regular.chain(once).chain(many).map(label).collect();
    let dims = Dims { instances: 32, annotators: 205, classes: n_classes, labels: n_classes + 1 };
    let mut a = weighted(dims, &rows, weights(rows.len(), interval));
    a.trusted = Some((0..32).map(|i| (i == 4 || i == 31).then_some(1)).collect());
    a
}

/// A weight other than 1 for every `interval`-th of `n` annotations; for none if `interval` is 0.
fn weights(n: usize, interval: usize) -> Vec<f64> {
    let weight = |n: usize| {
        let is_weighted = interval > 0 && n.is_multiple_of(interval);
        if is_weighted { [0.5, 0.3, 1.7][n / interval % 3] } else { 1.0 }
    };
    (0..n).map(weight).collect()
}

/// Crowds of few and of many classes, with no weight, one, a few, and a weight for each annotation.
fn crowds() -> impl Iterator<Item = (Annotations, String)> {
    [2, 3, 4, 5, 8, 9, 16, 20].into_iter().flat_map(|n_classes| {
        [0, 1000, 40, 1].map(|interval| {
            (crowd(n_classes, interval), format!("{n_classes} classes, interval {interval}"))
        })
    })
}

/// A prior that all instances share, and one for each instance, which excludes some classes.
fn priors(a: &Annotations) -> (Vec<f64>, Vec<f64>) {
    let n = a.dims().classes;
    let shared = (1..=n).map(|k| k as f64 / 78.0).collect();
    let probability = |n: usize| if n % 13 == 5 { 0.0 } else { 0.05 + (n * n % 11) as f64 / 12.0 };
    (shared, (0..a.dims().instances * n).map(probability).collect())
}

fn rows_of(t: &Posterior) -> Rows {
    (0..t.len()).map(|i| t.row(i).to_vec()).collect()
}

/// An M-step from the votes and an E-step give the naive posteriors, their counts, log-likelihood and terms of the prior.
fn assert_naive<E: Estimator>(estimator: impl Fn(&Annotations) -> E, naive: &impl DenseModel) {
    for (a, of) in crowds() {
        let start = Posterior::from_votes(&a);
        let mut estimator = estimator(&a);
        let (likelihood, terms) = dense::likelihoods(naive, &dense::counts(&a, &rows_of(&start)));
        let (shared, per_instance) = priors(&a);
        for prior in [Prior::Class(&shared), Prior::Instance(&per_instance)] {
            let row = |i| prior.row(i, a.dims().classes).to_vec();
            let (want, marginal) = dense::e_step(&a, row, |_, r, k, l| likelihood[r][k][l]);
            let what = format!("{of}, {prior:?}");
            let mut kernel = counted(&a, &start);
            // The second one finds what the first one left in the padding.
            kernel.estimate(&a, &mut estimator);
            kernel.estimate(&a, &mut estimator);
            let (t, got) = (kernel.likelihood.posteriors(&a, prior), kernel.sweep(&a, prior));
            close(t.values(), &want.concat(), 1e-12, &what);
            close(&[got], &[marginal], 1e-12, &what);
            // Without the floor of counts, which adds 1e-10 to a cell that has none.
            close(&[kernel.terms()], &[terms], 1e-7, &what);
            let counts = dense::counts(&a, &rows_of(&t));
            let counts: Vec<f64> = (0..a.n_pairs())
                .flat_map(|pair| {
                    let of = &counts[a.annotator_of_pair(pair as u32) as usize];
                    let label = a.label_of_pair(pair as u32) as usize;
                    of.iter().map(move |row| row[label])
                })
                .collect();
            close(&super::expected_counts_of(&a, &t), &counts, 1e-12, &what);
            close(&kernel.expected_counts(&a), &counts, 1e-12, &what);
        }
    }
}

#[test]
fn every_weight_width_and_prior_gives_the_naive_posteriors() {
    for (smoothing, diagonal) in [(0.0, 0.0), (0.1, 0.0), (0.0, 2.0), (0.1, 1.0)] {
        let naive = dense::DenseDawidSkene { smoothing, diagonal };
        assert_naive(|a| Smoothing::new(a, smoothing, diagonal), &naive);
    }
}

#[test]
fn one_coin_gives_the_naive_posteriors() {
    for (right, wrong) in [(0.0, 0.0), (2.0, 0.5)] {
        let estimator = |a: &Annotations| OneCoinEstimator::new(right, wrong, a.dims().labels);
        assert_naive(estimator, &dense::DenseOneCoin { right, wrong });
    }
}

#[test]
fn ibcc_gives_the_naive_posteriors() {
    for (diagonal, off_diagonal) in [(4.0, 1.0), (0.7, 0.3)] {
        let estimator = |a: &Annotations| Dirichlet::new(diagonal, off_diagonal, a.dims().labels);
        assert_naive(estimator, &dense::DenseIbcc { class: 1.0, diagonal, off_diagonal });
    }
}

/// Smoothed shares, where each annotator has a pseudo-count of its own, as a model with parameters of annotators has.
struct OwnSmoothing {
    n_labels: usize,
}

impl OwnSmoothing {
    fn pseudo_count(annotator: usize) -> f64 {
        0.25 + (annotator * 7 % 11) as f64
    }
}

impl Estimator for OwnSmoothing {
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { index, n_classes, rows, .. } = own;
        let (own, step) = (Self::pseudo_count(index as usize), W * n_groups::<W>(n_classes));
        let cells = rows.as_flattened_mut();
        for k in 0..n_classes {
            let sum: f64 = cells[k..].iter().step_by(step).sum();
            let of_class = cells[k..].iter_mut().step_by(step);
            of_class.for_each(|cell| *cell = (*cell + own) / (sum + own * self.n_labels as f64));
        }
        own.ln()
    }
}

impl DenseModel for OwnSmoothing {
    fn prior(&self, _: &[f64]) -> (Vec<f64>, f64) {
        unreachable!("the tests of kernels set the prior")
    }

    fn likelihood(&self, annotator: usize, counts: &Rows) -> (Rows, f64) {
        let own = Self::pseudo_count(annotator);
        let row = |counts: &Vec<f64>| {
            let sum = counts.iter().sum::<f64>() + own * counts.len() as f64;
            counts.iter().map(|count| (count + own) / sum).collect()
        };
        (counts.iter().map(row).collect(), own.ln())
    }
}

#[test]
fn an_estimator_gets_the_annotator_of_the_counts() {
    let estimator = |a: &Annotations| OwnSmoothing { n_labels: a.dims().labels };
    assert_naive(estimator, &OwnSmoothing { n_labels: 0 });
}

/// Statistics of adjacent ranges merge into those of one sweep over both, but for rounding.
#[test]
fn merged_statistics_are_those_of_the_joined_range() {
    let a = crowd(5, 40);
    let likelihood = Likelihood::estimated(
        &a,
        &super::expected_counts_of(&a, &Posterior::from_votes(&a)),
        &Smoothing::new(&a, 0.1, 0.0),
    );
    let sweep = |instances: std::ops::Range<usize>| {
        let mut statistics = Statistics::new(a.n_pairs(), 5, instances.clone());
        let (range, prior) = (a.range(instances), Prior::Class(&[0.2; 5]));
        Sweep { range, prior, likelihood: &likelihood }.run(5, Some(&mut statistics), None);
        statistics
    };
    let (whole, mut merged) = (sweep(0..32), sweep(0..9));
    merged.merge(&sweep(9..20)).unwrap();
    merged.merge(&sweep(20..32)).unwrap();
    assert_eq!(merged.instances, 0..32);
    close(merged.counts.cells(), whole.counts.cells(), 1e-13, "counts");
    close(&merged.class_counts, &whole.class_counts, 1e-13, "class counts");
    close(&[merged.log_likelihood], &[whole.log_likelihood], 1e-13, "log-likelihood");
}

/// P(label given class) of every annotator, `[annotator][class][label]`.
struct MatrixPerAnnotator(Vec<Rows>);

impl LogLikelihood for MatrixPerAnnotator {
    fn add(&self, _: usize, annotator: u32, label: u32, logs: &mut [f64]) {
        let matrix = &self.0[annotator as usize];
        logs.iter_mut().zip(matrix).for_each(|(log, row)| *log += row[label as usize].ln());
    }
}

#[test]
fn sums_of_logarithms_give_the_same_e_step_as_products_over_pairs() {
    for (a, of) in crowds() {
        let start = Posterior::from_votes(&a);
        let counts = dense::counts(&a, &rows_of(&start));
        let naive = dense::DenseDawidSkene { smoothing: 0.1, diagonal: 1.0 };
        let likelihood = MatrixPerAnnotator(dense::likelihoods(&naive, &counts).0);
        let mut smoothing = Smoothing::new(&a, 0.1, 1.0);
        let (shared, per_instance) = priors(&a);
        for prior in [Prior::Class(&shared), Prior::Instance(&per_instance)] {
            let (mut kernel, mut got) = (counted(&a, &start), start.clone());
            kernel.estimate(&a, &mut smoothing);
            let want = kernel.likelihood.posteriors(&a, prior);
            let objective = kernel.sweep(&a, prior);
            let of_logs = log_domain::e_step(&a, prior, &likelihood, &mut got);
            close(got.values(), want.values(), 1e-12, &of);
            close(&[of_logs], &[objective], 1e-12, &of);
        }
    }
}
