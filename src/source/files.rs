//! The files behind a URL: which there are, what format they have, and the DataFusion table that reads them lazily.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::{Error, Result, nearest, offenders};
use crate::store::{Place, StoreSpec, open, parse_url};

/// A format that rows are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values with a header line.
    Csv,
    /// One JSON object a line.
    Ndjson,
    /// Arrow IPC, file or stream.
    Arrow,
}

const EXTENSIONS: &[(&str, Format)] = &[
    ("parquet", Format::Parquet),
    ("pq", Format::Parquet),
    ("csv", Format::Csv),
    ("ndjson", Format::Ndjson),
    ("jsonl", Format::Ndjson),
    ("json", Format::Ndjson),
    ("arrow", Format::Arrow),
    ("feather", Format::Arrow),
    ("ipc", Format::Arrow),
];

const COMPRESSIONS: &[(&str, FileCompressionType)] = &[
    ("gz", FileCompressionType::GZIP),
    ("zst", FileCompressionType::ZSTD),
    ("bz2", FileCompressionType::BZIP2),
    ("xz", FileCompressionType::XZ),
];

/// What is behind a source URL.
#[derive(Debug, Clone)]
pub struct Files {
    /// Their format.
    pub format: Format,
    /// Each file, in the order of its path.
    pub objects: Vec<ObjectMeta>,
}

impl Files {
    /// Bytes of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|o| o.size).sum()
    }
}

/// A field's metadata key: its text came from a format without types, and may stand for integers.
pub const UNTYPED: &str = "labelmill.untyped";

/// Lists the files behind `text` and registers them as the table `name`. Columns of `ids` in a format without types
/// are read as they stand: "007" is not 7.
pub(super) async fn register(
    ctx: &SessionContext,
    name: &str,
    text: &str,
    format: Option<Format>,
    ids: &[&str],
    stores: &StoreSpec,
) -> Result<Files> {
    let (base, pattern) = split_glob(text);
    let place = open(&parse_url(base)?, stores)?;
    ctx.register_object_store(&store_root(&place.url), Arc::clone(&place.store));
    let url = folder_url(&place).await;
    let all = list(&place, &url).await?;
    let objects = chosen(&all, &url, pattern)?;
    if objects.is_empty() {
        return Err(Error::data("there is no such file, or nothing in that folder")
            .found(nothing_there(&place))
            .help("check the path; a folder is read whole, a pattern may hold * and ?"));
    }
    let (extension, format) = common_format(&objects, format)?;
    let of_format = |object: &ObjectMeta| object.location.as_ref().ends_with(&extension);
    let objects: Vec<ObjectMeta> = objects.into_iter().filter(of_format).collect();
    if objects.iter().all(|o| o.size == 0) {
        return Err(Error::data("the file is empty: 0 bytes")
            .help("an empty table still has a header or a schema; was the upload cut short?"));
    }
    let options =
        ListingOptions::new(file_format(format, &extension)).with_file_extension(&extension);
    let filled: Vec<ObjectMeta> = objects.iter().filter(|o| o.size > 0).cloned().collect();
    let schema = options.format.infer_schema(&ctx.state(), &place.store, &filled).await?;
    let schema = if format == Format::Csv { Arc::new(as_text(&schema, ids)) } else { schema };
    // DataFusion reads the folder where all that it would find there is meant, else each file by its name.
    let is_whole = all.iter().filter(|o| of_format(o)).count() == objects.len();
    let locations = if is_whole {
        vec![ListingTableUrl::try_new(url, None)?]
    } else {
        objects.iter().map(|o| location(&url, o)).collect::<Result<_>>()?
    };
    let config = ListingTableConfig::new_with_multi_paths(locations)
        .with_listing_options(options)
        .with_schema(schema);
    ctx.register_table(name, Arc::new(ListingTable::try_new(config)?))?;
    Ok(Files { format, objects })
}

fn as_text(schema: &Schema, ids: &[&str]) -> Schema {
    let field = |field: &FieldRef| {
        if ids.contains(&field.name().as_str()) {
            let untyped = HashMap::from([(UNTYPED.to_owned(), "true".to_owned())]);
            Arc::new(Field::new(field.name(), DataType::Utf8, true).with_metadata(untyped))
        } else {
            Arc::clone(field)
        }
    };
    Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>())
}

/// `data/2026-*/part-*.parquet` is the folder `data/` and a pattern below it.
fn split_glob(text: &str) -> (&str, Option<&str>) {
    match text.find(['*', '?', '[']) {
        None => (text, None),
        Some(at) => {
            let cut = text[..at].rfind('/').map_or(0, |slash| slash + 1);
            (if cut == 0 { "./" } else { &text[..cut] }, Some(&text[cut..]))
        }
    }
}

fn store_root(url: &Url) -> Url {
    let mut root = url.clone();
    root.set_path("/");
    root.set_query(None);
    root
}

/// A folder's URL ends with `/`; a user may leave that out.
async fn folder_url(place: &Place) -> Url {
    let mut url = place.url.clone();
    if !url.path().ends_with('/') {
        let is_folder = match place.local() {
            Some(path) => path.is_dir(),
            None => place.store.head(&place.path).await.is_err() && has_children(place).await,
        };
        if is_folder {
            url.set_path(&format!("{}/", url.path()));
        }
    }
    url
}

async fn has_children(place: &Place) -> bool {
    matches!(place.store.list(Some(&place.path)).try_next().await, Ok(Some(_)))
}

/// Every file at or below the URL.
async fn list(place: &Place, url: &Url) -> Result<Vec<ObjectMeta>> {
    let found = if url.path().ends_with('/') {
        place.store.list(Some(&place.path)).try_collect().await
    } else {
        place.store.head(&place.path).await.map(|object| vec![object])
    };
    match found {
        Ok(mut objects) => {
            objects.sort_by(|a, b| a.location.cmp(&b.location));
            Ok(objects)
        }
        Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
        Err(e) => Err(e.into()),
    }
}

/// The files that are meant: a file by its name is; of a folder, what is data and fits the pattern.
fn chosen(all: &[ObjectMeta], url: &Url, pattern: Option<&str>) -> Result<Vec<ObjectMeta>> {
    if !url.path().ends_with('/') {
        return Ok(all.to_vec());
    }
    let pattern = pattern.map(Pattern::new).transpose().map_err(|e| {
        Error::spec(format!("not a pattern: {e}")).help("a pattern may hold *, ? and [a-z]")
    })?;
    let folder = Path::from_url_path(url.path())
        .map_err(|e| Error::spec(format!("not an object path: {e}")).at(url.to_string()))?;
    let is_meant = |object: &&ObjectMeta| {
        let below: Vec<_> = object.location.prefix_match(&folder).into_iter().flatten().collect();
        let names: Vec<&str> = below.iter().map(AsRef::as_ref).collect();
        let fits = |p: &Pattern| p.matches_with(&names.join("/"), ONE_FOLDER_A_STAR);
        !is_hidden(&names) && pattern.as_ref().is_none_or(fits)
    };
    Ok(all.iter().filter(is_meant).cloned().collect())
}

/// As in a shell, `*` ends at a slash.
const ONE_FOLDER_A_STAR: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

fn location(folder: &Url, object: &ObjectMeta) -> Result<ListingTableUrl> {
    let mut url = store_root(folder);
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().extend(object.location.parts().map(|part| part.as_ref().to_owned()));
    }
    Ok(ListingTableUrl::try_new(url, None)?)
}

/// Names the neighbour that the user most likely meant.
fn nothing_there(place: &Place) -> String {
    let neighbour = || {
        let path = place.local()?;
        let wanted = path.file_name()?.to_str()?.to_owned();
        let names: Vec<String> = std::fs::read_dir(path.parent()?)
            .ok()?
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .collect();
        Some(format!("a file `{}` beside it", nearest(&wanted, names.iter().map(String::as_str))?))
    };
    neighbour().unwrap_or_else(|| "nothing".to_owned())
}

/// Marker files such as `_SUCCESS` and `.part.crc`, and all in folders such as `_temporary`, are no data.
fn is_hidden(names: &[&str]) -> bool {
    names.iter().any(|name| name.starts_with('_') || name.starts_with('.'))
        || names.last().is_none_or(|name| extension_of(name).is_none())
}

fn extension_of(name: &str) -> Option<(String, Format)> {
    let lower = name.to_lowercase();
    let compression = COMPRESSIONS.iter().find(|(e, _)| lower.ends_with(&format!(".{e}")));
    let stem = compression.map_or(lower.as_str(), |(e, _)| &lower[..lower.len() - e.len() - 1]);
    let (extension, format) = EXTENSIONS.iter().find(|(e, _)| stem.ends_with(&format!(".{e}")))?;
    let length = extension.len() + 1 + compression.map_or(0, |(e, _)| e.len() + 1);
    Some((name[name.len() - length..].to_owned(), *format))
}

/// One table has one format: the one its files' names agree on, or the one the spec names.
fn common_format(objects: &[ObjectMeta], given: Option<Format>) -> Result<(String, Format)> {
    let mut kinds: Vec<(String, Format)> =
        objects.iter().filter_map(|o| extension_of(o.location.filename()?)).collect();
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    kinds.dedup();
    if let Some(format) = given {
        let extension = kinds.into_iter().find(|(_, f)| *f == format).map(|(e, _)| e);
        return Ok((extension.unwrap_or_default(), format));
    }
    match kinds.len() {
        1 => Ok(kinds.swap_remove(0)),
        0 => Err(Error::data("the file name does not tell the format")
            .found(offenders(objects.iter().map(|o| o.location.to_string())))
            .help("set source.format = \"parquet\", \"csv\", \"ndjson\" or \"arrow\"")),
        _ => Err(Error::data("the folder holds files of several formats")
            .found(offenders(kinds.iter().map(|(e, _)| e.clone())))
            .help("name one by a pattern, such as folder/*.parquet, or set source.format")),
    }
}

fn file_format(format: Format, extension: &str) -> Arc<dyn FileFormat> {
    let compression = COMPRESSIONS
        .iter()
        .find(|(e, _)| extension.ends_with(&format!(".{e}")))
        .map_or(FileCompressionType::UNCOMPRESSED, |(_, c)| *c);
    match format {
        Format::Parquet => Arc::new(ParquetFormat::default().with_force_view_types(false)),
        Format::Csv => Arc::new(
            CsvFormat::default().with_has_header(true).with_file_compression_type(compression),
        ),
        Format::Ndjson => Arc::new(JsonFormat::default().with_file_compression_type(compression)),
        Format::Arrow => Arc::new(ArrowFormat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_is_cut_at_its_last_plain_folder() {
        assert_eq!(split_glob("s3://b/x/2026-*/p?.csv"), ("s3://b/x/", Some("2026-*/p?.csv")));
        assert_eq!(split_glob("*.csv"), ("./", Some("*.csv")));
        assert_eq!(split_glob("a/b.csv"), ("a/b.csv", None));
    }

    #[test]
    fn the_extension_tells_format_and_compression() {
        assert_eq!(extension_of("a.CSV.gz"), Some((".CSV.gz".to_owned(), Format::Csv)));
        assert_eq!(extension_of("part-0.parquet"), Some((".parquet".to_owned(), Format::Parquet)));
        assert_eq!(extension_of("readme.txt"), None);
    }
}
