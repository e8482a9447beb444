//! The sums of a sample of instances, and what agreement beyond chance is.

use super::sums::SumLayout;

/// What the statistics are computed from.
pub(super) struct SampleSums {
    pub(super) layout: SumLayout,
    pub(super) sums: Vec<f64>,
    pub(super) cohen: [f64; 3],
    pub(super) conger: f64,
}

/// The agreement beyond chance; NaN where chance explains all of it.
pub(super) fn beyond_chance(observed: f64, expected: f64) -> f64 {
    let rest = 1.0 - expected;
    if rest > 1e-12 { (observed - expected) / rest } else { f64::NAN }
}
