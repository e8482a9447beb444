//! Turns listed objects into a DataFusion table that reads exactly those objects, lazily.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::prelude::SessionContext;
use object_store::ObjectStore;
use object_store::path::Path;

pub use super::listing::Files;
pub(crate) use super::listing::format::STAYS_TEXT;
pub use super::listing::format::{Format, UNTYPED};
use super::listing::pinned::PinnedStore;
use crate::engine::own_root;
use crate::error::Result;
use crate::source::relation::known_columns::KnownColumns;
use crate::source::text::{InferenceScope, TextTable};
use crate::source::typed;
use crate::store::shown;

/// Registers files of one format as the table `name`. The table reads the listed files in their listed versions, and no
/// others.
///
/// # Errors
/// When a file does not have the format that its name implies, has changed, or has columns incompatible with the other
/// files'.
pub async fn register_files(ctx: &SessionContext, name: &str, files: &Files) -> Result<()> {
    register(ctx, name, files, &KnownColumns::default(), InferenceScope::Whole).await
}

/// As [`register_files`], given the columns that are known before a file is opened.
pub(in crate::source) async fn register(
    ctx: &SessionContext,
    name: &str,
    Files { location, format, objects }: &Files,
    columns: &KnownColumns,
    look: InferenceScope,
) -> Result<()> {
    let store: Arc<dyn ObjectStore> =
        Arc::new(PinnedStore::new(Arc::clone(&location.store), objects, &location.url));
    let table: Arc<dyn TableProvider> = if format.is_text() {
        Arc::new(TextTable::open(store, &location.url, objects, *format, columns, look).await?)
    } else {
        let url = own_root(name, &shown(&location.url, &Path::default()))?;
        ctx.register_object_store(&url, Arc::clone(&store));
        typed::table(ctx, (&url, &store), &location.url, (objects, *format), columns).await?
    };
    ctx.register_table(name, table)?;
    Ok(())
}
