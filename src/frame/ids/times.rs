//! Times as ids and labels, in a unit that Parquet has.
//!
//! # Why
//! Parquet has no time in seconds and no date in milliseconds: readers would get plain integers, which do not join
//! with their own times and dates.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Date64Type, TimeUnit};
use arrow::util::display::array_value_to_string;

use crate::error::{Error, Result};

/// A type that holds the same values and that Parquet has; for most types, the type itself.
pub(super) fn stored_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        DataType::Date64 => DataType::Date32,
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Dictionary(key, values) => {
            DataType::Dictionary(key.clone(), Box::new(stored_type(values)))
        }
        DataType::RunEndEncoded(_, values) => stored_type(values.data_type()),
        other => other.clone(),
    }
}

/// The values cast to their [`stored_type`].
///
/// # Errors
/// When a time is out of range for the finer unit, or a date has a time of day.
pub(super) fn stored(array: &ArrayRef) -> Result<ArrayRef> {
    let wanted = stored_type(array.data_type());
    if wanted == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let stored = cast_with_options(array, &wanted, &strict).map_err(|_| {
        Error::data("a time in seconds is too far away to be written in milliseconds")
            .help("leave such rows out in source.sql, or cast the column there")
    })?;
    if *array.data_type() == DataType::Date64 {
        check_whole_days(array, &stored)?;
    }
    Ok(stored)
}

/// Checks that no date in milliseconds lost a time of day, which Arrow's definition of dates excludes: two different values
/// would become one.
fn check_whole_days(dates: &ArrayRef, days: &ArrayRef) -> Result<()> {
    let again = cast(days, &DataType::Date64)?;
    let pairs = dates.as_primitive::<Date64Type>().iter().zip(again.as_primitive::<Date64Type>());
    let lost = pairs.enumerate().find(|(_, (date, again))| date != again);
    let Some((row, _)) = lost else { return Ok(()) };
    Err(Error::data("a date has a time of day")
        .found(format!("`{}` in a column of type Date64", array_value_to_string(dates, row)?))
        .help("cast the column in source.sql: to date without the time, or to timestamp with it"))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date32Array, Date64Array, TimestampMillisecondArray, TimestampSecondArray};
    use arrow::datatypes::Field;

    use super::super::Interner;
    use super::*;

    #[test]
    fn seconds_become_milliseconds_and_dates_of_milliseconds_days() {
        const DAY: i64 = 86_400_000;
        let milliseconds = TimestampMillisecondArray::from(vec![1000, 2000]);
        for (array, sorted) in [
            (
                Arc::new(TimestampSecondArray::from(vec![2, 1, 2])) as ArrayRef,
                Arc::new(milliseconds) as ArrayRef,
            ),
            (
                Arc::new(Date64Array::from(vec![2 * DAY, -DAY, 2 * DAY])),
                Arc::new(Date32Array::from(vec![-1, 2])),
            ),
        ] {
            let mut interner = Interner::new(&Field::new("id", array.data_type().clone(), true));
            let mut numbers = Vec::new();
            interner.intern(&array, &mut numbers).unwrap();
            assert_eq!(numbers, [0, 1, 0]);
            let (ids, _) = interner.finish(|_| true).unwrap();
            assert_eq!(ids.values(), &sorted);
            // A lookup takes the input type too.
            assert_eq!(ids.lookup("id", &array).unwrap(), [Some(1), Some(0), Some(1)]);
        }
        let far: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX]));
        let error = stored(&far).unwrap_err().to_string();
        assert!(error.contains("too far away to be written in milliseconds"), "{error}");
        let hours: ArrayRef =
            Arc::new(Date64Array::from(vec![None, Some(DAY), Some(DAY + 3_600_000)]));
        let mut interner = Interner::new(&Field::new("day", DataType::Date64, true));
        let error = interner.intern(&hours, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("`day`: a date has a time of day"), "{error}");
        assert!(error.contains("`1970-01-02T01:00:00`"), "{error}");
    }
}
