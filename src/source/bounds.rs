//! Whether the bounds that Parquet files state for their columns may tell which row groups a filter does not want.

use std::sync::Arc;

use datafusion::config::TableParquetOptions;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::prelude::SessionContext;
use object_store::{ObjectMeta, ObjectStore};
use parquet::file::metadata::ColumnChunkMetaData;

/// The format of these files. Where bounds cannot be relied on, every row group is read.
pub(super) async fn format(
    ctx: &SessionContext,
    store: &Arc<dyn ObjectStore>,
    objects: &[&ObjectMeta],
) -> ParquetFormat {
    let mut options = TableParquetOptions::default();
    for object in objects {
        let Ok(metadata) = super::batch_rows::metadata(ctx, store, object).await else { continue };
        let mut columns = metadata.row_groups().iter().flat_map(|group| group.columns());
        if !columns.all(is_reliable) {
            options.global.pruning = false;
            options.global.enable_page_index = false;
            break;
        }
    }
    ParquetFormat::default().with_options(options).with_force_view_types(false)
}

/// Statistics that name no nulls would say that there are none, and the oldest writers compared text as signed bytes.
fn is_reliable(column: &ColumnChunkMetaData) -> bool {
    column.statistics().is_none_or(|statistics| {
        statistics.null_count_opt().is_some() && !statistics.is_min_max_deprecated()
    })
}
