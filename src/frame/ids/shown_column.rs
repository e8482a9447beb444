//! A column whose values are shown in rejects and errors.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::util::display::{ArrayFormatter, FormatOptions, ValueFormatter};

use crate::error::Result;

/// The values of a column, as text.
pub(in crate::frame) struct ShownColumn<'a> {
    values: ArrayFormatter<'a>,
    nulls: Option<NullBuffer>,
}

impl<'a> ShownColumn<'a> {
    pub(in crate::frame) fn new(column: &'a ArrayRef) -> Result<Self> {
        let shown = FormatOptions::new().with_display_error(true).with_null("null");
        // The values of a dictionary or of run ends may be null without null bits of the column.
        Ok(Self { values: ArrayFormatter::try_new(column, &shown)?, nulls: column.logical_nulls() })
    }

    pub(in crate::frame) fn value(&self, row: usize) -> ValueFormatter<'_> {
        self.values.value(row)
    }

    /// The value of a row; that of `other` where it is null.
    pub(in crate::frame) fn valid_or<'s>(
        &'s self,
        row: usize,
        other: &'s Self,
    ) -> ValueFormatter<'s> {
        let is_valid = self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        if is_valid { self.value(row) } else { other.value(row) }
    }
}
