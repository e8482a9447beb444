//! How expected counts come together: a choice that depends on the data alone.

use std::ops::Range;

use super::has_kernel;
use super::padded_matrix::stride;
use crate::frame::{Annotations, BLOCK, Dims};

/// How expected counts come together.
///
/// # Why
/// An E-step has each posterior row in its registers; adding it to a table of counts there and then saves the M-step two
/// passes over all rows. Each of a few fixed ranges of instances has a table of its own, and the tables are summed in
/// order. That is worth it where annotations are many times the columns. Else every column gathers the rows of its own
/// instances. That is two to four times as fast as to gather the few entries of each row that can change a count, which
/// is for columns that would not fit in memory: of many classes and annotators. Which way is taken depends on the data
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountStrategy {
    /// The E-step adds rows to a table, `[column, class]`, for each of so many ranges.
    Scatter(usize),
    /// The M-step gathers whole rows.
    Gather,
    /// The M-step gathers the entries of rows that can change a count.
    SparseGather,
}

/// Tables are worth their zeroing and summing when there are so many annotations to a column.
const LEAST_PER_COLUMN: usize = 12;

/// So many annotations to a column and range make zeroing and summing a small part of the work. The number of ranges is a
/// power of two, which as many processors share evenly.
const PER_COLUMN_AND_RANGE: usize = 16;

/// Columns may take so many bytes, or as many as the posteriors, with a cell for every class.
const DENSE_BYTES: usize = 2 << 30;

/// More ranges than this keep no more processors busy.
const MOST_RANGES: usize = 16;

/// Fewer ranges than this leave processors idle.
const LEAST_RANGES: usize = 4;

impl CountStrategy {
    /// The fastest way for these annotations.
    #[must_use]
    pub fn choose(a: &Annotations) -> Self {
        let Dims { instances, classes, .. } = a.dims();
        let dense = size_of::<f64>() * a.n_columns() * stride(classes);
        let per_column = a.len() / a.n_columns().max(1);
        if per_column >= LEAST_PER_COLUMN {
            let ranges = (per_column / PER_COLUMN_AND_RANGE).clamp(LEAST_RANGES, MOST_RANGES);
            Self::Scatter(1 << ranges.ilog2())
        } else if has_kernel(classes)
            || dense <= DENSE_BYTES.max(size_of::<f64>() * instances * classes)
        {
            Self::Gather
        } else {
            Self::SparseGather
        }
    }

    /// How many columns need to be kept between the M-step and the E-step: not those of singleton annotators, where an
    /// E-step has the row they follow from in its registers.
    #[must_use]
    pub fn kept_columns(self, a: &Annotations) -> usize {
        match self {
            Self::Gather => a.first_singleton(),
            _ => a.n_columns(),
        }
    }

    /// The ranges of instances that have statistics of their own.
    pub(super) fn ranges(self, instances: usize) -> Vec<Range<usize>> {
        let bounds: Vec<usize> = match self {
            Self::Scatter(n) => (0..=n).map(|range| range * instances / n).collect(),
            _ => (0..instances).step_by(BLOCK).chain([instances]).collect(),
        };
        bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect()
    }
}
