//! Dirichlet distributions of the rows of confusion matrices, for variational Bayes.

use super::estimator::{Estimator, PairCounts, n_groups};
use super::logarithms::{exp, ln, ln_1p_ratio};

/// Estimates exp(E ln pi) under Dirichlet(a0 + counts); its term of the objective is minus the divergence from
/// Dirichlet(a0).
pub struct Dirichlet {
    diagonal: DirichletParameter,
    off_diagonal: DirichletParameter,
    /// The sum of a row of a0.
    sum: DirichletParameter,
    /// The parameters of each cell, where they differ by more than that.
    cells: Option<CellParameters>,
}

/// The parameters of a whole matrix, and the sum of each of its rows.
struct CellParameters {
    n_classes: usize,
    /// `[label, class]`
    cells: Vec<DirichletParameter>,
    /// `[class]`
    sums: Vec<DirichletParameter>,
}

impl Dirichlet {
    pub(crate) fn new(diagonal: f64, off_diagonal: f64, n_labels: usize) -> Self {
        let sum = diagonal + off_diagonal * n_labels.saturating_sub(1) as f64;
        let [diagonal, off_diagonal, sum] =
            [diagonal, off_diagonal, sum].map(DirichletParameter::new);
        Self { diagonal, off_diagonal, sum, cells: None }
    }

    /// The priors of the rows of this matrix, `[label, class]`.
    pub(crate) fn of_cells(n_classes: usize, cells: &[f64]) -> Self {
        let mut sums = vec![0.0; n_classes];
        for of_label in cells.chunks_exact(n_classes.max(1)) {
            sums.iter_mut().zip(of_label).for_each(|(sum, cell)| *sum += cell);
        }
        // The largest sum decides for all which of the two computations is exact.
        let largest = sums.iter().copied().fold(1.0, f64::max);
        let of = |numbers: &[f64]| numbers.iter().map(|x| DirichletParameter::new(*x)).collect();
        let cells = Some(CellParameters { n_classes, cells: of(cells), sums: of(&sums) });
        Self { cells, ..Self::new(largest, 1.0, 1) }
    }
}

impl Dirichlet {
    /// The sum of the parameters of a class.
    #[inline(always)]
    fn sum_of(&self, class: usize) -> DirichletParameter {
        let own = self.cells.as_ref().and_then(|cells| cells.sums.get(class));
        own.copied().unwrap_or(self.sum)
    }
}

/// A parameter of a Dirichlet prior, or the sum of its parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirichletParameter {
    value: f64,
    ln_gamma: f64,
}

/// From this number on, ln gamma(a + n) - ln gamma(a) is computed as a difference of series.
const LARGE: f64 = 1e3;

impl DirichletParameter {
    pub(crate) fn new(value: f64) -> Self {
        Self { value, ln_gamma: digamma_and_ln_gamma(value).1 }
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
    #[inline(always)]
    pub(crate) fn digamma_and_term(&self, count: f64) -> (f64, f64) {
        let (a, sum) = (self.value, self.value + count);
        if a < LARGE {
            return self.small(count);
        }
        let (x, square) = (count / a, 1.0 / (sum * sum));
        let stirling = |y: f64| (1.0 / 12.0 - 1.0 / (360.0 * y * y)) / y;
        let ln_1p = ln_1p_ratio(count, a);
        let term = a * (ln_1p - x) - (ln_1p - x / (1.0 + x)) / 2.0
            + (stirling(sum) - stirling(a))
            + count * square * (1.0 / 12.0 - square / 120.0);
        (digamma_and_ln_gamma(sum).0, if count > 0.0 { term } else { 0.0 })
    }

    /// [`Self::digamma_and_term`] of a parameter that is not large, without a branch.
    #[inline(always)]
    fn small(&self, count: f64) -> (f64, f64) {
        let (digamma, ln_gamma) = digamma_and_ln_gamma(self.value + count);
        let term = ln_gamma - self.ln_gamma - count * digamma;
        (digamma, if count > 0.0 { term } else { 0.0 })
    }
}

/// digamma(x) and ln gamma(x) of x of at least 0.01, to about 1e-15 of the larger of 1 and the result. There is no branch, so
/// that the compiler vectorises it.
///
/// # Why
/// Both follow from their asymptotic series at x + 8 and the recurrence gamma(x + 1) = x gamma(x): with p = x (x + 1) ...
/// (x + 7), ln gamma(x) = ln gamma(x + 8) - ln p, and digamma(x) = digamma(x + 8) - p' / p.
#[inline(always)]
fn digamma_and_ln_gamma(x: f64) -> (f64, f64) {
    const SHIFT: f64 = 8.0;
    const HALF_LN_2_PI: f64 = 0.918_938_533_204_672_8;
    let is_small = x < SHIFT;
    let base = if is_small { x } else { 1.0 };
    let (mut p, mut derivative) = (base, 1.0);
    for step in 1..8 {
        let factor = base + f64::from(step);
        derivative = derivative * factor + p;
        p *= factor;
    }
    let (y, ln_p, ratio) =
        if is_small { (x + SHIFT, ln(p), derivative / p) } else { (x, 0.0, 0.0) };
    let (ln_y, inverse) = (ln(y), 1.0 / y);
    let square = inverse * inverse;
    // The Bernoulli numbers, divided by 2n and by 2n (2n - 1).
    let of_digamma = square
        * (1.0 / 12.0
            - square
                * (1.0 / 120.0
                    - square
                        * (1.0 / 252.0
                            - square
                                * (1.0 / 240.0
                                    - square
                                        * (1.0 / 132.0
                                            - square * (691.0 / 32760.0 - square / 12.0))))));
    let of_ln_gamma = inverse
        * (1.0 / 12.0
            - square
                * (1.0 / 360.0
                    - square
                        * (1.0 / 1260.0
                            - square
                                * (1.0 / 1680.0
                                    - square
                                        * (1.0 / 1188.0
                                            - square * (691.0 / 360_360.0 - square / 156.0))))));
    let digamma = ln_y - 0.5 * inverse - of_digamma - ratio;
    let ln_gamma = (y - 0.5) * ln_y - y + HALF_LN_2_PI + of_ln_gamma - ln_p;
    (digamma, ln_gamma)
}

impl Estimator for Dirichlet {
    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { labels, n_classes, rows, .. } = own;
        let m = n_groups::<W>(n_classes);
        let is_small = self.sum.value < LARGE;
        let mut all_terms = 0.0;
        for group in 0..m {
            let n = (n_classes - group * W).min(W);
            let mut sums = [0.0; W];
            for row in rows.chunks_exact(m) {
                (0..W).for_each(|k| sums[k] += row[group][k]);
            }
            let (mut digammas, mut terms) = ([0.0; W], [0.0; W]);
            for k in 0..W {
                let sum = self.sum_of(group * W + k);
                let (digamma, term) = sum.digamma_and_term(sums[k]);
                (digammas[k], terms[k]) = (digamma, -term);
            }
            for (row, label) in rows.chunks_exact_mut(m).zip(labels) {
                let mut parameters = [self.off_diagonal; W];
                let own = (*label as usize).checked_sub(group * W);
                if let Some(own) = own.and_then(|at| parameters.get_mut(at)) {
                    *own = self.diagonal;
                }
                if let Some(CellParameters { n_classes, cells, .. }) = &self.cells {
                    let own = &cells[*label as usize * n_classes + group * W..][..n];
                    parameters[..n].copy_from_slice(own);
                }
                for k in 0..W {
                    let (digamma, term) = if is_small {
                        parameters[k].small(row[group][k])
                    } else {
                        parameters[k].digamma_and_term(row[group][k])
                    };
                    terms[k] += term;
                    row[group][k] = exp(digamma - digammas[k]);
                }
            }
            // Without the padding, whose sums have no count.
            all_terms += terms[..n].iter().sum::<f64>();
        }
        all_terms
    }
}

#[cfg(test)]
mod tests {
    use statrs::function::gamma::{digamma, ln_gamma};

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

    #[test]
    fn both_series_are_those_of_the_library() {
        for n in 0..=2_000 {
            let x = 0.01 * 1.02_f64.powi(n);
            let (of_digamma, of_ln_gamma) = digamma_and_ln_gamma(x);
            for (got, want) in [(of_digamma, digamma(x)), (of_ln_gamma, ln_gamma(x))] {
                assert!((got - want).abs() < 5e-14 * want.abs().max(1.0), "{x}: {got} {want}");
            }
        }
    }
}
