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

mod counts;
mod dense;
mod e_step;
mod estimate;
mod gather_buffer;
pub(crate) mod log_domain;
mod m_step;
mod padded_matrix;
mod pooled;
mod prior;
mod sparse;
mod sparse_rows;
mod special_rows;
mod strategy;
#[cfg(test)]
mod tests;
mod width;

pub use counts::Statistics;
pub use estimate::{Annotator, Estimator, SparseCell};
pub use log_domain::LogLikelihood;
pub use m_step::expected_counts_of;
pub use padded_matrix::stride;
pub use pooled::pooled_counts;
pub use prior::Prior;
pub use strategy::CountStrategy;

use crate::frame::Annotations;
use crate::model::numerics::{MIN_PROBABILITY, normalise};
use crate::model::posterior::Posterior;
use m_step::Columns;

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
