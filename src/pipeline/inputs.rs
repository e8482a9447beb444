//! Records which files a job reads, and in which version.

use crate::sink::digest;
use crate::source::Source;
use crate::store::{StoreLocation, shown};
use crate::tables::InputRecord;

/// The input files of every source, and the files of queries.
pub(crate) fn inputs(source: &Source) -> Vec<InputRecord> {
    let record =
        |name: &str, location: &StoreLocation, object: &object_store::ObjectMeta| InputRecord {
            source: name.to_owned(),
            path: shown(&location.url, &object.location),
            bytes: object.size,
            version: object.e_tag.clone().unwrap_or_else(|| object.last_modified.to_rfc3339()),
        };
    let files = source.files.iter();
    let objects =
        files.flat_map(|(name, f)| f.objects.iter().map(move |o| record(name, &f.location, o)));
    let queries = source.queries.iter().filter_map(|query| {
        Some(InputRecord {
            source: format!("sql.{}", query.relation),
            path: query.file.clone()?,
            bytes: query.text.len() as u64,
            version: digest(&query.text),
        })
    });
    objects.chain(queries).collect()
}
