//! Reads one CSV file: parses its header, infers its columns, and decodes its records into record batches.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatchOptions};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::{Decoder, Format as CsvFormat};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::column_content::ColumnContent;
use super::columns::SeenColumns;
use super::inferred::{as_decoded, as_inferred};
use super::undecodable::{first_line_not_utf8, undecodable};
use super::value_kinds::{FIRST_ROWS, InferenceScope, MAX_COLUMNS, ValueKinds};
use super::{BATCH_BYTES, Blocks, MAX_RECORD_BYTES, ReadRequest, TakeBatch, unreadable};
use crate::error::{Error, Result};
use crate::source::relation::known_columns::KnownColumns;
use crate::source::typed::header::refuse_doubles;

/// The most values in a batch: a wide file has fewer rows in a batch.
const BATCH_VALUES: usize = 1 << 22;

/// Infers the content of each column, in the order of the header; empty for an empty file.
pub(super) fn infer_columns(
    mut file: Blocks,
    delimiter: u8,
    columns: &KnownColumns,
    scope: InferenceScope,
) -> Result<SeenColumns> {
    let header = header(&mut file, delimiter)?;
    let open: Vec<usize> = (0..header.len()).filter(|c| columns.is_open(&header[*c])).collect();
    let mut seen = vec![ValueKinds::default(); header.len()];
    let fields = header.iter().map(|name| Field::new(name, DataType::Utf8, true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let decoder = ReaderBuilder::new(Arc::clone(&schema))
        .with_delimiter(delimiter)
        .with_batch_size(FIRST_ROWS.min(rows_of_width(header.len())))
        .with_projection(open.clone())
        .build_decoder();
    let mut rows = 0;
    // While a column has no value yet, `Whole` reads on: one may follow further down.
    let mut take = |batch: RecordBatch| {
        rows += batch.num_rows();
        for (column, values) in open.iter().zip(batch.columns()) {
            let values = values.as_string::<i32>().iter().flatten();
            seen[*column] = values.map(ValueKinds::of_text).fold(seen[*column], ValueKinds::and);
        }
        let known = open.iter().all(|column| !seen[*column].is_empty());
        rows < FIRST_ROWS || !(known || scope == InferenceScope::First)
    };
    if !open.is_empty() {
        batches(file, &schema, decoder, &mut take)?;
    }
    Ok(header
        .into_iter()
        .zip(seen)
        .map(|(name, seen)| (name, ColumnContent::Values(seen)))
        .collect())
}

/// Decodes the file's records and passes each batch to `take`.
pub(super) fn read(
    mut file: Blocks,
    delimiter: u8,
    names: &[String],
    wanted: &ReadRequest,
    take: TakeBatch<'_>,
) -> Result<()> {
    header(&mut file, delimiter)?;
    let locations: HashMap<&String, usize> =
        names.iter().enumerate().map(|(n, name)| (name, n)).collect();
    let location = |field: &FieldRef| locations.get(field.name()).copied();
    let columns: Option<Vec<usize>> = wanted.schema.fields().iter().map(location).collect();
    let columns = columns.ok_or_else(|| Error::bug("a file lacks a column of its table"))?;
    let typed: HashMap<&String, &FieldRef> =
        wanted.schema.fields().iter().map(|field| (field.name(), field)).collect();
    let fields = names.iter().map(|name| {
        typed.get(name).map_or_else(|| Field::new(name, DataType::Utf8, true), |f| as_decoded(f))
    });
    let in_file = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let decoder = ReaderBuilder::new(Arc::clone(&in_file))
        .with_delimiter(delimiter)
        .with_batch_size(wanted.batch_rows.min(rows_of_width(names.len())))
        .with_projection(columns)
        .build_decoder();
    let schema = &wanted.schema;
    let (mut failed, mut records) = (None, 0);
    // The batches get the table's own schema, whose field metadata marks the columns.
    let mut typed = |batch: RecordBatch| {
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = schema.fields().iter().zip(batch.columns());
        let columns: Result<_> =
            columns.map(|(field, column)| as_inferred(field, column, records)).collect();
        records += batch.num_rows();
        let typed = columns.and_then(|columns| {
            Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)?)
        });
        match typed {
            Ok(batch) => take(batch),
            Err(e) => {
                failed = Some(e);
                false
            }
        }
    };
    batches(file, &in_file, decoder, &mut typed)?;
    failed.map_or(Ok(()), Err)
}

fn rows_of_width(columns: usize) -> usize {
    (BATCH_VALUES / columns.max(1)).max(1)
}

/// The position of the header parser within a record.
#[derive(Clone, Copy, PartialEq)]
enum QuoteState {
    /// At the start of a value, where a quote opens a quoted value.
    Start,
    /// In an unquoted value, where a quote is an ordinary character.
    Plain,
    Quoted,
    /// After a quote in a quoted value: a second quote is an escaped quote, any other byte follows the end of the
    /// quotes.
    QuoteInQuoted,
}

/// Reads the first record: the names of the columns.
fn header(file: &mut Blocks, delimiter: u8) -> Result<Vec<String>> {
    let (mut text, mut within, mut is_whole) = (Vec::new(), QuoteState::Start, false);
    while !is_whole {
        let block = file.fill_buf().map_err(unreadable)?;
        if block.is_empty() {
            break;
        }
        let mut n = 0;
        while n < block.len() && !is_whole {
            let byte = block[n];
            n += 1;
            text.push(byte);
            within = match (within, byte) {
                (QuoteState::Quoted, b'"') => QuoteState::QuoteInQuoted,
                (QuoteState::Quoted, _) | (QuoteState::Start | QuoteState::QuoteInQuoted, b'"') => {
                    QuoteState::Quoted
                }
                // A carriage return alone may end a line. After CR LF the line feed remains as a blank line, which is
                // no record.
                (_, b'\n' | b'\r') => {
                    is_whole = !text.iter().all(u8::is_ascii_whitespace);
                    if !is_whole {
                        text.clear();
                    }
                    QuoteState::Start
                }
                (_, byte) if byte == delimiter => QuoteState::Start,
                _ => QuoteState::Plain,
            };
        }
        file.consume(n);
        if text.len() > MAX_RECORD_BYTES {
            return Err(too_long(0));
        }
    }
    let separators = count(&text, delimiter);
    if separators >= MAX_COLUMNS {
        return Err(Error::data("the first line is no header")
            .found(format!("about {separators} columns"))
            .help("a CSV file begins with the names of its columns"));
    }
    if std::str::from_utf8(&text).is_err() {
        return Err(first_line_not_utf8(&text));
    }
    let format = CsvFormat::default().with_header(true).with_delimiter(delimiter);
    let (schema, _) = format.infer_schema(text.as_slice(), Some(0))?;
    let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
    refuse_doubles(&names)?;
    Ok(names)
}

fn count(text: &[u8], byte: u8) -> usize {
    text.iter().map(|b| usize::from(*b == byte)).sum()
}

/// Decodes the file to its end, or until `take` returns false.
fn batches(
    mut file: Blocks,
    schema: &SchemaRef,
    mut decoder: Decoder,
    take: TakeBatch<'_>,
) -> Result<()> {
    let decode = |decoder: &mut Decoder, bytes: &[u8]| {
        decoder.decode(bytes).map_err(|e| undecodable(&e, schema))
    };
    let mut flush = |decoder: &mut Decoder| -> Result<bool> {
        let batch = decoder.flush().map_err(|e| undecodable(&e, schema))?;
        Ok(batch.is_none_or(&mut *take))
    };
    // Bytes of the batch so far, bytes since a record ended, records so far.
    let (mut batch, mut open, mut records) = (0, 0, 0_usize);
    loop {
        let block = file.fill_buf().map_err(unreadable)?;
        if block.is_empty() {
            break;
        }
        // Once the batch is large, bytes are decoded line by line, so that it can end with the next record.
        let line = block.iter().position(|b| *b == b'\n').map_or(block.len(), |at| at + 1);
        let bytes = if batch < BATCH_BYTES { block } else { &block[..line] };
        let before = decoder.capacity();
        let n = decode(&mut decoder, bytes)?;
        let ended = before - decoder.capacity();
        let is_line = bytes.len() == line && n == line;
        file.consume(n);
        batch += n;
        records += ended;
        open = if ended == 0 { open + n } else { 0 };
        if open > MAX_RECORD_BYTES {
            return Err(too_long(records));
        }
        let is_full = decoder.capacity() == 0 || n == 0;
        if is_full || (batch >= BATCH_BYTES && ended == 1 && is_line) {
            if !flush(&mut decoder)? {
                return Ok(());
            }
            batch = 0;
        }
    }
    // Outside quotes a line break ends the last record. If only the end of the input ends it, a quote is still open.
    let room = decoder.capacity();
    decode(&mut decoder, b"\n")?;
    let closed = decoder.capacity();
    records += room - closed;
    if closed > 0 {
        decode(&mut decoder, b"")?;
    }
    if decoder.capacity() < closed {
        return Err(Error::data("a quote is never closed")
            .found(format!("in the record after {records} others, up to the end of the file"))
            .help("close it, or write a quote inside a quoted value twice"));
    }
    flush(&mut decoder).map(drop)
}

fn too_long(records: usize) -> Error {
    Error::data("a record is longer than any annotation")
        .found(format!("more than {MAX_RECORD_BYTES} bytes, after {records} records"))
        .help("is there a quote that is never closed, or is this no CSV file?")
}
