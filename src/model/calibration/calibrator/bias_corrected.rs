//! A temperature for all rows and a bias for each class: the calibrated probabilities are proportional to
//! `max(p[k], floor) ^ (1 / temperature) * exp(bias[k])`.

use std::convert::Infallible;

use rayon::prelude::*;

use super::points::{Points, TargetKind, rounded};
use super::temperature::{self, MAX_TEMPERATURE, MIN_TEMPERATURE, log};
use crate::frame::ITEMS_PER_BLOCK;
use crate::model::numerics::lbfgs::try_maximise;
use crate::model::numerics::logsumexp;

/// At the maximum, no component of the mean gradient exceeds this.
const TOLERANCE: f64 = 1e-9;

/// The largest number of iterations.
const MAX_ITER: u32 = 500;

/// The largest absolute bias: it makes a class e^30 times more, or less, probable.
const MAX_BIAS: f64 = 30.0;

/// The temperature and the biases that maximise
///
/// ```text
/// sum over points of weight * sum_k target[k] * ln calibrated[k]  -  sum_k bias[k]^2 / 2
/// ```
///
/// with targets and the floor as for a temperature alone. The prior of the biases, a standard normal, dominates where a
/// class has few points or none. Returns the floor, the temperature and the biases.
pub(super) fn fit(points: &Points, smoothing: f64) -> (f64, f64, Vec<f64>) {
    let (floor, alone) = temperature::fit(points, smoothing);
    let Ok((temperature, biases)) =
        fit_from((floor, alone), points, smoothing, || Ok::<(), Infallible>(()));
    (floor, temperature, biases)
}

/// The temperature and the biases, from the floor and the temperature that fit without biases. Where the targets are
/// likelihoods, the terms are those of [`temperature::fit_latent`] in place of the sum over the points.
///
/// # Errors
/// The error of `check`, which is called before each evaluation, ends the fit.
pub(super) fn fit_from<E>(
    (floor, alone): (f64, f64),
    points: &Points,
    smoothing: f64,
    check: impl Fn() -> Result<(), E>,
) -> Result<(f64, Vec<f64>), E> {
    let (n, total) = (points.n_classes, points.weight());
    let rows = ScoredRows {
        points,
        logs: points.probabilities.iter().map(|p| log(*p, floor) / alone).collect(),
        uniform: smoothing / (total + smoothing),
    };
    let objective = |x: &[f64], gradient: &mut [f64], fixed: bool| -> Result<f64, E> {
        check()?;
        let mut value = rows.log_likelihood(x, gradient) / total;
        gradient.iter_mut().for_each(|g| *g /= total);
        for (bias, g) in x[1..].iter().zip(&mut gradient[1..]) {
            value -= bias * bias / (2.0 * total);
            *g -= bias / total;
        }
        if fixed {
            gradient[0] = 0.0;
        }
        Ok(value)
    };
    // x[0] is the temperature that fits without biases, divided by the one with biases.
    let mut x = vec![0.0; n + 1];
    x[0] = 1.0;
    try_maximise(&mut x, |x, gradient| objective(x, gradient, false), TOLERANCE, MAX_ITER)?;
    let bounds = (alone / MAX_TEMPERATURE, alone / MIN_TEMPERATURE);
    if x[0] < bounds.0 || x[0] > bounds.1 {
        x[0] = x[0].clamp(bounds.0, bounds.1);
        try_maximise(&mut x, |x, gradient| objective(x, gradient, true), TOLERANCE, MAX_ITER)?;
    }
    let biases = x[1..].iter().map(|bias| rounded(bias.clamp(-MAX_BIAS, MAX_BIAS)));
    Ok((rounded(alone / x[0]), biases.collect()))
}

/// Calibrates a row.
pub(super) fn apply(floor: f64, temperature: f64, biases: &[f64], row: &mut [f64]) {
    row.iter_mut().zip(biases).for_each(|(p, bias)| *p = log(*p, floor) / temperature + bias);
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|p| *p = (*p - most).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|p| *p /= sum);
}

/// Whether these are a valid map of `n_classes` classes.
pub(super) fn is_valid(temperature: f64, biases: &[f64], n_classes: usize) -> bool {
    temperature.is_finite()
        && temperature > 0.0
        && biases.len() == n_classes
        && biases.iter().all(|bias| bias.abs() <= MAX_BIAS)
}

struct ScoredRows<'a> {
    points: &'a Points,
    /// Log-probabilities `[point, class]`, divided by the temperature that fits without biases.
    logs: Vec<f64>,
    /// The share of each target that is uniform over the classes.
    uniform: f64,
}

impl ScoredRows<'_> {
    /// The log-likelihood of the targets, and its gradient.
    fn log_likelihood(&self, x: &[f64], gradient: &mut [f64]) -> f64 {
        let of_block = |block: usize| {
            let (mut gradient, mut row) = (vec![0.0; x.len()], vec![0.0; x.len() - 1]);
            let rows =
                block * ITEMS_PER_BLOCK..((block + 1) * ITEMS_PER_BLOCK).min(self.points.len());
            let value: f64 = rows.map(|i| self.of_row(i, x, &mut row, &mut gradient)).sum();
            (value, gradient)
        };
        let blocks: Vec<(f64, Vec<f64>)> = (0..self.points.len().div_ceil(ITEMS_PER_BLOCK))
            .into_par_iter()
            .map(of_block)
            .collect();
        gradient.fill(0.0);
        for (_, of_block) in &blocks {
            gradient.iter_mut().zip(of_block).for_each(|(g, more)| *g += more);
        }
        blocks.iter().map(|(value, _)| value).sum()
    }

    /// The log-likelihood of a point's target; `row` is a buffer for the calibrated row. The gradient of that of evidence is
    /// the one of a target that is the distribution of the class given the evidence.
    fn of_row(&self, i: usize, x: &[f64], row: &mut [f64], gradient: &mut [f64]) -> f64 {
        let n = self.points.n_classes;
        let (logs, targets) =
            (&self.logs[i * n..(i + 1) * n], &self.points.targets[i * n..(i + 1) * n]);
        let score = |k: usize| x[0] * logs[k] + x[k + 1];
        let most = (0..n).map(score).fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().enumerate().for_each(|(k, p)| *p = (score(k) - most).exp());
        let sum: f64 = row.iter().sum();
        let log_sum = sum.ln();
        let weight = self.points.weights[i];
        let (known, uniform) = (1.0 - self.uniform, self.uniform / n as f64);
        let is_latent = self.points.target_kind == TargetKind::Likelihood;
        let joint: f64 = row.iter().zip(targets).map(|(p, l)| p * l).sum();
        // The evidence may be against all classes but those whose probability underflows.
        let underflows = is_latent && joint < f64::MIN_POSITIVE;
        let log_of_product = |k: usize| score(k) - most + targets[k].ln();
        let log_joint = if underflows { logsumexp((0..n).map(log_of_product)) } else { joint.ln() };
        let mut value = if is_latent { known * (log_joint - log_sum) } else { 0.0 };
        for k in 0..n {
            let own = match (is_latent, underflows) {
                (false, _) => targets[k],
                (true, false) => row[k] * targets[k] / joint,
                (true, true) => (log_of_product(k) - log_joint).exp(),
            };
            let target = known * own + uniform;
            let missing = weight * (target - row[k] / sum);
            let in_value = if is_latent { uniform } else { target };
            value += in_value * (score(k) - most - log_sum);
            gradient[0] += missing * logs[k];
            gradient[k + 1] += missing;
        }
        weight * value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two classes and rows of (0.8, 0.2), half of them of each class: by symmetry ln 4 / T + b0 - b1 = 0 where the
    /// prior allows. With b0 = -b1 = -b and a = 1 / T, the objective falls by b^2: it is greatest where b and a are 0,
    /// at the highest temperature.
    #[test]
    fn rows_that_say_nothing_become_uniform() {
        let mut points = Points::new(2);
        for class in [0, 1, 0, 1] {
            points.push_class(&[0.8, 0.2], class, 100.0);
        }
        let (floor, temperature, biases) = fit(&points, 0.0);
        let mut row = [0.8, 0.2];
        apply(floor, temperature, &biases, &mut row);
        assert!((row[0] - 0.5).abs() < 1e-3, "{temperature} {biases:?} {row:?}");
    }

    /// Rows (0.8, 0.2) and (0.2, 0.8), a thousand each, of which 900 and 400 are of class 0: the scores of class 0 over
    /// class 1 must be ln 9 and ln (2 / 3), which are a * (+-ln 4) + d. So d = (ln 9 + ln 2/3) / 2 and
    /// a = (ln 9 - ln 2/3) / (2 ln 4), except for the prior, whose share is one part in thousands.
    #[test]
    fn the_temperature_and_the_biases_are_those_worked_out_by_hand() {
        let mut points = Points::new(2);
        for (row, share) in [([0.8, 0.2], 900.0), ([0.2, 0.8], 400.0)] {
            points.push_class(&row, 0, 1e4 * share);
            points.push_class(&row, 1, 1e4 * (1000.0 - share));
        }
        let (floor, temperature, biases) = fit(&points, 0.0);
        let (high, low) = (9.0_f64.ln(), (2.0_f64 / 3.0).ln());
        assert!((1.0 / temperature - (high - low) / (2.0 * 4.0_f64.ln())).abs() < 1e-5);
        assert!((biases[0] - biases[1] - f64::midpoint(high, low)).abs() < 1e-5, "{biases:?}");
        assert!((biases[0] + biases[1]).abs() < 1e-9, "the prior has no reason to move both");
        let mut row = [0.2, 0.8];
        apply(floor, temperature, &biases, &mut row);
        assert!((row[0] - 0.4).abs() < 1e-5, "{row:?}");
    }

    /// At uneven points whose classes are not known.
    #[test]
    fn the_gradient_of_the_likelihood_of_evidence_is_that_of_differences() {
        let mut points = Points::of_likelihoods(3, 3);
        points.push(&[0.97, 0.02, 0.01], &[1.0, 0.3, 0.5], 2.0);
        points.push(&[0.05, 0.9, 0.05], &[0.2, 0.1, 1.0], 1.0);
        points.push(&[0.2, 0.1, 0.7], &[0.25, 0.0, 0.75], 1.5);
        let logs = points.probabilities.iter().map(|p| log(*p, temperature::MIN_FLOOR)).collect();
        let rows = ScoredRows { points: &points, logs, uniform: 0.1 };
        let (x, step) = ([0.7, 0.2, -0.3, 0.1], 1e-5);
        let (mut gradient, mut ignored) = ([0.0; 4], [0.0; 4]);
        rows.log_likelihood(&x, &mut gradient);
        for (n, got) in gradient.iter().enumerate() {
            let mut at = |d: f64| {
                let mut x = x;
                x[n] += d;
                rows.log_likelihood(&x, &mut ignored)
            };
            let want = (at(step) - at(-step)) / (2.0 * step);
            assert!((got - want).abs() < 1e-6, "{n}: {got} is not {want}");
        }
    }

    /// At a temperature of 1 / 13 the second class has the probability e^(-13 * 69), which underflows.
    #[test]
    fn evidence_for_a_class_whose_probability_underflows_has_its_likelihood_and_gradient() {
        let mut points = Points::of_likelihoods(2, 1);
        points.push(&[1.0, 0.0], &[0.0, 1.0], 1.0);
        let logs = points.probabilities.iter().map(|p| log(*p, temperature::MIN_FLOOR)).collect();
        let (rows, mut gradient) = (ScoredRows { points: &points, logs, uniform: 0.0 }, [0.0; 3]);
        let value = rows.log_likelihood(&[13.0, 0.5, -0.5], &mut gradient);
        let ln = log(0.0, temperature::MIN_FLOOR);
        assert!((value - (13.0 * ln - 1.0)).abs() < 1e-9, "{value}");
        for (got, want) in gradient.into_iter().zip([ln, -1.0, 1.0]) {
            assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        }
    }

    /// A single point of weight 1 in class 0 of (0.5, 0.5): d = b0 - b1 is greatest where sigmoid(-d) = d / 2, which is
    /// 0.6748.
    #[test]
    fn the_prior_holds_where_there_are_few_points() {
        let mut points = Points::new(2);
        points.push_class(&[0.5, 0.5], 0, 1.0);
        let (_, _, biases) = fit(&points, 0.0);
        let d = biases[0] - biases[1];
        assert!((1.0 / (1.0 + d.exp()) - d / 2.0).abs() < 1e-6, "{d}");
    }
}
