//! Finds dead writers by their leases. Deletes their files only after making sure that they can no longer commit.

use std::fs::File;
use std::time::Duration;

use super::Lease;
use crate::error::Result;
use crate::sink::parquet::control::ControlFile;
use crate::sink::parquet::control::disk::Created;
use crate::sink::parquet::manifest::latest::PointerMove;
use crate::sink::parquet::manifest::manifest_names::{ManifestState, manifest_path};
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::sink::parquet::publish::attempt::Attempt;

/// How often a manifest name is read while other processes change it.
const LOOKS: usize = 8;

impl ParquetSink {
    /// Removes the files of dead writers. This happens before the attempt writes, so that it can use their disk space.
    /// Returns whether a dead writer wanted the same manifest name as this attempt: that name is used up then.
    pub(in crate::sink::parquet) async fn sweep(&self, own: &Attempt) -> Result<bool> {
        let (dead, living) = self.leases_of_others(own).await?;
        let mut is_own_used_up = false;
        for lease in dead {
            // If a living writer wants the same name, its commit decides it; a tombstone would only stop that writer.
            let is_wanted = living.iter().any(|other| other.commits_as(&lease));
            if !is_wanted || self.is_decided(&lease).await {
                let used_up = self.reap(&lease, own).await;
                is_own_used_up |= used_up && own.lease.commits_as(&lease);
            }
        }
        Ok(is_own_used_up)
    }

    /// Removes the files of dead attempts at this run, which is committed: none of them can commit any more.
    pub(in crate::sink::parquet) async fn reap_others_of(&self, own: &Attempt) -> Result<()> {
        let (dead, _) = self.leases_of_others(own).await?;
        for lease in dead.iter().filter(|lease| lease.run_id == own.lease.run_id) {
            self.reap(lease, own).await;
        }
        Ok(())
    }

    /// Whether the manifest name that an attempt wanted already holds a commit or a tombstone.
    async fn is_decided(&self, lease: &Lease) -> bool {
        let run = self.run_path(&lease.run_id);
        let state = self.manifest_state(&run, lease.manifest_number).await;
        matches!(state, Ok(ManifestState::Committed(_) | ManifestState::Tombstone(_)))
    }

    /// Removes the files of a dead attempt, and returns whether its manifest name is used up. Only warns if files
    /// cannot be removed, for instance because another user owns them.
    async fn reap(&self, lease: &Lease, own: &Attempt) -> bool {
        let mut is_used_up = false;
        if let Err(e) = self.try_reap(lease, own, &mut is_used_up).await {
            let (run_id, attempt) = (&lease.run_id, &lease.attempt);
            tracing::warn!(run_id, attempt, error = %e, "what a dead run left could not be removed");
        }
        is_used_up
    }

    /// Removes the files of a dead attempt after making sure that it is not committed and never will be. Sets
    /// `is_used_up` if its manifest name is used up, even if the files then cannot be removed.
    async fn try_reap(&self, lease: &Lease, own: &Attempt, is_used_up: &mut bool) -> Result<()> {
        // Since the leases were listed, the writer may have touched its lease, or another sweeper may have deleted it.
        if !self.is_still_dead(lease, own).await? {
            return Ok(());
        }
        let run = self.run_path(&lease.run_id);
        let mut looks = 0;
        loop {
            looks += 1;
            if looks > LOOKS {
                return Err(self.obstacle_error(
                    &manifest_path(&run, lease.manifest_number),
                    "a manifest of labelmill",
                ));
            }
            match self.manifest_state(&run, lease.manifest_number).await? {
                ManifestState::Committed(committed)
                    if committed.manifest.attempt == lease.attempt =>
                {
                    // The writer died after its commit and before it deleted its lease.
                    *is_used_up = true;
                    if let PointerMove::Locked = self.point_latest(&committed, None).await? {
                        return Ok(());
                    }
                    self.remove_staged(lease)?;
                    return self.delete(&self.lease_path(&lease.attempt)).await;
                }
                ManifestState::Committed(_) | ManifestState::Tombstone(_) => break,
                ManifestState::Absent => {
                    let why = "its writer was taken for dead";
                    match self.put_tombstone(lease, why, &own.path).await? {
                        Created::Yes => break,
                        Created::Exists => {}
                        Created::Refused(e) => return Err(e),
                    }
                }
            }
        }
        *is_used_up = true;
        tracing::info!(
            run_id = lease.run_id,
            attempt = lease.attempt,
            "swept what a dead run left"
        );
        self.remove_files_of(lease).await?;
        self.delete(&self.lease_path(&lease.attempt)).await
    }

    async fn is_still_dead(&self, lease: &Lease, own: &Attempt) -> Result<bool> {
        let found = self.read_control::<Lease>(&self.lease_path(&lease.attempt)).await?;
        let is_dead =
            |meta: &object_store::ObjectMeta| lease.is_dead(meta.last_modified, own.began);
        Ok(matches!(found, ControlFile::Whole(_, meta) if is_dead(&meta)))
    }

    /// Frees space on a disk that has no room for a lease: removes the files of writers whose processes have certainly
    /// ended. To stop such a writer, creates an empty file under the manifest name that it wanted: that needs no space
    /// and counts as a tombstone.
    pub(in crate::sink::parquet) async fn make_room(&self) -> Result<()> {
        for (attempt, object) in self.lease_files().await? {
            let Ok(ControlFile::Whole(lease, _)) =
                self.read_control::<Lease>(&object.location).await
            else {
                continue;
            };
            if lease.attempt != attempt || !lease.process.is_gone() {
                continue;
            }
            let run = self.run_path(&lease.run_id);
            let mut state = self.manifest_state(&run, lease.manifest_number).await?;
            if let ManifestState::Absent = state
                && let Some(file) = self.local(&manifest_path(&run, lease.manifest_number))
            {
                match File::options().write(true).create_new(true).open(&file) {
                    Ok(_) => state = ManifestState::Tombstone(None),
                    Err(e) => {
                        tracing::warn!(file = %file.display(), error = %e, "no room can be made");
                        continue;
                    }
                }
            }
            let is_committed = matches!(&state, ManifestState::Committed(committed)
                if committed.manifest.attempt == lease.attempt);
            if !is_committed && !matches!(state, ManifestState::Absent) {
                self.remove_files_of(&lease).await?;
                self.delete(&object.location).await?;
            }
        }
        Ok(())
    }

    /// The leases of all other attempts: those of dead writers, and those of living ones.
    async fn leases_of_others(&self, own: &Attempt) -> Result<(Vec<Lease>, Vec<Lease>)> {
        let (mut dead, mut living) = (Vec::new(), Vec::new());
        for (attempt, object) in self.lease_files().await? {
            if attempt == own.lease.attempt {
                continue;
            }
            let silent = (own.began - object.last_modified).to_std().unwrap_or_default();
            let is_old = silent > Duration::from_secs(self.spec.stale_after_seconds);
            if object.size == 0 && !is_old {
                continue;
            }
            let found = match self.read_control::<Lease>(&object.location).await {
                Ok(found) => found,
                Err(e) => {
                    // An unreadable lease does not prove that its writer is dead. A process that can read it may sweep
                    // it.
                    let file = self.text(&object.location);
                    tracing::warn!(file, error = %e, "the lease of another run cannot be read: it is left alone");
                    continue;
                }
            };
            match found {
                ControlFile::Whole(lease, meta) if lease.attempt == attempt => {
                    let is_dead = lease.is_dead(meta.last_modified, own.began);
                    if is_dead { &mut dead } else { &mut living }.push(lease);
                }
                // A truncated lease names no files, and its writer does not use it.
                ControlFile::Damaged(_) if is_old => {
                    if let Err(e) = self.delete(&object.location).await {
                        tracing::warn!(error = %e, "a damaged lease could not be removed");
                    }
                }
                ControlFile::Whole(..)
                | ControlFile::Damaged(_)
                | ControlFile::Foreign
                | ControlFile::Missing => {}
            }
        }
        Ok((dead, living))
    }
}

#[cfg(test)]
mod tests {
    use crate::sink::parquet::control::json;
    use crate::sink::parquet::testing::{TestSink, lease_file, part};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fresh_lease_that_is_empty_or_half_written_is_left_to_its_writer() {
        let test = TestSink::new(None);
        let lease = json(&test.writer_elsewhere('a', "run", 0));
        let own = test.begin().await;
        let written = [&lease[..0], &lease[..lease.len() / 2]];
        for (name, content) in ['b', 'c'].into_iter().zip(written) {
            test.write(&lease_file(name), content, 0);
        }
        let exist = || ['b', 'c'].map(|name| test.path(&lease_file(name)).exists());
        assert!(!test.sink.sweep(&own).await.unwrap());
        assert_eq!(exist(), [true, true]);
        for name in ['b', 'c'] {
            test.age(&lease_file(name), 61);
        }
        assert!(!test.sink.sweep(&own).await.unwrap());
        assert_eq!(exist(), [false, false]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_writer_is_left_alone_while_a_living_one_wants_the_same_name() {
        let test = TestSink::new(None);
        test.writer_elsewhere('a', "run", 61);
        test.writer_elsewhere('b', "run", 0);
        let own = test.begin().await;
        let exist = |name| [&lease_file(name), &part("run", name)].map(|f| test.path(f).exists());
        assert!(!test.sink.sweep(&own).await.unwrap());
        assert_eq!([exist('a'), exist('b')], [[true, true], [true, true]]);
        assert!(!test.path("runs/run/manifest.json").exists(), "its name was taken from it");
        test.age(&lease_file('b'), 61);
        assert!(!test.sink.sweep(&own).await.unwrap());
        assert_eq!([exist('a'), exist('b')], [[false, false], [false, false]]);
        assert!(test.path("runs/run/manifest.json").exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_shows_itself_after_the_listing_is_spared() {
        let test = TestSink::new(None);
        test.writer_elsewhere('a', "run", 61);
        let own = test.begin().await;
        let (dead, _) = test.sink.leases_of_others(&own).await.unwrap();
        test.age(&lease_file('a'), 0);
        let [lease] = &dead[..] else { panic!("{dead:?}") };
        assert!(!test.sink.reap(lease, &own).await);
        assert!(test.path(&part("run", 'a')).exists() && test.path(&lease_file('a')).exists());
        assert!(!test.path("runs/run/manifest.json").exists());
        test.age(&lease_file('a'), 61);
        assert!(test.sink.reap(lease, &own).await);
        assert!(!test.path(&part("run", 'a')).exists() && !test.path(&lease_file('a')).exists());
    }
}
