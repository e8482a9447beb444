//! Encodes one part of a table as a Parquet file.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::job_context::Cancel;
use crate::tables::{SCHEMA_VERSION, Table};

/// How Parquet pages are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Small and fast; every current reader knows it. Columns of floats that would become less than a tenth smaller are
    /// not compressed.
    #[default]
    Zstd,
    /// For old readers.
    Snappy,
    /// Largest and fastest.
    None,
}

/// A sample with fewer values than this, without nulls, leaves compression on.
const MIN_SAMPLE: usize = 1 << 11;

/// Room for the metadata of a file; more of it makes the buffer grow.
const METADATA_BYTES: usize = 1 << 16;

/// The bytes of the Parquet file of one part of a table, and the number of its rows.
///
/// # Why
/// The batches become one row group, whose columns are encoded in parallel: otherwise a job's largest table would keep
/// one thread busy after all other tables are written. No table has columns with more than one leaf.
pub(super) fn encode(
    table: &dyn Table,
    part: usize,
    compression: Compression,
    cancel: &Cancel,
) -> Result<(Vec<u8>, usize)> {
    let schema = table.schema();
    let codec = match compression {
        Compression::Zstd => Codec::ZSTD(ZstdLevel::default()),
        Compression::Snappy => Codec::SNAPPY,
        Compression::None => Codec::UNCOMPRESSED,
    };
    let metadata = [
        ("labelmill.table", table.name().to_owned()),
        ("labelmill.schema_version", SCHEMA_VERSION.to_string()),
    ];
    let metadata = metadata.map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(metadata.to_vec()))
        .set_created_by(concat!("labelmill ", env!("CARGO_PKG_VERSION")).to_owned());
    let properties = schema
        .fields()
        .iter()
        .fold(properties, |p, field| encoding(p, field, table.is_distinct(field.name())));
    let properties = match compression {
        Compression::Zstd => without_compression(properties, table, part)?,
        Compression::Snappy | Compression::None => properties,
    };
    let properties = properties.build();
    let writer = ArrowWriter::try_new(Vec::new(), SchemaRef::clone(&schema), Some(properties))?;
    let (mut file, groups) = writer.into_serialized_writer()?;
    let mut columns = groups.create_column_writers(0)?;
    let mut rows = 0;
    for batch in table.batches(part) {
        cancel.check()?;
        let batch = batch?;
        rows += batch.num_rows();
        let arrays = schema.fields().par_iter().zip(batch.columns());
        columns.par_iter_mut().zip(arrays).try_for_each(|(column, (field, array))| {
            compute_leaves(field, array)?.iter().try_for_each(|leaf| column.write(leaf))
        })?;
    }
    if rows > 0 {
        let columns: Vec<_> = columns
            .into_par_iter()
            .map(ArrowColumnWriter::close)
            .collect::<Result<_, ParquetError>>()?;
        file.inner_mut().reserve_exact(file_bytes(&columns));
        let mut group = file.next_row_group()?;
        columns.into_iter().try_for_each(|column| column.append_to_row_group(&mut group))?;
        group.close()?;
    }
    Ok((file.into_inner()?, rows))
}

/// About as many bytes as a file of one row group with these columns takes.
///
/// # Why
/// A buffer that grows doubles, and its bytes are copied into new pages, which the system clears first. To clear them took
/// a sixth of the processor time of writing 10 M posteriors in files of 8 MB (two threads on an Intel Xeon).
fn file_bytes(columns: &[ArrowColumnChunk]) -> usize {
    let pages: u64 = columns.iter().map(|column| column.close().bytes_written).sum();
    usize::try_from(pages).unwrap_or(0) + METADATA_BYTES
}

/// Turns dictionaries off for columns in which almost every unit has a value of its own, and for floats: they would not
/// pay there.
fn encoding(
    properties: WriterPropertiesBuilder,
    field: &Field,
    distinct: bool,
) -> WriterPropertiesBuilder {
    if distinct || *field.data_type() == DataType::Float64 {
        properties.set_column_dictionary_enabled(ColumnPath::from(field.name().as_str()), false)
    } else {
        properties
    }
}

/// Turns compression off for the columns of floats that it makes less than a tenth smaller, judged by a sample of rows.
///
/// # Why
/// The digits of probabilities from many annotators are as good as random. To compress those of 2 M instances took 115 ms
/// of processor time, a tenth of writing them, and saved 5 % of their bytes (two threads on an Intel Xeon); probabilities
/// from few annotators or from a network of 32 bits become half as large or smaller.
fn without_compression(
    properties: WriterPropertiesBuilder,
    table: &dyn Table,
    part: usize,
) -> Result<WriterPropertiesBuilder> {
    let schema = table.schema();
    let fields = schema.fields().iter().enumerate();
    let floats = fields.filter(|(_, field)| *field.data_type() == DataType::Float64);
    let floats: Vec<usize> = floats.map(|(index, _)| index).collect();
    if floats.is_empty() {
        return Ok(properties);
    }
    // Without the other columns, whose texts may be long.
    let of_floats = |rows: Result<RecordBatch>| Ok(rows?.project(&floats)?);
    let sample = table.sample(part).map(of_floats).collect::<Result<Vec<_>>>()?;
    if sample.iter().map(RecordBatch::num_rows).sum::<usize>() < MIN_SAMPLE {
        return Ok(properties);
    }
    let schema = SchemaRef::new(schema.project(&floats)?);
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties.clone().build()))?;
    sample.iter().try_for_each(|rows| writer.write(rows))?;
    let metadata = writer.close()?;
    let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let stays_large = |column: &&ColumnChunkMetaData| {
        let bytes = |size: i64| usize::try_from(size).unwrap_or_default();
        let own = bytes(column.uncompressed_size());
        own >= MIN_SAMPLE * size_of::<f64>() && bytes(column.compressed_size()) * 10 > own * 9
    };
    Ok(columns.filter(stays_large).fold(properties, |p, column| {
        p.set_column_compression(column.column_path().clone(), Codec::UNCOMPRESSED)
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array};
    use arrow::datatypes::Schema;
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use rand::Rng as _;

    use super::*;
    use crate::job_context::JobContext;
    use crate::tables::ComputedTable;

    /// The codecs of four columns in a file of so many rows: random numbers, random numbers of 32 bits, ones with random
    /// numbers in the first rows, and ones with nulls in the first rows.
    fn codecs(rows: usize, compression: Compression) -> Vec<Codec> {
        let mut rng = JobContext::new(1).rng("rows");
        let random: Vec<f64> = (0..rows).map(|_| rng.random_range(0.0..1.0)).collect();
        let columns = ["random", "of_32_bits", "random_first", "null_first"];
        let fields = columns.map(|name| Field::new(name, DataType::Float64, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let rows_of = |range: std::ops::Range<usize>| {
            let column = |value: fn(usize, f64) -> Option<f64>| -> ArrayRef {
                Arc::new(range.clone().map(|n| value(n, random[n])).collect::<Float64Array>())
            };
            let columns = [
                column(|_, x| Some(x)),
                column(|_, x| Some(f64::from(x as f32))),
                column(|n, x| Some(if n < 9000 { x } else { 1.0 })),
                column(|n, _| (n >= 9000).then_some(1.0)),
            ];
            Ok(RecordBatch::try_new(Arc::clone(&schema), columns.to_vec())?)
        };
        let table = ComputedTable::new("t", Arc::clone(&schema), (rows, 1), rows_of);
        let (file, written) = encode(&table, 0, compression, &Cancel::default()).unwrap();
        let file = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap();
        let columns = file.metadata().row_group(0).columns();
        let codecs = columns.iter().map(ColumnChunkMetaData::compression).collect();
        let read = file.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>();
        assert_eq!((read, written), (rows, rows));
        codecs
    }

    #[test]
    fn floats_that_compression_leaves_as_large_are_not_compressed() {
        let zstd = Codec::ZSTD(ZstdLevel::default());
        assert_eq!(codecs(100_000, Compression::Zstd), [Codec::UNCOMPRESSED, zstd, zstd, zstd]);
        assert_eq!(codecs(10_000, Compression::Zstd), [zstd; 4]);
        assert_eq!(codecs(100_000, Compression::Snappy), [Codec::SNAPPY; 4]);
    }
}
