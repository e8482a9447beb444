//! Krippendorff's alpha: one minus the observed disagreement by the one of answers that are put together at random. How far
//! two labels disagree depends on their scale.

use super::Categories;
use super::sample::SampleSums;
use super::sums::{COINCIDING, SQUARES};

/// Labels are names: two are the same or not.
pub(super) fn nominal(sample: &SampleSums, _: &Categories) -> f64 {
    let answers = answers(sample);
    let n: f64 = answers.iter().sum();
    let squares: f64 = answers.iter().map(|n| n * n).sum();
    alpha(n, n - sample.sums[COINCIDING], n * n - squares)
}

/// Labels have an order: their distance is the number of answers between them.
pub(super) fn ordinal(sample: &SampleSums, _: &Categories) -> f64 {
    let mut below = 0.0;
    // The mean rank of the answers with a label; its differences are the distances of Krippendorff's ordinal metric.
    let rank = |n: &f64| {
        let rank = below + n / 2.0;
        below += n;
        rank
    };
    let ranks: Vec<f64> = answers(sample).iter().map(rank).collect();
    by_cells(sample, |k, l| (ranks[k] - ranks[l]).powi(2))
}

/// Labels are numbers with a unit: their difference counts.
pub(super) fn interval(sample: &SampleSums, categories: &Categories) -> f64 {
    let answers = answers(sample);
    let n: f64 = answers.iter().sum();
    let of = |x: &dyn Fn(f64) -> f64| -> f64 {
        categories.scores().iter().zip(answers).map(|(score, n)| n * x(*score)).sum()
    };
    let mean = of(&|x| x) / n;
    alpha(n, sample.sums[SQUARES], 2.0 * n * of(&|x| (x - mean).powi(2)))
}

/// Labels are amounts, with a true zero: their difference as a part of their sum counts.
pub(super) fn ratio(sample: &SampleSums, categories: &Categories) -> f64 {
    let scores = categories.scores();
    if scores.first().is_some_and(|least| *least < 0.0) {
        return f64::NAN;
    }
    by_cells(sample, |k, l| {
        let sum = scores[k] + scores[l];
        if sum > 0.0 { ((scores[k] - scores[l]) / sum).powi(2) } else { 0.0 }
    })
}

fn answers(sample: &SampleSums) -> &[f64] {
    &sample.sums[sample.layout.pairable()]
}

fn by_cells(sample: &SampleSums, distance: impl Fn(usize, usize) -> f64) -> f64 {
    let answers = answers(sample);
    let coincident = &sample.sums[sample.layout.coincident()];
    let (mut observed, mut expected) = (0.0, 0.0);
    for ((k, l), coincidences) in sample.layout.cells().zip(coincident) {
        let d = distance(k, l);
        observed += d * coincidences;
        expected += 2.0 * d * answers[k] * answers[l];
    }
    alpha(answers.iter().sum(), observed, expected)
}

/// `observed` is summed over coincidences, `expected` over all pairs of the `n` answers.
fn alpha(n: f64, observed: f64, expected: f64) -> f64 {
    if expected > 0.0 { 1.0 - (n - 1.0) * observed / expected } else { f64::NAN }
}
