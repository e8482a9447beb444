//! The warnings of a run: equal ones about one subject once, and similar ones about many questions counted.
//!
//! # Why
//! A job may have many thousands of questions. As many lines, which differ in numbers and names only, would hide every
//! other warning.

use std::collections::BTreeMap;

use crate::error::SHOWN_OFFENDERS;

/// The warnings so far, and what the next ones are about.
#[derive(Debug, Clone, Default)]
pub(super) struct Warnings {
    pub(super) kept: Vec<String>,
    /// What the next warnings are about, such as one of several questions.
    subject: Option<String>,
    is_question: bool,
    /// Counts the changes of the subject.
    subject_number: usize,
    /// The number of warnings before those about the subject.
    before_subject: usize,
    /// The part of the fit that the next warnings come from, where it is not the fit itself.
    part_of_fit: Option<&'static str>,
    /// The warnings about questions, by the part of the fit and the template.
    similar: BTreeMap<(Option<&'static str>, String), Similar>,
}

/// Warnings with the same template.
#[derive(Debug, Clone)]
struct Similar {
    first: String,
    n_questions: usize,
    /// The `subject_number` of the last of these questions.
    last_subject: usize,
}

impl Warnings {
    pub(super) fn set_subject(&mut self, subject: Option<String>, is_question: bool) {
        self.subject = subject;
        self.is_question = is_question;
        self.subject_number += 1;
        self.before_subject = self.kept.len();
    }

    pub(super) fn set_part(&mut self, part: Option<&'static str>) {
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
        let is_one_of_many = self.is_question && self.subject.is_some();
        if is_one_of_many && self.count_question(message, &of_part) > SHOWN_OFFENDERS {
            tracing::debug!("{of_part}");
            return None;
        }
        self.kept.push(of_part);
        self.kept.last().map(String::as_str)
    }

    /// Counts a question with a warning; returns how many have such a warning now.
    fn count_question(&mut self, message: &str, text: &str) -> usize {
        let similar = self.similar.entry((self.part_of_fit, template(message)));
        let first = || Similar { first: text.to_owned(), n_questions: 0, last_subject: 0 };
        let similar = similar.or_insert_with(first);
        similar.n_questions += usize::from(similar.last_subject != self.subject_number);
        similar.last_subject = self.subject_number;
        similar.n_questions
    }

    /// Keeps a warning for all that were only counted, one for each template, and returns these.
    pub(super) fn sum_up(&mut self) -> &[String] {
        let before = self.kept.len();
        for similar in std::mem::take(&mut self.similar).into_values() {
            let more = match similar.n_questions.saturating_sub(SHOWN_OFFENDERS) {
                0 => continue,
                1 => "1 more question has".to_owned(),
                n => format!("{n} more questions have"),
            };
            self.kept.push(format!("{more} a warning like this one: {}", similar.first));
        }
        &self.kept[before..]
    }
}

/// A warning without what differs between questions: words with digits, names in backticks, and the commas of a list.
fn template(message: &str) -> String {
    let words = message.split('`').step_by(2).flat_map(str::split_whitespace);
    let is_fixed = |word: &&str| {
        word.contains(char::is_alphabetic) && !word.contains(|c: char| c.is_ascii_digit())
    };
    words.filter(is_fixed).collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(n: usize) -> String {
        format!("question `q{n}`")
    }

    #[test]
    fn similar_warnings_of_many_questions_are_five_then_a_count() {
        let mut warnings = Warnings::default();
        let mut want = Vec::new();
        for n in 0..8 {
            warnings.set_subject(Some(question(n)), true);
            // The second one is about the same question, which counts once.
            for message in [format!("{n} rows of `c{n}`"), "1.5 rows of `c`, `d`".to_owned()] {
                let kept = warnings.keep(&message).map(str::to_owned);
                assert_eq!(kept.is_some(), n < 5, "{n}");
                want.extend(kept);
            }
            if n == 7 {
                want.extend(warnings.keep("no gold").map(str::to_owned));
            }
        }
        assert_eq!(warnings.kept, want);
        assert_eq!(want.len(), 11);
        assert_eq!(
            warnings.sum_up(),
            ["3 more questions have a warning like this one: question `q0`: 0 rows of `c0`"]
        );
        assert_eq!((warnings.kept.len(), warnings.sum_up().len()), (12, 0));
    }

    #[test]
    fn a_warning_of_the_whole_fit_is_not_like_one_of_its_part() {
        let mut warnings = Warnings::default();
        for n in 0..5 {
            warnings.set_subject(Some(question(n)), true);
            warnings.set_part(Some("the second fit"));
            assert!(warnings.keep("few rows").is_some());
        }
        warnings.set_subject(Some(question(5)), true);
        assert_eq!(warnings.keep("few rows"), None);
        warnings.set_part(None);
        assert_eq!(warnings.keep("few rows"), Some("question `q5`: few rows"));
        assert_eq!(
            warnings.sum_up(),
            [
                "1 more question has a warning like this one: question `q0`: the second fit: few rows"
            ]
        );
    }

    #[test]
    fn warnings_about_sources_and_about_nothing_in_particular_are_all_kept() {
        let mut warnings = Warnings::default();
        for n in 0..8 {
            assert!(warnings.keep(&format!("{n} rows")).is_some());
        }
        for n in 0..8 {
            warnings.set_subject(Some(format!("source.{n}")), false);
            assert!(warnings.keep("`f` is empty").is_some());
        }
        assert_eq!((warnings.kept.len(), warnings.sum_up().len()), (16, 0));
    }
}
