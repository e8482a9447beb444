//! Percent agreement, and its comparison with chance by the labels' shares: Scott's pi, Fleiss' kappa, Brennan and
//! Prediger's coefficient (Bennett's S).

use super::Categories;
use super::sample::{SampleSums, beyond_chance};
use super::sums::{INSTANCES, MEAN_SAME, PAIRED, PAIRS, SAME};

pub(super) const NAME: &str = "fleiss_kappa";

/// The mean share of an instance's pairs of annotators that agree.
pub(super) fn percent(sample: &SampleSums, _: &Categories) -> f64 {
    sample.sums[MEAN_SAME] / sample.sums[PAIRED]
}

/// Every pair of answers counts the same.
pub(super) fn scott_pi(sample: &SampleSums, _: &Categories) -> f64 {
    let answers = &sample.sums[sample.layout.pairable()];
    let total: f64 = answers.iter().sum();
    let expected = answers.iter().map(|n| (n / total).powi(2)).sum();
    beyond_chance(sample.sums[SAME] / sample.sums[PAIRS], expected)
}

/// Every instance counts the same, also in the shares that chance is by, as in Gwet's irrCAC. With equally many answers of all
/// instances these are the shares among all answers, as Fleiss 1971 has them; with others they are not.
pub(super) fn kappa(sample: &SampleSums, categories: &Categories) -> f64 {
    let expected = shares(sample).map(|p| p * p).sum();
    beyond_chance(percent(sample, categories), expected)
}

/// The kappa of one class against all others.
pub(super) fn kappa_of_class(sample: &SampleSums, class: usize) -> f64 {
    let split = sample.sums[sample.layout.split().start + class] / sample.sums[PAIRED];
    let p = sample.sums[sample.layout.shares().start + class] / sample.sums[INSTANCES];
    beyond_chance(1.0 - 2.0 * split, p * p + (1.0 - p) * (1.0 - p))
}

/// Every class has the same share.
pub(super) fn brennan_prediger(sample: &SampleSums, categories: &Categories) -> f64 {
    beyond_chance(percent(sample, categories), 1.0 / categories.len() as f64)
}

/// The mean share of each label in an instance.
pub(super) fn shares(sample: &SampleSums) -> impl Iterator<Item = f64> {
    let n = sample.sums[INSTANCES];
    sample.sums[sample.layout.shares()].iter().map(move |share| share / n)
}
