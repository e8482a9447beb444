//! Confusion columns of many classes, without the cells that nothing stands behind.
//!
//! # Why
//! Of the fifty cells in a column of a fifty-class annotator, the few instances behind it fill a few. All others are
//! the same for every label: smoothing or floor, over the sum of the class's row. Kept once for each annotator they stay
//! in the cache, where whole columns are a wait for memory at every annotation.

use std::iter::repeat_n;
use std::ops::Range;

use rayon::prelude::*;

use super::columns::{Likelihood, Smoothing};
use super::counts::Counts;
use super::fetched::Fetched;
use super::kernel::LEAST;
use super::notes::Entry;
use crate::frame::Annotations;

/// Neighbouring annotators whose columns lie together: one unit of parallel work.
const BLOCK: usize = 16;

/// The columns of all annotators.
pub struct Sparse {
    n_classes: usize,
    /// Where the annotator of each column sits.
    seats: Vec<u32>,
    blocks: Vec<Block>,
}

/// The columns of [`BLOCK`] annotators.
#[derive(Default)]
struct Block {
    first_column: usize,
    /// P(a label that was not said given class), `[annotator, class]`.
    unsaid: Vec<f64>,
    /// Where the cells of each column begin, and one past the last.
    first: Vec<u32>,
    cells: Vec<Cell>,
}

/// A cell unlike the annotator's other labels.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    class: u32,
    /// Its probability over that of a label that was not said. While an annotator is estimated: its count.
    ratio: f64,
}

/// What a worker needs to estimate an annotator; both vectors are `[class]`.
struct Scratch {
    fetched: Fetched<Entry>,
    /// The counts of one column, zero between columns.
    counts: Vec<f64>,
    /// The sum of each row of the confusion matrix.
    sums: Vec<f64>,
}

impl Sparse {
    /// Room for the columns of all annotators.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let own = a.column_offsets().windows(2).enumerate();
        Self {
            n_classes: a.dims().classes,
            seats: own.flat_map(|(s, own)| repeat_n(s as u32, own[1] - own[0])).collect(),
            blocks: (0..a.dims().annotators.div_ceil(BLOCK)).map(|_| Block::default()).collect(),
        }
    }

    /// Probabilities from expected counts.
    pub fn estimate(&mut self, a: &Annotations, counts: &Counts, smoothing: Smoothing) {
        let (n, annotators) = (self.n_classes, a.dims().annotators);
        let scratch =
            || Scratch { fetched: Fetched::default(), counts: vec![0.0; n], sums: vec![0.0; n] };
        self.blocks.par_iter_mut().enumerate().for_each_init(scratch, |scratch, (block, out)| {
            let own = block * BLOCK..annotators.min((block + 1) * BLOCK);
            out.first_column = a.column_offsets()[own.start];
            out.unsaid.clear();
            out.first.clear();
            out.first.push(0);
            out.cells.clear();
            own.for_each(|seat| out.add(a, seat, counts, smoothing, scratch));
        });
    }

    #[inline]
    fn unsaid_of(&self, column: u32) -> &[f64] {
        let (seat, n) = (self.seats[column as usize] as usize, self.n_classes);
        &self.blocks[seat / BLOCK].unsaid[seat % BLOCK * n..(seat % BLOCK + 1) * n]
    }
}

impl Block {
    /// Where the cells of a column begin and end.
    #[inline]
    fn place(&self, column: u32) -> (u32, u32) {
        let at = column as usize - self.first_column;
        (self.first[at], self.first[at + 1])
    }

    /// Adds the annotator in `seat`, whose turn it is.
    fn add(
        &mut self,
        a: &Annotations,
        seat: usize,
        counts: &Counts,
        smoothing: Smoothing,
        Scratch { fetched, counts: column, sums }: &mut Scratch,
    ) {
        let (begin, never) = (self.cells.len(), smoothing.never());
        // Every label, said or not, has its smoothing and floor in each row.
        sums.fill(a.dims().labels as f64 * never + (smoothing.never_diagonal() - never));
        let own = a.column_offsets()[seat]..a.column_offsets()[seat + 1];
        counts.fetch(a, own.clone(), fetched);
        for (entries, label) in fetched.groups().zip(a.labels_in(own)) {
            let (label, first) = (*label as usize, self.cells.len());
            if smoothing.diagonal > 0.0 && label < column.len() {
                self.cells.push(Cell { class: label as u32, ratio: 0.0 });
            }
            for (class, count) in entries {
                let sum = &mut column[*class as usize];
                let known = *sum > 0.0 || (smoothing.diagonal > 0.0 && *class as usize == label);
                *sum += count;
                if !known {
                    self.cells.push(Cell { class: *class, ratio: 0.0 });
                }
            }
            let mut kept = first;
            for at in first..self.cells.len() {
                let class = self.cells[at].class;
                let k = class as usize;
                let cell = smoothing.cell(std::mem::take(&mut column[k]), k, label);
                if cell > never {
                    sums[k] += cell - smoothing.cell(0.0, k, label);
                    self.cells[kept] = Cell { class, ratio: cell };
                    kept += 1;
                }
            }
            self.cells.truncate(kept);
            self.first.push(kept as u32);
        }
        let unsaid = self.unsaid.len();
        self.unsaid.extend(sums.iter().map(|sum| (never / sum).max(LEAST)));
        for cell in &mut self.cells[begin..] {
            let k = cell.class as usize;
            cell.ratio = (cell.ratio / sums[k]).max(LEAST) / self.unsaid[unsaid + k];
        }
    }
}

impl Likelihood for Sparse {
    /// The cells of each instance's columns.
    type Near = Fetched<Cell>;

    #[inline]
    fn fetch(&self, a: &Annotations, instances: Range<usize>, near: &mut Fetched<Cell>) {
        near.clear();
        for i in instances {
            for column in a.said_of(i) {
                let block = self.seats[*column as usize] / BLOCK as u32;
                let (begin, end) = self.blocks[block as usize].place(*column);
                near.want(block, begin, end);
            }
            near.end_group();
        }
        near.fetch(|block| &self.blocks[block].cells);
    }

    #[inline]
    fn multiply(
        &self,
        row: &mut [f64],
        prior: &[f64],
        columns: &[u32],
        near: &Fetched<Cell>,
        at: usize,
    ) {
        row.copy_from_slice(prior);
        for column in columns {
            row.iter_mut().zip(self.unsaid_of(*column)).for_each(|(p, f)| *p *= f);
        }
        for cell in near.group(at) {
            row[cell.class as usize] *= cell.ratio;
        }
    }

    fn write(&self, column: u32, _last: &[f64], factors: &mut [f64]) {
        factors.copy_from_slice(self.unsaid_of(column));
        let block = &self.blocks[self.seats[column as usize] as usize / BLOCK];
        let (begin, end) = block.place(column);
        for cell in &block.cells[begin as usize..end as usize] {
            factors[cell.class as usize] *= cell.ratio;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::model::fitted::Posterior;
    use crate::testing::annotations;

    #[test]
    fn cells_left_out_are_those_of_whole_columns() {
        let rows: Vec<(u32, u32, u32)> =
            (0..900).map(|n| (n / 3, n * 7 % 40, (n / 3 + n % 3 * (n % 2)) % 13)).collect();
        let dims = Dims { instances: 300, annotators: 40, classes: 12, labels: 13 };
        let a = annotations(dims, &rows);
        let mut counts = Counts::by_ranges(&a, 0);
        let t = Posterior::from_votes(&a);
        counts.count(&a, &t);
        for (everywhere, diagonal) in [(0.0, 0.0), (0.01, 0.0), (0.0, 2.0), (0.1, 1.0)] {
            let smoothing = Smoothing { everywhere, diagonal };
            let (mut sparse, mut factors) = (Sparse::new(&a), [0.0; 12]);
            sparse.estimate(&a, &counts, smoothing);
            let mut whole = vec![0.0; a.n_columns() * 12];
            counts.columns(&a, &t, &mut whole, &smoothing);
            for (column, whole) in (0..).zip(whole.chunks_exact(12)) {
                sparse.write(column, &[], &mut factors);
                for (k, (got, want)) in factors.iter().zip(whole).enumerate() {
                    assert!((got - want).abs() <= 1e-12 * want, "{column}, {k}: {got} {want}");
                }
            }
        }
    }
}
