//! The strategy by which expected counts are summed, chosen from the sizes of the data alone.

use std::ops::Range;

use rayon::prelude::*;

use super::padded_matrix::stride;
use super::sparse_rows::MIN_SIGNIFICANT;
use super::width::has_kernel;
use crate::frame::{
    Annotations, Dims, FitBytes, ITEMS_PER_BLOCK, MAX_RANGES, QuestionSizes, dense_fit_bytes,
    ranges_of_instances,
};

/// The strategy by which expected counts are summed.
///
/// # Why
/// `Scatter`: the E-step has each posterior row in registers, and adds it to a table of counts; this saves the M-step
/// two passes over all rows. Each of a few fixed ranges of instances has its own table, and the M-step sums the tables
/// in order. This pays off if there are many annotations per column.
///
/// `Gather`: otherwise the M-step sums, for each column, the posterior rows of its instances.
///
/// `SparseGather`: with many classes, most entries of a row may be too small to change a count, and to gather only the
/// other entries saves memory: ten million annotations of 50 classes by 100 000 annotators take 1.6 instead of 2.8 GB,
/// at 74 ns per annotation with both strategies. But an annotator who has never labelled an instance of a class gives
/// almost no evidence against that class, so that its posterior entries are not small: with five million annotators the
/// same takes 414 instead of 88 ns, and 12.3 instead of 4.6 GB.
///
/// The choice depends only on the data, not on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountStrategy {
    /// The E-step adds posterior rows to one table, `[column, class]`, per range of instances; the number of ranges.
    Scatter(usize),
    /// The M-step gathers whole posterior rows.
    Gather,
    /// The M-step gathers the entries of posterior rows that can change a count; whole rows if the estimator does not
    /// allow sparse columns.
    SparseGather,
}

/// The memory of the fit of a model with expected counts, whose rows may be padded. Where the E-step counts, each range of
/// instances has a table of counts of its own.
#[must_use]
pub fn fit_bytes(sizes: &QuestionSizes) -> Option<FitBytes> {
    let dense = dense_fit_bytes(sizes)?;
    let counts = sizes.columns.checked_mul(stride(sizes.dims.classes))?;
    let counts = counts.checked_mul(size_of::<f64>())?;
    let matrices = dense.matrices.checked_add(counts)?;
    let working = match CountStrategy::for_size(sizes.dims, sizes.annotations, sizes.columns) {
        CountStrategy::Scatter(tables) => counts.checked_mul(tables)?,
        // Sparse rows take the place of dense columns.
        CountStrategy::Gather | CountStrategy::SparseGather => 0,
    };
    Some(FitBytes { matrices, working, ..dense })
}

/// The least number of annotations per column for which zeroing and summing tables pays off.
const MIN_PER_COLUMN: usize = 12;

/// With so many annotations per column and range, zeroing and summing tables is a small part of the work. The number of
/// ranges is rounded down to a power of two, which divides evenly among as many processors.
const PER_COLUMN_AND_RANGE: usize = 16;

/// The most bytes for dense columns, or for all tables of counts together; if the posteriors take more, then as many as
/// the posteriors.
const DENSE_BYTES: usize = 2 << 30;

/// The fewest ranges: with fewer, processors are idle.
const MIN_RANGES: usize = 4;

impl CountStrategy {
    /// The fastest strategy for these annotations, within the memory limit.
    #[must_use]
    pub fn choose(a: &Annotations) -> Self {
        Self::for_size(a.dims(), a.len(), a.n_columns())
    }

    /// As [`CountStrategy::choose`], for annotations of these sizes.
    pub(in crate::model) fn for_size(dims: Dims, annotations: usize, columns: usize) -> Self {
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

    /// How many columns are stored between the M-step and the E-step. With `Gather`, the columns of singleton
    /// annotators are not: the E-step recomputes them from the previous posterior row.
    #[must_use]
    pub fn stored_columns(self, a: &Annotations) -> usize {
        match self {
            Self::Gather => a.first_singleton(),
            _ => a.n_columns(),
        }
    }

    /// The ranges of instances that have statistics of their own.
    pub(super) fn ranges(self, instances: usize) -> Vec<Range<usize>> {
        if let Self::Scatter(n) = self {
            return ranges_of_instances(instances, n).collect();
        }
        let starts = (0..instances).step_by(ITEMS_PER_BLOCK);
        starts.map(|start| start..(start + ITEMS_PER_BLOCK).min(instances)).collect()
    }
}

/// Whether most entries of posterior rows can change a count. To an annotator who has never labelled an instance of a
/// class, all labels are equally likely given that class; after the average number of annotations per instance by such
/// annotators, the posterior of the class can still be significant. Annotators with at least two annotations per class
/// have labelled nearly all classes.
fn entries_are_needed(dims: Dims, annotations: usize) -> bool {
    let Dims { instances, annotators, classes, .. } = dims;
    let redundancy = annotations as f64 / instances as f64;
    let of_unmet = (classes as f64).powf(-redundancy);
    annotations < 2 * classes * annotators && of_unmet >= MIN_SIGNIFICANT
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

    /// Of 200 000 instances and 1000 classes, the counts take more than the posteriors where annotators rarely repeat a
    /// label. Of 6 classes they take next to nothing where annotators often do, but each of eight ranges of instances has
    /// as many.
    #[test]
    fn the_memory_of_expected_counts_follows_the_pairs_of_annotator_and_label() {
        let bytes = |instances, annotations, columns, classes| {
            let dims = Dims { instances, annotators: 1000, classes, labels: classes };
            let sizes = QuestionSizes { dims, annotations, columns, gold_roles: Vec::new() };
            fit_bytes(&sizes)
        };
        let many = bytes(200_000, 1_000_000, 1_000_000, 1000).unwrap();
        assert_eq!((many.posteriors, many.matrices), (1_600_000_000, 8_008_000_000));
        let few = bytes(20_000_000, 100_000_000, 600_000, 6).unwrap();
        assert_eq!((few.posteriors, few.matrices), (960_000_000, 600_000 * 8 * 8 + 36 * 8));
        assert_eq!((many.working, few.working), (0, 8 * 600_000 * 8 * 8));
        assert_eq!(bytes(1, 1, usize::MAX / 8, 3), None);
    }
}
