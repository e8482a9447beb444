//! The blocks of parallel work.

use std::ops::Range;

use rayon::prelude::*;

/// The number of items, such as instances or annotators, in one unit of parallel work. Fixed, so that sums do not depend
/// on the number of threads.
pub const ITEMS_PER_BLOCK: usize = 2048;

/// The largest number of ranges of instances that have sums of their own; more would not keep more processors busy.
pub const MAX_RANGES: usize = 16;

/// `n` adjacent ranges of about as many instances each. If `n` depends on the data alone, sums over the ranges, added in
/// order, do not depend on the number of threads.
#[must_use]
pub fn ranges_of_instances(
    instances: usize,
    n: usize,
) -> impl IndexedParallelIterator<Item = Range<usize>> {
    let bound = move |range: usize| range * instances / n;
    (0..n).into_par_iter().map(move |range| bound(range)..bound(range + 1))
}
