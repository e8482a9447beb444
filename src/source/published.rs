//! The tables of a published run as sources again: the one door between the first stage and the last.

use datafusion::prelude::SessionContext;

use super::files::{Files, Format, register_objects};
use crate::error::Result;
use crate::sink::{Manifest, PublishedRun};
use crate::store::StoreSpec;

/// Where nothing lies at `<url>/<table>`, that is the table of the newest run that was published at `<url>`: on local
/// disk a link may lead there, on a store none can.
pub(super) async fn table(text: &str, stores: &StoreSpec) -> Result<Option<Files>> {
    let Some((url, table)) = text.trim_end_matches('/').rsplit_once('/') else { return Ok(None) };
    let Ok(run) = PublishedRun::find(url, stores).await else { return Ok(None) };
    let tables = run.tables().await?;
    let found = tables.into_iter().find(|(name, _)| *name == table).map(|(_, objects)| objects);
    Ok(found.map(|objects| Files { place: run.place, format: Format::Parquet, objects }))
}

/// Registers every table of a run under its name: the files that its manifest lists, and no others.
///
/// # Errors
/// When there is no committed run, or files of it are missing.
pub async fn register_run(ctx: &SessionContext, url: &str, stores: &StoreSpec) -> Result<Manifest> {
    let named = |e: crate::error::Error| e.or_at(&format!("--run {url}"));
    let run = PublishedRun::find(url, stores).await.map_err(named)?;
    for (table, objects) in run.tables().await.map_err(named)? {
        register_objects(ctx, table, &run.place, &objects, Format::Parquet).await?;
    }
    Ok(run.manifest)
}
