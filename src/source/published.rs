//! The one door between the first stage and the last: what was published is read again.

use object_store::ObjectMeta;

use crate::error::{Result, Stage};
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
    if is_web {
        return Ok(None);
    }
    let run = match PublishedRun::look(url, stores).await {
        Ok(Some(run)) => run,
        Ok(None) => return Ok(None),
        // A file of somebody else has the name of one of ours: nothing of ours is published there.
        Err(e) if e.stage == Stage::Spec => return Ok(None),
        Err(e) => return Err(e),
    };
    let tables = run.tables().await?;
    let found = tables.into_iter().find(|(name, _)| *name == table).map(|(_, objects)| objects);
    Ok(found.map(|objects| (run.place, objects)))
}
