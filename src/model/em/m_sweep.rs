//! The M-step's sweep: expected counts of every confusion column.

use std::ops::Range;

use rayon::prelude::*;

use super::kernel::for_classes;
use crate::frame::{Annotations, BLOCK, split_by};
use crate::model::fitted::Posterior;

/// The M-step's sweep, with what it needs between iterations.
///
/// # Why
/// Where annotations are many times the columns, posterior rows are read in order and added to tables of counts that
/// fit the cache, one for each of a fixed number of instance ranges; the tables are then summed in order. Else every
/// column gathers its own posterior rows, of which only the few entries that can change a count are kept at hand: with
/// fifty classes that is a twentieth of the memory to wait for. Which way is taken depends on the data alone.
pub struct MSweep {
    ranges: usize,
    tables: Vec<f64>,
    significant: Vec<Significant>,
}

/// Posterior entries below this are not gathered: counts are floored at [`FLOOR`](super::kernel::FLOOR), and so many of
/// them as there are annotations change a count of that size by less than rounding does.
const LEAST_SIGNIFICANT: f64 = 1e-30;

/// The significant posterior entries of a block of instances.
#[derive(Default)]
struct Significant {
    /// Where the entries of each instance begin, and one past the last.
    first: Vec<u32>,
    /// (class, probability)
    entries: Vec<(u32, f64)>,
}

/// A range's table is worth its zeroing and summing when so many annotations are added to each of its columns.
const ANNOTATIONS_PER_CELL: usize = 12;

/// More ranges than this keep no more processors busy.
const MOST_RANGES: usize = 32;

/// Fewer ranges than this leave processors idle.
const LEAST_RANGES: usize = 4;

/// Annotators in one unit of parallel work: few enough to share out evenly, many enough to be worth handing over.
fn annotators_at_once(a: &Annotations) -> usize {
    (a.dims().annotators / 512).clamp(8, 4096)
}

impl MSweep {
    /// Chooses the way for these annotations, and allocates once for all iterations.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let worth = a.len() / (ANNOTATIONS_PER_CELL * a.n_columns()).max(1);
        let ranges = if worth < LEAST_RANGES { 0 } else { worth.min(MOST_RANGES) };
        Self::by_ranges(a, ranges)
    }

    /// By so many range tables; with none, every column gathers.
    fn by_ranges(a: &Annotations, ranges: usize) -> Self {
        let blocks = if ranges == 0 { a.dims().instances.div_ceil(BLOCK) } else { 0 };
        Self {
            ranges,
            tables: vec![0.0; ranges * a.n_columns() * a.dims().classes],
            significant: (0..blocks).map(|_| Significant::default()).collect(),
        }
    }

    /// Sums the posterior rows behind every column into `columns`, `[column, class]`, then hands each annotator's to
    /// `finish(annotator, counts, scratch)`, which may turn them into probabilities in place. `scratch` makes what a
    /// worker keeps between annotators.
    pub fn run<S>(
        &mut self,
        a: &Annotations,
        t: &Posterior,
        columns: &mut [f64],
        scratch: impl Fn() -> S + Sync + Send,
        finish: impl Fn(usize, &mut [f64], &mut S) + Sync + Send,
    ) {
        let n_classes = a.dims().classes;
        self.fill_tables(a, t);
        self.find_significant(t);
        let (tables, significant) = (&self.tables, &self.significant);
        let cells = columns.len();
        let offsets: Vec<usize> = a.column_offsets().iter().map(|c| c * n_classes).collect();
        let parts = split_by(columns, &offsets, annotators_at_once(a));
        parts.into_par_iter().for_each_init(scratch, |scratch, (annotators, mut columns)| {
            for r in annotators {
                let (own, rest) = columns.split_at_mut(offsets[r + 1] - offsets[r]);
                if tables.is_empty() {
                    gather(a, significant, a.columns_of(r).start, own);
                } else {
                    add_tables(tables, cells, offsets[r], own);
                }
                finish(r, own, scratch);
                columns = rest;
            }
        });
    }

    fn fill_tables(&mut self, a: &Annotations, t: &Posterior) {
        let (n_classes, ranges) = (a.dims().classes, self.ranges);
        let cells = (a.n_columns() * n_classes).max(1);
        self.tables.par_chunks_exact_mut(cells).enumerate().for_each(|(range, table)| {
            let bound = |n: usize| n * t.len() / ranges;
            table.fill(0.0);
            for_classes!(n_classes, K => scatter::<K>(a, t, bound(range)..bound(range + 1), table));
        });
    }

    fn find_significant(&mut self, t: &Posterior) {
        let n_classes = t.n_classes().max(1);
        let rows = t.values().par_chunks(BLOCK * n_classes);
        self.significant.par_iter_mut().zip(rows).for_each(|(block, rows)| {
            block.first.clear();
            block.entries.clear();
            for row in rows.chunks_exact(n_classes) {
                block.first.push(block.entries.len() as u32);
                let entries = row.iter().enumerate().filter(|(_, p)| **p >= LEAST_SIGNIFICANT);
                block.entries.extend(entries.map(|(k, p)| (k as u32, *p)));
            }
            block.first.push(block.entries.len() as u32);
        });
    }
}

/// Adds the posterior row of every instance of a range to the columns said of it.
fn scatter<const K: usize>(a: &Annotations, t: &Posterior, range: Range<usize>, table: &mut [f64]) {
    for i in range {
        let row = t.row(i);
        let weights = a.weights_of(i);
        match (weights, <&[f64; K]>::try_from(row)) {
            (None, Ok(row)) if K > 0 => {
                let columns = table.as_chunks_mut::<K>().0;
                for column in a.said_of(i) {
                    let counts = &mut columns[*column as usize];
                    for k in 0..K {
                        counts[k] += row[k];
                    }
                }
            }
            _ => {
                for (at, column) in a.said_of(i).iter().enumerate() {
                    let weight = weights.map_or(1.0, |w| w[at]);
                    let start = *column as usize * row.len();
                    let counts = &mut table[start..start + row.len()];
                    counts.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
                }
            }
        }
    }
}

/// `own` = the sum over the tables of the cells from `first` on, in the order of the tables.
fn add_tables(tables: &[f64], cells: usize, first: usize, own: &mut [f64]) {
    own.fill(0.0);
    for table in tables.chunks_exact(cells) {
        own.iter_mut().zip(&table[first..]).for_each(|(c, p)| *c += p);
    }
}

/// `own[column][class]` = the sum of the significant posterior entries behind the columns from `first` on.
fn gather(a: &Annotations, significant: &[Significant], first: usize, own: &mut [f64]) {
    let n_classes = a.dims().classes.max(1);
    for (offset, counts) in own.chunks_exact_mut(n_classes).enumerate() {
        counts.fill(0.0);
        let weights = a.column_weights_of(first + offset);
        for (at, i) in a.instances_of(first + offset).iter().enumerate() {
            let weight = weights.map_or(1.0, |w| w[at]);
            let (block, row) = (&significant[*i as usize / BLOCK], *i as usize % BLOCK);
            for (class, p) in
                &block.entries[block.first[row] as usize..block.first[row + 1] as usize]
            {
                counts[*class as usize] += weight * p;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn every_way_to_count_gives_the_same_counts() {
        for n_classes in [2_u32, 5, 10, 11] {
            let rows: Vec<(u32, u32, u32)> =
                (0..6000).map(|n| (n / 6, n % 6, (n * n / 7) % n_classes)).collect();
            let a = tiny(n_classes as usize, &rows);
            let (n, t) = (n_classes as usize, Posterior::from_votes(&a));
            let count = |mut sweep: MSweep| {
                let mut counts = vec![0.0; a.n_columns() * n];
                sweep.run(&a, &t, &mut counts, || (), |_, _, ()| {});
                counts
            };
            let by_range = MSweep::new(&a);
            assert!(by_range.ranges >= LEAST_RANGES, "the test means to take this way");
            let (by_range, by_column) = (count(by_range), count(MSweep::by_ranges(&a, 0)));
            let mut plain = vec![0.0; by_column.len()];
            for (column, counts) in plain.chunks_exact_mut(n).enumerate() {
                for i in a.instances_of(column) {
                    counts.iter_mut().zip(t.row(*i as usize)).for_each(|(c, p)| *c += p);
                }
            }
            for cell in 0..plain.len() {
                assert!((by_column[cell] - plain[cell]).abs() < 1e-12, "{cell}");
                assert!((by_range[cell] - plain[cell]).abs() < 1e-9, "{cell}");
            }
        }
    }
}
