//! The entries of posterior rows that can change a count, noted as they pass by and fetched column by column.

use std::ops::Range;

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

/// Noted entries of neighbouring columns, and room to fetch the next.
#[derive(Default)]
pub struct Fetched {
    /// (block, begin, end) of each annotation.
    places: Vec<(u32, u32, u32)>,
    /// Weighted by their annotation.
    entries: Vec<Entry>,
    /// Where the entries of each column end.
    ends: Vec<usize>,
}

impl Fetched {
    /// Fetches what `notes(block)` holds behind some neighbouring columns.
    ///
    /// First where it is, then what it is: taken one by one, each annotation would wait for memory twice.
    pub fn fetch<'a>(
        &mut self,
        a: &Annotations,
        columns: Range<usize>,
        notes: impl Fn(usize) -> &'a Notes,
    ) {
        self.places.clear();
        self.ends.clear();
        let mut total = 0;
        for column in columns.clone() {
            for i in a.instances_of(column) {
                let (block, row) = (*i as usize / BLOCK, *i as usize % BLOCK);
                let first = &notes(block).first;
                let (begin, end) = (first[row], first[row + 1]);
                total += (end - begin) as usize;
                self.places.push((block as u32, begin, end));
            }
            self.ends.push(total);
        }
        self.entries.resize(total, (0, 0.0));
        let mut rest = &mut self.entries[..];
        for (block, begin, end) in &self.places {
            let noted = &notes(*block as usize).entries[*begin as usize..*end as usize];
            let (own, others) = rest.split_at_mut(noted.len());
            own.iter_mut().zip(noted).for_each(|(to, from)| *to = *from);
            rest = others;
        }
        self.weigh(a, columns);
    }

    fn weigh(&mut self, a: &Annotations, columns: Range<usize>) {
        let weights = columns.filter_map(|column| a.column_weights_of(column)).flatten();
        let mut rest = &mut self.entries[..];
        for ((_, begin, end), weight) in self.places.iter().zip(weights) {
            let (own, others) = rest.split_at_mut((end - begin) as usize);
            own.iter_mut().for_each(|(_, p)| *p *= weight);
            rest = others;
        }
    }

    /// The entries of each column, in the order of its instances.
    pub fn columns(&self) -> impl Iterator<Item = &[Entry]> {
        let begins = std::iter::once(&0).chain(&self.ends);
        begins.zip(&self.ends).map(|(begin, end)| &self.entries[*begin..*end])
    }
}
