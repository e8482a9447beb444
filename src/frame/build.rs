//! Builds the sparse views of [`Annotations`] from rows in any order, and settles repeated answers on the way.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::annotations::{Annotations, BLOCK, Dims, split_by};

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
        let mut places = Places(std::mem::take(&mut self.by_column));
        for i in 0..self.dims.instances {
            for at in self.by_instance[i]..self.by_instance[i + 1] {
                let place = places.next(self.columns[at]);
                self.instances[place] = number(i);
                if let (Some(out), Some(weights)) = (&mut self.column_weights, &self.weights) {
                    out[place] = weights[at];
                }
            }
        }
        self.by_column = places.offsets();
    }
}

/// The distinct labels of each annotator, ascending: (offsets by annotator, labels).
fn distinct_columns(dims: Dims, rows: &Rows) -> (Vec<usize>, Vec<u32>) {
    let mut counts = vec![0_u32; dims.annotators];
    let n_cells = dims.annotators.saturating_mul(dims.labels);
    let mut labels = Vec::with_capacity(n_cells.min(rows.label.len()));
    let mut add = |annotator: usize, label: u32| {
        counts[annotator] += 1;
        labels.push(label);
    };
    let pairs = rows.annotator.iter().zip(&rows.label);
    // A flag a cell is fastest, as long as the cells are not many more than the annotations.
    if n_cells <= 8 * rows.label.len() + BLOCK {
        let mut occurs = vec![false; n_cells];
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

/// Every owner's next free place; where the first one's begin, the next one's end.
struct Places(Vec<usize>);

impl Places {
    #[inline]
    fn next(&mut self, owner: u32) -> usize {
        let next = &mut self.0[owner as usize];
        *next += 1;
        *next - 1
    }

    /// The offsets that it was made of, when all places are taken: each stands where its neighbour's stood.
    fn offsets(self) -> Vec<usize> {
        let mut offsets = self.0;
        offsets.rotate_right(1);
        offsets[0] = 0;
        offsets
    }
}

/// The view by instance while repeated answers are being settled.
struct Said {
    offsets: Vec<usize>,
    columns: Vec<u32>,
    weights: Option<Vec<f64>>,
}

impl Said {
    fn scatter(offsets: Vec<usize>, instance: &[u32], column: &[u32], weight: &[f64]) -> Self {
        let mut places = Places(offsets);
        let mut columns = vec![0; column.len()];
        let mut weights = (!weight.is_empty()).then(|| vec![0.0; weight.len()]);
        for (row, i) in instance.iter().enumerate() {
            let place = places.next(*i);
            columns[place] = column[row];
            if let Some(weights) = &mut weights {
                weights[place] = weight[row];
            }
        }
        Self { offsets: places.offsets(), columns, weights }
    }

    /// Sorts every instance's columns and settles repeated answers.
    fn settle(&mut self, by_annotator: &[usize], policy: Duplicates) -> Result<(), Repeated> {
        let annotators = owners(by_annotator);
        let Self { offsets, columns, weights } = self;
        let parts = split_by(columns, offsets, 1, BLOCK).into_par_iter();
        if let Some(weights) = weights {
            let weights = split_by(weights, offsets, 1, BLOCK);
            parts.zip(weights).for_each(|((instances, columns), (_, weights))| {
                let first = offsets[instances.start];
                for own in instances.map(|i| offsets[i] - first..offsets[i + 1] - first) {
                    sort_with_weights(&mut columns[own.clone()], &mut weights[own]);
                }
            });
        } else {
            parts.for_each(|(instances, columns)| {
                let first = offsets[instances.start];
                for i in instances {
                    columns[offsets[i] - first..offsets[i + 1] - first].sort_unstable();
                }
            });
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
                    let next = start
                        + self.columns[start..stop].iter().take_while(|c| **c == column).count();
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

fn sort_with_weights(columns: &mut [u32], weights: &mut [f64]) {
    let mut said: Vec<(u32, f64)> = columns.iter().copied().zip(weights.iter().copied()).collect();
    said.sort_unstable_by_key(|(column, weight)| (*column, weight.to_bits()));
    for (at, (column, weight)) in said.into_iter().enumerate() {
        (columns[at], weights[at]) = (column, weight);
    }
}

/// The owner of each item, from the owners' offsets.
fn owners(offsets: &[usize]) -> Vec<u32> {
    let mut owners = Vec::with_capacity(offsets.last().copied().unwrap_or_default());
    for (owner, own) in offsets.windows(2).enumerate() {
        owners.extend(std::iter::repeat_n(number(owner), own[1] - own[0]));
    }
    owners
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
fn number(index: usize) -> u32 {
    index as u32
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
        let a =
            build(&[(2, 1, 0, 1.0), (0, 0, 1, 1.0), (0, 1, 0, 1.0)], Duplicates::Share).unwrap();
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
