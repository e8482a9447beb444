//! The kinds of values found in a column of text, and the Arrow type that holds them all.

use arrow::compute::kernels::cast_utils::{Parser, string_to_timestamp_nanos};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};

use crate::source::plain_integer::is_plain_integer;

/// How many rows of a file type inference reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InferenceScope {
    /// Only the first rows, enough to check the columns.
    First,
    /// As many rows as it takes to know every column's type.
    Whole,
}

/// The rows of a CSV file that decide its types, and the rows of any text file that a check reads.
pub(super) const FIRST_ROWS: usize = 1000;

/// The most columns of a text file: each takes memory for every row of a batch.
pub(super) const MAX_COLUMNS: usize = 1 << 20;

/// Doubles hold every integer up to this one, 2^53.
const EXACT: u64 = 1 << 53;

/// A set of kinds of values, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ValueKinds(u16);

impl ValueKinds {
    pub(super) const BOOLEAN: Self = Self(1);
    const INTEGER: Self = Self(2);
    const NUMBER: Self = Self(4);
    const TIME: Self = Self(8);
    pub(super) const TEXT: Self = Self(16);
    /// Integers from 2^63 to 2^64.
    pub(super) const GREAT: Self = Self(32);
    /// Integers below zero are [`Self::INTEGER`] and this.
    const NEGATIVE: Self = Self(64 | 2);
    /// Integers that a double may round are [`Self::INTEGER`] and this. JSON integers beyond 64 bits, which the parser
    /// returns as doubles, are [`Self::NUMBER`] and this.
    const WIDE: Self = Self(128);
    /// Integers that are not in their plain decimal form, such as "+7" and " 7", are [`Self::INTEGER`] and this. Numbers
    /// with a fraction or an exponent have no such kind: they are measures, and nobody's ids.
    const NOT_PLAIN: Self = Self(256);

    /// The kind of an integer.
    pub(super) fn of_integer(value: i64) -> Self {
        let kind = if value < 0 { Self::NEGATIVE } else { Self::INTEGER };
        if value.unsigned_abs() > EXACT { kind.and(Self::WIDE) } else { kind }
    }

    /// The kind of a double. A large whole number may be an integer beyond 64 bits that the parser returned as a
    /// double.
    pub(super) fn of_double(value: f64) -> Self {
        let is_integer = value.fract() == 0.0 && value.abs() >= 9.0e18;
        if is_integer { Self::NUMBER.and(Self::WIDE) } else { Self::NUMBER }
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether no value was found.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether all values are numbers.
    pub(super) fn is_numeric(self) -> bool {
        let kinds = self.without(Self::WIDE.and(Self::NOT_PLAIN));
        !kinds.is_empty() && kinds.within(Self::NEGATIVE.and(Self::NUMBER))
    }

    /// Whether some values are numbers, and others are not.
    pub(super) fn has_numbers_among_others(self) -> bool {
        let numbers = Self::INTEGER.and(Self::NUMBER);
        self.0 & numbers.0 != 0 && !self.is_numeric()
    }

    /// These kinds where the column holds measures: a measure is the same however its number is written.
    pub(super) fn of_measures(self) -> Self {
        self.without(Self::NOT_PLAIN)
    }

    /// The kind of a value of a CSV file, from its text.
    pub(super) fn of_text(value: &str) -> Self {
        match value {
            "" => Self::default(),
            v if v.eq_ignore_ascii_case("true") || v.eq_ignore_ascii_case("false") => Self::BOOLEAN,
            // As integers, 007 and 7 would be one id.
            v if has_leading_zero(v) => Self::TEXT,
            v if Int64Type::parse(v).is_some() => {
                let kind = Int64Type::parse(v).map_or(Self::INTEGER, Self::of_integer);
                if is_plain_integer(v) { kind } else { kind.and(Self::NOT_PLAIN) }
            }
            // Digits beyond 64 bits would be rounded as a double.
            v if are_digits(v.trim().trim_start_matches(['-', '+'])) => Self::TEXT,
            v if Float64Type::parse(v).is_some() => Self::NUMBER,
            v if v.as_bytes().get(4) == Some(&b'-') && string_to_timestamp_nanos(v).is_ok() => {
                Self::TIME
            }
            _ => Self::TEXT,
        }
    }

    /// The kinds in words.
    pub(super) fn words(self) -> String {
        let kinds = [
            (Self::BOOLEAN, "truth values"),
            (Self::INTEGER, "integers"),
            (Self::NUMBER, "numbers"),
            (Self::TIME, "times"),
            (Self::TEXT, "text"),
            (Self::GREAT, "integers above 2^63"),
            (Self::WIDE, "integers that a double rounds"),
            (Self::NOT_PLAIN, "integers with spaces, or with a sign that they do not need"),
        ];
        let words: Vec<&str> =
            kinds.into_iter().filter(|(kind, _)| kind.within(self)).map(|(_, w)| w).collect();
        if words.is_empty() { "nulls".to_owned() } else { words.join(" and ") }
    }

    /// Whether these values fit exactly into a column of this type, which was inferred from other values.
    pub(super) fn fits(self, inferred: &DataType) -> bool {
        let changed = if *inferred == DataType::Int64 { Self::NOT_PLAIN } else { Self::WIDE };
        self.is_numeric() && !changed.within(self)
    }

    /// The type that holds these values exactly; `None` where text and numbers, or other kinds, are mixed.
    pub(super) fn data_type(self) -> Option<DataType> {
        // Two ids could become one: large integers as doubles, and +7 and 7 as integers.
        let changed = if Self::NUMBER.within(self) { Self::WIDE } else { Self::NOT_PLAIN };
        if changed.within(self) {
            return None;
        }
        match self.without(Self::WIDE.and(Self::NOT_PLAIN)) {
            Self::BOOLEAN => Some(DataType::Boolean),
            Self::INTEGER | Self::NEGATIVE => Some(DataType::Int64),
            Self::TEXT | Self(0) => Some(DataType::Utf8),
            // Dates are timestamps at midnight: a date type would cut the time of day off later values.
            Self::TIME => Some(DataType::Timestamp(TimeUnit::Nanosecond, None)),
            great if great.within(Self::GREAT.and(Self::INTEGER)) => Some(DataType::UInt64),
            numbers if numbers.is_numeric() => Some(DataType::Float64),
            _ => None,
        }
    }
}

fn has_leading_zero(value: &str) -> bool {
    let digits = value.trim_start_matches(['-', '+']);
    digits.len() > 1 && digits.starts_with('0') && are_digits(digits)
}

fn are_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(values: &[&str]) -> Option<DataType> {
        values
            .iter()
            .map(|v| ValueKinds::of_text(v))
            .fold(ValueKinds::default(), ValueKinds::and)
            .data_type()
    }

    #[test]
    fn a_type_holds_every_value_as_it_is() {
        assert_eq!(type_of(&["1", "", "-2"]), Some(DataType::Int64));
        assert_eq!(type_of(&["1", "2.5", "1e3"]), Some(DataType::Float64));
        assert_eq!(type_of(&["true", "False"]), Some(DataType::Boolean));
        let time = DataType::Timestamp(TimeUnit::Nanosecond, None);
        assert_eq!(type_of(&["2026-01-02", "2026-01-02T03:04:05.678Z"]), Some(time));
        assert_eq!(type_of(&[""]), Some(DataType::Utf8));
        assert_eq!(type_of(&["1", "x"]), None);
        assert_eq!(type_of(&["true", "1"]), None);
        assert_eq!(type_of(&["18446744073709551615"]), Some(DataType::Utf8));
        assert_eq!(type_of(&["9007199254740993", "-9007199254740993"]), Some(DataType::Int64));
        assert_eq!(type_of(&["9007199254740992", "1.5"]), Some(DataType::Float64));
        assert_eq!(type_of(&["9007199254740993", "1.5"]), None);
        for other in ["+7", " 7", "7 ", "-0", "007"] {
            assert_eq!(type_of(&["7", other]), None, "{other}");
        }
        assert_eq!(type_of(&["+18446744073709551615"]), Some(DataType::Utf8));
        assert_eq!(type_of(&["7.5", " 7.5", "+7.5", "+7", " 7"]), Some(DataType::Float64));
    }
}
