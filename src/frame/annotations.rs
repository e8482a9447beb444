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
//! column, which only one thread owns. Two words of four bytes an annotation, eight more where weights differ from 1.

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

/// One annotation while the views are being built.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Say {
    /// Who.
    pub annotator: u32,
    /// What: a label's number.
    pub label: u32,
    /// How much it counts.
    pub weight: f64,
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
    /// Builds both views from rows of (instance, say) in any order.
    ///
    /// # Errors
    /// The repeated pairs, where the policy is [`Duplicates::Error`].
    pub fn build(
        dims: Dims,
        instance: &[u32],
        say: impl Fn(usize) -> Say,
        policy: Duplicates,
    ) -> Result<Self, Repeated> {
        let rows_of_instance = count(instance.iter().copied(), dims.instances);
        let mut offsets = prefix_sum(&rows_of_instance);
        let mut says = scatter(&offsets, instance, &say);
        let rows_of_annotator = count(says.iter().map(|s| s.annotator), dims.annotators);
        let kept: Vec<u32> = split_by(&mut says, &offsets, BLOCK)
            .into_par_iter()
            .map(|(block, says)| settle_block(block, &offsets, says, policy))
            .collect::<Result<Vec<_>, Vec<_>>>()
            .map_err(Repeated)?
            .concat();
        compact(&mut says, &mut offsets, &kept);
        Ok(Self::index(dims, offsets, &says, rows_of_instance, rows_of_annotator))
    }

    /// The views of settled says.
    #[allow(clippy::cast_possible_truncation)]
    fn index(
        dims: Dims,
        by_instance: Vec<usize>,
        says: &[Say],
        rows_of_instance: Vec<u32>,
        rows_of_annotator: Vec<u32>,
    ) -> Self {
        let (by_annotator, labels) = columns_of_annotators(dims, says);
        let column_of = |s: &Say| {
            let range = by_annotator[s.annotator as usize]..by_annotator[s.annotator as usize + 1];
            (range.start + labels[range].partition_point(|l| *l < s.label)) as u32
        };
        let columns: Vec<u32> = says.par_iter().with_min_len(BLOCK).map(column_of).collect();
        let weights = says
            .iter()
            .any(|s| (s.weight - 1.0).abs() > 0.0)
            .then(|| says.iter().map(|s| s.weight).collect::<Vec<f64>>());
        let by_column = prefix_sum(&count(columns.iter().copied(), labels.len()));
        let mut next = by_column.clone();
        let mut instances = vec![0_u32; columns.len()];
        let mut column_weights = weights.as_ref().map(|w| vec![0.0; w.len()]);
        for i in 0..dims.instances {
            for at in by_instance[i]..by_instance[i + 1] {
                let place = &mut next[columns[at] as usize];
                instances[*place] = i as u32;
                if let (Some(out), Some(w)) = (&mut column_weights, &weights) {
                    out[*place] = w[at];
                }
                *place += 1;
            }
        }
        Self {
            dims,
            by_instance,
            columns,
            weights,
            by_annotator,
            labels,
            by_column,
            instances,
            column_weights,
            rows_of_instance,
            rows_of_annotator,
            trusted: None,
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

/// Occurrences of each number below `n`.
fn count(numbers: impl Iterator<Item = u32>, n: usize) -> Vec<u32> {
    let mut counts = vec![0; n];
    numbers.for_each(|x| counts[x as usize] += 1);
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

fn scatter(offsets: &[usize], instance: &[u32], say: &impl Fn(usize) -> Say) -> Vec<Say> {
    let mut next = offsets.to_vec();
    let mut says = vec![Say { annotator: 0, label: 0, weight: 0.0 }; instance.len()];
    for (row, i) in instance.iter().enumerate() {
        let place = &mut next[*i as usize];
        says[*place] = say(row);
        *place += 1;
    }
    says
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

/// Sorts the says of a block's instances and settles repeated answers; returns how many stay, instance by instance.
#[allow(clippy::cast_possible_truncation)]
fn settle_block(
    block: Range<usize>,
    offsets: &[usize],
    says: &mut [Say],
    policy: Duplicates,
) -> Result<Vec<u32>, Vec<(u32, u32)>> {
    let first = offsets[block.start];
    let mut repeated = Vec::new();
    let mut kept = Vec::with_capacity(block.len());
    for i in block {
        let says = &mut says[offsets[i] - first..offsets[i + 1] - first];
        says.sort_unstable_by_key(|s| (s.annotator, s.label, s.weight.to_bits()));
        let repeats = says.windows(2).any(|w| w[0].annotator == w[1].annotator);
        kept.push(match policy {
            Duplicates::Share | Duplicates::Last if repeats => share(says),
            Duplicates::Error if repeats => {
                let pairs = says.windows(2).filter(|w| w[0].annotator == w[1].annotator);
                repeated.extend(pairs.map(|w| (i as u32, w[0].annotator)));
                0
            }
            _ => says.len() as u32,
        });
    }
    if repeated.is_empty() { Ok(kept) } else { Err(repeated) }
}

/// Merges equal answers of an annotator and scales different ones, so that together they are one say. The merged
/// says move to the front; returns how many there are.
#[allow(clippy::cast_possible_truncation)]
fn share(says: &mut [Say]) -> u32 {
    let mut out = 0;
    let mut start = 0;
    while start < says.len() {
        let annotator = says[start].annotator;
        let end = start + says[start..].iter().take_while(|s| s.annotator == annotator).count();
        let sum: f64 = says[start..end].iter().map(|s| s.weight).sum();
        let heaviest = says[start..end].iter().map(|s| s.weight).fold(0.0, f64::max);
        let total = heaviest.max(sum.min(1.0));
        let mut at = start;
        while at < end {
            let label = says[at].label;
            let same = says[at..end].iter().take_while(|s| s.label == label);
            let (n, weight) = same.fold((0, 0.0), |(n, w), s| (n + 1, w + s.weight));
            says[out] = Say { annotator, label, weight: total * (weight / sum) };
            out += 1;
            at += n;
        }
        start = end;
    }
    out as u32
}

/// Closes the gaps that merged says left.
fn compact(says: &mut Vec<Say>, offsets: &mut [usize], kept: &[u32]) {
    if offsets.last() == Some(&kept.iter().map(|k| *k as usize).sum()) {
        return;
    }
    let mut out = 0;
    for (i, kept) in kept.iter().enumerate() {
        let (start, kept) = (offsets[i], *kept as usize);
        says.copy_within(start..start + kept, out);
        offsets[i] = out;
        out += kept;
    }
    offsets[kept.len()] = out;
    says.truncate(out);
}

/// The distinct labels of each annotator, ascending: (offsets by annotator, labels).
fn columns_of_annotators(dims: Dims, says: &[Say]) -> (Vec<usize>, Vec<u32>) {
    let offsets = prefix_sum(&count(says.iter().map(|s| s.annotator), dims.annotators));
    let mut next = offsets.clone();
    let mut labels = vec![0_u32; says.len()];
    for say in says {
        let place = &mut next[say.annotator as usize];
        labels[*place] = say.label;
        *place += 1;
    }
    let distinct: Vec<Vec<u32>> = split_by(&mut labels, &offsets, 1)
        .into_par_iter()
        .with_min_len(64)
        .map(|(_, labels)| {
            labels.sort_unstable();
            let mut labels = labels.to_vec();
            labels.dedup();
            labels
        })
        .collect();
    #[allow(clippy::cast_possible_truncation)]
    let counts: Vec<u32> = distinct.iter().map(|d| d.len() as u32).collect();
    (prefix_sum(&counts), distinct.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 3 };

    fn build(rows: &[(u32, u32, u32, f64)], policy: Duplicates) -> Result<Annotations, Repeated> {
        let instance: Vec<u32> = rows.iter().map(|r| r.0).collect();
        let say = |n: usize| Say { annotator: rows[n].1, label: rows[n].2, weight: rows[n].3 };
        Annotations::build(DIMS, &instance, say, policy)
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
