//! Tables of published runs as sources. The layout of runs belongs to a later stage, which finds them.

use futures::future::BoxFuture;
use object_store::ObjectMeta;

use crate::error::Result;
use crate::store::{StoreLocation, StoreSpec};

/// Where the files of a table are, and the files.
pub type TableFiles = (StoreLocation, Vec<ObjectMeta>);

/// Finds tables of published runs.
pub trait PublishedTables: Sync {
    /// The Parquet files of a table of the newest run that was published at `<url>`, for the text `<url>/<table>`; `None`
    /// if there is no such table.
    ///
    /// # Errors
    /// When the store fails, or files of the run are missing. A place that this client may not read holds no run.
    fn find<'a>(
        &'a self,
        text: &'a str,
        stores: &'a StoreSpec,
    ) -> BoxFuture<'a, Result<Option<TableFiles>>>;
}
