//! E-steps and M-steps compared with a naive implementation in the log domain, for every strategy and estimator.

use super::dense::DenseColumns;
use super::dirichlet::Dirichlet;
use super::e_step::e_step;
use super::log_domain::{self, LogLikelihood};
use super::m_step::Columns;
use super::padded_matrix::PaddedMatrix;
use super::posterior_rows::chunk_len;
use super::prior::Prior;
use crate::frame::{Annotations, Dims};
use crate::model::confusion::Smoothing;
use crate::model::em::kernels::{
    Annotator, ColumnModel, CountStrategy, Estimator, SingletonInput, stride,
};
use crate::model::em::one_coin::OneCoinEstimator;
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

/// The posteriors and objective of an E-step with these likelihoods, `[column, class]`.
fn e_step_of(a: &Annotations, prior: Prior<'_>, likelihood: &[[f64; 2]]) -> (Posterior, f64) {
    let mut cells = PaddedMatrix::zeros(likelihood.len(), 2);
    cells.cells_mut().copy_from_slice(likelihood.as_flattened());
    let columns = Columns::Dense(DenseColumns { cells, are_logs: false });
    let mut t = Posterior::zeros(a.dims().instances, 2);
    let mut parts = super::ranges::parts(a, CountStrategy::Gather);
    let objective =
        e_step(a, prior, &columns, &Smoothing::new(a, 0.0, 0.0), Some(&mut t), &mut parts);
    (t, objective)
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
    use CountStrategy::{Gather, Scatter, SparseGather};
    for (annotator, diagonal) in [(0, 0.0), (1, 1e15)] {
        // With many others few annotations have a weight other than 1, and columns do not hold logarithms.
        for (weight, others) in [(1.0, 0), (0.5, 0), (1.0, 90)] {
            let others = (0..others).map(|n| (2 + n, 2, n % 2));
            let rows: Vec<_> = [(0, 0, 0), (1, annotator, 1)].into_iter().chain(others).collect();
            let mut weights = vec![1.0; rows.len()];
            weights[..2].copy_from_slice(&[1e15, weight]);
            let a = weighted(tiny(2, &rows).dims(), &rows, weights);
            let smoothing = Smoothing::new(&a, 0.0, diagonal);
            for strategy in [Scatter(1), Gather, SparseGather] {
                let mut t = Posterior::from_votes(&a);
                let mut model = ColumnModel::with_strategy(&a, strategy);
                model.count(&a, &t);
                model.m_step(&a, &t, &smoothing);
                model.e_step(&a, Prior::Class(&[0.5, 0.5]), &smoothing, &mut t);
                let (got, want) = (t.row(1)[0], MIN_LIKELIHOOD.powf(weight));
                let what = format!("{annotator} {weight} of {} {strategy:?}", rows.len());
                assert!((got / want - 1.0).abs() < 1e-8, "{what}: {got} is not {want}");
            }
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

/// Three whole chunks of instances that an E-step processes together, and a part of a fourth. Each instance but one has
/// labels of three of four annotators. Singleton annotators label many instances of the first chunk, none of the second,
/// one of the third, and all of the fourth; the column of the third chunk's singleton is the first of a singleton.
fn crowd_of_chunks(n_classes: u32, interval: usize) -> Annotations {
    let classes = n_classes as usize;
    let chunk = chunk_len(classes) as u32;
    let instances = 3 * chunk + 7;
    let regular = (0..3 * instances).map(|n| {
        let (i, r) = (n / 3, (n + n / 3) % 4);
        (i, r, if (n * n + r) % 3 == 0 { n * 5 + r } else { i * 7 % n_classes })
    });
    let regular = regular.filter(|(i, ..)| *i != 3 * chunk - 5);
    let first = (0..26).map(|n| (2 * n % chunk, 5 + n, 15 * n));
    let first = first.chain((0..9).map(|n| (6 * n % chunk, 31 + n, n)));
    let third = std::iter::once((2 * chunk + 18, 4, 3));
    let fourth = (0..7).map(|n| (3 * chunk + n, 40 + n, 3 * n));
    let label = |(i, r, l)| (i, r, l % (n_classes + 1));
    let rows = regular.chain(first).chain(third).chain(fourth).map(label);
    let rows: Vec<(u32, u32, u32)> = rows.collect();
    let dims = Dims { instances: instances as usize, annotators: 47, classes, labels: classes + 1 };
    let mut a = weighted(dims, &rows, weights(rows.len(), interval));
    let is_trusted = |i: u32| i == 4 || i == 2 * chunk + 9;
    a.trusted = Some((0..instances).map(|i| is_trusted(i).then_some(1)).collect());
    let singletons = |n: u32| -> Vec<usize> {
        let of_chunk = n * chunk..((n + 1) * chunk).min(instances);
        let columns = of_chunk.flat_map(|i| a.columns_of_instance(i as usize));
        columns.map(|c| *c as usize).filter(|c| *c >= a.first_singleton()).collect()
    };
    assert_eq!([0, 1, 3].map(|n| singletons(n).len()), [35, 0, 7]);
    assert_eq!(singletons(2), [a.first_singleton()]);
    a
}

/// Crowds of few and of many classes, with no weight, one, a few, and a weight for each annotation.
fn crowds() -> impl Iterator<Item = (Annotations, String)> {
    let of_one_chunk = [2, 4, 8, 9, 11, 16].into_iter().flat_map(|n_classes| {
        [0, 1000, 40, 1].map(|interval| {
            (crowd(n_classes, interval), format!("{n_classes} classes, interval {interval}"))
        })
    });
    let of_chunks = [5, 20].into_iter().flat_map(|n_classes| {
        [0, 40, 1].map(|interval| {
            let what = format!("chunks of {n_classes} classes, interval {interval}");
            (crowd_of_chunks(n_classes, interval), what)
        })
    });
    of_one_chunk.chain(of_chunks)
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
    use CountStrategy::{Gather, Scatter, SparseGather};
    for (a, of) in crowds() {
        let start = Posterior::from_votes(&a);
        let estimator = estimator(&a);
        let (likelihood, terms) = dense::likelihoods(naive, &dense::counts(&a, &rows_of(&start)));
        let (shared, per_instance) = priors(&a);
        for prior in [Prior::Class(&shared), Prior::Instance(&per_instance)] {
            let row = |i| prior.of(i, a.dims().classes).to_vec();
            let (want, marginal) = dense::e_step(&a, row, |_, r, k, l| likelihood[r][k][l]);
            for strategy in [Scatter(1), Scatter(3), Gather, SparseGather] {
                let what = format!("{of}, {prior:?}, {strategy:?}");
                let mut model = ColumnModel::with_strategy(&a, strategy);
                let mut t = start.clone();
                model.count(&a, &t);
                // The second one finds what the first one left in the padding of its columns.
                model.m_step(&a, &t, &estimator);
                model.m_step(&a, &t, &estimator);
                let got = model.e_step(&a, prior, &estimator, &mut t);
                close(t.values(), &want.concat(), 1e-12, &what);
                close(&[got], &[marginal], 1e-12, &what);
                // Without the floor of counts, which adds 1e-10 to a cell that has none.
                close(&[model.prior_terms()], &[terms], 1e-7, &what);
                let counts = dense::counts(&a, &rows_of(&t));
                let counts: Vec<f64> = (0..a.n_columns())
                    .flat_map(|column| {
                        let of = &counts[a.annotator_of(column as u32) as usize];
                        let label = a.label_of(column as u32) as usize;
                        of.iter().map(move |row| row[label])
                    })
                    .collect();
                close(&model.into_expected_counts(&a, &t), &counts, 1e-12, &what);
            }
        }
    }
}

#[test]
fn every_strategy_weight_and_prior_gives_the_naive_posteriors() {
    for (smoothing, diagonal) in [(0.0, 0.0), (0.1, 0.0), (0.0, 2.0), (0.1, 1.0)] {
        let naive = dense::DenseDawidSkene { smoothing, diagonal };
        assert_naive(|a| Smoothing::new(a, smoothing, diagonal), &naive);
    }
}

#[test]
fn every_strategy_gives_the_naive_posteriors_of_one_coin() {
    for (right, wrong) in [(0.0, 0.0), (2.0, 0.5)] {
        let estimator =
            |a: &Annotations| OneCoinEstimator { right, wrong, n_labels: a.dims().labels };
        assert_naive(estimator, &dense::DenseOneCoin { right, wrong });
    }
}

#[test]
fn every_strategy_gives_the_naive_posteriors_of_ibcc() {
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
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        let Annotator { index, n_classes, .. } = annotator;
        let (own, step) = (Self::pseudo_count(index as usize), stride(n_classes));
        for k in 0..n_classes {
            let sum: f64 = cells[k..].iter().step_by(step).sum();
            let of_class = cells[k..].iter_mut().step_by(step);
            of_class.for_each(|cell| *cell = (*cell + own) / (sum + own * self.n_labels as f64));
        }
        own.ln()
    }

    fn allows_sparse_columns(&self) -> bool {
        true
    }

    fn singleton_input(&self) -> SingletonInput {
        SingletonInput::Annotator
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
fn every_strategy_gives_an_estimator_the_annotator_of_the_counts() {
    let estimator = |a: &Annotations| OwnSmoothing { n_labels: a.dims().labels };
    assert_naive(estimator, &OwnSmoothing { n_labels: 0 });
}

/// With a table of counts for each range, the posteriors are as before until they are asked for; otherwise the M-step
/// reads them. Objectives, counts and posteriors are equal to the bit.
#[test]
fn posteriors_that_an_e_step_leaves_out_are_those_of_a_full_one() {
    use CountStrategy::{Gather, Scatter, SparseGather};
    for (a, of) in crowds() {
        let start = Posterior::from_votes(&a);
        let smoothing = Smoothing::new(&a, 0.1, 0.5);
        let (shared, per_instance) = priors(&a);
        for prior in [Prior::Class(&shared), Prior::Instance(&per_instance)] {
            for strategy in [Scatter(1), Scatter(3), Gather, SparseGather] {
                let what = format!("{of}, {prior:?}, {strategy:?}");
                let [mut want, mut got] = [start.clone(), start.clone()];
                let [mut full, mut lazy] = [(); 2].map(|()| {
                    let mut model = ColumnModel::with_strategy(&a, strategy);
                    model.count(&a, &start);
                    model.m_step(&a, &start, &smoothing);
                    model
                });
                let objective = full.e_step(&a, prior, &smoothing, &mut want);
                assert_eq!(
                    lazy.e_step_of_counts(&a, prior, &smoothing, &mut got),
                    objective,
                    "{what}"
                );
                assert_eq!(got == start, matches!(strategy, Scatter(_)), "{what}");
                lazy.posteriors(&a, prior, &smoothing, &mut got);
                assert!(got == want, "{what}");
                assert_eq!(lazy.class_counts(), full.class_counts(), "{what}");
                assert_eq!(
                    lazy.into_expected_counts(&a, &got),
                    full.into_expected_counts(&a, &want),
                    "{what}"
                );
            }
        }
    }
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
fn sums_of_logarithms_give_the_same_e_step_as_products_of_columns() {
    for (a, of) in crowds() {
        let start = Posterior::from_votes(&a);
        let counts = dense::counts(&a, &rows_of(&start));
        let naive = dense::DenseDawidSkene { smoothing: 0.1, diagonal: 1.0 };
        let likelihood = MatrixPerAnnotator(dense::likelihoods(&naive, &counts).0);
        let smoothing = Smoothing::new(&a, 0.1, 1.0);
        let (shared, per_instance) = priors(&a);
        for prior in [Prior::Class(&shared), Prior::Instance(&per_instance)] {
            let mut model = ColumnModel::with_strategy(&a, CountStrategy::Scatter(1));
            let (mut want, mut got) = (start.clone(), start.clone());
            model.count(&a, &want);
            model.m_step(&a, &want, &smoothing);
            let objective = model.e_step(&a, prior, &smoothing, &mut want);
            let of_logs = log_domain::e_step(&a, prior, &likelihood, &mut got);
            close(got.values(), want.values(), 1e-12, &of);
            close(&[of_logs], &[objective], 1e-12, &of);
        }
    }
}
