//! Publishes a run: makes attempts until one of them, or one of another writer, is committed.

use std::time::Duration;

use chrono::Utc;
use object_store::ObjectMeta;

use super::attempt::Attempt;
use super::write::WrittenFiles;
use crate::error::{Error, Result, offenders};
use crate::job_context::JobContext;
use crate::sink::parquet::control::disk::Created;
use crate::sink::parquet::control::{ControlFile, write_error};
use crate::sink::parquet::manifest::Latest;
use crate::sink::parquet::manifest::latest::PointerMove;
use crate::sink::parquet::manifest::manifest_names::{
    Committed, ManifestState, RunState, manifest_path,
};
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::sink::{CommittedRun, Contents, JobIdentity, Publisher};

/// The most attempts of one writer. It needs another one if it was suspended for so long that it was considered dead.
const MAX_TRIES: usize = 3;

/// How often a commit whose files are missing is revoked: other writers may revoke it and commit it again in the
/// meantime.
const MAX_REVOKES: usize = 8;

/// How often the request to commit is sent while no answer arrives.
const COMMIT_REQUESTS: u32 = 3;

/// How an attempt ended without an error.
enum AttemptOutcome {
    /// The attempt is committed. `before` is the content of `latest` before the commit.
    Committed { committed: Box<Committed>, before: Option<Latest> },
    /// Another writer committed this run: its commit is joined if its files exist.
    Concurrent,
    /// Sweeping a dead writer used up the manifest name, which both wanted. No files are written yet.
    NameUsedUp,
    /// Another process considered the attempt dead: its manifest name will never hold a commit.
    Swept,
}

impl ParquetSink {
    pub(in crate::sink::parquet) async fn publish_attempts(
        &self,
        run_id: &str,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> Result<CommittedRun> {
        let swept = identity.advice.swept;
        for n in 0..=MAX_TRIES {
            let number = match self.revoke_if_incomplete(run_id, identity).await? {
                RunState::Committed(committed) => {
                    return self.join_concurrent(*committed, identity).await;
                }
                RunState::Open(number) => number,
            };
            if number > 1
                && let Err(e) = self.remove_leftovers(run_id, None).await
            {
                tracing::warn!(run_id, error = %e, "what earlier attempts left could not be removed");
            }
            // The last attempt may have ended because another writer committed the run: the check above covers this.
            if n == MAX_TRIES {
                break;
            }
            let tables = contents.tables.iter().map(|t| t.name().to_owned()).collect();
            let attempt = self.begin_attempt(run_id, number, tables, swept).await?;
            match self.attempt(&attempt, identity, contents, job).await {
                Ok(AttemptOutcome::Committed { committed, before }) => {
                    return self.after_commit(attempt, *committed, before).await;
                }
                Ok(AttemptOutcome::Concurrent | AttemptOutcome::NameUsedUp) => {
                    self.discard(attempt).await;
                }
                Ok(AttemptOutcome::Swept) => {
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
                // The lease stays: the next run checks whether this attempt is committed.
                Err(Failed::Unknown(e)) => return Err(e),
            }
        }
        Err(Error::store("this run was taken for dead again and again")
            .at(self.text(&self.run_path(run_id)))
            .help(swept))
    }

    /// The state of the run. A commit of the same job whose files are missing is revoked first; a commit of another job
    /// is left alone.
    async fn revoke_if_incomplete(&self, run_id: &str, identity: &JobIdentity) -> Result<RunState> {
        let folder = self.run_path(run_id);
        for n in 0..=MAX_REVOKES {
            let state = self.run_state(&folder).await?;
            let RunState::Committed(committed) = &state else { return Ok(state) };
            let missing = self.missing(&folder, &committed.manifest).await?;
            let Some(first) =
                missing.first().filter(|_| committed.manifest.digest == identity.digest)
            else {
                return Ok(state);
            };
            if n == MAX_REVOKES {
                break;
            }
            tracing::info!(
                run_id,
                first = first.path,
                "a commit whose files are missing is revoked"
            );
            let staging = folder.clone().join(committed.manifest.attempt.as_str());
            self.revoke(run_id, committed, "its files are missing", &staging).await?;
        }
        Err(Error::store("the manifest of a run whose files are missing cannot be replaced")
            .at(self.text(&folder))
            .found("the store refuses a conditional put with the version that it has just returned")
            .help("remove the run's folder, or publish to another folder"))
    }

    async fn attempt(
        &self,
        attempt: &Attempt,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> Result<AttemptOutcome, Failed> {
        if self.sweep(attempt).await? {
            return Ok(AttemptOutcome::NameUsedUp);
        }
        let manifest = match self.write_manifest_of(attempt, identity, contents, job).await {
            Ok(manifest) => manifest,
            Err(e) => {
                job.cancel.check()?;
                // A sweeper may have removed files of this attempt while it was writing them.
                let folder = self.run_path(&attempt.lease.run_id);
                let state = self.manifest_state(&folder, attempt.lease.manifest_number).await;
                return match state {
                    Ok(ManifestState::Absent) | Err(_) if attempt.has_lost_lease() => {
                        Ok(AttemptOutcome::Swept)
                    }
                    Ok(ManifestState::Absent) | Err(_) => Err(e.into()),
                    Ok(state) => Ok(Self::outcome(attempt, state, None)),
                };
            }
        };
        job.cancel.begin_commit()?;
        let outcome = self.commit(attempt, &manifest).await;
        job.cancel.end_commit(matches!(outcome, Ok(AttemptOutcome::Committed { .. })));
        job.progress.end();
        outcome
    }

    /// Writes the files of an attempt, looks whether they are still there, and returns its manifest.
    async fn write_manifest_of(
        &self,
        attempt: &Attempt,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> Result<CommittedRun> {
        let WrittenFiles { tables, model } = self.write(attempt, contents, job).await?;
        let manifest = CommittedRun {
            attempt: attempt.lease.attempt.clone(),
            tables,
            model,
            ..CommittedRun::new(&attempt.lease.run_id, identity, contents)
        };
        // Somebody may have cleaned up: a lifecycle rule, or `rm -rf runs`.
        let missing = self.missing(&self.run_path(&manifest.run_id), &manifest).await?;
        if missing.is_empty() {
            return Ok(manifest);
        }
        let shown = offenders(missing.iter().map(|file| file.path.as_str()));
        Err(Error::store("files of this run vanished before its commit: nothing is published")
            .at(self.text(&self.run_path(&manifest.run_id)))
            .found(format!("missing, or of another size: {shown}"))
            .help("does a lifecycle rule or another job remove files here? run the job again"))
    }

    /// Sends requests to create the manifest until the outcome is known, [`COMMIT_REQUESTS`] at most.
    async fn commit(
        &self,
        attempt: &Attempt,
        manifest: &CommittedRun,
    ) -> Result<AttemptOutcome, Failed> {
        let before = match self.read_latest().await? {
            ControlFile::Whole(latest, _) => Some(latest),
            ControlFile::Missing | ControlFile::Damaged(_) | ControlFile::Foreign => None,
        };
        let folder = self.run_path(&manifest.run_id);
        let number = attempt.lease.manifest_number;
        let path = manifest_path(&folder, number);
        let (mut failed, mut was_asked, mut is_created) = (None, false, false);
        for n in 0..COMMIT_REQUESTS {
            match self.create(&path, manifest, &attempt.path).await {
                Ok(Created::Refused(e)) => failed = Some(e),
                Ok(Created::Yes) => (was_asked, is_created) = (true, true),
                Ok(Created::Exists) => was_asked = true,
                Err(e) => (failed, was_asked) = (Some(write_error(e)), true),
            }
            match self.manifest_state(&folder, number).await {
                Ok(ManifestState::Absent) => {}
                Ok(state) => return Ok(Self::outcome(attempt, state, before)),
                Err(e) => failed = Some(e),
            }
            tokio::time::sleep(Duration::from_millis(50 << n)).await;
        }
        if is_created {
            // The store reported success, but the manifest's modification time cannot be read now.
            let now = ObjectMeta {
                location: path,
                last_modified: Utc::now(),
                size: 0,
                e_tag: None,
                version: None,
            };
            let committed = Committed { manifest: manifest.clone(), number, meta: now };
            return Ok(AttemptOutcome::Committed { committed: Box::new(committed), before });
        }
        let failed = failed.unwrap_or_else(|| Error::store("no manifest can be created"));
        let failed = failed.or_at("sink.url");
        if !was_asked {
            return Err(Failed::BeforeCommit(failed));
        }
        // The manifest may exist unseen, or may still arrive: its files may be deleted only when it can no longer
        // arrive.
        let why = "its writer gave up";
        match self.put_tombstone(&attempt.lease, why, &attempt.path).await {
            Ok(Created::Yes) => return Err(Failed::BeforeCommit(failed)),
            Ok(Created::Exists) => match self.manifest_state(&folder, number).await {
                // A store may answer so while another request for the name is in flight.
                Ok(ManifestState::Absent) | Err(_) => {}
                Ok(state) => return Ok(Self::outcome(attempt, state, before)),
            },
            Ok(Created::Refused(_)) | Err(_) => {}
        }
        Err(Failed::Unknown(failed.help(
            "the store did not say whether the run was committed: run the job again to find out",
        )))
    }

    fn outcome(attempt: &Attempt, state: ManifestState, before: Option<Latest>) -> AttemptOutcome {
        match state {
            ManifestState::Committed(c) if c.manifest.attempt == attempt.lease.attempt => {
                AttemptOutcome::Committed { committed: c, before }
            }
            ManifestState::Committed(_) => AttemptOutcome::Concurrent,
            ManifestState::Tombstone(_) | ManifestState::Absent => AttemptOutcome::Swept,
        }
    }

    /// Moves `latest` and cleans up. The lease is deleted last: while it exists, a rerun moves `latest` if this process
    /// did not.
    async fn after_commit(
        &self,
        attempt: Attempt,
        committed: Committed,
        before: Option<Latest>,
    ) -> Result<CommittedRun> {
        let moved = self.point_latest(&committed, before.as_ref()).await.map_err(|e| {
            e.help("the run is committed, but `latest` does not point to it: run the job again")
        })?;
        if let PointerMove::Locked = moved {
            // The lease stays: the next process moves the pointer.
            return Ok(committed.manifest);
        }
        // A failed clean-up does not undo the commit, and the next run tries again.
        if let Err(e) = self.reap_others_of(&attempt).await {
            tracing::warn!(error = %e, "what other attempts left could not be removed");
        }
        if let Err(e) = self.collect(&attempt, &committed).await {
            tracing::warn!(error = %e, "older runs could not be collected");
        }
        self.end(attempt).await;
        Ok(committed.manifest)
    }

    /// Returns the commit that another writer made while this one was at work.
    async fn join_concurrent(
        &self,
        committed: Committed,
        identity: &JobIdentity,
    ) -> Result<CommittedRun> {
        if committed.manifest.digest != identity.digest {
            return Err(Error::store("another job took this run id at the same time")
                .at(self.text(&self.run_path(&committed.manifest.run_id)))
                .help(identity.advice.taken_meanwhile));
        }
        self.finish_commit(&committed.manifest).await?;
        Ok(committed.manifest)
    }

    /// Removes the files of an attempt that will never be committed. The lease stays if a failed upload may still
    /// arrive, so that the next run removes that file too.
    async fn discard(&self, attempt: Attempt) {
        let are_uploads_known = !attempt.has_lost_uploads();
        if self.remove_files_of(&attempt.lease).await.is_ok() && are_uploads_known {
            self.end(attempt).await;
        }
    }
}

/// Why an attempt failed.
enum Failed {
    /// The attempt will never be committed.
    BeforeCommit(Error),
    /// The attempt may or may not be committed.
    Unknown(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::BeforeCommit(error)
    }
}
