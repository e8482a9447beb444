//! The values as text, by provisional number.

use super::Interner;
use crate::frame::ids::key::{IdType, with_bytes};

impl Interner {
    /// Whether the values are text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        IdType::of(&self.data_type) == IdType::Text
    }

    /// Calls `read` with the text of a provisional number, where the values are text.
    pub fn with_text<T>(&self, n: u32, read: impl FnOnce(&str) -> T) -> T {
        with_bytes(self.long.key(n, self.table.keys()[n as usize]), |bytes| {
            read(std::str::from_utf8(bytes).unwrap_or_default())
        })
    }
}
