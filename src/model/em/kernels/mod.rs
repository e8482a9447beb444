//! E-step and M-step of the models whose likelihood is a product over pairs, and an E-step for other models.
//!
//! A pair is (annotator, label given). Its likelihood is a row over classes, P(label given class).
//!
//! ```text
//! sweep     per instance:  T[k] ~ prior[k] * product over its pairs p of likelihood[p][k]
//!           Statistics  =  { counts[p][k] += T[k],  class_counts[k] += T[k],  log_likelihood += ln sum }
//! merge     Statistics + Statistics, in the order of ranges of instances
//! estimate  counts of one annotator -> his rows, by an Estimator and its state
//! ```
//! Nothing else passes from an iteration to the next. A unit of parallel work is a range of instances or some annotators;
//! the ranges follow from the data alone, and each sum has a fixed order, so that the result does not depend on the
//! number of threads. A [`Crowd`] holds the annotations and sweeps; [`PairKernel`] merges and estimates. `log_domain` is the
//! E-step of models whose likelihood is not a product over pairs.

mod crowd;
mod dirichlet;
mod e_step;
mod estimator;
mod given_rows;
pub(crate) mod log_domain;
mod logarithms;
mod m_step;
mod pair_rows;
mod row_products;
mod smoothing;
mod statistics;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use crowd::Crowd;
pub use dirichlet::Dirichlet;
pub(crate) use dirichlet::DirichletParameter;
pub use e_step::{Likelihood, Prior};
use estimator::StateLayout;
pub use estimator::{Estimator, PairCounts, PooledCounts, n_groups};
pub use given_rows::GivenRows;
pub use log_domain::LogLikelihood;
use m_step::EstimatedFrom;
pub use m_step::expected_counts_of;
pub use pair_rows::{PairRows, stride};
use rayon::prelude::*;
pub(crate) use smoothing::CellPrior;
pub use statistics::Statistics;

use crate::frame::{
    Annotations, Dims, ITEMS_PER_BLOCK, MAX_RANGES, MemoryEstimate, QuestionSizes,
    dense_memory_estimate, ranges_of_instances,
};
use crate::model::posterior::Posterior;

/// The likelihood of all pairs, and the statistics from which the next one is estimated; allocated once.
pub struct PairKernel {
    parts: Vec<Statistics>,
    likelihood: Likelihood,
    /// The estimator's state of all annotators, in the order of the pairs.
    state: Vec<f64>,
    layout: StateLayout,
    /// The estimator's terms of the objective, at the likelihood of the last M-step.
    terms: f64,
}

impl PairKernel {
    /// Allocates what a fit to these annotations needs.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let Dims { instances, classes, .. } = a.dims();
        let ranges: Vec<_> =
            ranges_of_instances(instances, n_ranges(a.dims(), a.len(), a.n_pairs())).collect();
        let part = |instances| Statistics::new(a.n_pairs(), classes, instances);
        let rows = PairRows::zeros(a.n_pairs(), classes);
        Self {
            parts: ranges.into_iter().map(part).collect(),
            likelihood: Likelihood { rows, are_logs: a.are_weighted() },
            state: Vec::new(),
            layout: StateLayout::default(),
            terms: 0.0,
        }
    }

    /// Whether the E-steps that follow count assignments: the most probable classes of an instance share it.
    pub fn set_hard(&mut self, are_hard: bool) {
        self.parts.iter_mut().for_each(|part| part.are_hard = are_hard);
    }

    /// Counts the posteriors of a start: `write` writes those of adjacent instances, `[instance, class]`, into zeros.
    pub fn count(&mut self, crowd: &impl Crowd, write: impl Fn(Range<usize>, &mut [f64]) + Sync) {
        self.state.clear();
        self.parts.par_iter_mut().with_max_len(1).for_each(|part| {
            part.clear();
            crowd.count(&write, part);
        });
    }

    /// The sum of the posteriors of annotated instances, `[class]`.
    #[must_use]
    pub fn class_counts(&self, n_classes: usize) -> Vec<f64> {
        let mut sums = vec![0.0; n_classes];
        self.parts.iter().for_each(|part| statistics::add(&mut sums, &part.class_counts));
        sums
    }

    /// The expected counts, `[pair, class]`.
    #[must_use]
    pub fn expected_counts(&mut self, a: &Annotations) -> Vec<f64> {
        m_step::merge_counts(&self.parts, &mut self.likelihood.rows);
        self.likelihood.rows.unpadded(a.dims().classes)
    }

    /// Starts at a state of every annotator, `[annotator, state_len]`, of an estimator without states of pairs.
    pub fn start_at<E: Estimator>(&mut self, a: &Annotations, estimator: &E, state: &[f64]) {
        let n_state = estimator.state_len();
        self.layout = StateLayout::new(estimator, a.dims().classes);
        self.state = vec![0.0; state.len()];
        for (r, state) in state.chunks_exact(n_state.max(1)).enumerate() {
            self.state[a.slot_of(r) * n_state..][..n_state].copy_from_slice(state);
        }
        m_step::estimate(a, estimator, EstimatedFrom::State, &mut self.state, &mut self.likelihood);
    }

    /// The M-step: estimates the likelihood from the counts.
    pub fn estimate<E: Estimator>(&mut self, a: &Annotations, estimator: &mut E) {
        m_step::merge_counts(&self.parts, &mut self.likelihood.rows);
        self.layout = StateLayout::new(estimator, a.dims().classes);
        self.state.resize(self.layout.len(a), 0.0);
        let Self { state, layout, likelihood, .. } = self;
        estimator.pool(&PooledCounts { a, rows: &likelihood.rows, state, layout: *layout });
        let terms = m_step::estimate(a, estimator, EstimatedFrom::Counts, state, likelihood);
        self.terms = terms + estimator.shared_term();
    }

    /// The E-step: the statistics of the posteriors that follow from the likelihood. Returns the marginal log-likelihood;
    /// of assignments, the sum of the log-joints of the most probable classes.
    pub fn sweep(&mut self, crowd: &impl Crowd, prior: Prior<'_>) -> f64 {
        let (likelihood, n) = (&self.likelihood, crowd.dims().classes);
        self.parts.par_iter_mut().with_max_len(1).for_each(|part| {
            part.clear();
            crowd.sweep(likelihood, prior.range(&part.instances, n), part);
        });
        self.parts.iter().map(|part| part.log_likelihood).sum()
    }

    /// The likelihood of the last M-step.
    #[must_use]
    pub fn likelihood(&self) -> &Likelihood {
        &self.likelihood
    }

    /// Takes the likelihood of the last M-step out, before the next one replaces it.
    #[must_use]
    pub fn take_likelihood(&mut self, a: &Annotations) -> Likelihood {
        let rows = PairRows::zeros(a.n_pairs(), a.dims().classes);
        std::mem::replace(&mut self.likelihood, Likelihood { rows, are_logs: a.are_weighted() })
    }

    /// The estimator's state of all annotators, from which, with the counts, the next M-step follows.
    #[must_use]
    pub fn state(&self) -> &[f64] {
        &self.state
    }

    /// Goes on from the state of an earlier M-step of these annotations.
    pub fn set_state(&mut self, state: Vec<f64>) {
        self.state = state;
    }

    /// The estimator's terms of the objective, such as a log-prior, at the likelihood of the last M-step.
    #[must_use]
    pub fn terms(&self) -> f64 {
        self.terms
    }

    /// The estimator's state of annotator `r`, after the last M-step.
    #[must_use]
    pub fn state_of(&self, a: &Annotations, r: usize) -> &[f64] {
        let slot = a.slot_of(r);
        &self.state[self.layout.of_slots(a, &(slot..slot + 1))]
    }
}

impl Likelihood {
    /// The likelihood that an estimator makes of these expected counts, `[pair, class]`; without counts, for one that reads
    /// none.
    #[must_use]
    pub fn estimated<E: Estimator>(a: &Annotations, counts: &[f64], estimator: &E) -> Self {
        let n = a.dims().classes.max(1);
        let mut rows = PairRows::zeros(a.n_pairs(), n);
        let stride = rows.stride();
        for (row, counts) in rows.cells_mut().chunks_exact_mut(stride).zip(counts.chunks_exact(n)) {
            row[..n].copy_from_slice(counts);
        }
        let mut likelihood = Self { rows, are_logs: a.are_weighted() };
        let mut state = vec![0.0; StateLayout::new(estimator, n).len(a)];
        m_step::estimate(a, estimator, EstimatedFrom::Counts, &mut state, &mut likelihood);
        likelihood
    }

    /// All rows with their padding.
    #[must_use]
    pub fn cells(&self) -> &[f64] {
        self.rows.cells()
    }

    /// The posteriors that follow from the likelihood.
    #[must_use]
    pub fn posteriors(&self, crowd: &impl Crowd, prior: Prior<'_>) -> Posterior {
        let mut t = Posterior::zeros(crowd.dims().instances, crowd.dims().classes);
        self.write_posteriors(crowd, prior, &mut t);
        t
    }

    /// [`Likelihood::posteriors`] in place of others.
    pub fn write_posteriors(&self, crowd: &impl Crowd, prior: Prior<'_>, t: &mut Posterior) {
        let n = crowd.dims().classes.max(1);
        let blocks = t.values_mut().par_chunks_mut(ITEMS_PER_BLOCK * n).enumerate();
        blocks.for_each(|(block, rows)| {
            let start = block * ITEMS_PER_BLOCK;
            let instances = start..start + rows.len() / n;
            crowd.posteriors(self, prior.range(&instances, n), instances, rows);
        });
    }
}

/// The most bytes for the tables of counts of all ranges together, but for the first one.
const TABLE_BYTES: usize = 2 << 30;

/// How many ranges of instances have statistics of their own. It follows from the data alone: each has a table of counts,
/// whose zeroing and merging is a small part of the work only where pairs have many annotations. A power of two divides
/// evenly among as many processors.
fn n_ranges(dims: Dims, annotations: usize, pairs: usize) -> usize {
    const PER_PAIR_AND_RANGE: usize = 16;
    let per_pair = annotations / pairs.max(1);
    let fewest = if per_pair < 4 { 2 } else { 4 };
    let table = pairs.saturating_mul(stride(dims.classes)) * size_of::<f64>();
    let affordable = (TABLE_BYTES / table.max(1)).max(1);
    let ranges = (per_pair / PER_PAIR_AND_RANGE).clamp(fewest, MAX_RANGES).min(affordable);
    1 << ranges.ilog2()
}

/// The memory of the fit of a model of pairs: the likelihood, from which posteriors are computed when they are read, the
/// expected counts that are reported, and a table of counts for each range and for their sums.
#[must_use]
pub fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
    let table = sizes.pairs.checked_mul(stride(sizes.dims.classes))?;
    let table = table.checked_mul(size_of::<f64>())?;
    let tables = n_ranges(sizes.dims, sizes.annotations, sizes.pairs);
    let matrices = dense_memory_estimate(sizes)?.matrices.checked_add(table.checked_mul(2)?)?;
    let working = table.checked_mul(tables.checked_add(1)?)?;
    Some(MemoryEstimate { posteriors: 0, matrices, working })
}
