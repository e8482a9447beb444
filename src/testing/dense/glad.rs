//! The formulas of GLAD at given abilities a `[annotator]` and logarithms of inverse difficulties b `[instance]`.

use super::{Rows, e_step, quads};
use crate::frame::Annotations;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The posteriors, and the objective: the marginal log-likelihood with the log-priors of a and b.
#[must_use]
pub fn posteriors(a: &Annotations, ability: &[f64], b: &[f64]) -> (Rows, f64) {
    let d = a.dims();
    let likelihood = |i: usize, r: usize, k: usize, l: usize| {
        let z = ability[r] * b[i].exp();
        if k == l { sigmoid(z) } else { sigmoid(-z) / (d.labels - 1) as f64 }
    };
    let (t, log_likelihood) = e_step(a, |_| vec![1.0 / d.classes as f64; d.classes], likelihood);
    let squares: f64 = ability.iter().chain(b).map(|x| (x - 1.0).powi(2)).sum();
    (t, log_likelihood - squares / 2.0)
}

/// The gradient of the M-step's objective by a, then by b, at the posteriors `t`.
#[must_use]
pub fn gradient(a: &Annotations, t: &Rows, ability: &[f64], b: &[f64]) -> Vec<f64> {
    let mut of_ability: Vec<f64> = ability.iter().map(|a| 1.0 - a).collect();
    let mut of_b: Vec<f64> = b.iter().map(|b| 1.0 - b).collect();
    for (i, r, l, w) in quads(a) {
        let right = t[i].get(l).copied().unwrap_or(0.0);
        let off = w * (right - sigmoid(ability[r] * b[i].exp()));
        of_ability[r] += off * b[i].exp();
        of_b[i] += off * ability[r] * b[i].exp();
    }
    [of_ability, of_b].concat()
}

/// The mean probability that an annotator's annotations are right, by weight.
#[must_use]
pub fn skill(a: &Annotations, ability: &[f64], b: &[f64]) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); ability.len()];
    for (i, r, _, w) in quads(a) {
        sums[r].0 += w * sigmoid(ability[r] * b[i].exp());
        sums[r].1 += w;
    }
    sums.iter().map(|(right, all)| right / all).collect()
}
