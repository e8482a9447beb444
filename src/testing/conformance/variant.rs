//! Parameters of a kind of model away from its defaults, made from its schema.

use serde_json::{Number, Value};

use crate::model::ModelKind;

/// Parameters that keep their default, and why.
const UNVARIED: [(&str, &str); 9] = [
    ("preset", "only the start of parameters that are not given"),
    ("initialise", "its other value needs trusted instances, which a crowd of the checks may lack"),
    (
        "ability_mean",
        "farther out, the maximum of GLAD is flatter than the tolerance of its search",
    ),
    ("fine_tune", "it needs trusted instances, as initialise"),
    ("hold_back_gold", "as fine_tune"),
    ("init_from_gold", "as fine_tune"),
    ("ability_variance", "as ability_mean"),
    ("easiness_mean", "as ability_mean"),
    ("easiness_variance", "as ability_mean"),
];

/// Another value for each parameter that belongs to no section: twice a number, or half of it where twice is too large;
/// 0.5 or 1 instead of 0; the other of two flags; the first other word.
pub(super) fn parameters(kind: &ModelKind) -> Value {
    let schema = (kind.schema)().to_value();
    let mut parameters = (kind.defaults)();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if UNVARIED.iter().any(|(name, _)| name == key) {
            continue;
        }
        let parameter = &mut parameters[key];
        *parameter = match &*parameter {
            Value::Bool(flag) => (!flag).into(),
            Value::Number(number) => other_number(number, property),
            Value::String(word) => other_word(word, &schema, property),
            _ => continue,
        };
    }
    parameters
}

fn other_number(number: &Number, property: &Value) -> Value {
    let max = property["maximum"].as_f64().unwrap_or(f64::INFINITY);
    if let Some(n) = number.as_u64() {
        let other = if n == 0 { 1 } else { 2 * n };
        return if other as f64 <= max { other } else { n / 2 }.into();
    }
    let x = number.as_f64().unwrap_or_default();
    let other = if x == 0.0 { 0.5 } else { 2.0 * x };
    if other <= max { other } else { x / 2.0 }.into()
}

/// The first word of the schema that is not this one; the word itself where the schema lists none.
fn other_word(word: &str, schema: &Value, property: &Value) -> Value {
    let named = property["$ref"].as_str().and_then(|path| schema.pointer(path.strip_prefix('#')?));
    let property = named.unwrap_or(property);
    let listed = property["enum"].as_array().into_iter().flatten();
    let with_features = property["oneOf"].as_array().into_iter().flatten().map(|one| &one["const"]);
    let mut words = listed.chain(with_features).filter_map(Value::as_str);
    words.find(|other| *other != word).unwrap_or(word).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::model_kind;

    #[test]
    fn a_variant_differs_in_every_parameter_that_belongs_to_no_section() {
        let of = |kind: &str| parameters(model_kind(kind).unwrap());
        let one_coin = of("one_coin");
        for (key, want) in [("prior_right", 0.5), ("prior_wrong", 0.5), ("restarts", 1.0)] {
            assert_eq!(one_coin[key].as_f64(), Some(want), "{key}");
        }
        assert_eq!(one_coin["fixed_prior"], false);
        assert_eq!(of("ibcc")["prior_diagonal"], 8.0);
        assert_eq!(of("majority_vote")["vote"], "hard");
    }
}
