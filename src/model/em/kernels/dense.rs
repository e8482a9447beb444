//! Confusion columns with a cell for every class, of all annotators but, where counts are gathered, the singletons.
//!
//! # Why
//! The column of an annotator with a single annotation follows from the posterior of that one instance, which an E-step
//! has in its registers. Making it anew there costs less than bringing it from memory.
//!
//! Where annotations have weights of their own, cells hold logarithms: a weighted factor is a power, and a weighted sum of
//! logarithms costs one multiplication a cell.

use super::estimate::{Annotator, Estimator};
use super::log_domain::ln_all;
use super::padded_matrix::{self, PaddedMatrix, stride};
use super::width::width;
use crate::model::numerics::MIN_LIKELIHOOD;

/// The columns that are kept.
pub struct DenseColumns {
    /// P(label of the column given class), or its logarithm; columns that there is no room for are those of singleton
    /// annotators.
    pub cells: PaddedMatrix,
    /// Whether cells hold logarithms.
    pub are_logs: bool,
}

impl DenseColumns {
    /// Writes the factors of a column, or their logarithms, into `factors`, a row of a [`PaddedMatrix`]; `last` is the posterior
    /// behind the counts of an instance with an annotation of this weight in the column. Returns the term of the objective
    /// of a column made anew.
    pub(super) fn write(
        &self,
        (column, label, weight): (u32, u32, f64),
        estimator: &impl Estimator,
        last: &[f64],
        factors: &mut [f64],
    ) -> f64 {
        let start = column as usize * factors.len();
        if let Some(cells) = self.cells.cells().get(start..start + factors.len()) {
            factors.copy_from_slice(cells);
            return 0.0;
        }
        let term = write_singleton::<0>(estimator, label, weight, last, factors);
        if self.are_logs {
            ln_all(factors);
        }
        term
    }
}

/// Writes the factors of a singleton annotator's column, which follow from the posterior behind its counts; returns its
/// term of the objective.
#[inline(always)]
fn write_singleton<const K: usize>(
    estimator: &impl Estimator,
    label: u32,
    weight: f64,
    last: &[f64],
    factors: &mut [f64],
) -> f64 {
    let n_classes = width::<K>(last.len());
    factors[..n_classes].iter_mut().zip(last).for_each(|(count, p)| *count = weight * p);
    let term = estimator.estimate::<K>(Annotator { labels: &[label], n_classes }, factors);
    factors.iter_mut().for_each(|factor| *factor = factor.max(MIN_LIKELIHOOD));
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
        let mut product = *prior;
        for column in columns {
            let factors = padded_matrix::row::<K>(cells, *column);
            (0..K).for_each(|k| product[k] *= factors[k]);
        }
        *row = product;
        return;
    }
    row.copy_from_slice(prior);
    let (n, step) = (row.len(), stride(row.len()));
    for column in columns {
        let start = *column as usize * step;
        row.iter_mut().zip(&cells[start..start + n]).for_each(|(p, f)| *p *= f);
    }
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
        let mut sums = *prior;
        for (column, weight) in columns.iter().zip(weights) {
            let logs = padded_matrix::row::<K>(cells, *column);
            (0..K).for_each(|k| sums[k] += weight * logs[k]);
        }
        *row = sums;
        return;
    }
    row.copy_from_slice(prior);
    let (n, step) = (row.len(), stride(row.len()));
    for (column, weight) in columns.iter().zip(weights) {
        let start = *column as usize * step;
        row.iter_mut().zip(&cells[start..start + n]).for_each(|(sum, log)| *sum += weight * log);
    }
}

/// The columns of singleton annotators, made where they are needed.
pub(super) struct Singletons<'a, E> {
    labels: &'a [u32],
    estimator: &'a E,
    last: Vec<f64>,
    factors: Vec<f64>,
}

impl<'a, E: Estimator> Singletons<'a, E> {
    pub(super) fn new(n_classes: usize, labels: &'a [u32], estimator: &'a E) -> Self {
        let (last, factors) = (vec![0.0; n_classes], vec![0.0; stride(n_classes)]);
        Self { labels, estimator, last, factors }
    }

    /// As [`multiply`], but factors of columns that are not kept follow from what `row` holds; returns the singletons'
    /// terms of the objective.
    #[inline(always)]
    pub(super) fn multiply<const K: usize>(
        &mut self,
        row: &mut [f64],
        prior: &[f64],
        cells: &[f64],
        columns: &[u32],
    ) -> f64 {
        let (known, singletons) = split_kept::<K>(row.len(), cells, columns);
        if singletons.is_empty() {
            multiply::<K>(row, prior, cells, known);
            return 0.0;
        }
        self.last.copy_from_slice(row);
        multiply::<K>(row, prior, cells, known);
        let (mut terms, mut term) = (0.0, 0.0);
        for (at, column) in singletons.iter().enumerate() {
            if at == 0 || self.estimator.label_matters() {
                let label = self.labels[*column as usize];
                term =
                    write_singleton::<K>(self.estimator, label, 1.0, &self.last, &mut self.factors);
            }
            terms += term;
            row.iter_mut().zip(&self.factors).for_each(|(p, f)| *p *= f);
        }
        terms
    }

    /// As [`add_logs`], but logarithms of columns that are not kept follow from what `row` holds; returns the singletons'
    /// terms of the objective.
    #[inline(always)]
    pub(super) fn add_logs<const K: usize>(
        &mut self,
        row: &mut [f64],
        prior: &[f64],
        cells: &[f64],
        columns: &[u32],
        weights: &[f64],
    ) -> f64 {
        let (known, singletons) = split_kept::<K>(row.len(), cells, columns);
        if singletons.is_empty() {
            add_logs::<K>(row, prior, cells, known, weights);
            return 0.0;
        }
        let Self { labels, estimator, last, factors } = self;
        let (n, step) = (row.len(), stride(row.len()));
        let weights_of_singletons = &weights[known.len()..];
        last.copy_from_slice(row);
        add_logs::<K>(row, prior, cells, known, weights);
        factors.resize(n * singletons.len() + step, 0.0);
        let mut terms = 0.0;
        for (at, (column, weight)) in singletons.iter().zip(weights_of_singletons).enumerate() {
            let (label, factors) = (labels[*column as usize], &mut factors[at * n..at * n + step]);
            terms += write_singleton::<K>(*estimator, label, *weight, last, factors);
        }
        // All at once: a logarithm is a chain of operations, of which the processor has many under way.
        ln_all(&mut factors[..n * singletons.len()]);
        for (logs, weight) in factors.chunks_exact(n).zip(weights_of_singletons) {
            row.iter_mut().zip(logs).for_each(|(sum, log)| *sum += weight * log);
        }
        terms
    }
}

/// An instance's columns that are kept, and those of singleton annotators, which are the last.
#[inline(always)]
fn split_kept<'a, const K: usize>(
    n_classes: usize,
    cells: &[f64],
    columns: &'a [u32],
) -> (&'a [u32], &'a [u32]) {
    let kept = (cells.len() / stride(width::<K>(n_classes)).max(1)) as u32;
    columns.split_at(columns.iter().position(|c| *c >= kept).unwrap_or(columns.len()))
}
