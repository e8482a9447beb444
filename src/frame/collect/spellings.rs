//! One thing in several spellings: equal numbers become one value; missing values, case, outer spaces and rounded ids are
//! found, and the line that mends them is proposed.
//!
//! # Why
//! Everything here looks at distinct values, not at rows: millions of rows have few labels, and rows are counted only where
//! something was found.

mod fold;
mod texts;

use std::collections::{BTreeMap, HashMap, HashSet};

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use rayon::prelude::*;

use fold::{fold, hash_of_folded, is_folded_away, is_usual_id};
use texts::{difference, first_few};

use crate::frame::ids::{Interner, NULL};
use crate::job_context::WarningCode;
use crate::source::{Decimal, is_missing_word, is_plain_integer};

/// A warning about the data of a question, with its code.
pub(crate) type DataWarning = (WarningCode, String);

/// The values of a column of annotations.
pub(super) struct ColumnValues<'a> {
    /// What the values are, in messages: "labels".
    pub(super) what: &'static str,
    pub(super) values: &'a Interner,
    /// The number of values of the rows; those of gold and of lists come after them.
    pub(super) of_rows: usize,
    /// The number of each used row's value.
    pub(super) rows: &'a [u32],
    /// Whether each value is in such a row; `None` where all are, because no row was rejected.
    pub(super) used: Option<Vec<bool>>,
    /// The values that the user listed: they are meant, and their spelling is kept. `None` for ids.
    pub(super) listed: Option<&'a [u32]>,
    /// The number of rows of each value, where that is known. Such values, those of questions, are compared as labels are, but
    /// never joined: each has a frame of its own.
    pub(super) counted: Option<&'a [u64]>,
}

/// What was found about the spellings of a column.
#[derive(Default)]
pub(super) struct Spellings {
    /// The number of the value that stands for each value, where equal numbers have several spellings.
    pub(super) same: Option<Vec<u32>>,
    pub(super) warnings: Vec<DataWarning>,
}

/// Replaces each number by that of the value that stands for it.
pub(super) fn replace(numbers: &mut [u32], same: Option<&Vec<u32>>) {
    let Some(same) = same else { return };
    numbers.par_iter_mut().filter(|n| **n != NULL).for_each(|n| *n = same[*n as usize]);
}

/// Bytes a value that looking for spellings takes for a while: its hash and its number, and that of the value that stands
/// for it.
const BYTES_PER_VALUE: usize = size_of::<(u64, u32)>() + size_of::<u32>();

/// The bytes that looking at one of these columns takes for a while.
pub(super) fn looking_bytes(columns: [&Interner; 3]) -> usize {
    let texts = columns.into_iter().filter(|values| values.is_text());
    texts.map(Interner::len).max().unwrap_or_default() * BYTES_PER_VALUE
}

impl ColumnValues<'_> {
    /// Finds equal numbers and doubtful spellings.
    pub(super) fn look(&self) -> Spellings {
        if !self.values.is_text() || self.of_rows == 0 {
            let warnings = if self.listed.is_none() { self.inexact_floats() } else { Vec::new() };
            return Spellings { same: None, warnings };
        }
        let same = if self.counted.is_none() { self.equal_numbers() } else { None };
        // Nearly all columns of ids end here, after one pass over their bytes.
        let values = || (0..self.of_rows as u32).into_par_iter();
        let is_id = self.listed.is_none();
        let is_usual = |n: u32| !self.has_rows(n) || self.with_text(n, is_usual_id);
        if is_id && same.is_none() && values().all(is_usual) {
            return Spellings::default();
        }
        let missing = self.missing();
        let variants = self.variants(same.as_ref(), &missing);
        let rounded = if self.listed.is_none() { self.rounded() } else { Vec::new() };
        let mut warnings = Vec::new();
        if same.is_some() || !(missing.is_empty() && variants.is_empty() && rounded.is_empty()) {
            let rows = self.count_rows();
            let what = self.what;
            // Spellings of gold alone are as good as those of the rows.
            let is_moved = |(n, other): (usize, &u32)| n != *other as usize && rows[n] > 0;
            let moved = same.iter().flatten().enumerate().filter(|row| is_moved(*row));
            let moved: Vec<u32> = moved.map(|(n, _)| n as u32).collect();
            if let (Some(same), [_, ..]) = (&same, &moved[..]) {
                let text = self.merge_text(moved, same, &rows);
                warnings.push((WarningCode::EqualNumbers, text));
            }
            if !missing.is_empty() {
                let words = missing.iter().map(|n| format!("{:?}", self.text(*n)));
                let words = words.collect::<Vec<_>>().join(", ");
                let meant = if self.listed.is_some() && self.counted.is_none() {
                    "; list a label that is meant in frame.classes or frame.extra_labels"
                } else {
                    ""
                };
                let found = self.counted(&missing, &rows);
                let text = format!(
                    "{what} look like missing values: {found}: source.null_values = [{words}] makes them null{meant}"
                );
                warnings.push((WarningCode::MissingValueWords, text));
            }
            if !variants.is_empty() {
                warnings
                    .push((WarningCode::SeveralSpellings, self.variants_text(&variants, &rows)));
            }
            if !rounded.is_empty() {
                let found = self.counted(&rounded, &rows);
                let text = format!(
                    "{what} look rounded, as spreadsheets do: {found}: different ids may have become one; export them as text"
                );
                warnings.push((WarningCode::RoundedIds, text));
            }
        }
        Spellings { same, warnings }
    }

    /// The value that stands for each value, where all values of the rows are numbers and some are equal: a listed one, or
    /// else the shortest spelling among the rows, or else that in gold. Equally short ones are taken by the alphabet. A user
    /// who lists equal numbers means different labels: none are joined.
    fn equal_numbers(&self) -> Option<Vec<u32>> {
        let is_plain = |n: u32| self.with_text(n, is_plain_integer);
        let number = |n: u32| self.with_text(n, Decimal::parse);
        let is_number = |n: u32| !self.has_rows(n) || self.with_text(n, Decimal::hash_of).is_some();
        let all = 0..self.values.len() as u32;
        if !(0..self.of_rows as u32).into_par_iter().all(is_number)
            || all.clone().into_par_iter().all(is_plain)
        {
            return None;
        }
        let listed = || self.listed.iter().copied().flatten().filter_map(|n| number(*n));
        if listed().collect::<HashSet<_>>().len() < listed().count() {
            return None;
        }
        // Equal numbers have equal hashes; nearly all others have not.
        let mut hashes: Vec<(u64, u32)> = all
            .clone()
            .into_par_iter()
            .filter_map(|n| Some((self.with_text(n, Decimal::hash_of)?, n)))
            .collect();
        hashes.par_sort_unstable();
        let mut equal: HashMap<Decimal, Vec<u32>> = HashMap::new();
        for (_, n) in hashes.chunk_by(|a, b| a.0 == b.0).filter(|g| g.len() > 1).flatten() {
            if let Some(value) = number(*n) {
                equal.entry(value).or_default().push(*n);
            }
        }
        drop(hashes);
        equal.retain(|_, group| group.len() > 1);
        if equal.is_empty() {
            return None;
        }
        let order = |n: u32| {
            let text = self.text(n);
            (!self.is_listed(n), !self.has_rows(n), text.len(), text)
        };
        let mut same: Vec<u32> = all.collect();
        for group in equal.into_values() {
            let first = group.iter().copied().min_by_key(|n| order(*n));
            group.iter().for_each(|n| same[*n as usize] = first.unwrap_or(*n));
        }
        Some(same)
    }

    /// The values of the rows that are words for a missing value and not listed.
    fn missing(&self) -> Vec<u32> {
        // `none` is a word of its own where Python did not write it.
        let is_missing = |text: &str| {
            let text = text.trim();
            text == "None" || (is_missing_word(text) && !text.eq_ignore_ascii_case("none"))
        };
        let is_missing = |n: u32| self.has_rows(n) && self.with_text(n, is_missing);
        let found = (0..self.of_rows as u32).into_par_iter();
        let found = found.filter(|n| is_missing(*n) && !self.is_listed(*n));
        self.by_text(found.collect())
    }

    /// Groups of values that differ in case and outer spaces only; labels also as numbers and as truth values.
    fn variants(&self, same: Option<&Vec<u32>>, missing: &[u32]) -> Vec<Vec<u32>> {
        let is_label = self.listed.is_some();
        // Gold's classes are classes of the run; its ids are not of these rows.
        let is_of_run = |n: &u32| self.has_rows(*n) || *n as usize >= self.of_rows;
        let candidates: Vec<u32> = if is_label {
            (0..self.values.len() as u32).filter(is_of_run).collect()
        } else {
            let all = || (0..self.of_rows as u32).into_par_iter().filter(|n| self.has_rows(*n));
            // Distinct values that are all in lower case and without outer spaces have no variants.
            if !all().any(|n| self.with_text(n, is_folded_away)) {
                return Vec::new();
            }
            let mut hashes: Vec<(u64, u32)> =
                all().map(|n| (self.with_text(n, hash_of_folded), n)).collect();
            hashes.par_sort_unstable();
            let groups = hashes.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1);
            groups.flatten().map(|(_, n)| *n).collect()
        };
        let mut groups: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for n in candidates.into_iter().filter(|n| !missing.contains(n)) {
            // A spelling that another one stands for has been mended.
            if same.is_none_or(|same| same[n as usize] == n) {
                let folded = self.with_text(n, |text| fold(text, is_label));
                groups.entry(folded).or_default().push(n);
            }
        }
        let is_meant = |group: &Vec<u32>| group.iter().all(|n| self.is_listed(*n));
        let groups = groups.into_values().filter(|group| group.len() > 1 && !is_meant(group));
        groups.map(|group| self.by_text(group)).collect()
    }

    /// The warning of ids that are floats of which not every integer is one, such as 2^53.
    fn inexact_floats(&self) -> Vec<DataWarning> {
        let exact = match self.values.data_type() {
            DataType::Float32 => f64::from(1_u32 << 24),
            DataType::Float64 => (1_u64 << 53) as f64,
            _ => return Vec::new(),
        };
        // Of values that cannot be shown, the error comes with the tables.
        let Ok(values) = self.values.shown_values() else { return Vec::new() };
        let Ok(floats) = cast(&values, &DataType::Float64) else { return Vec::new() };
        let floats = floats.as_primitive::<Float64Type>();
        let mut large: Vec<u32> = (0..self.of_rows as u32)
            .filter(|n| self.has_rows(*n) && floats.value(*n as usize).abs() >= exact)
            .collect();
        if large.is_empty() {
            return Vec::new();
        }
        let rows = self.count_rows();
        large.sort_by(|n, m| floats.value(*n as usize).total_cmp(&floats.value(*m as usize)));
        let one = |n: &u32| format!("`{}` {}", floats.value(*n as usize), rows[*n as usize]);
        let found = first_few(large.iter().map(one), ", ");
        let text = format!(
            "{} are floats that are too large to be exact: {found}: different ids may have become one; export them as \
             integers or text",
            self.what
        );
        vec![(WarningCode::RoundedIds, text)]
    }

    /// Ids such as `1.29403E+18`.
    fn rounded(&self) -> Vec<u32> {
        let is_rounded = |text: &str| text.contains('+') && Decimal::parse(text).is_some();
        let found = (0..self.of_rows as u32).into_par_iter().filter(|n| self.has_rows(*n));
        self.by_text(found.filter(|n| self.with_text(*n, is_rounded)).collect())
    }

    fn merge_text(&self, moved: Vec<u32>, same: &[u32], rows: &[u64]) -> String {
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

    fn variants_text(&self, groups: &[Vec<u32>], rows: &[u64]) -> String {
        let texts = |group: &Vec<u32>| group.iter().map(|n| self.text(*n)).collect();
        let (what, help) = difference(&groups.iter().map(texts).collect::<Vec<_>>());
        let found = groups.iter().map(|group| self.counted(group, rows));
        format!("{} differ only {what}: {}: {help}", self.what, first_few(found, "; "))
    }

    fn counted(&self, values: &[u32], rows: &[u64]) -> String {
        let one = |n: &u32| format!("`{}` {}", self.text(*n), rows[*n as usize]);
        first_few(values.iter().map(one), ", ")
    }

    fn count_rows(&self) -> Vec<u64> {
        if let Some(counted) = self.counted {
            return counted.to_vec();
        }
        let mut counts = vec![0; self.values.len()];
        self.rows.iter().for_each(|n| counts[*n as usize] += 1);
        counts
    }

    /// Whether the value is that of a used row; values of rejected rows and of gold are not.
    fn has_rows(&self, n: u32) -> bool {
        (n as usize) < self.of_rows && self.used.as_ref().is_none_or(|used| used[n as usize])
    }

    fn is_listed(&self, n: u32) -> bool {
        self.listed.is_some_and(|listed| listed.contains(&n))
    }

    fn by_text(&self, mut values: Vec<u32>) -> Vec<u32> {
        values.sort_by_cached_key(|n| self.text(*n));
        values
    }

    fn text(&self, n: u32) -> String {
        self.with_text(n, str::to_owned)
    }

    fn with_text<T>(&self, n: u32, read: impl FnOnce(&str) -> T) -> T {
        self.values.with_text(n, read)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::{DataType, Field};

    use super::*;

    fn look(texts: &[&str], of_rows: usize, is_label: bool) -> (Vec<String>, Vec<String>) {
        let mut values = Interner::new(&Field::new("label", DataType::Utf8, true));
        let array: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        let mut rows = Vec::new();
        values.intern(&array, &mut rows).unwrap();
        rows.truncate(of_rows);
        let listed = is_label.then_some(&[][..]);
        let column = ColumnValues {
            what: "values",
            values: &values,
            of_rows,
            rows: &rows,
            used: None,
            listed,
            counted: None,
        };
        let found = column.look();
        let stands = found.same.unwrap_or_else(|| (0..values.len() as u32).collect());
        (
            stands.into_iter().map(|n| column.text(n)).collect(),
            found.warnings.into_iter().map(|(_, text)| text).collect(),
        )
    }

    #[test]
    fn equal_numbers_are_the_shortest_of_the_rows_in_any_order() {
        assert_eq!(look(&["0.0", "1", "0", "1.00"], 4, true).0, ["0", "1", "0", "1"]);
        assert_eq!(look(&["1.00", "0", "1", "0.0"], 4, true).0, ["1", "0", "1", "0"]);
        // The spelling of the rows stays, where gold has a shorter one.
        assert_eq!(
            look(&["0.0", "1.0", "0", "2", "2.0"], 2, true).0,
            ["0.0", "1.0", "0.0", "2", "2"]
        );
        // One word, or a code: nothing is a number for certain.
        assert_eq!(look(&["0.0", "0", "x"], 3, true).0, ["0.0", "0", "x"]);
        assert_eq!(look(&["7", "07", "7.0"], 3, false).0, ["7", "07", "7.0"]);
        let long = ["1294030000000000001", "1294030000000000000", "1294030000000000000.0"];
        assert_eq!(look(&long, 3, false).0, [long[0], long[1], long[1]]);
    }

    #[test]
    fn each_doubt_names_its_values_and_the_line_that_mends_it() {
        let (_, warnings) = look(&["pos", "POS", "pos ", "None", "#N/A", "none"], 6, true);
        assert_eq!(
            warnings,
            [
                "values look like missing values: `#N/A` 1, `None` 1: source.null_values = [\"#N/A\", \"None\"] makes them \
                 null; list a label that is meant in frame.classes or frame.extra_labels",
                "values differ only in case or in spaces around them: `POS` 1, `pos` 1, `pos ` 1: \
                 source.normalise = [\"trim\", \"lower\"] joins them; it makes all ids and labels lower case, so that distinct \
                 ids may become one too",
            ]
        );
        let (_, warnings) = look(&["ben", "ben ", "Ann", "1.29403E+18"], 4, false);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].contains("`ben` 1, `ben ` 1: source.normalise = [\"trim\"]"),
            "{warnings:?}"
        );
        assert!(warnings[1].contains("`1.29403E+18` 1: different ids may"), "{warnings:?}");
        assert!(look(&["1", "True", "x"], 3, true).1[0].contains("`1` 1, `True` 1"));
        assert_eq!(look(&["Ann", "ben", "T1", "T2"], 4, false).1, [""; 0]);
    }
}
