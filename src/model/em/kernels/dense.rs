//! Confusion columns with a cell for every class, of all annotators but, where counts are gathered, the singletons.
//!
//! # Why
//! The column of an annotator with a single annotation follows from the posterior of that one instance, which an E-step
//! has in its registers. Making it anew there costs less than bringing it from memory.
//!
//! Where annotations have weights of their own, cells hold logarithms: a weighted factor is a power, and a weighted sum of
//! logarithms costs one multiplication a cell.

use super::estimate::{Annotator, Estimator};
use super::{MIN_LIKELIHOOD, width};

/// The columns that are kept.
pub struct DenseColumns {
    /// `[column, class]`: P(label of the column given class), or its logarithm; columns that there is no room for are
    /// those of singleton annotators.
    pub cells: Vec<f64>,
    /// Whether cells hold logarithms.
    pub are_logs: bool,
}

impl DenseColumns {
    /// Writes the factors of a column, or their logarithms, into `factors`, `[class]`; `last` is the posterior behind the
    /// counts of an instance with an annotation in the column. Returns the term of the objective of a column made anew.
    pub(super) fn write(
        &self,
        column: u32,
        label: u32,
        estimator: &dyn Estimator,
        last: &[f64],
        factors: &mut [f64],
    ) -> f64 {
        let n = factors.len();
        if let Some(cells) = self.cells.get(column as usize * n..(column as usize + 1) * n) {
            factors.copy_from_slice(cells);
            0.0
        } else {
            factors.copy_from_slice(last);
            estimate_singleton(estimator, label, factors)
        }
    }
}

/// Turns the posterior behind a singleton annotator's counts into the factors of its column; returns its term of the
/// objective.
#[inline]
pub(super) fn estimate_singleton(estimator: &dyn Estimator, label: u32, counts: &mut [f64]) -> f64 {
    let term = estimator.estimate(Annotator { labels: &[label] }, counts);
    counts.iter_mut().for_each(|factor| *factor = factor.max(MIN_LIKELIHOOD));
    term
}

/// `row` = `prior` times the factors of every column; all columns are kept.
#[inline(always)]
pub(super) fn multiply<const K: usize>(
    row: &mut [f64],
    prior: &[f64],
    cells: &[f64],
    columns: &[u32],
) {
    if K > 0
        && let (Ok(row), Ok(prior)) =
            (<&mut [f64; K]>::try_from(&mut *row), <&[f64; K]>::try_from(prior))
    {
        let (mut product, cells) = (*prior, cells.as_chunks::<K>().0);
        for column in columns {
            let factors = &cells[*column as usize];
            (0..K).for_each(|k| product[k] *= factors[k]);
        }
        *row = product;
        return;
    }
    row.copy_from_slice(prior);
    for column in columns {
        let start = *column as usize * row.len();
        let factors = &cells[start..start + row.len()];
        row.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
    }
}

/// `row` = `prior` times the factors of every column, of which those of singletons follow from what `row` holds; returns
/// the singletons' terms of the objective.
#[inline(always)]
pub(super) fn multiply_with_singletons<const K: usize>(
    row: &mut [f64],
    prior: &[f64],
    cells: &[f64],
    columns: &[u32],
    labels: &[u32],
    estimator: &dyn Estimator,
) -> f64 {
    let n = width::<K>(row.len());
    let kept = (cells.len() / n.max(1)) as u32;
    let known = columns.iter().position(|c| *c >= kept).unwrap_or(columns.len());
    if known == columns.len() {
        multiply::<K>(row, prior, cells, columns);
        return 0.0;
    }
    let (known, singletons) = columns.split_at(known);
    let mut buffers = [[0.0; 16]; 2];
    let mut heap = Vec::new();
    let (last, factors) = if n <= 16 {
        let [last, factors] = &mut buffers;
        (&mut last[..n], &mut factors[..n])
    } else {
        heap.resize(2 * n, 0.0);
        heap.split_at_mut(n)
    };
    last.copy_from_slice(row);
    multiply::<K>(row, prior, cells, known);
    let (mut terms, mut term) = (0.0, 0.0);
    for (at, column) in singletons.iter().enumerate() {
        if at == 0 || estimator.label_matters() {
            factors.copy_from_slice(last);
            term = estimate_singleton(estimator, labels[*column as usize], factors);
        }
        terms += term;
        row.iter_mut().zip(&*factors).for_each(|(p, f)| *p *= f);
    }
    terms
}

/// `row` = `prior`, a logarithm, plus the weighted logarithms of every column; all columns are kept.
#[inline(always)]
pub(super) fn add_logs<const K: usize>(
    row: &mut [f64],
    prior: &[f64],
    cells: &[f64],
    columns: &[u32],
    weights: &[f64],
) {
    if K > 0
        && let (Ok(row), Ok(prior)) =
            (<&mut [f64; K]>::try_from(&mut *row), <&[f64; K]>::try_from(prior))
    {
        let (mut sums, cells) = (*prior, cells.as_chunks::<K>().0);
        for (column, weight) in columns.iter().zip(weights) {
            let logs = &cells[*column as usize];
            (0..K).for_each(|k| sums[k] += weight * logs[k]);
        }
        *row = sums;
        return;
    }
    row.copy_from_slice(prior);
    for (column, weight) in columns.iter().zip(weights) {
        let start = *column as usize * row.len();
        let logs = &cells[start..start + row.len()];
        row.iter_mut().zip(logs).for_each(|(sum, log)| *sum += weight * log);
    }
}
