//! `labelmill models`: the kinds of models, and the parameters of each.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::{MODELS, ModelKind, model_kind};

/// The kind of this name, or all kinds.
///
/// # Errors
/// When there is no such kind.
pub fn models(kind: Option<&str>) -> Result<Vec<&'static ModelKind>> {
    match kind {
        Some(kind) => Ok(vec![model_kind(kind)?]),
        None => Ok(MODELS.clone()),
    }
}

/// Kinds with the JSON Schema and the defaults of their parameters.
#[must_use]
pub fn as_json(kinds: &[&ModelKind]) -> Value {
    let kind = |kind: &&ModelKind| {
        json!({
            "kind": kind.kind, "summary": kind.summary, "source": kind.source,
            "capabilities": kind.capabilities,
            "parameters": (kind.schema)().to_value(), "defaults": (kind.defaults)(),
        })
    };
    kinds.iter().map(kind).collect()
}

/// A parameter of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelParameter {
    /// Its key below `[model]`.
    pub path: String,
    /// Its default.
    pub default: String,
    /// What it does; the values that it can have, where they are few words.
    pub meaning: String,
}

/// Every parameter of a kind, in the order of its schema.
#[must_use]
pub fn parameters(kind: &ModelKind) -> Vec<ModelParameter> {
    let (schema, defaults) = ((kind.schema)().to_value(), (kind.defaults)());
    let mut parameters = Vec::new();
    add_parameters(&mut parameters, &schema, &schema, &defaults, "");
    parameters
}

fn add_parameters(
    parameters: &mut Vec<ModelParameter>,
    root: &Value,
    schema: &Value,
    defaults: &Value,
    path: &str,
) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let reference = property["$ref"].as_str().and_then(|r| r.strip_prefix('#'));
        let target = reference.and_then(|pointer| root.pointer(pointer)).unwrap_or(property);
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if target.get("properties").is_some() {
            add_parameters(parameters, root, target, &defaults[name], &path);
            continue;
        }
        let meaning = property["description"].as_str().or_else(|| target["description"].as_str());
        let words = target["oneOf"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(|word| word["const"].as_str()).collect();
        let choices =
            if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
        let meaning = meaning.unwrap_or_default().replace('\n', " ") + &choices;
        let default = defaults[name].to_string().replace('"', "");
        parameters.push(ModelParameter { path, default, meaning });
    }
}
