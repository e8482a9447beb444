//! E-step and M-step of the models whose likelihood is a product of confusion columns, and an E-step for other models.
//!
//! ```text
//! E   T[i][k]      ~ prior[i][k] * product over the annotations of i, in columns c, of likelihood[c][k]
//! M   counts[c][k] = sum over the instances i with an annotation in column c of T[i][k];  likelihood = estimator(counts)
//! ```
//! `e_step` computes the posteriors of a range of instances and their [`Statistics`]; the [`Statistics`] of adjacent
//! ranges merge in order; `m_step` sums the counts of each annotator and passes them to an [`Estimator`], which turns
//! them into the likelihood. [`ColumnModel`] runs the three in one process. Where parts of the instances are on other
//! machines, each runs [`EStep`] with the same [`Columns`], and the [`Statistics`] that it fills are merged. `log_domain`
//! is the E-step of models whose likelihood is not a product of columns.
//!
//! A unit of parallel work is a range of instances or a whole annotator. Exactly one unit writes each output cell, and
//! each sum has a fixed order, so that the result does not depend on the number of threads. For 2 to 10 classes there
//! are specialised kernels, which hold a row in registers.

mod dense;
mod dirichlet;
mod e_step;
mod estimate;
mod gather_buffer;
pub(crate) mod log_domain;
mod logarithms;
mod m_step;
mod padded_matrix;
mod plain_rows;
mod pooled;
mod posterior_rows;
mod prefetcher;
mod prior;
mod pseudo_count_matrix;
mod pseudo_counts;
mod ranges;
mod row_arithmetic;
mod singletons;
mod smoothed_singletons;
mod smoothing;
mod sparse;
mod sparse_rows;
mod special_rows;
mod statistics;
mod strategy;
mod sums;
#[cfg(test)]
mod tests;
mod width;

pub(crate) use dirichlet::{Dirichlet, DirichletParameter};
pub use e_step::EStep;
pub use estimate::{
    Annotator, Estimator, SingletonEstimator, SingletonInput, SingletonRows, SparseCell,
    WeightedSingletons,
};
pub use log_domain::LogLikelihood;
pub use m_step::{Columns, expected_counts_of};
pub use padded_matrix::stride;
pub use prior::Prior;
pub(crate) use pseudo_count_matrix::RowPrior;
pub use statistics::Statistics;
pub use strategy::{CountStrategy, fit_bytes};

use crate::frame::Annotations;
use crate::model::numerics::{MIN_PROBABILITY, at_least, normalise};
use crate::model::posterior::Posterior;

/// The state of a model of confusion columns between iterations, allocated once.
pub struct ColumnModel {
    parts: Vec<Statistics>,
    columns: Columns,
    /// The estimator's terms of the columns that the M-step has computed.
    prior_terms: f64,
    /// Whether the last E-step has not stored the posteriors.
    leaves_posteriors: bool,
}

impl ColumnModel {
    /// Allocates the state for these annotations, with the strategy that suits them.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        Self::with_strategy(a, CountStrategy::choose(a))
    }

    /// Allocates the state for these annotations and this strategy.
    #[must_use]
    pub fn with_strategy(a: &Annotations, strategy: CountStrategy) -> Self {
        let (parts, columns) = (ranges::parts(a, strategy), Columns::new(a, strategy));
        Self { parts, columns, prior_terms: 0.0, leaves_posteriors: false }
    }

    /// Counts posteriors that no E-step of this model computed: initial posteriors, or those of a checkpoint.
    pub fn count(&mut self, a: &Annotations, t: &Posterior) {
        ranges::count(a, t, &mut self.parts);
    }

    /// The sum of the posteriors of annotated instances, `[class]`.
    #[must_use]
    pub fn class_counts(&self) -> Vec<f64> {
        ranges::class_counts(&self.parts)
    }

    /// How often all annotators together are expected to have met each class and given each label, `[label, class]`.
    ///
    /// An estimator whose likelihood is tied across annotators, or starts from the whole crowd, reads these counts before
    /// the M-step; the counts of its own annotator are then only a part of what it knows. `t` holds the posteriors, unless
    /// the last E-step counted them and left them out.
    #[must_use]
    pub fn pooled_counts(&self, a: &Annotations, t: &Posterior) -> Vec<f64> {
        pooled::pooled_counts(a, t, &self.parts)
    }

    /// The expected number of right annotations of all annotators together, and the number of all, by weight; `t` as for
    /// [`ColumnModel::pooled_counts`].
    #[must_use]
    pub fn pooled_right(&self, a: &Annotations, t: &Posterior) -> [f64; 2] {
        pooled::pooled_right(a, t, &self.parts)
    }

    /// Writes the mean posterior of annotated instances into `prior`, floored and normalised; uniform if no instance
    /// has annotations.
    pub fn prior(&self, prior: &mut [f64]) {
        prior.copy_from_slice(&self.class_counts());
        normalise(prior, |p| at_least(p, MIN_PROBABILITY));
    }

    /// Computes the likelihood from the expected counts of `t`.
    pub fn m_step(&mut self, a: &Annotations, t: &Posterior, estimator: &impl Estimator) {
        self.prior_terms = self.columns.estimate(a, t, &self.parts, estimator);
    }

    /// Computes posteriors from the likelihood, and their expected counts; returns the marginal log-likelihood. On
    /// entry, `t` holds the posteriors from which the last M-step, with the same `estimator`, computed the likelihood.
    ///
    /// The row of a trusted instance becomes one-hot, and its term of the log-likelihood is the log-joint of its class.
    /// The row of an instance without annotations becomes the prior, and has no term.
    pub fn e_step(
        &mut self,
        a: &Annotations,
        prior: Prior<'_>,
        estimator: &impl Estimator,
        t: &mut Posterior,
    ) -> f64 {
        e_step::e_step(a, prior, &self.columns, estimator, Some(t), &mut self.parts)
    }

    /// As [`ColumnModel::e_step`], but leaves `t` as it is if the M-step reads the counts alone: after the last
    /// iteration, [`ColumnModel::posteriors`] computes it.
    ///
    /// # Why
    /// A posterior row is as large as five annotations. To write all of them, and to read them into the cache before,
    /// takes a quarter of an iteration.
    pub fn e_step_of_counts(
        &mut self,
        a: &Annotations,
        prior: Prior<'_>,
        estimator: &impl Estimator,
        t: &mut Posterior,
    ) -> f64 {
        self.leaves_posteriors = self.parts.iter().all(|part| part.table().is_some());
        let t = (!self.leaves_posteriors).then_some(t);
        e_step::e_step(a, prior, &self.columns, estimator, t, &mut self.parts)
    }

    /// Stores the posteriors of the last E-step, with the same prior and estimator, if it has left them out.
    pub fn posteriors(
        &mut self,
        a: &Annotations,
        prior: Prior<'_>,
        estimator: &impl Estimator,
        t: &mut Posterior,
    ) {
        if std::mem::take(&mut self.leaves_posteriors) {
            let mut parts = ranges::without_counts(&self.parts);
            e_step::e_step(a, prior, &self.columns, estimator, Some(t), &mut parts);
        }
    }

    /// The estimator's terms of the objective, such as a log-prior, at the likelihood of the last M-step. Call it after
    /// the E-step that followed: it may have computed some of the columns, and so their terms.
    #[must_use]
    pub fn prior_terms(&self) -> f64 {
        self.prior_terms + ranges::prior_terms(&self.parts)
    }

    /// The expected counts of `t`, `[column, class]`.
    #[must_use]
    pub fn into_expected_counts(self, a: &Annotations, t: &Posterior) -> Vec<f64> {
        let mut buffer = self.columns.into_buffer(a);
        m_step::expected_counts(a, t, &self.parts, &mut buffer);
        buffer
    }
}
