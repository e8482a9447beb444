//! Ids and labels from a format without types: text, or integers where every value is a plain decimal integer.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray, LargeStringArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, UInt64Type};

use super::interner::long_keys::LongKeys;
use super::key::{Packed, with_bytes};
use crate::error::Result;
use crate::frame::annotations::offsets::number;
use crate::source::files::{STAYS_TEXT, UNTYPED};
use crate::source::{as_plain_integer, is_plain_integer};

/// Whether the column's text came from a format without types.
pub(super) fn is_untyped(field: &Field) -> bool {
    field.metadata().contains_key(UNTYPED)
}

/// Whether the column's text becomes integers where every value is one.
pub(super) fn may_become_integers(field: &Field) -> bool {
    field.metadata().get(UNTYPED).is_some_and(|mark| mark != STAYS_TEXT)
}

/// The field, marked so that its text stays text.
pub(in crate::frame) fn as_text(field: &Field) -> Field {
    let mut field = field.clone();
    if let Some(mark) = field.metadata_mut().get_mut(UNTYPED) {
        STAYS_TEXT.clone_into(mark);
    }
    field
}

/// The field, marked as untyped where `is_untyped` holds.
pub(super) fn marked(field: Field, is_untyped: bool) -> Field {
    let mark = is_untyped.then(|| (UNTYPED.to_owned(), STAYS_TEXT.to_owned()));
    field.with_metadata(mark.into_iter().collect())
}

/// The integer keys of text keys, so that 10 comes after 9; `None` where a kept key is not an integer, or no key is
/// kept. Keys that are not kept are not checked, and get an arbitrary integer key.
pub(super) fn as_integers(
    keys: &[u128],
    long: &LongKeys,
    keep: impl Fn(u32) -> bool,
) -> Option<Vec<u128>> {
    let mut has_any = false;
    let integer = |(n, word): (usize, &u128)| {
        if !keep(number(n)) {
            return Some(Packed::integer(0).0);
        }
        has_any = true;
        Some(with_bytes(long.key(number(n), *word), plain_integer)?.0)
    };
    let integers = keys.iter().enumerate().map(integer).collect();
    if has_any { integers } else { None }
}

/// Untyped text as integers of 64 bits, null where it is not such an integer; "1.0" is one, because other programs make
/// floats of the integers of a column with a missing value. The arrays hold the rows one after the
/// other: there are several where some rows are negative and others above all signed integers.
pub(super) fn integers(texts: &ArrayRef) -> Result<Vec<ArrayRef>> {
    let texts = cast(texts, &DataType::Utf8)?;
    let texts: Vec<Option<&str>> = texts.as_string::<i32>().iter().collect();
    if !texts.iter().any(|text| is_above_signed(*text)) {
        return Ok(vec![parsed::<Int64Type>(&texts)]);
    }
    if !texts.iter().flatten().any(|text| text.starts_with('-')) {
        return Ok(vec![parsed::<UInt64Type>(&texts)]);
    }
    let parts = texts.chunk_by(|a, b| is_above_signed(*a) == is_above_signed(*b));
    let part = |part: &[Option<&str>]| match part.first() {
        Some(first) if is_above_signed(*first) => parsed::<UInt64Type>(part),
        _ => parsed::<Int64Type>(part),
    };
    Ok(parts.map(part).collect())
}

/// Untyped text in which each integer, such as "1.0", has its plain form; other columns unchanged.
pub(in crate::frame) fn in_plain_form(field: &Field, ids: &ArrayRef) -> Result<ArrayRef> {
    if !is_untyped(field) {
        return Ok(Arc::clone(ids));
    }
    let texts = cast(ids, &DataType::LargeUtf8)?;
    let plain = |text| as_plain_integer(text).unwrap_or(Cow::Borrowed(text));
    let texts: LargeStringArray =
        texts.as_string::<i64>().iter().map(|text| text.map(plain)).collect();
    Ok(cast(&(Arc::new(texts) as ArrayRef), ids.data_type())?)
}

/// Whether the text is an integer that only the unsigned type of 64 bits holds.
fn is_above_signed(text: Option<&str>) -> bool {
    // Few texts are long enough to be parsed here.
    let plain = text.filter(|text| text.len() >= 19 || text.contains(['e', 'E']));
    let value = plain.and_then(as_plain_integer).and_then(|text| text.parse::<u64>().ok());
    value.is_some_and(|value| i64::try_from(value).is_err())
}

fn parsed<T: ArrowPrimitiveType>(texts: &[Option<&str>]) -> ArrayRef
where
    T::Native: FromStr,
{
    let parse = |text: &str| as_plain_integer(text)?.parse().ok();
    let values = texts.iter().map(|text| text.and_then(parse));
    Arc::new(values.collect::<PrimitiveArray<T>>())
}

fn plain_integer(bytes: &[u8]) -> Option<Packed> {
    let value: i64 = plain(std::str::from_utf8(bytes).ok()?)?;
    Some(Packed::integer(i128::from(value)))
}

/// The integer whose plain decimal form the text is.
fn plain<T: FromStr>(text: &str) -> Option<T> {
    if is_plain_integer(text) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::StringArray;

    use super::super::interner::Interner;
    use super::super::key::NULL;
    use super::*;

    #[test]
    fn text_without_a_type_is_integers_only_where_all_of_it_is() {
        let untyped = HashMap::from([(UNTYPED.to_owned(), "true".to_owned())]);
        let field = Field::new("id", DataType::Utf8, true).with_metadata(untyped);
        let sorted = |values: &[&str]| {
            let mut interner = Interner::new(&field);
            let array: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
            interner.intern(&array, &mut Vec::new()).unwrap();
            let (ids, _) = interner.finish(|_| true).unwrap();
            (0..ids.len()).map(|n| ids.text(n)).collect::<Vec<_>>()
        };
        assert_eq!(sorted(&["10", "9", "-1"]), ["-1", "9", "10"]);
        assert_eq!(sorted(&["10", "9", "007"]), ["007", "10", "9"]);
        for other in ["+7", " 7", "-0"] {
            assert_eq!(sorted(&["9", "10", other]), [other, "10", "9"]);
        }
        assert_eq!(
            sorted(&["9223372036854775807", "10", "-1234567890123456789"]),
            ["-1234567890123456789", "10", "9223372036854775807"]
        );
        assert_eq!(sorted(&["9223372036854775808", "10"]), ["10", "9223372036854775808"]);
        assert_eq!(sorted(&["9223372036854775808", "9"]), ["9", "9223372036854775808"]);
        // Only what is kept decides.
        for junk in ["junk", "junk that is too long for a packed key"] {
            let mut interner = Interner::new(&field);
            let array: ArrayRef = Arc::new(StringArray::from(vec!["10", junk, "9"]));
            let mut numbers = Vec::new();
            interner.intern(&array, &mut numbers).unwrap();
            let (ids, rank) = interner.finish(|n| n != numbers[1]).unwrap();
            assert_eq!(ids.values().data_type(), &DataType::Int64);
            assert_eq!((ids.text(0), ids.text(1)), ("9".to_owned(), "10".to_owned()));
            assert_eq!(rank, [1, NULL, 0]);
        }
    }
}
