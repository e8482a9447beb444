//! Publishes a run: attempts, until one of them or somebody else's is committed.

use std::time::Duration;

use chrono::Utc;

use super::ParquetSink;
use super::attempt::Attempt;
use super::control::Created;
use super::manifest::Manifest;
use super::slot::{Committed, Slot, slot_path};
use super::write::Files;
use crate::error::{Error, Result};
use crate::run::Run;
use crate::sink::{Contents, Job};
use crate::tables::SCHEMA_VERSION;

/// Attempts of one writer: it needs another one when it was suspended for so long that it was taken for dead.
const ATTEMPTS: usize = 3;

/// How often the store is asked to commit while its answers are lost.
const COMMITS: u32 = 3;

/// How an attempt ended without an error.
enum Ended {
    /// It is committed.
    Committed(Committed),
    /// An attempt of another writer was committed as this very run.
    Concurrent(Committed),
    /// It was taken for dead: this name will never hold a commit.
    Swept,
}

impl ParquetSink {
    pub(super) async fn publish_attempts(
        &self,
        run_id: &str,
        job: &Job,
        contents: &Contents<'_>,
        run: &Run,
    ) -> Result<Manifest> {
        for _ in 0..ATTEMPTS {
            let slot = match self.open_slot(run_id).await? {
                Ok(committed) => return self.join_concurrent(committed, job).await,
                Err(slot) => slot,
            };
            let tables = contents.tables.iter().map(|t| t.name().to_owned()).collect();
            let attempt = self.begin_attempt(run_id, slot, tables).await?;
            match self.attempt(&attempt, job, contents, run).await {
                Ok(Ended::Committed(committed)) => {
                    return self.after_commit(attempt, committed).await;
                }
                Ok(Ended::Concurrent(committed)) => {
                    self.discard(attempt).await;
                    return self.join_concurrent(committed, job).await;
                }
                Ok(Ended::Swept) => {
                    tracing::warn!(
                        run_id,
                        "another process took this run for dead while it was suspended: its tables are written again"
                    );
                    self.discard(attempt).await;
                }
                Err(Failed::BeforeCommit(e)) => {
                    self.discard(attempt).await;
                    return Err(e);
                }
                // The lease stays: who finds it silent finds out what is true.
                Err(Failed::Unknown(e)) => return Err(e),
            }
        }
        Err(Error::store("this run was taken for dead again and again")
            .at(self.text(&self.run_path(run_id)))
            .help("run the job again, with a larger sink.stale_after_seconds"))
    }

    /// The name to commit under. A commit whose files are gone is revoked first.
    async fn open_slot(&self, run_id: &str) -> Result<Result<Committed, u32>> {
        let folder = self.run_path(run_id);
        loop {
            match self.first_open(&folder).await? {
                Ok(committed) if self.missing(&folder, &committed.manifest).await?.is_empty() => {
                    return Ok(Ok(committed));
                }
                Ok(committed) => {
                    let staging = folder.clone().join(committed.manifest.attempt.as_str());
                    self.revoke(run_id, &committed, "its files are missing", &staging).await?;
                }
                Err(slot) => return Ok(Err(slot)),
            }
        }
    }

    async fn attempt(
        &self,
        attempt: &Attempt,
        job: &Job,
        contents: &Contents<'_>,
        run: &Run,
    ) -> Result<Ended, Failed> {
        self.sweep(attempt).await?;
        let Files { tables, model } = self.write(attempt, contents, run).await?;
        let manifest = Manifest {
            run_id: attempt.lease.run_id.clone(),
            attempt: attempt.lease.attempt.clone(),
            pipeline: job.pipeline.clone(),
            digest: job.digest.clone(),
            labelmill: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: SCHEMA_VERSION,
            committed_at: Utc::now().to_rfc3339(),
            tables,
            model,
            measures: contents.measures.clone(),
        };
        run.cancel.begin_commit()?;
        let ended = self.commit(attempt, &manifest).await;
        run.cancel.end_commit(matches!(ended, Ok(Ended::Committed(_) | Ended::Concurrent(_))));
        run.progress.end();
        ended
    }

    /// Asks the store to create the manifest until it is known what became of it.
    async fn commit(&self, attempt: &Attempt, manifest: &Manifest) -> Result<Ended, Failed> {
        let folder = self.run_path(&manifest.run_id);
        let path = slot_path(&folder, attempt.lease.slot);
        let mut failed = None;
        for n in 0..COMMITS {
            if let Err(e) = self.create(&path, manifest, &attempt.path).await {
                failed = Some(Error::from(e));
            }
            match self.slot(&folder, attempt.lease.slot).await {
                Ok(Slot::Free) => {}
                Ok(slot) => return Ok(Self::ended(attempt, slot)),
                Err(e) => failed = Some(e),
            }
            tokio::time::sleep(Duration::from_millis(50 << n)).await;
        }
        let failed = failed
            .unwrap_or_else(|| self.in_the_way(&path, "a manifest of labelmill"))
            .or_at("sink.url");
        if self.place.local().is_some() {
            // What a disk refused is not on its way.
            return Err(Failed::BeforeCommit(failed));
        }
        // The manifest may still be on its way: what was written may go only when it can no longer arrive.
        let why = "its writer gave up";
        match self.put_tombstone(&attempt.lease, why, &attempt.path).await {
            Ok(Created::Yes) => return Err(Failed::BeforeCommit(failed)),
            Ok(Created::Exists) => {
                if let Ok(slot) = self.slot(&folder, attempt.lease.slot).await {
                    return Ok(Self::ended(attempt, slot));
                }
            }
            Err(_) => {}
        }
        Err(Failed::Unknown(failed.help(
            "the store did not say whether the run was committed: run the job again to find out",
        )))
    }

    fn ended(attempt: &Attempt, slot: Slot) -> Ended {
        match slot {
            Slot::Committed(c) if c.manifest.attempt == attempt.lease.attempt => {
                Ended::Committed(*c)
            }
            Slot::Committed(c) => Ended::Concurrent(*c),
            Slot::UsedUp(_) | Slot::Free => Ended::Swept,
        }
    }

    /// Moves `latest` and clears up. The lease ends last: as long as it is there, a rerun moves `latest` if this did
    /// not.
    async fn after_commit(&self, attempt: Attempt, committed: Committed) -> Result<Manifest> {
        self.point_latest(&committed).await.map_err(|e| {
            e.help("the run is committed, but `latest` does not point to it: run the job again")
        })?;
        // What is left over takes nothing back, and the next run tries again.
        if let Err(e) = self.reap_others_of(&attempt).await {
            tracing::warn!(error = %e, "what other attempts left could not be removed");
        }
        if let Err(e) = self.collect(&attempt, &committed).await {
            tracing::warn!(error = %e, "older runs could not be collected");
        }
        self.end(attempt).await;
        Ok(committed.manifest)
    }

    /// Another writer committed this run while this one was at work.
    async fn join_concurrent(&self, committed: Committed, job: &Job) -> Result<Manifest> {
        if committed.manifest.digest != job.digest {
            return Err(Error::store("another job took this run id at the same time")
                .at(self.text(&self.run_path(&committed.manifest.run_id)))
                .help("choose another run id, or run the job again with --force"));
        }
        crate::sink::Sink::settle(self, &committed.manifest).await?;
        Ok(committed.manifest)
    }

    /// Removes what an attempt wrote that will never be committed.
    async fn discard(&self, attempt: Attempt) {
        if self.remove_files(&attempt.lease).await.is_ok() {
            self.end(attempt).await;
        }
    }
}

/// Why an attempt failed.
enum Failed {
    /// It will never be committed.
    BeforeCommit(Error),
    /// Nobody knows.
    Unknown(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::BeforeCommit(error)
    }
}
