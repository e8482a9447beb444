//! The tables of a published run as DataFusion tables again: for `sql` and `evaluate`.

use datafusion::prelude::SessionContext;
use object_store::ObjectStoreExt;

use super::files;
use crate::error::{Error, Result};
use crate::sink::{Manifest, Sink, SinkSpec};
use crate::store::{StoreSpec, open, parse_url};

/// Registers every table of a run under its name. `url` is a run's folder, or the folder that a sink published to:
/// then its newest run is meant.
///
/// # Errors
/// When there is no committed run.
pub async fn register_run(ctx: &SessionContext, url: &str, stores: &StoreSpec) -> Result<Manifest> {
    let (folder, manifest) =
        resolve(url, stores).await.map_err(|e| e.or_at(&format!("--run {url}")))?;
    for table in manifest.tables.keys() {
        files::register(ctx, table, &format!("{folder}/{table}/"), None, &[], stores).await?;
    }
    Ok(manifest)
}

/// The folder of a run: `url` itself, or the newest run of the folder that a sink published to.
///
/// # Errors
/// When there is no committed run.
pub async fn run_folder(url: &str, stores: &StoreSpec) -> Result<String> {
    Ok(resolve(url, stores).await?.0)
}

async fn resolve(url: &str, stores: &StoreSpec) -> Result<(String, Manifest)> {
    let root = url.trim_end_matches('/');
    let place = open(&parse_url(root)?, stores)?;
    if let Ok(found) = place.store.get(&place.path.clone().join("manifest.json")).await {
        let manifest = serde_json::from_slice(&found.bytes().await?)
            .map_err(|e| Error::data(format!("not a manifest: {e}")))?;
        return Ok((root.to_owned(), manifest));
    }
    let sink = Sink::open(&SinkSpec { url: root.to_owned(), ..SinkSpec::default() }, stores)?;
    let nothing = || {
        Error::data("there is no committed run here")
            .help("name the folder that [sink] url names, or one of its runs/<run_id> folders")
    };
    let run_id = sink.latest().await?.ok_or_else(nothing)?;
    let manifest = sink.committed(&run_id).await?.ok_or_else(nothing)?;
    Ok((format!("{root}/runs/{run_id}"), manifest))
}
