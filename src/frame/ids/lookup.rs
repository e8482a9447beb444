//! Looks up the numbers of values among known ids.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};

use super::Ids;
use super::interner::{Interner, another_type};
use super::key::{IdType, NULL};
use super::untyped::{integers, is_untyped, marked};
use crate::error::{Error, Result};
use crate::source::{Decimal, value_type};

/// An index of known ids by value, made once where several columns are looked up.
pub struct IdIndex {
    interner: Interner,
    field: Field,
    /// The id number of each interned value.
    position: Vec<u32>,
}

impl Ids {
    /// An index of the ids by value; `column` names them in errors.
    ///
    /// # Errors
    /// When values of their type cannot be ids.
    pub fn index(&self, column: &str) -> Result<IdIndex> {
        let field = self.field(column);
        let mut interner = Interner::new(&field);
        let mut known = Vec::new();
        interner.intern(self.values(), &mut known)?;
        let mut position = vec![0; interner.len()];
        let known = known.iter().zip(0..).filter(|(n, _)| **n != NULL);
        known.for_each(|(n, at)| position[*n as usize] = at);
        Ok(IdIndex { interner, field, position })
    }

    /// The number of the first value that an array of this type cannot hold.
    ///
    /// # Errors
    /// When no value can become one of that type.
    pub fn first_outside(&self, data_type: &DataType) -> Result<Option<usize>> {
        let own = self.values().data_type();
        let is_binary = |t: &DataType| matches!(t, DataType::Binary | DataType::LargeBinary);
        let have_same_values =
            (own.is_string() && data_type.is_string()) || (is_binary(own) && is_binary(data_type));
        // Offsets of the other type may be too narrow for all values together, but not for those of a table's batch.
        if own == data_type || have_same_values {
            return Ok(None);
        }
        let there = cast(self.values(), data_type)?;
        Ok((0..self.len()).find(|n| there.is_null(*n) && self.values().is_valid(*n)))
    }

    fn field(&self, column: &str) -> Field {
        marked(Field::new(column, self.values().data_type().clone(), true), self.is_untyped)
    }

    /// The number of every row of `array`, `None` where it is null or not among these.
    ///
    /// # Errors
    /// When the type of the ids is another one.
    pub fn lookup(&self, column: &str, array: &ArrayRef) -> Result<Vec<Option<u32>>> {
        self.index(column)?.lookup(&Field::new(column, array.data_type().clone(), true), array)
    }
}

impl IdIndex {
    /// The number of each of `ids`, which the annotations have, `None` where it is not among these.
    ///
    /// # Errors
    /// When their type is another one.
    pub fn lookup_ids(&self, ids: &Ids) -> Result<Vec<Option<u32>>> {
        let field = ids.field(self.field.name());
        let types = [&self.field, &field].map(|field| IdType::from_data_type(field.data_type()));
        if types == [IdType::Text, IdType::Integer] && is_untyped(&self.field) {
            // Tables hold both in one column, with one type. Untyped text of integers alone became integers.
            return Err(Error::data(format!("`{}` is text here and integers there", self.field.name()))
                .found("integers in the annotations, and text that is no integer beside them")
                .help("write the ids with one type: integers alone, or text with a letter in the annotations too"));
        }
        if types[0] != types[1] && !self.reads_as_integers(&field) {
            let [here, there] = [&self.field, &field].map(Field::data_type);
            return Err(another_type(field.name(), here, there));
        }
        self.lookup(&field, ids.values())
    }

    /// Whether the column is text that stands for integers.
    fn reads_as_integers(&self, field: &Field) -> bool {
        (is_untyped(field) || is_untyped(&self.field))
            && IdType::from_data_type(field.data_type()) == IdType::Text
            && self.field.data_type().is_integer()
    }

    /// The number of every row of `array`, `None` where it is null or not among these. Text of a format without types
    /// may stand for integers.
    ///
    /// # Errors
    /// When the type of the ids is another one.
    pub fn lookup(&self, field: &Field, array: &ArrayRef) -> Result<Vec<Option<u32>>> {
        let numbers = if self.reads_as_integers(field) {
            let mut numbers = Vec::new();
            // Text that is not an integer is not among these.
            for integers in integers(array)? {
                let integers = cast(&integers, self.field.data_type())?;
                numbers.append(&mut self.interner.find(&integers)?);
            }
            numbers
        } else {
            self.interner.find_other(field, array)?
        };
        let position = |n: u32| (n != NULL).then(|| self.position[n as usize]);
        let mut found: Vec<Option<u32>> = numbers.into_iter().map(position).collect();
        self.find_equal_numbers(array, &mut found)?;
        Ok(found)
    }

    /// Finds text by its number, where it has another spelling here and all values are numbers.
    fn find_equal_numbers(&self, array: &ArrayRef, found: &mut [Option<u32>]) -> Result<()> {
        let is_text = self.interner.is_text() && value_type(array.data_type()).is_string();
        let n = self.interner.len() as u32;
        let number = |n: u32| self.interner.with_text(n, Decimal::parse);
        if !is_text || found.iter().all(Option::is_some) || !(0..n).all(|n| number(n).is_some()) {
            return Ok(());
        }
        let mut of_number = HashMap::new();
        for n in 0..n {
            if let Some(value) = number(n) {
                let position = self.position[n as usize];
                let first = of_number.entry(value).or_insert(position);
                *first = position.min(*first);
            }
        }
        let texts = cast(array, &DataType::LargeUtf8)?;
        for (found, text) in found.iter_mut().zip(texts.as_string::<i64>()) {
            if found.is_none() {
                *found = text.and_then(Decimal::parse).and_then(|v| of_number.get(&v).copied());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int64Array, StringArray, UInt64Array};
    use arrow::datatypes::Int8Type;

    use super::*;

    #[test]
    fn text_is_looked_up_as_integers_whatever_others_stand_beside_it() {
        const ABOVE: u64 = 1 << 63;
        let signed: ArrayRef = Arc::new(Int64Array::from(vec![-5, 7, i64::MAX]));
        let unsigned: ArrayRef = Arc::new(UInt64Array::from(vec![7, ABOVE]));
        let above = ABOVE.to_string();
        let texts = vec![Some("-5"), Some(&above), None, Some("7"), Some("007"), Some("x")];
        let texts: ArrayRef = Arc::new(StringArray::from(texts));
        let field = marked(Field::new("id", DataType::Utf8, true), true);
        for (ids, found) in [
            (signed, [Some(0), None, None, Some(1), None, None]),
            (unsigned, [None, Some(1), None, Some(0), None, None]),
        ] {
            let index = Ids::in_order(ids).index("id").unwrap();
            assert_eq!(index.lookup(&field, &texts).unwrap(), found);
        }
    }

    #[test]
    fn a_null_among_the_known_ids_is_found_by_nothing() {
        let known: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("b")]));
        let index = Ids::in_order(known).index("id").unwrap();
        let field = marked(Field::new("id", DataType::Utf8, true), false);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a")]));
        assert_eq!(index.lookup(&field, &texts).unwrap(), [Some(2), None, Some(0)]);
    }

    /// Text with a type stays text, whether or not all of it is integers.
    #[test]
    fn text_of_integers_in_a_typed_file_has_another_type_than_integers() {
        let annotated = Ids::in_order(Arc::new(Int64Array::from(vec![1])));
        let mut features = Ids::in_order(Arc::new(StringArray::from(vec!["1"])));
        let error = |features: &Ids| {
            features.index("instance_id").unwrap().lookup_ids(&annotated).unwrap_err().to_string()
        };
        let typed = error(&features);
        assert!(typed.contains("found: Utf8 here, Int64 there"), "{typed}");
        features.is_untyped = true;
        let untyped = error(&features);
        assert!(untyped.contains("and text that is no integer beside them"), "{untyped}");
    }

    /// The error named the types the wrong way round.
    #[test]
    fn ids_of_another_type_than_the_annotations_have_are_refused() {
        let annotated = Ids::in_order(Arc::new(StringArray::from(vec!["1"])));
        let features = Ids::in_order(Arc::new(Int64Array::from(vec![1])));
        let error = features.index("instance_id").unwrap().lookup_ids(&annotated).unwrap_err();
        assert!(error.to_string().contains("Int64 here, Utf8 there"), "{error}");
    }

    #[test]
    fn a_value_is_found_at_its_place_whatever_its_length_and_layout() {
        let long = "b".repeat(20);
        let ids = Ids::in_order(Arc::new(StringArray::from(vec!["a", &long, "c"])));
        let wanted: ArrayRef = Arc::new(StringArray::from(vec!["c", &long, "x", "a"]));
        assert_eq!(ids.lookup("id", &wanted).unwrap(), [Some(2), Some(1), None, Some(0)]);
        let dictionary: DictionaryArray<Int8Type> = vec!["z", &long, "c"].into_iter().collect();
        let wanted: ArrayRef = Arc::new(dictionary.slice(1, 2));
        assert_eq!(ids.lookup("id", &wanted).unwrap(), [Some(1), Some(2)]);
        // A slice of one row still holds the whole dictionary.
        let one = Ids::in_order(Arc::new(dictionary.slice(2, 1)));
        assert_eq!(one.lookup("id", &wanted).unwrap(), [None, Some(0)]);
    }
}
