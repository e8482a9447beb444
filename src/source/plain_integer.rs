//! The plain decimal form of integers: in it, equal integers have equal texts, and no two texts are one integer.

/// Whether a text has the plain decimal form of an integer of any size: "7" and "-3" have it, but neither "007" nor
/// "+7" nor " 7" nor "-0" nor "1e3".
#[must_use]
pub fn is_plain_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let starts_well = digits.starts_with(|first: char| matches!(first, '1'..='9'));
    text == "0" || (starts_well && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_form_is_that_in_which_an_integer_is_shown() {
        for value in [i128::MIN, -10, -3, 0, 7, 10, i128::from(u64::MAX), i128::MAX] {
            assert!(is_plain_integer(&value.to_string()), "{value}");
        }
        for other in ["", "-", "-0", "00", "007", "-7 ", " 7", "+7", "--7", "1e3", "1.0", "٣"] {
            assert!(!is_plain_integer(other), "{other}");
        }
    }
}
