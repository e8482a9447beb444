//! Replaces `${name}` in the strings of a file by the values that the command line gives.

use std::collections::{BTreeMap, BTreeSet};

use super::problems::Problems;
use super::values::for_each_value;
use crate::error::{Error, Problem, Result, did_you_mean, offenders};
use crate::redact::redacted_location;

/// The variables of the command line, and the names that the file reads.
pub(super) struct Variables {
    values: BTreeMap<String, String>,
    used: BTreeSet<String>,
    unused_sections: &'static [&'static str],
}

impl Variables {
    /// The variables that the command line gives.
    ///
    /// # Errors
    /// When one of them has no value.
    pub(super) fn new(given: &[String], unused_sections: &'static [&'static str]) -> Result<Self> {
        let values = variables(given)?;
        Ok(Self { values, used: BTreeSet::new(), unused_sections })
    }

    /// Replaces `${name}` in every string of the file; `$${` stands for a plain `${`.
    pub(super) fn substitute(
        &mut self,
        table: &mut toml::Table,
        location: &str,
        problems: &mut Problems,
    ) {
        for_each_value(table, |path, value| {
            if let toml::Value::String(text) = value
                && text.contains("${")
            {
                let section = path.split(['.', '[']).next().unwrap_or_default();
                let needs_values = !self.unused_sections.contains(&section);
                let key = format!("{location}: {path}");
                *text = self.expand(text, (&key, needs_values), problems);
            }
        });
    }

    /// Adds a problem for each variable that the file does not read.
    pub(super) fn check_used(&self, problems: &mut Problems) {
        for name in self.values.keys().filter(|name| !self.used.contains(*name)) {
            let read = self.used.iter().map(String::as_str);
            let help = did_you_mean(name, read, || {
                format!("write ${{{name}}} where the file needs it, or leave the option out")
            });
            let read = if self.used.is_empty() {
                "no variables in the file".to_owned()
            } else {
                format!("the variables {} in the file", offenders(&self.used))
            };
            let unused = Problem::new(format!("nothing reads the variable `{name}`"));
            problems.push(unused.at("--var").found(read).help(help));
        }
    }

    fn expand(
        &mut self,
        text: &str,
        (location, needs_values): (&str, bool),
        problems: &mut Problems,
    ) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            if rest[..start].ends_with('$') {
                out.push_str(&rest[..start - 1]);
                out.push_str("${");
                rest = &rest[start + 2..];
                continue;
            }
            let name = rest[start + 2..].split_once('}').map(|(name, _)| name);
            let is_name = |name: &&str| !name.is_empty() && name.chars().all(is_of_a_name);
            let Some(name) = name.filter(is_name) else {
                let has_no_name = rest[start..].starts_with("${}");
                let fault = if has_no_name { "has no name" } else { "is never closed" };
                // A part of a URL no longer shows which part of it is a secret.
                let shown = redacted_location(text);
                let found = if shown == text { &rest[start..] } else { shown.as_str() };
                problems.push(
                Problem::new(format!("a variable {fault}"))
                    .at(location)
                    .found(format!("`{found}`"))
                    .help(
                        "write it as ${name}, of letters, digits, _, - and .; or $${ where no variable is meant",
                    ),
            );
                break;
            };
            out.push_str(&rest[..start]);
            self.used.insert(name.to_owned());
            match self.values.get(name) {
                Some(value) => out.push_str(value),
                None if needs_values => {
                    problems.push(unknown_variable(name, &self.values).at(location));
                }
                None => out.push_str(&rest[start..start + name.len() + 3]),
            }
            rest = &rest[start + 2 + name.len() + 1..];
        }
        out + rest
    }
}

fn variables(assignments: &[String]) -> Result<BTreeMap<String, String>> {
    assignments
        .iter()
        .map(|a| match a.split_once('=') {
            Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
            None => Err(Error::spec("a variable needs a value")
                .at("--var")
                .found(format!("`{a}`"))
                .help("write --var name=value")),
        })
        .collect()
}

/// Whether the character may be in a variable's name. A text with any other character is no name: it reaches to the
/// closing brace of a later variable.
fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn unknown_variable(name: &str, vars: &BTreeMap<String, String>) -> Problem {
    let names = vars.keys().map(String::as_str);
    let help = did_you_mean(name, names, || format!("pass --var {name}=..."));
    let given = if vars.is_empty() { "no variables".to_owned() } else { offenders(vars.keys()) };
    Problem::new(format!("no value for the variable `{name}`")).found(given).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> Variables {
        let values = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Variables { values, used: BTreeSet::new(), unused_sections: &[] }
    }

    #[test]
    fn variables_expand_and_escape() {
        let mut problems = Problems::default();
        let mut v = vars(&[("ds", "2026-01-02")]);
        assert_eq!(v.expand("a/${ds}/b", ("f", true), &mut problems), "a/2026-01-02/b");
        assert_eq!(v.expand("a/$${ds}", ("f", true), &mut problems), "a/${ds}");
        assert!(problems.into_result().is_ok());
    }

    #[test]
    fn a_missing_variable_names_the_nearest() {
        let mut problems = Problems::default();
        vars(&[("ds", "1")]).expand("${dss}", ("f: source", true), &mut problems);
        let error = problems.into_result().unwrap_err().to_string();
        assert!(error.contains("did you mean `ds`?"), "{error}");
    }

    #[test]
    fn a_variable_without_a_name_is_not_given_on_the_command_line() {
        let mut problems = Problems::default();
        vars(&[("ds", "1")]).expand("a/${}/b", ("f: source", true), &mut problems);
        let error = problems.into_result().unwrap_err().to_string();
        assert!(error.contains("a variable has no name"), "{error}");
        assert!(error.contains("found: `${}/b`") && !error.contains("--var"), "{error}");
    }
}
