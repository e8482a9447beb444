//! Ids and labels from a format without types: text, or integers where every value is the plain form of one.

use arrow::datatypes::Field;

use super::key::{Key, Packed, with_bytes};
use crate::source::files::UNTYPED;

/// Whether the column's text came from a format without types.
pub(super) fn is_untyped(field: &Field) -> bool {
    field.metadata().contains_key(UNTYPED)
}

/// The keys of the integers that stand in these keys, so that 10 comes after 9; `None` where one is no integer, or there
/// are none.
pub(super) fn as_integers(keys: &[u128]) -> Option<Vec<u128>> {
    if keys.is_empty() {
        return None;
    }
    let integer = |word: &u128| with_bytes(Key::Packed(Packed(*word)), plain_integer);
    keys.iter().map(|word| Some(integer(word)?.0)).collect()
}

/// The integer whose plain decimal form these bytes are: "7", "-3", but neither "007" nor "+7" nor "1e3".
fn plain_integer(bytes: &[u8]) -> Option<Packed> {
    let text = std::str::from_utf8(bytes).ok()?;
    let value: i64 = text.parse().ok()?;
    (value.to_string() == text).then(|| Packed::integer(i128::from(value)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::super::interner::Interner;
    use super::*;
    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::DataType;

    #[test]
    fn text_without_a_type_is_integers_only_where_all_of_it_is() {
        let untyped = HashMap::from([(UNTYPED.to_owned(), "true".to_owned())]);
        let field = Field::new("id", DataType::Utf8, true).with_metadata(untyped);
        let sorted = |values: &[&str]| {
            let mut interner = Interner::new(&field);
            let array: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
            interner.intern(&array, &mut Vec::new()).unwrap();
            let (ids, _) = interner.finish(|_| true).unwrap();
            (0..ids.len()).map(|n| ids.text(n)).collect::<Vec<_>>()
        };
        assert_eq!(sorted(&["10", "9", "-1"]), ["-1", "9", "10"]);
        assert_eq!(sorted(&["10", "9", "007"]), ["007", "10", "9"]);
    }
}
