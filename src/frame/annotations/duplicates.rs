//! Repeated answers of one annotator to one instance, and the policies that resolve them.

use std::ops::Range;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::blocks::ITEMS_PER_BLOCK;
use super::group::Grouped;
use super::offsets::{number, split_by};
use super::weights::Weights;

/// What to do with repeated answers of one annotator to one instance (and question).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// They share one annotation. Its weight is the larger of the heaviest row's weight and the sum of all weights, of
    /// which at most 1 counts: three equal labels count once, two different ones one half each, and the parts of a soft
    /// annotation add up.
    #[default]
    Share,
    /// The newest by `annotated_at` stays; equally new ones share. A row without a time is older than all others.
    Last,
    /// Each counts in full.
    Keep,
    /// Repeated answers are an error.
    Error,
}

/// The (instance, annotator) pairs that answered more than once, where that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated(pub Vec<(u32, u32)>);

/// The view by instance before repeated answers are resolved.
pub(super) struct ByInstance {
    offsets: Vec<usize>,
    pairs: Vec<u32>,
    weights: Option<Vec<f64>>,
}

/// Offsets by instance, pairs, and weights.
pub(super) type Resolved = (Vec<usize>, Vec<u32>, Weights);

impl ByInstance {
    /// The view, still with repeated answers, and the number of rows of each instance.
    pub(super) fn new(grouped: Grouped) -> (Self, Vec<u32>) {
        let Grouped { offsets, pairs, weights, rows_of_instance } = grouped;
        let weights = (!weights.is_empty()).then_some(weights);
        (Self { offsets, pairs, weights }, rows_of_instance)
    }

    /// Sorts every instance's pairs and resolves repeated answers.
    ///
    /// `annotators` has the annotator of each pair.
    pub(super) fn resolve(
        mut self,
        annotators: &[u32],
        policy: Duplicates,
    ) -> Result<Resolved, Repeated> {
        let mut repeated = self.sort_and_find_repeated(annotators);
        let weights = if repeated.is_empty() || policy == Duplicates::Keep {
            self.weights.map_or(Weights::Ones, Weights::new)
        } else if policy == Duplicates::Error {
            // Those of one annotator to an instance are adjacent.
            repeated.dedup();
            return Err(Repeated(repeated));
        } else {
            self.share(annotators, &repeated)
        };
        Ok((self.offsets, self.pairs, weights))
    }

    /// Sorts every instance's pairs. Returns (instance, annotator) of every answer after an annotator's first to an
    /// instance.
    fn sort_and_find_repeated(&mut self, annotators: &[u32]) -> Vec<(u32, u32)> {
        let Self { offsets, pairs, weights } = self;
        let offsets = offsets.as_slice();
        let parts = split_by(pairs, offsets, 1, ITEMS_PER_BLOCK);
        let weights: Vec<&mut [f64]> = match weights {
            Some(all) => {
                let weights = split_by(all, offsets, 1, ITEMS_PER_BLOCK);
                weights.into_iter().map(|(_, weights)| weights).collect()
            }
            None => parts.iter().map(|_| <&mut [f64]>::default()).collect(),
        };
        let sort = |((instances, pairs), weights): ((Range<usize>, &mut [u32]), &mut [f64])| {
            let (first, mut buffer, mut repeated) =
                (offsets[instances.start], Vec::new(), Vec::new());
            for i in instances {
                let positions = offsets[i] - first..offsets[i + 1] - first;
                let pairs = &mut pairs[positions.clone()];
                // If all weights are 1 the list is empty, and only an instance without annotations finds its part.
                match weights.get_mut(positions) {
                    Some(weights) => sort_with_weights(pairs, weights, &mut buffer),
                    None => pairs.sort_unstable(),
                }
                add_repeated(number(i), pairs, annotators, &mut repeated);
            }
            repeated
        };
        parts.into_par_iter().zip(weights).flat_map_iter(sort).collect()
    }

    /// Merges an annotator's equal answers to an instance and scales different ones, so that together they count as one
    /// annotation. The annotations of other instances are moved unchanged.
    fn share(&mut self, annotators: &[u32], repeated: &[(u32, u32)]) -> Weights {
        let mut all = self.weights.take();
        let (mut few, mut out, mut next) = ((Vec::new(), Vec::new()), 0, 0);
        for of_instance in repeated.chunk_by(|a, b| a.0 == b.0) {
            let i = of_instance[0].0 as usize;
            out = self.move_to(out, next..i, all.as_deref_mut());
            next = i + 1;
            let positions = self.offsets[i]..self.offsets[i + 1];
            self.offsets[i] = out;
            let weight = |at: usize| all.as_ref().map_or(1.0, |all| all[at]);
            let shared = share_one(&self.pairs, positions, annotators, weight);
            for (pair, weight) in shared {
                self.pairs[out] = pair;
                match &mut all {
                    Some(all) => all[out] = weight,
                    None if weight != 1.0 => {
                        few.0.push(out);
                        few.1.push(weight);
                    }
                    None => {}
                }
                out += 1;
            }
        }
        let n_instances = self.offsets.len() - 1;
        out = self.move_to(out, next..n_instances, all.as_deref_mut());
        self.offsets[n_instances] = out;
        self.pairs.truncate(out);
        match all {
            None => Weights::few(out, few.0, few.1),
            Some(mut all) => {
                all.truncate(out);
                Weights::new(all)
            }
        }
    }

    /// Moves the annotations of adjacent instances, with their weights, to position `out`; returns the position after
    /// the last.
    fn move_to(
        &mut self,
        out: usize,
        instances: Range<usize>,
        weights: Option<&mut [f64]>,
    ) -> usize {
        let positions = self.offsets[instances.start]..self.offsets[instances.end];
        let gap = positions.start - out;
        if gap > 0 {
            self.offsets[instances].iter_mut().for_each(|offset| *offset -= gap);
            self.pairs.copy_within(positions.clone(), out);
            weights.into_iter().for_each(|all| all.copy_within(positions.clone(), out));
        }
        positions.end - gap
    }
}

/// Adds (instance, annotator) for every answer after an annotator's first to an instance, whose pairs are sorted.
fn add_repeated(instance: u32, pairs: &[u32], annotators: &[u32], repeated: &mut Vec<(u32, u32)>) {
    let of = |pair: u32| annotators[pair as usize];
    for pair in pairs.windows(2) {
        if of(pair[0]) == of(pair[1]) {
            repeated.push((instance, of(pair[0])));
        }
    }
}

/// The annotations of one instance, (pair, weight), after the answers of each annotator share one annotation;
/// `positions` are those of its annotations in `pairs`.
fn share_one(
    pairs: &[u32],
    positions: Range<usize>,
    annotators: &[u32],
    weight: impl Fn(usize) -> f64,
) -> Vec<(u32, f64)> {
    let mut shared = Vec::with_capacity(positions.len());
    let mut start = positions.start;
    while start < positions.end {
        let annotator = annotators[pairs[start] as usize];
        let same = |c: &&u32| annotators[**c as usize] == annotator;
        let stop = start + pairs[start..positions.end].iter().take_while(same).count();
        let sum: f64 = (start..stop).map(&weight).sum();
        let heaviest = (start..stop).map(&weight).fold(0.0, f64::max);
        let total = heaviest.max(sum.min(1.0));
        while start < stop {
            let pair = pairs[start];
            let equal = pairs[start..stop].iter().take_while(|c| **c == pair).count();
            let of_pair: f64 = (start..start + equal).map(&weight).sum();
            // A tiny part of a large sum would be 0, a weight that nobody gave and nothing can be divided by.
            shared.push((pair, (total * (of_pair / sum)).max(f64::MIN_POSITIVE)));
            start += equal;
        }
    }
    shared
}

/// Sorts the annotations of one instance by pair, then by weight.
fn sort_with_weights(pairs: &mut [u32], weights: &mut [f64], buffer: &mut Vec<(u32, f64)>) {
    buffer.clear();
    buffer.extend(pairs.iter().copied().zip(weights.iter().copied()));
    buffer.sort_unstable_by_key(|(pair, weight)| (*pair, weight.to_bits()));
    for (at, (pair, weight)) in buffer.iter().enumerate() {
        (pairs[at], weights[at]) = (*pair, *weight);
    }
}
