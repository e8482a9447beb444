//! How often two votes fall on one instance: the second moments of a crowd, sparse.
//!
//! ```text
//! a vote     = (annotator, class): the annotator's pair of that class, or a trusted class, as the vote of one more annotator
//! of vote v    offsets[v] .. offsets[v+1]  ->  the votes w of other annotators on the same instances, ascending
//!                                              sum over the instances of value(v) value(w)
//! ```
//! # Why
//! A matrix of all annotators by all annotators has a cell for each two of 100 000 who never met. Here there are at most as
//! many entries as annotations times [`MAX_OTHERS`]: on an instance with more annotations, each meets its neighbours alone,
//! half of them on either side in the order of the annotators, the last being the first's neighbour. Each entry is a sum
//! over instances in their order, so that threads change no bit.

use std::ops::Range;

use rayon::prelude::*;

use crate::frame::{Annotations, Dims, MemoryEstimate, QuestionSizes, dense_memory_estimate};

/// With how many others an annotation of an instance is counted.
pub(super) const MAX_OTHERS: usize = 512;

/// The votes that a task counts.
const VOTES_PER_BLOCK: usize = 16;

/// What a vote with a weight is worth, given the weight of all votes of its annotator on the instance.
pub(super) type VoteValue = fn(f64, f64) -> f64;

/// The sums of products of votes.
pub(super) struct CoOccurrence<'a> {
    a: &'a Annotations,
    offsets: Vec<usize>,
    votes: Vec<u32>,
    sums: Vec<f64>,
    /// The sum of the values of each vote.
    pub(super) totals: Vec<f64>,
}

impl<'a> CoOccurrence<'a> {
    pub(super) fn new(a: &'a Annotations, value: VoteValue) -> Self {
        let counter = Counter::new(a, value);
        let n = counter.n_votes();
        let blocks = (0..n.div_ceil(VOTES_PER_BLOCK)).into_par_iter();
        let of_blocks: Vec<Counted> = blocks
            .map_init(
                || vec![0.0; n],
                |sums, block| {
                    let start = block * VOTES_PER_BLOCK;
                    counter.count(start..(start + VOTES_PER_BLOCK).min(n), sums)
                },
            )
            .collect();
        let (mut offsets, mut totals) = (vec![0], Vec::with_capacity(n));
        let (mut votes, mut sums) = (Vec::new(), Vec::new());
        for block in of_blocks {
            let before = votes.len();
            offsets.extend(block.ends.iter().map(|end| before + end));
            totals.extend(block.totals);
            votes.extend(block.votes);
            sums.extend(block.sums);
        }
        Self { a, offsets, votes, sums, totals }
    }

    /// The votes of each annotator, who are in no order; the one who knows the trusted classes, where any is, comes last.
    pub(super) fn annotators(&self) -> Vec<(u32, Range<usize>)> {
        let Dims { annotators, .. } = self.a.dims();
        let of = |r: usize| (r as u32, self.a.pairs_of_annotator(r));
        let gold = self.a.n_pairs()..self.totals.len();
        let gold = (!gold.is_empty()).then_some((annotators as u32, gold));
        (0..annotators).map(of).chain(gold).collect()
    }

    /// The votes of other annotators on the instances of a vote, with their sums.
    pub(super) fn common_votes(&self, vote: usize) -> impl Iterator<Item = (u32, f64)> {
        let range = self.offsets[vote]..self.offsets[vote + 1];
        self.votes[range.clone()].iter().copied().zip(self.sums[range].iter().copied())
    }

    pub(super) fn annotator_of(&self, vote: u32) -> u32 {
        let of_gold = vote as usize >= self.a.n_pairs();
        if of_gold { self.a.dims().annotators as u32 } else { self.a.annotator_of_pair(vote) }
    }

    /// The class of a vote; a label that is no class is at least the number of classes, and never counted.
    pub(super) fn class_of(&self, vote: u32) -> u32 {
        let of_gold = (vote as usize).checked_sub(self.a.n_pairs());
        of_gold.map_or_else(|| self.a.label_of_pair(vote), |class| class as u32)
    }
}

/// The memory of a fit that counts co-occurrences, with this many numbers for each pair of annotator and label. How many
/// pairs meet is not known before they are counted: about as many as if all instances had twice the mean of annotations.
pub(super) fn memory_estimate(
    sizes: &QuestionSizes,
    numbers_of_pair: usize,
) -> Option<MemoryEstimate> {
    let own = dense_memory_estimate(sizes)?;
    let mean = sizes.annotations.div_ceil(sizes.dims.instances.max(1));
    let met = sizes.annotations.checked_mul((2 * mean).min(MAX_OTHERS))?;
    let met = met.min(sizes.pairs.saturating_mul(sizes.pairs));
    let entries = met.checked_mul(size_of::<u32>() + size_of::<f64>())?.checked_mul(2)?;
    let pairs = sizes.pairs.checked_mul(numbers_of_pair)?.checked_mul(size_of::<f64>())?;
    Some(MemoryEstimate { working: entries.checked_add(pairs)?, ..own })
}

/// The entries of adjacent votes.
#[derive(Default)]
struct Counted {
    ends: Vec<usize>,
    votes: Vec<u32>,
    sums: Vec<f64>,
    totals: Vec<f64>,
}

struct Counter<'a> {
    a: &'a Annotations,
    value: VoteValue,
    /// The trusted instances of each class, where any is trusted.
    trusted: Vec<Vec<u32>>,
}

impl<'a> Counter<'a> {
    fn new(a: &'a Annotations, value: VoteValue) -> Self {
        let mut trusted = Vec::new();
        for i in 0..a.dims().instances {
            if let Some(class) = a.trusted_class(i) {
                trusted.resize(a.dims().classes, Vec::new());
                trusted[class as usize].push(i as u32);
            }
        }
        Self { a, value, trusted }
    }

    fn n_votes(&self) -> usize {
        self.a.n_pairs() + self.trusted.len()
    }

    fn instances_of(&self, vote: usize) -> &[u32] {
        let of_gold = vote.checked_sub(self.a.n_pairs());
        of_gold.map_or_else(|| self.a.instances_of_pair(vote), |class| &self.trusted[class])
    }

    /// The annotator, the vote and its value, of every vote of an instance, ascending by vote.
    fn write_votes(&self, i: usize, votes: &mut Vec<(u32, u32, f64)>) {
        let Dims { annotators, classes, .. } = self.a.dims();
        votes.clear();
        for (pair, weight) in self.a.annotations_of_instance(i) {
            if self.a.label_of_pair(pair) as usize >= classes {
                continue;
            }
            match votes.last_mut() {
                Some((_, last, sum)) if *last == pair => *sum += weight,
                _ => votes.push((self.a.annotator_of_pair(pair), pair, weight)),
            }
        }
        for own in votes.chunk_by_mut(|one, next| one.0 == next.0) {
            let all: f64 = own.iter().map(|(.., weight)| weight).sum();
            own.iter_mut().for_each(|(.., weight)| *weight = (self.value)(*weight, all));
        }
        let vote = |class: u32| (annotators as u32, self.a.n_pairs() as u32 + class, 1.0);
        votes.extend(self.a.trusted_class(i).map(vote));
    }

    /// `sums` is a buffer of zeros, `[vote]`.
    fn count(&self, votes: Range<usize>, sums: &mut [f64]) -> Counted {
        let (mut counted, mut of_instance, mut met) = (Counted::default(), Vec::new(), Vec::new());
        for vote in votes {
            let (mut total, mut last) = (0.0, None);
            for i in self.instances_of(vote) {
                // Repeated annotations are one vote.
                if last.replace(*i) == Some(*i) {
                    continue;
                }
                self.write_votes(*i as usize, &mut of_instance);
                let Ok(at) = of_instance.binary_search_by_key(&vote, |(_, v, _)| *v as usize)
                else {
                    continue;
                };
                let ((annotator, _, value), n) = (of_instance[at], of_instance.len());
                total += value;
                let reach = (n - 1).min(MAX_OTHERS);
                for step in (1..=reach - reach / 2).chain(n - reach / 2..n) {
                    let (other, met_vote, of_other) = of_instance[(at + step) % n];
                    if other != annotator {
                        let sum = &mut sums[met_vote as usize];
                        if *sum == 0.0 {
                            met.push(met_vote);
                        }
                        *sum += value * of_other;
                    }
                }
            }
            met.sort_unstable();
            met.dedup();
            for v in met.drain(..) {
                counted.votes.push(v);
                counted.sums.push(std::mem::take(&mut sums[v as usize]));
            }
            counted.ends.push(counted.votes.len());
            counted.totals.push(total);
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, tiny, weighted};

    fn entries(co: &CoOccurrence<'_>) -> Vec<(u32, u32, u32, u32, f64)> {
        let of = |v: usize| co.common_votes(v).map(move |(w, sum)| (v as u32, w, sum));
        let all = (0..co.totals.len()).flat_map(of);
        let named = all.map(|(v, w, sum)| {
            (co.annotator_of(v), co.class_of(v), co.annotator_of(w), co.class_of(w), sum)
        });
        let mut named: Vec<_> = named.collect();
        named.sort_by_key(|(r, k, s, l, _)| (*r, *k, *s, *l));
        named
    }

    /// Annotators 0 and 1 meet on instance 0 (both 0) and 1 (0 and 1); a trusted class, 1, meets both on instance 1.
    #[test]
    fn votes_meet_on_instances_and_with_trusted_classes() {
        let mut a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 1, 1), (2, 0, 2)]);
        a.trusted = Some(vec![None, Some(1), None]);
        let want = [
            (0, 0, 1, 0, 1.0),
            (0, 0, 1, 1, 1.0),
            (0, 0, 2, 1, 1.0),
            (1, 0, 0, 0, 1.0),
            (1, 1, 0, 0, 1.0),
            (1, 1, 2, 1, 1.0),
            (2, 1, 0, 0, 1.0),
            (2, 1, 1, 1, 1.0),
        ];
        assert_eq!(entries(&CoOccurrence::new(&a, |weight, _| weight)), want);
    }

    /// Annotator 0 is split .3 and .9, annotator 1 has the weight 2.
    #[test]
    fn values_are_weights_or_shares() {
        let dims = Dims { instances: 1, annotators: 2, classes: 2, labels: 2 };
        let a = weighted(dims, &[(0, 0, 0), (0, 0, 1), (0, 1, 1)], vec![0.3, 0.9, 2.0]);
        let sums =
            |value| entries(&CoOccurrence::new(&a, value)).iter().map(|e| e.4).collect::<Vec<_>>();
        assert_close(&sums(|weight, _| weight), &[0.6, 1.8, 0.6, 1.8], 1e-12, "weights");
        assert_close(&sums(|weight, all| weight / all), &[0.25, 0.75, 0.25, 0.75], 1e-12, "shares");
    }

    #[test]
    fn an_instance_with_many_annotations_counts_the_neighbours_of_each_from_both_sides() {
        let rows: Vec<_> = (0..1000).map(|r| (0, r, 0)).collect();
        let all = entries(&CoOccurrence::new(&tiny(1, &rows), |weight, _| weight));
        assert_eq!(all.len(), 1000 * MAX_OTHERS);
        for (r, _, s, ..) in &all {
            assert!(all.binary_search_by_key(&(*s, *r), |(r, _, s, ..)| (*r, *s)).is_ok());
        }
    }
}
