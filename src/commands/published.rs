//! Registers the tables of a published run with DataFusion, for `sql` and `evaluate`.

use datafusion::prelude::SessionContext;

use crate::error::Result;
use crate::sink::{Manifest, PublishedRun};
use crate::source::files::{Files, Format, register_files};
use crate::store::StoreSpec;

/// Registers every table of a run under its name: the files that its manifest lists, and no others.
///
/// # Errors
/// When there is no committed run, or files of it are missing.
pub async fn register_run(ctx: &SessionContext, url: &str, stores: &StoreSpec) -> Result<Manifest> {
    let named = |e: crate::error::Error| e.or_at(&format!("--run {url}"));
    let run = PublishedRun::find(url, stores).await.map_err(named)?;
    for (table, objects) in run.tables().await.map_err(named)? {
        let files = Files { place: run.place.clone(), format: Format::Parquet, objects };
        register_files(ctx, table, &files).await?;
    }
    Ok(run.manifest)
}
