//! Ids numbered in sorted order.
//!
//! # Why
//! Numbering by arrival would make every sum depend on the order of rows and files. Sorted numbers make the whole
//! job independent of it, and the rows of tables come out sorted.

mod common_type;
mod decode;
mod dictionary;
pub(super) mod exact_text;
mod floats;
pub(super) mod id_columns;
mod interner;
mod key;
mod lookup;
mod run_ends;
pub(super) mod shown_column;
mod times;
mod untyped;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::DataType;

pub(super) use floats::finite;
pub(super) use interner::Interner;
pub(super) use key::NULL;
pub use lookup::IdIndex;
pub(super) use run_ends::without_run_ends;
pub(super) use untyped::{as_text, in_plain_form};

use crate::error::Result;

/// The distinct values of a column, sorted: the number of a value is its position here.
#[derive(Debug, Clone)]
pub struct Ids {
    values: ArrayRef,
    /// Whether they came from a format without types, whose text may represent integers.
    is_untyped: bool,
}

impl Ids {
    /// The number of ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the list has no ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The values, with the type that they came with.
    #[must_use]
    pub fn values(&self) -> &ArrayRef {
        &self.values
    }

    /// Ids in the given order: sorted, or as the user listed the classes.
    #[must_use]
    pub fn in_order(values: ArrayRef) -> Self {
        Self { values, is_untyped: false }
    }

    /// Some of these values, in another order.
    pub(super) fn reordered(&self, values: ArrayRef) -> Self {
        Self { values, is_untyped: self.is_untyped }
    }

    /// The values of these numbers, in their order; `None` becomes null.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn rows(&self, numbers: impl Iterator<Item = Option<u32>>) -> Result<ArrayRef> {
        self.take_array(&numbers.collect())
    }

    /// The values of a range of numbers.
    #[must_use]
    pub fn range(&self, numbers: Range<usize>) -> ArrayRef {
        self.values.slice(numbers.start, numbers.len())
    }

    /// As [`Ids::rows`], where every number is known.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn take(&self, numbers: Vec<u32>) -> Result<ArrayRef> {
        self.take_array(&numbers.into())
    }

    fn take_array(&self, numbers: &UInt32Array) -> Result<ArrayRef> {
        if self.is_empty() {
            return Ok(new_null_array(self.values.data_type(), numbers.len()));
        }
        Ok(take(&self.values, numbers, None)?)
    }

    /// The number of bytes of the longest value.
    #[must_use]
    pub fn longest(&self) -> usize {
        fn longest<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
            let lengths = offsets.windows(2).map(|ends| (ends[1] - ends[0]).as_usize());
            lengths.max().unwrap_or_default()
        }
        let values = &self.values;
        match values.data_type() {
            DataType::Utf8 => longest(values.as_string::<i32>().value_offsets()),
            DataType::LargeUtf8 => longest(values.as_string::<i64>().value_offsets()),
            DataType::Binary => longest(values.as_binary::<i32>().value_offsets()),
            DataType::LargeBinary => longest(values.as_binary::<i64>().value_offsets()),
            DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or_default(),
            // Views and dictionaries hold a repeated value once.
            other => other.primitive_width().unwrap_or(size_of::<u128>()),
        }
    }

    /// The mean number of bytes of a value, rounded up.
    #[must_use]
    pub fn mean_bytes(&self) -> usize {
        fn total<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
            let ends = offsets.first().zip(offsets.last());
            ends.map_or(0, |(start, end)| (*end - *start).as_usize())
        }
        let values = &self.values;
        let total = match values.data_type() {
            DataType::Utf8 => total(values.as_string::<i32>().value_offsets()),
            DataType::LargeUtf8 => total(values.as_string::<i64>().value_offsets()),
            DataType::Binary => total(values.as_binary::<i32>().value_offsets()),
            DataType::LargeBinary => total(values.as_binary::<i64>().value_offsets()),
            // Every value has the same number of bytes.
            _ => return self.longest(),
        };
        total.div_ceil(self.len().max(1))
    }

    /// One value as text.
    #[must_use]
    pub fn text(&self, index: usize) -> String {
        arrow::util::display::array_value_to_string(&self.values, index)
            .unwrap_or_else(|_| format!("#{index}"))
    }
}

impl From<Ids> for ArrayRef {
    fn from(ids: Ids) -> Self {
        Arc::clone(&ids.values)
    }
}
