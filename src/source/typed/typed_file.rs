//! The metadata of one Parquet or Arrow file: its schema, the size of its rows, and whether its statistics are
//! reliable.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::config::TableParquetOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::prelude::SessionContext;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use url::Url;

use super::arrow_file::checked_schema;
use super::batch_rows::SizeOfRows;
use super::header::refuse_doubles;
use super::sized_parquet::SizedParquet;
use crate::error::{DAMAGED_HELP, Error, Result, Stage};
use crate::source::relation::known_columns::KnownColumns;
use crate::store::shown;

/// The metadata key of the shape of Arrow's fixed-shape tensors.
pub(super) const TENSOR_SHAPE: &str = "ARROW:extension:metadata";

/// How many files' metadata is read concurrently.
const FILES_IN_FLIGHT: usize = 32;

/// The metadata of one file.
pub(super) struct TypedFile {
    pub(super) schema: SchemaRef,
    /// The size of its rows as far as they are read, where it is a Parquet file.
    pub(super) rows: Option<SizeOfRows>,
    /// Whether it is a stream of Arrow messages, which needs another reader than a file with a footer.
    pub(super) is_stream: bool,
    /// Whether the min/max statistics of its columns cover every value.
    has_reliable_bounds: bool,
}

impl TypedFile {
    /// Reads the metadata of a file, once.
    pub(super) async fn open(
        format: &Arc<dyn FileFormat>,
        ctx: &SessionContext,
        (store, object): (&Arc<dyn ObjectStore>, &ObjectMeta),
        columns: &KnownColumns,
    ) -> Result<Self> {
        if format.downcast_ref::<SizedParquet>().is_none() {
            let pool = &ctx.runtime_env().memory_pool;
            let (schema, is_stream) = checked_schema(store, object, pool).await?;
            let schema = with_shapes_alone(&schema);
            return Ok(Self { schema, rows: None, is_stream, has_reliable_bounds: true });
        }
        let cache = ctx.runtime_env().cache_manager.get_file_metadata_cache();
        let file =
            DFParquetMetadata::new(store.as_ref(), object).with_file_metadata_cache(Some(cache));
        let schema = with_shapes_alone(&parquet_schema(&file).await?);
        // `parquet_schema` has put the metadata into the session's cache.
        let metadata = file.fetch_metadata().await?;
        refuse_double_columns(&metadata)?;
        let mut chunks = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
        let has_reliable_bounds = chunks.all(is_reliable);
        let rows = Some(SizeOfRows::new(&metadata, columns));
        Ok(Self { schema, rows, is_stream: false, has_reliable_bounds })
    }

    /// Reads the metadata of all files; errors name the file by its location below `location`.
    pub(super) async fn open_all(
        format: &Arc<dyn FileFormat>,
        ctx: &SessionContext,
        (store, location): (&Arc<dyn ObjectStore>, &Url),
        objects: &[&ObjectMeta],
        columns: &KnownColumns,
    ) -> Result<Vec<Self>> {
        let files: Vec<BoxFuture<'_, Result<Self>>> = objects
            .iter()
            .map(|object| {
                let file = Self::open(format, ctx, (store, *object), columns);
                let location = shown(location, &object.location);
                file.map(move |file| file.map_err(|e| e.or_at(&location))).boxed()
            })
            .collect();
        futures::stream::iter(files).buffered(FILES_IN_FLIGHT).try_collect().await
    }
}

/// The Parquet options for reading rows. Where the statistics of a file are not reliable, no row group is skipped.
pub(super) fn parquet_format(files: &[TypedFile]) -> SizedParquet {
    let mut options = TableParquetOptions::default();
    if !files.iter().all(|file| file.has_reliable_bounds) {
        options.global.pruning = false;
        options.global.enable_page_index = false;
    }
    SizedParquet(ParquetFormat::default().with_options(options).with_force_view_types(false))
}

/// Drops the metadata of all fields, except for the shapes of tensors.
fn with_shapes_alone(schema: &Schema) -> SchemaRef {
    let one = |field: &FieldRef| {
        let is_tensor = field.extension_type_name() == Some("arrow.fixed_shape_tensor");
        let shape = field.metadata().get_key_value(TENSOR_SHAPE).filter(|_| is_tensor);
        let shape = shape.map(|(key, shape)| (key.clone(), shape.clone()));
        field.as_ref().clone().with_metadata(shape.into_iter().collect())
    };
    Arc::new(Schema::new(schema.fields().iter().map(one).collect::<Vec<_>>()))
}

/// Whether a reader may skip row groups by these statistics. Without a null count they would state that there are no
/// nulls, and the oldest writers compared text as signed bytes.
fn is_reliable(column: &ColumnChunkMetaData) -> bool {
    column.statistics().is_none_or(|statistics| {
        statistics.null_count_opt().is_some() && !statistics.is_min_max_deprecated()
    })
}

/// Refuses duplicate column names: the schema that the reader infers would keep only one of the columns.
fn refuse_double_columns(metadata: &ParquetMetaData) -> Result<()> {
    let columns = metadata.file_metadata().schema_descr().root_schema().get_fields();
    let names: Vec<String> = columns.iter().map(|column| column.name().to_owned()).collect();
    refuse_doubles(&names)
}

/// The schema of a Parquet file. That of a format would look for each column among all others, to merge files.
async fn parquet_schema(file: &DFParquetMetadata<'_>) -> Result<Schema> {
    // Damaged metadata can make the reader panic, for example on an overflow.
    let schema = AssertUnwindSafe(file.fetch_schema()).catch_unwind().await;
    let schema = schema.map_err(|panic| {
        Error::of_panic(&*panic, Error::data("the metadata of the file cannot be read"))
    });
    schema.and_then(|schema| schema.map_err(Error::from)).map_err(|mut error| {
        // An internal error of the reader comes from what it reads.
        if error.stage == Stage::Bug {
            error.stage = Stage::Data;
        }
        if error.stage == Stage::Data {
            return error.help(DAMAGED_HELP);
        }
        error
    })
}
