//! The memory of batches, of which several may be parts of one.

use std::collections::HashSet;

use arrow::array::ArrayData;
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;

/// Bytes of a batch's own rows: what it shares with its neighbours is not counted for each of them.
pub(super) fn bytes_of_rows(batch: &RecordBatch) -> usize {
    let of = |column: &ArrayRef| match column.data_type() {
        // Where the text of views lies is not by row.
        DataType::Utf8View | DataType::BinaryView => column.get_array_memory_size(),
        _ => column
            .to_data()
            .get_slice_memory_size()
            .unwrap_or_else(|_| column.get_array_memory_size()),
    };
    batch.columns().iter().map(of).sum()
}

/// The buffers of batches that are held together, each counted once.
#[derive(Default)]
pub(super) struct HeldBuffers {
    seen: HashSet<usize>,
    bytes: usize,
}

impl HeldBuffers {
    pub(super) fn add(&mut self, batch: &RecordBatch) {
        batch.columns().iter().for_each(|column| self.add_array(&column.to_data()));
    }

    fn add_array(&mut self, data: &ArrayData) {
        data.buffers().iter().for_each(|buffer| self.add_buffer(buffer));
        data.nulls().into_iter().for_each(|nulls| self.add_buffer(nulls.buffer()));
        data.child_data().iter().for_each(|child| self.add_array(child));
    }

    fn add_buffer(&mut self, buffer: &Buffer) {
        if self.seen.insert(buffer.data_ptr().as_ptr() as usize) {
            self.bytes = self.bytes.saturating_add(buffer.capacity());
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn parts_of_a_batch_are_counted_once_together_and_by_their_rows_alone() {
        let columns = [
            ("i", Arc::new(Int64Array::from_iter_values(0..1000)) as ArrayRef),
            ("t", Arc::new(StringArray::from(vec!["four"; 1000])) as ArrayRef),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let (mut whole, mut parts) = (HeldBuffers::default(), HeldBuffers::default());
        whole.add(&batch);
        (0..10).for_each(|n| parts.add(&batch.slice(n * 100, 100)));
        assert_eq!(whole.bytes(), parts.bytes());
        assert!((16_000..40_000).contains(&whole.bytes()), "{}", whole.bytes());
        // Eight bytes a number; four bytes a text, and 101 offsets.
        assert_eq!(bytes_of_rows(&batch.slice(100, 100)), 800 + 400 + 404);
    }
}
