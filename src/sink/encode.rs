//! One part of a table as the bytes of a Parquet file.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::{ArrowColumnWriter, compute_leaves};
use datafusion::parquet::basic::{Compression as Codec, ZstdLevel};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::metadata::KeyValue;
use datafusion::parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesBuilder,
};
use datafusion::parquet::schema::types::ColumnPath;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::tables::{Kind, Outcome, Part, SCHEMA_VERSION, Table, batches, schema};

/// How Parquet pages are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Small and fast; every current reader knows it.
    #[default]
    Zstd,
    /// For old readers.
    Snappy,
    /// Largest and fastest.
    None,
}

/// The bytes of a part, and how many rows they hold.
pub(super) fn encode(
    table: &dyn Table,
    outcome: &Outcome,
    part: &Part,
    compression: Compression,
) -> Result<(Vec<u8>, usize)> {
    let schema = schema(table, outcome);
    let one_row_each = outcome.answers.iter().all(|answer| table.rows_per_unit(answer) == 1);
    let is_distinct = |kind: &Kind| match kind {
        Kind::Instance => true,
        Kind::Annotator => one_row_each,
        Kind::Label | Kind::Fixed(_) => false,
    };
    let is_distinct = |field: &Field| {
        table.columns().iter().any(|c| c.name == field.name() && is_distinct(&c.kind))
    };
    let batches = batches(table, outcome, &schema, part);
    parquet(table.name(), &schema, is_distinct, compression, batches)
}

/// The bytes of a Parquet file of these batches, and how many rows they hold. No dictionary is built where `distinct`
/// says that almost all values differ.
///
/// # Why
/// The batches become one row group, whose columns are encoded side by side: a job's largest table would else keep one
/// thread busy when all others are written. No table has columns of more than one leaf.
pub(crate) fn parquet(
    table: &str,
    schema: &SchemaRef,
    distinct: impl Fn(&Field) -> bool,
    compression: Compression,
    batches: impl Iterator<Item = Result<RecordBatch>>,
) -> Result<(Vec<u8>, usize)> {
    let codec = match compression {
        Compression::Zstd => Codec::ZSTD(ZstdLevel::default()),
        Compression::Snappy => Codec::SNAPPY,
        Compression::None => Codec::UNCOMPRESSED,
    };
    let facts = [
        ("labelmill.table", table.to_owned()),
        ("labelmill.schema_version", SCHEMA_VERSION.to_string()),
    ];
    let facts = facts.map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(facts.to_vec()))
        .set_created_by(concat!("labelmill ", env!("CARGO_PKG_VERSION")).to_owned());
    let properties = schema
        .fields()
        .iter()
        .fold(properties, |p, field| encoding(p, field, distinct(field)))
        .build();
    let writer = ArrowWriter::try_new(Vec::new(), SchemaRef::clone(schema), Some(properties))?;
    let (mut file, groups) = writer.into_serialized_writer()?;
    let mut columns = groups.create_column_writers(0)?;
    let mut rows = 0;
    for batch in batches {
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
        let mut group = file.next_row_group()?;
        columns.into_iter().try_for_each(|column| column.append_to_row_group(&mut group))?;
        group.close()?;
    }
    Ok((file.into_inner()?, rows))
}

/// Instances come sorted and almost all different, and so do real numbers: no dictionary is worth building for them.
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
