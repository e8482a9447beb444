//! The keys of a JSON Schema.

use serde_json::Value;

/// Every key that is not a section, with the words that its schema allows.
pub fn leaves(root: &Value, schema: &Value, path: &str, found: &mut Vec<(String, Vec<String>)>) {
    let target = schema["$ref"].as_str().and_then(|r| root.pointer(r.strip_prefix('#')?));
    let schema = target.unwrap_or(schema);
    let keys = schema["properties"].as_object().into_iter().flatten();
    let mut is_leaf = true;
    for (key, item) in
        keys.filter(|(key, _)| *key != "kind" || path.is_empty() || path.contains('.'))
    {
        is_leaf = false;
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        leaves(root, item, &path, found);
    }
    if is_leaf {
        let mut listed = Vec::new();
        words(root, schema, &mut listed);
        found.push((path.to_owned(), listed));
    }
}

/// The words that the schema of a key allows, in all of its alternatives.
fn words(root: &Value, schema: &Value, found: &mut Vec<String>) {
    let target = schema["$ref"].as_str().and_then(|r| root.pointer(r.strip_prefix('#')?));
    let schema = target.unwrap_or(schema);
    let own = schema["enum"].as_array().into_iter().flatten().chain([&schema["const"]]);
    found.extend(own.filter_map(Value::as_str).map(|word| format!("'{word}'")));
    for key in ["oneOf", "anyOf"] {
        let options = schema[key].as_array().into_iter().flatten();
        options.for_each(|option| words(root, option, found));
    }
}
