//! Dictionary arrays: each value is keyed once a batch.

use arrow::array::{Array, ArrayRef, DictionaryArray, UInt64Array};
use arrow::compute::take;
use arrow::datatypes::ArrowDictionaryKeyType;
use arrow::downcast_dictionary_array;

use crate::error::Result;

/// The values of a dictionary, and each row's place among them, `None` where it is null.
pub type ValuesAndRows = (ArrayRef, Vec<Option<usize>>);

/// For a dictionary, the values that rows have, in the order in which they first come: a part of an array still holds the
/// dictionary of all.
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
    let (mut places, mut order) = (vec![None; values.len()], Vec::new());
    for value in rows.iter_mut().flatten() {
        *value = *places[*value].get_or_insert_with(|| {
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
