//! The two sweeps of every model whose likelihood is a product of confusion columns, and one for those where it is not.
//!
//! ```text
//! E   T[i][k]      ~ prior[i][k] * product over the annotations of i, in columns c, of likelihood[c][k]
//! M   counts[c][k] = sum over the instances i with an annotation in column c of T[i][k];  likelihood = estimator(counts)
//! ```
//! [`e_step`] makes posteriors of a range of instances and their [`Statistics`]; [`Statistics`] of neighbouring ranges
//! merge in their order; [`m_step`] brings the counts of each annotator together and lets an [`Estimator`] turn them into
//! the likelihood. [`ColumnModel`] is the three in turn. [`log_domain`] is the E-step of models whose likelihood is no
//! product of columns.
//!
//! Ranges of instances and whole annotators are the units of work: each output cell has one owner, each sum one order,
//! so that the result does not depend on the number of threads. Class counts up to 10 have kernels of their own, in
//! which a row is an array in registers.

pub mod counts;
pub mod dense;
pub mod e_step;
pub mod estimate;
mod gather_buffer;
pub mod log_domain;
pub mod m_step;
pub mod padded_matrix;
pub mod prior;
pub mod sparse;
mod sparse_rows;
mod special_rows;
pub mod strategy;
#[cfg(test)]
mod tests;

pub use counts::Statistics;
pub use estimate::{Annotator, Estimator, Smoothing};
pub use log_domain::softmax;
pub use prior::Prior;
pub use strategy::CountStrategy;

use crate::frame::{Annotations, prefetch};
use crate::model::fitted::Posterior;
use m_step::Columns;

/// The least expected count in a confusion matrix, and the least probability in a prior.
pub const MIN_PROBABILITY: f64 = 1e-10;

/// The least probability in a confusion column: [`MIN_PROBABILITY`] over the annotations of ten billion.
pub const MIN_LIKELIHOOD: f64 = 1e-20;

/// What a model of confusion columns keeps from one iteration to the next, allocated once.
pub struct ColumnModel {
    parts: Vec<Statistics>,
    columns: Columns,
}

impl ColumnModel {
    /// Room for these annotations.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        Self::with_strategy(a, CountStrategy::choose(a))
    }

    /// Room for these annotations, counted in this way.
    #[must_use]
    pub fn with_strategy(a: &Annotations, strategy: CountStrategy) -> Self {
        Self { parts: counts::parts(a, strategy), columns: Columns::new(a, strategy) }
    }

    /// Counts posteriors that no E-step of this model has made: a start, or a kept result.
    pub fn count(&mut self, a: &Annotations, t: &Posterior) {
        counts::count(a, t, &mut self.parts);
    }

    /// The sum of the posteriors of annotated instances, `[class]`.
    #[must_use]
    pub fn class_counts(&self) -> Vec<f64> {
        counts::class_counts(&self.parts)
    }

    /// Writes the mean posterior of annotated instances into `prior`, floored and normalised; uniform without any.
    pub fn prior(&self, prior: &mut [f64]) {
        prior.copy_from_slice(&self.class_counts());
        normalise(prior, |p| p.max(MIN_PROBABILITY));
    }

    /// The likelihood from the expected counts of `t`; returns what the estimator adds to the objective.
    pub fn m_step(&mut self, a: &Annotations, t: &Posterior, estimator: &impl Estimator) -> f64 {
        self.columns.estimate(a, t, &self.parts, estimator)
    }

    /// Posteriors from the likelihood, and their expected counts; returns the marginal log-likelihood. `t` comes with the
    /// posteriors behind the likelihood, which `estimator` has made.
    ///
    /// Rows of trusted instances become one-hot and count with the log-joint of their class; rows without annotations
    /// become the prior and count nothing.
    pub fn e_step(
        &mut self,
        a: &Annotations,
        prior: Prior<'_>,
        estimator: &impl Estimator,
        t: &mut Posterior,
    ) -> f64 {
        e_step::e_step(a, prior, &self.columns, estimator, t, &mut self.parts)
    }

    /// The expected counts of `t`, `[column, class]`.
    #[must_use]
    pub fn into_expected_counts(self, a: &Annotations, t: &Posterior) -> Vec<f64> {
        let mut room = self.columns.into_room(a);
        m_step::expected_counts(a, t, &self.parts, &mut room);
        room
    }
}

/// Runs `$body` with `K` = the number of classes where a kernel of its own exists, else with `K` = 0.
macro_rules! for_classes {
    ($n:expr, $k:ident => $body:expr) => {
        for_classes!(@ $n, $k => $body, 2 3 4 5 6 7 8 9 10)
    };
    (@ $n:expr, $k:ident => $body:expr, $($literal:literal)*) => {
        match $n {
            $($literal => { const $k: usize = $literal; $body })*
            _ => { const $k: usize = 0; $body }
        }
    };
}

use for_classes;

/// Whether this number of classes has a kernel of its own.
fn has_kernel(n_classes: usize) -> bool {
    for_classes!(n_classes, K => K) > 0
}

/// A row's length, known to the compiler where the kernel has its own.
#[inline(always)]
const fn width<const K: usize>(n_classes: usize) -> usize {
    if K == 0 { n_classes } else { K }
}

/// Divides by the sum, applies `change`, and divides by the sum again; uniform where the sum is zero.
pub fn normalise(values: &mut [f64], change: impl Fn(f64) -> f64) {
    let sum: f64 = values.iter().sum();
    let uniform = 1.0 / values.len() as f64;
    values.iter_mut().for_each(|v| *v = change(if sum > 0.0 { *v / sum } else { uniform }));
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}
