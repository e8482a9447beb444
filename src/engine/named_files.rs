//! Names the file in an error of a scan.
//!
//! # Why
//! Where the pages of a file are damaged, DataFusion says what is wrong with them, but not which of a folder's files it
//! was reading.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{
    FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use datafusion_datasource::PartitionedFile;
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use url::Url;

use crate::error::Error;

/// The scheme of the roots of tables with a store of their own.
const OWN_ROOT: &str = "source";

/// The root of the store that serves only the files of the table `name`; `location` is what comes before their paths for a
/// person, such as `s3://bucket/`.
///
/// # Errors
/// When there is no such URL, which is a bug.
pub(crate) fn own_root(name: &str, location: &str) -> Result<Url, Error> {
    let (name, location) = (hex_of_text(name), hex_of_text(location));
    Url::parse(&format!("{OWN_ROOT}://t{name}.{location}/"))
        .map_err(|e| Error::bug(format!("a table's URL: {e}")))
}

/// The location of a file below this root, as a person would write it.
fn named_file(root: &Url, file: &Path) -> String {
    let location = root.host_str().filter(|_| root.scheme() == OWN_ROOT);
    let location = location.and_then(|host| text_of_hex(host.split_once('.')?.1));
    format!("{}{file}", location.as_deref().unwrap_or(root.as_str()))
}

fn hex_of_text(text: &str) -> String {
    text.bytes().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn text_of_hex(hex: &str) -> Option<String> {
    let bytes = hex.as_bytes().chunks(2).map(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        u8::from_str_radix(digits, 16).ok()
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

/// Wraps the sources of all scans. No rule may follow it, since rules ask for the type of a source.
#[derive(Debug)]
pub(super) struct NameFiles;

impl PhysicalOptimizerRule for NameFiles {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let wrap = |node: Arc<dyn ExecutionPlan>| {
            let scan = node.downcast_ref::<DataSourceExec>();
            let scan = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
            Ok(match scan {
                Some(scan) => {
                    let source = Arc::new(NamedSource(Arc::clone(scan.file_source())));
                    let named = FileScanConfigBuilder::from(scan.clone()).with_source(source);
                    Transformed::yes(DataSourceExec::from_data_source(named.build()) as _)
                }
                None => Transformed::no(node),
            })
        };
        Ok(plan.transform_down(wrap)?.data)
    }

    fn name(&self) -> &'static str {
        "name_files"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A source whose errors name the file. What only rules ask for keeps its default, since no rule follows.
struct NamedSource(Arc<dyn FileSource>);

impl FileSource for NamedSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        self.0.create_file_opener(store, scan, partition)
    }

    fn create_morselizer(
        &self,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Box<dyn Morselizer>> {
        let root: &Url = scan.object_store_url.as_ref();
        let root = root.clone();
        let inner = self.0.create_morselizer(store, scan, partition)?;
        Ok(Box::new(NamedMorselizer { inner, root }))
    }

    fn table_schema(&self) -> &TableSchema {
        self.0.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self(self.0.with_batch_size(batch_size)))
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.0.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.0.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.0.metrics()
    }

    fn file_type(&self) -> &str {
        self.0.file_type()
    }

    fn fmt_extra(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_extra(format, f)
    }

    fn supports_repartitioning(&self) -> bool {
        self.0.supports_repartitioning()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(visit)
    }
}

#[derive(Debug)]
struct NamedMorselizer {
    inner: Box<dyn Morselizer>,
    /// The root of the store.
    root: Url,
}

impl Morselizer for NamedMorselizer {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        let name = named_file(&self.root, &file.object_meta.location);
        PartOfFile::of_planner(self.inner.plan_file(file), &Arc::from(name))
    }
}

/// A part of the work on the file of this name.
#[derive(Debug)]
struct PartOfFile<T: ?Sized> {
    name: Arc<str>,
    inner: Box<T>,
}

impl PartOfFile<dyn MorselPlanner> {
    fn of_planner(
        planner: Result<Box<dyn MorselPlanner>>,
        name: &Arc<str>,
    ) -> Result<Box<dyn MorselPlanner>> {
        let inner = planner.map_err(|e| named(e, name))?;
        Ok(Box::new(Self { name: Arc::clone(name), inner }))
    }
}

impl MorselPlanner for PartOfFile<dyn MorselPlanner> {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        let Self { name, inner } = *self;
        let Some(mut plan) = inner.plan().map_err(|e| named(e, &name))? else { return Ok(None) };
        let morsel =
            |inner| Box::new(PartOfFile { name: Arc::clone(&name), inner }) as Box<dyn Morsel>;
        let morsels = plan.take_morsels().into_iter().map(morsel).collect();
        let planners = plan.take_ready_planners().into_iter();
        let planners = planners.map(|planner| Self::of_planner(Ok(planner), &name));
        let mut wrapped =
            MorselPlan::new().with_morsels(morsels).with_planners(planners.collect::<Result<_>>()?);
        if let Some(pending) = plan.take_pending_planner() {
            wrapped.set_pending_planner(async move { Self::of_planner(pending.await, &name) });
        }
        Ok(Some(wrapped))
    }
}

impl Morsel for PartOfFile<dyn Morsel> {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        let Self { name, inner } = *self;
        inner.into_stream().map_err(move |e| named(e, &name)).boxed()
    }
}

/// The error with the name of the file, where its content is the cause and nothing names it yet.
fn named(error: DataFusionError, name: &str) -> DataFusionError {
    let is_of_content = matches!(
        error.find_root(),
        DataFusionError::ParquetError(_) | DataFusionError::ArrowError(..)
    );
    if !is_of_content {
        return error;
    }
    DataFusionError::External(Box::new(Error::from(error).or_at(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_table_with_its_own_store_is_named_where_it_really_is() {
        let file = Path::from("labels/a.parquet");
        for location in ["/", "s3://crowd/"] {
            let root = own_root("source.annotations", location).unwrap();
            assert_eq!(named_file(&root, &file), format!("{location}labels/a.parquet"));
            assert_ne!(root, own_root("source.gold", location).unwrap());
        }
        let foreign = Url::parse("s3://crowd/").unwrap();
        assert_eq!(named_file(&foreign, &file), "s3://crowd/labels/a.parquet");
    }
}
