//! The JSON Schema of a pipeline file, as `labelmill schema` prints it.

use std::sync::LazyLock;

use schemars::schema_for;
use serde_json::{Value, json};

use super::PipelineSpec;
use crate::model::MODELS;

/// The JSON Schema of a pipeline file: the schema of the structs, with `[model]` spelled out for every kind. It is built
/// once in a process.
#[must_use]
pub fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(build);
    &SCHEMA
}

fn build() -> Value {
    let mut root = schema_for!(PipelineSpec).to_value();
    let mut definitions = serde_json::Map::new();
    let models: Vec<Value> = MODELS
        .iter()
        .map(|model_kind| {
            let mut model = (model_kind.schema)().to_value();
            if let Some(Value::Object(own)) = model.get_mut("$defs").map(Value::take) {
                definitions.extend(own);
            }
            let kind = json!({"const": model_kind.kind, "description": model_kind.summary});
            model["properties"]["kind"] = kind;
            model["required"] = json!(["kind"]);
            if let Some(object) = model.as_object_mut() {
                object.remove("$defs");
                object.remove("$schema");
            }
            model
        })
        .collect();
    if let Some(Value::Object(all)) = root.get_mut("$defs") {
        all.extend(definitions);
        all.insert("ModelSpec".to_owned(), json!({"oneOf": models}));
    }
    root
}
