//! Parquet files of which a plan knows the number of rows, and nothing about their columns.
//!
//! # Why
//! No plan may use the statistics of columns (`engine/statistics.rs`), and for each of them DataFusion looks for the
//! column among all others, several times: a file of 10 000 columns and a few rows took nine times as long as one of
//! 2 500.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use object_store::{ObjectMeta, ObjectStore};

/// [`ParquetFormat`] without statistics of columns, and without an order that a file claims.
#[derive(Debug)]
pub(super) struct SizedParquet(pub(super) ParquetFormat);

#[async_trait]
impl FileFormat for SizedParquet {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.0.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.0.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.0.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
        let file = DFParquetMetadata::new(store.as_ref(), object);
        let metadata = file.with_file_metadata_cache(Some(cache)).fetch_metadata().await?;
        let rows = usize::try_from(metadata.file_metadata().num_rows());
        let rows = rows.map_or(Precision::Absent, Precision::Exact);
        Ok(Statistics::new_unknown(&table_schema).with_num_rows(rows))
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        Ok(FileMeta::new(self.infer_stats(state, store, table_schema, object).await?))
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.create_physical_plan(state, conf).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.0.file_source(table_schema)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray};
    use datafusion::catalog::TableProvider as _;
    use datafusion::common::ColumnStatistics;
    use datafusion::datasource::listing::{
        ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
    };
    use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
    use datafusion::prelude::SessionContext;
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::source::typed::typed_file::parquet_format;

    #[tokio::test]
    async fn a_plan_knows_the_number_of_rows_and_looks_for_no_column() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("features.parquet");
        let ids: ArrayRef = Arc::new(StringArray::from(vec!["i", "j", "k"]));
        let numbers: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]));
        let batch = RecordBatch::try_from_iter([("item", ids), ("x", numbers)]).unwrap();
        let output = std::fs::File::create(&file).unwrap();
        let mut writer = ArrowWriter::try_new(output, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let url = ListingTableUrl::parse(file.display().to_string()).unwrap();
        let config = ListingTableConfig::new(url)
            .with_listing_options(ListingOptions::new(Arc::new(parquet_format(&[]))))
            .with_schema(batch.schema());
        let (ctx, table) = (SessionContext::new(), ListingTable::try_new(config).unwrap());
        let plan = table.scan(&ctx.state(), None, &[], None).await.unwrap();
        let found =
            StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).unwrap();
        assert_eq!(found.num_rows, Precision::Exact(3));
        assert_eq!(found.column_statistics, vec![ColumnStatistics::new_unknown(); 2]);
    }
}
