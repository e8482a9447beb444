//! The messages about spellings: values with the number of their rows, and what to do.

use std::fmt::Write as _;

use super::ColumnValues;
use crate::error::SHOWN_OFFENDERS;

impl ColumnValues<'_> {
    pub(super) fn merge_text(&self, moved: Vec<u32>, same: &[u32], rows: &[u64]) -> String {
        let parts = self.by_text(moved).into_iter().map(|n| {
            format!("`{}` {} as `{}`", self.text(n), rows[n as usize], self.text(same[n as usize]))
        });
        let help = match self.listed {
            Some(_) => "list them in frame.classes",
            None => "make them text, such as 'v' || id, in source.sql.annotations",
        };
        format!(
            "{} that are equal numbers are one value: {}; where they are different things, {help}",
            self.what,
            first_few(parts, ", ")
        )
    }

    pub(super) fn variants_text(&self, groups: &[Vec<u32>], rows: &[u64]) -> String {
        let alike = |make: fn(&str) -> String| {
            groups.iter().all(|group| {
                let first = make(&self.text(group[0]));
                group.iter().all(|n| make(&self.text(*n)) == first)
            })
        };
        let (what, help) = if alike(|text| text.trim().to_owned()) {
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
            (
                "in their spelling",
                "write each in one way, such as with CASE in source.sql.annotations",
            )
        };
        let found = groups.iter().map(|group| self.counted(group, rows));
        format!("{} differ only {what}: {}: {help}", self.what, first_few(found, "; "))
    }

    pub(super) fn counted(&self, values: &[u32], rows: &[u64]) -> String {
        let one = |n: &u32| format!("`{}` {}", self.text(*n), rows[*n as usize]);
        first_few(values.iter().map(one), ", ")
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
