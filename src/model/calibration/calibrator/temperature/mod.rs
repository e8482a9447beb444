//! One temperature for all rows: the calibrated probabilities are proportional to `max(p[k], floor) ^ (1 / temperature)`.

#[cfg(test)]
mod tests;

use rayon::prelude::*;

use super::points::{Points, remembering, rounded};
use crate::error::Result;
use crate::frame::ITEMS_PER_BLOCK;
use crate::job_context::Cancel;
use crate::model::numerics::{at_least, logsumexp};
use crate::model::posterior::{TIE, least_tied};

/// The lowest temperature.
pub(super) const MIN_TEMPERATURE: f64 = 0.05;

/// The highest temperature: it makes even certain rows nearly uniform.
pub(super) const MAX_TEMPERATURE: f64 = 1000.0;

/// The least floor: smaller probabilities are rounding errors in the softmax of a network.
pub(super) const MIN_FLOOR: f64 = 1e-30;

/// The floors that are tried, times the number of classes.
const FLOORS: [f64; 5] = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1];

/// The largest number of steps of the search for the temperature.
const MAX_STEPS: usize = 100;

/// A Newton step of ln b up to this ends the search: the error that it leaves is of the order of its square.
const LAST_STEP: f64 = 1e-9;

/// A mean slope up to this counts as zero, and so does a gain of the mean log-likelihood.
const FLAT: f64 = 1e-12;

/// The distance of the values of ln b at which the search for the greatest likelihood begins.
const GRID_STEP: f64 = 0.25;

pub(super) fn log(p: f64, floor: f64) -> f64 {
    at_least(p, floor).ln()
}

/// The floor and the temperature with the least log-loss: of equal floors the lowest.
///
/// # Why
/// Shares of votes are 0 for classes that nobody named, and a few instances of such a class decide what is fitted: on the
/// data set Web, three of 400 with a floor of 1e-30 make a temperature of 12 of one that is 0.5 for the others.
pub(super) fn fit(points: &Points, smoothing: f64) -> (f64, f64) {
    let at = |floor: f64| {
        let log_loss = LogLoss::new(points, smoothing, floor);
        let temperature = log_loss.best_temperature();
        (log_loss.of_targets(temperature), (floor, temperature))
    };
    let (mut most, mut best) = at(MIN_FLOOR);
    for floor in FLOORS.map(|floor| rounded(floor / points.n_classes as f64)) {
        let (value, found) = at(floor);
        if value > most + FLAT {
            (most, best) = (value, found);
        }
    }
    best
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
pub(super) fn fit_latent(points: &Points, smoothing: f64, cancel: &Cancel) -> Result<f64> {
    let log_loss = LogLoss::new(points, smoothing, MIN_FLOOR);
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
    let (mut value, slope) = found[best];
    let beyond = if slope > 0.0 { best.checked_add(1) } else { best.checked_sub(1) };
    let mut ln_b = grid[best];
    if let Some(mut far) = beyond.and_then(|n| grid.get(n)).copied().filter(|_| slope.abs() > FLAT)
    {
        // The likelihood rises from `ln_b` towards `far`, and is no greater there, or no longer rises: a maximum lies
        // between. It rises again at a `middle` beyond a valley, but from less.
        while (far - ln_b).abs() > LAST_STEP {
            let middle = f64::midpoint(ln_b, far);
            let (of_middle, its_slope) = at(middle)?;
            if its_slope * slope > 0.0 && of_middle >= value - FLAT {
                (ln_b, value) = (middle, value.max(of_middle));
            } else {
                far = middle;
            }
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
    fn new(points: &'a Points, smoothing: f64, floor: f64) -> Self {
        let n = points.n_classes;
        let mut logs = vec![0.0; points.probabilities.len()];
        let rows = points.probabilities.par_chunks(ITEMS_PER_BLOCK * n);
        logs.par_chunks_mut(ITEMS_PER_BLOCK * n).zip(rows).for_each(|(logs, rows)| {
            let mut log = remembering(|p| log(p, floor));
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

    /// The temperature with the least log-loss. The log-loss is convex in b = 1 / temperature, with the slope
    ///
    /// ```text
    /// sum over points of weight * (sum_k calibrated(b)[k] * ln p[k] - sum_k target[k] * ln p[k])
    /// ```
    ///
    /// whose zero is found by Newton's method over ln b, within an interval that becomes smaller with each step. The
    /// temperature is 1 where the log-loss does not depend on it.
    fn best_temperature(&self) -> f64 {
        let (mut low, mut high) = (-MAX_TEMPERATURE.ln(), -MIN_TEMPERATURE.ln());
        let (at_low, at_high) = (self.derivatives(low).0, self.derivatives(high).0);
        if at_low >= -FLAT && at_high <= FLAT {
            return 1.0;
        } else if at_low >= -FLAT {
            return MAX_TEMPERATURE;
        } else if at_high <= FLAT {
            return MIN_TEMPERATURE;
        }
        let mut at = 0.0_f64;
        for _ in 0..MAX_STEPS {
            let (slope, curvature) = self.derivatives(at);
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

    /// The mean log-likelihood of the targets at a temperature.
    fn of_targets(&self, temperature: f64) -> f64 {
        let (n, inverse) = (self.points.n_classes, 1.0 / temperature);
        let of_row = |i: usize| {
            let (logs, targets) =
                (&self.logs[i * n..(i + 1) * n], &self.points.targets[i * n..(i + 1) * n]);
            let scores = logs.iter().map(|log| inverse * log);
            let log_sum = logsumexp(scores.clone());
            let of_target = |(score, t): (f64, &f64)| {
                (t * (1.0 - self.uniform) + self.uniform / n as f64) * (score - log_sum)
            };
            (self.points.weights[i] * scores.zip(targets).map(of_target).sum::<f64>(), 0.0)
        };
        self.sums(of_row).0 / self.total
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
        let (log_joint, mean_of_evidence) = if joint >= f64::MIN_POSITIVE {
            (joint.ln(), joint_first / joint)
        } else {
            log_domain_joint(logs, likelihoods, most, inverse)
        };
        let (of_all, known) = (self.uniform * all / n as f64, 1.0 - self.uniform);
        let value = known * log_joint + inverse * of_all - sum.ln();
        let slope = known * mean_of_evidence + of_all - mean;
        let weight = self.points.weights[i];
        (weight * value, weight * slope)
    }
}

/// ln sum_k power[k] * likelihood[k], and the mean of the log-probability, less `most`, with these products as weights:
/// where they underflow, because the evidence is against all classes but those of tiny powers.
fn log_domain_joint(logs: &[f64], likelihoods: &[f64], most: f64, inverse: f64) -> (f64, f64) {
    let terms = logs.iter().zip(likelihoods).map(|(log, l)| inverse * (log - most) + l.ln());
    let log_joint = logsumexp(terms.clone());
    let weighted = terms.zip(logs).map(|(term, log)| (term - log_joint).exp() * (log - most));
    (log_joint, weighted.sum())
}

/// Calibrates a row. Classes tied with the best stay tied, and rounding makes no new ties.
pub(super) fn apply(floor: f64, temperature: f64, row: &mut [f64]) {
    let most = row.iter().copied().fold(0.0, f64::max);
    let log_most = log(most, floor);
    let least = least_tied(row);
    let mut power = remembering(|p| {
        let below = (log(p, floor) - log_most) / temperature;
        if p >= least { 1.0 } else { below.min(-2.0 * TIE).exp() }
    });
    row.iter_mut().for_each(|p| *p = power(*p));
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|p| *p /= sum);
}
