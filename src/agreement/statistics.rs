//! The statistics of agreement, each with the scale that it needs.

use super::sample::SampleSums;
use super::sums::MAX_ORDERED;
use super::{Categories, Scale, cohen, fleiss, gwet, krippendorff};

/// What the labels must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NeededSums {
    Nothing,
    /// At most [`MAX_ORDERED`] labels with an order.
    Order,
    Numbers,
    /// At most [`MAX_ORDERED`] numbers.
    FewNumbers,
}

/// A statistic of agreement.
pub struct Statistic {
    /// Its name in tables and queries.
    pub name: &'static str,
    /// What it is.
    pub meaning: &'static str,
    needs: NeededSums,
    compute: fn(&SampleSums, &Categories) -> f64,
}

impl Statistic {
    /// Whether labels of this scale have it.
    #[must_use]
    pub fn is_of(&self, categories: &Categories) -> bool {
        let has_order = *categories.scale() != Scale::Nominal;
        let has_numbers = *categories.scale() == Scale::Numbers;
        let are_few = categories.len() <= MAX_ORDERED;
        match self.needs {
            NeededSums::Nothing => true,
            NeededSums::Order => has_order && are_few,
            NeededSums::Numbers => has_numbers,
            NeededSums::FewNumbers => has_numbers && are_few,
        }
    }

    pub(super) fn value(&self, sample: &SampleSums, categories: &Categories) -> f64 {
        (self.compute)(sample, categories)
    }
}

/// Every statistic, in the order of the table.
pub static STATISTICS: &[Statistic] = &[
    statistic(
        "percent_agreement",
        "share of the pairs of annotators that agree; mean over instances",
        NeededSums::Nothing,
        fleiss::percent,
    ),
    statistic(
        "scott_pi",
        "Scott's pi; every pair of answers counts the same",
        NeededSums::Nothing,
        fleiss::scott_pi,
    ),
    statistic(
        cohen::NAMES[0],
        "Cohen's kappa; mean over pairs of annotators",
        NeededSums::Nothing,
        |s, _| s.cohen[0],
    ),
    statistic(cohen::NAMES[1], "Cohen's kappa with linear weights", NeededSums::Order, |s, _| {
        s.cohen[1]
    }),
    statistic(
        cohen::NAMES[2],
        "Cohen's kappa with quadratic weights",
        NeededSums::Order,
        |s, _| s.cohen[2],
    ),
    statistic(
        "conger_kappa",
        "Conger's kappa: Cohen's for any number of annotators",
        NeededSums::Nothing,
        cohen::conger,
    ),
    statistic(
        fleiss::NAME,
        "Fleiss' kappa; every instance counts the same",
        NeededSums::Nothing,
        fleiss::kappa,
    ),
    statistic(
        "brennan_prediger",
        "Brennan and Prediger's coefficient, or Bennett's S",
        NeededSums::Nothing,
        fleiss::brennan_prediger,
    ),
    statistic(
        "krippendorff_nominal",
        "Krippendorff's alpha of names",
        NeededSums::Nothing,
        krippendorff::nominal,
    ),
    statistic(
        "krippendorff_ordinal",
        "Krippendorff's alpha of ranks",
        NeededSums::Order,
        krippendorff::ordinal,
    ),
    statistic(
        "krippendorff_interval",
        "Krippendorff's alpha of numbers with a unit",
        NeededSums::Numbers,
        krippendorff::interval,
    ),
    statistic(
        "krippendorff_ratio",
        "Krippendorff's alpha of amounts",
        NeededSums::FewNumbers,
        krippendorff::ratio,
    ),
    statistic("gwet_ac1", "Gwet's AC1", NeededSums::Nothing, gwet::ac1),
    statistic(
        "gwet_ac2_linear",
        "Gwet's AC2 with linear weights",
        NeededSums::Order,
        gwet::ac2_linear,
    ),
    statistic(
        "gwet_ac2_quadratic",
        "Gwet's AC2 with quadratic weights",
        NeededSums::Order,
        gwet::ac2_quadratic,
    ),
    statistic(
        "gwet_ac2_ordinal",
        "Gwet's AC2 with ordinal weights",
        NeededSums::Order,
        gwet::ac2_ordinal,
    ),
];

const fn statistic(
    name: &'static str,
    meaning: &'static str,
    needs: NeededSums,
    compute: fn(&SampleSums, &Categories) -> f64,
) -> Statistic {
    Statistic { name, meaning, needs, compute }
}
