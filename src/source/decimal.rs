//! Text as an exact decimal number, so that `0`, `0.0` and `0e5` are known to be equal, and no digit of a long id is rounded.

use std::borrow::Cow;

use crate::source::plain_integer::is_plain_integer;

/// The value of a decimal number of any length: equal numbers have equal values of this type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decimal {
    is_negative: bool,
    /// The digits without zeros at either end; empty for zero.
    digits: String,
    /// The power of ten by which the digits, as an integer, are multiplied.
    exponent: i64,
}

impl Decimal {
    /// The number that a text is; `None` for other text. "007" and "+7" may be other ids than "7" and are no numbers;
    /// neither are "inf", "nan" and text with spaces.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction, exponent) = parts(text)?;
        let all = format!("{whole}{fraction}");
        let significant = all.trim_start_matches('0');
        let digits = significant.trim_end_matches('0');
        if digits.is_empty() {
            return Some(Self { is_negative: false, digits: String::new(), exponent: 0 });
        }
        let zeros = i64::try_from(significant.len() - digits.len()).ok()?;
        let places = i64::try_from(fraction.len()).ok()?;
        Some(Self {
            is_negative: text.starts_with('-'),
            digits: digits.to_owned(),
            exponent: exponent - places + zeros,
        })
    }

    /// A hash of the number that a text is; `None` for other text. Equal numbers have equal hashes, and no text is copied.
    #[must_use]
    pub fn hash_of(text: &str) -> Option<u64> {
        let (whole, fraction, exponent) = parts(text)?;
        let step = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x0100_0000_01b3);
        let (mut hash, mut zeros) = (0xcbf2_9ce4_8422_2325, 0_u32);
        let digits = whole.bytes().chain(fraction.bytes()).skip_while(|digit| *digit == b'0');
        let mut is_zero = true;
        for digit in digits {
            is_zero = false;
            if digit == b'0' {
                zeros += 1;
                continue;
            }
            // Zeros at the end are of the exponent.
            (0..zeros).for_each(|_| hash = step(hash, u64::from(b'0')));
            (hash, zeros) = (step(hash, u64::from(digit)), 0);
        }
        if is_zero {
            return Some(0);
        }
        let exponent = exponent - i64::try_from(fraction.len()).ok()? + i64::from(zeros);
        let hash = step(hash, exponent.cast_unsigned());
        let hash = step(hash, u64::from(text.starts_with('-')));
        // The last steps reach the low bits alone.
        Some(hash ^ (hash >> 32))
    }

    /// The plain form of an integer of at most 20 digits.
    fn plain_integer(&self) -> Option<String> {
        let zeros = usize::try_from(self.exponent).ok()?;
        if self.digits.is_empty() {
            return Some("0".to_owned());
        }
        if self.digits.len() + zeros > 20 {
            return None;
        }
        let sign = if self.is_negative { "-" } else { "" };
        Some(format!("{sign}{}{}", self.digits, "0".repeat(zeros)))
    }
}

/// The digits before and after the point, and the exponent; `None` where a text is no number.
fn parts(text: &str) -> Option<(&str, &str, i64)> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_code = whole.len() > 1 && whole.starts_with('0');
    let is_empty = whole.is_empty() && fraction.is_empty();
    let is_number = !is_code && !is_empty && are_digits(whole) && are_digits(fraction);
    is_number.then_some((whole, fraction, exponent))
}

fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_short = (1..=6).contains(&digits.len());
    (is_short && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// The plain form of the integer that a text is: "1" for "1", "1.0" and "1e0"; `None` for other text.
#[must_use]
pub fn as_plain_integer(text: &str) -> Option<Cow<'_, str>> {
    if is_plain_integer(text) {
        return Some(Cow::Borrowed(text));
    }
    Decimal::parse(text)?.plain_integer().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn equal_numbers_are_one_value_and_no_digit_is_rounded() {
        let groups: [&[&str]; 5] = [
            &["0", "0.0", "-0", "0e5", ".0", "0."],
            &["1", "1.0", "1e0", "10e-1", "0.1E+1"],
            &["-2.5", "-25e-1", "-2.50"],
            &["1294030000000000000", "1.29403E+18", "1.29403e18"],
            &["1294030000000000001"],
        ];
        let values = groups.map(|group| {
            let values: Vec<_> = group.iter().map(|text| Decimal::parse(text).unwrap()).collect();
            assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            let hashes = group.iter().map(|text| Decimal::hash_of(text).unwrap());
            assert!(hashes.collect::<HashSet<_>>().len() == 1, "{values:?}");
            values[0].clone()
        });
        for (n, value) in values.iter().enumerate() {
            assert!(values[n + 1..].iter().all(|other| other != value));
        }
        let texts =
            (0..2_000).flat_map(|n| [format!("{n}.0"), format!("-{n}.25"), format!("{n}e3")]);
        let texts = texts.collect::<Vec<_>>();
        let values: HashSet<_> = texts.iter().map(|text| Decimal::parse(text).unwrap()).collect();
        let hashes: HashSet<_> = texts.iter().map(|text| Decimal::hash_of(text).unwrap()).collect();
        assert_eq!(hashes.len(), values.len());
        for other in
            ["", "-", ".", "e5", "007", "+7", "1e", "1_000", " 1", "0x1", "nan", "inf", "1.2.3"]
        {
            assert_eq!(Decimal::parse(other), None, "{other}");
            assert_eq!(Decimal::hash_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_whole_number_has_a_plain_form() {
        for (text, plain) in
            [("7", Some("7")), ("7.0", Some("7")), ("-1e3", Some("-1000")), ("0.0", Some("0"))]
        {
            assert_eq!(as_plain_integer(text).as_deref(), plain);
        }
        for other in ["7.5", "007", "1e30", "x"] {
            assert_eq!(as_plain_integer(other), None);
        }
    }
}
