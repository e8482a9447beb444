//! The check that two tables which should share ids or classes do so.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::{Error, nearest, offenders};

/// The most values of a table among which another spelling is looked for.
const MAX_COMPARED: usize = 100_000;

/// Values that a table lacks: how many, and the first of them by text. There may be as many as rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownValues {
    n: usize,
    first: BTreeSet<String>,
}

impl UnknownValues {
    /// Counts a value, which was not counted before.
    pub fn add(&mut self, value: String) {
        self.n += 1;
        self.first.insert(value);
        if self.first.len() > super::SHOWN_OFFENDERS {
            self.first.pop_last();
        }
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The first values by text.
    pub fn first(&self) -> impl Iterator<Item = &String> {
        self.first.iter()
    }
}

impl FromIterator<String> for UnknownValues {
    /// Counts values, which are distinct.
    fn from_iter<I: IntoIterator<Item = String>>(values: I) -> Self {
        let mut all = Self::default();
        values.into_iter().for_each(|value| all.add(value));
        all
    }
}

/// The distinct values of one table, those among them that another table lacks, and values of the other table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    what: &'static str,
    given: &'static str,
    n_given: usize,
    unknown: UnknownValues,
    known: &'static str,
    n_known: usize,
    known_values: BTreeSet<String>,
    /// What to do where no value is a known one in another spelling.
    advice: String,
}

impl Overlap {
    /// `what` is the word for a value, in the singular. `given` is the table whose values are looked up, their number, and
    /// those that are not known; `known` is the other table with the number of its values, and these.
    #[must_use]
    pub fn new(
        what: &'static str,
        (given, n_given, unknown): (&'static str, usize, UnknownValues),
        (known, n_known, values): (&'static str, usize, impl Iterator<Item = String>),
    ) -> Self {
        let is_compared = !unknown.is_empty();
        let known_values = values.take(if is_compared { MAX_COMPARED } else { 0 }).collect();
        let advice =
            format!("are these the right columns, and do {} have the same form?", plural(what));
        Self { what, given, n_given, unknown, known, n_known, known_values, advice }
    }

    /// Replaces the advice for values that have no other spelling.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    /// Replaces the unknown values, of which a third table knows some.
    #[must_use]
    pub fn with_unknown(self, unknown: UnknownValues) -> Self {
        Self { unknown, ..self }
    }

    /// Whether the values are such.
    #[must_use]
    pub fn is_of(&self, what: &str) -> bool {
        self.what == what
    }

    /// The number of distinct values.
    #[must_use]
    pub fn n_given(&self) -> usize {
        self.n_given
    }

    /// Whether a value is known.
    #[must_use]
    pub fn has_common(&self) -> bool {
        self.unknown.len() < self.n_given
    }

    /// Whether there are values, and none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_given > 0 && self.unknown.len() == self.n_given
    }

    /// Whether an unknown value is a known one in another spelling.
    #[must_use]
    pub fn is_misspelled(&self) -> bool {
        self.spelling().is_some()
    }

    /// The error that no value is known.
    #[must_use]
    pub fn error(&self) -> Error {
        let Self { what, given, n_given, unknown, known, n_known, known_values, advice } = self;
        let table = |n: usize, table: &str, values: &BTreeSet<String>| {
            format!("{n} {} in {table}: {}", counted(what, n), shown(values, n))
        };
        let found = [table(*n_known, known, known_values), table(*n_given, given, &unknown.first)];
        Error::data(format!("{given} and {known} have no {what} in common"))
            .found(found.join("; "))
            .help(self.spelling().or_else(|| self.slip()).unwrap_or_else(|| advice.clone()))
    }

    /// The warning that values are not known; `None` where all are.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let Self { what, given, n_given, unknown, known, .. } = self;
        let n = unknown.len();
        let verb = if n == 1 { "is" } else { "are" };
        let text = format!(
            "{n} of {n_given} {} of {given} {verb} not in {known}: {}",
            counted(what, *n_given),
            shown(&unknown.first, n)
        );
        let spelling = self.spelling().map_or_else(String::new, |spelling| format!("; {spelling}"));
        (n > 0).then(|| text + &spelling)
    }

    /// The first unknown value that is a known one in another spelling, and what to do about it.
    fn spelling(&self) -> Option<String> {
        let Self { given, unknown, known, known_values, .. } = self;
        let (value, other, why) = unknown.first().find_map(|value| {
            known_values.iter().find_map(|other| Some((value, other, difference(value, other)?)))
        })?;
        Some(format!(
            "`{value}` of {given} may be `{other}` of {known}, {why}: {}",
            help_for_spellings(value, other)
        ))
    }

    /// The known word that an unknown one resembles. Ids that differ in a digit are near each other, and not the same.
    fn slip(&self) -> Option<String> {
        let Self { what, given, unknown, known, known_values, .. } = self;
        let is_word = |text: &&String| text.chars().filter(|c| c.is_alphabetic()).count() > 2;
        let value = unknown.first().find(is_word).filter(|_| *what != "instance")?;
        let near = nearest(value, known_values.iter().map(String::as_str))?;
        Some(format!("did `{value}` of {given} mean `{near}` of {known}?"))
    }
}

/// The rules for text that make two spellings one, or else what to do without.
fn help_for_spellings(value: &str, other: &str) -> String {
    let (is_trimmed, is_lower) =
        (value.trim() == other.trim(), value.to_lowercase() == other.to_lowercase());
    let steps = match (is_trimmed, is_lower) {
        (true, _) => "\"trim\"",
        (_, true) => "\"lower\"",
        _ if value.trim().to_lowercase() == other.trim().to_lowercase() => "\"trim\", \"lower\"",
        _ => return "write both in one form".to_owned(),
    };
    format!("source.normalise = [{steps}] makes them one, in all tables")
}

/// How two spellings of one value differ; `None` where they are two values.
fn difference(value: &str, other: &str) -> Option<&'static str> {
    let [value, other] = [value, other].map(|text| text.trim().to_lowercase());
    if value == other {
        return Some("which differs in case or spaces");
    }
    if let (Ok(a), Ok(b)) = (value.parse::<f64>(), other.parse::<f64>()) {
        let is_shortened = [&value, &other].iter().any(|text| text.contains('e'));
        let gap = (a - b).abs();
        // Floats round long integers: two plain ones differ.
        let are_integers = [&value, &other].iter().all(|text| text.parse::<i128>().is_ok());
        return if are_integers && value.trim_start_matches('0') != other.trim_start_matches('0') {
            None
        } else if gap == 0.0 {
            Some("which is the same number")
        } else if is_shortened && gap <= 1e-4 * a.abs().max(b.abs()) {
            Some("a long number that a program has shortened")
        } else {
            None
        };
    }
    let truth = |word: &str| match word {
        "true" | "t" | "yes" | "y" | "1" | "1.0" => Some(true),
        "false" | "f" | "no" | "n" | "0" | "0.0" => Some(false),
        _ => None,
    };
    (truth(&value).is_some() && truth(&value) == truth(&other))
        .then_some("which is the same truth value")
}

/// At most five of the values that are here, then how many more of `n` there are.
fn shown<T: Display>(values: impl IntoIterator<Item = T>, n: usize) -> String {
    let first: Vec<T> = values.into_iter().take(super::SHOWN_OFFENDERS).collect();
    let more = n.saturating_sub(first.len());
    let text = offenders(first);
    if more > 0 { format!("{text} and {more} more") } else { text }
}

fn plural(what: &str) -> String {
    format!("{what}{}", if what.ends_with('s') { "es" } else { "s" })
}

fn counted(what: &str, n: usize) -> String {
    if n == 1 { what.to_owned() } else { plural(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(given: &[&str], unknown: &[&str], known: &[&str]) -> Overlap {
        let texts =
            |all: &[&str]| -> Vec<String> { all.iter().map(|text| (*text).to_owned()).collect() };
        let known = texts(known);
        Overlap::new(
            "class",
            ("the truth", given.len(), texts(unknown).into_iter().collect()),
            ("the run", known.len(), known.into_iter()),
        )
    }

    #[test]
    fn tables_without_a_common_value_show_both_and_the_nearest_spelling() {
        let error = overlap(&["0", "1"], &["0", "1"], &["0.0", "1.0"]).error().to_string();
        assert_eq!(
            error,
            "error: the truth and the run have no class in common\n  \
             found: 2 classes in the run: `0.0`, `1.0`; 2 classes in the truth: `0`, `1`\n  \
             help: `0` of the truth may be `0.0` of the run, which is the same number: write both in one form"
        );
        let partly = overlap(&["a", "b", "c"], &["c"], &["a", "b"]);
        assert!(!partly.is_empty());
        assert_eq!(partly.warning().unwrap(), "1 of 3 classes of the truth is not in the run: `c`");
        assert_eq!(overlap(&["a"], &[], &["a"]).warning(), None);
    }

    #[test]
    fn of_many_unknown_values_the_first_are_kept_and_all_are_counted() {
        let all = |n: usize| (0..n).rev().map(|i| format!("i{i:03}")).collect::<UnknownValues>();
        let known = ("the annotations", 1, ["a".to_owned()].into_iter());
        let overlap = Overlap::new("instance", ("gold", 501, all(500)), known);
        assert!(overlap.has_common() && !overlap.is_empty());
        assert_eq!(
            overlap.warning().unwrap(),
            "500 of 501 instances of gold are not in the annotations: `i000`, `i001`, `i002`, `i003`, `i004` and 495 more"
        );
        let fewer = overlap.with_unknown(all(2));
        assert!(fewer.warning().unwrap().starts_with("2 of 501 instances"));
    }

    #[test]
    fn spellings_that_a_rule_for_text_makes_one_name_the_rule() {
        for (value, other, help) in [
            ("POS", "pos", "source.normalise = [\"lower\"] makes them one, in all tables"),
            ("pos ", "pos", "source.normalise = [\"trim\"] makes them one"),
            ("Pos ", "pos", "source.normalise = [\"trim\", \"lower\"] makes them one"),
        ] {
            let error = overlap(&[value], &[value], &[other]).error().to_string();
            assert!(error.contains(help), "{error}");
        }
    }

    #[test]
    fn spellings_of_one_value_are_told_from_two_values() {
        for (value, other, same) in [
            ("0", "0.0", true),
            ("TRUE", "True", true),
            ("true", "1", true),
            ("FALSE", "0.0", true),
            ("pos ", "pos", true),
            ("1.29403E+18", "1294030000000000001", true),
            ("1", "2", false),
            ("1", "true", true),
            ("0", "true", false),
            ("neg", "pos", false),
            ("1294030000000000002", "1294030000000000001", false),
            ("007", "7", true),
        ] {
            assert_eq!(difference(value, other).is_some(), same, "{value} {other}");
        }
    }
}
