//! Annotators have an ability and instances a difficulty: an able annotator is right, the more so on easy instances.
//!
//! ```text
//! z[i] ~ q;  sigma[i][r] = sigmoid(a[r] exp(b[i]))     a: ability, exp(-b): difficulty
//! P(y | z[i] = k, i, r) = sigma[i][r] if y = k, else (1 - sigma[i][r]) / (L - 1)     L labels
//! a[r] ~ Normal(ability_mean, ability_variance);  b[i] ~ Normal(easiness_mean, easiness_variance);  b is clamped to -10 .. 10 wherever exp(b) or exp(-b) is meant
//! objective = LL - sum over a and b of (their value - mean)^2 / (2 variance),  LL = sum_i logsumexp_k ( ln q[k] + sum of ln P(y | k, i, r) )
//! ```
//! q is uniform, or `class_prior`; the means and variances are 1 by default.
//!
//! 1. a and b at their means, a at 1 where its mean is 0, from which nothing tells the classes apart; T = softmax of the terms of LL.
//! 2. M: with t = T[i][y], maximise sum over annotations of t ln sigma + (1 - t) ln(1 - sigma), minus the squares.
//!    The gradient is d/da[r] = sum (t - sigma) exp(b[i]) - (a[r] - mean) / variance and
//!    d/db[i] = sum (t - sigma) a[r] exp(b[i]) - (b[i] - mean) / variance.
//! 3. E: T from a and b. 4. Repeat until the objective converges.
//!
//! An ability below 0 is that of an adversary. A skill is the mean probability that the annotator's annotations are
//! right. Instances without annotations have no difficulty. A label that is no class counts as wrong. A single label is
//! right whatever the ability: its likelihood is 1, all parameters stay at 1, and so do skills.
//!
//! The posteriors and the objective are those of the last E-step; abilities, difficulties and skills are those of the
//! M-step that follows it.
//!
//! J. Whitehill, P. Ruvolo, T. Wu, J. Bergsma, J. Movellan: Whose Vote Should Count More: Optimal Integration of Labels
//! from Labelers of Unknown Expertise. NeurIPS 2009.
//!
//! Differs from the 2009 appendix, whose gradient carries a wrong ln(L - 1); from crowd-kit's `GLAD` in the stopping value
//! (the marginal likelihood with the priors here) and in the optimiser, L-BFGS for conjugate gradients.
//!
//! The objective is flat at its maximum, so that the tolerances are far below those of other kinds: posteriors end within
//! 5e-4 of their limit on the crowd `rte`, and 0.004 on `web`; by a `stop.tol` of 1e-5 they are 0.02 and 0.3 away, for half
//! of the iterations. A smaller `gradient_tol` alone changes nothing.
//!
//! ```
//! use labelmill::model::{Model, em::{Em, Glad}};
//! use labelmill::testing::tiny;
//!
//! // Everybody agrees on instances 0 to 3; on instance 4, annotator 2 is alone.
//! let rows: Vec<_> = (0..15).map(|n| (n / 3, n % 3, u32::from(n / 3 % 2 == 1 || n == 14))).collect();
//! let fitted = Em(Glad::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! let [(_, ability), (_, difficulty)] = [&fitted.report.annotator_parameters[0], &fitted.report.instance_parameters[0]];
//! assert!(ability[2] < ability[0] && difficulty[4] > difficulty[0]);
//! ```

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kernels::Prior;
use super::kernels::log_domain::{LogLikelihood, e_step};
use super::start::first_start;
use super::{EmModel, EmResult, EmSteps, Objective, StopRule};
use crate::error::Result;
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK, MemoryEstimate, QuestionSizes};
use crate::job_context::{Cancel, JobContext};
use crate::model::fitted::Report;
use crate::model::numerics::lbfgs::{NUMBERS_OF_SEARCH, try_maximise};
use crate::model::numerics::ln_sigmoid;
use crate::model::posterior::Posterior;
use crate::model::settings::given_prior::{check_number, check_shares, shares_or_uniform};
use crate::model::{Capabilities, Spec};
use crate::spec::Problems;

/// GLAD: an ability for each annotator and a difficulty for each instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Glad {
    /// The largest number of L-BFGS steps in each M-step.
    #[schemars(range(min = 1))]
    pub max_steps: u32,
    /// An M-step ends when no component of the gradient exceeds this.
    #[schemars(range(min = 0.0))]
    pub gradient_tol: f64,
    /// P(class), one share for each class in the order of the classes. Without it, all classes are equally likely.
    pub class_prior: Option<Vec<f64>>,
    /// The mean of the prior of abilities. Raising it trusts annotators with few annotations; below 0, they are taken for
    /// adversaries.
    pub ability_mean: f64,
    /// The variance of the prior of abilities. Raising it lets annotators differ more.
    #[schemars(range(min = 0.001))]
    pub ability_variance: f64,
    /// The mean of the prior of easiness, the logarithm of the inverse difficulty. Raising it trusts annotators on
    /// instances with few annotations.
    #[schemars(range(min = -10.0, max = 10.0))]
    pub easiness_mean: f64,
    /// The variance of the prior of easiness. Raising it lets instances differ more.
    #[schemars(range(min = 0.001))]
    pub easiness_variance: f64,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for Glad {
    fn default() -> Self {
        let stop = StopRule { tol: 1e-8, ..StopRule::default() };
        Self {
            max_steps: 25,
            gradient_tol: 1e-3,
            class_prior: None,
            ability_mean: 1.0,
            ability_variance: 1.0,
            easiness_mean: 1.0,
            easiness_variance: 1.0,
            stop,
        }
    }
}

impl Spec for Glad {
    const KIND: &'static str = "glad";
    const SUMMARY: &'static str =
        "an ability for each annotator and a difficulty for each instance";
    const SOURCE: &'static str = "Whitehill et al. 2009, NeurIPS";
    const CAPABILITIES: Capabilities = Capabilities::EM;

    fn estimates_prior(&self) -> bool {
        self.class_prior.is_some()
    }

    fn check(&self, location: &str, problems: &mut Problems) {
        check_shares(self.class_prior.as_ref(), location, problems);
    }
}

impl Glad {
    /// Minus the log-prior of an ability, up to a constant.
    fn ability_square(&self, a: f64) -> f64 {
        (a - self.ability_mean).powi(2) / (2.0 * self.ability_variance)
    }

    /// Minus the log-prior of the logarithm of an inverse difficulty, up to a constant.
    fn easiness_square(&self, b: f64) -> f64 {
        (b - self.easiness_mean).powi(2) / (2.0 * self.easiness_variance)
    }
}

/// b is clamped to plus or minus this before exp(b): the logarithm of the largest inverse difficulty.
const MAX_LOG_INVERSE_DIFFICULTY: f64 = 10.0;

/// The parameters that an M-step estimates, and the prior `[class]`.
pub struct Params {
    /// The abilities `[annotator]`, then the logarithms of the inverse difficulties `[instance]`: a and b.
    x: Vec<f64>,
    prior: Vec<f64>,
    /// The posteriors of the last E-step.
    t: Posterior,
}

impl EmSteps for Glad {
    type Params = Params;

    fn params(&self, a: &Annotations) -> Params {
        let Dims { instances, annotators, classes, .. } = a.dims();
        let prior = shares_or_uniform(self.class_prior.as_ref(), classes);
        let t = Posterior::zeros(instances, classes);
        Params { x: vec![0.0; annotators + instances], prior, t }
    }

    fn start(&self, a: &Annotations, _: u32, params: &mut Params, _: &JobContext) -> Option<f64> {
        let (ability, b) = params.x.split_at_mut(a.dims().annotators);
        ability.fill(if self.ability_mean == 0.0 { 1.0 } else { self.ability_mean });
        b.fill(self.easiness_mean);
        if a.given.confusion.is_some() {
            params.t = first_start(a);
            return None;
        }
        Some(self.e_step(a, params).maximised)
    }

    fn m_step(&self, a: &Annotations, params: &mut Params, cancel: &Cancel) -> Result<()> {
        if !has_wrong_labels(a) {
            return Ok(());
        }
        let Params { x, t, .. } = params;
        let mut objective = MStepObjective::new(self, a, t);
        let f = |x: &[f64], gradient: &mut [f64]| -> Result<f64> {
            cancel.check()?;
            Ok(objective.value(x, gradient))
        };
        try_maximise(x, f, self.gradient_tol, self.max_steps)?;
        Ok(())
    }

    fn e_step(&self, a: &Annotations, Params { x, prior, t }: &mut Params) -> Objective {
        let likelihood = AbilityLikelihood::new(a, x);
        let (ability, b) = x.split_at(a.dims().annotators);
        let squares: f64 = ability.iter().map(|x| self.ability_square(*x)).sum::<f64>()
            + b.iter().map(|x| self.easiness_square(*x)).sum::<f64>();
        (e_step(a, Prior::Class(prior), &likelihood, t) - squares).into()
    }

    fn check_data(&self, a: &Annotations, job: &JobContext) -> Result<()> {
        check_number(self.class_prior.as_ref(), a, job)
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }
}

impl EmModel for Glad {
    fn finish(&self, a: &Annotations, mut params: Params, cancel: &Cancel) -> Result<EmResult> {
        self.m_step(a, &mut params, cancel)?;
        let report = params.report(a);
        Ok((params.t.into(), report))
    }

    /// There are no matrices, but an M-step searches over the parameters of all annotators and instances.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let Dims { instances, annotators, classes, .. } = sizes.dims;
        let bytes = |n: usize, each: usize| n.checked_mul(each)?.checked_mul(size_of::<f64>());
        let working = bytes(instances.checked_add(annotators)?, NUMBERS_OF_SEARCH)?;
        Some(MemoryEstimate {
            working,
            ..MemoryEstimate::of_posteriors(bytes(instances, classes)?)
        })
    }
}

impl Params {
    fn report(&self, a: &Annotations) -> Report {
        let (ability, b) = self.x.split_at(a.dims().annotators);
        let (mut right, is_certain) = (vec![(0.0, 0.0); ability.len()], !has_wrong_labels(a));
        for (i, b) in b.iter().enumerate() {
            for (r, _, weight) in a.triples_of_instance(i) {
                let (sum, weights) = &mut right[r as usize];
                let sigma = sigmoid(ability[r as usize] * clamped_exp(*b));
                *sum += weight * if is_certain { 1.0 } else { sigma };
                *weights += weight;
            }
        }
        let has_any = |i: usize| !a.pairs_of_instance(i).is_empty();
        let difficulty =
            |(i, b): (usize, &f64)| if has_any(i) { clamped_exp(-b) } else { f64::NAN };
        let difficulties = b.iter().enumerate().map(difficulty).collect();
        Report {
            skill: right.iter().map(|(sum, weights)| sum / weights).collect(),
            prior: Some(self.prior.clone()),
            annotator_parameters: vec![("ability".to_owned(), ability.to_vec())],
            instance_parameters: vec![("difficulty".to_owned(), difficulties)],
            ..Report::default()
        }
    }
}

/// Whether an annotator could have chosen another label.
fn has_wrong_labels(a: &Annotations) -> bool {
    a.dims().labels > 1
}

/// exp(b) or exp(-b), of the clamped b.
fn clamped_exp(b: f64) -> f64 {
    b.clamp(-MAX_LOG_INVERSE_DIFFICULTY, MAX_LOG_INVERSE_DIFFICULTY).exp()
}

/// `1 / (1 + e^-x)`; 0 where e^-x overflows.
///
/// # Why
/// This form rounds negative x differently from [`numerics::sigmoid`](crate::model::numerics::sigmoid). The published
/// accuracy on the crowd `web` depends on it: one instance of 2 653 is within rounding of a tie.
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The likelihood of abilities and difficulties.
struct AbilityLikelihood<'a> {
    ability: &'a [f64],
    /// exp(b) `[instance]`
    inverse_difficulty: Vec<f64>,
    /// ln(L - 1); `None` with a single label, whose likelihood is 1.
    ln_wrong_labels: Option<f64>,
}

impl<'a> AbilityLikelihood<'a> {
    fn new(a: &Annotations, x: &'a [f64]) -> Self {
        let (ability, b) = x.split_at(a.dims().annotators);
        let ln_wrong_labels = has_wrong_labels(a).then(|| ((a.dims().labels - 1) as f64).ln());
        let inverse_difficulty = b.iter().map(|b| clamped_exp(*b)).collect();
        Self { ability, inverse_difficulty, ln_wrong_labels }
    }
}

impl LogLikelihood for AbilityLikelihood<'_> {
    fn add(&self, i: usize, annotator: u32, label: u32, logs: &mut [f64]) {
        let Some(ln_wrong_labels) = self.ln_wrong_labels else { return };
        let x = self.ability[annotator as usize] * self.inverse_difficulty[i];
        let (right, wrong) = (ln_sigmoid(x), ln_sigmoid(-x) - ln_wrong_labels);
        logs.iter_mut().for_each(|log| *log += wrong);
        if let Some(log) = logs.get_mut(label as usize) {
            *log += right - wrong;
        }
    }
}

/// The objective of an M-step.
struct MStepObjective<'a> {
    spec: &'a Glad,
    a: &'a Annotations,
    t: &'a Posterior,
    /// exp(b) `[instance]`, of the point at hand.
    inverse_difficulty: Vec<f64>,
}

impl<'a> MStepObjective<'a> {
    fn new(spec: &'a Glad, a: &'a Annotations, t: &'a Posterior) -> Self {
        Self { spec, a, t, inverse_difficulty: vec![0.0; a.dims().instances] }
    }

    /// Writes the gradient at `x` and returns the value: instances first, then annotators. Each sum has a fixed order.
    fn value(&mut self, x: &[f64], gradient: &mut [f64]) -> f64 {
        let Self { spec, a, t, inverse_difficulty } = self;
        let (ability, b) = x.split_at(a.dims().annotators);
        inverse_difficulty.iter_mut().zip(b).for_each(|(exp_b, b)| *exp_b = clamped_exp(*b));
        let (of_ability, of_b) = gradient.split_at_mut(ability.len());
        let right = |i: usize, label: u32| t.row(i).get(label as usize).copied().unwrap_or(0.0);
        let blocks = of_b.par_chunks_mut(ITEMS_PER_BLOCK).enumerate();
        let values: Vec<f64> = blocks
            .map(|(block, of_b)| {
                let mut value = 0.0;
                for (i, of_b) in (block * ITEMS_PER_BLOCK..).zip(of_b) {
                    *of_b = (spec.easiness_mean - b[i]) / spec.easiness_variance;
                    value -= spec.easiness_square(b[i]);
                    // exp(b) does not change beyond the bound of b.
                    let slope = if b[i].abs() > MAX_LOG_INVERSE_DIFFICULTY { 0.0 } else { 1.0 };
                    for (r, label, weight) in a.triples_of_instance(i) {
                        let (t, z) = (right(i, label), ability[r as usize] * inverse_difficulty[i]);
                        // t ln sigma + (1 - t) ln(1 - sigma), as 1 - sigma(z) = sigma(-z) and ln of both differ by z.
                        value += weight * (ln_sigmoid(-z) + t * z);
                        *of_b += slope * (weight * (t - sigmoid(z)) * z);
                    }
                }
                value
            })
            .collect();
        of_ability.par_iter_mut().enumerate().with_min_len(16).for_each(|(r, of_ability)| {
            *of_ability = (spec.ability_mean - ability[r]) / spec.ability_variance;
            for pair in a.pairs_of_annotator(r) {
                let (label, weights) = (a.label_of_pair(pair as u32), a.weights_of_pair(pair));
                for (n, i) in a.instances_of_pair(pair).iter().enumerate() {
                    let (i, exp_b) = (*i as usize, inverse_difficulty[*i as usize]);
                    let off = right(i, label) - sigmoid(ability[r] * exp_b);
                    *of_ability += weights.get(n) * off * exp_b;
                }
            }
        });
        let squares: f64 = ability.iter().map(|a| spec.ability_square(*a)).sum();
        values.iter().sum::<f64>() - squares
    }
}

#[cfg(test)]
mod tests;
