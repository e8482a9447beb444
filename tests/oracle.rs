//! The models beside naive ones on dense arrays; and Dawid-Skene beside group-bys in SQL.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::array::{AsArray, types::Float64Type, types::Int64Type};
use datafusion::prelude::SessionContext;
use labelmill::frame::{AnnotationRows, Annotations, Dims, Duplicates};
use labelmill::model::em::{DawidSkene, Glad, Ibcc, OneCoin};
use labelmill::model::fitted::Fitted;
use labelmill::model::posterior::Posterior;
use labelmill::testing::dense::{self, DenseFit, DenseModel, Rows};
use labelmill::testing::{annotations, fit, iterations, objectives, synth::CrowdShape, weighted};
use proptest::prelude::*;

use crate::support::assert_close;

/// The M-step of Dawid-Skene as group-bys: the prior.
const DAWID_SKENE_PRIOR: &str = include_str!("oracle_sql/dawid_skene_prior.sql");
/// The M-step of Dawid-Skene as group-bys: the confusion matrices.
const DAWID_SKENE_CONFUSION: &str = include_str!("oracle_sql/dawid_skene_confusion.sql");
/// The E-step of Dawid-Skene as group-bys: the posteriors.
const DAWID_SKENE_POSTERIOR: &str = include_str!("oracle_sql/dawid_skene_posterior.sql");

/// Crowds with weights, repeated annotations, labels that are not classes, and trusted instances.
fn crowds() -> impl Strategy<Value = Annotations> {
    let row = (0..12_u32, 0..5_u32, 0..4_u32, prop_oneof![3 => Just(1.0), 1 => 0.1..3.0_f64]);
    let trusted = prop::collection::vec(prop::option::weighted(0.2, 0..3_u32), 12);
    (prop::collection::vec(row, 1..120), trusted, any::<bool>()).prop_map(
        |(rows, trusted, share)| {
            let dims = Dims { instances: 12, annotators: 5, classes: 3, labels: 4 };
            let rows = AnnotationRows {
                instance: rows.iter().map(|r| r.0).collect(),
                annotator: rows.iter().map(|r| r.1).collect(),
                label: rows.iter().map(|r| r.2).collect(),
                weight: rows.iter().map(|r| r.3).collect(),
            };
            let policy = if share { Duplicates::Share } else { Duplicates::Keep };
            let mut a = Annotations::build(dims, rows, policy).unwrap();
            a.trusted = Some(trusted);
            a
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dawid_skene_is_the_naive_one(a in crowds(), smoothing in 0.0..0.5_f64, diagonal in 0.0..2.0_f64) {
        let model = dense::DenseDawidSkene { smoothing, diagonal };
        let spec = DawidSkene { smoothing, diagonal, stop: iterations(6), ..DawidSkene::maximum_likelihood() };
        let fitted = fit(spec, &a);
        let naive = assert_naive(&a, &fitted, &model, |fit, r| model.likelihood(r, &fit.counts[r]).0);
        assert_close(&objectives(&fitted), &naive.log_likelihoods, 1e-7, "log-likelihood");
    }

    #[test]
    fn one_coin_is_the_naive_one(a in crowds(), right in 0.0..3.0_f64, wrong in 0.0..2.0_f64) {
        let model = dense::DenseOneCoin { right, wrong };
        let spec = OneCoin {
            prior_right: right,
            prior_wrong: wrong,
            stop: iterations(6),
            ..OneCoin::maximum_likelihood()
        };
        let fitted = fit(spec, &a);
        let naive = assert_naive(&a, &fitted, &model, |fit, r| model.likelihood(r, &fit.counts[r]).0);
        assert_close(&objectives(&fitted), &naive.log_likelihoods, 1e-7, "log-likelihood");
        let skill: Vec<f64> = naive.counts.iter().enumerate().map(|(r, n)| model.likelihood(r, n).0[0][0]).collect();
        assert_close(&fitted.report.skill, &skill, 1e-7, "skill");
    }

    #[test]
    fn ibcc_is_the_naive_one(
        a in crowds(), class in 0.05..3.0_f64, diagonal in 0.05..8.0_f64, off_diagonal in 0.05..2.0_f64
    ) {
        let model = dense::DenseIbcc { class, diagonal, off_diagonal };
        let spec = Ibcc {
            prior_class: class,
            prior_diagonal: diagonal,
            prior_off_diagonal: Some(off_diagonal),
            stop: iterations(6),
            ..Ibcc::default()
        };
        let fitted = fit(spec, &a);
        let naive = assert_naive(&a, &fitted, &model, |fit, r| model.mean(&fit.counts[r]));
        assert_close(&objectives(&fitted), &naive.objectives, 1e-7, "bound");
    }
}

/// Six iterations give the naive changes of the objective, posteriors and class shares, and the matrices that `matrix`
/// makes of the naive fit for each annotator.
fn assert_naive(
    a: &Annotations,
    fitted: &Fitted,
    model: &impl DenseModel,
    matrix: impl Fn(&DenseFit, usize) -> Rows,
) -> DenseFit {
    let naive = dense::fit(a, model, 6);
    let changes: Vec<f64> = fitted.trace.iter().filter_map(|row| row.change).collect();
    let naive_changes: Vec<f64> =
        naive.objectives.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_close(&changes, &naive_changes, 1e-7, "change of the objective");
    assert_close(fitted.posterior.dense().values(), &naive.t.concat(), 1e-7, "T");
    let shares = model.unannotated(&naive.class_counts);
    assert_close(fitted.report.prior.as_ref().unwrap(), &shares, 1e-7, "q");
    let confusion = fitted.report.confusion.as_ref().unwrap();
    for r in 0..a.dims().annotators {
        let matrix = matrix(&naive, r);
        for label in 0..a.dims().labels {
            let column: Vec<f64> = matrix.iter().map(|row| row[label]).collect();
            assert_close(&confusion.column(a, r, label), &column, 1e-7, "pi");
        }
    }
    naive
}

/// Where exact M-steps end, the naive gradient vanishes, and the naive posteriors, objective and skills are those of
/// the fit. The crowds have weights, repeated annotations, a label that is no class, an instance without annotations,
/// and trusted instances, with and without annotations.
#[test]
fn glad_ends_where_the_naive_gradient_vanishes() {
    let shape = CrowdShape { instances: 20, annotators: 6, ..CrowdShape::default() };
    for seed in 0..6 {
        let mut rows = shape.draw(seed).rows;
        rows.extend((0..6).map(|n| (3 * n, n, n % 4)));
        let weights = (0..rows.len()).map(|n| [1.0, 0.4, 1.0, 2.5, 1.0][n * n % 11 % 5]).collect();
        let dims = Dims { instances: 22, annotators: 6, classes: 3, labels: 4 };
        let mut a = weighted(dims, &rows, weights);
        a.trusted = Some((0..22).map(|i| (i % 7 == 0).then_some(i % 3)).collect());
        let fitted = fit(
            Glad { gradient_tol: 1e-10, max_steps: 200, stop: iterations(150), ..Glad::default() },
            &a,
        );
        let ability = &fitted.report.annotator_parameters[0].1;
        let difficulty = &fitted.report.instance_parameters[0].1;
        // Without annotations, b stays at its prior mean.
        let b: Vec<f64> =
            difficulty.iter().map(|d| if d.is_nan() { 1.0 } else { -d.ln() }).collect();
        let (t, objective) = dense::glad::posteriors(&a, ability, &b);
        assert_close(fitted.posterior.dense().values(), &t.concat(), 1e-7, "T");
        assert_close(&objectives(&fitted)[149..], &[objective], 1e-7, "objective");
        let gradient = dense::glad::gradient(&a, &t, ability, &b);
        assert_close(&gradient, &vec![0.0; gradient.len()], 1e-6, "gradient");
        assert_close(&fitted.report.skill, &dense::glad::skill(&a, ability, &b), 1e-9, "skill");
    }
}

/// The posterior after these iterations of the group-bys in `sql/`.
async fn by_sql(rows: &[(u32, u32, u32)], start: &Posterior, iterations: usize) -> Vec<f64> {
    let ctx = SessionContext::new();
    let numbers = |f: fn(&(u32, u32, u32)) -> u32| {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| i64::from(f(r))))) as ArrayRef
    };
    let columns = [
        ("instance_id", numbers(|r| r.0)),
        ("annotator_id", numbers(|r| r.1)),
        ("label", numbers(|r| r.2)),
    ];
    ctx.register_batch("annotations", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    let n = start.n_classes();
    let cell = |f: &dyn Fn(usize) -> i64| {
        Arc::new(Int64Array::from_iter_values((0..start.values().len()).map(f))) as ArrayRef
    };
    let columns = [
        ("instance_id", cell(&|c| (c / n) as i64)),
        ("class", cell(&|c| (c % n) as i64)),
        ("probability", Arc::new(Float64Array::from(start.values().to_vec())) as ArrayRef),
    ];
    ctx.register_batch("posterior", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    for _ in 0..iterations {
        replace(&ctx, "prior", DAWID_SKENE_PRIOR).await;
        replace(&ctx, "confusion", DAWID_SKENE_CONFUSION).await;
        replace(&ctx, "posterior", DAWID_SKENE_POSTERIOR).await;
    }
    let mut dense = vec![0.0; start.values().len()];
    for batch in ctx.table("posterior").await.unwrap().collect().await.unwrap() {
        let instance = batch.column(0).as_primitive::<Int64Type>();
        let class = batch.column(1).as_primitive::<Int64Type>();
        let probability = batch.column(2).as_primitive::<Float64Type>();
        for row in 0..batch.num_rows() {
            dense[instance.value(row) as usize * n + class.value(row) as usize] =
                probability.value(row);
        }
    }
    dense
}

async fn replace(ctx: &SessionContext, table: &str, query: &str) {
    let frame = ctx.sql(query).await.unwrap();
    let schema = frame.schema().inner().clone();
    let batches = frame.collect().await.unwrap();
    let all = arrow::compute::concat_batches(&schema, &batches).unwrap();
    ctx.deregister_table(table).unwrap();
    ctx.register_batch(table, all).unwrap();
}

#[tokio::test]
async fn the_group_bys_in_sql_give_the_same_posteriors() {
    let crowd = CrowdShape { instances: 60, annotators: 8, ..CrowdShape::default() };
    let rows = crowd.draw(3).rows;
    let dims = Dims { instances: 60, annotators: 8, classes: 3, labels: 3 };
    let a = annotations(dims, &rows);
    let got = by_sql(&rows, &Posterior::from_votes(&a), 4).await;
    let fitted = fit(DawidSkene { stop: iterations(4), ..DawidSkene::maximum_likelihood() }, &a);
    assert_close(&got, fitted.posterior.dense().values(), 1e-9, "T");
}
