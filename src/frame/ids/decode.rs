//! Decodes keys to arrays of a column's type.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal128Array, FixedSizeBinaryBuilder, GenericBinaryArray, GenericBinaryBuilder,
    GenericStringArray, Int64Array, OffsetSizeTrait, UInt64Array, new_empty_array,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::DataType;

use super::key::{IdType, Key, row_converter, with_bytes};
use crate::error::{Error, Result};
use crate::source::value_type;

/// Decodes `keys` to an array of type `data_type`; to plain values where that is a dictionary with too few indices, and
/// to large text or binary where its offsets cannot address all bytes.
///
/// # Errors
/// When a key does not fit the type.
pub fn to_array<'a>(
    data_type: &DataType,
    keys: impl ExactSizeIterator<Item = Key<'a>> + Clone,
) -> Result<ArrayRef> {
    if keys.len() == 0 {
        return Ok(new_empty_array(data_type));
    }
    let plain: ArrayRef = match IdType::from_data_type(data_type) {
        IdType::Integer => integers(keys)?,
        IdType::Text if fits_i32(keys.clone()) => text::<i32>(keys)?,
        IdType::Text => text::<i64>(keys)?,
        IdType::Binary => match value_type(data_type) {
            DataType::FixedSizeBinary(width) => {
                let mut builder = FixedSizeBinaryBuilder::new(*width);
                for key in keys {
                    with_bytes(key, |b| builder.append_value(b))?;
                }
                Arc::new(builder.finish())
            }
            _ if fits_i32(keys.clone()) => Arc::new(bytes::<i32>(keys)),
            _ => Arc::new(bytes::<i64>(keys)),
        },
        IdType::Other(_) => {
            let converter = row_converter(data_type)?;
            let parser = converter.parser();
            let owned: Vec<Vec<u8>> = keys.map(|k| with_bytes(k, <[u8]>::to_vec)).collect();
            let rows = owned.iter().map(|b| parser.parse(b));
            converter.convert_rows(rows)?.swap_remove(0)
        }
    };
    cast_to_column_type(plain, data_type)
}

/// Casts decoded values to the type of their column, or to the narrowest one that holds all of them: one batch fits the
/// indices or offsets of the column's type, but all batches together may not.
fn cast_to_column_type(plain: ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    // Otherwise a value that does not fit would become null.
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let cast = |wanted: &DataType| cast_with_options(&plain, wanted, &strict);
    let found = match data_type {
        DataType::Dictionary(_, values) => cast(data_type).or_else(|_| cast(values)),
        _ => cast(data_type),
    };
    match found {
        Err(_) if matches!(plain.data_type(), DataType::LargeUtf8 | DataType::LargeBinary) => {
            Ok(plain)
        }
        found => Ok(found?),
    }
}

/// Decodes `keys` for messages, to an array of a type that can hold integers and bytes that `data_type` cannot.
///
/// # Errors
/// When a key is not one of the [`IdType`] of `data_type`.
pub fn to_shown_array<'a>(
    data_type: &DataType,
    keys: impl ExactSizeIterator<Item = Key<'a>> + Clone,
) -> Result<ArrayRef> {
    match IdType::from_data_type(data_type) {
        IdType::Integer => {
            let integers = Decimal128Array::from_iter_values(keys.map(integer));
            Ok(Arc::new(integers.with_precision_and_scale(DIGITS, 0)?))
        }
        IdType::Binary => to_array(&DataType::LargeBinary, keys),
        _ => to_array(data_type, keys),
    }
}

/// The number of digits of the largest `u64`.
const DIGITS: u8 = 20;

/// Whether `data_type` can hold the value of a key of its [`IdType`].
#[must_use]
pub fn fits(data_type: &DataType, key: Key<'_>) -> bool {
    match value_type(data_type) {
        DataType::FixedSizeBinary(width) => usize::try_from(*width) == Ok(key.len()),
        integers if integers.is_integer() => range(integers).contains(&integer(key)),
        _ => true,
    }
}

/// The integers of a type of integers.
fn range(data_type: &DataType) -> RangeInclusive<i128> {
    let n = 1_i128 << (8 * data_type.primitive_width().unwrap_or_default());
    if data_type.is_signed_integer() { -n / 2..=n / 2 - 1 } else { 0..=n - 1 }
}

/// Whether offsets of four bytes can address all bytes of the keys.
fn fits_i32<'a>(keys: impl Iterator<Item = Key<'a>>) -> bool {
    i32::try_from(keys.map(Key::len).sum::<usize>()).is_ok()
}

fn bytes<'a, O: OffsetSizeTrait>(
    keys: impl ExactSizeIterator<Item = Key<'a>> + Clone,
) -> GenericBinaryArray<O> {
    let length = keys.clone().map(Key::len).sum();
    let mut builder = GenericBinaryBuilder::<O>::with_capacity(keys.len(), length);
    for key in keys {
        with_bytes(key, |b| builder.append_value(b));
    }
    builder.finish()
}

/// The string array of the keys, with one UTF-8 check of all their bytes.
fn text<'a, O: OffsetSizeTrait>(
    keys: impl ExactSizeIterator<Item = Key<'a>> + Clone,
) -> Result<ArrayRef> {
    let (offsets, text, nulls) = bytes::<O>(keys).into_parts();
    Ok(Arc::new(GenericStringArray::<O>::try_new(offsets, text, nulls)?))
}

/// The integers of the keys in the type of 64 bits that can hold all of them.
fn integers<'a>(keys: impl ExactSizeIterator<Item = Key<'a>> + Clone) -> Result<ArrayRef> {
    if keys.clone().any(|key| integer(key) > i128::from(i64::MAX)) {
        let unsigned = keys.map(|key| u64::try_from(integer(key)).map_err(|_| too_wide(key)));
        return Ok(Arc::new(UInt64Array::from(unsigned.collect::<Result<Vec<_>>>()?)));
    }
    let signed = keys.map(|key| i64::try_from(integer(key)).map_err(|_| too_wide(key)));
    Ok(Arc::new(Int64Array::from(signed.collect::<Result<Vec<_>>>()?)))
}

fn integer(key: Key<'_>) -> i128 {
    match key {
        Key::Packed(packed) => packed.as_integer(),
        Key::Long(_) => 0,
    }
}

fn too_wide(key: Key<'_>) -> Error {
    Error::data("one column cannot hold negative integers beside such above 2^63")
        .found(integer(key).to_string())
        .help("cast one of the columns in source.sql")
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, BooleanArray, Int32Array, LargeBinaryArray, StringArray};
    use arrow::buffer::{Buffer, OffsetBuffer};
    use arrow::compute::cast;
    use arrow::util::display::array_value_to_string;

    use super::super::key::{Packed, encoded, for_each_key};
    use super::*;

    fn round_trip(array: impl Array + 'static) {
        let array: ArrayRef = Arc::new(array);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let encoded = encoded(&array).unwrap();
        for_each_key(&encoded, |_, k| keys.push(with_bytes(k.unwrap(), <[u8]>::to_vec)));
        assert!(keys.is_sorted(), "keys sort as the values do");
        let back = to_array(array.data_type(), keys.iter().map(|k| Key::new(k))).unwrap();
        assert_eq!(&back, &array);
    }

    #[test]
    fn values_survive_and_sort_in_their_own_order() {
        round_trip(Int32Array::from(vec![i32::MIN, -1, 0, 7, i32::MAX]));
        round_trip(UInt64Array::from(vec![0, 1, u64::MAX]));
        round_trip(BooleanArray::from(vec![false, true]));
        let long = "x".repeat(10_000);
        round_trip(StringArray::from(vec!["", "a", "a\0", "ab", "exactly fifteen", &long, "🦜"]));
    }

    #[test]
    fn long_offsets_hold_the_same_text() {
        let keys = || ["", "zwölf", "exactly sixteen."].iter().map(|id| Key::new(id.as_bytes()));
        assert!(fits_i32(keys()));
        let (short, long) = (text::<i32>(keys()).unwrap(), text::<i64>(keys()).unwrap());
        assert_eq!(long.data_type(), &DataType::LargeUtf8);
        assert_eq!(&cast(&long, &DataType::Utf8).unwrap(), &short);
        assert_eq!(short.as_string::<i32>().value(1), "zwölf");
    }

    /// The bytes are never touched, so that they take no memory.
    #[test]
    fn values_beyond_the_offsets_of_their_type_have_large_ones() {
        let large = |length: usize| -> ArrayRef {
            let offsets = OffsetBuffer::from_lengths([length]);
            let bytes = Buffer::from_vec(vec![0_u8; length]);
            Arc::new(LargeBinaryArray::new(offsets, bytes, None))
        };
        let coded = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
        for data_type in [DataType::Binary, coded] {
            let narrow = cast_to_column_type(large(3), &data_type).unwrap();
            assert_eq!(narrow.data_type(), &data_type);
            let wide = cast_to_column_type(large(1 << 31), &data_type).unwrap();
            assert_eq!((wide.data_type(), wide.len()), (&DataType::LargeBinary, 1), "{data_type}");
        }
    }

    #[test]
    fn an_integer_that_does_not_fit_is_an_error_and_neither_null_nor_zero() {
        let keys = |values: &[i128]| {
            let keys = values.iter().map(|value| Key::Packed(Packed::integer(*value)));
            keys.collect::<Vec<_>>()
        };
        let [least, largest] = [i64::MIN, i64::MAX].map(i128::from);
        let most = i128::from(u64::MAX);
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int16));
        for (data_type, inside, outside) in [
            (DataType::Int8, vec![-128, 127], vec![-129, 128]),
            (DataType::UInt16, vec![0, 65_535], vec![-1, 65_536]),
            (dictionary, vec![-32_768, 32_767], vec![-32_769, 32_768]),
            (DataType::Int64, vec![least, largest], vec![largest + 1, most]),
            (DataType::UInt64, vec![0, most], vec![-1, least]),
        ] {
            let array = to_array(&data_type, keys(&inside).into_iter()).unwrap();
            assert_eq!((array.len(), array.null_count()), (2, 0), "{data_type}");
            assert!(keys(&inside).into_iter().all(|key| fits(&data_type, key)), "{data_type}");
            for value in outside {
                let all = keys(&[inside[0], inside[1], value]);
                assert!(!fits(&data_type, all[2]), "{value} {data_type}");
                assert!(to_array(&data_type, all.iter().copied()).is_err(), "{value} {data_type}");
                let shown = to_shown_array(&data_type, all.iter().copied()).unwrap();
                assert_eq!(array_value_to_string(&shown, 2).unwrap(), value.to_string());
            }
        }
    }

    #[test]
    fn bytes_fit_a_type_of_their_own_width() {
        let uuid = DataType::FixedSizeBinary(16);
        assert!(fits(&uuid, Key::new(&[7; 16])) && !fits(&uuid, Key::new(&[7; 3])));
        let shown = to_shown_array(&uuid, [Key::new(&[7; 3])].into_iter()).unwrap();
        assert_eq!(array_value_to_string(&shown, 0).unwrap(), "070707");
    }
}
