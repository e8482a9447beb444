//! The statistics of all ranges of instances: how ranges are processed in parallel, and sums over them, in their order.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::prefetcher::{columns_ahead, prefetch_rows};
use super::row_arithmetic::add_row;
use super::statistics::Statistics;
use super::strategy::CountStrategy;
use super::sums::scatter;
use super::width::{for_classes, width};
use crate::frame::{Annotations, InstanceRange};
use crate::model::posterior::Posterior;

/// Empty statistics of all ranges.
#[must_use]
pub fn parts(a: &Annotations, strategy: CountStrategy) -> Vec<Statistics> {
    let ranges = strategy.ranges(a.dims().instances).into_iter();
    let (columns, classes) = (a.n_columns(), a.dims().classes);
    ranges.map(|instances| Statistics::new(columns, classes, instances, strategy)).collect()
}

/// Empty statistics of the same ranges that hold no counts.
pub fn without_counts(parts: &[Statistics]) -> Vec<Statistics> {
    let of_range = |part: &Statistics| {
        Statistics::new(0, part.classes().len(), part.instances(), CountStrategy::Gather)
    };
    parts.iter().map(of_range).collect()
}

/// Clears the statistics of every range and calls `sweep` with its instances, annotations, rows of `t`, and statistics.
/// The counts of the ranges are not merged: the M-step sums them, in order, when it reads them.
pub fn for_each_range(
    a: &Annotations,
    t: Option<&mut Posterior>,
    parts: &mut [Statistics],
    sweep: impl Fn(Range<usize>, InstanceRange<'_>, Option<&mut [f64]>, &mut Statistics) + Sync,
) {
    let n_classes = a.dims().classes;
    let mut rest = t.map(Posterior::values_mut);
    let mut work = Vec::with_capacity(parts.len());
    for part in parts {
        let (rows, others) =
            rest.map(|rest| rest.split_at_mut(part.instances().len() * n_classes)).unzip();
        work.push((part, rows));
        rest = others;
    }
    work.into_par_iter().with_max_len(1).for_each(|(part, rows)| {
        part.clear();
        let instances = part.instances();
        sweep(instances.clone(), a.range(instances), rows, part);
    });
}

/// Counts posteriors that no E-step computed.
pub fn count(a: &Annotations, t: &Posterior, parts: &mut [Statistics]) {
    let arch = Arch::new();
    parts.par_iter_mut().with_max_len(1).for_each(|part| {
        part.clear();
        let instances = part.instances();
        let (range, n) = (a.range(instances.clone()), a.dims().classes);
        let rows = &t.values()[instances.start * n..instances.end * n];
        if part.table().is_some() {
            for_classes!(n, K => arch.dispatch(CountSweep::<K> { range, rows, part }));
            return;
        }
        for (i, row) in rows.chunks_exact(n.max(1)).enumerate() {
            part.add(i, row, !range.positions(i).is_empty());
        }
    });
}

/// Adds the rows of a range, `[instance, class]`, to its class sums and to its table of counts.
///
/// # Why
/// Before the first iteration over 10 M annotations, their votes are computed and counted: in 65 ms without prefetching
/// and with rows of any length, in 52 ms with this (5 classes, 10 k annotators, two threads on an Intel Xeon).
struct CountSweep<'a, const K: usize> {
    range: InstanceRange<'a>,
    rows: &'a [f64],
    part: &'a mut Statistics,
}

impl<const K: usize> WithSimd for CountSweep<'_, K> {
    type Output = ();

    // All callees are inlined too, as in the E-step.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { range, rows, part } = self;
        let (classes, table) = part.sums_and_table();
        let n = width::<K>(classes.len()).max(1);
        for (i, row) in rows.chunks_exact(n).enumerate() {
            let positions = range.positions(i);
            if let Some(ahead) = columns_ahead(range.columns, positions.clone()) {
                prefetch_rows(table, ahead, n);
            }
            let columns = &range.columns[positions.clone()];
            if !columns.is_empty() {
                add_row::<K>(classes, row);
                scatter::<K>(table, row, columns, range.weights.slice(positions));
            }
        }
    }
}

/// The log-likelihood of all ranges, summed in their order.
#[must_use]
pub fn log_likelihood(parts: &[Statistics]) -> f64 {
    sum_in_order(parts.iter().map(Statistics::log_likelihood))
}

/// The estimator's terms of the objective of the columns that the E-step recomputed in all ranges, summed in their
/// order.
#[must_use]
pub fn prior_terms(parts: &[Statistics]) -> f64 {
    sum_in_order(parts.iter().map(Statistics::prior_terms))
}

/// A sum that starts with the first term: the one of no terms is 0.
fn sum_in_order(mut terms: impl Iterator<Item = f64>) -> f64 {
    let first = terms.next().unwrap_or_default();
    terms.fold(first, |sum, term| sum + term)
}

/// The sum of the posteriors of annotated instances over all ranges, in their order, `[class]`.
#[must_use]
pub fn class_counts(parts: &[Statistics]) -> Vec<f64> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut sums = first.classes().to_vec();
    for part in others {
        sums.iter_mut().zip(part.classes()).for_each(|(sum, count)| *sum += count);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::Prior;
    use super::super::e_step::EStep;
    use super::super::m_step::{Columns, expected_counts};
    use super::*;
    use crate::frame::ITEMS_PER_BLOCK;
    use crate::model::confusion::Smoothing;
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
                // Twice: statistics that are used again are cleared.
                count(&a, &t, &mut parts);
                count(&a, &t, &mut parts);
                expected_counts(&a, &t, &parts, &mut counts);
                for (cell, want) in plain.iter().enumerate() {
                    assert!((counts[cell] - want).abs() < 1e-9, "{strategy:?} {cell}");
                }
                for (got, want) in class_counts(&parts).iter().zip(&classes) {
                    assert!((got - want).abs() < 1e-9, "{strategy:?}");
                }
            }
        }
    }

    /// The E-step of a range alone, from the M-step of the votes.
    fn statistics_of(
        a: &Annotations,
        instances: Range<usize>,
        strategy: CountStrategy,
    ) -> (Statistics, Vec<f64>) {
        let n = a.dims().classes;
        let (votes, estimator) = (Posterior::from_votes(a), Smoothing::new(a, 0.1, 0.0));
        let (mut columns, mut parts) = (Columns::new(a, strategy), parts(a, strategy));
        count(a, &votes, &mut parts);
        columns.estimate(a, &votes, &parts, &estimator);
        let mut rows = votes.values()[instances.start * n..instances.end * n].to_vec();
        let mut statistics = Statistics::new(a.n_columns(), n, instances.clone(), strategy);
        let prior = vec![1.0 / n as f64; n];
        let step =
            EStep { range: a.range(instances), prior: Prior::Class(&prior), estimator: &estimator };
        step.run(&columns, Some(&mut rows), &mut statistics);
        (statistics, rows)
    }

    /// The objective, class sums, expected counts, sparse likelihoods and terms of an estimator from these statistics.
    fn sums_of(
        a: &Annotations,
        t: &Posterior,
        strategy: CountStrategy,
        parts: &[Statistics],
    ) -> Vec<f64> {
        let n = a.dims().classes;
        let mut counts = vec![0.0; a.n_columns() * n];
        expected_counts(a, t, parts, &mut counts);
        let mut columns = Columns::new(a, strategy);
        let terms = columns.estimate(a, t, parts, &Smoothing::new(a, 0.1, 0.0));
        let mut sums = [vec![log_likelihood(parts), prior_terms(parts), terms], counts].concat();
        sums.extend(class_counts(parts));
        if let Columns::Sparse(columns) = columns {
            let mut factors = vec![0.0; n];
            for column in 0..a.n_columns() {
                columns.write(column as u32, &mut factors);
                sums.extend(&factors);
            }
        }
        sums
    }

    #[test]
    fn merged_statistics_give_the_same_bits_as_their_parts() {
        let n_instances = 2 * ITEMS_PER_BLOCK + 100;
        // Every 1000th annotation is the only one of its annotator.
        let annotator = |n: u32| if n.is_multiple_of(1000) { 7 + n / 1000 } else { n % 7 };
        let row = |n: u32| (n / 3, annotator(n), (n * (n % 97) / 7) % 3);
        let rows: Vec<(u32, u32, u32)> = (0..3 * n_instances as u32).map(row).collect();
        let a = tiny(3, &rows);
        let (first, second) = (ITEMS_PER_BLOCK, 2 * ITEMS_PER_BLOCK);
        for strategy in
            [CountStrategy::Scatter(1), CountStrategy::Gather, CountStrategy::SparseGather]
        {
            let ranges = [0..first, first..second, second..n_instances];
            let (parts, rows): (Vec<_>, Vec<_>) =
                ranges.into_iter().map(|range| statistics_of(&a, range, strategy)).unzip();
            let (whole, all_rows) = statistics_of(&a, 0..n_instances, strategy);
            assert_eq!(rows.concat(), all_rows, "{strategy:?}");
            let mut t = Posterior::zeros(n_instances, 3);
            t.values_mut().copy_from_slice(&all_rows);
            let of_parts = sums_of(&a, &t, strategy, &parts);
            let mut parts = parts.into_iter();
            let mut merged = parts.next().unwrap();
            parts.for_each(|next| merged.merge(next).unwrap());
            assert_eq!(merged.instances(), whole.instances());
            let bits = |sums: &[f64]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
            let of_merged = sums_of(&a, &t, strategy, &[merged]);
            assert_eq!(bits(&of_merged), bits(&of_parts), "{strategy:?}");
            let of_whole = sums_of(&a, &t, strategy, &[whole]);
            let close =
                |(got, want): (&f64, &f64)| (got - want).abs() <= 1e-12 * want.abs().max(1.0);
            assert!(of_merged.iter().zip(&of_whole).all(close), "{strategy:?}");
        }
    }
}
