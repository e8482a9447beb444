//! Sparse confusion columns, for many classes: only cells unlike those of the annotator's unused labels are stored.
//!
//! # Why
//! With fifty classes a column has fifty cells, but its few instances have a significant posterior for few classes. The
//! other cells are the same for every label: the smoothing or the floor, divided by the sum of the class's row. Stored
//! once for each annotator, these stay in the cache, while dense columns would wait for memory at every annotation.

use std::iter::repeat_n;
use std::ops::Range;

use rayon::prelude::*;

use super::estimate::{Annotator, Estimator, SparseCell};
use super::gather_buffer::GatherBuffer;
use super::padded_matrix::prefetch_row;
use super::prefetcher::PREFETCH_DISTANCE;
use super::sparse_rows::{ClassEntry, SparseRows, gather};
use crate::frame::{Annotations, InstanceRange, WeightSlice, split_by};
use crate::model::numerics::MIN_LIKELIHOOD;
use crate::prefetch::prefetch;

/// Consecutive slots whose cells share one vector; one unit of parallel work.
const SLOTS_PER_BLOCK: usize = 64;

/// Slots whose entries are gathered together: enough that memory reads overlap even if each annotator has two
/// annotations.
const SLOTS_AT_ONCE: usize = 16;

/// The columns of all annotators.
pub struct SparseColumns {
    n_classes: usize,
    /// Whether likelihoods are stored as logarithms.
    are_logs: bool,
    /// P(a label that the annotator never used, given class), `[slot, class]`.
    unused: Vec<f64>,
    /// The place of each column.
    places: Vec<ColumnPlace>,
    /// The cells of each block of [`SLOTS_PER_BLOCK`] slots.
    cells: Vec<Vec<SparseCell>>,
}

/// Where a column is: the slot of its annotator, and the positions of its cells in their block.
#[derive(Debug, Clone, Copy, Default)]
struct ColumnPlace {
    slot: u32,
    begin: u32,
    end: u32,
}

/// The columns of one block of slots, which the M-step writes.
struct ColumnBlock<'a> {
    slots: Range<usize>,
    unused: &'a mut [f64],
    places: &'a mut [ColumnPlace],
    cells: &'a mut Vec<SparseCell>,
}

/// The buffers of a worker that estimates annotators.
struct Workspace {
    gathered: GatherBuffer<ClassEntry>,
    /// The counts of the current column, `[class]`; zero between columns.
    counts: Vec<f64>,
    /// Whether a class has a cell in the current column, `[class]`.
    known: Vec<bool>,
    /// The annotator's cells with a count and its diagonal cells, column by column.
    cells: Vec<SparseCell>,
    /// Where the cells of each column end.
    ends: Vec<usize>,
}

impl SparseColumns {
    /// Allocates the columns of all annotators.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let (n_classes, annotators) = (a.dims().classes, a.dims().annotators);
        let mut places = Vec::with_capacity(a.n_columns());
        for (slot, bounds) in a.column_offsets().windows(2).enumerate() {
            let place = ColumnPlace { slot: slot as u32, ..ColumnPlace::default() };
            places.extend(repeat_n(place, bounds[1] - bounds[0]));
        }
        Self {
            n_classes,
            are_logs: a.are_weighted(),
            unused: vec![0.0; annotators * n_classes],
            places,
            cells: vec![Vec::new(); annotators.div_ceil(SLOTS_PER_BLOCK)],
        }
    }

    /// Whether likelihoods are stored as logarithms.
    #[must_use]
    pub fn are_logs(&self) -> bool {
        self.are_logs
    }

    /// Computes the likelihood from the sparse posterior rows; returns the sum of the estimator's terms.
    pub fn estimate(
        &mut self,
        a: &Annotations,
        rows: &[&SparseRows],
        estimator: &impl Estimator,
    ) -> f64 {
        let (n, are_logs) = (self.n_classes, self.are_logs);
        let scratch = || Workspace {
            gathered: GatherBuffer::default(),
            counts: vec![0.0; n],
            known: vec![false; n],
            cells: Vec::new(),
            ends: Vec::new(),
        };
        let places =
            split_by(&mut self.places, a.column_offsets(), 1, SLOTS_PER_BLOCK).into_par_iter();
        let unused = self.unused.par_chunks_mut(SLOTS_PER_BLOCK * n.max(1));
        let terms: Vec<f64> = (places, unused, &mut self.cells)
            .into_par_iter()
            .map_init(scratch, |scratch, ((slots, places), unused, cells)| {
                let block = ColumnBlock { slots, unused, places, cells };
                block.estimate(a, rows, estimator, are_logs, scratch)
            })
            .collect();
        terms.iter().sum()
    }

    #[inline]
    fn unused_of(&self, column: u32) -> &[f64] {
        let (slot, n) = (self.places[column as usize].slot as usize, self.n_classes);
        &self.unused[slot * n..(slot + 1) * n]
    }

    /// Gathers the cells of the columns of a range of instances, one group for each instance.
    #[inline]
    pub(super) fn gather(
        &self,
        range: &InstanceRange<'_>,
        instances: Range<usize>,
        gathered: &mut GatherBuffer<SparseCell>,
    ) {
        gathered.clear();
        let positions =
            range.positions(instances.start).start..range.positions(instances.end - 1).end;
        for at in positions.clone() {
            if let Some(column) = range.columns.get(at + PREFETCH_DISTANCE) {
                prefetch(&self.places, *column as usize);
            }
            let place = self.places[range.columns[at] as usize];
            prefetch(&self.cells[place.slot as usize / SLOTS_PER_BLOCK], place.begin as usize);
            let unused = place.slot as usize * self.n_classes;
            prefetch_row(&self.unused, unused, self.n_classes);
        }
        for i in instances {
            for column in &range.columns[range.positions(i)] {
                let ColumnPlace { slot, begin, end } = self.places[*column as usize];
                gathered.request(slot / SLOTS_PER_BLOCK as u32, begin, end);
            }
            gathered.end_group();
        }
        gathered.gather(|block| &self.cells[block]);
        if self.are_logs
            && let WeightSlice::All(weights) = range.weights.slice(positions)
        {
            for (cells, weight) in gathered.requested_mut().zip(weights) {
                cells.iter_mut().for_each(|cell| cell.value *= weight);
            }
        }
    }

    /// `row` = `prior` times the factors of every column; `cells` are the gathered cells of these columns.
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

    /// `row` = `prior`, in the log domain, plus the weighted log-factors of every column; `cells` are the gathered
    /// cells of these columns, already multiplied by the weights.
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
        let ColumnPlace { slot, begin, end } = self.places[column as usize];
        for cell in &self.cells[slot as usize / SLOTS_PER_BLOCK][begin as usize..end as usize] {
            let factor = &mut factors[cell.class as usize];
            *factor = if self.are_logs { *factor + cell.value } else { *factor * cell.value };
        }
    }
}

impl ColumnBlock<'_> {
    /// Computes the likelihood of the columns from the sparse rows; returns the annotators' terms of the objective.
    fn estimate(
        self,
        a: &Annotations,
        rows: &[&SparseRows],
        estimator: &impl Estimator,
        are_logs: bool,
        scratch: &mut Workspace,
    ) -> f64 {
        let Self { slots, unused, places, cells: out } = self;
        out.clear();
        let (offsets, n) = (a.column_offsets(), a.dims().classes);
        let first_column = offsets[slots.start];
        let mut terms = 0.0;
        for (slot, unused) in slots.clone().zip(unused.chunks_exact_mut(n.max(1))) {
            let group = (slot - slots.start) / SLOTS_AT_ONCE * SLOTS_AT_ONCE + slots.start;
            if group == slot {
                let last = (slot + SLOTS_AT_ONCE).min(slots.end);
                gather(a, offsets[slot]..offsets[last], rows, &mut scratch.gathered);
            }
            let columns_of_slot = offsets[slot]..offsets[slot + 1];
            if columns_of_slot.is_empty() {
                continue;
            }
            let groups =
                columns_of_slot.start - offsets[group]..columns_of_slot.end - offsets[group];
            let labels = a.labels_in(columns_of_slot.clone());
            scratch.collect_cells(groups, labels, n);
            let Workspace { cells, ends, .. } = &mut *scratch;
            let index = a.annotator_of(columns_of_slot.start as u32);
            let annotator = Annotator { index, labels, n_classes: n };
            terms += estimator.estimate_sparse(annotator, ends, cells, unused);
            unused.iter_mut().for_each(|p| *p = p.max(MIN_LIKELIHOOD));
            let mut first = 0;
            let in_block = columns_of_slot.start - first_column..columns_of_slot.end - first_column;
            for (end, place) in ends.iter().zip(&mut places[in_block]) {
                place.begin = out.len() as u32;
                for cell in &cells[first..*end] {
                    let likelihood = cell.value.max(MIN_LIKELIHOOD);
                    let ratio = likelihood / unused[cell.class as usize];
                    if ratio != 1.0 {
                        let value = if are_logs { ratio.ln() } else { ratio };
                        out.push(SparseCell { class: cell.class, value });
                    }
                }
                first = *end;
                place.end = out.len() as u32;
            }
            if are_logs {
                unused.iter_mut().for_each(|p| *p = p.ln());
            }
        }
        terms
    }
}

impl Workspace {
    /// Collects the cells with a count and the diagonal cells of an annotator's columns, one group of gathered entries
    /// for each column.
    fn collect_cells(&mut self, groups: Range<usize>, labels: &[u32], n_classes: usize) {
        let Self { gathered, counts, known, cells, ends } = self;
        cells.clear();
        ends.clear();
        for (group, label) in groups.zip(labels) {
            let begin = cells.len();
            let mut add = |class: u32, count: f64| {
                counts[class as usize] += count;
                if !std::mem::replace(&mut known[class as usize], true) {
                    cells.push(SparseCell { class, value: 0.0 });
                }
            };
            if (*label as usize) < n_classes {
                add(*label, 0.0);
            }
            gathered.group(group).iter().for_each(|(class, count)| add(*class, *count));
            for cell in &mut cells[begin..] {
                cell.value = std::mem::take(&mut counts[cell.class as usize]);
                known[cell.class as usize] = false;
            }
            ends.push(cells.len());
        }
    }
}
