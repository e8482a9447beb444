//! Finds a committed run for readers: they read the files that its manifest lists, and no others.

use object_store::ObjectMeta;
use object_store::path::Path;

use super::manifest_names::{FilesOfRun, RunState, join};
use crate::error::{Error, Result, offenders};
use crate::sink::parquet::parquet_sink::ParquetSink;
use crate::sink::{CommittedRun, Publisher, SinkSpec};
use crate::store::{StoreLocation, StoreSpec, open, parse_url};

/// A committed run, and the location of its files.
pub struct PublishedRun {
    /// What its manifest says.
    pub run: CommittedRun,
    /// The run's folder.
    pub location: StoreLocation,
}

impl PublishedRun {
    /// Finds the run that `url` names. `url` is a run's folder, the folder of a sink (then the newest run is taken), or
    /// the folder of a run's files, such as the link `latest`.
    ///
    /// # Errors
    /// When there is no committed run, or the store cannot be read.
    pub async fn find(url: &str, stores: &StoreSpec) -> Result<Self> {
        Self::find_optional(url, stores).await?.ok_or_else(|| {
            Error::data("there is no committed run here")
                .help("name the folder that [sink] url names, or one of its runs/<run_id> folders")
        })
    }

    /// Like [`PublishedRun::find`], but returns `None` if there is no run.
    ///
    /// # Errors
    /// When a run or the store cannot be read.
    pub async fn find_optional(url: &str, stores: &StoreSpec) -> Result<Option<Self>> {
        Self::look_up(url, stores).await.map_err(without_sink)
    }

    async fn look_up(url: &str, stores: &StoreSpec) -> Result<Option<Self>> {
        let sink = sink_at(url.trim_end_matches('/'), stores)?;
        if let Some(run_id) = sink.latest().await? {
            let run = sink_at(&sink.folder(&run_id), stores)?;
            let found = Self::in_folder(&run).await?.ok_or_else(|| {
                Error::data("the run that latest.json names is not committed any more")
                    .at(sink.folder(&run_id))
                    .help("run its job again, or name another of the runs/<run_id> folders")
            });
            return found.map(Some);
        }
        if let Some(found) = Self::in_folder(&sink).await? {
            return Ok(Some(found));
        }
        if let Some((parent, attempt)) = parent(&sink, stores)?
            && let Some(found) = Self::in_folder(&parent).await?
            && found.run.attempt == attempt
        {
            return Ok(Some(found));
        }
        if let Some(error) = deleted_run(&sink, stores).await? {
            return Err(error);
        }
        if sink.newest_commit().await?.is_some() {
            return Err(Error::data("latest.json is missing or was cut short")
                .help("run the job again: it writes latest.json anew; or name one of the runs/<run_id> folders"));
        }
        Ok(None)
    }

    async fn in_folder(run: &ParquetSink) -> Result<Option<Self>> {
        Ok(match run.run_state(&run.location.path).await? {
            RunState::Committed(committed) => {
                Some(Self { run: committed.manifest, location: run.location.clone() })
            }
            RunState::Open(_) => None,
        })
    }

    /// The objects of each table.
    ///
    /// # Errors
    /// When an object is missing, or has another size than the manifest states.
    pub async fn tables(&self) -> Result<Vec<(&str, Vec<ObjectMeta>)>> {
        let mut found = FilesOfRun::list(&self.location, &self.location.path).await?;
        let mut torn = Vec::new();
        let mut tables = Vec::with_capacity(self.run.tables.len());
        for (table, files) in &self.run.tables {
            let mut objects = Vec::with_capacity(files.len());
            for file in files {
                match found.find_intact(file).await? {
                    Some(object) => objects.push(object),
                    None => torn.push(&file.path),
                }
            }
            tables.push((table.as_str(), objects));
        }
        if torn.is_empty() {
            return Ok(tables);
        }
        Err(Error::data(
            "files of the run are missing, or have another size than its manifest states",
        )
        .at(self.location.url.to_string())
        .found(offenders(torn))
        .help("run the job again: it sees that they are missing, and writes them"))
    }

    /// The path of a file below the run's folder in its store.
    #[must_use]
    pub fn path(&self, below: &str) -> Path {
        join(self.location.path.clone(), below)
    }
}

/// The error for the folder `runs/<run_id>` of a sink with other runs, which has no run, or none any more.
async fn deleted_run(run: &ParquetSink, stores: &StoreSpec) -> Result<Option<Error>> {
    let Some((runs, run_id)) = parent(run, stores)? else { return Ok(None) };
    let Some((sink, name)) = parent(&runs, stores)? else { return Ok(None) };
    if name != "runs" {
        return Ok(None);
    }
    let Some(latest) = sink.latest().await? else { return Ok(None) };
    // As the user named the other run, where that text ends with its name.
    let text = run.url().trim_end_matches('/').strip_suffix(&run_id);
    let folder = match (text.filter(|text| text.ends_with("runs/")), runs.location.local()) {
        (Some(text), _) => format!("{text}{latest}"),
        (None, Some(folder)) => folder.join(&latest).display().to_string(),
        (None, None) => format!("{}/{latest}", runs.location.url),
    };
    Ok(Some(
        Error::data(format!(
            "the run `{run_id}` is not there: it was never committed, or `sink.keep_runs` of a later run deleted it"
        ))
        .found(format!("the latest run is `{latest}`"))
        .help(format!("name {folder} for the latest run")),
    ))
}

/// Removes the key of a sink from the locations of an error: readers have none, and the caller knows who named the URL.
fn without_sink(mut error: Error) -> Error {
    for problem in &mut error.problems {
        if problem.location.as_deref() == Some("sink.url") {
            problem.location = None;
        }
    }
    error
}

fn sink_at(url: &str, stores: &StoreSpec) -> Result<ParquetSink> {
    ParquetSink::open(&SinkSpec { url: url.to_owned(), ..SinkSpec::default() }, stores)
}

/// The parent folder, and the name of this folder in it. Links on local disk are resolved first.
fn parent(sink: &ParquetSink, stores: &StoreSpec) -> Result<Option<(ParquetSink, String)>> {
    let url = match sink.location.local().and_then(|folder| folder.canonicalize().ok()) {
        Some(folder) => parse_url(&folder.display().to_string())?,
        None => sink.location.url.clone(),
    };
    let mut above = url.clone();
    let name = url.path_segments().and_then(|mut s| s.next_back()).map(str::to_owned);
    if let Ok(mut segments) = above.path_segments_mut() {
        segments.pop();
    }
    let location = open(&above, stores)?;
    Ok(name.map(|name| (ParquetSink { location, spec: sink.spec.clone() }, name)))
}
