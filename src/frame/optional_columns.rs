//! The columns of annotations that are not ids: weights and times.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};

use crate::error::{Error, Result};

/// The largest weight: sums and products of weights up to this stay finite, however many rows there are.
const MAX_WEIGHT: f64 = 1e100;

/// The columns of one batch that are not ids.
pub(super) struct OptionalColumns {
    weight: Option<ArrayRef>,
    annotated_at: Option<ArrayRef>,
}

impl OptionalColumns {
    pub(super) fn of(batch: &RecordBatch) -> Result<Self> {
        let read = |name: &str, what: &str, convert: &dyn Fn(&ArrayRef) -> Option<ArrayRef>| {
            let Some(column) = batch.column_by_name(name) else { return Ok(None) };
            match convert(column) {
                Some(array) => Ok(Some(array)),
                None => Err(Error::data(format!("the column `{name}` cannot be read as {what}"))
                    .at("source.annotations")
                    .found(column.data_type().to_string())
                    .help("cast it in source.sql.annotations, or map another column")),
            }
        };
        let number = |a: &ArrayRef| {
            let values = match a.data_type() {
                DataType::Dictionary(_, values) => values,
                DataType::RunEndEncoded(_, values) => values.data_type(),
                own => own,
            };
            let is_number = values.is_numeric() || values.is_null();
            is_number.then(|| cast(a, &DataType::Float64).ok()).flatten()
        };
        let time = |a: &ArrayRef| match a.data_type() {
            t if t.is_integer() => strict(a, &DataType::Int64),
            t if t.is_floating() => Some(in_order(&strict(a, &DataType::Float64)?)),
            _ => nanoseconds(a),
        };
        Ok(Self {
            weight: read("weight", "numbers", &number)?,
            annotated_at: read("annotated_at", "times", &time)?,
        })
    }

    /// Whether a batch has any of them.
    pub(super) fn are_in(batch: &RecordBatch) -> bool {
        ["weight", "annotated_at"].iter().any(|name| batch.column_by_name(name).is_some())
    }

    /// The row's weight; `None` without a weight column. The error is the value found, where it is not a valid weight.
    pub(super) fn weight(&self, row: usize) -> Result<Option<f64>, String> {
        let Some(weights) = &self.weight else { return Ok(None) };
        let weights = weights.as_primitive::<Float64Type>();
        if weights.is_null(row) {
            return Err("null".to_owned());
        }
        match weights.value(row) {
            w if w > 0.0 && w <= MAX_WEIGHT => Ok(Some(w)),
            w => Err(format!("{w:?}")),
        }
    }

    /// The time of the row; `None` without a time column. A row with a null time is older than all others.
    pub(super) fn annotated_at(&self, row: usize) -> Option<i64> {
        let times = self.annotated_at.as_ref()?.as_primitive::<Int64Type>();
        Some(if times.is_null(row) { i64::MIN } else { times.value(row) })
    }
}

/// A cast that fails where a value does not fit: as a null, text that is not a time would be older than all others.
fn strict(a: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    cast_with_options(a, to, &CastOptions { safe: false, ..CastOptions::default() }).ok()
}

/// Times in nanoseconds since 1970. Times before 1677 and after 2262, such as `9999-12-31`, saturate.
fn nanoseconds(a: &ArrayRef) -> Option<ArrayRef> {
    let of = |unit| DataType::Timestamp(unit, None);
    if *a.data_type() == DataType::Date64 {
        // Arrow's cast of this type to nanoseconds wraps.
        return nanoseconds(&strict(a, &of(TimeUnit::Millisecond))?);
    }
    if let Some(times) = strict(a, &of(TimeUnit::Nanosecond)) {
        return strict(&times, &DataType::Int64);
    }
    let near = strict(&cast(a, &of(TimeUnit::Nanosecond)).ok()?, &DataType::Int64)?;
    let far = strict(&strict(a, &of(TimeUnit::Second))?, &DataType::Int64)?;
    let (near, far) = (near.as_primitive::<Int64Type>(), far.as_primitive::<Int64Type>());
    let time = |(near, far): (Option<i64>, Option<i64>)| // `i64::MIN` stands for a row without a time.
        near.or_else(|| Some(far?.saturating_mul(1_000_000_000).max(i64::MIN + 1)));
    Some(Arc::new(near.iter().zip(far).map(time).collect::<Int64Array>()))
}

/// Integers in the order of these floats, whatever their unit: truncation would make equal two times within a second.
/// NaN and infinities become null.
fn in_order(numbers: &ArrayRef) -> ArrayRef {
    let order = |number: f64| {
        // Among negative floats, the bits of greater numbers are smaller.
        let bits = (number + 0.0).to_bits().cast_signed();
        number.is_finite().then_some(if bits < 0 { !bits ^ i64::MIN } else { bits })
    };
    Arc::new(numbers.as_primitive::<Float64Type>().unary_opt::<_, Int64Type>(order))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date64Array, Float64Array, StringArray, TimestampMicrosecondArray};

    use super::*;

    #[test]
    fn times_beyond_those_of_nanoseconds_are_earlier_or_later_than_all_others() {
        let texts = [
            "1500-01-01",
            "2026-01-01T00:00:00.000000001",
            "2026-01-01T00:00:00.000000002",
            "9999-12-31",
        ];
        let order =
            nanoseconds(&(Arc::new(StringArray::from(texts.to_vec())) as ArrayRef)).unwrap();
        let order = order.as_primitive::<Int64Type>().values().to_vec();
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
        assert_eq!([order[0], order[3]], [i64::MIN + 1, i64::MAX]);
        let times = TimestampMicrosecondArray::from(vec![Some(i64::MAX / 2), None, Some(1)]);
        let order = nanoseconds(&(Arc::new(times) as ArrayRef)).unwrap();
        let order: Vec<Option<i64>> = order.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(order, [Some(i64::MAX), None, Some(1000)]);
        let dates = Date64Array::from(vec![253_402_214_400_000, 0, 86_400_000, i64::MIN]);
        let order = nanoseconds(&(Arc::new(dates) as ArrayRef)).unwrap();
        let order = order.as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(order, [i64::MAX, 0, 86_400_000_000_000, i64::MIN + 1]);
        let texts = vec!["2026-01-01", "soon"];
        assert!(nanoseconds(&(Arc::new(StringArray::from(texts)) as ArrayRef)).is_none());
    }

    #[test]
    fn times_of_fractions_keep_their_order() {
        let times =
            [-1e300, -2.5, -2.0, -1e-9, 0.0, 1e-9, 1.7e9 + 0.25, 1.7e9 + 0.75, 1.7e12, 1e300];
        let order = in_order(&(Arc::new(Float64Array::from(times.to_vec())) as ArrayRef));
        let order = order.as_primitive::<Int64Type>().values();
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
        let same = vec![0.0, -0.0, f64::NAN, f64::INFINITY];
        let order = in_order(&(Arc::new(Float64Array::from(same)) as ArrayRef));
        let order: Vec<Option<i64>> = order.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(order, [Some(0), Some(0), None, None]);
    }
}
