//! What spellings of one value have in common.

use crate::source::{Decimal, LONGEST_MISSING_WORD};

/// Whether the text has no upper case, space or sign of an exponent, and is no word for a missing value.
pub(super) fn is_usual_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_usual =
        |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b':' | b'/');
    bytes.iter().all(is_usual)
        && (bytes.len() > LONGEST_MISSING_WORD || bytes.iter().any(u8::is_ascii_digit))
}

/// Whether folding changes the text.
pub(super) fn is_folded_away(text: &str) -> bool {
    text.trim().len() != text.len() || text.chars().any(char::is_uppercase)
}

/// A hash of the text without outer spaces and in lower case: equal texts have equal hashes. ASCII, of which nearly all ids
/// are, needs no text of its own.
pub(super) fn hash_of_folded(text: &str) -> u64 {
    let hash = |bytes: &[u8]| {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let text = text.trim();
    if text.is_ascii() { hash(text.as_bytes()) } else { hash(text.to_lowercase().as_bytes()) }
}

/// What the spellings of one value have in common.
pub(super) fn fold(text: &str, is_label: bool) -> String {
    let folded = text.trim().to_lowercase();
    let folded = match folded.as_str() {
        "true" if is_label => "1",
        "false" if is_label => "0",
        other => other,
    };
    match Decimal::parse(folded) {
        Some(number) if is_label => format!("{number:?}"),
        _ => folded.to_owned(),
    }
}
