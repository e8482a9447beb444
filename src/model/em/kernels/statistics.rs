//! Sufficient statistics: the result of an E-step over a range of instances, which merges with that of the next range.

use std::ops::Range;

use super::padded_matrix::PaddedMatrix;
use super::row_arithmetic::add_row;
use super::sparse_rows::SparseRows;
use super::strategy::CountStrategy;
use crate::error::{Error, Result};
use crate::frame::ITEMS_PER_BLOCK;

/// The contribution of a range of instances to the parameters and to the objective.
///
/// # Why
/// An E-step reads the annotations of its range and the parameters, and writes this value and the posteriors of its
/// range. It depends neither on its caller nor on the position of the range, so that a thread, a partition on disk or
/// another machine can run it. The M-step takes the same sums, bit for bit, from the values of adjacent ranges and from
/// one value into which they were merged, one after the other in the order of the ranges; those of one E-step over the
/// joined range differ by rounding. A caller that does not keep the posteriors of all ranges must use
/// [`CountStrategy::Scatter`]: with the other strategies the M-step reads posterior rows.
#[derive(Debug)]
pub struct Statistics {
    instances: Range<usize>,
    log_likelihood: f64,
    /// The terms of the objective of columns that the E-step recomputed.
    prior_terms: f64,
    /// The sum of the posterior rows of annotated instances, `[class]`.
    classes: Vec<f64>,
    counts: RangeCounts,
}

/// The data of a range from which the M-step computes expected counts.
#[derive(Debug)]
pub(super) enum RangeCounts {
    /// The expected counts, `[column, class]`.
    Scatter(PaddedMatrix),
    /// Nothing: the M-step reads the posterior rows.
    Gather,
    /// The significant entries of the posterior rows, for each [`ITEMS_PER_BLOCK`] of instances.
    SparseGather(Vec<SparseRows>),
}

impl Statistics {
    /// Empty statistics of a range of instances.
    #[must_use]
    pub fn new(
        n_columns: usize,
        n_classes: usize,
        instances: Range<usize>,
        strategy: CountStrategy,
    ) -> Self {
        let counts = match strategy {
            CountStrategy::Scatter(_) => {
                RangeCounts::Scatter(PaddedMatrix::zeros(n_columns, n_classes))
            }
            CountStrategy::Gather => RangeCounts::Gather,
            CountStrategy::SparseGather => {
                let blocks = instances.len().div_ceil(ITEMS_PER_BLOCK);
                RangeCounts::SparseGather(vec![SparseRows::default(); blocks])
            }
        };
        Self {
            instances,
            log_likelihood: 0.0,
            prior_terms: 0.0,
            classes: vec![0.0; n_classes],
            counts,
        }
    }

    /// The instances that these statistics cover.
    #[must_use]
    pub fn instances(&self) -> Range<usize> {
        self.instances.clone()
    }

    /// The range's term of the marginal log-likelihood.
    #[must_use]
    pub fn log_likelihood(&self) -> f64 {
        self.log_likelihood
    }

    /// The estimator's terms of the objective of the columns that the E-step recomputed.
    pub(super) fn prior_terms(&self) -> f64 {
        self.prior_terms
    }

    /// The sum of the posteriors of annotated instances, `[class]`.
    #[must_use]
    pub fn classes(&self) -> &[f64] {
        &self.classes
    }

    /// Adds the statistics of the next range: to each sum, as the M-step adds a part to those before it.
    ///
    /// # Errors
    /// When `next` does not begin where this range ends, when the strategies differ, or when the sparse rows of this
    /// range do not fill their last block.
    pub fn merge(&mut self, next: Self) -> Result<()> {
        if next.instances.start != self.instances.end {
            return Err(Error::bug("merged statistics are of neighbouring ranges"));
        }
        match (&mut self.counts, next.counts) {
            (RangeCounts::Scatter(sums), RangeCounts::Scatter(table)) => {
                let pairs = sums.cells_mut().iter_mut().zip(table.cells());
                pairs.for_each(|(sum, count)| *sum += *count);
            }
            (RangeCounts::Gather, RangeCounts::Gather) => {}
            (RangeCounts::SparseGather(rows), RangeCounts::SparseGather(mut more))
                if self.instances.len().is_multiple_of(ITEMS_PER_BLOCK) =>
            {
                rows.append(&mut more);
            }
            _ => return Err(Error::bug("merged statistics have one strategy and whole blocks")),
        }
        self.instances.end = next.instances.end;
        self.log_likelihood += next.log_likelihood;
        self.prior_terms += next.prior_terms;
        self.classes.iter_mut().zip(&next.classes).for_each(|(sum, count)| *sum += count);
        Ok(())
    }

    /// The cells of the table of counts; only [`CountStrategy::Scatter`] has one.
    pub(super) fn table(&self) -> Option<&[f64]> {
        match &self.counts {
            RangeCounts::Scatter(table) => Some(table.cells()),
            _ => None,
        }
    }

    /// The significant entries of posterior rows, by block of instances; empty unless the strategy is `SparseGather`.
    pub(super) fn sparse_rows(&self) -> &[SparseRows] {
        match &self.counts {
            RangeCounts::SparseGather(rows) => rows,
            _ => &[],
        }
    }

    /// Sets everything to zero, and allocates the class sums anew: call it on the thread that will add to them.
    ///
    /// # Why
    /// The allocator gives each thread memory of its own. In one cache line with the sums of another range, every
    /// addition waited for the line, which another thread had just written: an iteration over 10 M annotations took 40
    /// ms, and takes 29 (5 classes, 10 k annotators, two threads on an Intel Xeon).
    pub(super) fn clear(&mut self) {
        self.log_likelihood = 0.0;
        self.prior_terms = 0.0;
        self.classes = vec![0.0; self.classes.len()];
        match &mut self.counts {
            RangeCounts::Scatter(table) => table.cells_mut().fill(0.0),
            RangeCounts::SparseGather(rows) => rows.iter_mut().for_each(SparseRows::clear),
            RangeCounts::Gather => {}
        }
    }

    /// Adds terms of the log-likelihood, and the estimator's terms of the objective of recomputed columns.
    pub(super) fn add_objective(&mut self, log_likelihood: f64, prior_terms: f64) {
        self.log_likelihood += log_likelihood;
        self.prior_terms += prior_terms;
    }

    /// The class sums and the cells of the table of counts, which is empty if the M-step gathers rows.
    pub(super) fn sums_and_table(&mut self) -> (&mut [f64], &mut [f64]) {
        match &mut self.counts {
            RangeCounts::Scatter(table) => (&mut self.classes, table.cells_mut()),
            _ => (&mut self.classes, &mut []),
        }
    }

    /// Adds the posterior row of the range's `i`-th instance to the class sums, if it has annotations, and to what the
    /// M-step gathers. A table of counts is filled by kernels of its own. Call it in instance order.
    #[inline(always)]
    pub(super) fn add(&mut self, i: usize, row: &[f64], is_annotated: bool) {
        if is_annotated {
            add_row::<0>(&mut self.classes, row);
        }
        if let RangeCounts::SparseGather(rows) = &mut self.counts {
            rows[i / ITEMS_PER_BLOCK].add(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_other_ranges_or_strategies_do_not_merge() {
        let new = |instances, strategy| Statistics::new(4, 2, instances, strategy);
        let (scatter, gather) = (CountStrategy::Scatter(1), CountStrategy::Gather);
        assert!(new(0..5, scatter).merge(new(5..9, scatter)).is_ok());
        assert!(new(0..5, scatter).merge(new(6..9, scatter)).is_err());
        assert!(new(0..5, scatter).merge(new(5..9, gather)).is_err());
        assert!(
            new(0..5, CountStrategy::SparseGather)
                .merge(new(5..9, CountStrategy::SparseGather))
                .is_err()
        );
    }
}
