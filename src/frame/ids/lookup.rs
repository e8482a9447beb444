//! The numbers of values among ids that are known.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::Field;

use super::Ids;
use super::interner::Interner;
use crate::error::Result;

impl Ids {
    /// The number of every row of `array`, `None` where it is null or not among these.
    ///
    /// # Errors
    /// When the type is of another family.
    pub fn lookup(&self, column: &str, array: &ArrayRef) -> Result<Vec<Option<u32>>> {
        self.lookup_field(&Field::new(column, array.data_type().clone(), true), array)
    }

    /// As [`Ids::lookup`], where text of a format without types may stand for integers.
    ///
    /// # Errors
    /// As [`Ids::lookup`].
    pub fn lookup_field(&self, field: &Field, array: &ArrayRef) -> Result<Vec<Option<u32>>> {
        let own = Field::new(field.name(), self.values().data_type().clone(), true);
        let mut interner = Interner::new(&own);
        let mut known = Vec::new();
        interner.intern(self.values(), &mut known)?;
        let mut numbers = Vec::new();
        interner.intern_other(field, array, &mut numbers)?;
        Ok(numbers.into_iter().map(|n| ((n as usize) < known.len()).then_some(n)).collect())
    }
}
