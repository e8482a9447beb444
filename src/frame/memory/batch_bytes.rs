//! The memory of record batches, several of which may be slices of one.

use std::collections::HashSet;

use arrow::array::ArrayData;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;

/// The estimated bytes of batches in flight, each of which counts as the largest so far.
pub(in crate::frame) struct BytesInFlight {
    at_once: usize,
    largest: usize,
}

impl BytesInFlight {
    /// For `at_once` batches in memory.
    pub(in crate::frame) fn new(at_once: usize) -> Self {
        Self { at_once, largest: 0 }
    }

    /// The bytes with these batches at hand. Buffers that hold more than the rows of these batches are added once.
    pub(in crate::frame) fn with(&mut self, at_hand: &[RecordBatch]) -> usize {
        let (mut held, mut of_rows) = (HeldBuffers::default(), 0);
        for batch in at_hand {
            let bytes = bytes_of_rows(batch);
            self.largest = self.largest.max(bytes);
            of_rows += bytes;
            held.add(batch);
        }
        let beside = held.bytes().saturating_sub(of_rows);
        self.largest.saturating_mul(self.at_once).saturating_add(beside)
    }
}

/// Bytes of a batch's own rows, without the other rows in buffers that it shares with other batches.
fn bytes_of_rows(batch: &RecordBatch) -> usize {
    let of = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8View => bytes_of_views(column, column.as_string_view().views()),
        DataType::BinaryView => bytes_of_views(column, column.as_binary_view().views()),
        _ => column
            .to_data()
            .get_slice_memory_size()
            .unwrap_or_else(|_| column.get_array_memory_size()),
    };
    batch.columns().iter().map(of).sum()
}

/// The smaller of the buffers' size and the sum of the rows' values: rows may share a value, and buffers may hold
/// values of other batches.
fn bytes_of_views(column: &ArrayRef, views: &[u128]) -> usize {
    // The low 32 bits of a view are the length of its value.
    let values: usize = views.iter().map(|view| *view as u32 as usize).sum();
    column.get_array_memory_size().min(size_of_val(views) + values)
}

/// The buffers of batches that are held together, each counted once.
#[derive(Default)]
pub(in crate::frame) struct HeldBuffers {
    seen: HashSet<usize>,
    bytes: usize,
}

impl HeldBuffers {
    pub(in crate::frame) fn add(&mut self, batch: &RecordBatch) {
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

    pub(in crate::frame) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray, StringViewArray, UInt32Array};
    use arrow::compute::take;

    use super::*;

    #[test]
    fn views_are_counted_by_what_their_rows_point_at() {
        let texts = (0..1000).map(|n| format!("a text that is too long to be in a view {n:04}"));
        let column = Arc::new(StringViewArray::from_iter_values(texts)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("t", column)]).unwrap();
        let (part, next) = (batch.slice(100, 100), batch.slice(200, 100));
        // Sixteen bytes a view, forty-four a text.
        assert_eq!(bytes_of_rows(&part), 100 * (16 + 44));
        let one = Arc::new(StringViewArray::from(vec!["z".repeat(100_000).as_str()])) as ArrayRef;
        let same = take(&one, &UInt32Array::from(vec![0; 1000]), None).unwrap();
        let same = RecordBatch::try_from_iter([("t", same)]).unwrap();
        assert!(bytes_of_rows(&same) < 150_000, "{}", bytes_of_rows(&same));
        // Two parts hold the buffers of the whole, once.
        let mut in_flight = BytesInFlight::new(20);
        let bytes = in_flight.with(&[part.clone(), next]);
        assert!((6_000 * 20 + 40_000..6_000 * 20 + 80_000).contains(&bytes), "{bytes}");
        // The batches that follow count as the largest so far.
        assert!(in_flight.with(&[part.slice(0, 10)]) >= 6_000 * 20);
    }

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
