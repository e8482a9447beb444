//! Text as values of another type, where it stands for exactly one of them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::kernels::cmp::neq;
use arrow::compute::{cast, nullif, or_kleene};
use arrow::datatypes::{DataType, TimeUnit};
use arrow::error::ArrowError;

/// Casts text to a type; null where it is no value of that type, or a cast would round it to one: 1.004 is no number of
/// two decimal places, and a date with a time of day is no date.
///
/// # Errors
/// When no text is a value of the type.
pub fn cast_exact_text(texts: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let values = cast(texts, data_type)?;
    let is_rounded = match data_type {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => has_more_digits(texts, *scale)?,
        DataType::Date32 => differs(texts, &values, &timestamps(None))?,
        DataType::Timestamp(_, zone) => differs(texts, &values, &timestamps(zone.clone()))?,
        DataType::Time32(_) | DataType::Time64(_) => {
            differs(texts, &values, &[DataType::Time64(TimeUnit::Nanosecond)])?
        }
        _ => return Ok(values),
    };
    nullif(&values, &is_rounded)
}

/// Whether a number has other digits than zero beyond so many decimal places.
fn has_more_digits(texts: &ArrayRef, scale: i8) -> Result<BooleanArray, ArrowError> {
    let texts = cast(texts, &DataType::LargeUtf8)?;
    let has_more = |text: &str| {
        let digits = text.trim().split_once('.').map_or("", |(_, fraction)| fraction);
        digits.trim_end_matches('0').len() > usize::try_from(scale).unwrap_or_default()
    };
    Ok(texts.as_string::<i64>().iter().map(|text| text.map(has_more)).collect())
}

/// Timestamps that between them reach every year and hold every digit.
fn timestamps(zone: Option<Arc<str>>) -> [DataType; 2] {
    [
        DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Timestamp(TimeUnit::Nanosecond, zone),
    ]
}

/// Whether the text and its value differ in one of these types, where both can be cast to it.
fn differs(
    texts: &ArrayRef,
    values: &ArrayRef,
    types: &[DataType],
) -> Result<BooleanArray, ArrowError> {
    let differ = |wide: &DataType| neq(&cast(texts, wide)?, &cast(values, wide)?);
    let none = BooleanArray::from(vec![false; texts.len()]);
    types.iter().try_fold(none, |any, wide| or_kleene(&any, &differ(wide)?))
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn a_text_is_a_value_only_where_no_digit_of_it_is_lost() {
        use DataType::{Date32, Decimal128, Float32, Time32, Timestamp};
        for (data_type, exact, others) in [
            (
                Decimal128(10, 2),
                vec!["0", "1.00", "1.000", " 0.5 ", "-1.25", ".5"],
                vec!["1.004", "0.996", "-0.001", "x"],
            ),
            (Decimal128(10, 0), vec!["7", "7.0"], vec!["7.5"]),
            (
                Date32,
                vec!["2020-01-01", "2020-01-01T00:00:00", "9999-12-31", "+12020-01-01"],
                vec!["2020-01-01T23:59:59", "9999-12-31 00:00:01", "2020-01-01T00:00:00.000000001"],
            ),
            (
                Timestamp(TimeUnit::Second, None),
                vec!["2020-01-01", "2020-01-01T00:00:01"],
                vec!["2020-01-01T00:00:01.5", "2020-01-01T00:00:01.000000001"],
            ),
            (
                Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
                vec!["2020-01-01T00:00:01.000000001Z"],
                vec!["yesterday"],
            ),
            (Time32(TimeUnit::Second), vec!["12:00:00"], vec!["12:00:00.5"]),
            // A float is the nearest to a decimal number.
            (Float32, vec!["0.1"], vec!["x"]),
        ] {
            let is_value = |text: &str| {
                let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
                cast_exact_text(&text, &data_type).unwrap().is_valid(0)
            };
            assert!(exact.iter().all(|text| is_value(text)), "{data_type}");
            assert!(!others.iter().any(|text| is_value(text)), "{data_type}");
        }
    }
}
