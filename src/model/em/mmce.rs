//! Each annotator confuses classes in a way of his own, and each instance draws all annotators to confusions of its own.
//!
//! ```text
//! z[i] ~ uniform;   P(y | z[i] = k, i, r) = softmax_y( S[r][k][y] + W[i][k][y] )
//! LL = sum_i ln sum_k 1/C prod over the annotations (r, y) of i of P(y | k, i, r)                          C classes
//! objective = LL - ls/2 sum |S|^2 - lw/2 sum |W|^2
//! ls = strength C^2;   lw = instance_strength ls (annotated instances / annotators)
//! ```
//! 1. T = the shares of the votes; S = W = 0.
//! 2. M: F = sum over annotations and k of T[i][k] ln P(y | k, i, r), minus the two squares. For each annotator, S[r] maximises F
//!    with W as it is; then, for each instance, W[i] with S as it is. With p = P(. | k, i, r), dF/dS[r][k][y'] = sum over the
//!    annotations of r of T[i][k] (1[y' = y] - p[y']) - ls S[r][k][y'], and likewise for W[i].
//! 3. E: T from S and W. 4. Repeat until the objective converges.
//!
//! lw is ls times the mean number of annotations of an annotator over that of an instance. A matrix is softmax(S[r]): the annotator on an instance without confusions of its own. The `difficulty` of an instance is
//! the mean entropy of the rows of softmax(W[i]): ln of the number of labels where annotators err as they do elsewhere, less where
//! the instance draws them to labels, right or wrong. Classes whose T is below 1e-10 are left out of F.
//!
//! D. Zhou, Q. Liu, J. Platt, C. Meek, N. Shah: Regularized Minimax Conditional Entropy for Crowdsourcing. arXiv 1503.07240,
//! 2015 (section 4: multiclass labels; section 6: regularisation).
//!
//! Differs from the authors' Matlab in the stopping value (the objective here, the change of T there), in the tolerance, and in
//! that there is no choice of the strength by cross-validation. The reference ends at 91.67 % on `bluebirds`, 92.38 on `rte`,
//! 83.77 on `dog` and 88.88 on `web`; so does this, but for 88.92 on `web`, where it goes on for longer.
//!
//! It is not meant for small data: where annotators have few annotations of each class, the squares outweigh them, and each
//! iteration moves T towards uniform; a fit that ends there says so. An iteration costs annotations x classes x labels, and its
//! parameters take instances x classes x labels: it is not meant for hundreds of classes.
//!
//! ```
//! use labelmill::model::{Model, em::{Em, Mmce}};
//! use labelmill::testing::tiny;
//!
//! // Everybody agrees on instances 0 to 39; on instance 40, annotator 2 is alone.
//! let rows: Vec<_> = (0..123).map(|n| (n / 3, n % 3, u32::from(n / 3 % 2 == 1 || n == 122))).collect();
//! let fitted = Em(Mmce::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.posterior.row(40)[0] > 0.5 && fitted.posterior.row(1)[1] > 0.9);
//! ```

mod parameters;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kernels::log_domain::e_step;
use super::kernels::{Prior, expected_counts_of};
use super::start::first_start;
use super::{EmModel, EmResult, EmSteps, Objective, StopRule};
use crate::error::Result;
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK, MemoryEstimate, QuestionSizes};
use crate::job_context::{Cancel, JobContext, WarningCode};
use crate::model::confusion::{Cells, Confusion};
use crate::model::fitted::Report;
use crate::model::fitted::fitted_posterior::FittedPosterior;
use crate::model::numerics::{logsumexp, softmax};
use crate::model::posterior::Posterior;
use crate::model::{Capabilities, Spec};
use parameters::{Confusions, maximise, squares};

/// Minimax conditional entropy: confusions of each annotator, and of each instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mmce {
    /// How strongly the confusions of annotators and instances are drawn to none. Raising it makes posteriors less certain; lower
    /// it where they end uniform.
    #[schemars(range(min = 0.0001))]
    pub strength: f64,
    /// How strongly the confusions of instances are drawn to none, relative to those of annotators. Raising it makes instances
    /// alike.
    #[schemars(range(min = 0.0001))]
    pub instance_strength: f64,
    /// The largest number of L-BFGS steps for each annotator and each instance in an M-step.
    #[schemars(range(min = 1))]
    pub max_steps: u32,
    /// The steps for an annotator or instance end when no component of the gradient exceeds this.
    #[schemars(range(min = 0.0))]
    pub gradient_tol: f64,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for Mmce {
    fn default() -> Self {
        let stop = StopRule { max_iter: 50, tol: 1e-7, ..StopRule::default() };
        Self { strength: 0.25, instance_strength: 1.0, max_steps: 25, gradient_tol: 1e-3, stop }
    }
}

impl Spec for Mmce {
    const KIND: &'static str = "mmce";
    const SUMMARY: &'static str =
        "confusions of each annotator, and of each instance, by minimax conditional entropy";
    const SOURCE: &'static str = "Zhou et al. 2015, arXiv 1503.07240";
    const CAPABILITIES: Capabilities = Capabilities { annotator_prior: true, ..Capabilities::EM };
}

/// S and W, and the posteriors of the last E-step.
pub struct Params {
    /// `[annotator, class, label]`
    annotators: Vec<f64>,
    /// `[instance, class, label]`
    instances: Vec<f64>,
    t: Posterior,
    /// ls and lw
    strengths: [f64; 2],
}

/// The data of the paper have at most five classes.
const MANY_CLASSES: usize = 20;

impl EmSteps for Mmce {
    type Params = Params;

    fn params(&self, a: &Annotations) -> Params {
        let Dims { instances, annotators, classes, labels } = a.dims();
        let annotated = (0..instances).filter(|i| !a.pairs_of_instance(*i).is_empty()).count();
        let of_annotators = self.strength * (classes * classes) as f64;
        let ratio = annotated.max(1) as f64 / annotators.max(1) as f64;
        Params {
            annotators: vec![0.0; annotators * classes * labels],
            instances: vec![0.0; instances * classes * labels],
            t: Posterior::zeros(instances, classes),
            strengths: [of_annotators, self.instance_strength * of_annotators * ratio],
        }
    }

    fn start(&self, a: &Annotations, _: u32, params: &mut Params, _: &JobContext) -> Option<f64> {
        params.annotators.fill(0.0);
        params.instances.fill(0.0);
        params.t = first_start(a);
        None
    }

    fn m_step(&self, a: &Annotations, params: &mut Params, cancel: &Cancel) -> Result<()> {
        let size = (a.dims().classes * a.dims().labels).max(1);
        let Params { annotators, instances, t, strengths: [of_annotators, of_instances] } = params;
        let (t, others) = (&*t, instances.as_slice());
        let search = (self.gradient_tol, self.max_steps);
        let blocks = annotators.par_chunks_mut(size).enumerate().with_max_len(1);
        blocks.try_for_each(|(r, own)| {
            maximise(search, own, *of_annotators, cancel, || {
                a.pairs_of_annotator(r).flat_map(|pair| {
                    let (y, weights) = (a.label_of_pair(pair as u32), a.weights_of_pair(pair));
                    a.instances_of_pair(pair).iter().zip(weights.iter()).map(move |(i, weight)| {
                        let i = *i as usize;
                        (&others[i * size..(i + 1) * size], y, weight, t.row(i))
                    })
                })
            })
        })?;
        let others = annotators.as_slice();
        instances.par_chunks_mut(size).enumerate().try_for_each(|(i, own)| {
            maximise(search, own, *of_instances, cancel, || {
                a.triples_of_instance(i).map(|(r, y, weight)| {
                    (&others[r as usize * size..][..size], y, weight, t.row(i))
                })
            })
        })
    }

    fn e_step(&self, a: &Annotations, params: &mut Params) -> Objective {
        let Params { annotators, instances, t, strengths } = params;
        let classes = a.dims().classes;
        let prior = vec![1.0 / classes.max(1) as f64; classes];
        let likelihood = Confusions { annotators, instances, n_labels: a.dims().labels };
        let log_likelihood = e_step(a, Prior::Class(&prior), &likelihood, t);
        let penalty = strengths[0] * squares(annotators) + strengths[1] * squares(instances);
        (log_likelihood - penalty / 2.0).into()
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn caution(&self, a: &Annotations, _: &JobContext) -> Option<String> {
        let n = a.dims().classes;
        (n > MANY_CLASSES).then(|| {
            format!(
                "mmce has a parameter for each two classes of every instance, and here are {n} classes: a step takes long, and \
                 few annotations say little of them; use one_coin or ibcc [{}]",
                WarningCode::NotMeantFor.name()
            )
        })
    }
}

impl EmModel for Mmce {
    fn finish(&self, a: &Annotations, mut params: Params, cancel: &Cancel) -> Result<EmResult> {
        self.m_step(a, &mut params, cancel)?;
        let Dims { classes, labels, .. } = a.dims();
        let (n, size) = (labels.max(1), (classes * labels).max(1));
        let Params { annotators: mut cells, instances, t, .. } = params;
        cells.par_chunks_mut(n).for_each(|row| {
            let logs = row.to_vec();
            softmax(&logs, row);
        });
        let entropy = |logs: &[f64]| {
            let all = logsumexp(logs.iter().copied());
            logs.iter().map(|log| (all - log) * (log - all).exp()).sum::<f64>()
        };
        let difficulty = |(i, w): (usize, &[f64])| {
            let sum: f64 = w.chunks_exact(n).map(entropy).sum();
            if a.pairs_of_instance(i).is_empty() { f64::NAN } else { sum / classes as f64 }
        };
        let rows = instances.par_chunks(size).enumerate().with_min_len(ITEMS_PER_BLOCK);
        let difficulty = rows.map(difficulty).collect();
        let expected_count = expected_counts_of(a, &t);
        let confusion = Confusion { cells: Cells::Dense(cells), expected_count };
        let report = Report {
            skill: confusion.skill(a),
            confusion: Some(confusion),
            instance_parameters: vec![("difficulty".to_owned(), difficulty)],
            ..Report::default()
        };
        Ok((t.into(), report))
    }

    fn doubt(
        &self,
        a: &Annotations,
        posterior: &FittedPosterior,
        job: &JobContext,
    ) -> Option<String> {
        let uniform = 1.0 / a.dims().classes.max(1) as f64;
        let is_judged = |i: &usize| a.has_evidence(*i) && a.trusted_class(*i).is_none();
        let judged: Vec<usize> = (0..a.dims().instances).filter(is_judged).collect();
        let largest = |i: &usize| posterior.row(*i).iter().copied().fold(0.0, f64::max);
        let mean = judged.iter().map(largest).sum::<f64>() / judged.len().max(1) as f64;
        let has_collapsed = mean < uniform + COLLAPSED * (1.0 - uniform);
        (has_collapsed && !judged.is_empty()).then(|| {
            format!(
                "the posteriors are nearly uniform: {} outweighs the few annotations of annotators and instances: lower it, \
                 or use dawid_skene",
                job.model_key("strength")
            )
        })
    }

    /// S, which becomes matrices, and W.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let Dims { instances, annotators, classes, labels } = sizes.dims;
        let bytes = |n: usize, each: usize| n.checked_mul(each)?.checked_mul(size_of::<f64>());
        let size = classes.checked_mul(labels)?;
        let matrices = bytes(annotators, size)?.checked_add(bytes(sizes.pairs, classes)?)?;
        let working = bytes(instances.checked_add(annotators)?, size)?;
        Some(MemoryEstimate { posteriors: bytes(instances, classes)?, matrices, working })
    }
}

/// The share of the way from uniform posteriors to certain ones below which a fit has collapsed.
const COLLAPSED: f64 = 0.1;

#[cfg(test)]
mod tests;
