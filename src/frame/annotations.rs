//! Annotations as two sparse views of one list: by instance for E-steps, by confusion column for M-steps.
//!
//! ```text
//! a column     = one (annotator, label) pair that occurs: "annotator 7 said `cat`", one column of 7's confusion matrix
//! by instance    offsets[i] .. offsets[i+1]  ->  columns: what was said of instance i, in the order of the annotators
//! by column      offsets[c] .. offsets[c+1]  ->  instances: of which instances this was said, ascending
//! by annotator   offsets[r] .. offsets[r+1]  ->  the columns of annotator r, by label
//! ```
//! # Why
//! A dense confusion matrix has annotators x classes x labels cells, most of which nobody ever fills. Columns that
//! occur are at most as many as annotations, so every kernel's time and memory follows the annotations. An E-step
//! multiplies one contiguous column (one number a class) for each annotation; an M-step sums posterior rows into one
//! column, which only one thread owns. Two words of four bytes an annotation, two of eight more where weights differ
//! from 1.

use std::ops::Range;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Instances, or annotators, handled as one unit of parallel work. Fixed, so that sums do not depend on threads.
pub const BLOCK: usize = 2048;

/// What to do with repeated answers of one annotator to one instance (and question).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// They share one say. Its size is that of the heaviest answer, or the sum of all where that is less than 1 (a
    /// soft annotation); so three equal answers count once, and two different ones count one half each.
    #[default]
    Share,
    /// The newest by `annotated_at` stays; equally new ones share.
    Last,
    /// Each counts in full.
    Keep,
    /// They are an error.
    Error,
}

/// Annotations in any order, a column of numbers each.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// Of which instance.
    pub instance: Vec<u32>,
    /// By whom.
    pub annotator: Vec<u32>,
    /// What: a label's number.
    pub label: Vec<u32>,
    /// How much each counts; empty where all count 1.
    pub weight: Vec<f64>,
}

/// The sizes of every axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Instances, with or without annotations.
    pub instances: usize,
    /// Annotators, each with at least one annotation.
    pub annotators: usize,
    /// Classes: what can be true.
    pub classes: usize,
    /// Labels: what can be said. The first `classes` of them are the classes.
    pub labels: usize,
}

/// The sparse annotations of one question.
#[derive(Debug, Clone)]
pub struct Annotations {
    dims: Dims,
    by_instance: Vec<usize>,
    columns: Vec<u32>,
    weights: Option<Vec<f64>>,
    by_annotator: Vec<usize>,
    labels: Vec<u32>,
    by_column: Vec<usize>,
    instances: Vec<u32>,
    column_weights: Option<Vec<f64>>,
    rows_of_instance: Vec<u32>,
    rows_of_annotator: Vec<u32>,
    /// The class of each instance that is trusted, where any is.
    pub trusted: Option<Vec<Option<u32>>>,
}

/// The (instance, annotator) pairs that answered more than once, where that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated(pub Vec<(u32, u32)>);

impl Annotations {
    /// Builds both views from rows in any order.
    ///
    /// # Errors
    /// The repeated pairs, where the policy is [`Duplicates::Error`].
    pub fn build(dims: Dims, rows: Rows, policy: Duplicates) -> Result<Self, Repeated> {
        let ((by_annotator, labels), (rows_of_annotator, rows_of_instance)) = rayon::join(
            || distinct_columns(dims, &rows),
            || (count(&rows.annotator, dims.annotators), count(&rows.instance, dims.instances)),
        );
        let mut said = rows.annotator;
        said.par_iter_mut().zip(&rows.label).with_min_len(BLOCK).for_each(|(said, label)| {
            let own = by_annotator[*said as usize]..by_annotator[*said as usize + 1];
            *said = number(own.start + labels[own].partition_point(|l| l < label));
        });
        let offsets = prefix_sum(&rows_of_instance);
        let mut said = Said::scatter(offsets, &rows.instance, &said, &rows.weight);
        said.settle(&by_annotator, policy)?;
        let Said { offsets: by_instance, columns, weights } = said;
        let weights = weights.filter(|all| all.iter().any(|w| (w - 1.0).abs() > 0.0));
        let by_column = prefix_sum(&count(&columns, labels.len()));
        let mut built = Self {
            dims,
            by_instance,
            instances: vec![0; columns.len()],
            column_weights: weights.as_ref().map(|w| vec![0.0; w.len()]),
            columns,
            weights,
            by_annotator,
            labels,
            by_column,
            rows_of_instance,
            rows_of_annotator,
            trusted: None,
        };
        built.turn();
        Ok(built)
    }

    /// Fills the view by column from the view by instance.
    fn turn(&mut self) {
        let mut next = self.by_column.clone();
        for i in 0..self.dims.instances {
            for at in self.by_instance[i]..self.by_instance[i + 1] {
                let place = &mut next[self.columns[at] as usize];
                self.instances[*place] = number(i);
                if let (Some(out), Some(weights)) = (&mut self.column_weights, &self.weights) {
                    out[*place] = weights[at];
                }
                *place += 1;
            }
        }
    }

    /// The sizes of every axis.
    #[must_use]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// How many annotations are stored: says after repeated answers were settled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// How many (annotator, label) pairs occur.
    #[must_use]
    pub fn n_columns(&self) -> usize {
        self.labels.len()
    }

    /// What was said of instance `i`: columns, in the order of the annotators.
    #[inline]
    #[must_use]
    pub fn said_of(&self, i: usize) -> &[u32] {
        &self.columns[self.by_instance[i]..self.by_instance[i + 1]]
    }

    /// The weights that go with [`Annotations::said_of`]; `None` where all are 1.
    #[inline]
    #[must_use]
    pub fn weights_of(&self, i: usize) -> Option<&[f64]> {
        self.weights.as_ref().map(|w| &w[self.by_instance[i]..self.by_instance[i + 1]])
    }

    /// The label of a column.
    #[inline]
    #[must_use]
    pub fn label_of(&self, column: u32) -> u32 {
        self.labels[column as usize]
    }

    /// The columns of annotator `r`, ascending by label.
    #[inline]
    #[must_use]
    pub fn columns_of(&self, r: usize) -> Range<usize> {
        self.by_annotator[r]..self.by_annotator[r + 1]
    }

    /// The labels that annotator `r` used, ascending: one for each of its columns.
    #[inline]
    #[must_use]
    pub fn labels_of(&self, r: usize) -> &[u32] {
        &self.labels[self.columns_of(r)]
    }

    /// The column of what annotator `r` said, if `r` ever said it.
    #[must_use]
    pub fn column_of(&self, r: usize, label: usize) -> Option<usize> {
        let found = self.labels_of(r).binary_search_by_key(&label, |l| *l as usize).ok()?;
        Some(self.by_annotator[r] + found)
    }

    /// The first column of each annotator, and one past the last.
    #[must_use]
    pub fn column_offsets(&self) -> &[usize] {
        &self.by_annotator
    }

    /// Of which instances a column was said, ascending.
    #[inline]
    #[must_use]
    pub fn instances_of(&self, column: usize) -> &[u32] {
        &self.instances[self.by_column[column]..self.by_column[column + 1]]
    }

    /// The weights that go with [`Annotations::instances_of`]; `None` where all are 1.
    #[inline]
    #[must_use]
    pub fn column_weights_of(&self, column: usize) -> Option<&[f64]> {
        let range = self.by_column[column]..self.by_column[column + 1];
        self.column_weights.as_ref().map(|w| &w[range])
    }

    /// Input rows behind instance `i`, repeated answers counted each.
    #[must_use]
    pub fn rows_of_instance(&self, i: usize) -> u32 {
        self.rows_of_instance[i]
    }

    /// Input rows behind annotator `r`, repeated answers counted each.
    #[must_use]
    pub fn rows_of_annotator(&self, r: usize) -> u32 {
        self.rows_of_annotator[r]
    }

    /// The trusted class of instance `i`.
    #[inline]
    #[must_use]
    pub fn trusted_class(&self, i: usize) -> Option<u32> {
        self.trusted.as_ref().and_then(|t| t[i])
    }

    /// Whether anything speaks for a class of instance `i`: an annotation of a class, or trust.
    #[must_use]
    pub fn has_evidence(&self, i: usize) -> bool {
        self.trusted_class(i).is_some()
            || self.said_of(i).iter().any(|c| (self.label_of(*c) as usize) < self.dims.classes)
    }
}

/// The distinct labels of each annotator, ascending: (offsets by annotator, labels).
fn distinct_columns(dims: Dims, rows: &Rows) -> (Vec<usize>, Vec<u32>) {
    let mut counts = vec![0_u32; dims.annotators];
    let mut labels = Vec::new();
    let mut add = |annotator: usize, label: u32| {
        counts[annotator] += 1;
        labels.push(label);
    };
    let pairs = rows.annotator.iter().zip(&rows.label);
    // A flag a cell is fastest, as long as the cells are not many more than the annotations.
    if dims.annotators.saturating_mul(dims.labels) <= 8 * rows.label.len() + BLOCK {
        let mut occurs = vec![false; dims.annotators * dims.labels];
        pairs.for_each(|(r, l)| occurs[*r as usize * dims.labels + *l as usize] = true);
        for (cell, _) in occurs.iter().enumerate().filter(|(_, occurs)| **occurs) {
            add(cell / dims.labels, number(cell % dims.labels));
        }
    } else {
        let mut cells: Vec<(u32, u32)> = pairs.map(|(r, l)| (*r, *l)).collect();
        cells.par_sort_unstable();
        cells.dedup();
        cells.iter().for_each(|(r, l)| add(*r as usize, *l));
    }
    (prefix_sum(&counts), labels)
}

/// The view by instance while repeated answers are being settled.
struct Said {
    offsets: Vec<usize>,
    columns: Vec<u32>,
    weights: Option<Vec<f64>>,
}

impl Said {
    fn scatter(offsets: Vec<usize>, instance: &[u32], column: &[u32], weight: &[f64]) -> Self {
        let mut next = offsets.clone();
        let mut columns = vec![0; column.len()];
        let mut weights = (!weight.is_empty()).then(|| vec![0.0; weight.len()]);
        for (row, i) in instance.iter().enumerate() {
            let place = &mut next[*i as usize];
            columns[*place] = column[row];
            if let Some(weights) = &mut weights {
                weights[*place] = weight[row];
            }
            *place += 1;
        }
        Self { offsets, columns, weights }
    }

    /// Sorts every instance's columns and settles repeated answers.
    fn settle(&mut self, by_annotator: &[usize], policy: Duplicates) -> Result<(), Repeated> {
        let annotators = owners(by_annotator);
        if let Some(weights) = &mut self.weights {
            sort_with_weights(&self.offsets, &mut self.columns, weights);
        } else {
            let parts = split_by(&mut self.columns, &self.offsets, 1);
            parts.into_par_iter().with_min_len(BLOCK).for_each(|(_, said)| said.sort_unstable());
        }
        let repeated = self.repeated(&annotators);
        if repeated.is_empty() || policy == Duplicates::Keep {
            return Ok(());
        }
        if policy == Duplicates::Error {
            return Err(Repeated(repeated));
        }
        self.share(&annotators);
        Ok(())
    }

    /// (instance, annotator) of every answer beyond the first.
    fn repeated(&self, annotators: &[u32]) -> Vec<(u32, u32)> {
        let of = |column: &u32| annotators[*column as usize];
        (0..self.offsets.len() - 1)
            .into_par_iter()
            .with_min_len(BLOCK)
            .flat_map_iter(|i| {
                let said = &self.columns[self.offsets[i]..self.offsets[i + 1]];
                let again = said.windows(2).filter(move |w| of(&w[0]) == of(&w[1]));
                again.map(move |w| (number(i), of(&w[0])))
            })
            .collect()
    }

    /// Merges an annotator's equal answers to an instance and scales different ones, so that together they are one say.
    fn share(&mut self, annotators: &[u32]) {
        let weights = self.weights.get_or_insert_with(|| vec![1.0; self.columns.len()]);
        let mut out = 0;
        for i in 0..self.offsets.len() - 1 {
            let (mut start, end) = (self.offsets[i], self.offsets[i + 1]);
            self.offsets[i] = out;
            while start < end {
                let annotator = annotators[self.columns[start] as usize];
                let same = |c: &&u32| annotators[**c as usize] == annotator;
                let stop = start + self.columns[start..end].iter().take_while(same).count();
                let sum: f64 = weights[start..stop].iter().sum();
                let heaviest = weights[start..stop].iter().copied().fold(0.0, f64::max);
                let total = heaviest.max(sum.min(1.0));
                while start < stop {
                    let column = self.columns[start];
                    let next = start + self.columns[start..stop].iter().take_while(|c| **c == column).count();
                    let weight: f64 = weights[start..next].iter().sum();
                    self.columns[out] = column;
                    weights[out] = total * (weight / sum);
                    out += 1;
                    start = next;
                }
            }
        }
        if let Some(last) = self.offsets.last_mut() {
            *last = out;
        }
        self.columns.truncate(out);
        weights.truncate(out);
    }
}

fn sort_with_weights(offsets: &[usize], columns: &mut [u32], weights: &mut [f64]) {
    let columns = split_by(columns, offsets, 1);
    let weights = split_by(weights, offsets, 1);
    columns.into_par_iter().zip(weights).with_min_len(BLOCK).for_each(|((_, columns), (_, weights))| {
        let mut said: Vec<(u32, f64)> = columns.iter().copied().zip(weights.iter().copied()).collect();
        said.sort_unstable_by_key(|(column, weight)| (*column, weight.to_bits()));
        for (at, (column, weight)) in said.into_iter().enumerate() {
            (columns[at], weights[at]) = (column, weight);
        }
    });
}

/// The owner of each item, from the owners' offsets.
fn owners(offsets: &[usize]) -> Vec<u32> {
    let items = offsets.windows(2).enumerate();
    items.flat_map(|(owner, w)| std::iter::repeat_n(number(owner), w[1] - w[0])).collect()
}

/// Occurrences of each number below `n`.
fn count(numbers: &[u32], n: usize) -> Vec<u32> {
    let mut counts = vec![0; n];
    numbers.iter().for_each(|x| counts[*x as usize] += 1);
    counts
}

fn prefix_sum(counts: &[u32]) -> Vec<usize> {
    let mut offsets = Vec::with_capacity(counts.len() + 1);
    let mut sum = 0;
    offsets.push(0);
    for count in counts {
        sum += *count as usize;
        offsets.push(sum);
    }
    offsets
}

/// Numbers of instances, annotators and labels are below 2^32, since they were interned as such.
#[allow(clippy::cast_possible_truncation)]
fn number(index: usize) -> u32 {
    index as u32
}

/// Cuts `items` into the parts of `block` neighbouring owners each: the owners' range, and their items.
pub fn split_by<'a, T>(
    mut items: &'a mut [T],
    offsets: &[usize],
    block: usize,
) -> Vec<(Range<usize>, &'a mut [T])> {
    let owners = offsets.len().saturating_sub(1);
    let mut parts = Vec::with_capacity(owners.div_ceil(block));
    let mut start = 0;
    while start < owners {
        let end = (start + block).min(owners);
        let (part, rest) = items.split_at_mut(offsets[end] - offsets[start]);
        parts.push((start..end, part));
        items = rest;
        start = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 3 };

    fn build(rows: &[(u32, u32, u32, f64)], policy: Duplicates) -> Result<Annotations, Repeated> {
        let mut columns = Rows::default();
        for (instance, annotator, label, weight) in rows {
            columns.instance.push(*instance);
            columns.annotator.push(*annotator);
            columns.label.push(*label);
            columns.weight.push(*weight);
        }
        Annotations::build(DIMS, columns, policy)
    }

    #[test]
    fn both_views_hold_the_same_annotations() {
        let a = build(&[(2, 1, 0, 1.0), (0, 0, 1, 1.0), (0, 1, 0, 1.0)], Duplicates::Share).unwrap();
        assert_eq!(a.said_of(0), [0, 1]);
        assert_eq!(a.said_of(1), [0_u32; 0]);
        assert_eq!((a.label_of(0), a.label_of(1)), (1, 0));
        assert_eq!(a.instances_of(1), [0, 2]);
        assert_eq!(a.columns_of(1), 1..2);
        assert!(a.weights_of(0).is_none());
    }

    #[test]
    fn many_more_cells_than_annotations_give_the_same_columns() {
        let wide = Dims { annotators: 90_000, labels: 90, ..DIMS };
        let rows = || Rows {
            instance: vec![0, 1, 2],
            annotator: vec![89_999, 7, 89_999],
            label: vec![80, 3, 2],
            weight: Vec::new(),
        };
        let a = Annotations::build(wide, rows(), Duplicates::Share).unwrap();
        assert_eq!((a.columns_of(7), a.labels_of(89_999)), (0..1, &[2, 80][..]));
        assert_eq!(a.said_of(0), [2]);
    }

    #[test]
    fn equal_answers_share_one_say() {
        let rows = [(0, 0, 1, 1.0), (0, 0, 1, 1.0), (0, 0, 1, 1.0)];
        let a = build(&rows, Duplicates::Share).unwrap();
        assert_eq!((a.len(), a.weights_of(0), a.rows_of_instance(0)), (1, None, 3));
        assert_eq!(build(&rows, Duplicates::Keep).unwrap().len(), 3);
        assert_eq!(build(&rows, Duplicates::Error).unwrap_err(), Repeated(vec![(0, 0), (0, 0)]));
    }

    #[test]
    fn different_answers_share_and_soft_ones_stay_whole() {
        let a = build(&[(0, 0, 0, 1.0), (0, 0, 1, 1.0)], Duplicates::Share).unwrap();
        assert_eq!(a.weights_of(0), Some(&[0.5, 0.5][..]));
        let soft = build(&[(1, 0, 0, 0.75), (1, 0, 1, 0.25)], Duplicates::Share).unwrap();
        assert_eq!(soft.weights_of(1), Some(&[0.75, 0.25][..]));
        let expert = build(&[(1, 0, 0, 2.0), (1, 0, 0, 2.0)], Duplicates::Share).unwrap();
        assert_eq!(expert.weights_of(1), Some(&[2.0][..]));
    }

    #[test]
    fn a_label_that_is_no_class_is_no_evidence() {
        let a = build(&[(0, 0, 2, 1.0), (1, 0, 1, 1.0)], Duplicates::Share).unwrap();
        assert_eq!([a.has_evidence(0), a.has_evidence(1), a.has_evidence(2)], [false, true, false]);
    }
}
