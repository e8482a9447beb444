//! One type for the ids of all questions, whose tables are written together.

use arrow::compute::cast;
use arrow::datatypes::DataType;

use super::Ids;
use crate::error::Result;

impl Ids {
    /// Gives ids of one column, which are those of several questions, the same type: where the column's type is too
    /// narrow for the ids of one question, they have a wider one.
    ///
    /// # Errors
    /// When ids cannot be cast to the wider type.
    pub(in crate::frame) fn widen_together<'a>(
        all: impl Iterator<Item = &'a mut Self>,
    ) -> Result<()> {
        let mut all: Vec<&mut Self> = all.collect();
        let types = all.iter().map(|ids| ids.values.data_type());
        let Some(widest) = types.max_by_key(|data_type| width(data_type)).cloned() else {
            return Ok(());
        };
        for ids in all.iter_mut().filter(|ids| *ids.values.data_type() != widest) {
            ids.values = cast(&ids.values, &widest)?;
        }
        Ok(())
    }
}

/// The rank of a type among those that ids of one column may have.
fn width(data_type: &DataType) -> u8 {
    match data_type {
        DataType::Dictionary(..) => 0,
        DataType::LargeUtf8 | DataType::LargeBinary => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, DictionaryArray, StringArray};
    use arrow::datatypes::Int8Type;

    use super::*;

    #[test]
    fn ids_of_all_questions_have_the_widest_type_of_any() {
        let texts = ["a", "b"];
        let coded: DictionaryArray<Int8Type> = texts.into_iter().collect();
        let (coded, plain): (ArrayRef, ArrayRef) =
            (Arc::new(coded), Arc::new(StringArray::from(texts.to_vec())));
        let large = cast(&plain, &DataType::LargeUtf8).unwrap();
        for (given, wanted) in [
            (vec![&coded, &coded], &coded),
            (vec![&coded, &plain, &coded], &plain),
            (vec![&plain, &coded, &large], &large),
        ] {
            let mut all: Vec<Ids> =
                given.into_iter().map(|ids| Ids::in_order(Arc::clone(ids))).collect();
            Ids::widen_together(all.iter_mut()).unwrap();
            assert!(all.iter().all(|ids| ids.values() == wanted), "{}", wanted.data_type());
        }
    }
}
