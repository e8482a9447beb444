//! Gwet's AC1 and AC2: agreement by chance is that of answers drawn evenly, on the instances that are hard to answer.

use super::sample::{SampleSums, beyond_chance};
use super::sums::PAIRED;
use super::{Categories, fleiss};

/// Names: two labels agree or do not.
pub(super) fn ac1(sample: &SampleSums, categories: &Categories) -> f64 {
    let n = categories.len() as f64;
    beyond_chance(fleiss::percent(sample, categories), hardness(sample) / (n - 1.0))
}

/// Agreement falls with the distance of the labels.
pub(super) fn ac2_linear(sample: &SampleSums, categories: &Categories) -> f64 {
    weighted(sample, categories, |k, l| distance(categories, k, l))
}

/// Agreement falls with the square of the distance.
pub(super) fn ac2_quadratic(sample: &SampleSums, categories: &Categories) -> f64 {
    weighted(sample, categories, |k, l| distance(categories, k, l).powi(2))
}

/// Agreement falls with the number of pairs of labels from one to the other.
pub(super) fn ac2_ordinal(sample: &SampleSums, categories: &Categories) -> f64 {
    let pairs = |n: usize| (n * n.saturating_sub(1) / 2) as f64;
    weighted(sample, categories, |k, l| pairs(l - k + 1) / pairs(categories.len()))
}

/// `disagreement(k, l)` is from 0 to 1, for the categories `k < l`.
fn weighted(
    sample: &SampleSums,
    categories: &Categories,
    disagreement: impl Fn(usize, usize) -> f64,
) -> f64 {
    let means = &sample.sums[sample.layout.means()];
    let (mut observed, mut of_all) = (0.0, 0.0);
    for ((k, l), mean) in sample.layout.cells().zip(means) {
        let d = disagreement(k, l);
        observed += d * mean;
        of_all += 2.0 * d;
    }
    let n = categories.len() as f64;
    let expected = (n * n - of_all) * hardness(sample) / (n * (n - 1.0));
    beyond_chance(1.0 - observed / sample.sums[PAIRED], expected)
}

/// The distance of two labels, as a part of the greatest one.
fn distance(categories: &Categories, k: usize, l: usize) -> f64 {
    let scores = categories.scores();
    (scores[l] - scores[k]) / (scores[scores.len() - 1] - scores[0])
}

fn hardness(sample: &SampleSums) -> f64 {
    fleiss::shares(sample).map(|p| p * (1.0 - p)).sum()
}
