//! The size of a row of features, which is known before the row is read.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;

use super::matrix::NumberType;

/// The bytes of a row as it is stored, by the types of its columns and the length of the first row.
pub(super) fn row_bytes(columns: &[ArrayRef]) -> usize {
    let [list] = columns else { return columns.len() * NumberType::F32.size() };
    if list.is_empty() {
        return 0;
    }
    let (width, item) = match list.data_type() {
        DataType::FixedSizeList(item, width) => (width.unsigned_abs() as usize, item),
        DataType::List(item) => {
            (list.as_list::<i32>().value_length(0).unsigned_abs() as usize, item)
        }
        DataType::LargeList(item) => {
            (list.as_list::<i64>().value_length(0).unsigned_abs() as usize, item)
        }
        _ => return NumberType::F32.size(),
    };
    let is_byte = item.data_type() == &DataType::UInt8;
    let number = if is_byte { NumberType::Byte } else { NumberType::F32 };
    width * number.size()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Float64Array, LargeListArray, ListArray};
    use arrow::datatypes::{Float64Type, UInt8Type};

    use super::*;

    #[test]
    fn the_bytes_of_a_row_are_known_from_its_columns() {
        let of_list = |list: ArrayRef| row_bytes(&[list]);
        let bytes = || [Some([1, 2, 3].map(Some))];
        let fixed = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(bytes(), 3);
        let list = ListArray::from_iter_primitive::<UInt8Type, _, _>(bytes());
        let numbers = [Some([1.0, 2.0, 3.0].map(Some))];
        let large = LargeListArray::from_iter_primitive::<Float64Type, _, _>(numbers);
        assert_eq!(of_list(Arc::new(fixed)), 3);
        assert_eq!(of_list(Arc::new(list.slice(0, 0))), 0);
        assert_eq!(of_list(Arc::new(list)), 3);
        assert_eq!(of_list(Arc::new(large)), 12);
        let column: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        assert_eq!(of_list(Arc::clone(&column)), 4);
        assert_eq!(row_bytes(&[Arc::clone(&column), column]), 8);
    }
}
