//! The warnings of a run: equal ones about one subject once, and similar ones about many subjects counted.

use std::collections::BTreeMap;

use crate::error::SHOWN_OFFENDERS;

/// The warnings so far, and what the next ones are about.
#[derive(Debug, Clone, Default)]
pub(super) struct Warnings {
    pub(super) kept: Vec<String>,
    /// What the next warnings are about, such as one of several questions.
    subject: Option<String>,
    /// The number of subjects so far.
    n_subjects: usize,
    /// The number of warnings before those about the subject.
    before_subject: usize,
    /// The part of the fit that the next warnings come from, where it is not the fit itself.
    part_of_fit: Option<&'static str>,
    /// The warnings about subjects, by their words.
    similar: BTreeMap<String, Similar>,
}

/// Warnings with the same words.
#[derive(Debug, Clone)]
struct Similar {
    first: String,
    /// The number of subjects that they are about.
    n_subjects: usize,
    /// The number of the last of these subjects.
    last_subject: usize,
}

impl Warnings {
    pub(super) fn about(&mut self, subject: Option<String>) {
        self.subject = subject;
        self.n_subjects += 1;
        self.before_subject = self.kept.len();
    }

    pub(super) fn of_part(&mut self, part: Option<&'static str>) {
        self.part_of_fit = part;
    }

    /// Keeps a warning and returns it with what it is about; `None` if it is only counted, or if it was kept before.
    pub(super) fn keep(&mut self, message: &str) -> Option<&str> {
        let prefixed = |part: Option<&str>| {
            let prefixes = self.subject.as_deref().into_iter().chain(part);
            prefixes.chain([message]).collect::<Vec<&str>>().join(": ")
        };
        let (of_whole, of_part) = (prefixed(None), prefixed(self.part_of_fit));
        let before = &self.kept[self.before_subject..];
        if before.contains(&of_whole) || before.contains(&of_part) {
            return None;
        }
        if self.subject.is_some() && self.subjects_like(message, &of_part) > SHOWN_OFFENDERS {
            return None;
        }
        self.kept.push(of_part);
        self.kept.last().map(String::as_str)
    }

    /// Counts a warning about the subject; returns the number of subjects with such a warning.
    fn subjects_like(&mut self, message: &str, text: &str) -> usize {
        let similar = self.similar.entry(words(message)).or_insert_with(|| Similar {
            first: text.to_owned(),
            n_subjects: 0,
            last_subject: 0,
        });
        similar.n_subjects += usize::from(similar.last_subject != self.n_subjects);
        similar.last_subject = self.n_subjects;
        similar.n_subjects
    }

    /// Keeps a warning for all that were only counted, one for each kind, and returns these.
    pub(super) fn sum_up(&mut self) -> &[String] {
        let before = self.kept.len();
        let similar = std::mem::take(&mut self.similar).into_values();
        self.kept.extend(similar.filter(|similar| similar.n_subjects > SHOWN_OFFENDERS).map(
            |Similar { first, n_subjects, .. }| {
                let more = n_subjects - SHOWN_OFFENDERS;
                format!("{more} more with a warning like this: {first}")
            },
        ));
        &self.kept[before..]
    }
}

/// A warning without what differs between subjects: numbers, and names in backticks.
fn words(message: &str) -> String {
    message.split('`').step_by(2).flat_map(str::chars).filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_warnings_of_many_subjects_are_five_then_a_count() {
        let mut warnings = Warnings::default();
        let mut shown = 0;
        for n in 0..8 {
            warnings.about(Some(format!("question `q{n}`")));
            // The second one is about the same question, which counts once.
            for rows in [n, n + 100] {
                shown += usize::from(warnings.keep(&format!("{rows} rows of `c{n}`")).is_some());
            }
            shown += usize::from(n == 3 && warnings.keep("no gold").is_some());
        }
        assert_eq!((shown, warnings.kept.len()), (11, 11));
        assert_eq!(
            warnings.sum_up(),
            ["3 more with a warning like this: question `q0`: 0 rows of `c0`"]
        );
        assert_eq!((warnings.kept.len(), warnings.sum_up().len()), (12, 0));
    }

    #[test]
    fn warnings_about_nothing_in_particular_are_all_kept() {
        let mut warnings = Warnings::default();
        assert!((0..8).all(|n| warnings.keep(&format!("{n} rows")).is_some()));
        assert_eq!((warnings.kept.len(), warnings.sum_up().len()), (8, 0));
    }
}
