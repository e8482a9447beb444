//! Resolves a source URL to a table of a published run. The source stage uses the sink stage here only.

use object_store::ObjectMeta;

use crate::error::{Result, Stage};
use crate::sink::PublishedRun;
use crate::store::{Place, StoreSpec};

/// Returns the Parquet files of a table of the newest run that was published at `<url>`, for the text `<url>/<table>`
/// where no file exists. On local disk a symlink may lead to the table; an object store has none.
pub(super) async fn table(
    text: &str,
    stores: &StoreSpec,
) -> Result<Option<(Place, Vec<ObjectMeta>)>> {
    let Some((url, table)) = text.trim_end_matches('/').rsplit_once('/') else { return Ok(None) };
    // A web server cannot list files, and is never a sink.
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    if is_web {
        return Ok(None);
    }
    let run = match PublishedRun::look(url, stores).await {
        Ok(Some(run)) => run,
        Ok(None) => return Ok(None),
        // A foreign file has the name of one of labelmill's own files: no run is published there.
        Err(e) if e.stage == Stage::Spec => return Ok(None),
        Err(e) => return Err(e),
    };
    let tables = run.tables().await?;
    let found = tables.into_iter().find(|(name, _)| *name == table).map(|(_, objects)| objects);
    Ok(found.map(|objects| (run.place, objects)))
}
