//! Tells a key that only other kinds of a section have from one that no kind has.

use serde_json::{Map, Value};

use super::join;
use super::schema::locations_of_key;
use super::validate::Validator;
use crate::error::{Problem, nearest, offenders};

impl Validator<'_> {
    /// Reports the keys that other kinds have and this one has not; returns the section without them.
    pub(super) fn of_kind(
        &mut self,
        section: &Map<String, Value>,
        option: &Value,
        kind: &str,
        by_kind: &[(&str, &Value)],
        path: &str,
    ) -> Value {
        let mut section = section.clone();
        let has = |option: &Value, key: &str| {
            option.pointer("/properties").is_some_and(|of| of.get(key).is_some())
        };
        let own: Vec<&str> = option
            .get("properties")
            .and_then(Value::as_object)
            .map(|of| of.keys().map(String::as_str).filter(|key| *key != "kind").collect())
            .unwrap_or_default();
        section.retain(|key, _| {
            let others = by_kind.iter().filter(|(_, other)| has(other, key)).map(|(name, _)| name);
            let others: Vec<_> = others.collect();
            // The key may be a slip of one that this kind has, or belong to a section of it.
            let is_near = nearest(key, own.iter().copied()).is_some();
            let is_below = locations_of_key(key, self.document, self.root).iter().any(|location| {
                location.starts_with(&format!("{path}.")) && *location != join(path, key)
            });
            if has(option, key) || others.is_empty() || is_near || is_below {
                return true;
            }
            let what = format!("unknown key `{key}`: it is no parameter of `{kind}`");
            let help = format!(
                "leave it out; `{kind}` has {}; `{key}` is of {}",
                if own.is_empty() { "no parameters".to_owned() } else { own.join(", ") },
                offenders(&others)
            );
            self.report(&join(path, key), Problem::new(what).help(help));
            false
        });
        Value::Object(section)
    }
}
