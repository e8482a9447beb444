//! The queries over a run that ship with the binary: `labelmill sql --run OUT --query NAME`.
//!
//! A file of `sql/` is one query. Its first comment is its documentation: sentences, then a line for each column, then a
//! line `-- $name = default: meaning` for each parameter, which is a number. A line that begins with a comma and names
//! `$class` is repeated for each class of the run.

use std::fmt::Write as _;

use crate::error::{Error, Result, did_you_mean};

/// One query of `sql/`.
#[derive(Debug, Clone, Copy)]
pub struct NamedQuery {
    /// Its name: that of its file.
    pub name: &'static str,
    text: &'static str,
}

macro_rules! named_queries {
    ($($name:literal),* $(,)?) => {
        &[$(NamedQuery { name: $name, text: include_str!(concat!("../../sql/", $name, ".sql")) }),*]
    };
}

/// Every query, in the order in which a reader would ask.
pub static NAMED_QUERIES: &[NamedQuery] = named_queries![
    "review_queue",
    "split_instances",
    "coverage",
    "class_shares",
    "confused_classes",
    "annotators_by_skill",
    "agreement_of_pairs",
    "near_copies",
    "work_by_week",
    "gold_against_labels",
    "soft_labels",
    "rejects_by_reason",
];

/// A parameter of a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryParameter {
    /// Its name, without the dollar.
    pub name: &'static str,
    /// Its value where none is given.
    pub default: &'static str,
    /// What it sets.
    pub meaning: &'static str,
}

/// What takes the place of `$class`.
const CLASS: &str = "$class";

impl NamedQuery {
    /// The query of this name.
    ///
    /// # Errors
    /// When there is none; the nearest name is suggested.
    pub fn find(name: &str) -> Result<Self> {
        let names = NAMED_QUERIES.iter().map(|query| query.name);
        let found = NAMED_QUERIES.iter().find(|query| query.name == name);
        found.copied().ok_or_else(|| {
            let help = did_you_mean(name, names, || "`labelmill sql --list` shows them".to_owned());
            Error::spec(format!("there is no query `{name}`")).at("--query").help(help)
        })
    }

    /// What its rows are: the first sentences of its comment.
    #[must_use]
    pub fn summary(&self) -> String {
        let sentences = self.head().take_while(|line| !line.starts_with([' ', '$']));
        sentences.collect::<Vec<_>>().join(" ")
    }

    /// Its columns, and what they hold. In a run with questions, `question` comes before them.
    pub fn columns(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let columns = self.head().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
        columns.map(|(name, meaning)| (name, meaning.trim_start()))
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = QueryParameter> {
        self.head().filter_map(|line| {
            let (name, rest) = line.strip_prefix('$')?.split_once(" = ")?;
            let (default, meaning) = rest.split_once(": ")?;
            Some(QueryParameter { name, default, meaning })
        })
    }

    /// Whether it reads a relation of the run's sources, such as `annotations`.
    #[must_use]
    pub fn reads(&self, relation: &str) -> bool {
        let reads = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words
                .array_windows()
                .any(|[by, table]| ["from", "join"].contains(by) && *table == relation)
        };
        self.body().any(reads)
    }

    /// Whether it names a column.
    #[must_use]
    pub fn names(&self, column: &str) -> bool {
        self.body().any(|line| line.contains(column))
    }

    /// Whether its columns depend on the classes of the run.
    #[must_use]
    pub fn has_classes(&self) -> bool {
        self.names(CLASS)
    }

    /// The query with its parameters, given as `name=value`, and with the run's classes.
    ///
    /// # Errors
    /// When a parameter does not exist, is given twice or is no number.
    pub fn sql(&self, given: &[String], classes: &[String]) -> Result<String> {
        let mut values: Vec<(&str, String)> =
            self.parameters().map(|p| (p.name, p.default.to_owned())).collect();
        for text in given {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Error::spec("a parameter needs a value")
                    .at("--param")
                    .found(format!("`{text}`"))
                    .help("write --param name=value")
            })?;
            let number = value.trim().parse::<f64>().ok().filter(|number| number.is_finite());
            let names = values.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            let Some(slot) = values.iter_mut().find(|(known, _)| *known == name) else {
                let all = || match names.as_slice() {
                    [] => format!("`{}` has no parameters", self.name),
                    names => format!("`{}` has {}", self.name, names.join(", ")),
                };
                return Err(Error::spec(format!("there is no parameter `{name}`"))
                    .at("--param")
                    .help(did_you_mean(name, names.iter().copied(), all)));
            };
            if number.is_none() {
                return Err(Error::spec(format!("the parameter `{name}` is a number"))
                    .at("--param")
                    .found(format!("`{value}`"))
                    .help(format!("such as --param {name}={}", slot.1)));
            }
            value.trim().clone_into(&mut slot.1);
        }
        let mut sql = String::new();
        for line in self.body() {
            if line.contains(CLASS) {
                for class in classes {
                    let _ = writeln!(sql, "{}", with_class(line, class));
                }
            } else {
                let _ = writeln!(sql, "{}", with_values(line, &values));
            }
        }
        Ok(sql)
    }

    /// The lines of the first comment, without their dashes.
    fn head(&self) -> impl Iterator<Item = &'static str> {
        let comment = self.text.lines().map_while(|line| line.strip_prefix("--"));
        comment.map(|line| line.strip_prefix(' ').unwrap_or(line))
    }

    /// The lines after it.
    fn body(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().skip_while(|line| line.starts_with("--"))
    }
}

/// A line about one class: in single quotes its text, in double quotes the column that is named for it.
fn with_class(line: &str, class: &str) -> String {
    let text = format!("'{}'", class.replace('\'', "''"));
    let name = format!("\"{}\"", class.replace('"', "\"\""));
    let line = line.replace(&format!("'{CLASS}'"), &text);
    line.replace(&format!("\"{CLASS}\""), &name)
}

/// A line with the values of the parameters that it names as whole words.
fn with_values(line: &str, values: &[(&str, String)]) -> String {
    let words = line.split(' ').map(|word| {
        let value = word.strip_prefix('$').and_then(|name| values.iter().find(|(v, _)| *v == name));
        value.map_or(word, |(_, value)| value.as_str())
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_says_what_it_gives_and_uses_each_of_its_parameters() {
        for query in NAMED_QUERIES {
            assert!(query.summary().ends_with('.'), "{}: {}", query.name, query.summary());
            let body: String = query.body().collect::<Vec<_>>().join("\n");
            for parameter in query.parameters() {
                let used =
                    body.split_whitespace().any(|word| word == format!("${}", parameter.name));
                assert!(used && parameter.default.parse::<f64>().is_ok(), "{}", query.name);
            }
            let sql = query.sql(&[], &["a".to_owned()]).unwrap();
            assert!(!sql.contains('$'), "{sql}");
        }
    }

    #[test]
    fn parameters_take_the_place_of_their_names_and_only_numbers_are_taken() {
        let query = NamedQuery::find("review_queue").unwrap();
        let sql = query.sql(&["n=3".to_owned()], &[]).unwrap();
        assert!(sql.ends_with("limit 3\n"), "{sql}");
        for given in ["n=1 or 1=1", "n", "m=3"] {
            assert!(query.sql(&[given.to_owned()], &[]).is_err(), "{given}");
        }
        assert!(query.reads("posteriors") && !query.reads("annotations"));
    }

    #[test]
    fn a_class_is_quoted() {
        let query = NamedQuery::find("soft_labels").unwrap();
        let sql = query.sql(&[], &["it's".to_owned(), "5\"".to_owned()]).unwrap();
        assert!(sql.contains(r#"= 'it''s') as "it's""#), "{sql}");
        assert!(sql.contains(r#"= '5"') as "5""""#), "{sql}");
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        let error = NamedQuery::find("review_queu").unwrap_err().to_string();
        assert!(error.contains("review_queue"), "{error}");
    }
}
