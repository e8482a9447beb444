//! Rows that could not be used: how many, why, and the offending values. Read = used + rejected, always.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Write as _};

use crate::error::SHOWN_OFFENDERS;

/// Why a row was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The instance id is null, or a float that is not finite.
    NullInstance,
    /// The annotator id is null, or a float that is not finite.
    NullAnnotator,
    /// The label is null, or a float that is not finite.
    NullLabel,
    /// The question is null, or a float that is not finite, where questions are declared.
    NullQuestion,
    /// The weight is null, zero, negative, NaN, or above 1e100: sums of such weights might not be finite.
    BadWeight,
    /// The label is not among the listed classes and labels.
    UnknownClass,
    /// A later answer of the same annotator to the same instance replaces it.
    Superseded,
}

impl Reason {
    /// The word in the `rejects` table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NullInstance => "null_instance",
            Self::NullAnnotator => "null_annotator",
            Self::NullLabel => "null_label",
            Self::NullQuestion => "null_question",
            Self::BadWeight => "bad_weight",
            Self::UnknownClass => "unknown_class",
            Self::Superseded => "superseded",
        }
    }

    /// What a row must have to be used; `None` where nothing is wrong with the row.
    pub(super) fn rule(self) -> Option<&'static str> {
        Some(match self {
            Self::NullInstance => "every row needs an instance, which is not NaN or infinite",
            Self::NullAnnotator => "every row needs an annotator, which is not NaN or infinite",
            Self::NullLabel => "every row needs a label, which is not NaN or infinite",
            Self::NullQuestion => "every row needs a question, which is not NaN or infinite",
            Self::BadWeight => {
                "where there is a column of weights, every row needs one above 0 and at most 1e100"
            }
            Self::UnknownClass => "every label must be in frame.classes or frame.extra_labels",
            Self::Superseded => return None,
        })
    }
}

/// The most characters of an offending value that are kept; `...` follows them where there were more.
pub const KEPT_CHARACTERS: usize = 1_000;

/// The count of every reason, with the first few offending values in sorted order, so that they do not depend on the
/// order of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rejects(BTreeMap<Reason, (u64, BTreeSet<String>)>);

impl Rejects {
    /// Counts rows with an offending value, of which the first [`KEPT_CHARACTERS`] are kept.
    pub fn add(&mut self, reason: Reason, rows: u64, value: impl Display) {
        let (count, values) = self.0.entry(reason).or_default();
        *count += rows;
        values.insert(beginning(&value));
        while values.len() > SHOWN_OFFENDERS {
            values.pop_last();
        }
    }

    /// Counts rows that have no value worth showing.
    pub fn add_rows(&mut self, reason: Reason, rows: u64) {
        if rows > 0 {
            self.0.entry(reason).or_default().0 += rows;
        }
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (reason, (count, values)) in &other.0 {
            self.add_rows(*reason, *count);
            if let Some((_, mine)) = self.0.get_mut(reason) {
                mine.extend(values.iter().cloned());
                while mine.len() > SHOWN_OFFENDERS {
                    mine.pop_last();
                }
            }
        }
    }

    /// The number of rejected rows.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }

    /// The warning that more than half of the `rows` that were read are rejected for one reason; `None` where they are
    /// not. A column rather than a row is likely to be wrong then.
    #[must_use]
    pub fn main_reason(&self, rows: u64) -> Option<String> {
        let (reason, count, _) = self.iter().find(|(_, count, _)| 2 * count > rows)?;
        let (word, rule) = (reason.word(), reason.rule()?);
        Some(format!(
            "{count} of {rows} rows are rejected as `{word}` (see the table `rejects`): {rule}"
        ))
    }

    /// The count, the reason and the first values of every reason, as text.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.iter().map(|(reason, count, values)| {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            format!("{count} {} {}", reason.word(), values.join(", ")).trim_end().to_owned()
        })
    }

    /// Reason, count and offending values, by reason.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64, &BTreeSet<String>)> {
        self.0.iter().map(|(reason, (count, values))| (*reason, *count, values))
    }
}

/// The first [`KEPT_CHARACTERS`] of a value.
///
/// # Why
/// A value may take hundreds of megabytes, and occur in every row: no more of it is formatted than is kept.
fn beginning(value: &impl Display) -> String {
    let mut beginning = Beginning { text: String::new(), room: KEPT_CHARACTERS };
    // The only error is that of a text that has no more room.
    if write!(beginning, "{value}").is_err() {
        beginning.text.push_str("...");
    }
    beginning.text
}

/// Text that takes a number of characters and then refuses more.
struct Beginning {
    text: String,
    room: usize,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if let Some((end, _)) = more.char_indices().nth(self.room) {
            self.text.push_str(&more[..end]);
            self.room = 0;
            return Err(fmt::Error);
        }
        self.room -= more.chars().count();
        self.text.push_str(more);
        Ok(())
    }
}
