//! Reads a relation into one batch, within the memory limit of the session.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::prelude::DataFrame;
use futures::StreamExt;

use crate::error::Result;
use crate::frame::memory::batch_bytes::HeldBuffers;
use crate::frame::memory::reservation::Reservation;

/// All rows of a query, as one batch; `rows` names them in errors.
///
/// # Errors
/// When the query fails, or its rows do not fit into the session's memory.
pub async fn read_all(query: DataFrame, rows: &str) -> Result<RecordBatch> {
    let budget = Reservation::new(&query.task_ctx(), rows);
    read_all_within(query, rows, &budget).await
}

/// As [`read_all`]; the rows stay reserved in `budget`.
pub(in crate::frame) async fn read_all_within(
    query: DataFrame,
    rows: &str,
    budget: &Reservation,
) -> Result<RecordBatch> {
    let schema = query.schema().inner().clone();
    let mut stream = query.execute_stream().await?;
    let (mut batches, mut held, mut n) = (Vec::new(), HeldBuffers::default(), 0);
    while let Some(batch) = stream.next().await {
        let batch: RecordBatch = batch?;
        n += batch.num_rows();
        held.add(&batch);
        // Once in the batches of the query, and once in the concatenated batch.
        budget.hold(2 * held.bytes(), || format!("the first {n} {rows}"))?;
        batches.push(batch);
    }
    Ok(concat_batches(&schema, &batches)?)
}

#[cfg(test)]
mod tests {
    use crate::engine::EngineSpec;

    use super::*;

    #[tokio::test]
    async fn rows_beyond_the_memory_are_refused_and_others_come_in_one_batch() {
        let limit = Some("16MiB".to_owned());
        let ctx = EngineSpec { memory_limit: limit, ..EngineSpec::default() }.session().unwrap();
        let rows = async |n: usize| {
            let query = format!("SELECT value AS i FROM generate_series(1, {n})");
            read_all(ctx.sql(&query).await.unwrap(), "rows of numbers").await
        };
        let batch = rows(20_000).await.unwrap();
        assert_eq!((batch.num_rows(), batch.num_columns()), (20_000, 1));
        // A group-by returns its result in slices, each of which holds the buffers of all.
        let query = "SELECT DISTINCT value % 100000 AS i FROM generate_series(1, 200000)";
        let distinct = read_all(ctx.sql(query).await.unwrap(), "rows of numbers").await.unwrap();
        assert_eq!(distinct.num_rows(), 100_000);
        let error = rows(2_000_000).await.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("rows of numbers take"), "{error}");
    }
}
