//! Escapes text from data, so that it is safe on a terminal and in a line of a log.
//!
//! # Why
//! An id or a label can contain characters that move a terminal's cursor, hide text or reverse its direction: a person
//! would trust a table that an annotator forged. Such characters are shown as their code points. Tables in files keep
//! every byte, and JSON keeps every value.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text on one line: line ends are escaped too.
#[must_use]
pub fn line(text: &str) -> String {
    escaped(text, |_| false)
}

/// The text with its newlines unchanged.
#[must_use]
pub fn lines(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

/// A JSON text in which such characters are escaped, where JSON allows them unescaped. The values stay the same.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    // Line ends occur only between values: inside strings JSON escapes them itself.
    let is_raw = |c: char| is_active(c) && !matches!(c, '\n' | '\r' | '\t');
    if !text.contains(is_raw) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_raw(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' if !is_kept(c) => {
                let _ = write!(out, "{}", c.escape_default());
            }
            _ if is_active(c) && !is_kept(c) => {
                let _ = write!(out, "{}", c.escape_unicode());
            }
            _ => out.push(c),
        }
    }
    out
}

/// Control characters, direction marks and overrides, and separators at which some programs break lines.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_by_its_number() {
        assert_eq!(line("a\u{1b}[2Jb\u{9b}1m\u{7f}\0"), "a\\u{1b}[2Jb\\u{9b}1m\\u{7f}\\u{0}");
        assert_eq!(line("user\u{202e}nimda\u{2066}"), "user\\u{202e}nimda\\u{2066}");
        assert_eq!(line("a\r\nb\tc\u{2028}"), "a\\r\\nb\\tc\\u{2028}");
        assert_eq!(lines("a\r\nb"), "a\\r\nb");
    }

    #[test]
    fn json_means_the_same_and_commands_no_terminal() {
        let text = "a\u{1b}b\u{9b}1m\u{7f}\u{202e}c\n";
        let raw = serde_json::to_string_pretty(&[text, "語 é"]).unwrap();
        assert!(raw.contains('\u{9b}'));
        let escaped = json(&raw);
        assert!(!escaped.contains(|c| is_active(c) && c != '\n'), "{escaped}");
        assert!(escaped.contains("\\u009b1m\\u007f\\u202ec\\n"), "{escaped}");
        let back: Vec<String> = serde_json::from_str(&escaped).unwrap();
        assert_eq!(back, [text, "語 é"]);
    }

    #[test]
    fn every_language_stays() {
        for text in ["語 é ß", "🦜🏳️‍🌈", "שלום", "naïve \"quoted\" \\ back"] {
            assert_eq!(line(text), text);
        }
    }
}
