//! The columns of annotations that are not ids: weights and times.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Float64Type, Int64Type, TimeUnit,
};

use crate::error::{Error, Result};

/// The largest weight: sums and products of weights up to this stay finite, however many rows there are.
const MAX_WEIGHT: f64 = 1e100;

/// The time of a row without one.
const NO_TIME: i128 = i128::MIN;

/// The columns of one batch that are not ids.
pub(super) struct OptionalColumns {
    weight: Option<ArrayRef>,
    annotated_at: Option<Vec<i128>>,
}

impl OptionalColumns {
    pub(super) fn read(batch: &RecordBatch) -> Result<Self> {
        Ok(Self {
            weight: converted(batch, "weight", "numbers", numbers)?,
            annotated_at: converted(batch, "annotated_at", "times", times)?,
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

    /// A number in the order of the rows' times; `None` without a time column. A row with a null time is older than all
    /// others.
    pub(super) fn annotated_at(&self, row: usize) -> Option<i128> {
        Some(self.annotated_at.as_ref()?[row])
    }
}

/// The converted column of this name, where there is one; `what` names the values that it should hold.
fn converted<T>(
    batch: &RecordBatch,
    name: &str,
    what: &str,
    convert: fn(&ArrayRef) -> Option<T>,
) -> Result<Option<T>> {
    let Some(column) = batch.column_by_name(name) else { return Ok(None) };
    match convert(column) {
        Some(values) => Ok(Some(values)),
        None => Err(Error::data(format!("the column `{name}` cannot be read as {what}"))
            .at("source.annotations")
            .found(column.data_type().to_string())
            .help("cast it in source.sql.annotations, or map another column")),
    }
}

/// The column as doubles, where its type is one of numbers.
pub(super) fn numbers(a: &ArrayRef) -> Option<ArrayRef> {
    let values = match a.data_type() {
        DataType::Dictionary(_, values) => values,
        DataType::RunEndEncoded(_, values) => values.data_type(),
        own => own,
    };
    let is_number = values.is_numeric() || values.is_null();
    is_number.then(|| cast(a, &DataType::Float64).ok()).flatten()
}

/// Numbers in the order of these times, [`NO_TIME`] for a null.
///
/// # Why
/// All values of a column have one type. Decimals are compared by all their digits, and dates and times in their own
/// unit: in nanoseconds of 64 bits, all times after 2262 would be equal. Texts differ in their units, and nanoseconds
/// of 128 bits hold all of them.
fn times(a: &ArrayRef) -> Option<Vec<i128>> {
    match a.data_type() {
        DataType::Dictionary(_, values) => times(&cast(a, values).ok()?),
        DataType::RunEndEncoded(_, values) => times(&cast(a, values.data_type()).ok()?),
        t if t.is_floating() => Some(in_order(&strict(a, &DataType::Float64)?)),
        t if t.is_integer()
            || matches!(t, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)) =>
        {
            let units = strict(a, &DataType::Int64)?;
            Some(units.as_primitive::<Int64Type>().iter().map(wide).collect())
        }
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => {
            let digits = strict(a, &DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale))?;
            let digits = digits.as_primitive::<Decimal128Type>().iter();
            Some(digits.map(|digits| digits.unwrap_or(NO_TIME)).collect())
        }
        _ => nanoseconds(a),
    }
}

fn wide(time: Option<i64>) -> i128 {
    time.map_or(NO_TIME, i128::from)
}

/// A cast that fails where a value does not fit: as a null, text that is not a time would be older than all others.
fn strict(a: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    cast_with_options(a, to, &CastOptions { safe: false, ..CastOptions::default() }).ok()
}

/// Times in nanoseconds since 1970; before 1677 and after 2262, in whole microseconds.
fn nanoseconds(texts: &ArrayRef) -> Option<Vec<i128>> {
    let of = |unit| DataType::Timestamp(unit, None);
    if let Some(near) = strict(texts, &of(TimeUnit::Nanosecond)) {
        return times(&near);
    }
    let near = strict(&cast(texts, &of(TimeUnit::Nanosecond)).ok()?, &DataType::Int64)?;
    let far = strict(&strict(texts, &of(TimeUnit::Microsecond))?, &DataType::Int64)?;
    let (near, far) = (near.as_primitive::<Int64Type>(), far.as_primitive::<Int64Type>());
    let time = |(near, far): (Option<i64>, Option<i64>)| match (near, far) {
        (Some(near), _) => i128::from(near),
        (None, Some(far)) => 1000 * i128::from(far),
        (None, None) => NO_TIME,
    };
    Some(near.iter().zip(far).map(time).collect())
}

/// Numbers in the order of these floats, whatever their unit: truncation would make equal two times within a second.
/// NaN and infinities have no time.
fn in_order(numbers: &ArrayRef) -> Vec<i128> {
    let order = |number: Option<f64>| {
        let number = number.filter(|number| number.is_finite());
        // Among negative floats, the bits of greater numbers are smaller.
        let bits = number.map(|number| (number + 0.0).to_bits().cast_signed());
        wide(bits.map(|bits| if bits < 0 { !bits ^ i64::MIN } else { bits }))
    };
    numbers.as_primitive::<Float64Type>().iter().map(order).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Date32Array, Date64Array, Decimal128Array, DictionaryArray, Float64Array, StringArray,
        TimestampMicrosecondArray,
    };
    use arrow::datatypes::Int32Type;

    use super::*;

    fn times_of(array: impl Array + 'static) -> Option<Vec<i128>> {
        times(&(Arc::new(array) as ArrayRef))
    }

    fn assert_ascending(times: &[i128]) {
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    }

    #[test]
    fn times_beyond_those_of_nanoseconds_keep_their_order() {
        let texts = vec![
            "1400-01-01",
            "1500-01-01",
            "2026-01-01T00:00:00.000000001",
            "2026-01-01T00:00:00.000000002",
            "2300-01-01",
            "9999-12-31",
            "9999-12-31T00:00:00.000001",
        ];
        let order = times_of(StringArray::from(texts.clone())).unwrap();
        assert_ascending(&order);
        assert_eq!(order[5], 253_402_214_400_000_000_000);
        // Batches without times that are far away have the same unit.
        assert_eq!(times_of(StringArray::from(texts[2..4].to_vec())).unwrap(), order[2..4]);
        let dictionary: DictionaryArray<Int32Type> = texts.into_iter().collect();
        assert_eq!(times_of(dictionary).unwrap(), order);
        let far = TimestampMicrosecondArray::from(vec![Some(i64::MAX), Some(i64::MAX / 2), None]);
        let far = times_of(far).unwrap();
        assert_eq!(far, [i128::from(i64::MAX), i128::from(i64::MAX / 2), NO_TIME]);
        let (year_2300, year_9999) = (120_530, 2_932_896);
        let days = times_of(Date32Array::from(vec![year_2300, year_9999])).unwrap();
        assert_ascending(&days);
        let dates = Date64Array::from(vec![i64::MIN, 0, 253_402_214_400_000, i64::MAX]);
        assert_ascending(&times_of(dates).unwrap());
        assert_eq!(times_of(StringArray::from(vec!["2026-01-01", "soon"])), None);
    }

    /// The digits of the last decimals do not fit into 64 bits.
    #[test]
    fn times_of_fractions_keep_their_order() {
        let times =
            [-1e300, -2.5, -2.0, -1e-9, 0.0, 1e-9, 1.7e9 + 0.25, 1.7e9 + 0.75, 1.7e12, 1e300];
        assert_ascending(&times_of(Float64Array::from(times.to_vec())).unwrap());
        let same = vec![0.0, -0.0, f64::NAN, f64::INFINITY];
        assert_eq!(times_of(Float64Array::from(same)).unwrap(), [0, 0, NO_TIME, NO_TIME]);
        let decimals = |digits: Vec<Option<i128>>, scale: i8| {
            let array = Decimal128Array::from(digits).with_precision_and_scale(38, scale).unwrap();
            times_of(array).unwrap()
        };
        let tenths = decimals(vec![None, Some(16_000_000_001), Some(16_000_000_009)], 1);
        assert_eq!(tenths, [NO_TIME, 16_000_000_001, 16_000_000_009]);
        let second = 10_i128.pow(18);
        let fine = [1_600_000_000 * second, 1_600_000_000 * second + 1];
        assert_eq!(decimals(fine.map(Some).to_vec(), 18), fine);
    }
}
