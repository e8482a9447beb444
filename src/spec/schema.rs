//! The parts of a JSON Schema, as schemars generates them, and the locations of its keys.

use std::collections::BTreeSet;

use serde_json::Value;

use super::join;

/// The deepest schema that is searched for a key, of sections and of the alternatives of each.
const MAX_DEPTH: usize = 12;

/// The schema that a schema refers to, or itself.
pub(super) fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
    match target.and_then(|pointer| root.pointer(pointer)) {
        Some(found) => resolve(root, found),
        None => schema,
    }
}

/// The schemas of which a value fulfils one.
pub(super) fn alternatives(schema: &Value) -> Option<Vec<&Value>> {
    let list = schema.get("oneOf").or_else(|| schema.get("anyOf"))?.as_array()?;
    Some(list.iter().collect())
}

/// The words that an alternative allows: its `const` or its `enum`.
pub(super) fn constants(schema: &Value) -> Vec<&str> {
    let one = schema.get("const").and_then(Value::as_str);
    let many = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    one.into_iter().chain(many.filter_map(Value::as_str)).collect()
}

/// The `kind` of a section that is one of several.
pub(super) fn kind_of(schema: &Value) -> Option<&str> {
    schema.pointer("/properties/kind/const").and_then(Value::as_str)
}

/// The types that a value may have.
pub(super) fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The paths of all keys of this name in the sections that `document` has, or may have.
pub(super) fn locations_of_key(key: &str, document: &Value, root: &Value) -> BTreeSet<String> {
    let mut locations = BTreeSet::new();
    Search { key, root, locations: &mut locations }.section(Some(document), root, "", 0);
    locations
}

struct Search<'a> {
    key: &'a str,
    root: &'a Value,
    locations: &'a mut BTreeSet<String>,
}

impl Search<'_> {
    fn section(&mut self, value: Option<&Value>, schema: &Value, path: &str, depth: usize) {
        let schema = resolve(self.root, schema);
        if depth > MAX_DEPTH {
            return;
        }
        let kind = value.and_then(|value| value.get("kind")).and_then(Value::as_str);
        for option in alternatives(schema).unwrap_or_default() {
            let of_option = kind_of(resolve(self.root, option));
            if kind.is_none() || of_option.is_none() || of_option == kind {
                self.section(value, option, path, depth + 1);
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            let (path, value) = (join(path, name), value.and_then(|value| value.get(name)));
            self.section(value, property, &path, depth + 1);
            if name == self.key {
                self.locations.insert(path);
            }
        }
    }
}
