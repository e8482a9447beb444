//! The number of rows in a batch: fewer than the session's setting where the values of Parquet files are large.
//!
//! # Why
//! A Parquet file stores a repeated value once, but a batch stores it once a row: a file of some kilobytes can become
//! batches of gigabytes. The metadata states how many values a row group has and, if the writer recorded it, how many
//! bytes its text takes; so the number of rows is chosen before any row is read. Where the size of text is not stated,
//! text is read as [views](super::views), which take no more memory than the decoded pages of the file. Columns that no
//! query reads, such as the texts of the tasks beside their labels, are in no batch and do not count.
//!
//! One number holds for the whole session, because joins and filters make batches of the session's size again.

use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::prelude::SessionContext;
use parquet::basic::Type;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use crate::source::relation::known_columns::KnownColumns;

/// The most bytes of text or binary values in a batch.
const BATCH_BYTES: usize = 64 << 20;

/// Batches that wait between decoding and interning, and are then interned together.
///
/// # Why
/// The columns of a batch are interned in parallel, and the threads wait for each other at its end. With one batch at a
/// time they spent a quarter of the time waiting for each other and for the system to wake them.
pub const BATCHES_IN_FLIGHT: usize = 8;

/// The most batches in memory at once: those that wait, `at_hand` that the consumer holds, and for each partition one
/// that is being sent and one that is being decoded.
#[must_use]
pub fn batches_at_once(partitions: usize, at_hand: usize) -> usize {
    BATCHES_IN_FLIGHT + at_hand + 2 * partitions
}

/// At least this many batches must fit into the session's memory limit.
const MIN_BATCHES: usize = 64;

/// Bytes that a batch may have however low the memory limit is.
const NEGLIGIBLE: usize = 1 << 20;

/// The size of a Parquet file's rows, in the columns that may be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeOfRows {
    /// The mean bytes of a row in memory, in the row group where it is largest.
    bytes: usize,
    /// Whether the file states how large its text is.
    is_stated: bool,
}

impl SizeOfRows {
    pub(super) fn new(metadata: &ParquetMetaData, columns: &KnownColumns) -> Self {
        let groups = metadata.row_groups().iter();
        let states_size = |c: &ColumnChunkMetaData| width(c).is_some() || text_bytes(c).is_some();
        Self {
            bytes: groups.clone().map(|g| bytes_per_row(g, columns)).max().unwrap_or_default(),
            is_stated: groups.flat_map(|g| read_chunks(g, columns)).all(states_size),
        }
    }
}

/// Lowers the session's batch size to what the values of these files allow. Returns whether every file states the size
/// of its text; otherwise text has to be read as views.
pub(super) fn limit_batch_size(
    ctx: &SessionContext,
    files: impl Iterator<Item = SizeOfRows>,
) -> bool {
    let runtime = ctx.runtime_env();
    let room = match runtime.memory_pool.memory_limit() {
        MemoryLimit::Finite(limit) => {
            let partitions = ctx.state().config().target_partitions();
            let at_once = batches_at_once(partitions, BATCHES_IN_FLIGHT);
            (limit / at_once.max(MIN_BATCHES)).clamp(NEGLIGIBLE, BATCH_BYTES)
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

/// The chunks of the columns that may be read.
fn read_chunks<'a>(
    group: &'a RowGroupMetaData,
    columns: &KnownColumns,
) -> impl Iterator<Item = &'a ColumnChunkMetaData> {
    let may_be_read = move |chunk: &&ColumnChunkMetaData| {
        // The parts after the first are names inside a nested column.
        let column = chunk.column_path().parts().first();
        column.is_none_or(|name| columns.may_be_read(name))
    };
    group.columns().iter().filter(may_be_read)
}

/// The mean bytes of a row in memory, rounded up.
fn bytes_per_row(group: &RowGroupMetaData, columns: &KnownColumns) -> usize {
    let pages = |column: &ColumnChunkMetaData| column.uncompressed_size();
    let bytes = read_chunks(group, columns).map(|column| match width(column) {
        Some(width) => column.num_values().saturating_mul(width),
        None => text_bytes(column).unwrap_or_else(|| pages(column)),
    });
    let bytes = bytes.fold(0_u64, |sum, n| sum.saturating_add(u64::try_from(n).unwrap_or(0)));
    let rows = u64::try_from(group.num_rows()).unwrap_or(0).max(1);
    usize::try_from(bytes.div_ceil(rows)).unwrap_or(usize::MAX)
}

/// The bytes of one value of a type of fixed width.
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

    /// The batch size for a file of `n` rows that all hold a text of `bytes` bytes in the column `label`, where these
    /// columns are known.
    fn rows_of_known(n: usize, bytes: usize, memory: &str, known: &KnownColumns) -> usize {
        let text = "z".repeat(bytes);
        let column = |text: &str| Arc::new(StringArray::from(vec![text; n])) as ArrayRef;
        let columns = [("instance_id", column("i")), ("label", column(&text))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(file)).unwrap();
        let engine = EngineSpec { memory_limit: Some(memory.to_owned()), ..EngineSpec::default() };
        let ctx = engine.session().unwrap();
        limit_batch_size(&ctx, std::iter::once(SizeOfRows::new(&metadata, known)));
        ctx.state().config().batch_size()
    }

    /// As [`rows_of_known`], where every column may be read.
    fn rows_for(n: usize, bytes: usize, memory: &str) -> usize {
        rows_of_known(n, bytes, memory, &KnownColumns::default())
    }

    #[test]
    fn a_batch_of_large_values_has_few_rows() {
        assert_eq!(rows_for(200, 100_000, "64MiB"), (1 << 20) / 100_001);
        assert_eq!(rows_for(200, 100_000, "64GiB"), (64 << 20) / 100_001);
        assert_eq!(rows_for(200, 20, "64MiB"), EngineSpec::default().batch_size);
        assert_eq!(rows_for(1, 3 << 20, "64MiB"), 1);
    }

    #[test]
    fn columns_that_no_query_reads_do_not_make_batches_small() {
        let known = |ids: &[&str]| KnownColumns {
            ids: ids.iter().map(|&name| name.to_owned()).collect(),
            only_these: true,
            ..KnownColumns::default()
        };
        let rows = |known: &KnownColumns| rows_of_known(200, 100_000, "64MiB", known);
        assert_eq!(rows(&known(&["instance_id"])), EngineSpec::default().batch_size);
        assert_eq!(rows(&known(&["instance_id", "label"])), (1 << 20) / 100_001);
    }
}
