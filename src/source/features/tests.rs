use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::Schema;

use super::*;

async fn columns_of(
    ctx: &SessionContext,
    table: &str,
    id: &'static str,
    columns: &ColumnsSpec,
) -> Result<Vec<String>> {
    let job = &mut JobContext::new(0);
    let origin = Origin::Table;
    let frame = query(ctx, (table, origin), None, (id, None), (columns, &[]), job).await?;
    Ok(frame.schema().fields().iter().map(|field| field.name().clone()).collect())
}

/// Features of annotators were refused unless they had the mapped column.
#[tokio::test]
async fn one_mapping_of_features_serves_both_relations() {
    let lists = DataType::new_list(DataType::Float32, true);
    let list = |name: &str| Field::new(name, lists.clone(), true);
    let number = |name: &str| Field::new(name, DataType::Float64, true);
    let columns = ColumnsSpec { features: Some("vector".to_owned()), ..ColumnsSpec::default() };
    for (own, chosen) in [
        (vec![number("age"), number("skill")], vec!["age", "skill"]),
        (vec![list("features"), number("age")], vec!["features"]),
        (vec![list("features"), list("vector")], vec!["vector"]),
    ] {
        let ctx = SessionContext::new();
        for (table, id) in [("annotator_features", "annotator_id"), ("features", "instance_id")] {
            let id = Field::new(id, DataType::Utf8, true);
            let fields: Vec<Field> = std::iter::once(id).chain(own.clone()).collect();
            let no_rows = RecordBatch::new_empty(Arc::new(Schema::new(fields)));
            ctx.register_batch(table, no_rows).unwrap();
        }
        let of_annotators = columns_of(&ctx, "annotator_features", "annotator_id", &columns);
        let wanted = [&["annotator_id"][..], &chosen].concat();
        assert_eq!(of_annotators.await.unwrap(), wanted);
        let of_instances = columns_of(&ctx, "features", "instance_id", &columns).await;
        if chosen == ["vector"] {
            assert_eq!(of_instances.unwrap(), ["instance_id", "vector"]);
        } else {
            let error = of_instances.unwrap_err().to_string();
            assert!(error.contains("the column `vector` is missing"), "{error}");
        }
    }
}

#[tokio::test]
async fn numbers_behind_a_dictionary_or_run_ends_are_features() {
    let plain: [ArrayRef; 2] = [
        Arc::new(Float32Array::from(vec![Some(0.5), None, Some(0.5)])),
        Arc::new(Int64Array::from(vec![7, 7, 8])),
    ];
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Float32));
    let run_ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
    let items = Arc::new(Field::new("values", DataType::Int64, true));
    let runs = DataType::RunEndEncoded(run_ends, items);
    let ids: ArrayRef = Arc::new(StringArray::from(vec!["i", "j", "k"]));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("instance_id", ids, true),
        ("share", cast(&plain[0], &dictionary).unwrap(), true),
        ("count", cast(&plain[1], &runs).unwrap(), true),
    ]);
    let ctx = SessionContext::new();
    ctx.register_batch("features", batch.unwrap()).unwrap();
    let mut job = JobContext::new(0);
    let (id, columns) = (("instance_id", None), ColumnsSpec::default());
    let chosen = query(&ctx, ("features", Origin::Table), None, id, (&columns, &[]), &mut job)
        .await
        .unwrap();
    let rows = chosen.collect().await.unwrap().remove(0);
    assert_eq!(rows.schema().field(1).name(), "share");
    assert_eq!(rows.schema().field(2).name(), "count");
    assert_eq!(rows.columns()[1..], plain);
    assert!(job.warnings().is_empty(), "{:?}", job.warnings());
}

/// A Parquet file of such lists has no row that can be read.
#[tokio::test]
async fn lists_without_room_for_a_number_are_refused_before_they_are_read() {
    let lists = DataType::new_fixed_size_list(DataType::Float32, 0, true);
    let id = Field::new("instance_id", DataType::Utf8, true);
    let schema = Schema::new(vec![id, Field::new("features", lists, true)]);
    let ctx = SessionContext::new();
    ctx.register_batch("features", RecordBatch::new_empty(Arc::new(schema))).unwrap();
    let columns = ColumnsSpec::default();
    let job = &mut JobContext::new(0);
    let found =
        query(&ctx, ("features", Origin::Table), None, ("instance_id", None), (&columns, &[]), job)
            .await;
    let error = found.unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    let error = error.to_string();
    for part in ["the lists of the column `features`", "source.features", "length 0"] {
        assert!(error.contains(part), "{error}");
    }
}
