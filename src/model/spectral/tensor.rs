//! Small matrices, row by row, and the power method on tensors of three axes.

use rand_distr::{Distribution, StandardNormal};

use crate::job_context::Rng;

/// A pivot below this share of the largest element is rounding.
const MIN_PIVOT: f64 = 1e-10;

/// The most iterations from one start; they converge quadratically.
const MAX_POWER_ITERATIONS: u32 = 100;

/// A square matrix, `[row, column]`, or any list of rows of this length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Square {
    pub(super) n: usize,
    pub(super) cells: Vec<f64>,
}

impl Square {
    pub(super) fn zeros(n: usize) -> Self {
        Self { n, cells: vec![0.0; n * n] }
    }

    pub(super) fn at(&self, row: usize, column: usize) -> f64 {
        self.cells[row * self.n + column]
    }

    pub(super) fn from(n: usize, cell: impl Fn(usize, usize) -> f64) -> Self {
        Self { n, cells: (0..n * n).map(|at| cell(at / n, at % n)).collect() }
    }

    pub(super) fn transposed(&self) -> Self {
        Self::from(self.n, |row, column| self.at(column, row))
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        Self::from(self.n, |row, column| {
            (0..self.n).map(|k| self.at(row, k) * other.at(k, column)).sum()
        })
    }

    /// `out = self x`.
    pub(super) fn apply(&self, x: &[f64], out: &mut [f64]) {
        for (out, row) in out.iter_mut().zip(self.cells.chunks_exact(self.n)) {
            *out = row.iter().zip(x).map(|(m, x)| m * x).sum();
        }
    }

    fn largest(&self) -> f64 {
        self.cells.iter().fold(0.0, |max: f64, cell| max.max(cell.abs()))
    }

    /// The inverse, by Gauss and Jordan with pivots; `None` of a matrix that has none, but for rounding.
    pub(super) fn inverse(&self) -> Option<Self> {
        let (n, least) = (self.n, MIN_PIVOT * self.largest());
        let (mut left, mut right) =
            (self.clone(), Self::from(n, |row, column| f64::from(u8::from(row == column))));
        for k in 0..n {
            let pivot =
                (k..n).max_by(|a, b| left.at(*a, k).abs().total_cmp(&left.at(*b, k).abs()))?;
            let value = left.at(pivot, k);
            // NaN is not larger.
            if value.abs().partial_cmp(&least) != Some(std::cmp::Ordering::Greater) {
                return None;
            }
            for side in [&mut left, &mut right] {
                for column in 0..n {
                    side.cells.swap(k * n + column, pivot * n + column);
                    side.cells[k * n + column] /= value;
                }
            }
            for row in (0..n).filter(|row| *row != k) {
                let factor = left.at(row, k);
                for side in [&mut left, &mut right] {
                    for column in 0..n {
                        side.cells[row * n + column] -= factor * side.cells[k * n + column];
                    }
                }
            }
        }
        Some(right)
    }

    /// The lower triangular matrix whose product with its transpose is this symmetric one; `None` where it is not positive
    /// definite.
    pub(super) fn cholesky(&self) -> Option<Self> {
        let (n, least) = (self.n, MIN_PIVOT * self.largest());
        let mut lower = Self::zeros(n);
        for row in 0..n {
            for column in 0..=row {
                let product: f64 =
                    (0..column).map(|k| lower.at(row, k) * lower.at(column, k)).sum();
                let rest = self.at(row, column) - product;
                lower.cells[row * n + column] = if row == column {
                    Some(rest).filter(|rest| *rest > least)?.sqrt()
                } else {
                    rest / lower.at(column, column)
                };
            }
        }
        Some(lower)
    }
}

/// A tensor with three axes of the same length.
pub(super) struct Tensor {
    pub(super) n: usize,
    pub(super) cells: Vec<f64>,
}

impl Tensor {
    /// The tensor applied to a vector on its last two axes.
    fn apply(&self, v: &[f64], out: &mut [f64]) {
        let mut rows = self.cells.chunks_exact(self.n);
        for out in out {
            let of_row = |(y, row): (&f64, &[f64])| {
                y * row.iter().zip(v).map(|(cell, z)| cell * z).sum::<f64>()
            };
            *out = v.iter().zip(&mut rows).map(of_row).sum();
        }
    }

    /// Takes the largest component out: (lambda, v), the best of several random starts.
    pub(super) fn take_component(&mut self, n_starts: u32, rng: &mut Rng) -> (f64, Vec<f64>) {
        let mut best = (f64::NEG_INFINITY, vec![0.0; self.n]);
        for _ in 0..n_starts {
            let mut v: Vec<f64> = (0..self.n).map(|_| StandardNormal.sample(rng)).collect();
            normalise(&mut v);
            let mut next = vec![0.0; self.n];
            for _ in 0..MAX_POWER_ITERATIONS {
                self.apply(&v, &mut next);
                normalise(&mut next);
                let moved =
                    next.iter().zip(&v).fold(0.0, |max: f64, (a, b)| max.max((a - b).abs()));
                v.copy_from_slice(&next);
                if moved < 1e-12 {
                    break;
                }
            }
            self.apply(&v, &mut next);
            let lambda = next.iter().zip(&v).map(|(a, b)| a * b).sum();
            if lambda > best.0 {
                best = (lambda, v);
            }
        }
        add_product(&mut self.cells, -best.0, [&best.1; 3]);
        best
    }
}

/// Adds a multiple of the product of three vectors of the same length to the cells of a tensor.
pub(super) fn add_product(cells: &mut [f64], scale: f64, [x, y, z]: [&[f64]; 3]) {
    let mut rows = cells.chunks_exact_mut(z.len());
    for x in x {
        for (y, row) in y.iter().zip(&mut rows) {
            let product = scale * x * y;
            row.iter_mut().zip(z).for_each(|(cell, z)| *cell += product * z);
        }
    }
}

fn normalise(v: &mut [f64]) {
    let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
    if norm > 0.0 {
        v.iter_mut().for_each(|x| *x /= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_context::JobContext;
    use crate::testing::assert_close;

    #[test]
    fn factors_and_inverses_give_the_matrix_back() {
        // The first pivot is 0.
        let m = Square { n: 3, cells: vec![0.0, 2.0, 1.0, 4.0, 1.0, 0.0, 2.0, 2.0, 5.0] };
        let product = m.times(&m.inverse().unwrap());
        assert_close(
            &product.cells,
            &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            1e-12,
            "m m^-1",
        );
        let square = m.times(&m.transposed());
        let lower = square.cholesky().unwrap();
        assert_eq!(lower.at(0, 2), 0.0);
        assert_close(&lower.times(&lower.transposed()).cells, &square.cells, 1e-12, "L L^T");
        let singular = Square { n: 2, cells: vec![1.0, 2.0, 2.0, 4.0] };
        assert_eq!((singular.inverse(), singular.cholesky()), (None, None));
        let broken = Square { n: 1, cells: vec![f64::NAN] };
        assert_eq!((broken.inverse(), broken.cholesky()), (None, None));
    }

    /// 3 a a a + 2 b b b with orthonormal a and b.
    #[test]
    fn the_power_method_takes_the_components_in_the_order_of_their_size() {
        let (a, b) = ([0.6, 0.8, 0.0], [-0.8, 0.6, 0.0]);
        let mut tensor = Tensor { n: 3, cells: vec![0.0; 27] };
        add_product(&mut tensor.cells, 2.0, [&b; 3]);
        add_product(&mut tensor.cells, 3.0, [&a; 3]);
        let mut rng = JobContext::new(0).rng("tensor");
        for (lambda, v) in [(3.0, a), (2.0, b)] {
            let (got, of) = tensor.take_component(10, &mut rng);
            assert_close(&[got], &[lambda], 1e-9, "lambda");
            assert_close(&of, &v, 1e-9, "v");
        }
        assert!(tensor.cells.iter().all(|cell| cell.abs() < 1e-9));
    }
}
