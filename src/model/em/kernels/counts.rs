//! Sufficient statistics: what an E-step over a range of instances leaves for the M-step, as a value that merges.

use std::ops::Range;

use rayon::prelude::*;

use super::sparse_rows::SparseRows;
use super::{for_classes, has_kernel, width};
use crate::frame::{Annotations, BLOCK, Dims, InstanceRange, WeightSlice};
use crate::model::fitted::Posterior;

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

/// Tables are worth their zeroing and summing when there are so many annotations to a column and range.
const ANNOTATIONS_PER_COLUMN: usize = 3;

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
        let dense = size_of::<f64>() * a.n_columns() * classes;
        let ranges = a.len() / (ANNOTATIONS_PER_COLUMN * a.n_columns()).max(1);
        if ranges >= LEAST_RANGES {
            Self::Scatter(ranges.min(MOST_RANGES))
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
            Self::Gather if !a.are_weighted() => a.first_singleton(),
            _ => a.n_columns(),
        }
    }

    /// The ranges of instances that have statistics of their own.
    fn ranges(self, instances: usize) -> Vec<Range<usize>> {
        let bounds: Vec<usize> = match self {
            Self::Scatter(n) => (0..=n).map(|range| range * instances / n).collect(),
            _ => (0..instances).step_by(BLOCK).chain([instances]).collect(),
        };
        bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect()
    }
}

/// What a range of instances adds to the parameters and the objective.
#[derive(Debug, Clone)]
pub struct Statistics {
    instances: Range<usize>,
    objective: f64,
    /// The sum of the rows of annotated instances, `[class]`.
    classes: Vec<f64>,
    counts: RangeCounts,
}

/// What a range keeps of its rows.
#[derive(Debug, Clone)]
pub(super) enum RangeCounts {
    /// Their sums, `[column, class]`.
    Scatter(Vec<f64>),
    /// Nothing: columns gather the rows.
    Gather,
    /// Their entries, which columns gather, for each [`BLOCK`] of instances.
    SparseGather(Vec<SparseRows>),
}

impl Statistics {
    /// Of no instances, with room for a range of them.
    #[must_use]
    pub fn new(a: &Annotations, instances: Range<usize>, strategy: CountStrategy) -> Self {
        let n_classes = a.dims().classes;
        let counts = match strategy {
            CountStrategy::Scatter(_) => RangeCounts::Scatter(vec![0.0; a.n_columns() * n_classes]),
            CountStrategy::Gather => RangeCounts::Gather,
            CountStrategy::SparseGather => RangeCounts::SparseGather(vec![SparseRows::default()]),
        };
        Self { instances, objective: 0.0, classes: vec![0.0; n_classes], counts }
    }

    /// The share of the objective.
    #[must_use]
    pub fn objective(&self) -> f64 {
        self.objective
    }

    /// The sum of the posteriors of annotated instances, `[class]`.
    #[must_use]
    pub fn classes(&self) -> &[f64] {
        &self.classes
    }

    /// Adds those of the next range.
    pub fn merge(&mut self, next: &mut Self) {
        self.merge_scalars(next);
        match (&mut self.counts, &mut next.counts) {
            (RangeCounts::Scatter(sums), RangeCounts::Scatter(table)) => {
                sums.iter_mut().zip(table).for_each(|(sum, count)| *sum += *count);
            }
            (RangeCounts::SparseGather(rows), RangeCounts::SparseGather(more)) => rows.append(more),
            _ => {}
        }
    }

    fn merge_scalars(&mut self, next: &Self) {
        self.objective += next.objective;
        self.classes.iter_mut().zip(&next.classes).for_each(|(sum, count)| *sum += count);
    }

    pub(super) fn counts(&self) -> &RangeCounts {
        &self.counts
    }

    fn clear(&mut self) {
        self.objective = 0.0;
        self.classes.fill(0.0);
        match &mut self.counts {
            RangeCounts::Scatter(table) => table.fill(0.0),
            RangeCounts::SparseGather(rows) => rows.iter_mut().for_each(SparseRows::clear),
            RangeCounts::Gather => {}
        }
    }

    pub(super) fn add_objective(&mut self, objective: f64) {
        self.objective += objective;
    }

    /// The sums of rows, `[class]`, and the table of counts, which is empty where the M-step gathers them.
    pub(super) fn sums_and_table(&mut self) -> (&mut [f64], &mut [f64]) {
        match &mut self.counts {
            RangeCounts::Scatter(table) => (&mut self.classes, table),
            _ => (&mut self.classes, &mut []),
        }
    }

    /// Adds the posterior row of the next instance, whose annotations are in `columns`.
    #[inline(always)]
    pub(super) fn add(&mut self, row: &[f64], columns: &[u32], weights: WeightSlice<'_>) {
        if !columns.is_empty() {
            add_row::<0>(&mut self.classes, row);
        }
        match &mut self.counts {
            RangeCounts::Gather => {}
            RangeCounts::SparseGather(rows) => rows[0].add(row),
            RangeCounts::Scatter(table) => {
                for_classes!(row.len(), K => scatter::<K>(table, row, columns, weights));
            }
        }
    }
}

/// `sums += row`
#[inline(always)]
pub(super) fn add_row<const K: usize>(sums: &mut [f64], row: &[f64]) {
    if K > 0
        && let (Ok(sums), Ok(row)) =
            (<&mut [f64; K]>::try_from(&mut *sums), <&[f64; K]>::try_from(row))
    {
        (0..K).for_each(|k| sums[k] += row[k]);
        return;
    }
    sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
}

/// Adds a row to the counts of the columns of its instance.
#[inline(always)]
pub(super) fn scatter<const K: usize>(
    table: &mut [f64],
    row: &[f64],
    columns: &[u32],
    weights: WeightSlice<'_>,
) {
    let n = width::<K>(row.len());
    if K > 0
        && let Ok(row) = <[f64; K]>::try_from(row)
    {
        let table = table.as_chunks_mut::<K>().0;
        match weights {
            WeightSlice::Ones => {
                for column in columns {
                    let counts = &mut table[*column as usize];
                    (0..K).for_each(|k| counts[k] += row[k]);
                }
            }
            WeightSlice::All(weights) => {
                for (column, weight) in columns.iter().zip(weights) {
                    let counts = &mut table[*column as usize];
                    (0..K).for_each(|k| counts[k] += weight * row[k]);
                }
            }
            WeightSlice::Few { .. } => {
                for (at, column) in columns.iter().enumerate() {
                    let (counts, weight) = (&mut table[*column as usize], weights.get(at));
                    (0..K).for_each(|k| counts[k] += weight * row[k]);
                }
            }
        }
        return;
    }
    for (at, column) in columns.iter().enumerate() {
        let counts = &mut table[*column as usize * n..(*column as usize + 1) * n];
        let weight = weights.get(at);
        counts.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
    }
}

/// Empty statistics of all ranges.
#[must_use]
pub fn parts(a: &Annotations, strategy: CountStrategy) -> Vec<Statistics> {
    let ranges = strategy.ranges(a.dims().instances).into_iter();
    ranges.map(|instances| Statistics::new(a, instances, strategy)).collect()
}

/// Hands every range, cleared, its annotations and its rows of `t` to `sweep`, and merges all into the first.
pub fn for_each_range(
    a: &Annotations,
    t: &mut Posterior,
    parts: &mut [Statistics],
    sweep: impl Fn(Range<usize>, InstanceRange<'_>, &mut [f64], &mut Statistics) + Sync,
) {
    let n_classes = t.n_classes();
    hand_back(parts);
    let mut rest = t.values_mut();
    let mut work = Vec::with_capacity(parts.len());
    for part in &mut *parts {
        let (rows, others) = rest.split_at_mut(part.instances.len() * n_classes);
        work.push((part, rows));
        rest = others;
    }
    work.into_par_iter().with_max_len(1).for_each(|(part, rows)| {
        part.clear();
        let instances = part.instances.clone();
        sweep(instances.clone(), a.range(instances), rows, part);
    });
    merge_all(parts);
}

/// Counts posteriors that no E-step has made.
pub fn count(a: &Annotations, t: &Posterior, parts: &mut [Statistics]) {
    hand_back(parts);
    parts.par_iter_mut().with_max_len(1).for_each(|part| {
        part.clear();
        let (range, first) = (a.range(part.instances.clone()), part.instances.start);
        for i in 0..range.len() {
            let own = range.positions(i);
            let (columns, weights) = (&range.columns[own.clone()], range.weights.slice(own));
            part.add(t.row(first + i), columns, weights);
        }
    });
    merge_all(parts);
}

/// Merges all statistics into the first, in their order: tables cell by cell, many cells at once.
fn merge_all(parts: &mut [Statistics]) {
    let Some((first, others)) = parts.split_first_mut() else { return };
    for next in &mut *others {
        match &mut first.counts {
            RangeCounts::Scatter(_) => first.merge_scalars(next),
            _ => first.merge(next),
        }
    }
    if let RangeCounts::Scatter(sums) = &mut first.counts {
        sums.par_chunks_mut(BLOCK).enumerate().for_each(|(chunk, sums)| {
            for next in &*others {
                if let RangeCounts::Scatter(table) = &next.counts {
                    let counts = &table[chunk * BLOCK..];
                    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                }
            }
        });
    }
}

/// Gives every range the room for entries that merging took from it.
fn hand_back(parts: &mut [Statistics]) {
    let Some((first, others)) = parts.split_first_mut() else { return };
    if let RangeCounts::SparseGather(rows) = &mut first.counts {
        for (next, room) in others.iter_mut().zip(rows.drain(1..)) {
            if let RangeCounts::SparseGather(own) = &mut next.counts {
                own.push(room);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::m_step::expected_counts;
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn every_way_to_count_gives_the_same_counts() {
        for n_classes in [2_u32, 5, 10, 11] {
            let rows: Vec<(u32, u32, u32)> =
                (0..6000).map(|n| (n / 6, n % 6, (n * n / 7) % n_classes)).collect();
            let a = tiny(n_classes as usize, &rows);
            let (n, t) = (n_classes as usize, Posterior::from_votes(&a));
            let mut plain = vec![0.0; a.n_columns() * n];
            for (column, counts) in plain.chunks_exact_mut(n).enumerate() {
                for i in a.instances_of(column) {
                    counts.iter_mut().zip(t.row(*i as usize)).for_each(|(c, p)| *c += p);
                }
            }
            let of = |range: Range<usize>| range.flat_map(|i| t.row(i).iter().copied().enumerate());
            let mut classes = vec![0.0; n];
            of(0..1000).for_each(|(k, p)| classes[k] += p);
            assert!(matches!(CountStrategy::choose(&a), CountStrategy::Scatter(_)));
            for strategy in
                [CountStrategy::choose(&a), CountStrategy::Scatter(3), CountStrategy::Gather]
            {
                let (mut parts, mut counts) = (parts(&a, strategy), vec![0.0; plain.len()]);
                // Twice: room that is used again is cleared.
                count(&a, &t, &mut parts);
                count(&a, &t, &mut parts);
                expected_counts(&a, &t, &parts, &mut counts);
                for (cell, want) in plain.iter().enumerate() {
                    assert!((counts[cell] - want).abs() < 1e-9, "{strategy:?} {cell}");
                }
                for (got, want) in parts[0].classes().iter().zip(&classes) {
                    assert!((got - want).abs() < 1e-9, "{strategy:?}");
                }
            }
        }
    }

    #[test]
    fn merged_statistics_are_those_of_the_joined_range() {
        let rows: Vec<(u32, u32, u32)> =
            (0..6000).map(|n| (n / 6, n % 6, (n * n / 7) % 3)).collect();
        let a = tiny(3, &rows);
        let t = Posterior::from_votes(&a);
        let of = |instances: Range<usize>| {
            let mut statistics = Statistics::new(&a, instances.clone(), CountStrategy::Scatter(1));
            let range = a.range(instances.clone());
            for i in 0..range.len() {
                let own = range.positions(i);
                let columns = &range.columns[own.clone()];
                statistics.add(t.row(instances.start + i), columns, range.weights.slice(own));
            }
            statistics.add_objective(instances.len() as f64);
            statistics
        };
        let (mut merged, mut next, whole) = (of(0..300), of(300..1000), of(0..1000));
        merged.merge(&mut next);
        assert_eq!(merged.objective(), whole.objective());
        let (RangeCounts::Scatter(got), RangeCounts::Scatter(want)) =
            (merged.counts(), whole.counts())
        else {
            panic!("tables were asked for")
        };
        for (got, want) in got.iter().zip(want).chain(merged.classes().iter().zip(whole.classes()))
        {
            assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        }
    }
}
