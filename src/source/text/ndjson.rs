//! Reads one NDJSON file: infers its columns, and decodes its lines into record batches.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::BufRead;
use std::sync::Arc;

use arrow::array::RecordBatchOptions;
use arrow::datatypes::{FieldRef, Schema};
use arrow::json::ReaderBuilder;
use arrow::json::reader::Decoder;
use arrow::record_batch::RecordBatch;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::column_content::ColumnContent;
use super::columns::SeenColumns;
use super::inferred::{as_decoded, as_inferred, is_checked};
use super::undecodable::undecodable;
use super::value_kinds::{FIRST_ROWS, InferenceScope, MAX_COLUMNS};
use super::{BATCH_BYTES, Blocks, MAX_RECORD_BYTES, ReadRequest, TakeBatch, unreadable};
use crate::error::{Error, Result};

/// Collects the fields of all objects with their content, by name, since any line may add a field. `None` for a file
/// without a line; an object without fields is a row of nulls.
pub(super) fn infer_columns(file: Blocks, scope: InferenceScope) -> Result<Option<SeenColumns>> {
    let mut columns: BTreeMap<String, ColumnContent> = BTreeMap::new();
    let mut rows = 0;
    lines(file, |line, number| {
        let object: Record = match serde_json::from_slice(line.trim_ascii_end()) {
            Ok(object) => object,
            Err(e) if e.to_string().starts_with(TWICE) => return Err(twice(&e, number)),
            Err(e) => return Err(not_json(line, &e, number)),
        };
        for (name, kind) in object.0 {
            let Some(known) = columns.get_mut(&name) else {
                columns.insert(name, kind);
                continue;
            };
            let before = std::mem::replace(known, ColumnContent::Untyped(""));
            *known = before.and(kind).map_err(|(before, now)| {
                Error::data(format!("the column `{name}` holds values of several types"))
                    .found(format!("{}, and {} in line {number}", before.words(), now.words()))
                    .help("write it with one type")
            })?;
        }
        if columns.len() > MAX_COLUMNS {
            return Err(Error::data("the objects have too many different fields")
                .found(format!("more than {MAX_COLUMNS} up to line {number}"))
                .help("the columns of a table are the fields of its objects: is an id among their names?"));
        }
        rows += 1;
        Ok(scope == InferenceScope::Whole || rows < FIRST_ROWS)
    })?;
    Ok((rows > 0).then(|| columns.into_iter().collect()))
}

/// Decodes the file's objects and passes each batch to `take`.
pub(super) fn read(file: Blocks, wanted: &ReadRequest, take: TakeBatch<'_>) -> Result<()> {
    let schema = &wanted.schema;
    let failed = |e| undecodable(&e, schema);
    // Weights with words among them are decoded as text by a decoder of their own, which is not strict about types.
    let (texts, typed): (Vec<FieldRef>, Vec<FieldRef>) =
        schema.fields().iter().cloned().partition(|field| is_checked(field));
    let builder = |fields: Vec<FieldRef>| {
        ReaderBuilder::new(Arc::new(Schema::new(fields))).with_batch_size(wanted.batch_rows)
    };
    let mut decoder = builder(typed).build_decoder().map_err(failed)?;
    let mut of_texts = if texts.is_empty() {
        None
    } else {
        let fields = texts.iter().map(|field| Arc::new(as_decoded(field))).collect();
        Some(builder(fields).with_coerce_primitive(true).build_decoder().map_err(failed)?)
    };
    let mut records = 0;
    let mut whole = |batch: RecordBatch, of_texts: &mut Option<Decoder>| -> Result<RecordBatch> {
        let texts = match of_texts {
            Some(decoder) => decoder.flush().map_err(failed)?,
            None => None,
        };
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let column = |field: &FieldRef| {
            let text = texts.as_ref().and_then(|texts| texts.column_by_name(field.name()));
            let found = text.or_else(|| batch.column_by_name(field.name()));
            let found = found.ok_or_else(|| Error::bug("a batch lacks a column of its schema"))?;
            as_inferred(field, found, records)
        };
        let columns = schema.fields().iter().map(column).collect::<Result<_>>()?;
        records += batch.num_rows();
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)?)
    };
    let mut batch = 0;
    lines(file, |line, number| {
        decoder.decode(line).map_err(failed)?;
        if let Some(of_texts) = &mut of_texts {
            of_texts.decode(line).map_err(failed)?;
        }
        if decoder.has_partial_record() {
            return Err(no_object(number));
        }
        batch += line.len();
        if decoder.len() < wanted.batch_rows && batch < BATCH_BYTES {
            return Ok(true);
        }
        batch = 0;
        let Some(batch) = decoder.flush().map_err(failed)? else { return Ok(true) };
        Ok(take(whole(batch, &mut of_texts)?))
    })?;
    if let Some(batch) = decoder.flush().map_err(failed)? {
        take(whole(batch, &mut of_texts)?);
    }
    Ok(())
}

/// Calls `visit` with each line that is not blank and its number, until `visit` returns false.
fn lines(mut file: Blocks, mut visit: impl FnMut(&[u8], usize) -> Result<bool>) -> Result<()> {
    let mut begun: Vec<u8> = Vec::new();
    let mut number = 0;
    loop {
        let block = file.fill_buf().map_err(unreadable)?;
        let end = block.iter().position(|b| *b == b'\n');
        let is_last = block.is_empty();
        let n = end.map_or(block.len(), |at| at + 1);
        let mut visit = |line: &[u8]| {
            number += 1;
            Ok::<_, Error>(line.iter().all(u8::is_ascii_whitespace) || visit(line, number)?)
        };
        let more = match (end.is_some() || is_last, begun.is_empty()) {
            (true, true) => visit(&block[..n])?,
            (is_complete, _) => {
                begun.extend_from_slice(&block[..n]);
                if begun.len() > MAX_RECORD_BYTES {
                    return Err(Error::data("a line is longer than any annotation")
                        .found(format!("more than {MAX_RECORD_BYTES} bytes in line {}", number + 1))
                        .help("an NDJSON file holds one object a line"));
                }
                let more = !is_complete || visit(&begun)?;
                if is_complete {
                    begun.clear();
                }
                more
            }
        };
        file.consume(n);
        if is_last || !more {
            return Ok(());
        }
    }
}

/// The fields of an object in file order, without duplicates.
struct Record(Vec<(String, ColumnContent)>);

/// The prefix of the error for a duplicate field.
const TWICE: &str = "the field twice: ";

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Record;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record, A::Error> {
                let (mut fields, mut names) = (Vec::new(), HashSet::new());
                while let Some((name, value)) = map.next_entry::<String, ColumnContent>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{TWICE}`{name}`")));
                    }
                    fields.push((name, value));
                }
                Ok(Record(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn twice(error: &serde_json::Error, number: usize) -> Error {
    let text = message(error);
    let field = text.trim_start_matches(TWICE);
    Error::data("a line gives a field twice")
        .found(format!("{field} in line {number}"))
        .help("of two values of one name nobody knows which is meant: keep one")
}

/// The parser's message without its location: it has seen one line only.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned()
}

fn unparsed(error: &serde_json::Error, number: usize) -> String {
    let message = message(error);
    match error.column() {
        0 => format!("{message} in line {number}"),
        byte => format!("{message} in line {number}, at byte {byte}"),
    }
}

/// The error of a line that is not JSON, with the help for Python's numbers that JSON does not know.
fn not_json(line: &[u8], error: &serde_json::Error, number: usize) -> Error {
    let at = error.column().saturating_sub(1);
    let is_at = |word: &&&str| {
        (at.saturating_sub(1)..=at)
            .any(|from| line.get(from..).is_some_and(|rest| rest.starts_with(word.as_bytes())))
    };
    match ["NaN", "Infinity"].iter().find(is_at) {
        None => no_object(number).found(unparsed(error, number)),
        Some(word) => no_object(number)
            .found(format!("{word} in line {number}, at byte {}", error.column()))
            .help(format!(
                "{word} is no JSON: write null (Python's json.dumps writes {word} unless allow_nan is False; the pandas \
                 call df.to_json(path, orient=\"records\", lines=True) writes null)"
            )),
    }
}

fn no_object(number: usize) -> Error {
    Error::data("a line is no JSON object")
        .found(format!("line {number}"))
        .help("an NDJSON file holds one object a line; an array is written as one line an element")
}
