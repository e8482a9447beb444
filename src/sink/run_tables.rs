//! The tables of a published run, for readers: as a source, and as DataFusion tables for `sql` and `evaluate`.

use datafusion::prelude::SessionContext;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::CommittedRun;
use super::parquet::PublishedRun;
use crate::error::{Error, Result, Stage};
use crate::redact::redacted_location;
use crate::source::files::{Files, Format, register_files};
use crate::source::{PublishedTables, TableSearch};
use crate::store::{StoreSpec, is_denied};

/// Finds the tables of the runs that a [`Publisher`](super::Publisher) published.
pub struct RunTables;

impl PublishedTables for RunTables {
    fn find<'a>(
        &'a self,
        text: &'a str,
        stores: &'a StoreSpec,
    ) -> BoxFuture<'a, Result<TableSearch>> {
        table(text, stores).boxed()
    }
}

/// On local disk a symlink may lead to the table; an object store has none.
async fn table(text: &str, stores: &StoreSpec) -> Result<TableSearch> {
    let Some((url, table)) = text.trim_end_matches('/').rsplit_once('/') else {
        return Ok(TableSearch::Missing);
    };
    // A web server cannot list files, and is never a sink.
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    if is_web {
        return Ok(TableSearch::Missing);
    }
    let run = match PublishedRun::find_optional(url, stores).await {
        Ok(Some(run)) => run,
        Ok(None) => return Ok(TableSearch::Missing),
        // A foreign file has the name of one of labelmill's own files: no run is published there.
        Err(e) if e.stage == Stage::Spec => return Ok(TableSearch::Missing),
        // A client that may read some folders only is also denied what is not there, such as a run at a mistyped URL.
        Err(e) if e.cause_in_store().is_some_and(is_denied) => {
            let what: Vec<_> = e.problems.into_iter().map(|problem| problem.what).collect();
            let what = what.join("; ");
            let denial = format!("the store denies the search for a run at `{url}`: {what}");
            return Ok(TableSearch::Denied(denial));
        }
        Err(e) => return Err(e),
    };
    let tables = run.tables().await?;
    let found = tables.into_iter().find(|(name, _)| *name == table).map(|(_, objects)| objects);
    Ok(found.map_or(TableSearch::Missing, |objects| TableSearch::Found(run.location, objects)))
}

/// Registers every table of a run under its name: the files that its manifest lists, and no others.
///
/// # Errors
/// When there is no committed run, or files of it are missing.
pub async fn register_run(
    ctx: &SessionContext,
    url: &str,
    stores: &StoreSpec,
) -> Result<CommittedRun> {
    let named = |e: Error| e.or_at(&format!("--run {}", redacted_location(url)));
    let run = PublishedRun::find(url, stores).await.map_err(named)?;
    for (table, objects) in run.tables().await.map_err(named)? {
        let files = Files { location: run.location.clone(), format: Format::Parquet, objects };
        register_files(ctx, table, &files).await?;
    }
    Ok(run.run)
}
