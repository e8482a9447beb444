//! Any model of pairs: an estimator, a prior of the classes and a report make an EM model.

use std::ops::Range;

use super::assignments::Assignments;
use crate::error::Result;
use crate::frame::{Annotations, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::{Cancel, JobContext};
use crate::model::em::kernels::{
    Crowd as _, DirichletParameter, Estimator, Likelihood, PairKernel, Prior,
};
use crate::model::em::start::write_start;
use crate::model::em::{EmModel, EmResult, EmSteps, Objective, StopRule, fit};
use crate::model::fitted::fitted_posterior::{FittedPosterior, PosteriorRows};
use crate::model::fitted::{Fitted, Report};
use crate::model::numerics::{MIN_PROBABILITY, at_least, normalise};
use crate::model::posterior::{Posterior, harden};
use crate::model::{Model, Spec};

/// A model whose likelihood is a product over (annotator, label) pairs.
pub trait PairModel: Spec {
    /// Turns the expected counts of an annotator into the likelihood of his pairs.
    type Rows: Estimator;
    /// The estimator for these annotations.
    fn estimator(&self, a: &Annotations) -> Self::Rows;
    /// The prior of the classes.
    fn class_prior(&self, a: &Annotations) -> ClassPrior;
    /// The state of every annotator at which an attempt starts, `[annotator, state_len]`; `None` to start at the shares of
    /// the votes, which attempts after the first mix with noise. Where a table gives confusion matrices, the first attempt
    /// starts at their posteriors, and its M-step reads this state.
    fn start(&self, _a: &Annotations, _attempt: u32, _job: &JobContext) -> Option<Vec<f64>> {
        None
    }
    /// At which change of P(class) between two M-steps, the sum over the classes, E-steps assign instances to their most
    /// probable classes (classification EM); infinite to do so from the votes on, `None` for posteriors throughout.
    fn assigns_below(&self) -> Option<f64> {
        None
    }
    /// The objective of this marginal log-likelihood and the terms of the estimator and of the class prior.
    fn objective(&self, log_likelihood: f64, terms: f64) -> Objective {
        Objective::penalised(log_likelihood, terms)
    }
    /// Reports the fitted parameters.
    fn report(&self, a: &Annotations, fit: PairFit<Self::Rows>) -> Report;
    /// See [`Model::memory_estimate`].
    #[must_use]
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        super::super::kernels::memory_estimate(sizes)
    }
    /// See [`EmSteps::caution`].
    fn caution(&self, _a: &Annotations, _job: &JobContext) -> Option<String> {
        None
    }
    /// See [`EmSteps::check_data`].
    ///
    /// # Errors
    /// Where the settings do not fit the annotations.
    fn check_data(&self, _a: &Annotations, _job: &JobContext) -> Result<()> {
        Ok(())
    }
    /// When to stop.
    fn stop(&self) -> &StopRule;
    /// See [`EmSteps::restarts`].
    fn restarts(&self) -> u32 {
        0
    }
}

/// What a class is worth before any annotation.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassPrior {
    /// All classes the same.
    Uniform,
    /// The mean posterior of annotated instances.
    Shares,
    /// These shares, `[class]`, above 0 and of sum 1.
    Given(Vec<f64>),
    /// Shares with a Dirichlet prior of this parameter, by variational Bayes.
    Dirichlet(f64),
}

/// What a report is made of: the parameters that follow from the last posteriors.
pub struct PairFit<E> {
    /// P(class), `[class]`.
    pub prior: Vec<f64>,
    /// The estimator, with what it has read of all annotators.
    pub estimator: E,
    /// The expected counts, `[pair, class]`.
    pub expected_count: Vec<f64>,
    kernel: PairKernel,
}

impl<E> PairFit<E> {
    /// The estimator's state of annotator `r`.
    #[must_use]
    pub fn state_of(&self, a: &Annotations, r: usize) -> &[f64] {
        self.kernel.state_of(a, r)
    }
}

/// The EM of a model of pairs.
pub struct PairEm<M>(pub M);

impl<M> From<M> for PairEm<M> {
    fn from(model: M) -> Self {
        Self(model)
    }
}

/// The parameters of a model of pairs.
pub struct Params<E> {
    classes: ClassShares,
    assignments: Assignments,
    estimator: E,
    kernel: PairKernel,
}

impl<E> Params<E> {
    /// Starts at these posteriors.
    pub(crate) fn count(&mut self, a: &Annotations, t: &Posterior) {
        let n = t.n_classes();
        self.kernel.count(a, |instances, rows| {
            rows.copy_from_slice(&t.values()[instances.start * n..instances.end * n]);
        });
    }
}

impl<M: PairModel> EmSteps for PairEm<M> {
    type Params = Params<M::Rows>;

    fn params(&self, a: &Annotations) -> Self::Params {
        Params {
            classes: ClassShares::new(self.0.class_prior(a), a.dims().classes),
            assignments: Assignments::new(self.0.assigns_below()),
            estimator: self.0.estimator(a),
            kernel: PairKernel::new(a),
        }
    }

    fn start(
        &self,
        a: &Annotations,
        attempt: u32,
        params: &mut Self::Params,
        job: &JobContext,
    ) -> Option<f64> {
        params.classes = ClassShares::new(self.0.class_prior(a), a.dims().classes);
        params.estimator = self.0.estimator(a);
        params.assignments = Assignments::new(self.0.assigns_below());
        params.kernel.set_hard(params.assignments.are_made());
        let state = self.0.start(a, attempt, job);
        let are_given = attempt == 0 && a.given.confusion.is_some();
        if state.is_none() || are_given {
            let are_hard = params.assignments.are_made();
            params.kernel.count(a, |instances: Range<usize>, rows: &mut [f64]| {
                write_start(a, instances, attempt, job, rows);
                if are_hard {
                    rows.chunks_exact_mut(a.dims().classes.max(1)).for_each(harden);
                }
            });
        }
        if let Some(state) = state {
            params.kernel.start_at(a, &params.estimator, &state);
            if !are_given {
                // Its objective lacks the terms of an estimate.
                self.e_step(a, params);
            }
        }
        None
    }

    fn m_step(&self, a: &Annotations, params: &mut Self::Params, _: &Cancel) -> Result<()> {
        let Params { classes, assignments, estimator, kernel } = params;
        classes.estimate(&kernel.class_counts(a.dims().classes));
        kernel.estimate(a, estimator);
        kernel.set_hard(assignments.after_m_step(&classes.shares));
        Ok(())
    }

    fn e_step(&self, a: &Annotations, params: &mut Self::Params) -> Objective {
        let Params { classes, kernel, .. } = params;
        let log_likelihood = kernel.sweep(a, Prior::Class(&classes.factors));
        self.0.objective(log_likelihood, kernel.terms() + classes.term)
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        self.0.caution(a, job)
    }

    fn is_in_training(&self, params: &Self::Params) -> bool {
        params.assignments.are_to_come()
    }

    fn has_new_objective(&self, params: &Self::Params) -> bool {
        params.assignments.begin_now()
    }

    fn check_data(&self, a: &Annotations, job: &JobContext) -> Result<()> {
        self.0.check_data(a, job)
    }

    fn stop(&self) -> &StopRule {
        self.0.stop()
    }

    fn restarts(&self) -> u32 {
        self.0.restarts()
    }
}

impl<M: PairModel> EmModel for PairEm<M> {
    fn finish(&self, a: &Annotations, params: Self::Params, _: &Cancel) -> Result<EmResult> {
        let Params { mut classes, mut estimator, mut kernel, .. } = params;
        let likelihood = kernel.take_likelihood(a);
        let (prior, shares) = (classes.factors.clone(), classes.shares.clone());
        classes.estimate(&kernel.class_counts(a.dims().classes));
        let expected_count = kernel.expected_counts(a);
        kernel.estimate(a, &mut estimator);
        let unannotated = match classes.rule {
            // An expectation over the shares: their mean, and not the geometric one that weighs the annotations.
            ClassPrior::Dirichlet(_) => Some(shares),
            ClassPrior::Uniform | ClassPrior::Shares | ClassPrior::Given(_) => None,
        };
        let rows = PairPosterior { likelihood, prior, unannotated };
        let fit = PairFit { prior: classes.shares, estimator, expected_count, kernel };
        Ok((FittedPosterior::on_demand(a, rows), self.0.report(a, fit)))
    }
}

/// The posteriors that follow from a likelihood, computed when they are read.
#[derive(Debug)]
struct PairPosterior {
    likelihood: Likelihood,
    /// What a sweep multiplies with, `[class]`.
    prior: Vec<f64>,
    /// The row of an instance without annotations, where it is not the prior.
    unannotated: Option<Vec<f64>>,
}

impl PosteriorRows for PairPosterior {
    fn write(&self, a: &Annotations, instances: Range<usize>, rows: &mut [f64]) {
        a.posteriors(&self.likelihood, Prior::Class(&self.prior), instances.clone(), rows);
        let Some(shares) = &self.unannotated else { return };
        for (i, row) in instances.zip(rows.chunks_exact_mut(a.dims().classes.max(1))) {
            if a.pairs_of_instance(i).is_empty() && a.trusted_class(i).is_none() {
                row.copy_from_slice(shares);
            }
        }
    }

    fn parts(&self) -> Vec<&[f64]> {
        vec![&self.prior, self.likelihood.cells()]
    }
}

impl<M: PairModel> Model for PairEm<M> {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        fit(self, M::KIND, evidence.annotations, job)
    }

    fn restarts(&self) -> u32 {
        self.0.restarts()
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        M::memory_estimate(sizes)
    }
}

/// P(class) and how it is learned.
struct ClassShares {
    rule: ClassPrior,
    /// P(class), `[class]`.
    shares: Vec<f64>,
    /// What a sweep multiplies with: the shares, or exp(E ln share).
    factors: Vec<f64>,
    /// The term of the objective.
    term: f64,
}

impl ClassShares {
    fn new(rule: ClassPrior, n_classes: usize) -> Self {
        let shares = match &rule {
            ClassPrior::Given(shares) => shares.clone(),
            _ => vec![1.0 / n_classes.max(1) as f64; n_classes],
        };
        Self { rule, factors: shares.clone(), shares, term: 0.0 }
    }

    /// From the sum of the posteriors of annotated instances, `[class]`.
    fn estimate(&mut self, counts: &[f64]) {
        match self.rule {
            ClassPrior::Uniform | ClassPrior::Given(_) => {}
            ClassPrior::Shares => {
                self.shares.copy_from_slice(counts);
                normalise(&mut self.shares, |p| at_least(p, MIN_PROBABILITY));
                self.factors.copy_from_slice(&self.shares);
            }
            ClassPrior::Dirichlet(parameter) => {
                let class = DirichletParameter::new(parameter);
                let sum = DirichletParameter::new(parameter * counts.len() as f64);
                let (digamma_of_sum, divergence) = sum.digamma_and_term(counts.iter().sum());
                self.term = -divergence;
                for ((factor, share), count) in
                    self.factors.iter_mut().zip(&mut self.shares).zip(counts)
                {
                    let (digamma, term) = class.digamma_and_term(*count);
                    self.term += term;
                    *factor = (digamma - digamma_of_sum).exp();
                    *share = count + parameter;
                }
                let all: f64 = self.shares.iter().sum();
                self.shares.iter_mut().for_each(|share| *share /= all);
            }
        }
    }
}

/// An M-step from given posteriors, for the tests of models.
#[cfg(test)]
pub(super) struct StepFrom {
    /// The parameters that the posteriors give.
    pub(super) report: Report,
    /// The objective of the E-step that follows.
    pub(super) objective: Objective,
    pub(super) posterior: Posterior,
}

#[cfg(test)]
impl StepFrom {
    pub(super) fn new(model: &impl PairModel, a: &Annotations, t: &Posterior) -> Self {
        let steps = PairEm(model.clone());
        let counted = || {
            let mut params = steps.params(a);
            params.count(a, t);
            params
        };
        let (mut params, cancel) = (counted(), Cancel::default());
        steps.m_step(a, &mut params, &cancel).unwrap();
        let prior = Prior::Class(&params.classes.factors);
        let posterior = params.kernel.likelihood().posteriors(a, prior);
        let objective = steps.e_step(a, &mut params);
        let (_, report) = steps.finish(a, counted(), &cancel).unwrap();
        Self { report, objective, posterior }
    }
}
