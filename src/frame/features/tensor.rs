//! What Arrow's canonical extension type `arrow.fixed_shape_tensor` says of a column of lists.

use arrow::datatypes::{Field, Schema};
use serde_json::Value;

use crate::error::{Error, Result};

fn metadata(field: &Field) -> Option<Value> {
    serde_json::from_str(field.metadata().get("ARROW:extension:metadata")?).ok()
}

pub(super) fn tensor_shape(field: &Field) -> Option<Vec<usize>> {
    let shape = &metadata(field)?["shape"];
    shape.as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize)).collect()
}

/// Refuses tensors whose axes are meant in another order than that in which they are stored: read as they are stored,
/// images would be transposed.
pub(in crate::frame) fn refuse_permuted(schema: &Schema) -> Result<()> {
    for field in schema.fields() {
        let permutation = metadata(field).map(|metadata| metadata["permutation"].clone());
        let axes = permutation.as_ref().and_then(Value::as_array);
        let in_order = |axes: &Vec<Value>| (0_u64..).zip(axes).all(|(n, axis)| *axis == n);
        if !axes.is_none_or(in_order) {
            return Err(Error::data(format!(
                "the tensors of the column `{}` are meant with their axes in another order",
                field.name()
            ))
            .found(format!("permutation {}", permutation.unwrap_or_default()))
            .help("write them in the order of their axes, without a permutation"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn tensors_whose_axes_are_permuted_are_refused() {
        for (more, is_refused) in [
            ("", false),
            (",\"permutation\":[0,1,2]", false),
            (",\"permutation\":[0,2,1]", true),
            (",\"permutation\":null", false),
        ] {
            let text = format!("{{\"shape\":[1,3,4]{more}}}");
            let metadata = [("ARROW:extension:metadata".to_owned(), text)].into();
            let field = Field::new("image", DataType::Null, true).with_metadata(metadata);
            assert_eq!(tensor_shape(&field), Some(vec![1, 3, 4]));
            let refused = refuse_permuted(&Schema::new(vec![field])).err().map(|e| e.to_string());
            assert_eq!(refused.is_some(), is_refused, "{more}: {refused:?}");
            assert!(
                refused.is_none_or(|text| text.contains("`image`") && text.contains("[0,2,1]"))
            );
        }
    }
}
