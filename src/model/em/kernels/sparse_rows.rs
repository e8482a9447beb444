//! The entries of posterior rows that can change a count, kept as they pass by and gathered column by column.

use std::ops::Range;

use super::gather_buffer::GatherBuffer;
use crate::frame::{Annotations, BLOCK};
use crate::prefetch::prefetch;

/// Posterior entries below this are not kept: counts are floored at [`MIN_PROBABILITY`](crate::model::numerics::MIN_PROBABILITY), and so many of them
/// as there are annotations change a count of that size by less than rounding does.
pub(super) const LEAST_SIGNIFICANT: f64 = 1e-30;

/// (class, probability)
pub type ClassEntry = (u32, f64);

/// The kept entries of [`BLOCK`] instances.
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

    /// Keeps the row of the next instance.
    #[inline]
    pub fn add(&mut self, row: &[f64]) {
        let entries = row.iter().enumerate().filter(|(_, p)| **p >= LEAST_SIGNIFICANT);
        self.entries.extend(entries.map(|(k, p)| (k as u32, *p)));
        self.first.push(self.entries.len() as u32);
    }
}

/// Gathers the kept entries of the annotations of some neighbouring columns, a group each, times their weights.
pub fn gather(
    a: &Annotations,
    columns: Range<usize>,
    blocks: &[&SparseRows],
    into: &mut GatherBuffer<ClassEntry>,
) {
    let range = a.column_range(columns.clone());
    into.clear();
    let place = |i: u32| (i as usize / BLOCK, i as usize % BLOCK);
    for i in range.instances {
        let (block, row) = place(*i);
        prefetch(&blocks[block].first, row);
    }
    for column in 0..columns.len() {
        for i in &range.instances[range.positions(column)] {
            let (block, row) = place(*i);
            let SparseRows { first, entries } = blocks[block];
            prefetch(entries, first[row] as usize);
            into.want(block as u32, first[row], first[row + 1]);
        }
        into.end_group();
    }
    into.gather(|block| &blocks[block].entries);
    if range.weights.is_ones() {
        return;
    }
    for (entries, weight) in into.wanted_mut().zip(range.weights.iter()) {
        entries.iter_mut().for_each(|(_, p)| *p *= weight);
    }
}
