//! Computes the size of a function's result from its arguments.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit};
use datafusion::common::{Result as DataFusionResult, ScalarValue};
use datafusion::logical_expr::ColumnarValue;

/// Returns the bytes of the result in a row.
pub(super) type SizeOfRow = Box<dyn Fn(usize) -> i128>;

/// The bytes that a call of this function returns, for each row.
///
/// # Errors
/// When an argument is not of the type that the function takes.
pub(super) fn result_bytes(function: &str, args: &[ColumnarValue]) -> DataFusionResult<SizeOfRow> {
    let all_bytes = || args.iter().map(bytes_of).collect::<DataFusionResult<Vec<_>>>();
    Ok(match (function, args) {
        ("repeat" | "array_repeat", [value, count, ..]) => {
            let (value, count) = (bytes_of(value)?, integers(count)?);
            Box::new(move |row| value.at(row).saturating_mul(count.at(row)))
        }
        ("lpad" | "rpad", [value, length, ..]) => {
            // A character takes four bytes at most.
            let (value, length) = (bytes_of(value)?, integers(length)?);
            Box::new(move |row| value.at(row).max(length.at(row).saturating_mul(4)))
        }
        ("array_resize", [list, length, rest @ ..]) => {
            let (list, length) = (bytes_of(list)?, integers(length)?);
            let fill = rest.first().map_or(Ok(NumberPerRow::One(0)), bytes_of)?;
            let added = move |row| length.at(row).saturating_mul(fill.at(row).max(8));
            Box::new(move |row| list.at(row).saturating_add(added(row)))
        }
        ("range" | "generate_series", _) => series_bytes(args)?,
        ("replace", [value, from, to]) => {
            let texts = [value, from, to].map(Texts::of);
            let [Ok(value), Ok(from), Ok(to)] = texts else { return Ok(Box::new(|_| 0)) };
            Box::new(move |row| replaced_bytes(value.at(row), from.at(row), to.at(row)))
        }
        _ => {
            // `concat_ws` puts its first argument between all others.
            let (all, times) = (all_bytes()?, args.len() as i128);
            let first = if function == "concat_ws" { times } else { 1 };
            Box::new(move |row| {
                let rest: i128 = all.iter().skip(1).map(|n| n.at(row)).sum();
                all.first().map_or(0, |n| n.at(row).saturating_mul(first)).saturating_add(rest)
            })
        }
    })
}

fn replaced_bytes(value: &str, from: &str, to: &str) -> i128 {
    let (length, grown) = (value.len() as i128, to.len() as i128 - from.len() as i128);
    let most = length / from.len().max(1) as i128 + 1;
    // Count the matches only if their upper bound would be too many.
    let matches = if grown <= 0 {
        0
    } else if most * grown <= 1 << 20 {
        most
    } else {
        value.matches(from).count() as i128
    };
    length + matches * grown.max(0)
}

/// The bytes of a series from start to end by a step: eight bytes per element.
fn series_bytes(args: &[ColumnarValue]) -> DataFusionResult<SizeOfRow> {
    let one = ColumnarValue::Scalar(ScalarValue::Int64(Some(1)));
    let zero = ColumnarValue::Scalar(ScalarValue::Int64(Some(0)));
    let (start, end, step) = match args {
        [end] => (&zero, end, &one),
        [start, end] => (start, end, &one),
        [start, end, step, ..] => (start, end, step),
        [] => return Ok(Box::new(|_| 0)),
    };
    let (start, end, step) = (nanoseconds(start)?, nanoseconds(end)?, nanoseconds(step)?);
    Ok(Box::new(move |row| {
        let (start, end, step) = (start.at(row), end.at(row), step.at(row));
        // A step away from the end gives no elements, and the function itself refuses a step of zero.
        let is_empty = step == 0 || (end > start) != (step > 0);
        if is_empty { 0 } else { ((end - start) / step + 1).saturating_mul(8) }
    }))
}

/// A number for each row, or one for all; null is 0.
enum NumberPerRow {
    One(i128),
    Each(Vec<i128>),
}

impl NumberPerRow {
    fn at(&self, row: usize) -> i128 {
        match self {
            Self::One(number) => *number,
            Self::Each(numbers) => numbers.get(row).copied().unwrap_or(0),
        }
    }

    fn of(
        value: &ColumnarValue,
        numbers: impl Fn(&ArrayRef) -> DataFusionResult<Vec<i128>>,
    ) -> DataFusionResult<Self> {
        Ok(match value {
            ColumnarValue::Array(array) => Self::Each(numbers(array)?),
            ColumnarValue::Scalar(scalar) => {
                Self::One(numbers(&scalar.to_array()?)?.first().copied().unwrap_or(0))
            }
        })
    }
}

fn integers(value: &ColumnarValue) -> DataFusionResult<NumberPerRow> {
    NumberPerRow::of(value, int64s)
}

fn int64s(array: &ArrayRef) -> DataFusionResult<Vec<i128>> {
    let array = cast(array, &DataType::Int64)?;
    Ok(array.as_primitive::<Int64Type>().iter().map(|n| n.map_or(0, i128::from)).collect())
}

/// Bytes of each value.
fn bytes_of(value: &ColumnarValue) -> DataFusionResult<NumberPerRow> {
    NumberPerRow::of(value, |array| match array.data_type() {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => int64s(&length(array)?),
        other => match other.primitive_width() {
            Some(width) => Ok(vec![width as i128; array.len()]),
            None => (0..array.len())
                .map(|row| Ok(array.slice(row, 1).to_data().get_slice_memory_size()? as i128))
                .collect(),
        },
    })
}

/// Integers unchanged; times, dates and intervals in nanoseconds, with months of 28 days, the shortest.
fn nanoseconds(value: &ColumnarValue) -> DataFusionResult<NumberPerRow> {
    const DAY: i128 = 86_400_000_000_000;
    NumberPerRow::of(value, |array| match array.data_type() {
        DataType::Date32 | DataType::Date64 => {
            let days = int64s(&cast(&cast(array, &DataType::Date32)?, &DataType::Int32)?)?;
            Ok(days.into_iter().map(|n| n * DAY).collect())
        }
        DataType::Timestamp(_, zone) => {
            int64s(&cast(array, &DataType::Timestamp(TimeUnit::Nanosecond, zone.clone()))?)
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let steps = array.as_primitive::<IntervalMonthDayNanoType>();
            let length = |step| {
                let (months, days, nanoseconds) = IntervalMonthDayNanoType::to_parts(step);
                (i128::from(months) * 28 + i128::from(days)) * DAY + i128::from(nanoseconds)
            };
            Ok(steps.iter().map(|step| step.map_or(0, length)).collect())
        }
        _ => int64s(array),
    })
}

/// A text for each row, or one for all; null is empty.
struct Texts(ArrayRef);

impl Texts {
    fn of(value: &ColumnarValue) -> DataFusionResult<Self> {
        let array = match value {
            ColumnarValue::Array(array) => Arc::clone(array),
            ColumnarValue::Scalar(scalar) => scalar.to_array()?,
        };
        Ok(Self(cast(&array, &DataType::Utf8View)?))
    }

    fn at(&self, row: usize) -> &str {
        let texts = self.0.as_string_view();
        let row = row.min(texts.len().saturating_sub(1));
        if texts.is_empty() || texts.is_null(row) { "" } else { texts.value(row) }
    }
}
