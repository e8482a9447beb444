//! Confusion columns, P(label of the column given class), and the M-step that makes them of expected counts.

use std::ops::Range;

use super::counts::Counts;
use super::gather::Finish;
use super::kernel::{FLOOR, LEAST, width};
use super::sparse::Sparse;
use crate::frame::Annotations;
use crate::model::fitted::Posterior;

/// The columns of every annotator, whole or without the cells that nothing stands behind.
pub enum Columns {
    /// `[column, class]`
    Whole(Vec<f64>),
    /// For many classes.
    Sparse(Sparse),
}

/// What an E-step multiplies: one factor a class for each column.
pub trait Likelihood: Sync {
    /// What was fetched ahead.
    type Near: Default;

    /// Fetches what [`Likelihood::multiply`] will need of some instances.
    fn fetch(&self, _a: &Annotations, _instances: Range<usize>, _near: &mut Self::Near) {}

    /// Multiplies `row`, `[class]`, by the factors of every column that was said of the `at`-th instance fetched.
    fn multiply(&self, row: &mut [f64], columns: &[u32], near: &Self::Near, at: usize);

    /// Writes the factors of one column into `factors`, `[class]`.
    fn write(&self, column: u32, factors: &mut [f64]);
}

/// Whole columns of `K` classes, or of any number where `K` is 0.
pub struct Whole<'a, const K: usize>(pub &'a [f64]);

impl<const K: usize> Likelihood for Whole<'_, K> {
    type Near = ();

    #[inline(always)]
    fn multiply(&self, row: &mut [f64], columns: &[u32], (): &(), _at: usize) {
        if let (true, Ok(row)) = (K > 0, <&mut [f64; K]>::try_from(&mut *row)) {
            let mut product = *row;
            let factors = self.0.as_chunks::<K>().0;
            for column in columns {
                let factors = &factors[*column as usize];
                for k in 0..K {
                    product[k] *= factors[k];
                }
            }
            *row = product;
        } else {
            for column in columns {
                let start = *column as usize * row.len();
                let factors = &self.0[start..start + row.len()];
                row.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
            }
        }
    }

    fn write(&self, column: u32, factors: &mut [f64]) {
        let n = factors.len();
        factors.copy_from_slice(&self.0[column as usize * n..(column as usize + 1) * n]);
    }
}

impl Columns {
    /// Room for the columns that `counts` will be turned into.
    #[must_use]
    pub fn new(a: &Annotations, counts: &Counts) -> Self {
        if counts.are_noted() {
            Self::Sparse(Sparse::new(a))
        } else {
            Self::Whole(vec![0.0; a.n_columns() * a.dims().classes])
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
            Self::Whole(columns) => counts.columns(a, t, columns, &smoothing),
        }
    }

    /// Room for numbers of the same shape, `[column, class]`, whatever they are.
    #[must_use]
    pub fn into_room(self, a: &Annotations) -> Vec<f64> {
        match self {
            Self::Whole(columns) => columns,
            Self::Sparse(_) => vec![0.0; a.n_columns() * a.dims().classes],
        }
    }
}

/// What is added to the expected counts of a confusion matrix before its rows are normalised; no cell stays below
/// [`FLOOR`].
#[derive(Debug, Clone, Copy, PartialEq)]
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

    /// What the labels that annotator `r` never used add to the sum of each row: they have no column, but their share of
    /// smoothing and floor is in every row.
    #[inline(always)]
    pub fn row_sums(self, a: &Annotations, r: usize, sums: &mut [f64]) {
        let labels = a.labels_of(r);
        sums.fill((a.dims().labels - labels.len()) as f64 * self.never());
        if self.diagonal > 0.0 {
            for (k, sum) in sums.iter_mut().enumerate() {
                if labels.iter().all(|l| *l as usize != k) {
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
        r: usize,
        counts: &mut [f64],
        sums: &mut [f64],
    ) {
        let n = width::<K>(sums.len()).max(1);
        if self.diagonal > 0.0 {
            for (cells, label) in counts.chunks_exact_mut(n).zip(a.labels_of(r)) {
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
            self.row_sums(a, r, &mut sums);
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
            self.row_sums(a, r, sums);
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
