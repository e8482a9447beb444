//! The one door between the first stage and the last: what was published is read again.

use object_store::ObjectMeta;

use crate::error::Result;
use crate::sink::PublishedRun;
use crate::store::{Place, StoreSpec};

/// Where nothing lies at `<url>/<table>`, that is the table of the newest run that was published at `<url>`: on local
/// disk a link may lead there, on a store none can. Returns its Parquet files.
pub(super) async fn table(
    text: &str,
    stores: &StoreSpec,
) -> Result<Option<(Place, Vec<ObjectMeta>)>> {
    let Some((url, table)) = text.trim_end_matches('/').rsplit_once('/') else { return Ok(None) };
    // The web lists nothing, and nobody publishes there.
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    let found = if is_web { None } else { PublishedRun::look(url, stores).await? };
    let Some(run) = found else { return Ok(None) };
    let tables = run.tables().await?;
    let found = tables.into_iter().find(|(name, _)| *name == table).map(|(_, objects)| objects);
    Ok(found.map(|objects| (run.place, objects)))
}
