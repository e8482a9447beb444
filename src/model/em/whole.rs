//! Confusion columns with a cell for every class, of all annotators but the lone ones.
//!
//! # Why
//! The column of an annotator with a single annotation follows from the posterior of that one instance, which an E-step
//! has in its registers. Making it anew there costs less than bringing it from memory, and it is the same for all lone
//! annotators of the instance.

use super::columns::{Likelihood, Smoothing};
use super::gather::Finish;
use crate::frame::Annotations;

/// The columns that are kept.
pub struct Whole {
    /// `[column, class]`; columns that there is no room for are those of lone annotators.
    pub cells: Vec<f64>,
    /// How counts become probabilities.
    pub smoothing: Smoothing,
}

/// The columns of `K` classes, or of any number where `K` is 0.
pub struct WholeOf<'a, const K: usize> {
    /// What they are columns of.
    pub a: &'a Annotations,
    /// Those that are kept.
    pub whole: &'a Whole,
}

impl<const K: usize> WholeOf<'_, K> {
    /// Turns the posterior behind a lone annotator's counts into the factors of its column.
    #[inline(always)]
    fn finish(&self, column: u32, counts: &mut [f64], scratch: &mut [f64]) {
        self.whole.smoothing.finish::<K>(self.a, &[self.a.label_of(column)], counts, scratch);
    }
}

impl<const K: usize> Likelihood for WholeOf<'_, K> {
    type Near = ();

    #[inline(always)]
    fn multiply(&self, row: &mut [f64], prior: &[f64], columns: &[u32], (): &(), _at: usize) {
        let Whole { cells, smoothing } = self.whole;
        if let (true, Ok(row), Ok(prior)) =
            (K > 0, <&mut [f64; K]>::try_from(&mut *row), <&[f64; K]>::try_from(prior))
        {
            let (mut product, cells) = (*prior, cells.as_chunks::<K>().0);
            let mut multiply = |factors: &[f64; K]| (0..K).for_each(|k| product[k] *= factors[k]);
            let mut lone = columns;
            while let [column, rest @ ..] = lone
                && let Some(factors) = cells.get(*column as usize)
            {
                multiply(factors);
                lone = rest;
            }
            let mut factors = *row;
            for (n, column) in lone.iter().enumerate() {
                // What was said matters to the column only where the diagonal is smoothed.
                if n == 0 || smoothing.diagonal > 0.0 {
                    factors = *row;
                    self.finish(*column, &mut factors, &mut []);
                }
                multiply(&factors);
            }
            *row = product;
        } else {
            row.copy_from_slice(prior);
            for column in columns {
                let start = *column as usize * row.len();
                let factors = &cells[start..start + row.len()];
                row.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
            }
        }
    }

    fn write(&self, column: u32, last: &[f64], factors: &mut [f64]) {
        let n = factors.len();
        let own = column as usize * n..(column as usize + 1) * n;
        if let Some(cells) = self.whole.cells.get(own) {
            factors.copy_from_slice(cells);
        } else {
            factors.copy_from_slice(last);
            self.finish(column, factors, &mut vec![0.0; n]);
        }
    }
}
