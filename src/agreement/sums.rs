//! The sums over instances from which all statistics but Cohen's follow, one for each block of instances.
//!
//! ```text
//! head          instances, those with pairs, pairs, agreeing pairs: pooled, by instance, and by annotator of the instance;
//!               the squared distances of coincidences
//! shares[k]     share of label k in an instance, summed over instances
//! pairable[k]   answers k of instances with two annotators or more
//! split[k]      share of an instance's pairs in which one of two annotators gave k
//! means[k, l]   share of an instance's pairs with labels k and l, k < l     } only where labels have an order,
//! coincident[k, l]   the coincidences of labels k and l, in both orders    } and are not too many
//! ```
//! A pair has two orders, and counts twice.

use std::ops::Range;

use rayon::prelude::*;

use super::instance::InstanceCounts;
use super::{Categories, Scale};
use crate::frame::{Annotations, MAX_RANGES, ranges_of_instances};

/// With more labels, only the statistics of names and Krippendorff's interval alpha are computed.
pub(super) const MAX_ORDERED: usize = 128;

/// The most blocks of instances, and the fewest where the sums are many.
const MAX_BLOCKS: usize = 1024;
const MIN_BLOCKS: usize = 64;

/// The numbers that the sums of all blocks should have together.
const NUMBERS_OF_BLOCKS: usize = 1 << 16;

/// The numbers that the sums of all ranges may have together.
const NUMBERS_OF_RANGES: usize = 1 << 22;

pub(super) const INSTANCES: usize = 0;
pub(super) const PAIRED: usize = 1;
pub(super) const PAIRS: usize = 2;
pub(super) const SAME: usize = 3;
pub(super) const MEAN_SAME: usize = 4;
pub(super) const COINCIDING: usize = 5;
pub(super) const SQUARES: usize = 6;
const HEAD: usize = 7;

/// Where each sum is.
#[derive(Debug, Clone, Copy)]
pub(super) struct SumLayout {
    n: usize,
    has_cells: bool,
}

impl SumLayout {
    pub(super) fn new(categories: &Categories) -> Self {
        let n = categories.len();
        Self { n, has_cells: *categories.scale() != Scale::Nominal && n <= MAX_ORDERED }
    }

    /// Whether labels are on an ordered scale, and are not too many.
    pub(super) fn has_cells(self) -> bool {
        self.has_cells
    }

    pub(super) fn shares(self) -> Range<usize> {
        HEAD..HEAD + self.n
    }

    pub(super) fn pairable(self) -> Range<usize> {
        let start = self.shares().end;
        start..start + self.n
    }

    pub(super) fn split(self) -> Range<usize> {
        let start = self.pairable().end;
        start..start + self.n
    }

    fn n_cells(self) -> usize {
        if self.has_cells { self.n * self.n.saturating_sub(1) / 2 } else { 0 }
    }

    pub(super) fn means(self) -> Range<usize> {
        let start = self.split().end;
        start..start + self.n_cells()
    }

    pub(super) fn coincident(self) -> Range<usize> {
        let start = self.means().end;
        start..start + self.n_cells()
    }

    /// The number of sums.
    pub(super) fn len(self) -> usize {
        self.coincident().end
    }

    /// The categories of the cells, in their order.
    pub(super) fn cells(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.n).flat_map(move |k| (k + 1..self.n).map(move |l| (k, l)))
    }

    /// The position of a cell among those of a matrix.
    fn cell(self, k: u32, l: u32) -> usize {
        let (k, l) = (k.min(l) as usize, k.max(l) as usize);
        k * self.n - k * (k + 1) / 2 + l - k - 1
    }
}

/// Groups of instances that are drawn together.
///
/// # Why
/// Drawing millions of instances hundreds of times would take far longer than the data. Instances in blocks by a hash
/// are as if drawn one by one: the hash knows nothing of the order of ids, which may go by source.
#[derive(Debug, Clone, Copy)]
pub(super) struct SumBlocks {
    n: usize,
    instances: usize,
    /// One instance in this many counts, drawn by a hash.
    every: u64,
}

impl SumBlocks {
    /// Of all instances, or of about `at_most`.
    pub(super) fn new(instances: usize, sums: usize, at_most: usize) -> Self {
        let most = (NUMBERS_OF_BLOCKS / sums.max(1)).clamp(MIN_BLOCKS, MAX_BLOCKS);
        let every = instances.div_ceil(at_most).max(1) as u64;
        Self { n: instances.clamp(1, most), instances, every }
    }

    /// Whether an instance counts.
    #[inline]
    pub(super) fn takes(self, instance: usize) -> bool {
        self.every == 1 || mixed(!(instance as u64)).is_multiple_of(self.every)
    }

    pub(super) fn len(self) -> usize {
        self.n
    }

    /// The block of an instance: its own where there are few.
    #[inline]
    pub(super) fn block(self, instance: usize) -> usize {
        if self.n == 1 {
            0
        } else if self.n >= self.instances {
            instance
        } else {
            (mixed(instance as u64) % self.n as u64) as usize
        }
    }
}

/// The finaliser of SplitMix64.
pub(super) fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The sums of all blocks.
pub(super) struct BlockSums {
    layout: SumLayout,
    /// One block after the other.
    sums: Vec<f64>,
    n_paired: u64,
}

impl BlockSums {
    /// One pass over the instances. Sums do not depend on the number of threads.
    pub(super) fn add_up(
        a: &Annotations,
        categories: &Categories,
        layout: SumLayout,
        blocks: SumBlocks,
    ) -> Self {
        let numbers = blocks.len() * layout.len();
        let most = (NUMBERS_OF_RANGES / numbers).min(a.len() / (4 * numbers));
        let ranges = ranges_of_instances(a.dims().instances, most.clamp(1, MAX_RANGES));
        let of_range = |instances: Range<usize>| {
            let (mut sums, mut n_paired) = (vec![0.0; numbers], 0);
            let mut counts = InstanceCounts::default();
            let (first, range) = (instances.start, a.range(instances));
            for i in (0..range.len()).filter(|i| blocks.takes(first + i)) {
                counts.count(categories, range.triples(i));
                n_paired += u64::from(counts.annotators >= 2.0);
                let start = blocks.block(first + i) * layout.len();
                add_instance(&mut sums[start..start + layout.len()], &counts, categories, layout);
            }
            (sums, n_paired)
        };
        let all: Vec<(Vec<f64>, u64)> = ranges.with_max_len(1).map(of_range).collect();
        let mut all = all.into_iter();
        let (mut sums, mut n_paired) = all.next().unwrap_or_default();
        for (more, n) in all {
            n_paired += n;
            sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        }
        Self { layout, sums, n_paired }
    }

    /// The sums of all blocks, each as often as its weight says.
    pub(super) fn weighted(&self, weights: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; self.layout.len()];
        for (block, weight) in self.sums.chunks_exact(self.layout.len()).zip(weights) {
            if *weight > 0.0 {
                all.iter_mut().zip(block).for_each(|(sum, x)| *sum += weight * x);
            }
        }
        all
    }

    /// The number of instances with at least two annotators.
    pub(super) fn n_paired(&self) -> u64 {
        self.n_paired
    }

    /// How many numbers one draw adds up.
    pub(super) fn size(&self) -> usize {
        self.sums.len()
    }
}

fn add_instance(
    sums: &mut [f64],
    counts: &InstanceCounts,
    categories: &Categories,
    layout: SumLayout,
) {
    let n = counts.annotators;
    if n < 1.0 {
        return;
    }
    sums[INSTANCES] += 1.0;
    let shares = layout.shares().start;
    counts.given.iter().for_each(|given| sums[shares + given.category as usize] += given.n / n);
    if n < 2.0 {
        return;
    }
    let pairs = n * (n - 1.0);
    sums[PAIRED] += 1.0;
    sums[PAIRS] += pairs;
    let (pairable, split) = (layout.pairable().start, layout.split().start);
    let mut same = 0.0;
    for given in &counts.given {
        let (k, of_label) = (given.category as usize, given.n * given.n - given.own);
        same += of_label;
        sums[pairable + k] += given.n;
        sums[split + k] += (given.n * (n - 1.0) - of_label) / pairs;
    }
    sums[SAME] += same;
    sums[MEAN_SAME] += same / pairs;
    sums[COINCIDING] += same / (n - 1.0);
    if *categories.scale() == Scale::Numbers {
        sums[SQUARES] += squares(counts, categories.scores()) / (n - 1.0);
    }
    if layout.has_cells() {
        let (means, coincident) = (layout.means().start, layout.coincident().start);
        let mut add = |k: u32, l: u32, product: f64| {
            let cell = layout.cell(k, l);
            sums[means + cell] += 2.0 * product / pairs;
            sums[coincident + cell] += 2.0 * product / (n - 1.0);
        };
        for (at, given) in counts.given.iter().enumerate() {
            for other in &counts.given[at + 1..] {
                add(given.category, other.category, given.n * other.n);
            }
        }
        counts.of_one.iter().for_each(|(k, l, product)| add(*k, *l, -product));
    }
}

/// The squared distances of all pairs of answers, in both orders.
fn squares(counts: &InstanceCounts, scores: &[f64]) -> f64 {
    // Distances from the first label are exact where the labels are small integers, whatever the size of the numbers.
    let Some(first) = counts.given.first() else { return 0.0 };
    let score = |category: u32| scores[category as usize] - scores[first.category as usize];
    let (mut sum, mut of_squares) = (0.0, 0.0);
    for given in &counts.given {
        let x = score(given.category);
        sum += given.n * x;
        of_squares += given.n * x * x;
    }
    let of_one =
        counts.of_one.iter().map(|(k, l, product)| product * (score(*k) - score(*l)).powi(2));
    2.0 * (counts.annotators * of_squares - sum * sum) - 2.0 * of_one.sum::<f64>()
}
