//! The M-step: adds up the counts of all ranges, and turns those of each annotator into his likelihood.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::e_step::Likelihood;
use super::estimator::{Estimator, PairCounts, StateLayout, n_groups};
use super::logarithms::{larger, ln};
use super::pair_rows::{PairRows, for_width};
use super::statistics::{Statistics, add};
use crate::frame::{Annotations, ITEMS_PER_BLOCK, split_by};
use crate::model::numerics::MIN_LIKELIHOOD;
use crate::model::posterior::Posterior;

/// Writes the counts of all ranges, added in the order of the ranges, into `sums`.
pub(super) fn merge_counts(parts: &[Statistics], sums: &mut PairRows) {
    let Some((first, others)) = parts.split_first() else { return };
    let block = ITEMS_PER_BLOCK * sums.stride();
    sums.cells_mut().par_chunks_mut(block).enumerate().for_each(|(at, sums)| {
        let own = at * block..at * block + sums.len();
        sums.copy_from_slice(&first.counts.cells()[own.clone()]);
        for part in others {
            add(sums, &part.counts.cells()[own.clone()]);
        }
    });
}

/// What the likelihood is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EstimatedFrom {
    /// The expected counts, which it replaces, and the state.
    Counts,
    /// The state alone.
    State,
}

/// Computes the likelihood of all annotators; returns the sum of their terms.
pub(super) fn estimate<E: Estimator>(
    a: &Annotations,
    estimator: &E,
    source: EstimatedFrom,
    state: &mut [f64],
    likelihood: &mut Likelihood,
) -> f64 {
    // Few enough for an even distribution, many enough that the cost of scheduling is small.
    let at_once = (a.dims().annotators / 512).clamp(8, 4096);
    let (stride, to_logs) = (likelihood.rows.stride(), likelihood.are_logs);
    let work = split_by(likelihood.rows.cells_mut(), a.pair_offsets(), stride, at_once);
    let layout = StateLayout::new(estimator, a.dims().classes);
    let mut rest = state;
    let mut units = Vec::with_capacity(work.len());
    for (slots, cells) in work {
        let (state, others) = rest.split_at_mut(layout.of_slots(a, &slots).len());
        units.push((slots, cells, state));
        rest = others;
    }
    let arch = Arch::new();
    let terms: Vec<f64> = units
        .into_par_iter()
        .map(|(slots, cells, state)| {
            for_width!(stride, W => {
                let rows = cells.as_chunks_mut::<W>().0;
                arch.dispatch(AnnotatorChunk { a, estimator, source, slots, state, rows, to_logs })
            })
        })
        .collect();
    terms.iter().sum()
}

/// The annotators of adjacent slots, whose counts become likelihoods.
struct AnnotatorChunk<'a, const W: usize, E> {
    a: &'a Annotations,
    estimator: &'a E,
    source: EstimatedFrom,
    slots: Range<usize>,
    state: &'a mut [f64],
    rows: &'a mut [[f64; W]],
    to_logs: bool,
}

impl<const W: usize, E: Estimator> WithSimd for AnnotatorChunk<'_, W, E> {
    type Output = f64;

    // Inlined with all callees, so that they are compiled for the vector instructions of this processor.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Self { a, estimator, source, slots, state, rows, to_logs } = self;
        let (offsets, n_classes) = (a.pair_offsets(), a.dims().classes);
        let layout = StateLayout::new(estimator, n_classes);
        let (mut terms, mut rest, mut rest_of_state) = (0.0, rows, state);
        for slot in slots {
            let pairs = offsets[slot]..offsets[slot + 1];
            let has_pairs = !pairs.is_empty();
            // The state of an annotator without annotations is reported too.
            if !has_pairs && !layout.has_any() {
                continue;
            }
            let (own, others) = rest.split_at_mut(pairs.len() * n_groups::<W>(n_classes));
            rest = others;
            let index = a.annotator_in(slot);
            let (state, others) =
                rest_of_state.split_at_mut(layout.of_slots(a, &(slot..slot + 1)).len());
            rest_of_state = others;
            let labels = a.labels_in(pairs);
            let pairs = PairCounts { index, labels, n_classes, state, rows: &mut *own };
            match source {
                EstimatedFrom::Counts => {
                    let term = estimator.estimate(pairs);
                    terms += if has_pairs { term } else { 0.0 };
                }
                EstimatedFrom::State => estimator.start(pairs),
            }
            for group in own {
                for cell in group {
                    // NaN stays NaN, which the objective then shows.
                    let raised = larger(*cell, MIN_LIKELIHOOD);
                    *cell = if to_logs { ln(raised) } else { raised };
                }
            }
        }
        terms
    }
}

/// The expected counts of these posteriors, `[pair, class]`.
#[must_use]
pub fn expected_counts_of(a: &Annotations, t: &Posterior) -> Vec<f64> {
    let n = a.dims().classes.max(1);
    let mut counts = vec![0.0; a.n_pairs() * n];
    counts.par_chunks_mut(ITEMS_PER_BLOCK * n).enumerate().for_each(|(block, counts)| {
        let pairs = block * ITEMS_PER_BLOCK..;
        for (pair, counts) in pairs.zip(counts.chunks_exact_mut(n)) {
            let weights = a.weights_of_pair(pair).iter();
            for (i, weight) in a.instances_of_pair(pair).iter().zip(weights) {
                let row = t.row(*i as usize);
                counts.iter_mut().zip(row).for_each(|(count, p)| *count += weight * p);
            }
        }
    });
    counts
}
