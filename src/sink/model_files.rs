//! The files of a trained classifier, which are published with a run's tables.
//!
//! ```text
//! model/model.json          kind, parameters, sizes, the classes in their order with their type, the modules of torch.nn,
//!                           the calibration, the rules for text ids
//! model/model.safetensors   every weight, with PyTorch's names and layouts
//! ```
//! With several questions each one has its own folder: `model/0`, `model/1`, ... in the order of the questions.

use std::fs;
use std::path::PathBuf;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde::Deserialize;
use serde_json::{Value, json};

use super::digest;
use super::parquet::PublishedRun;
use super::typed_values::{from_json, to_json};
use crate::error::{Error, Result, offenders};
use crate::frame::Ids;
use crate::model::calibration::Calibrator;
use crate::regular_file;
use crate::source::Cleaning;
use crate::store::{StoreLocation, StoreSpec, is_absent, open, parse_url, shown};
use crate::tables::{Outcome, QuestionResult};

const DESCRIPTION: &str = "model.json";
const PARAMETERS: &str = "model.safetensors";

/// The key of the weights' SHA-256 in the description: it detects files that come from two runs. Older files have none.
const PARAMETERS_DIGEST: &str = "parameters_sha256";

/// The key of the SHA-256 of the description's own text, computed with [`NO_DIGEST`] in place of the digest. It detects
/// changes: classes in another order would change the predictions. Older files have none.
const DESCRIPTION_DIGEST: &str = "description_sha256";

/// A placeholder of the length of a digest.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The version of both files' layout. The first version had no number, and its weights were `[in, out]`.
const FORMAT: u64 = 2;

/// The names of a classifier's files.
pub const MODEL_FILES: [&str; 2] = [DESCRIPTION, PARAMETERS];

/// The key of the run's rules for text ids in the description, where it had any.
const CLEANING: &str = "source";

/// The files of every trained classifier of a run, by path below the run's files; `cleaning` are the run's rules for text.
///
/// # Errors
/// When the type of the classes cannot be cast to text.
pub fn files(outcome: &Outcome, cleaning: &Cleaning) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for (n, QuestionResult { frame, fitted, .. }) in outcome.results.iter().enumerate() {
        let Some(trained) = &fitted.model else { continue };
        let folder =
            if frame.question.is_some() { format!("model/{n}") } else { "model".to_owned() };
        let classes = frame.labels.values().slice(0, frame.annotations.dims().classes);
        let mut description = trained.description.clone();
        description["format"] = json!(FORMAT);
        description[PARAMETERS_DIGEST] = json!(digest(&trained.parameters));
        description["labelmill"] = json!(env!("CARGO_PKG_VERSION"));
        description["classes"] = to_json(&classes)?;
        let with_features = frame.with_features.as_ref();
        if let Some(with_features) = with_features.filter(|d| !d.features.columns.is_empty()) {
            description["columns"] = json!(with_features.features.columns);
        }
        description["instance_type"] = json!(frame.instances.values().data_type().to_string());
        if !cleaning.is_empty() {
            description[CLEANING] = json!(cleaning);
        }
        if let Some(question) = &frame.question {
            description["question"] = json!(question.text(0));
        }
        files.push((format!("{folder}/{DESCRIPTION}"), sealed(description).into_bytes()));
        files.push((format!("{folder}/{PARAMETERS}"), trained.parameters.clone()));
    }
    Ok(files)
}

/// The text of a description, with its own digest.
fn sealed(mut description: Value) -> String {
    description[DESCRIPTION_DIGEST] = json!(NO_DIGEST);
    description[DESCRIPTION_DIGEST] = json!(digest(format!("{description:#}")));
    format!("{description:#}")
}

/// Refuses a description that was changed after it was written.
fn check_seal(description: &Value, text: &str) -> Result<()> {
    let Some(written) = description.get(DESCRIPTION_DIGEST) else { return Ok(()) };
    let written = written.as_str().unwrap_or_default();
    if !written.is_empty() && digest(text.replacen(written, NO_DIGEST, 1)) == written {
        return Ok(());
    }
    Err(Error::data("the model's description was changed after it was written")
        .found("another SHA-256")
        .help("the classes and settings belong to the numbers: take both files from the run that wrote them"))
}

/// The classes in the model's order.
pub(crate) fn classes_of(description: &Value) -> Result<Ids> {
    let classes = Ids::in_order(from_json(&description["classes"], DESCRIPTION)?);
    let learned = &description["sizes"]["classes"];
    if *learned != json!(classes.len()) {
        return Err(Error::data("the model's classes are not those that it learned")
            .at(DESCRIPTION)
            .found(format!("{} in the list, {learned} in the network", classes.len()))
            .help("the list belongs to the numbers: take both from the run that wrote them"));
    }
    Ok(classes)
}

/// The rules for text ids of the run that trained the model.
pub(crate) fn cleaning_of(description: &Value) -> Result<Cleaning> {
    let found = &description[CLEANING];
    if found.is_null() {
        return Ok(Cleaning::default());
    }
    Cleaning::deserialize(found).map_err(|e| {
        Error::data(format!("the model's rules for text ids cannot be read: {e}"))
            .at(format!("{DESCRIPTION}: {CLEANING}"))
            .help("the file is damaged: take it from the run that wrote it")
    })
}

/// The calibrator of the model's predictions; `None` if the model was saved without one.
pub(crate) fn calibrator_of(description: &Value, n_classes: usize) -> Result<Option<Calibrator>> {
    let found = &description["calibration"];
    if found.is_null() {
        return Ok(None);
    }
    let calibrator = Calibrator::deserialize(found).ok();
    match calibrator.filter(|calibrator| calibrator.is_valid(n_classes)) {
        Some(calibrator) => Ok(Some(calibrator)),
        None => Err(Error::data("the model's calibration cannot be read")
            .at(format!("{DESCRIPTION}: calibration"))
            .found(found.to_string().chars().take(80).collect::<String>())
            .help("the file is damaged: take it from the run that wrote it")),
    }
}

/// Loads the description and the weights of the classifier at `url`, which is its own folder or that of a run.
///
/// # Errors
/// When the folder has no model, or the store cannot be read.
pub(crate) async fn load(url: &str, stores: &StoreSpec) -> Result<(Value, Vec<u8>)> {
    let own = resolved(open(&parse_url(url.trim_end_matches('/'))?, stores)?, stores)?;
    // The store of a local folder sees regular files only; reading says what another one is.
    let is_file = |path: PathBuf| fs::metadata(path).is_ok_and(|found| !found.is_dir());
    let is_here = match own.local() {
        Some(local) => is_file(local.join(DESCRIPTION)),
        None => match own.store.head(&own.path.clone().join(DESCRIPTION)).await {
            Ok(_) => true,
            Err(e) if is_absent(&e) => false,
            // A store that fails does not tell that there is no model.
            Err(e) => return Err(e.into()),
        },
    };
    let folder: (StoreLocation, Path) = if is_here {
        (own.clone(), own.path)
    } else {
        in_run(&PublishedRun::find(url, stores).await?)?
    };
    let (location, folder) = folder;
    let file = |name: &str| shown(&location.url, &folder.clone().join(name));
    let read = async |name: &str| -> Result<Vec<u8>> {
        if let Some(local) = location.local() {
            let below = folder.parts().skip(location.path.parts().count());
            let path = below.fold(local, |path, part| path.join(part.as_ref())).join(name);
            return regular_file::read(&path, regular_file::STATE_BYTES).map_err(|e| {
                if e.kind() == std::io::ErrorKind::NotFound {
                    return no_model(&location, name);
                }
                let what = format!("the model cannot be read: {e}");
                let help = "name a folder with the files of a model, and check its rights";
                let unread = match e.kind() {
                    std::io::ErrorKind::InvalidInput => Error::data(what),
                    _ => Error::of_folder(what, &e),
                };
                Error::of_io(&e, unread.at(path.display().to_string()).help(help))
            });
        }
        match location.store.get(&folder.clone().join(name)).await {
            Ok(found) => {
                let bytes = found.bytes().await;
                Ok(bytes.map_err(|e| Error::from(e).or_at(&file(name)))?.to_vec())
            }
            Err(object_store::Error::NotFound { .. }) => Err(no_model(&location, name)),
            Err(e) => Err(Error::from(e).or_at(&file(name))),
        }
    };
    let text = read(DESCRIPTION).await?;
    let description: Value = serde_json::from_slice(&text).map_err(|e| {
        Error::data(format!("the model's description cannot be read: {e}"))
            .at(file(DESCRIPTION))
            .help("the file is damaged or cut short: take it from the run that wrote it")
    })?;
    check_format(&description).map_err(|e| e.at(file(DESCRIPTION)))?;
    let is_as_written = check_seal(&description, &String::from_utf8_lossy(&text));
    is_as_written.map_err(|e| e.at(file(DESCRIPTION)))?;
    let parameters = read(PARAMETERS).await?;
    let learned = description.get(PARAMETERS_DIGEST);
    if learned.is_some_and(|learned| *learned != json!(digest(&parameters))) {
        return Err(Error::data(
            "the model's numbers are not those that its description was written with",
        )
        .at(file(PARAMETERS))
        .found("another SHA-256")
        .help("the files are of two runs, or damaged: take both from the run that wrote them"));
    }
    Ok((description, parameters))
}

/// Resolves links on local disk: `latest` may move to another run before the second file is read.
fn resolved(location: StoreLocation, stores: &StoreSpec) -> Result<StoreLocation> {
    match location.local().and_then(|folder| folder.canonicalize().ok()) {
        Some(folder) => open(&parse_url(&folder.display().to_string())?, stores),
        None => Ok(location),
    }
}

/// Refuses files of another layout, whose weights would be read in the wrong order.
fn check_format(description: &Value) -> Result<()> {
    let format = &description["format"];
    if *format == json!(FORMAT) {
        return Ok(());
    }
    let found = format.as_u64().map_or("no format".to_owned(), |n| format!("format {n}"));
    Err(Error::data("the model's files have a layout that this labelmill does not read")
        .found(format!("{found}, where it reads format {FORMAT}"))
        .help("run the job again with --force, or predict with the labelmill that wrote them"))
}

/// The folder of a run's only classifier, as the manifest lists it.
fn in_run(run: &PublishedRun) -> Result<(StoreLocation, Path)> {
    let files = run.run.model.iter().map(|file| file.path.as_str());
    let folders: Vec<&str> = files.filter_map(|file| file.strip_suffix(DESCRIPTION)).collect();
    let is_only = |folder: &&str| folder.ends_with("/model/") || *folder == "model/";
    match folders.iter().find(|folder| is_only(folder)) {
        Some(folder) => Ok((run.location.clone(), run.path(folder))),
        None if folders.is_empty() => Err(no_model(&run.location, &format!("model/{DESCRIPTION}"))),
        None => {
            let of_question = |folder: &&str| shown(&run.location.url, &run.path(folder));
            Err(Error::data("the run has a model for each of its questions")
                .at(run.location.url.to_string())
                .found(offenders(folders.iter().map(of_question)))
                .help("name the folder of one of them: model/0 is that of the first question, in sorted order"))
        }
    }
}

fn no_model(location: &StoreLocation, name: &str) -> Error {
    Error::data("there is no trained model here")
        .at(location.url.to_string())
        .found(format!("no {name}"))
        .help("name a run of a model that learns from features, or its model folder")
}
