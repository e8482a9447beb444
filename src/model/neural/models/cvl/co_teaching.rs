//! What a network picks from a batch, and what the other learns of it.

use crate::model::neural::net::heads::Outputs;
use crate::model::neural::objective::batch_context::BatchContext;
use crate::model::numerics::at_least;

/// Whether a network picks each of the rows with these losses. Losses that are no numbers are picked, so that they stay
/// visible.
pub(in crate::model::neural) fn picks(losses: &[f64], share: f64, rho: f64) -> Vec<bool> {
    let n = losses.len().max(1) as f64;
    let mean = losses.iter().sum::<f64>() / n;
    let sd = (losses.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / n).sqrt();
    let is_outlier = |l: &f64| sd > 0.0 && (l - mean).abs() >= rho * sd;
    let mut rest: Vec<f64> = losses.iter().copied().filter(|l| !is_outlier(l)).collect();
    let largest = smallest(&mut rest, share * n);
    losses.iter().map(|l| !is_outlier(l) && is_within(*l, largest)).collect()
}

/// The largest of the `n` smallest losses, where n is rounded up.
#[allow(clippy::cast_sign_loss)] // a share of a number of losses
pub(super) fn smallest(losses: &mut [f64], n: f64) -> f64 {
    losses.sort_by(f64::total_cmp);
    let n = (n.ceil() as usize).clamp(1, losses.len().max(1));
    losses.get(n - 1).copied().unwrap_or(f64::INFINITY)
}

/// Equal losses are kept together, whatever the order of their rows.
pub(super) fn is_within(loss: f64, largest: f64) -> bool {
    let is_larger = loss > largest + 1e-12;
    !is_larger
}

/// The cross-entropy of a row with these targets.
pub(super) fn cross_entropy(targets: &[f64], p: &[f64], floor: f64) -> f64 {
    targets.iter().zip(p).map(|(t, p)| -t * at_least(*p, floor).ln()).sum()
}

/// The cross-entropy of a network on the rows that the other has picked, a mean by these weights; adds its derivatives.
pub(super) fn taught(
    out: &Outputs,
    targets: &[f64],
    weights: &[f64],
    gradient: &mut Outputs,
) -> f64 {
    let n = targets.len() / out.rows.max(1);
    let all: f64 = weights.iter().sum();
    let rows = targets.chunks_exact(n).zip(gradient.logits.chunks_exact_mut(n));
    let mut loss = 0.0;
    for ((b, (targets, d)), weight) in rows.enumerate().zip(weights).filter(|(_, w)| **w != 0.0) {
        let (p, scale) = (out.p(b), weight / all);
        loss += scale * cross_entropy(targets, p, f64::MIN_POSITIVE);
        for ((d, p), target) in d.iter_mut().zip(p).zip(targets) {
            *d += scale * (p - target);
        }
    }
    loss
}

/// The mean of the probabilities of both networks.
pub(super) fn mean_of(context: &BatchContext<'_>) -> Outputs {
    let pairs = context.out.p.iter().zip(&context.others[0].p);
    Outputs {
        rows: context.out.rows,
        p: pairs.map(|(one, two)| 0.5 * (one + two)).collect(),
        ..Outputs::default()
    }
}
