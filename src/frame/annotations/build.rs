//! Builds the sparse views of [`Annotations`] from rows in any order.

use std::sync::Arc;

use rayon::prelude::*;

use super::blocks::ITEMS_PER_BLOCK;
use super::by_pair::ByPair;
use super::duplicates::{ByInstance, Duplicates, Repeated};
use super::group::{Grouped, UngroupedRows};
use super::offsets::{Cursors, count, number, owners, prefix_sum};
use super::weights::Weights;
use super::{Annotations, Dims};
use crate::frame::given::GivenTables;

/// Annotations in any order, as parallel pairs.
#[derive(Debug, Clone, Default)]
pub struct AnnotationRows {
    /// The index of the instance.
    pub instance: Vec<u32>,
    /// The index of the annotator.
    pub annotator: Vec<u32>,
    /// The index of the label.
    pub label: Vec<u32>,
    /// The weight; empty if all weights are 1.
    pub weight: Vec<f64>,
}

/// The pair of a row is read from a table, `[annotator, label]`, where there are at least so many rows for each of its
/// cells: the table then takes at most one byte per row.
///
/// # Why
/// Otherwise the pair takes three reads and a search, which took 41 ms of processor time for 10 M rows of 10 k annotators
/// (Intel Xeon).
const ROWS_PER_CELL: usize = 4;

/// Rows whose distinct pairs are found together, where there are more cells than rows.
const PAIRS_AT_ONCE: usize = 1 << 24;

impl Annotations {
    /// Builds the views from rows in any order.
    ///
    /// # Errors
    /// The repeated pairs, where the policy is [`Duplicates::Error`].
    pub fn build(dims: Dims, rows: AnnotationRows, policy: Duplicates) -> Result<Self, Repeated> {
        let (sorted, rows_of_annotator) = rayon::join(
            || distinct_columns(dims, &rows.annotator, &rows.label),
            || count(&rows.annotator, dims.annotators),
        );
        let sorted = sorted.singletons_last(&rows_of_annotator);
        let annotators = sorted.owners();
        let mut pairs = rows.annotator;
        sorted.of_rows(&annotators, &mut pairs, &rows.label, dims.labels);
        let SortedColumns { order, slots, by_slot, labels } = sorted;
        drop(rows.label);
        let ungrouped = UngroupedRows { instance: rows.instance, pair: pairs, weight: rows.weight };
        let grouped = Grouped::new(dims.instances, ungrouped);
        let (view, rows_of_instance) = ByInstance::new(grouped);
        let (by_instance, pairs, weights) = view.resolve(&annotators, policy)?;
        Ok(Self {
            dims,
            by_instance: Arc::new(by_instance),
            pairs: Arc::new(pairs),
            weights: Arc::new(weights),
            slots: Arc::new(slots),
            in_slots: Arc::new(order),
            by_slot: Arc::new(by_slot),
            labels: Arc::new(labels),
            annotators: Arc::new(annotators),
            by_pair: Arc::default(),
            rows_of_instance: Arc::new(rows_of_instance),
            rows_of_annotator: Arc::new(rows_of_annotator),
            trusted: None,
            joint: None,
            given: GivenTables::default(),
        })
    }

    /// Builds the view by pair from the view by instance.
    pub(super) fn transposed(&self) -> ByPair {
        let mut positions = Cursors(prefix_sum(&count(&self.pairs, self.labels.len())));
        let mut instances = vec![0; self.pairs.len()];
        let mut all = if self.are_weighted() { vec![1.0; self.pairs.len()] } else { Vec::new() };
        let mut few = Vec::new();
        for i in 0..self.dims.instances {
            let weights = self.weights_of_instance(i);
            for (n, pair) in self.pairs_of_instance(i).iter().enumerate() {
                let position = positions.next(*pair);
                instances[position] = number(i);
                if weights.is_ones() {
                    continue;
                }
                match (all.get_mut(position), weights.get(n)) {
                    (Some(out), weight) => *out = weight,
                    (None, weight) if weight != 1.0 => few.push((position, weight)),
                    (None, _) => {}
                }
            }
        }
        let weights = if self.are_weighted() {
            Weights::All(all)
        } else {
            few.sort_unstable_by_key(|(position, _)| *position);
            let (positions, weights) = few.into_iter().unzip();
            Weights::few(instances.len(), positions, weights)
        };
        ByPair { offsets: positions.offsets(), instances, weights }
    }
}

/// The distinct labels of each annotator, ascending.
pub(super) fn distinct_columns(dims: Dims, annotator: &[u32], label: &[u32]) -> SortedColumns {
    let mut counts = vec![0_u32; dims.annotators];
    let n_cells = dims.annotators.saturating_mul(dims.labels);
    let mut labels = Vec::with_capacity(n_cells.min(label.len()));
    let mut add = |annotator: usize, label: u32| {
        counts[annotator] += 1;
        labels.push(label);
    };
    let pairs = annotator.iter().zip(label);
    // One flag per cell is fastest unless there are many more cells than annotations.
    if n_cells <= 8 * label.len() + ITEMS_PER_BLOCK {
        let mut occurs = vec![false; n_cells];
        pairs.for_each(|(r, l)| occurs[*r as usize * dims.labels + *l as usize] = true);
        for (cell, _) in occurs.iter().enumerate().filter(|(_, occurs)| **occurs) {
            add(cell / dims.labels, number(cell % dims.labels));
        }
    } else {
        // Some at a time: there may be many more rows than cells.
        let (mut cells, mut rest) = (Vec::new(), pairs.map(|(r, l)| (*r, *l)));
        loop {
            // As many as are known already, so that each is sorted a few times at most.
            let (known, more) = (cells.len(), cells.len().max(PAIRS_AT_ONCE));
            cells.extend(rest.by_ref().take(more));
            if cells.len() == known {
                break;
            }
            cells.par_sort_unstable();
            cells.dedup();
        }
        cells.iter().for_each(|(r, l)| add(*r as usize, *l));
    }
    let slots: Vec<u32> = (0..dims.annotators).map(number).collect();
    SortedColumns { order: slots.clone(), slots, by_slot: prefix_sum(&counts), labels }
}

/// The pairs in the order of the annotators' slots.
pub(super) struct SortedColumns {
    /// The annotator in each slot.
    pub(super) order: Vec<u32>,
    /// The slot of each annotator.
    pub(super) slots: Vec<u32>,
    /// Where the pairs of each slot begin, and one past the last.
    pub(super) by_slot: Vec<usize>,
    /// The label of each pair.
    pub(super) labels: Vec<u32>,
}

impl SortedColumns {
    /// The same with those of annotators with a single row after all others.
    pub(super) fn singletons_last(self, rows_of_annotator: &[u32]) -> Self {
        let (mut order, singletons): (Vec<u32>, Vec<u32>) =
            self.order.iter().partition(|r| rows_of_annotator[**r as usize] != 1);
        if singletons.is_empty() {
            return self;
        }
        order.extend(singletons);
        let (mut slots, mut by_slot) = (vec![0; order.len()], Vec::with_capacity(order.len() + 1));
        let mut labels = Vec::with_capacity(self.labels.len());
        for (slot, r) in order.iter().enumerate() {
            let r = *r as usize;
            slots[r] = number(slot);
            by_slot.push(labels.len());
            labels.extend_from_slice(&self.labels[self.by_slot[r]..self.by_slot[r + 1]]);
        }
        by_slot.push(labels.len());
        Self { order, slots, by_slot, labels }
    }

    /// The annotator of each pair.
    pub(super) fn owners(&self) -> Vec<u32> {
        owners(&self.order, &self.by_slot)
    }

    /// Replaces the annotator of each row by its pair, given its label. `owners` has the annotator of each pair.
    pub(super) fn of_rows(
        &self,
        owners: &[u32],
        rows: &mut [u32],
        labels: &[u32],
        n_labels: usize,
    ) {
        let n_cells = self.order.len().saturating_mul(n_labels);
        let of_cell = (n_cells <= labels.len() / ROWS_PER_CELL).then(|| {
            let mut of_cell = vec![0; n_cells];
            for (pair, (r, label)) in owners.iter().zip(&self.labels).enumerate() {
                of_cell[*r as usize * n_labels + *label as usize] = number(pair);
            }
            of_cell
        });
        let pair = |annotator: u32, label: u32| {
            if let Some(of_cell) = &of_cell {
                return of_cell[annotator as usize * n_labels + label as usize];
            }
            let slot = self.slots[annotator as usize] as usize;
            let own = self.by_slot[slot]..self.by_slot[slot + 1];
            number(own.start + self.labels[own].partition_point(|l| *l < label))
        };
        let rows = rows.par_iter_mut().zip(labels).with_min_len(ITEMS_PER_BLOCK);
        rows.for_each(|(position, label)| *position = pair(*position, *label));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 3 };

    fn build(rows: &[(u32, u32, u32, f64)], policy: Duplicates) -> Result<Annotations, Repeated> {
        let mut pairs = AnnotationRows::default();
        for (instance, annotator, label, weight) in rows {
            pairs.instance.push(*instance);
            pairs.annotator.push(*annotator);
            pairs.label.push(*label);
            pairs.weight.push(*weight);
        }
        Annotations::build(DIMS, pairs, policy)
    }

    fn weights(a: &Annotations, i: usize) -> Vec<f64> {
        a.annotations_of_instance(i).map(|(_, weight)| weight).collect()
    }

    #[test]
    fn both_views_hold_the_same_annotations() {
        let a =
            build(&[(2, 1, 0, 1.0), (0, 0, 1, 1.0), (0, 1, 0, 1.0)], Duplicates::Share).unwrap();
        assert_eq!(a.pairs_of_instance(0), [0, 1]);
        assert_eq!(a.pairs_of_instance(1), [0_u32; 0]);
        assert_eq!((a.label_of_pair(0), a.label_of_pair(1)), (0, 1));
        assert_eq!((a.instances_of_pair(0), a.instances_of_pair(1)), (&[0, 2][..], &[0][..]));
        assert_eq!((a.pairs_of_annotator(0), a.pairs_of_annotator(1)), (1..2, 0..1));
        assert!(a.weights_of_instance(0).is_ones());
    }

    /// Six annotators with the labels 0, 2 and 4, and one with a single label; a third of the rows is not enough for a table
    /// of cells.
    #[test]
    fn a_table_of_cells_gives_the_columns_that_a_search_gives() {
        let dims = Dims { instances: 10, annotators: 7, classes: 3, labels: 5 };
        let all: Vec<(u32, u32)> =
            (0..60).map(|n| (n % 6, n / 6 % 3 * 2)).chain([(6, 4)]).collect();
        let columns_of = |repeats: usize| {
            let (annotator, label): (Vec<u32>, Vec<u32>) = all.repeat(repeats).into_iter().unzip();
            let rows = AnnotationRows { annotator, label, ..AnnotationRows::default() };
            let sorted = distinct_columns(dims, &rows.annotator, &rows.label);
            let owners = sorted.owners();
            assert_eq!(owners.len(), 19);
            let mut pairs = rows.annotator.clone();
            sorted.of_rows(&owners, &mut pairs, &rows.label, dims.labels);
            let wanted = rows.annotator.iter().zip(&rows.label);
            for (pair, (annotator, label)) in pairs.iter().zip(wanted) {
                let at = *pair as usize;
                assert_eq!((owners[at], sorted.labels[at]), (*annotator, *label));
            }
            pairs[..all.len()].to_vec()
        };
        assert!((all.len()..3 * all.len()).contains(&(35 * ROWS_PER_CELL)));
        assert_eq!(columns_of(1), columns_of(3));
    }

    /// Instances without annotations begin blocks; every hundredth from the third on has an answer twice.
    #[test]
    fn repeated_answers_are_found_in_every_block() {
        let n = 2 * ITEMS_PER_BLOCK as u32 + 300;
        let dims = Dims { instances: n as usize, ..DIMS };
        let is_repeated = |i: u32| i % 100 == 3;
        let build = |is_weighted: bool, twice: bool, policy| {
            let mut rows = AnnotationRows::default();
            for i in (0..n).filter(|i| i % 16 > 0) {
                let copies = if twice && is_repeated(i) { 2 } else { 1 };
                for (r, copies) in [(0, 1), (1, copies)] {
                    for _ in 0..copies {
                        rows.instance.push(i);
                        rows.annotator.push(r);
                        rows.label.push((i + r) % 2);
                        rows.weight.extend(is_weighted.then_some(2.0));
                    }
                }
            }
            Annotations::build(dims, rows, policy)
        };
        let repeated = (0..n).filter(|i| i % 16 > 0 && is_repeated(*i));
        let want: Vec<(u32, u32)> = repeated.map(|i| (i, 1)).collect();
        assert!(want.last().is_some_and(|(i, _)| *i as usize > 2 * ITEMS_PER_BLOCK));
        for is_weighted in [false, true] {
            let error = build(is_weighted, true, Duplicates::Error).unwrap_err();
            assert_eq!(error, Repeated(want.clone()));
            let of = |twice| {
                let a = build(is_weighted, twice, Duplicates::Share).unwrap();
                let all =
                    (0..n as usize).map(|i| (a.pairs_of_instance(i).to_vec(), weights(&a, i)));
                all.collect::<Vec<_>>()
            };
            assert_eq!(of(true), of(false));
        }
    }

    #[test]
    fn many_more_cells_than_annotations_give_the_same_columns() {
        let wide = Dims { annotators: 90_000, labels: 90, ..DIMS };
        let rows = || AnnotationRows {
            instance: vec![0, 1, 2],
            annotator: vec![89_999, 7, 89_999],
            label: vec![80, 3, 2],
            weight: Vec::new(),
        };
        let a = Annotations::build(wide, rows(), Duplicates::Share).unwrap();
        assert_eq!((a.pairs_of_annotator(7), a.labels_of_annotator(89_999)), (2..3, &[2, 80][..]));
        assert_eq!(a.pairs_of_instance(0), [1]);
    }

    #[test]
    fn equal_answers_share_one_weight() {
        let rows = [(0, 0, 1, 1.0), (0, 0, 1, 1.0), (0, 0, 1, 1.0)];
        let a = build(&rows, Duplicates::Share).unwrap();
        assert_eq!((a.len(), weights(&a, 0), a.rows_of_instance(0)), (1, vec![1.0], 3));
        assert_eq!(build(&rows, Duplicates::Keep).unwrap().len(), 3);
        assert_eq!(build(&rows, Duplicates::Error).unwrap_err(), Repeated(vec![(0, 0)]));
    }

    /// Instances 1, 2 and 4 have repeated answers.
    #[test]
    fn instances_around_merged_answers_keep_their_annotations() {
        let dims = Dims { instances: 6, ..DIMS };
        for is_weighted in [false, true] {
            let of = |copies: fn(u32) -> usize| {
                let mut rows = AnnotationRows::default();
                let all = (0..6).flat_map(|i| [(i, 0), (i, 1)]);
                for (i, r) in all.flat_map(|(i, r)| std::iter::repeat_n((i, r), copies(i))) {
                    rows.instance.push(i);
                    rows.annotator.push(r);
                    rows.label.push((i + r) % 2);
                    rows.weight.extend(is_weighted.then(|| f64::from(2 + i)));
                }
                let a = Annotations::build(dims, rows, Duplicates::Share).unwrap();
                let all = (0..6).map(|i| (a.pairs_of_instance(i).to_vec(), weights(&a, i)));
                all.collect::<Vec<_>>()
            };
            let merged = of(|i| if [1, 2, 4].contains(&i) { 3 } else { 1 });
            assert_eq!(merged, of(|_| 1), "{is_weighted}");
        }
    }

    #[test]
    fn different_answers_share_and_soft_ones_stay_whole() {
        let a = build(&[(0, 0, 0, 1.0), (0, 0, 1, 1.0)], Duplicates::Share).unwrap();
        assert_eq!(weights(&a, 0), [0.5, 0.5]);
        let soft = build(&[(1, 0, 0, 0.75), (1, 0, 1, 0.25)], Duplicates::Share).unwrap();
        assert_eq!(weights(&soft, 1), [0.75, 0.25]);
        let expert = build(&[(1, 0, 0, 2.0), (1, 0, 0, 2.0)], Duplicates::Share).unwrap();
        assert_eq!(weights(&expert, 1), [2.0]);
        let tiny = build(&[(1, 0, 0, 5e-324), (1, 0, 2, 2.0)], Duplicates::Share).unwrap();
        assert_eq!(weights(&tiny, 1), [f64::MIN_POSITIVE, 2.0]);
    }

    #[test]
    fn a_label_that_is_no_class_is_no_evidence() {
        let a = build(&[(0, 0, 2, 1.0), (1, 0, 1, 1.0)], Duplicates::Share).unwrap();
        assert_eq!([a.has_evidence(0), a.has_evidence(1), a.has_evidence(2)], [false, true, false]);
    }
}
