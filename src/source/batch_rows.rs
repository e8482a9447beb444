//! How many rows a batch has: fewer than the session says where the values of Parquet files are large.
//!
//! # Why
//! A Parquet file holds a value that repeats once, and a batch holds it once for each row: a file of some kilobytes can
//! become batches of gigabytes. The metadata states how many numbers a row group has and, where the writer put it there,
//! how many bytes its text takes, so that the rows of a batch are known before any is read. Where it does not, text is
//! read as [views](super::views), which take no more than the pages of the file.

use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::prelude::SessionContext;
use parquet::basic::Type;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

/// The most bytes of text or binary values in a batch.
const BATCH_BYTES: usize = 64 << 20;

/// Batches that wait between decoding and interning, and are then interned together.
///
/// # Why
/// The columns of a batch are interned in parallel, and the threads meet after it. Batch by batch, they waited for each
/// other and for the system to wake them for a quarter of the time.
pub const BATCHES_IN_FLIGHT: usize = 8;

/// Batches of so many partitions that are in memory at once, of which so many are at hand: those that wait, and for each
/// partition one that is sent and another that is decoded.
#[must_use]
pub fn batches_at_once(partitions: usize, at_hand: usize) -> usize {
    BATCHES_IN_FLIGHT + at_hand + 2 * partitions
}

/// At least so many batches must fit into what the session may hold.
const LEAST_BATCHES: usize = 64;

/// What a batch may have however little memory there is.
const NEGLIGIBLE: usize = 1 << 20;

/// How large the rows of a Parquet file are.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeOfRows {
    /// Bytes that a row takes in memory, the mean of the row group where it is largest.
    bytes: usize,
    /// Whether the file states how large its text is.
    is_stated: bool,
}

impl SizeOfRows {
    pub(super) fn of(metadata: &ParquetMetaData) -> Self {
        let groups = metadata.row_groups();
        let states_size = |c: &ColumnChunkMetaData| width(c).is_some() || text_bytes(c).is_some();
        Self {
            bytes: groups.iter().map(bytes_per_row).max().unwrap_or_default(),
            is_stated: groups.iter().all(|group| group.columns().iter().all(states_size)),
        }
    }
}

/// Lowers the session's rows in a batch to what the values of these files allow. Returns whether every file states how
/// large its text is; that of one which does not has to be read as views.
pub(super) fn fit(ctx: &SessionContext, files: impl Iterator<Item = SizeOfRows>) -> bool {
    let runtime = ctx.runtime_env();
    let room = match runtime.memory_pool.memory_limit() {
        MemoryLimit::Finite(limit) => {
            let partitions = ctx.state().config().target_partitions();
            let at_once = batches_at_once(partitions, BATCHES_IN_FLIGHT);
            (limit / at_once.max(LEAST_BATCHES)).clamp(NEGLIGIBLE, BATCH_BYTES)
        }
        _ => BATCH_BYTES,
    };
    let (mut rows, mut are_stated) = (usize::MAX, true);
    for file in files {
        rows = rows.min(room / file.bytes.max(1));
        are_stated &= file.is_stated;
    }
    let state = ctx.state_ref();
    let mut state = state.write();
    let config = state.config().clone();
    let rows = config.batch_size().min(rows).max(1);
    *state.config_mut() = config.with_batch_size(rows);
    are_stated
}

/// What the values of a row take in memory: the mean, rounded up.
fn bytes_per_row(group: &RowGroupMetaData) -> usize {
    let pages = |column: &ColumnChunkMetaData| column.uncompressed_size();
    let bytes = group.columns().iter().map(|column| match width(column) {
        Some(width) => column.num_values().saturating_mul(width),
        None => text_bytes(column).unwrap_or_else(|| pages(column)),
    });
    let bytes = bytes.fold(0_u64, |sum, n| sum.saturating_add(u64::try_from(n).unwrap_or(0)));
    let rows = u64::try_from(group.num_rows()).unwrap_or(0).max(1);
    usize::try_from(bytes.div_ceil(rows)).unwrap_or(usize::MAX)
}

/// The bytes of one value, where all values have as many.
fn width(column: &ColumnChunkMetaData) -> Option<i64> {
    match column.column_type() {
        Type::BOOLEAN | Type::INT32 | Type::FLOAT => Some(4),
        Type::INT64 | Type::DOUBLE => Some(8),
        Type::INT96 => Some(12),
        Type::FIXED_LEN_BYTE_ARRAY => Some(column.column_descr().type_length().into()),
        Type::BYTE_ARRAY => None,
    }
}

/// The bytes of all text of a column, where the writer states it.
fn text_bytes(column: &ColumnChunkMetaData) -> Option<i64> {
    column.unencoded_byte_array_data_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::ParquetMetaDataReader;

    use super::*;
    use crate::engine::EngineSpec;

    /// The rows in a batch for a file of `n` rows that all hold a text of so many bytes.
    fn rows_for(n: usize, bytes: usize, memory: &str) -> usize {
        let text = "z".repeat(bytes);
        let column = Arc::new(StringArray::from(vec![text.as_str(); n])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("label", column)]).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(file)).unwrap();
        let engine = EngineSpec { memory_limit: Some(memory.to_owned()), ..EngineSpec::default() };
        let ctx = engine.session().unwrap();
        fit(&ctx, std::iter::once(SizeOfRows::of(&metadata)));
        ctx.state().config().batch_size()
    }

    #[test]
    fn a_batch_of_large_values_has_few_rows() {
        assert_eq!(rows_for(200, 100_000, "64MiB"), (1 << 20) / 100_000);
        assert_eq!(rows_for(200, 100_000, "64GiB"), (64 << 20) / 100_000);
        assert_eq!(rows_for(200, 20, "64MiB"), EngineSpec::default().batch_size);
        assert_eq!(rows_for(1, 3 << 20, "64MiB"), 1);
    }
}
