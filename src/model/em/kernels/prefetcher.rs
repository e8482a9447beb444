//! Prefetches the columns of annotations, their counts, and the list of annotations itself.

use std::ops::Range;

use super::padded_matrix::{prefetch_row, stride};
use crate::prefetch::prefetch;

/// How many annotations ahead of its use a row, a column, or the place of one is prefetched.
pub(super) const PREFETCH_DISTANCE: usize = 64;

/// How many entries ahead a list that is read in order is prefetched. The list is read [`PREFETCH_DISTANCE`] ahead.
///
/// # Why
/// A processor loads a list that is read in order by itself, but not beside as many random reads: waiting for the list
/// took a quarter of an iteration (10 M annotations of 5 classes by 10 k annotators, two threads on an Intel Xeon with
/// second-level caches of 2 MB). A kernel of these reads alone took 2.65 ns per annotation without prefetching the list,
/// and 2.07 ns with it, at a distance of 256 and of 1024. One that gathers posterior rows took 11.2 and 10.5 ns. Where every
/// annotation has a weight, an iteration took 6.2 ns per annotation without prefetching the list of weights, and 4.4 ns with
/// it (8.5 and 8.1 ns by 100 k annotators).
pub(super) const LIST_DISTANCE: usize = 512;

/// Prefetches columns and counts of the annotations of a range of instances before they are used.
#[derive(Clone, Copy)]
pub(super) struct Prefetcher<'a> {
    /// The column of every annotation of the range.
    pub(super) columns: &'a [u32],
    /// The cells of the stored columns.
    pub(super) cells: &'a [f64],
}

impl Prefetcher<'_> {
    /// Prefetches the cells and the counts of the annotations [`PREFETCH_DISTANCE`] after `positions`, those of an
    /// instance.
    #[inline(always)]
    pub(super) fn prefetch(self, positions: Range<usize>, table: &[f64], n: usize) {
        let Some(ahead) = columns_ahead(self.columns, positions) else { return };
        for column in ahead {
            let at = *column as usize * stride(n);
            // Without a branch, which would often be mispredicted. Prefetching an unmapped address, such as that of a
            // column that is not stored, would cost a failed page-table walk.
            prefetch_row(self.cells, at.min(self.cells.len()), n);
        }
        // In a loop of its own, so that one check is enough for all.
        if !table.is_empty() {
            prefetch_rows(table, ahead, n);
        }
    }
}

/// The columns of the annotations [`PREFETCH_DISTANCE`] after `positions`, those of an instance; `None` near the end of the
/// list. Prefetches a cache line of the list, enough for 16 annotations.
#[inline(always)]
pub(super) fn columns_ahead(columns: &[u32], positions: Range<usize>) -> Option<&[u32]> {
    let ahead = positions.start + PREFETCH_DISTANCE..positions.end + PREFETCH_DISTANCE;
    let ahead = columns.get(ahead)?;
    prefetch(columns, positions.end + LIST_DISTANCE);
    Some(ahead)
}

/// Prefetches the rows of these columns in a table of rows of `n` numbers.
#[inline(always)]
pub(super) fn prefetch_rows(table: &[f64], columns: &[u32], n: usize) {
    for column in columns {
        prefetch_row(table, *column as usize * stride(n), n);
    }
}
