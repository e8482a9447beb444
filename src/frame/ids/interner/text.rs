//! The values as text, by provisional number.

use std::collections::BTreeSet;

use arrow::array::Array;
use arrow::util::display::array_value_to_string;

use super::Interner;
use crate::error::Result;
use crate::frame::ids::decode::{fits, to_shown_array};
use crate::frame::ids::key::{IdType, Key, with_bytes};

impl Interner {
    /// Whether the values are text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        IdType::from_data_type(&self.data_type) == IdType::Text
    }

    /// Calls `read` with the text of a provisional number, where the values are text.
    pub fn with_text<T>(&self, n: u32, read: impl FnOnce(&str) -> T) -> T {
        with_bytes(self.key(n), |bytes| read(std::str::from_utf8(bytes).unwrap_or_default()))
    }

    /// The values with these provisional numbers that the column's type cannot hold, as text.
    ///
    /// # Errors
    /// When a value cannot be decoded.
    pub fn outside(&self, numbers: impl Iterator<Item = u32>) -> Result<BTreeSet<String>> {
        self.texts(numbers.filter(|n| !fits(&self.data_type, self.key(*n))))
    }

    /// The values of these provisional numbers as text.
    pub(in crate::frame) fn texts(
        &self,
        numbers: impl Iterator<Item = u32>,
    ) -> Result<BTreeSet<String>> {
        let keys: Vec<_> = numbers.map(|n| self.key(n)).collect();
        let shown = to_shown_array(&self.data_type, keys.into_iter())?;
        Ok((0..shown.len()).map(|n| array_value_to_string(&shown, n)).collect::<Result<_, _>>()?)
    }

    pub(super) fn key(&self, n: u32) -> Key<'_> {
        self.long.key(n, self.table.keys()[n as usize])
    }
}
