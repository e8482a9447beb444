//! `sink.keep_runs`: older committed runs of a pipeline are revoked, and their files deleted.

use std::collections::BTreeSet;

use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};

use super::attempt::Attempt;
use super::control::Control;
use super::manifest_names::{Committed, ManifestState, RunState};
use super::place::ParquetSink;
use crate::error::Result;

impl ParquetSink {
    /// Collects all but the newest runs of the pipeline whose run was just committed. The run that `latest` names
    /// stays in any case. A revoked commit leaves its tombstone: a few hundred bytes.
    pub(super) async fn collect(&self, own: &Attempt, newest: &Committed) -> Result<()> {
        let Some(keep) = self.spec.keep_runs else { return Ok(()) };
        let named = match self.read_latest().await? {
            Control::Whole(latest, _) => Some(latest.run_id),
            _ => None,
        };
        let pipeline = &newest.manifest.pipeline;
        let is_own = |committed: &Committed, run_id: &str| {
            committed.manifest.run_id == run_id && committed.manifest.pipeline == *pipeline
        };
        let mut runs = Vec::new();
        for run_id in self.runs_with_files().await? {
            match self.run_state(&self.run_path(&run_id)).await {
                Ok(RunState::Committed(committed)) if is_own(&committed, &run_id) => {
                    runs.push(committed);
                }
                Ok(RunState::Open(_)) => self.finish_revoked(&run_id).await?,
                // Another pipeline's run, or a folder of somebody else.
                Ok(RunState::Committed(_)) | Err(_) => {}
            }
        }
        runs.sort_by(|a, b| (b.at(), &b.manifest.run_id).cmp(&(a.at(), &a.manifest.run_id)));
        let is_kept = |c: &Committed| {
            named.as_ref() == Some(&c.manifest.run_id)
                || c.manifest.run_id == newest.manifest.run_id
                || c.manifest.attempt.is_empty()
        };
        for old in runs.iter().skip(keep as usize).filter(|old| !is_kept(old)) {
            // While the lease exists its writer has not reported the commit: a later job collects the run.
            match self.place.store.head(&self.lease_path(&old.manifest.attempt)).await {
                Err(object_store::Error::NotFound { .. }) => {}
                Ok(_) | Err(_) => continue,
            }
            tracing::info!(run_id = old.manifest.run_id, "collected an older run");
            self.revoke(&old.manifest.run_id, old, "collected: sink.keep_runs", &own.path).await?;
        }
        Ok(())
    }

    /// Deletes the files of revoked commits that are still there, because whoever revoked them was cut short.
    pub(super) async fn finish_revoked(&self, run_id: &str) -> Result<()> {
        let run = self.run_path(run_id);
        for number in 1.. {
            match self.manifest_state(&run, number).await? {
                ManifestState::Tombstone { revoked } if !revoked.is_empty() => {
                    self.remove_revoked(run_id, &revoked).await?;
                }
                ManifestState::Tombstone { .. } => {}
                ManifestState::Absent | ManifestState::Committed(_) => break,
            }
        }
        Ok(())
    }

    /// The runs that have more than manifests: what was collected before is not looked at again.
    async fn runs_with_files(&self) -> Result<BTreeSet<String>> {
        let runs = self.runs();
        let mut found = BTreeSet::new();
        let mut objects = self.place.store.list(Some(&runs));
        while let Some(object) = objects.try_next().await? {
            let mut below = object.location.prefix_match(&runs).into_iter().flatten();
            if let (Some(run_id), Some(_), Some(_)) = (below.next(), below.next(), below.next()) {
                found.insert(run_id.as_ref().to_owned());
            }
        }
        Ok(found)
    }
}
