//! The words of messages about spellings.

use std::fmt::Write as _;

use crate::error::SHOWN_OFFENDERS;

/// How the spellings of each group differ, and what joins them.
pub(super) fn difference(groups: &[Vec<String>]) -> (&'static str, &'static str) {
    let alike = |make: fn(&str) -> String| {
        groups.iter().all(|group| group.iter().all(|text| make(text) == make(&group[0])))
    };
    if alike(|text| text.trim().to_owned()) {
        ("in spaces around them", "source.normalise = [\"trim\"] joins them")
    } else if alike(str::to_lowercase) {
        (
            "in case",
            "source.normalise = [\"lower\"] joins them; it makes all ids and labels lower case, so that distinct ids may \
             become one too",
        )
    } else if alike(|text| text.trim().to_lowercase()) {
        (
            "in case or in spaces around them",
            "source.normalise = [\"trim\", \"lower\"] joins them; it makes all ids and labels lower case, so that \
             distinct ids may become one too",
        )
    } else {
        ("in their spelling", "write each in one way, such as with CASE in source.sql.annotations")
    }
}

/// The first parts, then a count.
pub(super) fn first_few(parts: impl Iterator<Item = String>, between: &str) -> String {
    let mut parts = parts.fuse();
    let mut text = parts.by_ref().take(SHOWN_OFFENDERS).collect::<Vec<_>>().join(between);
    let more = parts.count();
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}
