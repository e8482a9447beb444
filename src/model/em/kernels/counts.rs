//! Sufficient statistics: what an E-step over a range of instances leaves for the M-step, as a value that merges.

use std::ops::Range;

use rayon::prelude::*;

use super::padded_matrix::{self, PaddedMatrix, stride};
use super::sparse_rows::SparseRows;
use super::strategy::CountStrategy;
use super::width::for_classes;
use crate::frame::{Annotations, InstanceRange, WeightSlice};
use crate::model::posterior::Posterior;

/// What a range of instances adds to the parameters and the objective.
#[derive(Debug)]
pub struct Statistics {
    instances: Range<usize>,
    objective: f64,
    /// The sum of the rows of annotated instances, `[class]`.
    classes: Vec<f64>,
    counts: RangeCounts,
}

/// What a range keeps of its rows.
#[derive(Debug)]
pub(super) enum RangeCounts {
    /// Their sums.
    Scatter(PaddedMatrix),
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
            CountStrategy::Scatter(_) => {
                RangeCounts::Scatter(PaddedMatrix::zeros(a.n_columns(), n_classes))
            }
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
                let pairs = sums.cells_mut().iter_mut().zip(table.cells());
                pairs.for_each(|(sum, count)| *sum += *count);
            }
            (RangeCounts::SparseGather(rows), RangeCounts::SparseGather(more)) => rows.append(more),
            _ => {}
        }
    }

    fn merge_scalars(&mut self, next: &Self) {
        self.objective += next.objective;
        self.classes.iter_mut().zip(&next.classes).for_each(|(sum, count)| *sum += count);
    }

    /// The cells of the table of counts, where there is one.
    pub(super) fn table(&self) -> Option<&[f64]> {
        match &self.counts {
            RangeCounts::Scatter(table) => Some(table.cells()),
            _ => None,
        }
    }

    /// The kept rows, by block of instances, where columns gather entries.
    pub(super) fn sparse_rows(&self) -> &[SparseRows] {
        match &self.counts {
            RangeCounts::SparseGather(rows) => rows,
            _ => &[],
        }
    }

    fn clear(&mut self) {
        self.objective = 0.0;
        self.classes.fill(0.0);
        match &mut self.counts {
            RangeCounts::Scatter(table) => table.cells_mut().fill(0.0),
            RangeCounts::SparseGather(rows) => rows.iter_mut().for_each(SparseRows::clear),
            RangeCounts::Gather => {}
        }
    }

    pub(super) fn add_objective(&mut self, objective: f64) {
        self.objective += objective;
    }

    /// The sums of rows, `[class]`, and the cells of the table of counts, of which there are none where the M-step gathers
    /// them.
    pub(super) fn sums_and_table(&mut self) -> (&mut [f64], &mut [f64]) {
        match &mut self.counts {
            RangeCounts::Scatter(table) => (&mut self.classes, table.cells_mut()),
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
                let cells = table.cells_mut();
                for_classes!(row.len(), K => scatter::<K>(cells, row, columns, weights));
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
    cells: &mut [f64],
    row: &[f64],
    columns: &[u32],
    weights: WeightSlice<'_>,
) {
    match weights {
        WeightSlice::Ones => scatter_weighted::<K>(cells, row, columns, |_| 1.0),
        WeightSlice::All(weights) => {
            scatter_weighted::<K>(cells, row, columns, |at| weights[at]);
        }
        WeightSlice::Few { .. } => {
            scatter_weighted::<K>(cells, row, columns, |at| weights.get(at));
        }
    }
}

#[inline(always)]
fn scatter_weighted<const K: usize>(
    cells: &mut [f64],
    row: &[f64],
    columns: &[u32],
    weight: impl Fn(usize) -> f64,
) {
    // A copy, so that the compiler knows that the counts are not the row.
    if K > 0
        && let Ok(row) = <[f64; K]>::try_from(row)
    {
        for (at, column) in columns.iter().enumerate() {
            let (counts, weight) = (padded_matrix::row_mut::<K>(cells, *column), weight(at));
            (0..K).for_each(|k| counts[k] += weight * row[k]);
        }
        return;
    }
    let n = row.len();
    for (at, column) in columns.iter().enumerate() {
        let (start, weight) = (*column as usize * stride(n), weight(at));
        cells[start..start + n].iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
    }
}

/// Empty statistics of all ranges.
#[must_use]
pub fn parts(a: &Annotations, strategy: CountStrategy) -> Vec<Statistics> {
    let ranges = strategy.ranges(a.dims().instances).into_iter();
    ranges.map(|instances| Statistics::new(a, instances, strategy)).collect()
}

/// Hands every range, cleared, its annotations and its rows of `t` to `sweep`, and merges all into the first but tables.
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

/// Merges all statistics into the first, in their order; but tables stay apart, for the M-step to sum as it reads them.
fn merge_all(parts: &mut [Statistics]) {
    let Some((first, others)) = parts.split_first_mut() else { return };
    for next in others {
        match &mut first.counts {
            RangeCounts::Scatter(_) => first.merge_scalars(next),
            _ => first.merge(next),
        }
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
            (&merged.counts, &whole.counts)
        else {
            panic!("the strategy is to scatter")
        };
        for (got, want) in
            got.cells().iter().zip(want.cells()).chain(merged.classes().iter().zip(whole.classes()))
        {
            assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        }
    }
}
