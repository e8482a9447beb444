//! Confusion columns of many classes, without the cells that nothing stands behind.
//!
//! # Why
//! Of the fifty cells in a column of a fifty-class annotator, the few instances behind it fill a few. All others are
//! the same for every label: smoothing or floor, over the sum of the class's row. Kept once for each annotator they stay
//! in the cache, where whole columns are a wait for memory at every annotation.

use std::iter::repeat_n;
use std::ops::Range;

use rayon::prelude::*;

use super::MIN_LIKELIHOOD;
use super::estimate::{Annotator, Estimator, SparseCell};
use super::gather_buffer::GatherBuffer;
use super::sparse_rows::{ClassEntry, SparseRows, gather};
use crate::frame::{Annotations, InstanceRange, WeightSlice};

/// Neighbouring slots whose columns lie together: one unit of parallel work.
const BLOCK: usize = 16;

/// The columns of all annotators.
pub struct SparseColumns {
    n_classes: usize,
    /// Whether numbers are logarithms.
    are_logs: bool,
    /// The slot of the annotator of each column.
    slots: Vec<u32>,
    blocks: Vec<Block>,
}

/// The columns of [`BLOCK`] annotators.
#[derive(Default)]
struct Block {
    first_column: usize,
    /// P(a label that was not used given class), `[annotator, class]`.
    unused: Vec<f64>,
    /// Where the cells of each column begin, and one past the last.
    first: Vec<u32>,
    cells: Vec<SparseCell>,
}

/// What a worker needs to estimate an annotator.
struct Workspace {
    gathered: GatherBuffer<ClassEntry>,
    /// The counts of one column, `[class]`, zero between columns, and whether a class has a cell yet.
    counts: Vec<f64>,
    known: Vec<bool>,
    /// An annotator's cells with a count, and where those of each column end.
    cells: Vec<SparseCell>,
    ends: Vec<usize>,
}

impl SparseColumns {
    /// Room for the columns of all annotators.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let own = a.column_offsets().windows(2).enumerate();
        Self {
            n_classes: a.dims().classes,
            are_logs: a.are_weighted(),
            slots: own.flat_map(|(s, own)| repeat_n(s as u32, own[1] - own[0])).collect(),
            blocks: (0..a.dims().annotators.div_ceil(BLOCK)).map(|_| Block::default()).collect(),
        }
    }

    /// Whether numbers are logarithms.
    #[must_use]
    pub fn are_logs(&self) -> bool {
        self.are_logs
    }

    /// The likelihood from expected counts; returns the sum of the estimator's terms.
    pub fn estimate(
        &mut self,
        a: &Annotations,
        rows: &[SparseRows],
        estimator: &impl Estimator,
    ) -> f64 {
        let (n, annotators, are_logs) = (self.n_classes, a.dims().annotators, self.are_logs);
        let scratch = || Workspace {
            gathered: GatherBuffer::default(),
            counts: vec![0.0; n],
            known: vec![false; n],
            cells: Vec::new(),
            ends: Vec::new(),
        };
        let blocks = self.blocks.par_iter_mut().enumerate();
        let terms: Vec<f64> = blocks
            .map_init(scratch, |scratch, (block, out)| {
                let own = block * BLOCK..annotators.min((block + 1) * BLOCK);
                out.first_column = a.column_offsets()[own.start];
                out.unused.clear();
                out.first.clear();
                out.first.push(0);
                out.cells.clear();
                let terms = own.map(|slot| out.add(a, slot, rows, estimator, are_logs, scratch));
                terms.sum()
            })
            .collect();
        terms.iter().sum()
    }

    #[inline]
    fn unused_of(&self, column: u32) -> &[f64] {
        let (slot, n) = (self.slots[column as usize] as usize, self.n_classes);
        &self.blocks[slot / BLOCK].unused[slot % BLOCK * n..(slot % BLOCK + 1) * n]
    }

    /// Gathers the cells of the columns of some instances, a group each.
    #[inline]
    pub(super) fn gather(
        &self,
        range: &InstanceRange<'_>,
        instances: Range<usize>,
        near: &mut GatherBuffer<SparseCell>,
    ) {
        near.clear();
        let positions =
            range.positions(instances.start).start..range.positions(instances.end - 1).end;
        for i in instances {
            for column in &range.columns[range.positions(i)] {
                let block = self.slots[*column as usize] / BLOCK as u32;
                let (begin, end) = self.blocks[block as usize].place(*column);
                near.want(block, begin, end);
            }
            near.end_group();
        }
        near.gather(|block| &self.blocks[block].cells);
        if self.are_logs
            && let WeightSlice::All(weights) = range.weights.slice(positions)
        {
            for (cells, weight) in near.wanted_mut().zip(weights) {
                cells.iter_mut().for_each(|cell| cell.value *= weight);
            }
        }
    }

    /// `row` = `prior` times the factors of every column, of which `cells` are the gathered cells.
    #[inline]
    pub(super) fn multiply(
        &self,
        row: &mut [f64],
        prior: &[f64],
        columns: &[u32],
        cells: &[SparseCell],
    ) {
        row.copy_from_slice(prior);
        for column in columns {
            row.iter_mut().zip(self.unused_of(*column)).for_each(|(p, f)| *p *= f);
        }
        for cell in cells {
            row[cell.class as usize] *= cell.value;
        }
    }

    /// `row` = `prior`, a logarithm, plus the weighted logarithms of every column, of which `cells` are the gathered
    /// cells, weighted already.
    #[inline]
    pub(super) fn add_logs(
        &self,
        row: &mut [f64],
        prior: &[f64],
        columns: &[u32],
        weights: WeightSlice<'_>,
        cells: &[SparseCell],
    ) {
        row.copy_from_slice(prior);
        for (at, column) in columns.iter().enumerate() {
            let weight = weights.get(at);
            row.iter_mut().zip(self.unused_of(*column)).for_each(|(p, f)| *p += weight * f);
        }
        for cell in cells {
            row[cell.class as usize] += cell.value;
        }
    }

    /// Writes the factors of one column, or their logarithms, into `factors`, `[class]`.
    pub fn write(&self, column: u32, factors: &mut [f64]) {
        factors[..self.n_classes].copy_from_slice(self.unused_of(column));
        let block = &self.blocks[self.slots[column as usize] as usize / BLOCK];
        let (begin, end) = block.place(column);
        for cell in &block.cells[begin as usize..end as usize] {
            let factor = &mut factors[cell.class as usize];
            *factor = if self.are_logs { *factor + cell.value } else { *factor * cell.value };
        }
    }
}

impl Block {
    /// Where the cells of a column begin and end.
    #[inline]
    fn place(&self, column: u32) -> (u32, u32) {
        let at = column as usize - self.first_column;
        (self.first[at], self.first[at + 1])
    }

    /// Adds the annotator in `slot`, which is the next; returns its term of the objective.
    fn add(
        &mut self,
        a: &Annotations,
        slot: usize,
        rows: &[SparseRows],
        estimator: &impl Estimator,
        are_logs: bool,
        Workspace { gathered, counts, known, cells, ends }: &mut Workspace,
    ) -> f64 {
        cells.clear();
        ends.clear();
        let own = a.column_offsets()[slot]..a.column_offsets()[slot + 1];
        let labels = a.labels_in(own.clone());
        gather(a, own, rows, gathered);
        for (entries, label) in gathered.groups().zip(labels) {
            let begin = cells.len();
            let mut meet = |class: u32, count: f64| {
                counts[class as usize] += count;
                if !std::mem::replace(&mut known[class as usize], true) {
                    cells.push(SparseCell { class, value: 0.0 });
                }
            };
            if (*label as usize) < a.dims().classes {
                meet(*label, 0.0);
            }
            entries.iter().for_each(|(class, count)| meet(*class, *count));
            for cell in &mut cells[begin..] {
                cell.value = std::mem::take(&mut counts[cell.class as usize]);
                known[cell.class as usize] = false;
            }
            ends.push(cells.len());
        }
        let begin = self.unused.len();
        self.unused.resize(begin + counts.len(), 0.0);
        let unused = &mut self.unused[begin..];
        let term = estimator.estimate_sparse(
            Annotator { labels, n_classes: a.dims().classes },
            ends,
            cells,
            unused,
        );
        unused.iter_mut().for_each(|p| *p = p.max(MIN_LIKELIHOOD));
        let mut first = 0;
        for end in ends {
            for cell in &cells[first..*end] {
                let likelihood = cell.value.max(MIN_LIKELIHOOD);
                let ratio = likelihood / unused[cell.class as usize];
                if ratio != 1.0 {
                    let value = if are_logs { ratio.ln() } else { ratio };
                    self.cells.push(SparseCell { class: cell.class, value });
                }
            }
            first = *end;
            self.first.push(self.cells.len() as u32);
        }
        if are_logs {
            unused.iter_mut().for_each(|p| *p = p.ln());
        }
        term
    }
}
