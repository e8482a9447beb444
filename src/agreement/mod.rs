//! How far annotators agree, beyond what they would by chance: percent, Scott, Cohen, Conger, Fleiss, Brennan and Prediger,
//! Krippendorff, Gwet, with bootstrap intervals by instance.
//!
//! ```text
//! instance    the labels of one instance: how many annotators gave each
//! sums        one pass over the instances adds them up, by block
//! statistics  the list of statistics; fleiss, gwet, krippendorff: each is a function of the sums
//! cohen       pairs of annotators, which sums of labels cannot tell apart; pairs: which are compared
//! bootstrap   draws blocks with replacement and computes the statistics again
//! ```
//! # What counts
//! Every annotator of an instance counts once. One who gave several labels, a soft annotation or a repeated one, is divided
//! between them by their weights; weights matter in no other way. A label that is no class is no answer. An instance with one
//! annotator has no pair: it counts in the shares of the labels of Fleiss, Conger and Gwet, and nowhere else.
//!
//! # What has no value
//! Everything where no instance has two annotators; a statistic whose agreement by chance is complete, such as all of them
//! but percent and Gwet's where every answer is the same; Gwet's and Brennan and Prediger's with a single class. An interval
//! needs two instances with two annotators, and a value in half of its draws.
//!
//! # References
//! Gwet (2014), Handbook of Inter-Rater Reliability, 4th edition, whose formulas with missing answers these are;
//! Krippendorff (2011), Computing Krippendorff's Alpha-Reliability; Cohen (1968), doi:10.1037/h0026256;
//! Fleiss (1971), doi:10.1037/h0031619; Conger (1980), doi:10.1037/0033-2909.88.2.322.

mod bootstrap;
mod categories;
mod cohen;
mod fleiss;
mod gwet;
mod instance;
mod krippendorff;
mod pairs;
mod sample;
mod statistics;
mod sums;

use crate::frame::Annotations;
use crate::job_context::Rng;
use bootstrap::Bootstrap;
pub use categories::{Categories, Scale};
use cohen::PairedAnnotators;
pub(crate) use pairs::{MAX_ANNOTATORS, SingleAnswers, instances_with_pairs};
use sample::SampleSums;
pub use statistics::{STATISTICS, Statistic};
use sums::{BlockSums, SumBlocks, SumLayout};

/// With more classes none has an interval.
const MAX_CLASS_INTERVALS: usize = 256;

/// A statistic of the annotations of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct AgreementRow {
    /// Its name.
    pub statistic: &'static str,
    /// The label whose agreement against all others it is; `None` for all classes.
    pub class: Option<u32>,
    /// The value, where it is defined.
    pub value: Option<f64>,
    /// The lower end of the interval that holds 95 % of the draws of the bootstrap.
    pub low: Option<f64>,
    /// The upper end of it.
    pub high: Option<f64>,
    /// The number of instances that the value comes from.
    pub n: u64,
}

/// Every statistic that the scale of the labels has, without intervals.
#[must_use]
pub fn values(a: &Annotations, categories: &Categories) -> Vec<AgreementRow> {
    rows(a, categories, None, usize::MAX)
}

/// Every statistic that the scale of the labels has, with intervals, of all instances or of a sample of about `at_most`.
/// Call it in the run's pool of threads.
#[must_use]
pub fn measure(
    a: &Annotations,
    categories: &Categories,
    rng: &mut Rng,
    at_most: usize,
) -> Vec<AgreementRow> {
    rows(a, categories, Some(rng), at_most)
}

fn rows(
    a: &Annotations,
    categories: &Categories,
    rng: Option<&mut Rng>,
    at_most: usize,
) -> Vec<AgreementRow> {
    let layout = SumLayout::new(categories);
    let instances = if rng.is_some() { a.dims().instances } else { 1 };
    let blocks = SumBlocks::new(instances, layout.len(), at_most);
    let sums = BlockSums::add_up(a, categories, layout, blocks);
    let pairs = PairedAnnotators::sample(a, categories, blocks);
    let conger = cohen::expected_of_annotators(a, categories, blocks);
    let has_classes = categories.len() <= MAX_CLASS_INTERVALS;
    let compute = |weights: &[f64], with_classes: bool| -> Vec<f64> {
        let (sums, cohen) = (sums.weighted(weights), pairs.kappas(weights, categories));
        let sample = SampleSums { layout, sums, cohen, conger };
        let mut values: Vec<f64> = STATISTICS
            .iter()
            .filter(|s| s.is_of(categories))
            .map(|s| s.value(&sample, categories))
            .collect();
        if with_classes {
            values.extend((0..categories.len()).map(|k| fleiss::kappa_of_class(&sample, k)));
        }
        values
    };
    let ones = vec![1.0; blocks.len()];
    let values = compute(&ones, true);
    let n_paired = sums.n_paired();
    let intervals = match rng {
        Some(rng) if n_paired >= 2 => {
            let draws = Bootstrap::new(blocks.len(), sums.size() + pairs.size(), rng);
            draws.intervals(values.len(), |weights| compute(weights, has_classes))
        }
        _ => vec![None; values.len()],
    };
    let named = STATISTICS.iter().filter(|s| s.is_of(categories)).map(|s| (s.name, None));
    let of_classes = (0..categories.len()).map(|k| (fleiss::NAME, Some(categories.label_of(k))));
    let all = named.chain(of_classes).zip(values).zip(intervals);
    all.map(|(((statistic, class), value), interval)| AgreementRow {
        statistic,
        class,
        value: value.is_finite().then_some(value),
        low: interval.map(|(low, _)| low).filter(|_| value.is_finite()),
        high: interval.map(|(_, high)| high).filter(|_| value.is_finite()),
        n: if cohen::NAMES.contains(&statistic) { pairs.n_instances() } else { n_paired },
    })
    .collect()
}

#[cfg(test)]
mod tests;
