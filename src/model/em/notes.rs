//! The entries of posterior rows that can change a count, noted as they pass by and fetched column by column.

use std::ops::Range;

use super::fetched::Fetched;
use crate::frame::{Annotations, BLOCK};

/// Posterior entries below this are not noted: counts are floored at [`FLOOR`](super::kernel::FLOOR), and so many of them
/// as there are annotations change a count of that size by less than rounding does.
const LEAST_SIGNIFICANT: f64 = 1e-30;

/// (class, probability)
pub type Entry = (u32, f64);

/// What is noted of [`BLOCK`] instances.
#[derive(Default)]
pub struct Notes {
    /// Where the entries of each instance begin, and one past the last.
    first: Vec<u32>,
    entries: Vec<Entry>,
}

impl Notes {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.first.clear();
        self.first.push(0);
        self.entries.clear();
    }

    /// Notes the row of the next instance.
    #[inline]
    pub fn add(&mut self, row: &[f64]) {
        let entries = row.iter().enumerate().filter(|(_, p)| **p >= LEAST_SIGNIFICANT);
        self.entries.extend(entries.map(|(k, p)| (k as u32, *p)));
        self.first.push(self.entries.len() as u32);
    }
}

/// Fetches what `notes(block)` holds behind some neighbouring columns, a group each, weighted by its annotation.
pub fn fetch<'a>(
    a: &Annotations,
    columns: Range<usize>,
    notes: impl Fn(usize) -> &'a Notes,
    into: &mut Fetched<Entry>,
) {
    into.clear();
    for column in columns.clone() {
        for i in a.instances_of(column) {
            let (block, row) = (*i as usize / BLOCK, *i as usize % BLOCK);
            let first = &notes(block).first;
            into.want(block as u32, first[row], first[row + 1]);
        }
        into.end_group();
    }
    into.fetch(|block| &notes(block).entries);
    let weights = columns.filter_map(|column| a.column_weights_of(column)).flatten();
    for (entries, weight) in into.wanted_mut().zip(weights) {
        entries.iter_mut().for_each(|(_, p)| *p *= weight);
    }
}
