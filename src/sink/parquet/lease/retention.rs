//! `sink.keep_runs`: older committed runs of a pipeline are revoked, and their files deleted.

use object_store::ObjectStoreExt;

use crate::error::Result;
use crate::sink::parquet::control::ControlFile;
use crate::sink::parquet::manifest::manifest_names::{Committed, READS_AT_ONCE, RunState};
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::sink::parquet::publish::attempt::Attempt;

impl ParquetSink {
    /// Collects (revokes and deletes) all but the newest runs of the pipeline whose run was just committed. The run
    /// that `latest` names always stays, and so do the runs of pipelines without a name. A revoked commit leaves a
    /// tombstone of a few hundred bytes.
    pub(in crate::sink::parquet) async fn collect(
        &self,
        own: &Attempt,
        newest: &Committed,
    ) -> Result<()> {
        let is_named = !newest.manifest.pipeline.is_empty();
        let Some(keep) = self.spec.keep_runs.filter(|_| is_named) else { return Ok(()) };
        let named = match self.read_latest().await? {
            ControlFile::Whole(latest, _) => Some(latest.run_id),
            _ => None,
        };
        let pipeline = &newest.manifest.pipeline;
        let is_own = |committed: &Committed, run_id: &str| {
            committed.manifest.run_id == run_id && committed.manifest.pipeline == *pipeline
        };
        let mut runs = Vec::new();
        // A run that was collected before has no files: skip it.
        let folders = self.run_folders().await?.into_iter();
        let run_ids: Vec<String> =
            folders.filter(|(_, folder)| folder.has_files).map(|(run_id, _)| run_id).collect();
        // Only a manifest names its pipeline, so the manifests of other pipelines are read too: several at once.
        for run_ids in run_ids.chunks(READS_AT_ONCE) {
            let states = self.run_states(run_ids).await;
            for (run_id, state) in run_ids.iter().zip(states) {
                let (number, attempt) = match state {
                    Ok(RunState::Committed(committed)) => {
                        let found = (committed.number, Some(committed.manifest.attempt.clone()));
                        if is_own(&committed, run_id) {
                            runs.push(committed);
                        }
                        found
                    }
                    Ok(RunState::Open(number)) => (number, None),
                    // A folder of someone else.
                    Err(_) => (1, None),
                };
                if number > 1
                    && let Err(e) = self.remove_leftovers(run_id, attempt.as_deref()).await
                {
                    tracing::warn!(run_id, error = %e, "files of an attempt that was stopped could not be removed");
                }
            }
        }
        runs.sort_by(|a, b| (b.at(), &b.manifest.run_id).cmp(&(a.at(), &a.manifest.run_id)));
        let is_kept = |c: &Committed| {
            named.as_ref() == Some(&c.manifest.run_id)
                || c.manifest.run_id == newest.manifest.run_id
                || c.manifest.attempt.is_empty()
        };
        for old in runs.iter().skip(keep as usize).filter(|old| !is_kept(old)) {
            // While the lease exists, its writer has not reported the commit: a later job collects the run.
            match self.location.store.head(&self.lease_path(&old.manifest.attempt)).await {
                Err(object_store::Error::NotFound { .. }) => {}
                Ok(_) | Err(_) => continue,
            }
            tracing::info!(run_id = old.manifest.run_id, "collected an older run");
            self.revoke(&old.manifest.run_id, old, "collected: sink.keep_runs", &own.path).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::sink::parquet::testing::{TestSink, attempt, lease_file};

    /// A day that is later by a writer's clock than every other time in these tests.
    const FUTURE: &str = "2999-01-01T00:00:00Z";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_run_whose_writer_has_not_reported_it_yet_is_not_collected() {
        let test = TestSink::new(Some(1));
        test.writer_elsewhere('a', "old", 1_000);
        test.commit("old", &attempt('a'), 30, "").await;
        let newest = test.commit("new", &attempt('b'), 20, "").await;
        let own = test.begin().await;
        test.sink.collect(&own, &newest).await.unwrap();
        assert_eq!(test.are_committed(["old", "new"]).await, [true, true]);
        fs::remove_file(test.path(&lease_file('a'))).unwrap();
        test.sink.collect(&own, &newest).await.unwrap();
        assert_eq!(test.are_committed(["old", "new"]).await, [false, true]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_run_that_latest_names_and_runs_of_the_old_form_are_not_collected() {
        let test = TestSink::new(Some(1));
        test.commit("first", "", 50, "").await;
        let named = test.commit("named", &attempt('a'), 40, "").await;
        test.commit("old", &attempt('b'), 30, "").await;
        let newest = test.commit("new", &attempt('c'), 20, "").await;
        let _ = test.sink.point_latest(&named, None).await.unwrap();
        let own = test.begin().await;
        test.sink.collect(&own, &newest).await.unwrap();
        let are = test.are_committed(["first", "named", "old", "new"]).await;
        assert_eq!(are, [true, true, false, true]);
        assert!(test.path("runs/first/labels/part-00000.parquet").exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn runs_are_old_by_the_store_s_clock_whatever_the_clocks_of_their_writers_say() {
        let test = TestSink::new(Some(2));
        test.commit("old", &attempt('a'), 40, FUTURE).await;
        test.commit("young", &attempt('b'), 30, "1999-01-01T00:00:00Z").await;
        let newest = test.commit("new", &attempt('c'), 20, "2000-01-01T00:00:00Z").await;
        let own = test.begin().await;
        test.sink.collect(&own, &newest).await.unwrap();
        assert_eq!(test.are_committed(["old", "young", "new"]).await, [false, true, true]);
    }
}
