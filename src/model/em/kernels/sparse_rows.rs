//! Sparse posterior rows: the entries that can change a count. The E-step stores them; the M-step gathers them by
//! column.

use std::ops::Range;

use super::gather_buffer::GatherBuffer;
use crate::frame::{Annotations, ITEMS_PER_BLOCK};
use crate::prefetch::prefetch;

/// Smaller posterior entries are not stored: counts are floored at
/// [`MIN_PROBABILITY`](crate::model::numerics::MIN_PROBABILITY), and ten thousand such entries change a count of that
/// size by less than one unit in the last place.
pub(super) const MIN_SIGNIFICANT: f64 = 1e-30;

/// (class, probability)
pub type ClassEntry = (u32, f64);

/// The significant entries of [`ITEMS_PER_BLOCK`] instances.
#[derive(Debug, Clone)]
pub struct SparseRows {
    /// Where the entries of each instance begin, and one past the last.
    first: Vec<u32>,
    entries: Vec<ClassEntry>,
}

impl Default for SparseRows {
    fn default() -> Self {
        Self { first: vec![0], entries: Vec::new() }
    }
}

impl SparseRows {
    /// Removes all rows.
    pub fn clear(&mut self) {
        self.first.truncate(1);
        self.entries.clear();
    }

    /// Adds the row of the next instance.
    #[inline]
    pub fn add(&mut self, row: &[f64]) {
        let entries = row.iter().enumerate().filter(|(_, p)| **p >= MIN_SIGNIFICANT);
        self.entries.extend(entries.map(|(k, p)| (k as u32, *p)));
        self.first.push(self.entries.len() as u32);
    }
}

/// Gathers the entries of the annotations in a range of columns, times their weights, one group for each column.
pub fn gather(
    a: &Annotations,
    columns: Range<usize>,
    blocks: &[&SparseRows],
    buffer: &mut GatherBuffer<ClassEntry>,
) {
    let range = a.column_range(columns.clone());
    buffer.clear();
    let place = |i: u32| (i as usize / ITEMS_PER_BLOCK, i as usize % ITEMS_PER_BLOCK);
    for i in range.instances {
        let (block, row) = place(*i);
        prefetch(&blocks[block].first, row);
    }
    for column in 0..columns.len() {
        for i in &range.instances[range.positions(column)] {
            let (block, row) = place(*i);
            let SparseRows { first, entries } = blocks[block];
            prefetch(entries, first[row] as usize);
            buffer.request(block as u32, first[row], first[row + 1]);
        }
        buffer.end_group();
    }
    buffer.gather(|block| &blocks[block].entries);
    if range.weights.is_ones() {
        return;
    }
    for (entries, weight) in buffer.requested_mut().zip(range.weights.iter()) {
        entries.iter_mut().for_each(|(_, p)| *p *= weight);
    }
}
