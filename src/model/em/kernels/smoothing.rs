//! Maximum likelihood with pseudo-counts: the same for all cells ([`Smoothing`]), or drawn to rows that all annotators
//! share ([`PseudoCounts`]).
//!
//! The prior of a row is the Dirichlet density with parameters a\[l\] + 1, for the pseudo-counts a. From the shares
//! p\[l\] = (n\[l\] + a\[l\]) / (N + A), with the sums N and A,
//!
//! ```text
//! sum_l a[l] ln(p[l] A / a[l]) = sum_l a[l] ln(1 + n[l] / a[l]) - A ln(1 + N / A)
//! ```
//! which is the log-density minus that of its mode, p\[l\] = a\[l\] / A. There is no difference of large numbers, and a
//! label without counts has no term. Pseudo-counts below the floor of counts have none either.

use super::estimator::{Estimator, PairCounts, n_groups};
use super::logarithms::{larger, ln_1p_ratio};
use super::pair_rows::{PairRows, for_width, pad};
use crate::model::confusion::{PseudoCounts, Smoothing};
use crate::model::numerics::MIN_PROBABILITY;

/// `added` ln(1 + `count` / `added`), or 0 if the pseudo-count `added` is ignored.
#[inline(always)]
fn log_prior_term(count: f64, added: f64) -> f64 {
    let factor = if added >= MIN_PROBABILITY { added } else { 0.0 };
    factor * ln_1p_ratio(count, larger(MIN_PROBABILITY, added))
}

/// Divides counts by their sums. The share of an only label is exactly 1, which a product with a rounded reciprocal is
/// not: a large weight would multiply the logarithm of the difference.
#[inline(always)]
fn divide<const W: usize>(rows: &mut [[f64; W]], m: usize, group: usize, sums: &[f64; W]) {
    let mut scales = *sums;
    scales.iter_mut().for_each(|scale| *scale = 1.0 / *scale);
    for row in rows.chunks_exact_mut(m) {
        for k in 0..W {
            let share = row[group][k] * scales[k];
            row[group][k] = if row[group][k] == sums[k] { 1.0 } else { share };
        }
    }
}

impl Smoothing {
    /// The pseudo-counts of the cells of a label in a group of classes, `first` on.
    #[inline(always)]
    fn added<const W: usize>(self, label: u32, first: usize) -> [f64; W] {
        let mut added = [self.everywhere; W];
        if let Some(own) = (label as usize).checked_sub(first).and_then(|at| added.get_mut(at)) {
            *own += self.diagonal;
        }
        added
    }
}

impl Smoothing {
    /// The shares of the labels of one matrix, given its counts, `[label, class]`, of all labels; and the log-prior.
    pub(crate) fn shares_of(self, n_classes: usize, counts: &[f64]) -> (PairRows, f64) {
        let labels: Vec<u32> = (0..self.n_labels as u32).collect();
        let mut shares = PairRows::zeros(labels.len(), n_classes);
        let log_prior = for_width!(shares.stride(), W => {
            let m = n_groups::<W>(n_classes);
            let groups = shares.cells_mut().as_chunks_mut::<W>().0;
            let rows = counts.chunks_exact(n_classes.max(1));
            groups.chunks_exact_mut(m).zip(rows).for_each(|(to, row)| pad(row, to));
            let (labels, state) = (&labels[..], &mut [][..]);
            self.estimate(PairCounts { index: 0, labels, n_classes, state, rows: groups })
        });
        (shares, log_prior)
    }
}

/// The likelihood is the smoothed share of each label.
impl Estimator for Smoothing {
    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, rows, .. } = own;
        let m = n_groups::<W>(n_classes);
        let has_prior = self.everywhere >= MIN_PROBABILITY || self.diagonal >= MIN_PROBABILITY;
        let added_to_row = self.n_labels as f64 * self.everywhere + self.diagonal;
        let mut log_prior = 0.0;
        for group in 0..m {
            let first = group * W;
            if has_prior {
                let (mut sums, mut terms) = ([0.0; W], [0.0; W]);
                for (row, label) in rows.chunks_exact(m).zip(labels) {
                    let added = self.added::<W>(*label, first);
                    for k in 0..W {
                        sums[k] += row[group][k];
                        terms[k] += log_prior_term(row[group][k], added[k]);
                    }
                }
                for k in 0..W {
                    terms[k] -= log_prior_term(sums[k], added_to_row);
                }
                log_prior += terms.iter().sum::<f64>();
            }
            // Labels without a pair are part of the sum too.
            let mut sums = [0.0; W];
            self.row_sums_from(first, labels, &mut sums);
            for (row, label) in rows.chunks_exact_mut(m).zip(labels) {
                let added = self.added::<W>(*label, first);
                for k in 0..W {
                    row[group][k] = larger(MIN_PROBABILITY, row[group][k] + added[k]);
                    sums[k] += row[group][k];
                }
            }
            divide(rows, m, group, &sums);
        }
        log_prior
    }
}

/// Pseudo-counts that differ by cell, in groups.
pub(crate) struct CellPrior {
    /// As the report of a fit reads them.
    pub(crate) counts: PseudoCounts,
    /// The same, `[label, class]`, and their sums in the last row.
    padded: PairRows,
}

impl CellPrior {
    /// The pseudo-counts of these cells, `[label, class]`, each above 0.
    pub(crate) fn new(n_classes: usize, cells: Vec<f64>) -> Self {
        let n_labels = cells.len() / n_classes.max(1);
        let counts = PseudoCounts::new(n_classes, cells);
        let mut padded = PairRows::zeros(n_labels + 1, n_classes);
        let rows = (0..n_labels).map(|label| counts.of_label(label)).chain([counts.of_rows()]);
        for_width!(padded.stride(), W => {
            let m = n_groups::<W>(n_classes);
            let groups = padded.cells_mut().as_chunks_mut::<W>().0;
            groups.chunks_exact_mut(m).zip(rows).for_each(|(to, row)| pad(row, to));
        });
        Self { counts, padded }
    }
}

/// The likelihood is the share of each label.
impl Estimator for CellPrior {
    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, rows, .. } = own;
        let m = n_groups::<W>(n_classes);
        let all_added = self.padded.cells().as_chunks::<W>().0;
        let added_to_rows = &all_added[all_added.len() - m..];
        let mut log_prior = 0.0;
        for group in 0..m {
            let (mut sums, mut terms) = ([0.0; W], [0.0; W]);
            for (row, label) in rows.chunks_exact_mut(m).zip(labels) {
                let added = all_added[*label as usize * m + group];
                for k in 0..W {
                    sums[k] += row[group][k];
                    terms[k] += log_prior_term(row[group][k], added[k]);
                    row[group][k] += added[k];
                }
            }
            for k in 0..W {
                terms[k] -= log_prior_term(sums[k], added_to_rows[group][k]);
                sums[k] += added_to_rows[group][k];
            }
            log_prior += terms.iter().sum::<f64>();
            divide(rows, m, group, &sums);
        }
        log_prior
    }
}
