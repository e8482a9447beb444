//! Three implementations of Dawid-Skene agree: sparse and parallel, naive and dense, and group-bys in SQL.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::array::{AsArray, types::Float64Type, types::Int64Type};
use datafusion::prelude::SessionContext;
use labelmill::frame::{AnnotationRows, Annotations, Dims, Duplicates};
use labelmill::model::Model;
use labelmill::model::em::{DawidSkene, Em, StopRule};
use labelmill::model::fitted::Fitted;
use labelmill::model::posterior::Posterior;
use labelmill::run::Run;
use labelmill::sql::{DAWID_SKENE_CONFUSION, DAWID_SKENE_POSTERIOR, DAWID_SKENE_PRIOR};
use labelmill::testing::{annotations, dense, synth::CrowdShape};
use proptest::prelude::*;

use crate::support::assert_close;

fn fit(a: &Annotations, smoothing: f64, diagonal: f64, iterations: u32) -> Fitted {
    let stop = StopRule { max_iter: iterations, tol: 0.0, ..StopRule::default() };
    let spec = DawidSkene { smoothing, diagonal, stop, ..DawidSkene::default() };
    Em(spec).fit(a.into(), &mut Run::new(0)).unwrap()
}

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
    fn the_sparse_fit_is_the_dense_fit(a in crowds(), smoothing in 0.0..0.5_f64, diagonal in 0.0..2.0_f64) {
        let fitted = fit(&a, smoothing, diagonal, 6);
        let naive = dense::dawid_skene(&a, smoothing, diagonal, 6);
        let ll: Vec<f64> = fitted.trace.iter().map(|row| row.objective).collect();
        assert_close(&ll, &naive.ll, 1e-7, "LL");
        assert_close(fitted.posterior.values(), &naive.t.concat(), 1e-7, "T");
        assert_close(fitted.report.prior.as_ref().unwrap(), &naive.q, 1e-7, "q");
        let confusion = fitted.report.confusion.unwrap();
        for r in 0..5 {
            for label in 0..4 {
                let naive: Vec<f64> = (0..3).map(|k| naive.pi[r][k][label]).collect();
                assert_close(&confusion.column(&a, r, label), &naive, 1e-7, "pi");
            }
        }
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
    assert_close(&got, fit(&a, 0.0, 0.0, 4).posterior.values(), 1e-9, "T");
}
