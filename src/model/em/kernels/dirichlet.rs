//! Dirichlet distributions of the rows of confusion matrices, for variational Bayes.

use statrs::function::gamma::{digamma, ln_gamma};

use super::estimate::{Annotator, Estimator, SparseCell};
use super::padded_matrix::stride;

/// Estimates exp(E ln pi) under Dirichlet(a0 + counts); its term of the objective is minus the divergence from
/// Dirichlet(a0).
pub(crate) struct Dirichlet {
    diagonal: DirichletParameter,
    off_diagonal: DirichletParameter,
    /// The sum of a row of a0.
    sum: DirichletParameter,
}

impl Dirichlet {
    pub(crate) fn new(diagonal: f64, off_diagonal: f64, n_labels: usize) -> Self {
        let sum = diagonal + off_diagonal * n_labels.saturating_sub(1) as f64;
        let [diagonal, off_diagonal, sum] =
            [diagonal, off_diagonal, sum].map(DirichletParameter::new);
        Self { diagonal, off_diagonal, sum }
    }

    /// For a cell: (E ln pi + digamma of the row's sum, the cell's terms of minus the divergence without that digamma).
    fn cell(&self, count: f64, is_diagonal: bool) -> (f64, f64) {
        if is_diagonal {
            self.diagonal.digamma_and_term(count)
        } else {
            self.off_diagonal.digamma_and_term(count)
        }
    }

    /// For a row with this total count: (digamma of the row's sum, the row's terms of minus the divergence).
    fn row(&self, count: f64) -> (f64, f64) {
        let (digamma, term) = self.sum.digamma_and_term(count);
        (digamma, -term)
    }
}

/// A parameter of a Dirichlet prior, or the sum of its parameters.
pub(crate) struct DirichletParameter {
    value: f64,
    ln_gamma: f64,
}

/// From this number on, the series of ln gamma and digamma are exact to the last bit with the terms that are used here.
const LARGE: f64 = 1e3;

impl DirichletParameter {
    pub(crate) fn new(value: f64) -> Self {
        Self { value, ln_gamma: ln_gamma(value) }
    }

    /// For the parameter a and the count n: digamma(a + n), and ln gamma(a + n) - ln gamma(a) - n digamma(a + n). The
    /// divergence of a posterior from its prior is this term of the sums, minus the terms of all cells.
    ///
    /// # Why
    /// The term is at most about n, or n^2 / (2 a), but ln gamma(a) is about a ln a. Their difference has lost all its
    /// digits if a is 1e17. So for a large a, Stirling's series are subtracted term by term: with x = n / a,
    ///
    /// ```text
    /// a (ln(1 + x) - x) - (ln(1 + x) - x / (1 + x)) / 2 + s(a + n) - s(a) + n (1 / (12 (a + n)^2) - ...)
    /// s(y) = 1 / (12 y) - 1 / (360 y^3) + ...
    /// ```
    pub(crate) fn digamma_and_term(&self, count: f64) -> (f64, f64) {
        let (a, sum) = (self.value, self.value + count);
        let digamma = digamma(sum);
        if count <= 0.0 {
            return (digamma, 0.0);
        }
        if a < LARGE {
            return (digamma, ln_gamma(sum) - self.ln_gamma - count * digamma);
        }
        let (x, square) = (count / a, 1.0 / (sum * sum));
        let stirling = |y: f64| (1.0 / 12.0 - 1.0 / (360.0 * y * y)) / y;
        let term = a * (x.ln_1p() - x) - (x.ln_1p() - x / (1.0 + x)) / 2.0
            + (stirling(sum) - stirling(a))
            + count * square * (1.0 / 12.0 - square / 120.0);
        (digamma, term)
    }
}

impl Estimator for Dirichlet {
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        let step = stride(annotator.n_classes);
        let mut terms = 0.0;
        for k in 0..annotator.n_classes {
            let (digamma, term) = self.row(cells[k..].iter().step_by(step).sum());
            terms += term;
            for (cell, label) in cells[k..].iter_mut().step_by(step).zip(annotator.labels) {
                let (log, term) = self.cell(*cell, *label as usize == k);
                terms += term;
                *cell = (log - digamma).exp();
            }
        }
        terms
    }

    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64 {
        unused.fill(0.0);
        cells.iter().for_each(|cell| unused[cell.class as usize] += cell.value);
        let mut terms = 0.0;
        for row in &mut *unused {
            let (digamma, term) = self.row(*row);
            terms += term;
            *row = digamma;
        }
        let mut first = 0;
        for (label, end) in annotator.labels.iter().zip(ends) {
            for cell in &mut cells[first..*end] {
                let (log, term) = self.cell(cell.value, cell.class == *label);
                terms += term;
                cell.value = (log - unused[cell.class as usize]).exp();
            }
            first = *end;
        }
        let never = digamma(self.off_diagonal.value);
        unused.iter_mut().for_each(|row| *row = (never - *row).exp());
        terms
    }

    fn allows_sparse_columns(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (a, n) and the term, computed with 320 digits by mpmath.
    #[test]
    fn the_term_of_a_large_parameter_does_not_cancel() {
        for (a, n, want) in [
            (999.0, 17.5, -0.151_586_417_986_296_55),
            (1e3, 1.0, -0.000_499_916_666_675),
            (1e3, 5e6, -4_991_486.365_708_447),
            (1.5e4, 12.25, -0.004_999_528_202_238_516),
            (1e10, 3.0, -4.499_999_999_325e-10),
            (1e10, 7e10, -49_205_584_583.803_86),
            (1e17, 2e6, -1.999_999_999_973_333_2e-5),
            (1e100, 40.0, -8e-98),
        ] {
            let (_, got) = DirichletParameter::new(a).digamma_and_term(n);
            assert!((got - want).abs() < 1e-13 * (n + 100.0), "{a} {n}: {got} is not {want}");
        }
    }
}
