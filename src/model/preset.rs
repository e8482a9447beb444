//! Named settings of a model: labelmill's own, or those of the paper.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Spec;

/// The settings that apply to the keys that a model's section leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// The defaults that `labelmill models` lists.
    #[default]
    Labelmill,
    /// The settings of the paper, or of its authors' code where they differ.
    Paper,
}

/// Merges the parameters into the settings of the `preset` that they name.
pub(super) fn apply<S: Spec>(parameters: Value) -> Value {
    let is_paper = parameters.get("preset").is_some_and(|preset| preset == "paper");
    let paper = S::paper().filter(|_| is_paper).and_then(|paper| serde_json::to_value(paper).ok());
    match paper {
        Some(mut settings) => {
            merge(&mut settings, parameters);
            settings
        }
        None => parameters,
    }
}

fn merge(settings: &mut Value, parameters: Value) {
    match (settings, parameters) {
        (Value::Object(settings), Value::Object(parameters)) => {
            for (key, value) in parameters {
                merge(settings.entry(key).or_insert(Value::Null), value);
            }
        }
        (setting, value) => *setting = value,
    }
}
