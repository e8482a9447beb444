//! How expected counts come together: a choice that depends on the data alone.

use std::ops::Range;

use super::padded_matrix::stride;
use super::sparse_rows::LEAST_SIGNIFICANT;
use super::width::has_kernel;
use crate::frame::{Annotations, BLOCK, Dims};

/// How expected counts come together.
///
/// # Why
/// An E-step has each posterior row in its registers; adding it to a table of counts there and then saves the M-step two
/// passes over all rows. Each of a few fixed ranges of instances has a table of its own, and the tables are summed in
/// order. That is worth it where annotations are many times the columns. Else every column gathers the rows of its own
/// instances. Where classes are many, most entries of a row may be too small to change a count, and to gather only the
/// others saves memory: ten million annotations of 50 classes by 100 000 annotators take 1.6 instead of 2.8 GB, and 74 ns
/// each both ways. But labels of annotators who never met a class say next to nothing against it, so that the entries of
/// such classes are not small: by five million annotators the same takes 414 instead of 88 ns, and 12.3 instead of 4.6 GB.
/// Which way is taken depends on the data alone.
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
const MIN_PER_COLUMN: usize = 12;

/// So many annotations to a column and range make zeroing and summing a small part of the work. The number of ranges is a
/// power of two, which as many processors share evenly.
const PER_COLUMN_AND_RANGE: usize = 16;

/// The bytes that whole columns, or all tables of counts together, may take; as many as the posteriors take, if those take
/// more.
const DENSE_BYTES: usize = 2 << 30;

/// More ranges than this keep no more processors busy.
const MAX_RANGES: usize = 16;

/// Fewer ranges than this leave processors idle.
const MIN_RANGES: usize = 4;

impl CountStrategy {
    /// The fastest way for these annotations.
    #[must_use]
    pub fn choose(a: &Annotations) -> Self {
        Self::for_size(a.dims(), a.len(), a.n_columns())
    }

    fn for_size(dims: Dims, annotations: usize, columns: usize) -> Self {
        let Dims { instances, classes, .. } = dims;
        let dense = size_of::<f64>() * columns * stride(classes);
        let affordable = DENSE_BYTES.max(size_of::<f64>() * instances * classes);
        let per_column = annotations / columns.max(1);
        let ranges = (per_column / PER_COLUMN_AND_RANGE).clamp(MIN_RANGES, MAX_RANGES);
        let ranges = ranges.min(affordable / dense.max(1));
        if per_column >= MIN_PER_COLUMN && ranges >= MIN_RANGES {
            Self::Scatter(1 << ranges.ilog2())
        } else if has_kernel(classes)
            || dense <= affordable
            || entries_are_needed(dims, annotations)
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

/// Whether most entries of posterior rows can change a count. To an annotator who never met a class its labels are all
/// alike, and so many of those leave the class a probability that counts; who has twice as many annotations as there are
/// classes has met nearly all.
fn entries_are_needed(dims: Dims, annotations: usize) -> bool {
    let Dims { instances, annotators, classes, .. } = dims;
    let redundancy = annotations as f64 / instances as f64;
    let of_unmet = (classes as f64).powf(-redundancy);
    annotations < 2 * classes * annotators && of_unmet >= LEAST_SIGNIFICANT
}

#[cfg(test)]
mod tests {
    use super::CountStrategy::{Gather, Scatter, SparseGather};
    use super::*;

    #[test]
    fn rows_are_gathered_whole_where_most_of_their_entries_are_needed() {
        let choose = |annotations: usize, redundancy, classes, annotators, columns| {
            let instances = annotations / redundancy;
            let dims = Dims { instances, annotators, classes, labels: classes };
            CountStrategy::for_size(dims, annotations, columns)
        };
        let million = 1_000_000;
        assert_eq!(choose(100 * million, 5, 6, 100_000, 600_000), Scatter(8));
        // Four tables take four times the memory of the columns: of 50 classes more than the posteriors.
        assert_eq!(choose(100 * million, 5, 20, 100_000, 2 * million), Scatter(4));
        assert_eq!(choose(100 * million, 5, 50, 100_000, 5 * million), Gather);
        assert_eq!(choose(10 * million, 5, 5, 5 * million, 9 * million), Gather);
        assert_eq!(choose(10 * million, 5, 50, 5 * million, 9 * million), Gather);
        assert_eq!(choose(10 * million, 5, 50, 100_000, 4 * million), Gather);
        // Beyond what dense columns may take, the annotators have met nearly all classes, or so many annotations of an
        // instance leave no other class.
        assert_eq!(choose(20 * million, 5, 50, 200_000, 8 * million), SparseGather);
        assert_eq!(choose(10 * million, 20, 50, 5 * million, 9 * million), SparseGather);
    }
}
