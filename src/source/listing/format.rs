//! The format, compression and delimiter that a file's name implies.

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use object_store::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metadata key of a field whose text comes from a format without types, and may represent integers.
pub const UNTYPED: &str = "labelmill.untyped";

/// The value of [`UNTYPED`] where text must not become integers: other columns have the same type, or the user casts it.
pub(crate) const STAYS_TEXT: &str = "text";

/// Metadata key of a field of which some values are numbers and others are not, so that its type is not numeric.
pub(in crate::source) const MIXED: &str = "labelmill.mixed";

/// Metadata key of a field of doubles that was read from text, where every value seen is an integer.
pub(in crate::source) const INTEGERS: &str = "labelmill.integers";

/// A format that rows are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values with a header line; tab-separated in a file named `.tsv`.
    Csv,
    /// One JSON object a line.
    Ndjson,
    /// Arrow IPC, file or stream.
    Arrow,
}

impl Format {
    /// Whether the rows are lines of text, which may be compressed as a whole and carry no types.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Csv | Self::Ndjson)
    }
}

/// The format, compression and delimiter of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) struct Encoding {
    pub(super) format: Format,
    pub(in crate::source) compression: FileCompressionType,
    /// The separator of the values of a CSV file.
    pub(in crate::source) delimiter: u8,
}

const EXTENSIONS: &[(&str, Format)] = &[
    ("parquet", Format::Parquet),
    ("pq", Format::Parquet),
    ("csv", Format::Csv),
    ("tsv", Format::Csv),
    ("ndjson", Format::Ndjson),
    ("jsonl", Format::Ndjson),
    ("json", Format::Ndjson),
    ("arrow", Format::Arrow),
    ("arrows", Format::Arrow),
    ("feather", Format::Arrow),
    ("ipc", Format::Arrow),
];

/// Table formats whose log lists the current files, as (log folder, format): the data files alone also hold deleted
/// rows.
pub(super) const TABLE_LOGS: [(&str, &str); 2] = [("_delta_log", "Delta"), (".hoodie", "Hudi")];

const COMPRESSIONS: &[(&str, FileCompressionType)] = &[
    ("gz", FileCompressionType::GZIP),
    ("zst", FileCompressionType::ZSTD),
    ("bz2", FileCompressionType::BZIP2),
    ("xz", FileCompressionType::XZ),
];

/// How to make files readable whose names show no format.
pub(super) fn help_for<'a>(mut names: impl Iterator<Item = &'a str>) -> &'static str {
    let name = names.next().unwrap_or_default().to_ascii_lowercase();
    let ends = |extensions: &[&str]| extensions.iter().any(|e| name.ends_with(e));
    if ends(&[".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar"])
    {
        "unpack it (`unzip`, `tar -xf`): an archive may hold several files; one compressed file, such as x.csv.gz, is read \
         as it is"
    } else if ends(&[".xlsx", ".xls", ".xlsm", ".ods", ".numbers"]) {
        "save the sheet as CSV (in pandas: pd.read_excel(\"x.xlsx\").to_csv(\"x.csv\", index=False))"
    } else if ends(&[
        ".pkl", ".pickle", ".npy", ".npz", ".pt", ".rds", ".rdata", ".db", ".sqlite", ".h5",
        ".avro", ".orc",
    ]) {
        "export its rows as Parquet or CSV"
    } else {
        "end its name in .parquet, .csv, .ndjson or .arrow; in a pipeline, set source.format"
    }
}

impl Encoding {
    /// Uncompressed, separated by commas.
    pub(super) fn plain(format: Format) -> Self {
        Self { format, compression: FileCompressionType::UNCOMPRESSED, delimiter: b',' }
    }

    /// The extension of the name, and the encoding that it implies; `None` for an unknown one. `x.parquet.gz` is
    /// unknown too: Parquet and Arrow files are compressed inside.
    pub(super) fn of_name(name: &str) -> Option<(&str, Self)> {
        let lower = name.to_ascii_lowercase();
        let compression = COMPRESSIONS.iter().find(|(e, _)| lower.ends_with(&format!(".{e}")));
        let stem = compression.map_or(lower.as_str(), |(e, _)| &lower[..lower.len() - e.len() - 1]);
        let (extension, format) =
            EXTENSIONS.iter().find(|(e, _)| stem.ends_with(&format!(".{e}")))?;
        let compression = match compression {
            Some(_) if !format.is_text() => return None,
            Some((_, compression)) => *compression,
            None => FileCompressionType::UNCOMPRESSED,
        };
        let delimiter = if *extension == "tsv" { b'\t' } else { b',' };
        let begin = stem.len() - extension.len() - 1;
        Some((&name[begin..], Self { format: *format, compression, delimiter }))
    }

    /// The encoding that the object's name implies, or plain `format` where the name does not imply that format.
    pub(in crate::source) fn of_object(object: &ObjectMeta, format: Format) -> Self {
        let named =
            object.location.filename().and_then(Self::of_name).map(|(_, encoding)| encoding);
        named.filter(|encoding| encoding.format == format).unwrap_or_else(|| {
            // A name without a known format can still show the compression.
            let extension = object.location.extension().filter(|_| format.is_text());
            let found = COMPRESSIONS.iter().find(|(known, _)| {
                extension.is_some_and(|extension| extension.eq_ignore_ascii_case(known))
            });
            let plain = Self::plain(format);
            found.map_or(plain, |(_, compression)| Self { compression: *compression, ..plain })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_shows_format_compression_and_delimiter() {
        let encoding = |name| Encoding::of_name(name).map(|(e, x)| (e, x.format, x.delimiter));
        assert_eq!(encoding("a.CSV.gz"), Some((".CSV.gz", Format::Csv, b',')));
        assert_eq!(encoding("a.tsv"), Some((".tsv", Format::Csv, b'\t')));
        assert_eq!(encoding("part-0.parquet"), Some((".parquet", Format::Parquet, b',')));
        assert_eq!(encoding("readme.txt"), None);
        for name in ["part-0.parquet.gz", "a.arrow.zst", "a.feather.xz", "a.ipc.bz2"] {
            assert_eq!(encoding(name), None, "{name}");
        }
    }

    #[test]
    fn the_page_on_inputs_names_every_extension() {
        let page = include_str!("../../../docs/inputs-and-types.md");
        let formats = EXTENSIONS.iter().map(|(extension, _)| *extension);
        let names = formats.chain(COMPRESSIONS.iter().map(|(extension, _)| *extension));
        let missing: Vec<&str> = names.filter(|e| !page.contains(&format!("`.{e}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
