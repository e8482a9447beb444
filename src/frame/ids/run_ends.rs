//! Arrays with run ends, which store a run of equal values once.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use crate::error::Result;

/// The value of each row, where the array has run ends; any other array unchanged.
///
/// # Errors
/// When the values cannot be taken.
pub(in crate::frame) fn without_run_ends(array: &ArrayRef) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::RunEndEncoded(_, values) => Ok(cast(array, values.data_type())?),
        _ => Ok(Arc::clone(array)),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, StringArray};
    use arrow::datatypes::Field;

    use super::super::{Interner, NULL};
    use super::*;

    fn interned(values: &ArrayRef) -> (Vec<u32>, ArrayRef) {
        let run_ends = Field::new("run_ends", DataType::Int32, false);
        let items = Field::new("values", values.data_type().clone(), true);
        let runs = DataType::RunEndEncoded(Arc::new(run_ends), Arc::new(items));
        let mut interner = Interner::new(&Field::new("id", runs.clone(), true));
        let mut numbers = Vec::new();
        // A slice begins within a run.
        let runs = cast(values, &runs).unwrap().slice(1, values.len() - 1);
        interner.intern(&runs, &mut numbers).unwrap();
        interner.intern(values, &mut numbers).unwrap();
        (numbers, interner.finish(|_| true).unwrap().0.values().clone())
    }

    #[test]
    fn values_behind_run_ends_are_the_same_ids_as_without() {
        let texts = vec![Some("b"), Some("b"), None, None, Some("a")];
        let (numbers, ids) = interned(&(Arc::new(StringArray::from(texts)) as ArrayRef));
        assert_eq!(numbers, [0, NULL, NULL, 1, 0, 0, NULL, NULL, 1]);
        assert_eq!(&ids, &(Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef));
    }

    #[test]
    fn floats_behind_run_ends_are_finite_and_have_one_zero() {
        let floats = vec![1.5, 1.5, f64::NAN, -0.0, 0.0, f64::INFINITY];
        let (numbers, ids) = interned(&(Arc::new(Float64Array::from(floats)) as ArrayRef));
        assert_eq!(numbers, [0, NULL, 1, 1, NULL, 0, 0, NULL, 1, 1, NULL]);
        assert_eq!(&ids, &(Arc::new(Float64Array::from(vec![0.0, 1.5])) as ArrayRef));
    }
}
