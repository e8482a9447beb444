//! The formulas of the models of confusion matrices, on dense arrays.

use statrs::function::gamma::{digamma, ln_gamma};

use super::{DenseModel, Rows};
use crate::model::numerics::MIN_PROBABILITY;

/// Dawid-Skene: counts with `smoothing` in every cell and `diagonal` on top, normalised by rows.
#[derive(Debug, Clone, Copy)]
pub struct DenseDawidSkene {
    /// The pseudo-count of every cell.
    pub smoothing: f64,
    /// The pseudo-count that is added to the cells of the diagonal as well.
    pub diagonal: f64,
}

/// The one-coin model: one accuracy under a Beta(right + 1, wrong + 1) prior.
#[derive(Debug, Clone, Copy)]
pub struct DenseOneCoin {
    /// The pseudo-count of right answers.
    pub right: f64,
    /// The pseudo-count of wrong answers.
    pub wrong: f64,
}

/// IBCC: Dirichlet distributions of the class shares and of the rows of all matrices.
#[derive(Debug, Clone, Copy)]
pub struct DenseIbcc {
    /// The parameter of each class.
    pub class: f64,
    /// The parameter of right answers.
    pub diagonal: f64,
    /// The parameter of each wrong answer.
    pub off_diagonal: f64,
}

impl DenseModel for DenseDawidSkene {
    fn prior(&self, class_counts: &[f64]) -> (Vec<f64>, f64) {
        (floored_shares(class_counts), 0.0)
    }

    fn likelihood(&self, _annotator: usize, counts: &Rows) -> (Rows, f64) {
        let row = |(k, counts): (usize, &Vec<f64>)| {
            let added = |l: usize| self.smoothing + if k == l { self.diagonal } else { 0.0 };
            let cells = counts.iter().enumerate().map(|(l, n)| (n + added(l)).max(MIN_PROBABILITY));
            shares(&cells.collect::<Vec<f64>>())
        };
        let matrix: Rows = counts.iter().enumerate().map(row).collect();
        let mut log_prior = 0.0;
        for (k, shares) in matrix.iter().enumerate() {
            let added: Vec<f64> = (0..shares.len())
                .map(|l| self.smoothing + if k == l { self.diagonal } else { 0.0 })
                .collect();
            let sum: f64 = added.iter().sum();
            // The density compared with that of its mode.
            let terms = shares.iter().zip(&added).filter(|(_, added)| **added > 0.0);
            log_prior += terms.map(|(p, added)| added * (p * sum / added).ln()).sum::<f64>();
        }
        (matrix, log_prior)
    }
}

impl DenseModel for DenseOneCoin {
    fn prior(&self, class_counts: &[f64]) -> (Vec<f64>, f64) {
        (floored_shares(class_counts), 0.0)
    }

    fn likelihood(&self, _annotator: usize, counts: &Rows) -> (Rows, f64) {
        let n_labels = counts[0].len();
        let right: f64 = counts.iter().enumerate().map(|(k, row)| row[k]).sum();
        let all = counts.iter().flatten().sum::<f64>() + self.right + self.wrong;
        let accuracy = if all > 0.0 { (right + self.right) / all } else { 1.0 / n_labels as f64 };
        let accuracy = accuracy.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY);
        let wrong = ((1.0 - accuracy) / (n_labels - 1) as f64).max(MIN_PROBABILITY);
        let row = |k: usize| (0..n_labels).map(|l| if k == l { accuracy } else { wrong }).collect();
        // Relative to the mode of the prior.
        let all = self.right + self.wrong;
        let term = |n: f64, p: f64| if n > 0.0 { n * (p * all / n).ln() } else { 0.0 };
        let log_prior = term(self.right, accuracy) + term(self.wrong, 1.0 - accuracy);
        ((0..counts.len()).map(row).collect(), log_prior)
    }
}

impl DenseModel for DenseIbcc {
    fn prior(&self, class_counts: &[f64]) -> (Vec<f64>, f64) {
        let nu: Vec<f64> = class_counts.iter().map(|n| n + self.class).collect();
        (geometric_means(&nu), -divergence(&nu, &vec![self.class; nu.len()]))
    }

    fn unannotated(&self, class_counts: &[f64]) -> Vec<f64> {
        shares(&class_counts.iter().map(|n| n + self.class).collect::<Vec<f64>>())
    }

    fn likelihood(&self, _annotator: usize, counts: &Rows) -> (Rows, f64) {
        let (mut likelihood, mut term) = (Vec::new(), 0.0);
        for (prior, posterior) in self.rows(counts) {
            term -= divergence(&posterior, &prior);
            likelihood.push(geometric_means(&posterior));
        }
        (likelihood, term)
    }
}

impl DenseIbcc {
    /// The posterior means of an annotator's matrix.
    #[must_use]
    pub fn mean(&self, counts: &Rows) -> Rows {
        self.rows(counts).iter().map(|(_, posterior)| shares(posterior)).collect()
    }

    /// The parameters of each row before and after the annotations.
    fn rows(&self, counts: &Rows) -> Vec<(Vec<f64>, Vec<f64>)> {
        let row = |(k, counts): (usize, &Vec<f64>)| {
            let parameter = |l: usize| if k == l { self.diagonal } else { self.off_diagonal };
            let prior: Vec<f64> = (0..counts.len()).map(parameter).collect();
            let posterior = prior.iter().zip(counts).map(|(a, n)| a + n).collect();
            (prior, posterior)
        };
        counts.iter().enumerate().map(row).collect()
    }
}

fn shares(numbers: &[f64]) -> Vec<f64> {
    let sum: f64 = numbers.iter().sum();
    numbers.iter().map(|n| if sum > 0.0 { n / sum } else { 1.0 / numbers.len() as f64 }).collect()
}

fn floored_shares(numbers: &[f64]) -> Vec<f64> {
    shares(&shares(numbers).iter().map(|p| p.max(MIN_PROBABILITY)).collect::<Vec<f64>>())
}

/// exp(E ln p) of p ~ Dirichlet(a).
fn geometric_means(a: &[f64]) -> Vec<f64> {
    a.iter().map(|x| (digamma(*x) - digamma(a.iter().sum())).exp()).collect()
}

/// KL(Dirichlet(a) | Dirichlet(b)).
fn divergence(a: &[f64], b: &[f64]) -> f64 {
    let sums = ln_gamma(a.iter().sum()) - ln_gamma(b.iter().sum());
    let cell = |(a_l, b_l): (&f64, &f64)| {
        ln_gamma(*b_l) - ln_gamma(*a_l) + (a_l - b_l) * (digamma(*a_l) - digamma(a.iter().sum()))
    };
    sums + a.iter().zip(b).map(cell).sum::<f64>()
}
