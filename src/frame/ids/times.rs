//! Times as ids and labels, in a unit that Parquet has.
//!
//! # Why
//! Parquet has no time in seconds and no date in milliseconds: readers would get plain integers, which do not join
//! with their own times.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit};

use crate::error::Result;

/// A type that holds the same values and that Parquet has; for most types, the type itself.
pub(super) fn stored_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        DataType::Date64 => DataType::Timestamp(TimeUnit::Millisecond, None),
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Dictionary(key, values) => {
            DataType::Dictionary(key.clone(), Box::new(stored_type(values)))
        }
        other => other.clone(),
    }
}

/// The values cast to their [`stored_type`].
///
/// # Errors
/// When a time is out of range for the finer unit.
pub(super) fn stored(array: &ArrayRef) -> Result<ArrayRef> {
    let wanted = stored_type(array.data_type());
    if wanted == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(array, &wanted, &strict)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Date64Array, TimestampSecondArray};
    use arrow::datatypes::{Field, TimestampMillisecondType};

    use super::super::Interner;
    use super::*;

    #[test]
    fn seconds_and_dates_of_milliseconds_become_milliseconds() {
        for array in [
            Arc::new(TimestampSecondArray::from(vec![2, 1, 2])) as ArrayRef,
            Arc::new(Date64Array::from(vec![2000, 1000, 2000])),
        ] {
            let mut interner = Interner::new(&Field::new("id", array.data_type().clone(), true));
            let mut numbers = Vec::new();
            interner.intern(&array, &mut numbers).unwrap();
            assert_eq!(numbers, [0, 1, 0]);
            let (ids, _) = interner.finish(|_| true).unwrap();
            let values = ids.values().as_primitive::<TimestampMillisecondType>().values();
            assert_eq!(values, &[1000, 2000]);
            // A lookup takes the input type too.
            assert_eq!(ids.lookup("id", &array).unwrap(), [Some(1), Some(0), Some(1)]);
        }
        let far: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX]));
        assert!(stored(&far).is_err());
    }
}
