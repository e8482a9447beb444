//! One Parquet or Arrow file before it is read: its schema, and what its metadata says of how to read it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::config::TableParquetOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::prelude::SessionContext;
use futures::FutureExt;
use object_store::{ObjectMeta, ObjectStore};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use super::batch_rows::SizeOfRows;
use super::header::refuse_doubles;
use crate::error::{Error, Result, Stage};

/// The key of a field under which Arrow keeps the shape of its tensors.
pub(super) const TENSOR_SHAPE: &str = "ARROW:extension:metadata";

/// What is known of a file.
pub(super) struct TypedFile {
    pub(super) schema: SchemaRef,
    /// How large its rows are, where it is a Parquet file.
    pub(super) rows: Option<SizeOfRows>,
    /// Whether the bounds that it states for its columns hold every value.
    has_reliable_bounds: bool,
}

impl TypedFile {
    /// Reads the metadata of a file, once.
    pub(super) async fn open(
        format: &Arc<dyn FileFormat>,
        ctx: &SessionContext,
        store: &Arc<dyn ObjectStore>,
        object: &ObjectMeta,
    ) -> Result<Self> {
        if format.downcast_ref::<ParquetFormat>().is_none() {
            super::arrow::check_lengths(store, object, &ctx.runtime_env().memory_pool).await?;
            let schema = with_shapes_alone(schema_of(format, ctx, store, object).await?.as_ref());
            return Ok(Self { schema, rows: None, has_reliable_bounds: true });
        }
        let schema = with_shapes_alone(schema_of(format, ctx, store, object).await?.as_ref());
        // The session has kept it since.
        let metadata = DFParquetMetadata::new(store.as_ref(), object)
            .with_file_metadata_cache(Some(
                ctx.runtime_env().cache_manager.get_file_metadata_cache(),
            ))
            .fetch_metadata()
            .await?;
        refuse_double_columns(&metadata)?;
        let mut columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
        let has_reliable_bounds = columns.all(is_reliable);
        Ok(Self { schema, rows: Some(SizeOfRows::of(&metadata)), has_reliable_bounds })
    }
}

/// How Parquet files are looked at: with what they say of their columns beside the type.
pub(super) fn parquet_metadata() -> ParquetFormat {
    ParquetFormat::default().with_force_view_types(false).with_skip_metadata(false)
}

/// How Parquet files are read. Where a file's bounds cannot be relied on, every row group is.
pub(super) fn parquet_format(files: &[TypedFile]) -> ParquetFormat {
    let mut options = TableParquetOptions::default();
    if !files.iter().all(|file| file.has_reliable_bounds) {
        options.global.pruning = false;
        options.global.enable_page_index = false;
    }
    ParquetFormat::default().with_options(options).with_force_view_types(false)
}

/// The schema without what a file may say of its columns in words, but for the shapes of tensors.
fn with_shapes_alone(schema: &Schema) -> SchemaRef {
    let one = |field: &FieldRef| {
        let is_tensor = field.extension_type_name() == Some("arrow.fixed_shape_tensor");
        let shape = field.metadata().get_key_value(TENSOR_SHAPE).filter(|_| is_tensor);
        let shape = shape.map(|(key, shape)| (key.clone(), shape.clone()));
        field.as_ref().clone().with_metadata(shape.into_iter().collect())
    };
    Arc::new(Schema::new(schema.fields().iter().map(one).collect::<Vec<_>>()))
}

/// Statistics that name no nulls would say that there are none, and the oldest writers compared text as signed bytes.
fn is_reliable(column: &ColumnChunkMetaData) -> bool {
    column.statistics().is_none_or(|statistics| {
        statistics.null_count_opt().is_some() && !statistics.is_min_max_deprecated()
    })
}

/// Each column of a Parquet file has a name of its own. The schema that the reader infers would hold one of two alone.
fn refuse_double_columns(metadata: &ParquetMetaData) -> Result<()> {
    let columns = metadata.file_metadata().schema_descr().root_schema().get_fields();
    let names: Vec<String> = columns.iter().map(|column| column.name().to_owned()).collect();
    refuse_doubles(&names)
}

async fn schema_of(
    format: &Arc<dyn FileFormat>,
    ctx: &SessionContext,
    store: &Arc<dyn ObjectStore>,
    object: &ObjectMeta,
) -> Result<SchemaRef> {
    let (state, objects) = (ctx.state(), std::slice::from_ref(object));
    // Damaged metadata can break the reader's own arithmetic.
    let schema = AssertUnwindSafe(format.infer_schema(&state, store, objects)).catch_unwind().await;
    let schema = schema.map_err(|panic| {
        Error::of_panic(&*panic, Error::data("the metadata of the file cannot be read"))
    });
    schema.and_then(|schema| schema.map_err(Error::from)).map_err(|mut error| {
        // The reader calls a file of another format an internal error.
        if error.stage == Stage::Bug {
            error.stage = Stage::Data;
        }
        if error.stage == Stage::Data {
            return error
                .help("the file is damaged, cut short, or not what its name says: write it again");
        }
        error
    })
}
