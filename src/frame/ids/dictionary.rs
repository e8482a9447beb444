//! Dictionary arrays: each value gets its key once per batch.

use arrow::array::{Array, ArrayRef, DictionaryArray, UInt64Array};
use arrow::compute::take;
use arrow::datatypes::ArrowDictionaryKeyType;
use arrow::downcast_dictionary_array;

use crate::error::Result;

/// The values of a dictionary, and the index of each row's value, `None` where the row is null.
pub type ValuesAndRows = (ArrayRef, Vec<Option<usize>>);

/// For a dictionary, the values that its rows use, in the order of their first use: a slice of an array still holds the
/// whole dictionary. `None` for any other array.
///
/// # Errors
/// When the values cannot be taken.
pub fn dictionary(array: &ArrayRef) -> Result<Option<ValuesAndRows>> {
    fn rows<K: ArrowDictionaryKeyType>(array: &DictionaryArray<K>) -> Vec<Option<usize>> {
        array.keys_iter().collect()
    }
    let (values, mut rows) = downcast_dictionary_array!(
        array => (array.values(), rows(array)),
        _ => return Ok(None)
    );
    let (mut positions, mut order) = (vec![None; values.len()], Vec::new());
    for value in rows.iter_mut().flatten() {
        *value = *positions[*value].get_or_insert_with(|| {
            order.push(*value as u64);
            order.len() - 1
        });
    }
    Ok(Some((take(values, &UInt64Array::from(order), None)?, rows)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::StringArray;
    use arrow::datatypes::{Field, Int8Type};

    use super::super::{Interner, NULL};
    use super::*;

    #[test]
    fn a_dictionary_is_the_same_ids_as_its_values() {
        let dictionary: DictionaryArray<Int8Type> =
            vec![Some("b"), None, Some("a")].into_iter().collect();
        let mut interner = Interner::new(&Field::new("id", dictionary.data_type().clone(), true));
        let mut numbers = Vec::new();
        interner.intern(&(Arc::new(dictionary) as ArrayRef), &mut numbers).unwrap();
        let plain = Arc::new(StringArray::from(vec!["a"])) as ArrayRef;
        interner.intern(&plain, &mut numbers).unwrap();
        assert_eq!(numbers, [0, NULL, 1, 1]);
    }
}
