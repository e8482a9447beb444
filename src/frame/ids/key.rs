//! Encodes any scalar value as bytes that sort as the value does, so that one interner serves ids of every type.
//!
//! ```text
//! integers      9 bytes, big-endian, shifted so that the least i64 is zero and u64 fits above
//! strings       their UTF-8 bytes (utf8, large, view and dictionaries of these are one type of ids)
//! binary, uuid  their bytes
//! all others    Arrow's row format (booleans, dates, timestamps, decimals, floats, ...)
//! ```
//! A key of up to 15 bytes is packed into one `u128`: the bytes from the top, the length in the lowest byte. Packed
//! keys compare as the bytes do, hash with one multiplication and need no memory outside the table that holds them. A
//! longer key is its bytes, for which a word with their hash stands in that table.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use arrow::row::{RowConverter, SortField};

use super::times::stored_type;
use crate::error::{Error, Result};

/// The types whose values are interchangeable as ids: an `Int32` 7 and an `Int64` 7 are the same id, a text "7" is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdType {
    /// All integer widths.
    Integer,
    /// All string layouts.
    Text,
    /// Binary and fixed-size binary (uuid).
    Binary,
    /// Anything else, by its exact type.
    Other(DataType),
}

impl IdType {
    /// The type of ids of a column with this data type.
    #[must_use]
    pub fn from_data_type(data_type: &DataType) -> Self {
        match data_type {
            t if t.is_integer() => Self::Integer,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Self::Binary,
            DataType::Dictionary(_, values) => Self::from_data_type(values),
            DataType::RunEndEncoded(_, values) => Self::from_data_type(values.data_type()),
            other => Self::Other(stored_type(other)),
        }
    }
}

/// The lowest byte of a word that stands for a longer key than [`Packed::MAX`]; that of a packed key is its length.
pub(super) const LONG: u128 = 0xff;

/// A key of at most [`Packed::MAX`] bytes in one word, or the word that stands for a longer key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packed(pub u128);

impl Packed {
    /// The longest key that packs.
    pub const MAX: usize = 15;

    /// The longest key that leaves room for a number in the word.
    pub const NUMBERED: usize = 11;

    /// Packs `bytes`; `None` if there are too many.
    ///
    /// Two overlapping loads cover any length from 4 on: the bytes they share are equal, so that `|` joins the loads.
    #[inline]
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let n = bytes.len();
        let word = match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            (Some(first), Some(last)) if n <= Self::MAX => {
                let (first, last) = (u64::from_be_bytes(*first), u64::from_be_bytes(*last));
                (u128::from(first) << 64) | (u128::from(last) << (8 * (16 - n)))
            }
            (Some(_), _) => return None,
            _ => match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
                (Some(first), Some(last)) => {
                    let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
                    (u128::from(first) << 96) | (u128::from(last) << (8 * (16 - n)))
                }
                _ => bytes
                    .iter()
                    .rev()
                    .fold(0, |word, byte| (word >> 8) | (u128::from(*byte) << 120)),
            },
        };
        Some(Self(word | n as u128))
    }

    /// The key of an integer.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_sign_loss)]
    pub fn integer(value: i128) -> Self {
        let shifted = (value - i128::from(i64::MIN)) as u128;
        Self((shifted << 56) | 9)
    }

    /// The integer of a key of [`Packed::integer`].
    #[inline]
    #[must_use]
    pub fn as_integer(self) -> i128 {
        (self.0 >> 56).cast_signed() + i128::from(i64::MIN)
    }

    /// This key of at most [`Packed::NUMBERED`] bytes and a number in one word, which sorts as the key does: a sort has
    /// to move nothing else.
    #[inline]
    #[must_use]
    pub fn numbered(self, number: u32) -> u128 {
        let length = self.0 & 0xff;
        (self.0 ^ length) | (length << 32) | u128::from(number)
    }

    /// The key and the number of a word of [`Packed::numbered`].
    #[inline]
    #[must_use]
    pub fn of_numbered(word: u128) -> (Self, u32) {
        let bytes = word & !((1 << 40) - 1);
        (Self(bytes | ((word >> 32) & 0xff)), word as u32)
    }

    /// The word that stands for a long key whose bytes have this hash.
    #[inline]
    #[must_use]
    pub fn of_hash(hash: u64) -> Self {
        Self((u128::from(hash) << 64) | LONG)
    }

    /// The word that stands for a long key whose bytes have the same hash as those of the key of this word.
    #[must_use]
    pub fn with_same_hash(self) -> Self {
        Self(self.0 + LONG + 1)
    }

    /// Whether the word stands for a long key.
    #[inline]
    #[must_use]
    pub fn is_long(self) -> bool {
        self.0 & LONG == LONG
    }

    /// (Bytes that begin with those of the key, the number of bytes of the key).
    #[must_use]
    pub fn bytes(self) -> ([u8; 16], usize) {
        (self.0.to_be_bytes(), (self.0 & 0xff) as usize)
    }
}

/// The number that stands for a null, or for an unknown value.
pub const NULL: u32 = u32::MAX;

/// A value's index in its array, and its key.
pub(super) type IndexedKey = (u32, Packed);

/// A key, packed or borrowed.
#[derive(Debug, Clone, Copy)]
pub enum Key<'a> {
    /// At most [`Packed::MAX`] bytes.
    Packed(Packed),
    /// Too long to pack.
    Long(&'a [u8]),
}

impl<'a> Key<'a> {
    /// The key of these bytes.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Packed::new(bytes).map_or(Self::Long(bytes), Self::Packed)
    }

    /// How many bytes it has.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Packed(packed) => packed.bytes().1,
            Self::Long(bytes) => bytes.len(),
        }
    }
}

/// The values as an array of integers of 64 bits or of bytes, whose rows [`for_each_key`] visits.
///
/// # Errors
/// When values of this type have no order (lists, structs, maps).
pub fn encoded(array: &ArrayRef) -> Result<ArrayRef> {
    match IdType::from_data_type(array.data_type()) {
        IdType::Integer if *array.data_type() == DataType::UInt64 => Ok(Arc::clone(array)),
        IdType::Integer => Ok(cast(array, &DataType::Int64)?),
        IdType::Text | IdType::Binary => Ok(Arc::clone(array)),
        IdType::Other(data_type) => {
            let converter = row_converter(&data_type)?;
            let rows = converter.convert_columns(std::slice::from_ref(array))?;
            let (offsets, bytes, _) = rows.try_into_binary()?.into_parts();
            // A null array has no null bits of its own.
            Ok(Arc::new(BinaryArray::try_new(offsets, bytes, array.logical_nulls())?))
        }
    }
}

/// Calls `visit(row, key)` for each row of an array of [`encoded`], with `None` where it is null.
pub fn for_each_key<'a>(array: &'a ArrayRef, mut visit: impl FnMut(usize, Option<Key<'a>>)) {
    macro_rules! bytes {
        ($array:expr) => {
            for (row, value) in $array.iter().enumerate() {
                visit(row, value.map(|v| Key::new(v.as_ref())));
            }
        };
    }
    macro_rules! integers {
        ($type:ty) => {
            for (row, value) in array.as_primitive::<$type>().iter().enumerate() {
                visit(row, value.map(|v| Key::Packed(Packed::integer(i128::from(v)))));
            }
        };
    }
    match array.data_type() {
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Utf8 => bytes!(array.as_string::<i32>()),
        DataType::LargeUtf8 => bytes!(array.as_string::<i64>()),
        DataType::Utf8View => bytes!(array.as_string_view()),
        DataType::Binary => bytes!(array.as_binary::<i32>()),
        DataType::LargeBinary => bytes!(array.as_binary::<i64>()),
        DataType::BinaryView => bytes!(array.as_binary_view()),
        DataType::FixedSizeBinary(_) => bytes!(array.as_fixed_size_binary()),
        _ => integers!(Int64Type),
    }
}

/// The bytes of a row of an array of bytes of [`encoded`].
pub fn bytes_of(array: &ArrayRef, row: usize) -> &[u8] {
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).as_bytes(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).as_bytes(),
        DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        _ => array.as_fixed_size_binary().value(row),
    }
}

pub(super) fn row_converter(data_type: &DataType) -> Result<RowConverter> {
    RowConverter::new(vec![SortField::new(data_type.clone())]).map_err(|_| {
        Error::data("values of this type cannot be ids or labels")
            .found(data_type.to_string())
            .help("cast the column in source.sql, or map another one")
    })
}

/// Calls `use_bytes` with the bytes of a key.
pub fn with_bytes<T>(key: Key<'_>, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
    match key {
        Key::Packed(packed) => {
            let (bytes, length) = packed.bytes();
            use_bytes(&bytes[..length])
        }
        Key::Long(bytes) => use_bytes(bytes),
    }
}

/// Compares two keys: their order is that of their values.
#[must_use]
pub fn compare(a: Key<'_>, b: Key<'_>) -> Ordering {
    match (a, b) {
        (Key::Packed(a), Key::Packed(b)) => a.cmp(&b),
        _ => with_bytes(a, |a| with_bytes(b, |b| a.cmp(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_packs_and_unpacks() {
        let bytes: Vec<u8> = (1..=16).collect();
        for n in 0..=Packed::MAX {
            let (unpacked, length) = Packed::new(&bytes[..n]).unwrap().bytes();
            assert_eq!((&unpacked[..length], length), (&bytes[..n], n));
        }
        assert_eq!(Packed::new(&bytes), None);
    }

    #[test]
    fn a_short_key_carries_a_number() {
        let bytes: Vec<u8> = (1..=15).collect();
        let key = |n: usize| Packed::new(&bytes[..n]).unwrap();
        for n in 0..=Packed::NUMBERED {
            let word = key(n).numbered(u32::MAX);
            assert_eq!(Packed::of_numbered(word), (key(n), u32::MAX));
            assert!(n == Packed::NUMBERED || word < key(n + 1).numbered(0));
        }
    }

    #[test]
    fn a_packed_key_knows_its_length() {
        assert!(Packed::new(b"a") < Packed::new(b"a\0"));
        assert_eq!(Packed::new(&[0; 16]), None);
    }
}
