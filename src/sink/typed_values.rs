//! Values with their type, as JSON: the classes of a saved model.
//!
//! ```text
//! {"type": "Int64", "values": ["7", "8"]}
//! {"type": "Binary", "encoding": "hex", "values": ["00ff"]}     bytes need not be text
//! ```

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::source::value_type;

/// The encoding of bytes.
const HEX: &str = "hex";

/// Values with their type, as JSON.
pub(super) fn to_json(values: &ArrayRef) -> Result<Value> {
    let data_type = values.data_type();
    if value_type(data_type).is_binary() {
        // Arrow shows bytes as hexadecimal digits.
        let digits = (0..values.len()).map(|n| array_value_to_string(values, n));
        let digits: Vec<String> = digits.collect::<Result<_, _>>()?;
        return Ok(json!({"type": data_type.to_string(), "encoding": HEX, "values": digits}));
    }
    let text = cast(values, &DataType::Utf8)?;
    let text: Vec<Option<&str>> = text.as_string::<i32>().iter().collect();
    Ok(json!({"type": data_type.to_string(), "values": text}))
}

/// The values of [`to_json`]; `location` is the file, for errors.
pub(super) fn from_json(value: &Value, location: &str) -> Result<ArrayRef> {
    let damaged = || Error::data("the model's classes cannot be read").at(location);
    let name = value["type"].as_str().ok_or_else(damaged)?;
    // The parser is recursive, and no type of ids has a long name.
    let name = Some(name).filter(|name| name.len() < 128).ok_or_else(damaged)?;
    let data_type = DataType::from_str(name).map_err(|_| damaged())?;
    let values = value["values"].as_array().ok_or_else(damaged)?;
    let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
    let texts = texts.ok_or_else(damaged)?;
    let mut distinct = texts.clone();
    distinct.sort_unstable();
    if let Some([twice, _]) = distinct.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(damaged().found(format!("`{twice}` twice")));
    }
    // Older files give bytes as text.
    let plain: ArrayRef = if value["encoding"] == HEX {
        let bytes: Option<Vec<Vec<u8>>> = texts.into_iter().map(bytes_of).collect();
        let bytes = bytes.ok_or_else(damaged)?;
        // Checked before the cast, which makes room for values of the type's width.
        if bytes.is_empty() || !bytes.iter().all(|bytes| fits(&data_type, bytes)) {
            return Err(damaged().found(format!("bytes that are no {data_type}")));
        }
        Arc::new(BinaryArray::from_iter_values(bytes))
    } else {
        Arc::new(StringArray::from(texts))
    };
    let typed = cast(&plain, &data_type)?;
    if typed.null_count() > 0 {
        return Err(damaged().found(format!("a value that is no {data_type}")));
    }
    Ok(typed)
}

/// Whether bytes have the width of a type; most types have none.
fn fits(data_type: &DataType, bytes: &[u8]) -> bool {
    match value_type(data_type) {
        DataType::FixedSizeBinary(width) => usize::try_from(*width) == Ok(bytes.len()),
        other => other.is_binary(),
    }
}

/// The bytes of hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Vec<u8> = digits.chars().map(digit).collect::<Option<_>>()?;
    match digits.as_chunks::<2>() {
        (pairs, []) => Some(pairs.iter().map(|[high, low]| 16 * high + low).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryViewArray, FixedSizeBinaryArray, Int64Array, LargeBinaryArray};

    use super::*;

    /// A run whose classes were bytes that are not text lost its classifier after the fit.
    #[test]
    fn values_of_any_type_come_back_with_their_type() {
        let bytes: [&[u8]; 3] = [b"", b"\x00\xff", b"text"];
        let uuids = [[0_u8; 16], [0xfe; 16]];
        let uuids: ArrayRef =
            Arc::new(FixedSizeBinaryArray::try_from_iter(uuids.into_iter()).unwrap());
        let dictionary =
            DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::FixedSizeBinary(16)));
        let all: [ArrayRef; 8] = [
            cast(&uuids, &dictionary).unwrap(),
            uuids,
            Arc::new(BinaryArray::from_iter_values(bytes)),
            Arc::new(LargeBinaryArray::from_iter_values(bytes)),
            Arc::new(BinaryViewArray::from_iter_values(bytes)),
            Arc::new(StringArray::from(vec!["b", "a"])),
            Arc::new(Int64Array::from(vec![-1, 7])),
            Arc::new(StringArray::from(Vec::<&str>::new())),
        ];
        for values in all {
            let read = from_json(&to_json(&values).unwrap(), "model.json").unwrap();
            assert_eq!(&read, &values);
        }
    }

    #[test]
    fn bytes_of_older_files_are_text() {
        let older = json!({"type": "Binary", "values": ["ab"]});
        let read = from_json(&older, "model.json").unwrap();
        assert_eq!(read.as_binary::<i32>().value(0), b"ab");
    }

    #[test]
    fn values_that_are_not_of_their_type_are_refused() {
        for (name, encoding, text) in [
            ("Binary", HEX, "0"),
            ("Binary", HEX, "0g"),
            ("Binary", HEX, "+1"),
            ("FixedSizeBinary(2)", HEX, "00"),
            ("Dictionary(Int8, FixedSizeBinary(2147483647))", HEX, "00"),
            ("Int64", HEX, "00"),
            ("Int64", "", "x"),
        ] {
            let value = json!({"type": name, "encoding": encoding, "values": [text]});
            let error = from_json(&value, "model.json").unwrap_err();
            assert_eq!(error.exit_code(), 3);
            let error = error.to_string();
            assert!(error.contains("the model's classes cannot be read"), "{name} {text}: {error}");
            assert!(error.contains("where: model.json"), "{error}");
        }
    }
}
