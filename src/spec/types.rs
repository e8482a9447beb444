//! The types of the values of TOML and JSON, and those that a schema allows.

use serde_json::Value;

use super::schema::types;

pub(super) fn is_list_of_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(Value::is_string))
}

/// Whether a text is an integer that has no room in 64 bits.
pub(super) fn is_large_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits && text.parse::<i64>().is_err()
}

/// The text of a date or time of TOML, which has no form of its own in JSON.
pub(super) fn date(value: &Value) -> Option<&str> {
    value.get("$__toml_private_datetime")?.as_str()
}

pub(super) fn type_fits(value: &Value, schema: &Value) -> bool {
    let types = types(schema);
    types.is_empty()
        || types.iter().any(|t| match *t {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "null" => value.is_null(),
            _ => true,
        })
}

pub(super) fn type_name(schema: &Value) -> Option<String> {
    let names: Vec<&str> = types(schema).into_iter().filter(|t| *t != "null").collect();
    (!names.is_empty()).then(|| names.join(" or ").replace("object", "section"))
}
