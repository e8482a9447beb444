//! The sweep: posteriors of a range of instances, as products over their pairs, and the statistics of these posteriors.
//!
//! ```text
//! T[k] ~ prior[k] * product over the pairs p of the instance of likelihood[p][k]
//! counts[p][k] += T[k];  class_counts[k] += T[k];  log_likelihood += ln of the sum that divides T
//! ```
//! # Why
//! Sums of logarithms need one logarithm per cell and one exponential per class. Products need neither, and do not
//! underflow with up to [`MAX_FACTORS`] factors, because likelihoods are at least [`MIN_LIKELIHOOD`]. Longer products are
//! computed in runs; after each run the binary exponent of every class is added to an integer, which is exact. Weights are
//! exponents of factors, so that instances with weights are computed in the log domain: if every annotation has a weight,
//! the likelihood is stored as logarithms.
//!
//! [`MIN_LIKELIHOOD`]: crate::model::numerics::MIN_LIKELIHOOD

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::estimator::n_groups;
use super::logarithms::{LogProduct, larger};
use super::pair_rows::{LIST_DISTANCE, PREFETCH_DISTANCE, PairRows, for_width, pad, prefetch_row};
use super::row_products::{LogRow, MAX_FACTORS, add, count, multiply, multiply_many, normalise};
use super::statistics::Statistics;
use crate::frame::{InstanceRange, WeightSlice};
use crate::model::posterior::harden;
use crate::prefetch::prefetch;

/// P(class) before any annotation, shared by all instances or one for each. A probability must be 0, which excludes the
/// class, or at least 1e-27, because products may underflow with a smaller one.
#[derive(Debug, Clone, Copy)]
pub enum Prior<'a> {
    /// `[class]`
    Class(&'a [f64]),
    /// `[instance, class]`, such as the output of a classifier
    Instance(&'a [f64]),
}

impl<'a> Prior<'a> {
    /// The prior of the `i`-th instance, of `n` classes.
    #[inline(always)]
    pub(super) fn row(self, i: usize, n: usize) -> &'a [f64] {
        match self {
            Self::Class(prior) => prior,
            Self::Instance(rows) => &rows[i * n..(i + 1) * n],
        }
    }

    /// That of some of the instances.
    #[must_use]
    pub fn range(self, instances: &Range<usize>, n: usize) -> Self {
        match self {
            Self::Class(prior) => Self::Class(prior),
            Self::Instance(rows) => Self::Instance(&rows[instances.start * n..instances.end * n]),
        }
    }

    fn is_usable(self) -> bool {
        let (Self::Class(prior) | Self::Instance(prior)) = self;
        prior.iter().all(|p| *p == 0.0 || *p >= 1e-27)
    }
}

/// P(label given class) of every pair, or its logarithm.
#[derive(Debug)]
pub struct Likelihood {
    pub(super) rows: PairRows,
    pub(super) are_logs: bool,
}

/// The sweep over a range of instances.
pub(super) struct Sweep<'a> {
    /// The annotations of the instances.
    pub(super) range: InstanceRange<'a>,
    /// The prior of the instances.
    pub(super) prior: Prior<'a>,
    /// The likelihood of all pairs.
    pub(super) likelihood: &'a Likelihood,
}

impl Sweep<'_> {
    /// Adds the posteriors, or the assignments that follow from them, to `statistics`, and writes the posteriors into `rows`, `[instance, class]`, where these are given. The
    /// row of a trusted instance is one-hot, and its term of the log-likelihood the log-joint of its class. The row of an
    /// instance without annotations is the prior, and has no term.
    pub(super) fn run(
        self,
        n_classes: usize,
        statistics: Option<&mut Statistics>,
        rows: Option<&mut [f64]>,
    ) {
        debug_assert!(self.prior.is_usable(), "a probability that is neither 0 nor at least 1e-27");
        let arch = Arch::new();
        for_width!(self.likelihood.rows.stride(), W => {
            arch.dispatch(Pass::<W> { sweep: self, n_classes, statistics, rows });
        });
    }
}

/// [`Sweep::run`] with rows in groups of `W` classes.
struct Pass<'a, const W: usize> {
    sweep: Sweep<'a>,
    n_classes: usize,
    statistics: Option<&'a mut Statistics>,
    rows: Option<&'a mut [f64]>,
}

impl<const W: usize> WithSimd for Pass<'_, W> {
    type Output = ();

    // Inlined with all callees, so that they are compiled for the vector instructions of this processor.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // A row of one group stays in registers.
        if n_groups::<W>(self.n_classes) == 1 {
            self.run(&mut [[0.0; W]; 1], &mut [[0.0; W]; 1]);
        } else {
            let m = n_groups::<W>(self.n_classes);
            self.run(&mut vec![[0.0; W]; m], &mut vec![[0.0; W]; m]);
        }
    }
}

impl<const W: usize> Pass<'_, W> {
    /// The sweep, with buffers for a posterior row and a prior.
    #[inline(always)]
    fn run(self, row: &mut [[f64; W]], prior: &mut [[f64; W]]) {
        let Self { sweep: Sweep { range, prior: priors, likelihood }, n_classes: n, .. } = self;
        let (m, are_logs) = (row.len(), likelihood.are_logs);
        let factors = likelihood.rows.cells().as_chunks::<W>().0;
        let (mut no_counts, mut no_classes) = ([], []);
        let mut log_likelihood = 0.0;
        let (counts, class_counts, log_likelihood, are_hard) = match self.statistics {
            Some(Statistics { counts, class_counts, log_likelihood, are_hard, .. }) => (
                counts.cells_mut().as_chunks_mut::<W>().0,
                class_counts.as_chunks_mut::<W>().0,
                log_likelihood,
                *are_hard,
            ),
            None => (&mut no_counts[..], &mut no_classes[..], &mut log_likelihood, false),
        };
        // Sums in memory of this thread: beside those of other threads, each write would wait for them.
        let mut class_sums = vec![[0.0; W]; class_counts.len()];
        let (mut product, mut terms) = (LogProduct::default(), 0.0);
        // Allocated where an instance needs them: a sweep may be over a single one.
        let (mut logs, mut exponents) = (LogRow::default(), Vec::new());
        if let Prior::Class(prior_of_all) = priors {
            pad(prior_of_all, prior);
        }
        let mut weighted = Weighted::new(range.weights);
        let mut rows = self.rows;
        for i in 0..range.len() {
            let positions = range.positions(i);
            prefetch(range.offsets, i + LIST_DISTANCE);
            let ahead = positions.start + PREFETCH_DISTANCE..positions.end + PREFETCH_DISTANCE;
            if let Some(ahead) = range.pairs.get(ahead) {
                prefetch(range.pairs, positions.end + LIST_DISTANCE);
                for pair in ahead {
                    prefetch_row(factors, *pair, m);
                }
                if !counts.is_empty() {
                    for pair in ahead {
                        prefetch_row(counts, *pair, m);
                    }
                }
            }
            let pairs = &range.pairs[positions.clone()];
            let trusted = range.trusted_class(i);
            let is_weighted = weighted.is_next(positions.end);
            let in_logs = trusted.is_some() || is_weighted;
            if let Prior::Instance(_) = priors {
                pad(priors.row(i, n), prior);
                logs.prior.clear();
            }
            let weights =
                if is_weighted { range.weights.slice(positions) } else { WeightSlice::Ones };
            let mut term = 0.0;
            if in_logs {
                logs.set_prior(prior);
                match weights {
                    WeightSlice::All(all) => logs.add(factors, pairs, |at| all[at], are_logs),
                    _ => logs.add(factors, pairs, |at| weights.get(at), are_logs),
                }
                term = logs.exp(row);
            } else if pairs.len() <= MAX_FACTORS {
                multiply(row, prior, factors, pairs);
            } else {
                term = multiply_many(row, prior, factors, pairs, &mut exponents);
            }
            if let Some(class) = trusted {
                term = logs.row.as_flattened()[class as usize];
                row.fill([0.0; W]);
                row.as_flattened_mut()[class as usize] = 1.0;
            } else {
                let total = normalise(row);
                if !pairs.is_empty() {
                    product.push(total);
                }
            }
            if let Some(rows) = &mut rows {
                rows[i * n..(i + 1) * n].copy_from_slice(&row.as_flattened()[..n]);
            }
            if pairs.is_empty() {
                continue;
            }
            terms += term;
            if are_hard {
                product.push(row.as_flattened().iter().copied().fold(0.0, larger));
                harden(row.as_flattened_mut());
            }
            add(&mut class_sums, row);
            if counts.is_empty() {
                continue;
            }
            match weights {
                WeightSlice::Ones => count(counts, row, pairs, |_| 1.0),
                WeightSlice::All(all) => count(counts, row, pairs, |at| all[at]),
                WeightSlice::Few { .. } => count(counts, row, pairs, |at| weights.get(at)),
            }
        }
        class_counts.copy_from_slice(&class_sums);
        *log_likelihood = terms + product.ln();
    }
}

/// Tells which instances have a weight other than 1, one instance after the other.
struct Weighted<'a> {
    /// The positions of the remaining weights other than 1, if these are few.
    pending: &'a [usize],
    start: usize,
    all: bool,
}

impl<'a> Weighted<'a> {
    fn new(weights: WeightSlice<'a>) -> Self {
        match weights {
            WeightSlice::Ones => Self { pending: &[], start: 0, all: false },
            WeightSlice::Few { start, positions, .. } => {
                Self { pending: positions, start, all: false }
            }
            WeightSlice::All(_) => Self { pending: &[], start: 0, all: true },
        }
    }

    /// Whether the next instance, whose annotations end at `end`, has one.
    #[inline(always)]
    fn is_next(&mut self, end: usize) -> bool {
        let mut found = self.all;
        while let [position, rest @ ..] = self.pending
            && *position < self.start + end
        {
            self.pending = rest;
            found = true;
        }
        found
    }
}
