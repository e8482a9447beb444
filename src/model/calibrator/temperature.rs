//! One temperature for all rows: the calibrated probabilities are proportional to `p[k] ^ (1 / temperature)`.

use rayon::prelude::*;

use super::points::{Points, remembering, rounded};
use crate::error::Result;
use crate::frame::ITEMS_PER_BLOCK;
use crate::model::posterior::{TIE, least_tied};
use crate::run::Cancel;

/// The lowest temperature.
pub(super) const MIN_TEMPERATURE: f64 = 0.05;

/// The highest temperature: it makes even certain rows nearly uniform.
pub(super) const MAX_TEMPERATURE: f64 = 1000.0;

/// The lower bound of probabilities under a logarithm: smaller ones are rounding errors in the softmax of a network.
const MIN_LOGIT_PROBABILITY: f64 = 1e-30;

/// The largest number of steps of the search for the temperature.
const MAX_STEPS: usize = 100;

/// A Newton step of ln b up to this ends the search: the error that it leaves is of the order of its square.
const LAST_STEP: f64 = 1e-9;

/// A mean slope up to this counts as zero, and so does a gain of the mean log-likelihood.
const FLAT: f64 = 1e-12;

/// The distance of the values of ln b at which the search for the greatest likelihood begins.
const GRID_STEP: f64 = 0.25;

pub(super) fn log(p: f64) -> f64 {
    p.max(MIN_LOGIT_PROBABILITY).ln()
}

/// The temperature with the least log-loss. The log-loss is convex in b = 1 / temperature, with the slope
///
/// ```text
/// sum over points of weight * (sum_k calibrated(b)[k] * ln p[k] - sum_k target[k] * ln p[k])
/// ```
///
/// whose zero is found by Newton's method over ln b, within an interval that becomes smaller with each step. The
/// temperature is 1 where the log-loss does not depend on it.
pub(super) fn fit(points: &Points, smoothing: f64) -> f64 {
    let log_loss = LogLoss::new(points, smoothing);
    let (mut low, mut high) = (-MAX_TEMPERATURE.ln(), -MIN_TEMPERATURE.ln());
    let (at_low, at_high) = (log_loss.derivatives(low).0, log_loss.derivatives(high).0);
    if at_low >= -FLAT && at_high <= FLAT {
        return 1.0;
    } else if at_low >= -FLAT {
        return MAX_TEMPERATURE;
    } else if at_high <= FLAT {
        return MIN_TEMPERATURE;
    }
    let mut at = 0.0_f64;
    for _ in 0..MAX_STEPS {
        let (slope, curvature) = log_loss.derivatives(at);
        *(if slope < 0.0 { &mut low } else { &mut high }) = at;
        let newton = at - slope / curvature;
        let is_inside = newton > low && newton < high;
        let next = if is_inside { newton } else { f64::midpoint(low, high) };
        let is_last = (next - at).abs() <= if is_inside { LAST_STEP } else { f64::EPSILON };
        at = next;
        if is_last {
            break;
        }
    }
    rounded((-at).exp())
}

/// The temperature at which the evidence about the points is most likely. Their targets are likelihoods; `smoothing` is
/// the weight of pseudo-observations, as in [`fit`]:
///
/// ```text
/// (1 - u) sum over points of weight * ln(sum_k calibrated[k] * likelihood[k]) + u / K * sum of weight * ln calibrated[k]
/// ```
///
/// It is 1 where no other temperature is better.
///
/// # Why
/// The maximum is not found by EM. Its steps are slow where annotators say little, and from rows that are certain it
/// never leaves: the evidence counts for nothing where the probability of a class is 0. This sum may have several
/// maxima, but depends on one number: the best point of a grid is refined.
///
/// # Errors
/// When the run is cancelled.
pub(super) fn fit_latent(points: &Points, smoothing: f64, cancel: &Cancel) -> Result<f64> {
    let log_loss = LogLoss::new(points, smoothing);
    let (low, high) = (-MAX_TEMPERATURE.ln(), -MIN_TEMPERATURE.ln());
    let inner = (low / GRID_STEP).ceil() as i32..=(high / GRID_STEP).floor() as i32;
    let inner = inner.map(|n| f64::from(n) * GRID_STEP);
    let grid: Vec<f64> = [low].into_iter().chain(inner).chain([high]).collect();
    let at = |ln_b: f64| -> Result<(f64, f64)> {
        cancel.check()?;
        Ok(log_loss.log_likelihood(ln_b))
    };
    let found: Vec<(f64, f64)> = grid.iter().map(|ln_b| at(*ln_b)).collect::<Result<_>>()?;
    let mut best = grid.iter().position(|ln_b| *ln_b == 0.0).unwrap_or_default();
    for (n, (value, _)) in found.iter().enumerate() {
        if *value > found[best].0 + FLAT {
            best = n;
        }
    }
    let slope = found[best].1;
    let beyond = if slope > 0.0 { best.checked_add(1) } else { best.checked_sub(1) };
    let mut ln_b = grid[best];
    if let Some(mut far) = beyond.and_then(|n| grid.get(n)).copied().filter(|_| slope.abs() > FLAT)
    {
        // The likelihood rises towards its neighbour in the grid, and is no greater there: a maximum lies between.
        while (far - ln_b).abs() > LAST_STEP {
            let middle = f64::midpoint(ln_b, far);
            let rises_on = at(middle)?.1 * slope > 0.0;
            *(if rises_on { &mut ln_b } else { &mut far }) = middle;
        }
    }
    Ok(rounded((-ln_b).exp()))
}

/// The mean log-loss of calibrated points.
struct LogLoss<'a> {
    points: &'a Points,
    /// Log-probabilities `[point, class]`.
    logs: Vec<f64>,
    /// The weight of all points.
    total: f64,
    /// The share of each target that is uniform over the classes.
    uniform: f64,
}

impl<'a> LogLoss<'a> {
    fn new(points: &'a Points, smoothing: f64) -> Self {
        let n = points.n_classes;
        let mut logs = vec![0.0; points.probabilities.len()];
        let rows = points.probabilities.par_chunks(ITEMS_PER_BLOCK * n);
        logs.par_chunks_mut(ITEMS_PER_BLOCK * n).zip(rows).for_each(|(logs, rows)| {
            let mut log = remembering(log);
            logs.iter_mut().zip(rows).for_each(|(l, p)| *l = log(*p));
        });
        let total = points.weight();
        Self { points, logs, total, uniform: smoothing / (total + smoothing) }
    }

    /// The sums of two numbers of each point, in a fixed order.
    fn sums(&self, of_row: impl Fn(usize) -> (f64, f64) + Sync) -> (f64, f64) {
        let n_points = self.points.len();
        let of_block = |block: usize| {
            let rows = block * ITEMS_PER_BLOCK..((block + 1) * ITEMS_PER_BLOCK).min(n_points);
            rows.map(&of_row).fold((0.0, 0.0), |(a, b), (one, other)| (a + one, b + other))
        };
        let blocks: Vec<(f64, f64)> =
            (0..n_points.div_ceil(ITEMS_PER_BLOCK)).into_par_iter().map(of_block).collect();
        (blocks.iter().map(|(one, _)| one).sum(), blocks.iter().map(|(_, other)| other).sum())
    }

    /// The slope over b, and its derivative over ln b.
    fn derivatives(&self, ln_b: f64) -> (f64, f64) {
        let inverse = ln_b.exp();
        let (slope, variance) = self.sums(|i| self.of_row(i, inverse));
        (slope / self.total, inverse * variance / self.total)
    }

    /// The mean log-likelihood that [`fit_latent`] maximises, and its slope over ln b.
    fn log_likelihood(&self, ln_b: f64) -> (f64, f64) {
        let inverse = ln_b.exp();
        let (value, slope) = self.sums(|i| self.latent_row(i, inverse));
        (value / self.total, inverse * slope / self.total)
    }

    /// The slope of a point's log-loss over b, and its derivative over b: the variance of the log-probability.
    fn of_row(&self, i: usize, inverse: f64) -> (f64, f64) {
        let n = self.points.n_classes;
        let logs = &self.logs[i * n..(i + 1) * n];
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut power = remembering(|log| (inverse * (log - most)).exp());
        let (mut sum, mut first, mut second, mut wanted) = (0.0, 0.0, 0.0, 0.0);
        for (log, t) in logs.iter().zip(&self.points.targets[i * n..]) {
            let (p, below) = (power(*log), log - most);
            sum += p;
            first += p * below;
            second += p * below * below;
            wanted += (t * (1.0 - self.uniform) + self.uniform / n as f64) * below;
        }
        let mean = first / sum;
        let weight = self.points.weights[i];
        (weight * (mean - wanted), weight * (second / sum - mean * mean).max(0.0))
    }

    /// A point's log-likelihood, and its slope over b.
    fn latent_row(&self, i: usize, inverse: f64) -> (f64, f64) {
        let n = self.points.n_classes;
        let (logs, likelihoods) =
            (&self.logs[i * n..(i + 1) * n], &self.points.targets[i * n..(i + 1) * n]);
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut power = remembering(|log| (inverse * (log - most)).exp());
        let (mut sum, mut first, mut joint, mut joint_first, mut all) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (log, likelihood) in logs.iter().zip(likelihoods) {
            let (p, below) = (power(*log), log - most);
            sum += p;
            first += p * below;
            joint += p * likelihood;
            joint_first += p * likelihood * below;
            all += below;
        }
        let mean = first / sum;
        // Where the powers underflow, the evidence says nothing about the temperature.
        let mean_of_evidence = if joint > 0.0 { joint_first / joint } else { mean };
        let log_joint = joint.max(f64::MIN_POSITIVE).ln();
        let (of_all, known) = (self.uniform * all / n as f64, 1.0 - self.uniform);
        let value = known * log_joint + inverse * of_all - sum.ln();
        let slope = known * mean_of_evidence + of_all - mean;
        let weight = self.points.weights[i];
        (weight * value, weight * slope)
    }
}

/// Calibrates a row. Classes tied with the best stay tied, and rounding makes no new ties.
pub(super) fn apply(temperature: f64, row: &mut [f64]) {
    let most = row.iter().copied().fold(0.0, f64::max);
    let log_most = log(most);
    let least = least_tied(row);
    let mut power = remembering(|p| {
        let below = (log(p) - log_most) / temperature;
        if p >= least { 1.0 } else { below.min(-2.0 * TIE).exp() }
    });
    row.iter_mut().for_each(|p| *p = power(*p));
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|p| *p /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four uneven points of three classes, overconfident.
    fn points() -> Points {
        let mut points = Points::new(3);
        points.push_class(&[0.97, 0.02, 0.01], 0, 2.0);
        points.push_class(&[0.05, 0.9, 0.05], 2, 1.0);
        points.push(&[0.2, 0.1, 0.7], &[0.25, 0.0, 0.75], 1.5);
        points.push_class(&[0.01, 0.98, 0.01], 1, 0.5);
        points
    }

    /// The log-loss at a temperature, by the definition.
    fn log_loss(points: &Points, smoothing: f64, temperature: f64) -> f64 {
        let total: f64 = points.weights.iter().sum();
        let invented = smoothing / (total + smoothing);
        let rows = points.probabilities.chunks(3).zip(points.targets.chunks(3));
        let of_row = |((row, target), weight): ((&[f64], &[f64]), &f64)| {
            let powers: Vec<f64> = row.iter().map(|p| p.powf(1.0 / temperature)).collect();
            let sum: f64 = powers.iter().sum();
            let terms = powers
                .iter()
                .zip(target)
                .map(|(p, t)| -(t * (1.0 - invented) + invented / 3.0) * (p / sum).ln());
            weight * terms.sum::<f64>()
        };
        rows.zip(&points.weights).map(of_row).sum()
    }

    #[test]
    fn the_temperature_is_the_best_of_a_grid() {
        for smoothing in [0.0, 0.5, 3.0] {
            let points = points();
            // The grid starts at the lowest temperature: below it the powers underflow to zero.
            let grid = (50..20_000_u32).map(|n| f64::from(n) * 1e-3);
            let loss = |t: &f64| log_loss(&points, smoothing, *t);
            let best = grid.min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap();
            let got = fit(&points, smoothing);
            assert!((got - best).abs() <= 1e-3, "{got} is not {best}");
            assert!(loss(&got) <= loss(&best) + 1e-12);
        }
    }

    /// Of four rows [.8, .2], three are right: (.8 / .2)^b = 3.
    #[test]
    fn the_temperature_is_that_worked_out_by_hand() {
        let mut points = Points::new(2);
        for class in [0, 0, 0, 1] {
            points.push_class(&[0.8, 0.2], class, 1.0);
        }
        let want = 4.0_f64.ln() / 3.0_f64.ln();
        assert!((fit(&points, 0.0) - want).abs() < 1e-11);
        // One of five points is a pseudo-observation with a uniform target: 3.5 of 5 are right.
        let want = 4.0_f64.ln() / (3.5_f64 / 1.5).ln();
        assert!((fit(&points, 1.0) - want).abs() < 1e-11);
    }

    /// With a wrong derivative Newton's method still converges, but as slowly as bisection.
    #[test]
    fn the_derivatives_of_the_log_loss_are_those_of_differences() {
        let points = points();
        let total = points.weight();
        let (smoothing, step) = (0.5, 1e-4);
        let logs = points.probabilities.iter().map(|p| log(*p)).collect();
        let uniform = smoothing / (total + smoothing);
        let mean = LogLoss { points: &points, logs, total, uniform };
        let value = |b: f64| log_loss(&points, smoothing, 1.0 / b) / total;
        for ln_b in [-2.0_f64, 0.0, 1.0] {
            let b = ln_b.exp();
            let (slope, curvature) = mean.derivatives(ln_b);
            let first = (value(b + step) - value(b - step)) / (2.0 * step);
            assert!((slope - first).abs() < 1e-6, "{slope} is not {first}");
            let [low, high] = [ln_b - step, ln_b + step].map(|ln_b| mean.derivatives(ln_b).0);
            let second = (high - low) / (2.0 * step);
            assert!((curvature - second).abs() < 1e-6, "{curvature} is not {second}");
        }
    }

    /// Four uneven points of three classes, whose classes are not known.
    fn latent_points() -> Points {
        let mut points = Points::of_likelihoods(3, 4);
        points.push(&[0.97, 0.02, 0.01], &[1.0, 0.3, 0.5], 2.0);
        points.push(&[0.05, 0.9, 0.05], &[0.2, 0.1, 1.0], 1.0);
        points.push(&[0.2, 0.1, 0.7], &[0.25, 0.0, 0.75], 1.5);
        points.push(&[0.01, 0.98, 0.01], &[0.1, 1.0, 0.2], 0.5);
        points
    }

    /// The mean log-likelihood at a temperature, by the definition.
    fn log_likelihood(points: &Points, smoothing: f64, temperature: f64) -> f64 {
        let total: f64 = points.weights.iter().sum();
        let invented = smoothing / (total + smoothing);
        let rows = points.probabilities.chunks(3).zip(points.targets.chunks(3));
        let of_row = |((row, likelihood), weight): ((&[f64], &[f64]), &f64)| {
            let powers: Vec<f64> = row.iter().map(|p| p.powf(1.0 / temperature)).collect();
            let sum: f64 = powers.iter().sum();
            let joint: f64 = powers.iter().zip(likelihood).map(|(p, l)| p / sum * l).sum();
            let logs: f64 = powers.iter().map(|p| (p / sum).ln()).sum();
            weight * ((1.0 - invented) * joint.ln() + invented * logs / 3.0)
        };
        rows.zip(&points.weights).map(of_row).sum::<f64>() / total
    }

    #[test]
    fn the_temperature_of_a_latent_class_is_the_best_of_a_grid() {
        let (points, cancel) = (latent_points(), Cancel::default());
        for smoothing in [0.0, 0.5, 3.0] {
            let grid = (50..20_000_u32).map(|n| f64::from(n) * 1e-3);
            let value = |t: &f64| log_likelihood(&points, smoothing, *t);
            let best = grid.max_by(|a, b| value(a).total_cmp(&value(b))).unwrap();
            let got = fit_latent(&points, smoothing, &cancel).unwrap();
            assert!(value(&got) >= value(&best) - 1e-12, "{got} is not {best}");
        }
    }

    #[test]
    fn the_slope_of_the_likelihood_is_that_of_differences() {
        let points = latent_points();
        let mean = LogLoss::new(&points, 0.5);
        for ln_b in [-2.0_f64, 0.0, 1.0] {
            let at = |d: f64| mean.log_likelihood(ln_b + d);
            let want = log_likelihood(&points, 0.5, (-ln_b).exp());
            assert!((at(0.0).0 - want).abs() < 1e-12, "{ln_b}");
            let slope = (at(1e-4).0 - at(-1e-4).0) / 2e-4;
            assert!((at(0.0).1 - slope).abs() < 1e-6, "{slope}");
        }
    }

    #[test]
    fn the_temperature_stays_within_its_bounds_and_is_1_where_there_is_no_choice() {
        let one = |row: &[f64], class| {
            let mut points = Points::new(2);
            points.push_class(row, class, 1.0);
            points
        };
        assert_eq!(fit(&one(&[0.8, 0.2], 0), 0.0), MIN_TEMPERATURE);
        assert_eq!(fit(&one(&[0.8, 0.2], 1), 0.0), MAX_TEMPERATURE);
        assert_eq!(fit(&one(&[0.5, 0.5], 1), 0.0), 1.0);
        let smoothed = fit(&one(&[0.8, 0.2], 0), 0.5);
        assert!(smoothed > 0.5, "one right answer makes nothing certain: {smoothed}");
    }
}
