//! Lists the folders of leases and of runs.
//!
//! # Why
//! A recursive listing on local disk follows links and enters every folder. A cycle of links, or an unreadable folder
//! of someone else, would end it with an error. So on local disk only files with labelmill's own names are looked up.
//! An object store has neither links nor folders, and one listing is the cheapest request.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path as FilePath;
use std::time::UNIX_EPOCH;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::sink::parquet::parquet_sink::{ParquetSink, is_attempt};

/// A folder below `runs`, which may belong to someone else.
#[derive(Default)]
pub(in crate::sink::parquet) struct RunFolder {
    /// The files that are named like manifests.
    pub(in crate::sink::parquet) manifests: Vec<ObjectMeta>,
    /// Whether it has subfolders, such as those of attempts.
    pub(super) has_files: bool,
}

impl ParquetSink {
    /// The folders of runs, by run id.
    pub(in crate::sink::parquet) async fn run_folders(
        &self,
    ) -> Result<BTreeMap<String, RunFolder>> {
        let runs = self.runs();
        let mut folders: BTreeMap<String, RunFolder> = BTreeMap::new();
        if let Some(root) = self.local(&runs) {
            for run_id in names_in(&root)? {
                let folder = root.join(&run_id);
                if !folder.is_dir() {
                    continue;
                }
                let names = names_in(&folder).unwrap_or_else(|e| {
                    tracing::warn!(error = %e, "a folder below runs cannot be read: it is passed over");
                    Vec::new()
                });
                let mut found = RunFolder::default();
                for name in names {
                    if !is_manifest(&name) {
                        found.has_files |= folder.join(&name).is_dir();
                    } else if let Ok(file) = fs::metadata(folder.join(&name)) {
                        // Not by the store: it would take a thread for each of a thousand tombstones.
                        found.manifests.push(ObjectMeta {
                            location: runs.clone().join(run_id.as_str()).join(name),
                            last_modified: file.modified().unwrap_or(UNIX_EPOCH).into(),
                            size: file.len(),
                            e_tag: None,
                            version: None,
                        });
                    }
                }
                folders.insert(run_id, found);
            }
            return Ok(folders);
        }
        let mut objects = self.location.store.list(Some(&runs));
        while let Some(object) = objects.try_next().await? {
            let below: Vec<_> = object.location.prefix_match(&runs).into_iter().flatten().collect();
            let [run_id, name, rest @ ..] = &below[..] else { continue };
            let folder = folders.entry(run_id.as_ref().to_owned()).or_default();
            if !rest.is_empty() {
                folder.has_files = true;
            } else if is_manifest(name.as_ref()) {
                folder.manifests.push(object);
            }
        }
        Ok(folders)
    }

    /// The names of the folders in a run's folder, such as those of attempts.
    pub(super) async fn subfolders(&self, run: &Path) -> Result<Vec<String>> {
        if let Some(run) = self.local(run) {
            let names = names_in(&run)?.into_iter();
            return Ok(names.filter(|name| run.join(name).is_dir()).collect());
        }
        let listed = self.location.store.list_with_delimiter(Some(run)).await;
        let listed = listed.map_err(|e| Error::from(e).or_at("sink.url"))?;
        let names = listed.common_prefixes.iter().filter_map(Path::filename);
        Ok(names.map(str::to_owned).collect())
    }

    /// The files that are named like leases, each with the attempt in its name.
    pub(super) async fn lease_files(&self) -> Result<Vec<(String, ObjectMeta)>> {
        let leases = self.leases();
        let mut found = Vec::new();
        if let Some(folder) = self.local(&leases) {
            for name in names_in(&folder)? {
                if let Some(attempt) = attempt_of(&name)
                    && let Some(object) = self.look_up(&leases.clone().join(name.as_str())).await
                {
                    found.push((attempt.to_owned(), object));
                }
            }
            return Ok(found);
        }
        let mut objects = self.location.store.list(Some(&leases));
        while let Some(object) =
            objects.try_next().await.map_err(|e| Error::from(e).or_at("sink.url"))?
        {
            if let Some(attempt) = object.location.filename().and_then(attempt_of) {
                found.push((attempt.to_owned(), object));
            }
        }
        Ok(found)
    }

    /// The metadata of a file on local disk; `None` if it is gone or cannot be read.
    async fn look_up(&self, path: &Path) -> Option<ObjectMeta> {
        match self.location.store.head(path).await {
            Ok(object) => Some(object),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(e) => {
                tracing::warn!(file = self.text(path), error = %e, "a file cannot be looked at: it is passed over");
                None
            }
        }
    }
}

/// The names in a folder; none if it does not exist.
fn names_in(folder: &FilePath) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>(),
        Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&e.kind()) => {
            Ok(Vec::new())
        }
        Err(e) => Err(e),
    };
    let entries = entries.map_err(|e| {
        let failed = Error::store(format!("cannot list the folder: {e}"));
        Error::of_io(&e, failed.at(folder.display().to_string()))
    })?;
    // labelmill's own names are UTF-8.
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// The attempt in the file name of a lease.
fn attempt_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|attempt| is_attempt(attempt))
}

fn is_manifest(name: &str) -> bool {
    name.starts_with("manifest")
}
