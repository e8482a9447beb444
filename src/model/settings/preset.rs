//! Named settings of a model: labelmill's own, those of the paper, or those of the authors' code.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Spec;

/// The settings that apply to the keys that a model's section leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// The defaults that `labelmill models` lists.
    #[default]
    Labelmill,
    /// The settings of the paper, or of its authors' code where they differ.
    Paper,
    /// The settings of the authors' code, for a kind that has them beside those of its paper: `lia`.
    Code,
}

/// Merges the parameters into the settings of the `preset` that they name. A section `stop` that leaves keys out takes
/// them from the kind's own rule.
///
/// # Errors
/// When they name the authors' code, and the kind has no other settings than those of the paper.
pub(in crate::model) fn apply<S: Spec>(parameters: Value) -> serde_json::Result<Value> {
    let preset = match parameters.get("preset").and_then(Value::as_str) {
        Some("paper") => S::paper(),
        Some("code") if S::code().is_none() && S::paper().is_some() => {
            return Err(serde_json::Error::custom(format!(
                "`{}` has no preset `code`: its preset `paper` has the settings of the code where they differ",
                S::KIND
            )));
        }
        Some("code") => S::code(),
        _ => None,
    };
    match preset {
        Some(settings) => {
            let mut settings = serde_json::to_value(settings)?;
            merge(&mut settings, parameters);
            Ok(settings)
        }
        None => Ok(with_own_stop::<S>(parameters)),
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
