//! Repeated answers of one annotator to one instance, and how they are settled.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::annotations::BLOCK;
use super::offsets::{Places, number, split_by};

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

/// The (instance, annotator) pairs that answered more than once, where that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated(pub Vec<(u32, u32)>);

/// The view by instance while repeated answers are being settled.
pub(super) struct Said {
    pub(super) offsets: Vec<usize>,
    pub(super) columns: Vec<u32>,
    pub(super) weights: Option<Vec<f64>>,
}

impl Said {
    pub(super) fn scatter(
        offsets: Vec<usize>,
        instance: &[u32],
        column: &[u32],
        weight: &[f64],
    ) -> Self {
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
    ///
    /// `annotators` has the owner of each column.
    pub(super) fn settle(
        &mut self,
        annotators: &[u32],
        policy: Duplicates,
    ) -> Result<(), Repeated> {
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
        let repeated = self.repeated(annotators);
        if repeated.is_empty() || policy == Duplicates::Keep {
            return Ok(());
        }
        if policy == Duplicates::Error {
            return Err(Repeated(repeated));
        }
        self.share(annotators);
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
