//! Tables of published runs as sources. The layout of runs belongs to a later stage, which finds them.

use futures::future::BoxFuture;
use object_store::ObjectMeta;

use crate::error::Result;
use crate::store::{StoreLocation, StoreSpec};

/// The result of a search for a table of a published run.
pub enum TableSearch {
    /// Where the files of the table are, and the files.
    Found(StoreLocation, Vec<ObjectMeta>),
    /// There is no such table.
    Missing,
    /// The store denies this client a request of the search, as this text says.
    Denied(String),
}

/// Finds tables of published runs.
pub trait PublishedTables: Sync {
    /// The Parquet files of a table of the newest run that was published at `<url>`, for the text `<url>/<table>`.
    ///
    /// # Errors
    /// When the store fails, or files of the run are missing.
    fn find<'a>(
        &'a self,
        text: &'a str,
        stores: &'a StoreSpec,
    ) -> BoxFuture<'a, Result<TableSearch>>;
}
