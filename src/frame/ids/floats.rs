//! Floats as ids and labels.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, AsArray};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};

/// Floats with NaN and infinities as nulls and with -0.0 as 0.0; other types unchanged. NaN cannot be an id, because it
/// is not equal to itself.
pub(in crate::frame) fn finite(array: &ArrayRef) -> ArrayRef {
    macro_rules! finite {
        ($type:ty) => {
            Arc::new(array.as_primitive::<$type>().unary_opt::<_, $type>(|v| {
                v.is_finite().then(|| v.add_wrapping(ArrowNativeTypeOp::ZERO))
            }))
        };
    }
    match array.data_type() {
        DataType::Float16 => finite!(Float16Type),
        DataType::Float32 => finite!(Float32Type),
        DataType::Float64 => finite!(Float64Type),
        _ => Arc::clone(array),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::super::{Interner, NULL};
    use super::*;

    #[test]
    fn a_float_that_is_not_finite_is_not_an_id_and_there_is_one_zero() {
        let values = vec![1.5, f64::NAN, -0.0, f64::INFINITY, 0.0, f64::NEG_INFINITY];
        let mut interner = Interner::new(&Field::new("id", DataType::Float64, true));
        let mut numbers = Vec::new();
        let array = arrow::array::Float64Array::from(values);
        interner.intern(&(Arc::new(array) as ArrayRef), &mut numbers).unwrap();
        assert_eq!(numbers, [0, NULL, 1, NULL, 1, NULL]);
        let (ids, _) = interner.finish(|_| true).unwrap();
        assert_eq!([ids.text(0), ids.text(1)], ["0.0", "1.5"]);
    }
}
