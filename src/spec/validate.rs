//! Checks a value against the JSON Schema of the pipeline file and collects every problem with its key path.
//!
//! Only the part of JSON Schema that schemars generates for our structs is supported; [`super`] says why this check
//! exists.
//!
//! # Why
//! The crate `jsonschema` validates every schema, but its message for a choice names no key: for a smoothing of -1, as
//! for a misspelt kind, it says that `/model` "is not valid under any of the schemas listed in the 'oneOf' keyword". A
//! person needs to know which alternative applies, and which name was probably meant. For a model with a misspelt
//! `mixture` and a misspelt `train.optimiser.schedule`, the crate (0.61, without default features) has that one message,
//! and this check names both keys and the words probably meant; for a key `decid`, the crate says "Additional properties
//! are not allowed", and this check proposes `decide`. The crate would add 20 crates to `Cargo.lock`, which took 22
//! seconds of processor time in a debug build and 91 in a release build.

use serde_json::Value;

use super::schema::{alternatives, constants, kind_of, locations_of_key, resolve, types};
use super::types::{date, is_large_integer, is_list_of_texts, type_fits, type_name};
use super::{COMMAND_LINE, LARGE_INTEGER, Problems, join};
use crate::error::{Problem, did_you_mean, offenders};

/// The largest amount: a larger one, such as a smoothing of 1e308, only overflows the sums that it is added to.
const MAX_AMOUNT: f64 = 1e100;

/// Beyond so many problems, unknown keys are no longer searched for in other sections: a file may have a million keys.
const MAX_PROBLEMS_WITH_SEARCH: usize = 20;

/// Adds a problem for everything in `value` that `schema` does not allow.
pub(super) fn validate(value: &Value, schema: &Value, location: &str, problems: &mut Problems) {
    Validator { document: value, root: schema, location, problems }.value(value, schema, "");
}

pub(super) struct Validator<'a> {
    pub(super) document: &'a Value,
    pub(super) root: &'a Value,
    location: &'a str,
    problems: &'a mut Problems,
}

impl Validator<'_> {
    fn value(&mut self, value: &Value, schema: &Value, path: &str) {
        let schema = resolve(self.root, schema);
        if let Some(date) = date(value) {
            let what = "no value of a pipeline is a date";
            let help = format!("write it as text: \"{date}\"");
            self.report(path, Problem::new(what).found(format!("`{date}`")).help(help));
        } else if let Some(options) = alternatives(schema) {
            self.one_of(value, &options, path);
        } else if self.kind(value, schema, path) {
            self.range(value, schema, path);
            self.object(value, schema, path);
            self.array(value, schema, path);
        }
    }

    pub(super) fn report(&mut self, path: &str, problem: Problem) {
        let location = if path.is_empty() {
            self.location.to_owned()
        } else {
            format!("{}: {path}", self.location)
        };
        self.problems.push(problem.at(location));
    }

    /// Chooses exactly one alternative: by `kind` where they have one, else the first whose type fits.
    fn one_of(&mut self, value: &Value, options: &[&Value], path: &str) {
        let root = self.root;
        let options: Vec<&Value> = options.iter().map(|o| resolve(root, o)).collect();
        if value.is_null() && options.iter().any(|o| types(o).contains(&"null")) {
            return;
        }
        let words: Vec<&str> = options.iter().flat_map(|o| constants(o)).collect();
        if let Value::String(word) = value
            && !words.is_empty()
            && !words.contains(&word.as_str())
        {
            self.unknown_word(word, &words, path);
            return;
        }
        let by_kind: Vec<(&str, &Value)> =
            options.iter().filter_map(|o| Some((kind_of(o)?, *o))).collect();
        if !by_kind.is_empty() {
            self.one_of_kinds(value, &by_kind, path);
            return;
        }
        let fits = |o: &&&Value| type_fits(value, o) && constants(o).iter().all(|c| value == c);
        let any_word = value.as_str().is_some_and(|w| words.contains(&w));
        let takes_text =
            options.iter().any(|o| types(o).contains(&"string") && constants(o).is_empty());
        let takes_texts = options.iter().any(|option| {
            let items = option.get("items").map(|items| resolve(root, items));
            items.is_some_and(|items| type_fits(&Value::String(String::new()), items))
        });
        if takes_text && !takes_texts && is_list_of_texts(value) {
            let problem = wrong_type("one text, not a list", value).help(
                "name one file, a folder such as in/, or several files by a pattern such as in/*.csv",
            );
            return self.report(path, problem);
        }
        match options.iter().find(fits) {
            Some(option) => self.value(value, option, path),
            None if any_word => {}
            None => {
                let name = |option: &&Value| match constants(option).as_slice() {
                    [] => type_name(option),
                    words => Some(format!("\"{}\"", words.join("\" or \""))),
                };
                let expected: Vec<String> = options.iter().filter_map(name).collect();
                self.report(path, wrong_type(&expected.join(" or "), value));
            }
        }
    }

    /// Chooses the alternative whose name is the `kind` of the section.
    fn one_of_kinds(&mut self, value: &Value, by_kind: &[(&str, &Value)], path: &str) {
        let names: Vec<&str> = by_kind.iter().map(|(name, _)| *name).collect();
        let key = join(path, "kind");
        let Some(section) = value.as_object() else {
            let word = value.as_str().filter(|word| names.contains(word));
            let help = word.map(|word| format!("write `{key} = \"{word}\"`"));
            let help = help.unwrap_or_else(|| format!("write `{key}`, {}", one_of_words(&names)));
            return self.report(path, wrong_type("section", value).help(help));
        };
        match section.get("kind") {
            Some(Value::String(kind)) => match by_kind.iter().find(|(name, _)| name == kind) {
                Some((_, option)) => {
                    let section = self.of_kind(section, option, kind, by_kind, path);
                    self.value(&section, option, path);
                }
                None => self.unknown_word(kind, &names, &key),
            },
            Some(other) => {
                self.report(&key, wrong_type("string", other).help(one_of_words(&names)));
            }
            None => self.report(path, missing("kind").help(one_of_words(&names))),
        }
    }

    fn unknown_word(&mut self, word: &str, words: &[&str], path: &str) {
        let help = did_you_mean(word, words.iter().copied(), || one_of_words(words));
        self.report(path, Problem::new(format!("`{word}` is not known here")).help(help));
    }

    fn kind(&mut self, value: &Value, schema: &Value, path: &str) -> bool {
        let fits = type_fits(value, schema);
        if !fits {
            let expected = type_name(schema).unwrap_or_else(|| "another type".to_owned());
            let is_large = value.as_str().is_some_and(is_large_integer);
            let mut problem = wrong_type(&expected, value);
            if is_large && ["integer", "number"].iter().any(|of| types(schema).contains(of)) {
                problem = problem.help(LARGE_INTEGER);
            }
            if expected == "array" && (value.is_string() || value.is_number()) {
                // A shell takes away the quotes inside of a list that is not quoted itself.
                let is_unquoted = value.as_str().is_some_and(|text| text.starts_with('['));
                problem = problem.help(if is_unquoted {
                    format!("put the texts into quotes, and all into others for the shell: '{path}=[\"a\", \"b\"]'")
                } else {
                    format!("write a list: [{value}]")
                });
            }
            if expected == "string" && is_list_of_texts(value) {
                problem = problem.help("write one text, without the brackets of a list");
            }
            if expected == "string" && (value.is_number() || value.is_boolean()) {
                problem = problem.help(if self.location == COMMAND_LINE && !path.ends_with(']') {
                    format!("write '{path}=\"{value}\"', with both kinds of quotes")
                } else {
                    format!("write it as text: \"{value}\"")
                });
            }
            self.report(path, problem);
        }
        fits
    }

    fn range(&mut self, value: &Value, schema: &Value, path: &str) {
        let Some(number) = value.as_f64() else { return };
        let is_u32 = schema.get("format").is_some_and(|format| format == "uint32");
        let bound = |key: &str| {
            let of_type = (is_u32 && key == "maximum").then_some(f64::from(u32::MAX));
            schema.get(key).and_then(Value::as_f64).or(of_type)
        };
        let is_amount = ["minimum", "exclusiveMinimum"].iter().any(|key| bound(key).is_some())
            && types(schema).contains(&"number");
        let checks = [
            ("minimum", "at least", bound("minimum").is_some_and(|b| number < b)),
            (
                "exclusiveMinimum",
                "more than",
                bound("exclusiveMinimum").is_some_and(|b| number <= b),
            ),
            ("maximum", "at most", bound("maximum").is_some_and(|b| number > b)),
            ("", "at most", is_amount && number > MAX_AMOUNT),
        ];
        for (key, words, broken) in checks {
            if broken || !number.is_finite() {
                let bound = bound(key).or_else(|| key.is_empty().then_some(MAX_AMOUNT));
                let limit = bound.map_or_else(String::new, |b| {
                    let is_plain = b == 0.0 || (1e-6..1e15).contains(&b.abs());
                    let b = if is_plain { b.to_string() } else { format!("{b:e}") };
                    format!(" {words} {b}")
                });
                let what = format!("the number must be{limit}");
                self.report(path, Problem::new(what).found(value.to_string()));
                return;
            }
        }
    }

    fn object(&mut self, value: &Value, schema: &Value, path: &str) {
        let Some(object) = value.as_object() else { return };
        let empty = serde_json::Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let extra = schema.get("additionalProperties");
        for (key, item) in object {
            match (properties.get(key), extra) {
                (Some(property), _) => self.value(item, property, &join(path, key)),
                (None, Some(Value::Bool(false))) => self.unknown_key(key, properties, path),
                (None, Some(other)) => self.value(item, other, &join(path, key)),
                (None, None) => {}
            }
        }
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            if let Some(name) = name.as_str()
                && !object.contains_key(name)
            {
                self.report(path, missing(name));
            }
        }
    }

    fn unknown_key(&mut self, key: &str, known: &serde_json::Map<String, Value>, path: &str) {
        let help = did_you_mean(key, known.keys().map(String::as_str), || {
            let is_searched = self.problems.0.len() < MAX_PROBLEMS_WITH_SEARCH;
            let locations = is_searched.then(|| locations_of_key(key, self.document, self.root));
            let locations = locations.unwrap_or_default();
            match locations.first() {
                Some(only) if locations.len() == 1 => format!("did you mean `{only}`?"),
                _ => {
                    format!("known here: {}", known.keys().cloned().collect::<Vec<_>>().join(", "))
                }
            }
        });
        self.report(&join(path, key), Problem::new(format!("unknown key `{key}`")).help(help));
    }

    fn array(&mut self, value: &Value, schema: &Value, path: &str) {
        let Some(items) = value.as_array() else { return };
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        if (items.len() as u64) < least {
            let help = format!("list at least {least}, or leave the key out");
            self.report(
                path,
                Problem::new("the list is too short").found(offenders([value])).help(help),
            );
        }
        let Some(schema) = schema.get("items") else { return };
        for (i, item) in items.iter().enumerate() {
            self.value(item, schema, &format!("{path}[{i}]"));
        }
    }
}

fn wrong_type(expected: &str, value: &Value) -> Problem {
    Problem::new(format!("expected {expected}")).found(offenders([value]))
}

fn missing(key: &str) -> Problem {
    Problem::new(format!("`{key}` is missing"))
}

fn one_of_words(words: &[&str]) -> String {
    let all = words.iter().map(|word| format!("`{word}`"));
    format!("one of {}", all.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `n` is a key of one section; `m` of one for `gem`, and of two for another kind; `x` of none.
    #[test]
    fn a_key_of_one_other_section_is_proposed_there() {
        let section =
            |of: Value| json!({"type": "object", "properties": of, "additionalProperties": false});
        let gem = section(json!({"kind": {"const": "gem"}, "train": section(json!({"m": {}}))}));
        let tcl = json!({"kind": {"const": "tcl"}, "m": {}, "train": {"$ref": "#/$defs/train"}});
        let mut schema = section(json!({
            "engine": section(json!({"n": {}})),
            "model": {"oneOf": [gem, section(tcl)]},
        }));
        schema["$defs"] = json!({"train": section(json!({"m": {}}))});
        let help = |document: Value| {
            let mut problems = Problems::default();
            validate(&document, &schema, "p.toml", &mut problems);
            let text = problems.into_result().unwrap_err().to_string();
            text.rsplit("help: ").next().unwrap_or_default().to_owned()
        };
        assert_eq!(help(json!({"n": 3})), "did you mean `engine.n`?");
        assert_eq!(
            help(json!({"model": {"kind": "gem", "m": 3}})),
            "did you mean `model.train.m`?"
        );
        for (key, kind) in [("m", "tcl"), ("x", "gem")] {
            let document = json!({"model": {"kind": kind}, key: 3});
            assert_eq!(help(document), "known here: engine, model");
        }
    }

    #[test]
    fn a_number_beyond_its_type_and_one_without_quotes_are_named() {
        let schema = json!({"properties": {
            "n": {"type": "integer", "format": "uint32", "minimum": 0},
            "limit": {"type": ["string", "null"]},
        }});
        let checked = |document: Value| {
            let mut problems = Problems::default();
            validate(&document, &schema, "p.toml", &mut problems);
            problems.into_result().map_err(|e| e.to_string())
        };
        assert_eq!(checked(json!({"n": u32::MAX, "limit": "3"})), Ok(()));
        for (document, wanted) in [
            (
                json!({"n": 1_u64 << 32}),
                "the number must be at most 4294967295\n  where: p.toml: n\n  found: 4294967296",
            ),
            (
                json!({"limit": 3}),
                "expected string\n  where: p.toml: limit\n  found: `3`\n  help: write it as text: \"3\"",
            ),
        ] {
            assert_eq!(checked(document), Err(format!("error: {wanted}")));
        }
        let mut problems = Problems::default();
        validate(&json!({"limit": 3}), &schema, COMMAND_LINE, &mut problems);
        let error = problems.into_result().unwrap_err().to_string();
        assert!(error.ends_with("help: write 'limit=\"3\"', with both kinds of quotes"), "{error}");
    }

    #[test]
    fn a_kind_that_is_no_text_is_shown_and_one_that_is_missing_is_named() {
        let kind = |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}, "n": {}}});
        let schema = json!({"properties": {"model": {"oneOf": [kind("gem"), kind("tcl")]}}});
        let checked = |model: Value| {
            let mut problems = Problems::default();
            validate(&json!({"model": model}), &schema, "p.toml", &mut problems);
            problems.into_result().map_err(|e| e.to_string())
        };
        assert_eq!(checked(json!({"kind": "gem", "n": 3})), Ok(()));
        for (model, wanted) in [
            (
                json!({"kind": 3}),
                "expected string\n  where: p.toml: model.kind\n  found: `3`\n  help: one of `gem`, `tcl`",
            ),
            (
                json!("gem"),
                "expected section\n  where: p.toml: model\n  found: `\"gem\"`\n  help: write `model.kind = \"gem\"`",
            ),
            (
                json!([]),
                "expected section\n  where: p.toml: model\n  found: `[]`\n  help: write `model.kind`, one of `gem`, `tcl`",
            ),
            (
                json!({"n": 3}),
                "`kind` is missing\n  where: p.toml: model\n  help: one of `gem`, `tcl`",
            ),
        ] {
            assert_eq!(checked(model), Err(format!("error: {wanted}")));
        }
    }
}
