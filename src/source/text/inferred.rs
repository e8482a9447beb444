//! Numeric columns of CSV files whose type is inferred from the first rows: checks that it holds every later value
//! exactly.
//!
//! # Why
//! An integer decoder reads `007` and `+7` as 7, and a double decoder rounds integers beyond 2^53. In the first rows
//! such values make the column text; further down in a file, two different codes would silently become one number.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};

use super::value_kinds::{FIRST_ROWS, ValueKinds};
use crate::error::{Error, Result};
use crate::source::cleaning::is_missing_word;

/// The metadata key of a field whose type is inferred.
pub(super) const INFERRED: &str = "labelmill.inferred";

/// The metadata key of such a field where it holds times: they are no codes, and may have a sign or spaces.
pub(super) const OF_TIMES: &str = "labelmill.inferred_times";

/// The metadata key of a field of weights; its value has the user's words for a missing value.
pub(super) const WEIGHTS: &str = "labelmill.weights";

/// Separates the user's words for a missing value in the mark of [`WEIGHTS`]; no such word has it.
pub(super) const SEPARATOR: &str = "\0";

/// A field of text for a column that is checked; any other field unchanged.
pub(super) fn as_decoded(field: &Field) -> Field {
    if is_checked(field) { Field::new(field.name(), DataType::Utf8, true) } else { field.clone() }
}

/// Parses the numbers of a checked column, which was decoded as text; returns other columns unchanged. `records`
/// records precede it in the file; errors name the record's number.
pub(super) fn as_inferred(field: &FieldRef, column: &ArrayRef, records: usize) -> Result<ArrayRef> {
    let words = field.metadata().get(WEIGHTS);
    match field.data_type() {
        _ if !is_checked(field) => Ok(Arc::clone(column)),
        _ if words.is_some() => {
            let words: Vec<&str> = words.into_iter().flat_map(|w| w.split(SEPARATOR)).collect();
            weights((field.name(), &words), column, records)
        }
        DataType::Int64 => numbers::<Int64Type>(field, column, records),
        _ => numbers::<Float64Type>(field, column, records),
    }
}

/// Whether a column is decoded as text, and its numbers are parsed here.
pub(super) fn is_checked(field: &Field) -> bool {
    [INFERRED, WEIGHTS].iter().any(|mark| field.metadata().contains_key(*mark))
        && matches!(field.data_type(), DataType::Int64 | DataType::Float64)
}

fn numbers<T: ArrowPrimitiveType + Parser>(
    field: &Field,
    column: &ArrayRef,
    records: usize,
) -> Result<ArrayRef> {
    let are_times = field.metadata().contains_key(OF_TIMES);
    let texts = column.as_string::<i32>().iter().enumerate();
    let number = |(row, text): (usize, Option<&str>)| {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let kind = ValueKinds::of_text(text);
        let kind = if are_times { kind.of_measures() } else { kind };
        let fits = kind.fits(&T::DATA_TYPE);
        match T::parse(text).filter(|_| fits) {
            Some(number) => Ok(Some(number)),
            None => Err(other_kind(field.name(), (text, &T::DATA_TYPE), records + row + 1)),
        }
    };
    let numbers: PrimitiveArray<T> = texts.map(number).collect::<Result<_>>()?;
    Ok(Arc::new(numbers))
}

/// Numbers from text, of which words for a missing value are null: those of other programs, and the user's `words`.
fn weights((name, words): (&str, &[&str]), column: &ArrayRef, records: usize) -> Result<ArrayRef> {
    let is_missing = |text: &str| is_missing_word(text) || words.contains(&text);
    let number = |(row, text): (usize, Option<&str>)| {
        let Some(text) = text.map(str::trim).filter(|text| !is_missing(text)) else {
            return Ok(None);
        };
        Float64Type::parse(text).map(Some).ok_or_else(|| {
            Error::data("a weight is not a number")
                .found(format!("`{text}` in the column `{name}` of record {}", records + row + 1))
                .help(
                    "write a number above 0 in its place, or nothing: a row with an empty weight, or with a word such as \
                     NA, is rejected, unless source.sql.annotations says what stands in its place, as in \
                     coalesce(weight, 1) as weight; source.null_values = [\"...\"] adds words of your own",
                )
        })
    };
    let texts = column.as_string::<i32>().iter().enumerate();
    let numbers: PrimitiveArray<Float64Type> = texts.map(number).collect::<Result<_>>()?;
    Ok(Arc::new(numbers))
}

fn other_kind(name: &str, (text, expected): (&str, &DataType), record: usize) -> Error {
    let kind = if expected.is_integer() { "whole numbers" } else { "numbers" };
    Error::data("a record does not fit the columns")
        .found(format!(
            "`{text}` in the column `{name}` of record {record}, which holds {kind} in the first {FIRST_ROWS}"
        ))
        .help(format!(
            "write {kind} alone, without zeros, a plus or spaces before them; or, where they are names, write one with \
             letters near the beginning, or give the table as Parquet with a column of text"
        ))
}
