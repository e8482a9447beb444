//! Turns the text of a TOML file into a spec: variables, `--set`, validation, defaults.
//!
//! # Why
//! The TOML parser loses the positions of keys when it fills structs, and serde stops at the first mistake. So the file
//! is first checked as a plain value against the JSON Schema that the structs themselves generate (`validate.rs`). That
//! check finds every unknown key, wrong type and value out of range at once, each with its key path. `labelmill schema`
//! prints the same schema: what an editor underlines is what `check` refuses.

mod nesting;
mod other_kinds;
mod problems;
mod schema;
mod types;
mod validate;
mod values;
mod variables;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Problem, Result};
use crate::redact::redacted_location;
pub use problems::Problems;
use values::{for_each_value, join};
use variables::Variables;

/// The settings and variables that the command line adds to the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--set key.path=value`, in the order typed.
    pub set: Vec<String>,
    /// `--var name=value`: the value that replaces `${name}`.
    pub var: Vec<String>,
    /// The sections that are not used, whose variables need no value: `labelmill test` replaces the source and publishes
    /// nothing.
    pub unused_sections: &'static [&'static str],
}

/// The location of values that options give, without a pipeline file.
pub(crate) const COMMAND_LINE: &str = "command line";

/// What is wrong with an integer that TOML, whose integers have a sign and 64 bits, does not hold.
const LARGE_INTEGER: &str =
    "an integer of TOML is from -9223372036854775808 to 9223372036854775807";

/// Parses a TOML text.
///
/// # Errors
/// When the text is not TOML; the error names `location` (the file) and the line.
pub fn parse(text: &str, location: &str) -> Result<toml::Table> {
    let whole = text;
    let not_toml = |what: String, byte: Option<usize>| {
        let line = byte.map(|byte| text[..byte].matches('\n').count() + 1);
        Error::spec(what)
            .at(line.map_or_else(|| location.to_owned(), |l| format!("{location}:{l}")))
            .help("the file must be TOML; see `labelmill schema`")
    };
    if let Some(byte) = nesting::too_deep(text) {
        return Err(not_toml("brackets are nested too deep".to_owned(), Some(byte)));
    }
    text.parse().map_err(|e: toml::de::Error| {
        let what = match e.message() {
            text if is_of_large_integer(text) => LARGE_INTEGER.to_owned(),
            text if is_of_unquoted_text(text) => {
                let error =
                    not_toml("text needs quotes".to_owned(), e.span().map(|span| span.start));
                let help = "write it in quotes, such as kind = \"glad\"";
                let line = e.span().and_then(|span| text_of_line(whole, span.start));
                return match line {
                    Some(line) => error.found(format!("`{}`", redacted_location(line))).help(help),
                    None => error.help(help),
                };
            }
            text => text.lines().collect::<Vec<_>>().join(", "),
        };
        not_toml(what, e.span().map(|span| span.start))
    })
}

/// Whether a message of `toml` is about a value that begins with a letter: it takes an `i` for the beginning of `inf`.
fn is_of_unquoted_text(message: &str) -> bool {
    ["string values must be quoted", "invalid float, expected", "invalid boolean"]
        .iter()
        .any(|begin| message.starts_with(begin))
}

/// The value in the line that has this byte.
fn text_of_line(text: &str, byte: usize) -> Option<&str> {
    let start = text.get(..byte)?.rfind('\n').map_or(0, |at| at + 1);
    let line = text[start..].lines().next()?;
    Some(line.split_once('=').map_or(line, |(_, value)| value).trim())
}

/// Whether a message of `toml` is about an integer that has no room in 64 bits, or in 128.
fn is_of_large_integer(message: &str) -> bool {
    message.ends_with(" value was too large")
        || (message.starts_with("invalid type: integer") && message.contains("i128"))
        || message == "integer number overflowed"
}

/// Builds a spec from a table that `schema` describes, with the additions of the command line.
///
/// # Errors
/// Every problem of names, types and ranges at once, with `location` (the file) and its key path.
pub fn from_table<T: DeserializeOwned>(
    mut table: toml::Table,
    location: &str,
    overrides: &Overrides,
    schema: &Value,
) -> Result<T> {
    let mut problems = Problems::default();
    let mut variables = Variables::new(&overrides.var, overrides.unused_sections)?;
    variables.substitute(&mut table, location, &mut problems);
    variables.check_used(&mut problems);
    for assignment in &overrides.set {
        set(&mut table, assignment)?;
    }
    checked(table, location, schema, problems)
}

/// Builds a spec from a table that `schema` describes, unless it has a problem beside those in `problems`.
fn checked<T: DeserializeOwned>(
    mut table: toml::Table,
    location: &str,
    schema: &Value,
    mut problems: Problems,
) -> Result<T> {
    for_each_value(&mut table, |path, value| {
        // JSON cannot hold NaN and infinite numbers: the conversion turns them into nulls.
        if let toml::Value::Float(number) = value
            && !number.is_finite()
        {
            problems.push(
                Problem::new("the number must be finite")
                    .at(format!("{location}: {path}"))
                    .found(number.to_string()),
            );
        }
    });
    let value = serde_json::to_value(&table)
        .map_err(|e| Error::spec(format!("a value has no JSON form: {e}")).at(location))?;
    validate::validate(&value, schema, location, &mut problems);
    // TOML has no null: each of them is a number that is not finite.
    problems.0.retain(|problem| problem.found.as_deref() != Some("`null`"));
    problems.into_result()?;
    serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|e| {
        Error::spec(e.inner().message().to_owned()).at(format!("{location}: {}", e.path()))
    })
}

/// The most parts of a key, more than any key has: sections in sections are walked by recursion.
const MAX_KEYS: usize = 32;

/// Applies one `key.path=value`; the value is TOML where it parses as such, else a string.
fn set(table: &mut toml::Table, assignment: &str) -> Result<()> {
    let usage = |what: &str| {
        Error::spec(what)
            .at("--set")
            .found(format!("`{assignment}`"))
            .help("write --set key.path=value, for example --set model.stop.max_iter=20")
    };
    let (path, text) =
        assignment.split_once('=').ok_or_else(|| usage("a setting needs a value"))?;
    let value = parse(&format!("v = {text}"), "--set")
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| toml::Value::String(text.to_owned()));
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    if keys.len() > MAX_KEYS {
        return Err(usage("no key has so many parts"));
    }
    let has_gap = keys.iter().any(|key| key.is_empty());
    let last = keys.pop().filter(|_| !has_gap).ok_or_else(|| usage("a setting needs a key"))?;
    let mut here = table;
    for key in keys {
        here = here
            .entry(key)
            .or_insert_with(|| toml::Value::Table(toml::Table::new()))
            .as_table_mut()
            .ok_or_else(|| usage(&format!("`{key}` is not a section")))?;
    }
    here.insert(last.to_owned(), value);
    Ok(())
}

/// Builds a value from `key=value` assignments alone, checked against its own schema.
///
/// # Errors
/// Every unknown key, wrong type and value out of range at once.
pub(crate) fn assigned<T: schemars::JsonSchema + serde::de::DeserializeOwned>(
    assignments: impl IntoIterator<Item = impl AsRef<str>>,
    location: &str,
) -> Result<T> {
    let mut table = toml::Table::new();
    for assignment in assignments {
        set(&mut table, assignment.as_ref())?;
    }
    let mut schema = schemars::schema_for!(T).to_value();
    // serde does not support `deny_unknown_fields` on a struct with a flattened one.
    schema["additionalProperties"] = Value::Bool(false);
    checked(table, location, &schema, Problems::default())
}

/// Adds a problem for everything in `value` that `schema` does not allow.
pub(crate) fn check_schema(value: &Value, schema: &Value, location: &str, problems: &mut Problems) {
    validate::validate(value, schema, location, problems);
}

/// The default of every field of a spec type, by key: `labelmill models KIND` prints it next to the field's meaning.
pub(crate) fn defaults<T: Default + serde::Serialize>() -> Value {
    serde_json::to_value(T::default()).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_number_that_no_value_can_be_is_one_problem() {
        let schema =
            serde_json::json!({"properties": {"n": {"type": "integer"}, "x": {"type": "number"}}});
        let error = |text: &str, set: &str| -> Result<(), String> {
            let overrides = Overrides { set: vec![set.to_owned()], ..Overrides::default() };
            let table = parse(text, "p.toml").map_err(|e| e.to_string())?;
            let made: Result<BTreeMap<String, f64>> =
                from_table(table, "p.toml", &overrides, &schema);
            made.map(drop).map_err(|e| e.to_string())
        };
        for (text, number) in [("x = nan", "NaN"), ("x = -inf", "-inf")] {
            let wanted =
                format!("error: the number must be finite\n  where: p.toml: x\n  found: {number}");
            assert_eq!(error(text, "n=1"), Err(wanted));
        }
        let longest = "9".repeat(45);
        for large in
            ["9223372036854775808", "-9223372036854775809", "99999999999999999999", &longest]
        {
            let told = error(&format!("x = 1\nn = {large}"), "x=1.5").unwrap_err();
            let wanted = format!("error: {LARGE_INTEGER}\n  where: p.toml:2\n");
            assert!(told.starts_with(&wanted), "{told}");
            for (key, expected) in [("n", "integer"), ("x", "number")] {
                let told = error("", &format!("{key}={large}")).unwrap_err();
                let what = format!("error: expected {expected}\n");
                assert!(told.starts_with(&what) && told.contains(LARGE_INTEGER), "{told}");
            }
        }
    }

    #[test]
    fn the_first_column_of_a_line_has_the_number_of_its_line() {
        let deep = format!("x = {}", "[\n".repeat(81));
        for (text, location) in [
            ("a = 1\na = 2\n", "p.toml:2\n"),
            ("a = 1\r\n\r\n  a = 2", "p.toml:3\n"),
            (deep.as_str(), "p.toml:81\n"),
        ] {
            let error = parse(text, "p.toml").unwrap_err().to_string();
            assert!(error.contains(location), "{error}");
        }
    }

    #[test]
    fn settings_make_sections_and_keep_types() {
        let mut table = toml::Table::new();
        set(&mut table, "model.stop.max_iter=20").unwrap();
        set(&mut table, "sink.url=out dir").unwrap();
        assert_eq!(table["model"]["stop"]["max_iter"].as_integer(), Some(20));
        assert_eq!(table["sink"]["url"].as_str(), Some("out dir"));
        for gap in ["=1", ".x=1", "x.=1", "model..x=1"] {
            assert!(set(&mut table, gap).unwrap_err().to_string().contains("needs a key"));
        }
    }
}
