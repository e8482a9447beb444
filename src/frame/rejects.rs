//! Rows that could not be used: how many, why, and the offending values. Read = used + rejected, always.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The question is null where questions are declared.
    NullQuestion,
    /// The weight is null, zero, negative, NaN, or too great to be summed.
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
}

/// The count of every reason, with the first few offending values in sorted order, so that they do not depend on the
/// order of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rejects(BTreeMap<Reason, (u64, BTreeSet<String>)>);

impl Rejects {
    /// Counts one row; `value` makes the offending value.
    pub fn add(&mut self, reason: Reason, value: impl FnOnce() -> String) {
        let (count, values) = self.0.entry(reason).or_default();
        *count += 1;
        values.insert(value());
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

    /// Reason, count and offending values, by reason.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64, &BTreeSet<String>)> {
        self.0.iter().map(|(reason, (count, values))| (*reason, *count, values))
    }
}
