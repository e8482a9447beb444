//! The sweeps beside a naive one in the log domain, whatever the strategy.

use super::dense::DenseColumns;
use super::e_step::e_step;
use super::m_step::Columns;
use super::padded_matrix::PaddedMatrix;
use super::prior::Prior;
use crate::frame::{AnnotationRows, Annotations, Dims, Duplicates};
use crate::model::confusion::Smoothing;
use crate::model::em::kernels::{ColumnModel, CountStrategy};
use crate::model::numerics::{MIN_PROBABILITY, softmax};
use crate::model::posterior::Posterior;
use crate::testing::tiny;

fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{n}: {got} is not {want}");
    }
}

#[test]
fn ten_thousand_for_and_as_many_against_cancel() {
    // One instance; 10 000 annotators say class 0, then 10 000 say class 1, each with likelihoods 1e-10 and 1.
    let rows: Vec<(u32, u32, u32)> = (0..20_000).map(|r| (0, r, u32::from(r >= 10_000))).collect();
    let a = tiny(2, &rows);
    let least = MIN_PROBABILITY;
    let cells: Vec<f64> =
        (0..20_000).flat_map(|r| if r < 10_000 { [1.0, least] } else { [least, 1.0] }).collect();
    let mut table = PaddedMatrix::zeros(cells.len() / 2, 2);
    table.cells_mut().copy_from_slice(&cells);
    let columns = Columns::Dense(DenseColumns { cells: table, are_logs: false });
    let mut t = Posterior::zeros(1, 2);
    let mut parts = super::counts::parts(&a, CountStrategy::Gather);
    let prior = Prior::Class(&[0.25, 0.75]);
    let smoothing = Smoothing::new(&a, 0.0, 0.0);
    let objective = e_step(&a, prior, &columns, &smoothing, &mut t, &mut parts);
    close(t.row(0), &[0.25, 0.75], 1e-9);
    assert!((objective - 10_000.0 * least.ln()).abs() < 1e-6 * objective.abs());
}

/// The posteriors and objective of a naive E-step in the log domain, of the likelihood that follows from `start`.
fn naive(
    a: &Annotations,
    prior: Prior<'_>,
    smoothing: Smoothing,
    start: &Posterior,
) -> (Vec<f64>, f64) {
    let d = a.dims();
    let cell = |r: u32, k: usize, l: usize| {
        let said = (0..d.instances).flat_map(|i| a.triples_of(i).map(move |triple| (i, triple)));
        let own = said.filter(|(_, (s, m, _))| (*s, *m) == (r, l as u32));
        let count: f64 = own.map(|(i, (_, _, w))| w * start.row(i)[k]).sum();
        smoothing.cell(count, k, l)
    };
    let (mut all, mut objective) = (Vec::new(), 0.0);
    for i in 0..d.instances {
        let log = |k: usize| {
            let likelihood = |(r, l, w): (u32, u32, f64)| {
                let sum: f64 = (0..d.labels).map(|l| cell(r, k, l)).sum();
                w * (cell(r, k, l as usize) / sum).ln()
            };
            prior.of(i, d.classes)[k].ln() + a.triples_of(i).map(likelihood).sum::<f64>()
        };
        let logs: Vec<f64> = (0..d.classes).map(log).collect();
        let mut row = vec![0.0; d.classes];
        let mut value = softmax(&logs, &mut row);
        if let Some(class) = a.trusted_class(i) {
            value = logs[class as usize];
            row.fill(0.0);
            row[class as usize] = 1.0;
        }
        objective += if a.columns_of_instance(i).is_empty() { 0.0 } else { value };
        all.extend(row);
    }
    (all, objective)
}

/// Three regulars, singletons, one instance with so many annotations that they are multiplied in runs, one without
/// any, two trusted, of which one has no annotation; weights for every `weighted`-th annotation.
fn crowd(n_classes: usize, weighted: usize) -> Annotations {
    let regular = (0..90_u32).map(|n| (n / 3, n % 3, n * n / 7 + n / 3));
    let once = (0..30).map(|i| (i, 10 + i, i * 5 / 3));
    let many = (0..20).map(|r| (7, 100 + r, r)).chain((0..5).map(|r| (8, 200 + r, r)));
    let rows: Vec<(u32, u32, u32)> = regular.chain(once).chain(many).collect();
    let weight =
        |n: usize| if n.is_multiple_of(weighted) { [0.5, 0.3, 1.7][n / weighted % 3] } else { 1.0 };
    let rows = AnnotationRows {
        instance: rows.iter().map(|r| r.0).collect(),
        annotator: rows.iter().map(|r| r.1).collect(),
        label: rows.iter().map(|r| r.2 % (n_classes as u32 + 1)).collect(),
        weight: (0..rows.len()).map(weight).collect(),
    };
    let dims = Dims { instances: 32, annotators: 205, classes: n_classes, labels: n_classes + 1 };
    let mut a = Annotations::build(dims, rows, Duplicates::Keep).unwrap();
    a.trusted = Some((0..32).map(|i| (i == 4 || i == 31).then_some(1)).collect());
    a
}

#[test]
fn every_strategy_weight_and_prior_gives_the_naive_posteriors() {
    use CountStrategy::{Gather, Scatter, SparseGather};
    for (n_classes, weighted) in [(4, 1000), (4, 40), (4, 1), (12, 1000), (12, 40), (12, 1)] {
        let a = crowd(n_classes, weighted);
        let start = Posterior::from_votes(&a);
        let of_class: Vec<f64> = (1..=n_classes).map(|k| k as f64 / 78.0).collect();
        let of_instance: Vec<f64> =
            (0..32 * n_classes).map(|n| 0.05 + (n * n % 11) as f64 / 12.0).collect();
        for prior in [Prior::Class(&of_class), Prior::Instance(&of_instance)] {
            for (everywhere, diagonal) in [(0.0, 0.0), (0.1, 0.0), (0.0, 2.0), (0.1, 1.0)] {
                let smoothing = Smoothing::new(&a, everywhere, diagonal);
                let (want, objective) = naive(&a, prior, smoothing, &start);
                for strategy in [Scatter(1), Scatter(3), Gather, SparseGather] {
                    let mut model = ColumnModel::with_strategy(&a, strategy);
                    let mut t = start.clone();
                    model.count(&a, &t);
                    model.m_step(&a, &t, &smoothing);
                    let got = model.e_step(&a, prior, &smoothing, &mut t);
                    close(t.values(), &want, 1e-12);
                    assert!((got - objective).abs() < 1e-12 * objective.abs(), "{strategy:?}");
                }
            }
        }
    }
}
