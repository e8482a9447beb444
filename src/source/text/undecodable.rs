//! Translates errors of Arrow's decoders into the terms of the file: records and column names.

use arrow::datatypes::Schema;
use arrow::error::ArrowError;

use crate::error::Error;

/// Translates a decoder's error, without the rows that it quotes, which may be of any length.
pub(super) fn undecodable(error: &ArrowError, schema: &Schema) -> Error {
    let text = error.to_string();
    let text = text.split(". Row data:").next().unwrap_or_default();
    let text = text.split_once("error: ").map_or(text, |(_, text)| text);
    other_count(text)
        .or_else(|| other_encoding(text, schema))
        .or_else(|| other_type(text, schema))
        .unwrap_or_else(|| {
            Error::data("a record does not fit the columns")
                .found(text.replacen("for line", "in record", 1))
                .help("mend the record, or write the file again")
        })
}

/// The error for a record with too many or too few values; records count from 1 after the header.
fn other_count(text: &str) -> Option<Error> {
    let counts = text.strip_prefix("incorrect number of fields for line ")?;
    let (record, counts) = counts.split_once(", expected ")?;
    let (wanted, found) = counts.split_once(" got ")?;
    let found = format!("{found} values in record {record}, {wanted} names in the header");
    Some(Error::data("a record has not as many values as the header has names").found(found).help(
        "write a value that holds a delimiter, a quote or a line break (a carriage return alone is one, too) in quotes",
    ))
}

/// The error for bytes that are not UTF-8.
fn other_encoding(text: &str, schema: &Schema) -> Option<Error> {
    let at = text.strip_prefix("Encountered invalid UTF-8 data")?;
    let location = at.strip_prefix(" for line ").and_then(|at| {
        let (record, column) = at.split_once(" and field ")?;
        let column = column.parse::<usize>().ok()?.checked_sub(1)?;
        Some(format!("record {record}, column `{}`", schema.fields().get(column)?.name()))
    });
    Some(not_utf8(location.unwrap_or_else(|| "a record".to_owned())))
}

/// The error for text in another encoding.
pub(super) fn not_utf8(found: String) -> Error {
    Error::data("the text is not UTF-8").found(found).help(
        "write the file as UTF-8: `iconv -f latin1 -t utf-8` does so for Western European text",
    )
}

/// The error for a first line that is not UTF-8. The byte order mark tells UTF-16, which Excel calls Unicode text.
pub(super) fn first_line_not_utf8(line: &[u8]) -> Error {
    if !line.starts_with(&[0xff, 0xfe]) && !line.starts_with(&[0xfe, 0xff]) {
        return not_utf8("the header".to_owned());
    }
    Error::data("the text is not UTF-8")
        .found("the byte order mark of UTF-16")
        .help("write the file as UTF-8: `iconv -f utf-16 -t utf-8` does so")
}

/// The error for a value that does not have the type of its column; the decoder counts columns and records from 0.
fn other_type(text: &str, schema: &Schema) -> Option<Error> {
    let (head, tail) = text.split_once(" for column ")?;
    let (column, record) = tail.split_once(" at line ")?;
    let field = schema.fields().get(column.parse::<usize>().ok()?)?;
    let record = record.trim_end_matches('.').parse::<usize>().ok()? + 1;
    Some(
        Error::data("a record does not fit the columns")
            .found(format!("{head} in the column `{}` of record {record}", field.name()))
            .help("mend the record: the column holds one type, which the pipeline (weights are numbers) or its first 1000 rows decide"),
    )
}
