//! `latest`: the pointer to the newest committed run.

use std::path::{Path as FilePath, PathBuf};

use chrono::Utc;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, UpdateVersion};

use super::Sink;
use super::manifest::Latest;
use crate::error::{Error, Result};

/// How often a lost race for `latest.json`, or a lost answer about it, is run again.
const LATEST_ATTEMPTS: usize = 8;

impl Sink {
    /// The id of the newest committed run.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn latest(&self) -> Result<Option<String>> {
        Ok(self.read_latest().await?.map(|(latest, _)| latest.run_id))
    }

    /// Lets `latest` point to a committed run: conditionally where the store can, so that no writer overlooks another.
    ///
    /// # Errors
    /// When the store fails, or other writers keep winning.
    pub async fn point_latest(&self, run_id: &str) -> Result<()> {
        let mut failed = Error::store("other writers keep changing latest.json");
        for _ in 0..LATEST_ATTEMPTS {
            let mode = match self.read_latest().await? {
                Some((latest, _)) if latest.run_id == run_id => return self.link_latest(run_id),
                Some((_, version)) if self.place.local().is_none() => PutMode::Update(version),
                Some(_) => PutMode::Overwrite,
                None => PutMode::Create,
            };
            let latest = Latest { run_id: run_id.to_owned(), since: Utc::now().to_rfc3339() };
            match self.put_json(&self.latest_path(), &latest, mode).await {
                Ok(()) => return self.link_latest(run_id),
                Err(
                    object_store::Error::Precondition { .. }
                    | object_store::Error::AlreadyExists { .. },
                ) => {}
                Err(object_store::Error::NotImplemented { .. }) => {
                    self.put_json(&self.latest_path(), &latest, PutMode::Overwrite).await?;
                    return self.link_latest(run_id);
                }
                // A conditional put whose answer was lost is not sent again by the store; it may have been done.
                Err(e @ object_store::Error::Generic { .. }) => failed = e.into(),
                Err(e) => return Err(e.into()),
            }
        }
        Err(failed.or_at(&self.spec.url))
    }

    async fn read_latest(&self) -> Result<Option<(Latest, UpdateVersion)>> {
        let found = match self.place.store.get(&self.latest_path()).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let version =
            UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await?;
        let latest = serde_json::from_slice(&bytes)
            .map_err(|e| Error::data(format!("not a pointer to a run: {e}")).at("latest.json"))?;
        Ok(Some((latest, version)))
    }

    fn latest_path(&self) -> Path {
        self.place.path.clone().join("latest.json")
    }

    /// On local disk, switches the symlink `latest` by rename.
    fn link_latest(&self, run_id: &str) -> Result<()> {
        let Some(root) = self.place.local() else { return Ok(()) };
        let fresh = root.join(format!(".latest-{}", std::process::id()));
        let linked = symlink(&PathBuf::from("runs").join(run_id), &fresh)
            .and_then(|()| std::fs::rename(&fresh, root.join("latest")));
        linked.map_err(|e| {
            Error::store(format!("cannot switch the link `latest`: {e}"))
                .at(root.display().to_string())
        })
    }
}

fn symlink(target: &FilePath, link: &FilePath) -> std::io::Result<()> {
    let _ = std::fs::remove_file(link);
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_dir(target, link);
}
