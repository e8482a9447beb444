//! Who may write a run's folder, and what happens to a folder whose writer died; see [`super::lease`] for who is dead.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode};

use super::Sink;
use super::lease::Lease;
use crate::error::{Error, Result};

/// How often a writer shows that it lives, at least.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How often a lease that a dead writer holds, or whose answer was lost, is asked for.
const LEASE_ATTEMPTS: usize = 4;

/// What a listing shows of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    committed: bool,
    leased: bool,
    touched: DateTime<Utc>,
}

impl Seen {
    fn add(&mut self, file: &str, object: &ObjectMeta) {
        self.committed |= file == "manifest.json";
        self.leased |= file == "_lease.json";
        self.touched = self.touched.max(object.last_modified);
    }
}

impl Sink {
    /// Takes the run's folder for this process; what a dead writer left in it goes.
    pub(super) async fn take_lease(&self, run_id: &str) -> Result<Lease> {
        let (path, own) = (self.path(run_id, "_lease.json"), Lease::own());
        let mut failed = Error::store("another process took this run's folder at the same time");
        for _ in 0..LEASE_ATTEMPTS {
            match self.put_json(&path, &own, PutMode::Create).await {
                Ok(()) => return Ok(own),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => {}
                // A conditional put whose answer was lost is not sent again by the store; it may have been done.
                Err(e @ object_store::Error::Generic { .. }) => failed = e.into(),
                Err(e) => return Err(Error::from(e).or_at("sink.url")),
            }
            match self.read_lease(run_id).await? {
                None => {}
                Some((lease, _)) if lease.as_ref() == Some(&own) => return Ok(own),
                Some(held) if self.is_dead(&held, self.now().await?) => self.bury(run_id).await?,
                Some(_) => {
                    return Err(Error::store("another process is writing this very run")
                        .at(self.folder(run_id))
                        .help("wait for it; a writer that fell silent is given up after sink.stale_after_seconds"));
                }
            }
        }
        Err(failed.or_at("sink.url"))
    }

    /// Keeps the lease fresh until it is aborted.
    pub(super) fn beat(&self, run_id: &str, lease: Lease) -> tokio::task::JoinHandle<()> {
        let (sink, run_id, path) =
            (self.clone(), run_id.to_owned(), self.path(run_id, "_lease.json"));
        let pause = HEARTBEAT.min(self.spec.stale_after() / 3);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                if sink.holds(&run_id, &lease).await {
                    let _ = sink.put_json(&path, &lease, PutMode::Overwrite).await;
                }
            }
        })
    }

    /// Whether a lease is still the one of its run; a writer that was silent for too long may have lost it.
    pub(super) async fn holds(&self, run_id: &str, lease: &Lease) -> bool {
        let held = self.read_lease(run_id).await;
        matches!(held, Ok(Some((Some(held), _))) if held == *lease)
    }

    /// Ends the lease of a committed run; if that fails, the next run does it.
    pub(super) async fn drop_lease(&self, run_id: &str) {
        let _ = self.place.store.delete(&self.path(run_id, "_lease.json")).await;
    }

    /// Removes every uncommitted run without a living writer, and what else dead writers left.
    pub(super) async fn sweep(&self, own: &str) -> Result<()> {
        let now = self.place.store.head(&self.path(own, "_lease.json")).await?.last_modified;
        let (mut seen, strays) = self.seen().await?;
        seen.remove(own);
        for (run_id, seen) in seen {
            let dead = if seen.leased {
                let lease = self.read_lease(&run_id).await?;
                lease.is_some_and(|held| self.is_dead(&held, now))
            } else {
                !seen.committed && self.is_silent(seen.touched, now)
            };
            if dead {
                self.bury(&run_id).await?;
            }
        }
        for stray in strays.into_iter().filter(|o| self.is_silent(o.last_modified, now)) {
            let _ = self.place.store.delete(&stray.location).await;
        }
        self.sweep_staged();
        Ok(())
    }

    /// Removes what a dead writer left: the lease alone where it had committed, which is asked now that it cannot.
    async fn bury(&self, run_id: &str) -> Result<()> {
        if self.committed(run_id).await?.is_some() {
            self.drop_lease(run_id).await;
            return Ok(());
        }
        tracing::info!(run_id, "swept what a dead run left");
        self.remove(run_id).await
    }

    /// Removes a run, its manifest first, so that no half of it counts as committed, and its lease last, so that a
    /// removal cut short is swept.
    pub(super) async fn remove(&self, run_id: &str) -> Result<()> {
        let (manifest, lease) =
            (self.path(run_id, "manifest.json"), self.path(run_id, "_lease.json"));
        self.delete(&manifest).await?;
        if let Some(folder) = self.local_runs().map(|runs| runs.join(run_id)) {
            // A killed writer leaves staged files on disk that the store does not list.
            return match std::fs::remove_dir_all(&folder) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::store(format!("cannot remove what a dead run left: {e}"))
                        .at(folder.display().to_string()))
                }
                _ => Ok(()),
            };
        }
        let objects: Vec<Path> = self
            .place
            .store
            .list(Some(&self.path(run_id, "")))
            .map_ok(|o| o.location)
            .try_collect()
            .await?;
        let others: Vec<_> = objects.into_iter().filter(|path| *path != lease).map(Ok).collect();
        let deleted = self.place.store.delete_stream(stream::iter(others).boxed());
        deleted.try_collect::<Vec<_>>().await?;
        self.delete(&lease).await
    }

    async fn delete(&self, path: &Path) -> Result<()> {
        match self.place.store.delete(path).await {
            Err(object_store::Error::NotFound { .. }) | Ok(()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Every run by one listing, and the objects beside them.
    async fn seen(&self) -> Result<(BTreeMap<String, Seen>, Vec<ObjectMeta>)> {
        let (mut seen, mut strays) = (BTreeMap::<String, Seen>::new(), Vec::new());
        let runs = self.runs();
        let mut objects = self.place.store.list(Some(&runs));
        while let Some(object) = objects.try_next().await? {
            let below: Option<Vec<_>> = object.location.prefix_match(&runs).map(Iterator::collect);
            match below.as_deref() {
                Some([run_id, files @ ..]) if !files.is_empty() => {
                    let file: Vec<&str> = files.iter().map(AsRef::as_ref).collect();
                    seen.entry(run_id.as_ref().to_owned())
                        .or_default()
                        .add(&file.join("/"), &object);
                }
                _ => strays.push(object),
            }
        }
        // Folders without a listed file: a writer on its way to its lease, or killed there.
        let folders = self.local_runs().and_then(|runs| std::fs::read_dir(runs).ok());
        for folder in folders.into_iter().flatten().flatten() {
            let touched = folder.metadata().ok().filter(std::fs::Metadata::is_dir);
            if let (Some(touched), Ok(run_id)) =
                (touched.and_then(|m| m.modified().ok()), folder.file_name().into_string())
            {
                let empty = Seen { touched: touched.into(), ..Seen::default() };
                seen.entry(run_id).or_insert(empty);
            }
        }
        Ok((seen, strays))
    }

    /// On local disk, removes files that killed writers had staged beside `latest`.
    fn sweep_staged(&self) {
        let entries = self.place.local().and_then(|root| std::fs::read_dir(root).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let staged = name.starts_with(".latest-") || name.starts_with("latest.json#");
            let modified = entry.metadata().and_then(|m| m.modified());
            let age = modified.ok().and_then(|at| at.elapsed().ok());
            if staged && age.is_some_and(|age| age > self.spec.stale_after()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// The store's own time: that of a lease written now, in a folder of its own, so that the next run knows at once
    /// whether a writer that died here left it.
    async fn now(&self) -> Result<DateTime<Utc>> {
        let lease = Lease::own();
        let clock = format!("_clock-{}", lease.name());
        let path = self.path(&clock, "_lease.json");
        self.put_json(&path, &lease, PutMode::Overwrite).await?;
        let now = self.place.store.head(&path).await?.last_modified;
        self.remove(&clock).await?;
        Ok(now)
    }

    /// The lease of a run and when it was touched; a lease that is none is `None` inside.
    async fn read_lease(&self, run_id: &str) -> Result<Option<(Option<Lease>, DateTime<Utc>)>> {
        match self.place.store.get(&self.path(run_id, "_lease.json")).await {
            Ok(found) => {
                let touched = found.meta.last_modified;
                Ok(Some((serde_json::from_slice(&found.bytes().await?).ok(), touched)))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn is_dead(
        &self,
        (lease, touched): &(Option<Lease>, DateTime<Utc>),
        now: DateTime<Utc>,
    ) -> bool {
        match lease {
            Some(lease) => lease.is_dead(*touched, now, self.spec.stale_after()),
            None => self.is_silent(*touched, now),
        }
    }

    fn is_silent(&self, touched: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        (now - touched).to_std().unwrap_or_default() > self.spec.stale_after()
    }

    fn local_runs(&self) -> Option<PathBuf> {
        Some(self.place.local()?.join("runs"))
    }
}
