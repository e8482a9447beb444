//! Sums over posterior rows: of classes, of the counts of columns, and of the log-likelihood.

use super::logarithms::LogProduct;
use super::padded_matrix::{self, stride};
use super::row_arithmetic::{add_row, normalise_row};
use crate::frame::WeightSlice;

/// The sums over the rows of a range: class sums, counts, and the product of the instances' likelihoods.
pub(super) struct Sums<'a> {
    pub(super) classes: &'a mut [f64],
    pub(super) table: &'a mut [f64],
    pub(super) likelihood: LogProduct,
}

impl Sums<'_> {
    /// Divides a row by its sum, the likelihood of its instance, and adds it.
    #[inline(always)]
    pub(super) fn add<const K: usize>(
        &mut self,
        row: &mut [f64],
        columns: &[u32],
        weights: WeightSlice<'_>,
    ) {
        let total = normalise_row::<K>(row);
        if !columns.is_empty() {
            self.likelihood.push(total);
        }
        self.add_normalised::<K>(row, columns, weights);
    }

    /// Adds a posterior row.
    #[inline(always)]
    pub(super) fn add_normalised<const K: usize>(
        &mut self,
        row: &[f64],
        columns: &[u32],
        weights: WeightSlice<'_>,
    ) {
        if !columns.is_empty() {
            add_row::<K>(self.classes, row);
        }
        if !self.table.is_empty() {
            scatter::<K>(self.table, row, columns, weights);
        }
    }
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
    // Copied, so that the compiler knows that `cells` does not alias the row.
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
