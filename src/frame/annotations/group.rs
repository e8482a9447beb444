//! Groups rows by instance.
//!
//! # Why
//! The rows of a large crowd are in random order. A direct counting sort would wait for a cache line at every write, on
//! one processor. So the rows are first partitioned by ranges of instances, which writes to one stream per range, and
//! then the rows of each range are sorted within the cache, all ranges in parallel.

use std::slice::IterMut;

use rayon::prelude::*;

/// The number of rows in a range of instances: few enough for the cache of one processor.
const ROWS_OF_RANGE: usize = 1 << 16;

/// The most ranges into which rows are partitioned: each is a separate write stream.
const MAX_WRITE_STREAMS: usize = 1 << 10;

/// The pairs and weights of rows in any order.
#[derive(Debug)]
pub(super) struct UngroupedRows {
    pub(super) instance: Vec<u32>,
    pub(super) pair: Vec<u32>,
    /// Empty if all weights are 1.
    pub(super) weight: Vec<f64>,
}

/// Rows grouped by instance, in the order of the input within an instance.
pub(super) struct Grouped {
    /// Where the rows of each instance begin, and one past the last.
    pub(super) offsets: Vec<usize>,
    pub(super) pairs: Vec<u32>,
    pub(super) weights: Vec<f64>,
    /// The number of rows of each instance.
    pub(super) rows_of_instance: Vec<u32>,
}

impl Grouped {
    /// Groups the rows of `n_instances` instances.
    pub(super) fn new(n_instances: usize, rows: UngroupedRows) -> Self {
        let ranges = (rows.instance.len() / ROWS_OF_RANGE).clamp(1, MAX_WRITE_STREAMS);
        Self::by_ranges(n_instances, rows, ranges)
    }

    fn by_ranges(n_instances: usize, rows: UngroupedRows, ranges: usize) -> Self {
        let shift = n_instances.div_ceil(ranges).max(1).next_power_of_two().ilog2();
        let partitioned = partition(&rows, shift, (n_instances >> shift) + 1);
        let UngroupedRows { instance, pair: mut pairs, weight: mut weights } = rows;
        drop(instance);
        let mut offsets = vec![0; n_instances + 1];
        let mut rows_of_instance = vec![0; n_instances];
        let width = 1 << shift;
        let (mut columns_left, mut weights_left) = (pairs.as_mut_slice(), weights.as_mut_slice());
        let positions = offsets[1..].chunks_mut(width).zip(rows_of_instance.chunks_mut(width));
        let ranges = partitioned.bounds.windows(2).enumerate();
        let mut work = Vec::with_capacity(partitioned.bounds.len());
        for ((range, bounds), (positions, counts)) in ranges.zip(positions) {
            let range_rows = bounds[0]..bounds[1];
            work.push(RangeSort {
                first: range * width,
                rows: &partitioned.rows[range_rows.clone()],
                weight: partitioned.weight.get(range_rows.clone()).unwrap_or_default(),
                start: range_rows.start,
                positions,
                counts,
                pairs: columns_left.split_off_mut(..range_rows.len()).unwrap_or_default(),
                // Empty if all weights are 1.
                weights: weights_left.split_off_mut(..range_rows.len()).unwrap_or_default(),
            });
        }
        work.into_par_iter().for_each(RangeSort::run);
        Self { offsets, pairs, weights, rows_of_instance }
    }
}

/// Sorts the rows of one range by instance.
struct RangeSort<'a> {
    /// The first instance of the range.
    first: usize,
    /// (Instance, pair) of each row.
    rows: &'a [(u32, u32)],
    weight: &'a [f64],
    /// The number of rows in the ranges before it.
    start: usize,
    /// Where the rows of each instance begin; after [`RangeSort::run`], where they end.
    positions: &'a mut [usize],
    counts: &'a mut [u32],
    pairs: &'a mut [u32],
    weights: &'a mut [f64],
}

impl RangeSort<'_> {
    fn run(self) {
        let local = |i: u32| i as usize - self.first;
        self.rows.iter().for_each(|(i, _)| self.counts[local(*i)] += 1);
        let mut begin = self.start;
        for (position, count) in self.positions.iter_mut().zip(&*self.counts) {
            *position = begin;
            begin += *count as usize;
        }
        for (row, (i, pair)) in self.rows.iter().enumerate() {
            let position = &mut self.positions[local(*i)];
            let at = *position - self.start;
            self.pairs[at] = *pair;
            if let Some(weight) = self.weight.get(row) {
                self.weights[at] = *weight;
            }
            *position += 1;
        }
    }
}

/// Rows by range of instances, in the order of the input within a range.
struct PartitionedRows {
    /// (Instance, pair) of each row.
    rows: Vec<(u32, u32)>,
    /// Empty if all weights are 1.
    weight: Vec<f64>,
    /// Where the rows of each range begin, and one past the last.
    bounds: Vec<usize>,
}

/// The output of one part of the input in one range: the positions that are not yet written.
struct WriteCursors<'a> {
    rows: IterMut<'a, (u32, u32)>,
    weight: IterMut<'a, f64>,
}

/// Partitions the rows by range of instances.
fn partition(rows: &UngroupedRows, shift: u32, ranges: usize) -> PartitionedRows {
    let n = rows.instance.len();
    let (mut partitioned, mut weights) = (vec![(0, 0); n], vec![0.0; rows.weight.len()]);
    let range_of = |i: u32| (i >> shift) as usize;
    let at_once = n.div_ceil(rayon::current_num_threads()).max(1);
    let counts: Vec<Vec<usize>> = rows
        .instance
        .par_chunks(at_once)
        .map(|part| {
            let mut counts = vec![0; ranges];
            part.iter().for_each(|i| counts[range_of(*i)] += 1);
            counts
        })
        .collect();
    let mut bounds = Vec::with_capacity(ranges + 1);
    bounds.push(0);
    let mut cursors: Vec<Vec<WriteCursors<'_>>> = counts.iter().map(|_| Vec::new()).collect();
    let (mut rows_left, mut weights_left) = (partitioned.as_mut_slice(), weights.as_mut_slice());
    for range in 0..ranges {
        let mut end = bounds[range];
        for (cursors, counts) in cursors.iter_mut().zip(&counts) {
            let n = counts[range];
            end += n;
            cursors.push(WriteCursors {
                rows: rows_left.split_off_mut(..n).unwrap_or_default().iter_mut(),
                weight: weights_left.split_off_mut(..n).unwrap_or_default().iter_mut(),
            });
        }
        bounds.push(end);
    }
    let starts = (0..).step_by(at_once);
    let parts: Vec<(usize, Vec<WriteCursors<'_>>)> = starts.zip(cursors).collect();
    parts.into_par_iter().with_max_len(1).for_each(|(start, mut cursors)| {
        for row in start..(start + at_once).min(n) {
            let pair = (rows.instance[row], rows.pair[row]);
            let cursor = &mut cursors[range_of(pair.0)];
            cursor.rows.next().into_iter().for_each(|position| *position = pair);
            cursor.weight.next().into_iter().for_each(|position| *position = rows.weight[row]);
        }
    });
    PartitionedRows { rows: partitioned, weight: weights, bounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_to_their_instances_in_the_order_in_which_they_came() {
        // Most rows are of one instance; some instances have none, the last among them.
        let instance: Vec<u32> =
            (0..20_000_u32).map(|n| if n % 3 == 0 { 77 } else { n * n % 991 }).collect();
        for (ranges, is_weighted) in [(1, false), (1, true), (7, false), (7, true), (900, true)] {
            let weight = |n: usize| n as f64 / 7.0;
            let rows = UngroupedRows {
                instance: instance.clone(),
                pair: (0..20_000).map(|n| 50_000 - n).collect(),
                weight: if is_weighted { (0..20_000).map(weight).collect() } else { Vec::new() },
            };
            let grouped = Grouped::by_ranges(1000, rows, ranges);
            assert_eq!((grouped.offsets.len(), grouped.offsets[1000]), (1001, 20_000));
            for i in 0..1000 {
                let of_instance: Vec<usize> =
                    (0..20_000).filter(|row| instance[*row] as usize == i).collect();
                let position = grouped.offsets[i]..grouped.offsets[i + 1];
                let pairs: Vec<u32> = of_instance.iter().map(|row| 50_000 - *row as u32).collect();
                assert_eq!(grouped.pairs[position.clone()], pairs, "{ranges} {i}");
                assert_eq!(grouped.rows_of_instance[i] as usize, of_instance.len());
                let weights: Vec<f64> =
                    of_instance.into_iter().filter(|_| is_weighted).map(weight).collect();
                assert_eq!(grouped.weights.get(position).unwrap_or_default(), weights);
            }
        }
    }
}
