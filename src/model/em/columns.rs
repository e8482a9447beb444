//! Confusion columns, P(label of the column given class), and the M-step that makes them of expected counts.

use std::ops::Range;

use super::counts::Counts;
use super::gather::Finish;
use super::kernel::{FLOOR, LEAST, width};
use super::sparse::Sparse;
use super::whole::Whole;
use crate::frame::Annotations;
use crate::model::fitted::Posterior;

/// The columns of every annotator, whole or without the cells that nothing stands behind.
pub enum Columns {
    /// For few classes, or where columns are few.
    Whole(Whole),
    /// For many classes.
    Sparse(Sparse),
}

/// What an E-step multiplies: one factor a class for each column.
pub trait Likelihood: Sync {
    /// What was fetched ahead.
    type Near: Default;

    /// Fetches what [`Likelihood::multiply`] will need of some instances.
    fn fetch(&self, _a: &Annotations, _instances: Range<usize>, _near: &mut Self::Near) {}

    /// Turns `row`, `[class]`, from the posterior behind the counts into `prior` times the factors of every column that
    /// was said of the instance, the `at`-th one fetched.
    fn multiply(
        &self,
        row: &mut [f64],
        prior: &[f64],
        columns: &[u32],
        near: &Self::Near,
        at: usize,
    );

    /// Writes the factors of one column into `factors`, `[class]`; `last` is the posterior behind the counts of an
    /// instance of which it was said.
    fn write(&self, column: u32, last: &[f64], factors: &mut [f64]);
}

impl Columns {
    /// Room for the columns that `counts` will be turned into.
    #[must_use]
    pub fn new(a: &Annotations, counts: &Counts) -> Self {
        if counts.are_noted() {
            Self::Sparse(Sparse::new(a))
        } else {
            let cells = vec![0.0; counts.kept(a) * a.dims().classes];
            Self::Whole(Whole { cells, smoothing: Smoothing::default() })
        }
    }

    /// Probabilities from the expected counts of `t`.
    pub fn estimate(
        &mut self,
        a: &Annotations,
        t: &Posterior,
        counts: &Counts,
        smoothing: Smoothing,
    ) {
        match self {
            Self::Sparse(columns) => columns.estimate(a, counts, smoothing),
            Self::Whole(whole) => {
                whole.smoothing = smoothing;
                counts.columns(a, t, &mut whole.cells, &smoothing);
            }
        }
    }

    /// Room for a number a cell of every column, `[column, class]`, whatever they are.
    #[must_use]
    pub fn into_room(self, a: &Annotations) -> Vec<f64> {
        let mut room = match self {
            Self::Whole(whole) => whole.cells,
            Self::Sparse(_) => Vec::new(),
        };
        room.resize(a.n_columns() * a.dims().classes, 0.0);
        room
    }
}

/// What is added to the expected counts of a confusion matrix before its rows are normalised; no cell stays below
/// [`FLOOR`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Smoothing {
    /// To every cell.
    pub everywhere: f64,
    /// To the diagonal, on top.
    pub diagonal: f64,
}

impl Smoothing {
    /// The count of a label that was never said and is not the class.
    #[must_use]
    pub fn never(self) -> f64 {
        self.everywhere.max(FLOOR)
    }

    /// The count of a label that was never said and is the class.
    #[must_use]
    pub fn never_diagonal(self) -> f64 {
        (self.everywhere + self.diagonal).max(FLOOR)
    }

    /// The count of a cell.
    #[inline]
    #[must_use]
    pub fn cell(self, count: f64, class: usize, label: usize) -> f64 {
        let diagonal = if class == label { self.diagonal } else { 0.0 };
        (count + diagonal + self.everywhere).max(FLOOR)
    }

    /// What the labels that are not in `used` add to the sum of each row: they have no column, but their share of
    /// smoothing and floor is in every row.
    #[inline(always)]
    pub fn row_sums(self, a: &Annotations, used: &[u32], sums: &mut [f64]) {
        sums.fill((a.dims().labels - used.len()) as f64 * self.never());
        if self.diagonal > 0.0 {
            for (k, sum) in sums.iter_mut().enumerate() {
                if used.iter().all(|l| *l as usize != k) {
                    *sum += self.never_diagonal() - self.never();
                }
            }
        }
    }
}

/// Counts become probabilities.
impl Finish for Smoothing {
    #[inline(always)]
    fn finish<const K: usize>(
        &self,
        a: &Annotations,
        labels: &[u32],
        counts: &mut [f64],
        sums: &mut [f64],
    ) {
        let n = width::<K>(sums.len()).max(1);
        if self.diagonal > 0.0 {
            for (cells, label) in counts.chunks_exact_mut(n).zip(labels) {
                if let Some(diagonal) = cells.get_mut(*label as usize) {
                    *diagonal += self.diagonal;
                }
            }
        }
        let smooth = |cell: f64| (cell + self.everywhere).max(FLOOR);
        let share = |cell: f64, scale: f64| (cell * scale).max(LEAST);
        if K > 0 {
            let columns = counts.as_chunks_mut::<K>().0;
            let mut sums = [0.0; K];
            self.row_sums(a, labels, &mut sums);
            for cells in &mut *columns {
                for k in 0..K {
                    cells[k] = smooth(cells[k]);
                    sums[k] += cells[k];
                }
            }
            let scales = sums.map(|sum| 1.0 / sum);
            for cells in columns {
                for k in 0..K {
                    cells[k] = share(cells[k], scales[k]);
                }
            }
        } else {
            self.row_sums(a, labels, sums);
            for cells in counts.chunks_exact_mut(n) {
                for (cell, sum) in cells.iter_mut().zip(sums.iter_mut()) {
                    *cell = smooth(*cell);
                    *sum += *cell;
                }
            }
            sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
            for cells in counts.chunks_exact_mut(n) {
                cells.iter_mut().zip(sums.iter()).for_each(|(c, scale)| *c = share(*c, *scale));
            }
        }
    }
}
