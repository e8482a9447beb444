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

/// Merges the parameters into the settings of the `preset` that they name. A section `stop` that leaves keys out takes
/// them from the kind's own rule.
pub(super) fn apply<S: Spec>(parameters: Value) -> Value {
    let is_paper = parameters.get("preset").is_some_and(|preset| preset == "paper");
    let paper = S::paper().filter(|_| is_paper).and_then(|paper| serde_json::to_value(paper).ok());
    match paper {
        Some(mut settings) => {
            merge(&mut settings, parameters);
            settings
        }
        None => with_own_stop::<S>(parameters),
    }
}

/// # Why
/// The keys that a section leaves out are those of any `StopRule`: `stop.max_iter = 1000` alone would also raise the
/// tolerance of a kind whose own is smaller, a thousandfold.
fn with_own_stop<S: Spec>(mut parameters: Value) -> Value {
    if let Some(stop) = parameters.get_mut("stop").filter(|stop| stop.is_object()) {
        let mut defaults = crate::spec::defaults::<S>();
        if let Some(own) = defaults.get_mut("stop").filter(|own| own.is_object()) {
            merge(own, stop.take());
            *stop = own.take();
        }
    }
    parameters
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
