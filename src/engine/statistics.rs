//! Prevents DataFusion from using a Parquet file's column statistics in place of the column's values.
//!
//! # Why
//! DataFusion treats a column whose minimum and maximum are equal as a constant, answers `min`, `max` and `count` from
//! statistics, and does not sort a file that claims to be sorted. But the bounds of floats exclude NaN, the null count
//! is optional, and nobody checks the order that a writer claims: a NaN or null weight silently became the weight of
//! its neighbours. Only the numbers of rows and bytes are kept, because the order of joins depends on them.
//!
//! A scan also uses bounds to skip row groups that a filter cannot match. NaN counts as greater than every number, but
//! is not within the bounds, so a filter on floats skips nothing.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{ColumnStatistics, Result, Statistics};
use datafusion::datasource::physical_plan::parquet::source::ParquetSource;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// Removes column statistics and claimed orders from every scan of Parquet files.
#[derive(Debug)]
pub(super) struct DropParquetStatistics;

impl PhysicalOptimizerRule for DropParquetStatistics {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let drop_from = |node: Arc<dyn ExecutionPlan>| {
            let scan = node.downcast_ref::<DataSourceExec>();
            let parts = scan.and_then(|scan| scan.downcast_to_file_source::<ParquetSource>());
            Ok(match parts {
                Some((scan, source)) => Transformed::yes(DataSourceExec::from_data_source(
                    without_statistics(scan, source),
                ) as _),
                None => Transformed::no(node),
            })
        };
        Ok(plan.transform_down(drop_from)?.data)
    }

    fn name(&self) -> &'static str {
        "drop_parquet_statistics"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The same scan without column statistics and claimed orders, and with only those filters that can skip row groups.
fn without_statistics(scan: &FileScanConfig, source: &ParquetSource) -> FileScanConfig {
    let schema = scan.file_schema();
    let groups = scan.file_groups.iter().map(|group| {
        let files = group.iter().cloned().map(|mut file| {
            file.statistics = file.statistics.map(|s| Arc::new(sizes_of(&s)));
            file.ordering = None;
            file
        });
        FileGroup::new(files.collect())
    });
    let groups = groups.collect();
    let mut builder = FileScanConfigBuilder::from(scan.clone())
        .with_file_groups(groups)
        .with_statistics(sizes_of(&scan.statistics()))
        .with_output_ordering(Vec::new());
    if let Some(filter) = source.filter() {
        let all = split_conjunction(&filter);
        let usable: Vec<_> =
            all.iter().filter(|part| can_skip(part, schema)).map(|part| Arc::clone(part)).collect();
        if usable.len() < all.len() {
            builder = builder.with_source(Arc::new(source.with_predicate(conjunction(usable))));
        }
    }
    builder.build()
}

/// Statistics with the numbers of rows and bytes alone, and nothing about columns.
fn sizes_of(statistics: &Statistics) -> Statistics {
    let mut sizes = statistics.clone();
    for column in &mut sizes.column_statistics {
        *column = ColumnStatistics::new_unknown();
    }
    sizes
}

/// Whether the bounds of the columns in a filter include all of their values.
fn can_skip(filter: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    collect_columns(filter).iter().all(|column| {
        let field = schema.field_with_name(column.name());
        field.is_ok_and(|f| !f.data_type().is_floating() && !f.data_type().is_nested())
    })
}
