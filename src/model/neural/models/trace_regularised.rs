//! A classifier and a confusion matrix for each annotator, regularised by the smallest trace.
//!
//! ```text
//! P(y | x, r) = sum_k p[k] pi[r][k][y]            pi[r] = rows of softplus(rho[r]) over their sums
//! loss = (1/B) sum_i sum over annotations (r, y) of i of -ln P(y | x_i, r)  +  lambda mean_r trace(pi[r])
//! ```
//! The trace is added to the loss. Cross-entropy alone determines only the product of the classifier's own confusion
//! matrix and pi; among all such pairs the true one has the smallest mean trace, if on average every label is used more
//! often for its own class than for each other class.
//!
//! On MNIST with pairwise flippers (`benches/mnist.md`) the trace helps most if the matrices have the classifier's
//! learning rate: then cross-entropy alone merges two classes on some crowds, and a larger lambda merges them on fewer.
//! If the matrices' rate is thirty times higher, training finds the matrices with and without the trace, and a large
//! lambda only makes them more uniform.
//!
//! R. Tanno, A. Saeedi, S. Sankaranarayanan, D. C. Alexander, N. Silberman: Learning From Noisy Labels By Regularized
//! Estimation Of Annotator Confusion. CVPR 2019. arXiv:1902.03680, equation 4 and the sample code of its appendix.
//!
//! `known_confusion = true` trains the classifier through the matrices of `source.confusion`, without traces: the upper line
//! of the paper's figures. Otherwise such matrices, or those of gold (`init_from_gold`), are the start.
//!
//! Differs from the sample code in the traces of a step: only those of the batch's annotators are added, each weighted by
//! the annotator's share of annotations in the batch. Over an epoch the sum is the same, and the cost does not grow with
//! the number of annotators. The likelihood is computed in the log domain, where the code clamps it at 1e-10 and then has
//! no gradient. The matrices are frozen in the first fifth of the epochs (`train.optimiser.annotator_delay`) and then
//! learn at the rate 0.1 (`annotator_learning_rate`), or 0.1 (4/m)^1.5 for m > 4 annotations of an instance, where the code trains everything together at one rate. Network and
//! training are labelmill's defaults. `preset = "paper"` trains everything at one rate from the first step on, with the
//! paper's lambda; the paper gives neither epochs nor rate, and its network is for images: those of the preset are the ones
//! that other papers have for LabelMe.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::Dims;
use crate::model::neural::numerics::{
    MIN_PROBABILITY, RowStochastic, at_least, diagonal, log_softmax, softmax, trace,
};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::given_matrices::parameters;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::train_spec::Reduction;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::{Capabilities, FeatureUse};

/// Trace-regularised confusion matrices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceRegularised {
    /// The weight of the traces. A larger weight gives less reliable annotators; 0 leaves the traces out.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
    /// Whether the matrices are known: those of `source.confusion`, which training leaves as they are. The traces are left
    /// out then.
    pub known_confusion: bool,
}

impl Default for TraceRegularised {
    fn default() -> Self {
        Self { lambda: 0.01, known_confusion: false }
    }
}

/// The parameters of a matrix near the identity: 1 on the diagonal, -5 elsewhere, before the softplus.
pub(crate) fn near_identity(dims: Dims) -> Vec<f32> {
    diagonal(dims.classes, dims.labels, 1.0, -5.0)
}

/// The matrices `[annotator, class, label]` with the parameters `rho`.
pub(crate) fn matrices(rho: &[f64], dims: Dims) -> Vec<f64> {
    let mut pi = vec![0.0; rho.len()];
    RowStochastic::Softplus.forward(rho, dims.labels, &mut pi);
    pi
}

/// Confusion matrices between the classifier and the noisy labels of a batch, in the log domain.
///
/// # Why
/// A class probability or a cell of a matrix may underflow to 0 while its logarithm is an ordinary number. The
/// likelihood of a label is a sum of products of the two, and its derivatives divide by it.
pub(crate) struct NoisyChannel {
    classes: usize,
    labels: usize,
    /// P(class) by the classifier, `[row, class]`, and its logarithm.
    p: Vec<f64>,
    log_p: Vec<f64>,
    /// `[matrix, class, label]`, and its logarithm.
    pi: Vec<f64>,
    log_pi: Vec<f64>,
    /// The derivatives with respect to `log_pi`.
    d_log_pi: Vec<f64>,
    joint: Vec<f64>,
    posterior: Vec<f64>,
}

impl NoisyChannel {
    /// The channel with the matrices of the parameters `rho` and the classifier's outputs for a batch.
    pub(crate) fn new(rho: &[f64], context: &BatchContext<'_>) -> Self {
        let Dims { classes, labels, .. } = context.dims;
        let mut log_p = vec![0.0; context.out.logits.len()];
        for (logits, log_p) in
            context.out.logits.chunks_exact(classes).zip(log_p.chunks_exact_mut(classes))
        {
            log_softmax(logits, log_p);
        }
        // A trusted class is certain, whatever the classifier predicts.
        for (log_p, class) in log_p.chunks_exact_mut(classes).zip(&context.batch.trusted) {
            if let Some(class) = class {
                log_p.fill(f64::NEG_INFINITY);
                log_p[*class as usize] = 0.0;
            }
        }
        let mut log_pi = vec![0.0; rho.len()];
        RowStochastic::Softplus.log_forward(rho, labels, &mut log_pi);
        Self {
            classes,
            labels,
            p: log_p.iter().map(|log| log.exp()).collect(),
            log_p,
            pi: log_pi.iter().map(|log| log.exp()).collect(),
            d_log_pi: vec![0.0; log_pi.len()],
            log_pi,
            joint: vec![0.0; classes],
            posterior: vec![0.0; classes],
        }
    }

    /// `-weight ln P(label | row b)`, where `cell` is the index of the label's cell in the first row of a matrix; adds
    /// the derivatives with respect to the row's logits to `d_logits`.
    pub(crate) fn loss(&mut self, b: usize, cell: usize, weight: f64, d_logits: &mut [f64]) -> f64 {
        let row = b * self.classes..(b + 1) * self.classes;
        let column = self.log_pi[cell..].iter().step_by(self.labels);
        let terms = self.log_p[row.clone()].iter().zip(column);
        self.joint.iter_mut().zip(terms).for_each(|(joint, (p, pi))| *joint = p + pi);
        // ln P(label) = logsumexp_k(ln p[k] + ln pi[k][label]); its softmax is P(class | row, label).
        let log_likelihood = softmax(&self.joint, &mut self.posterior);
        for (k, (posterior, p)) in self.posterior.iter().zip(&self.p[row]).enumerate() {
            d_logits[k] += weight * (p - posterior);
            self.d_log_pi[cell + k * self.labels] -= weight * posterior;
        }
        -weight * log_likelihood
    }

    /// `weight` times the trace of the matrix in these cells.
    pub(crate) fn trace(&mut self, cells: Range<usize>, weight: f64) -> f64 {
        let diagonal = cells.clone().step_by(self.labels + 1).take(self.classes);
        diagonal.for_each(|cell| self.d_log_pi[cell] += weight * self.pi[cell]);
        weight * trace(&self.pi[cells], self.labels)
    }

    /// Adds the derivatives with respect to the parameters to `d_rho`.
    pub(crate) fn backward(&self, rho: &[f64], d_rho: &mut [f64]) {
        let Self { pi, d_log_pi, labels, .. } = self;
        RowStochastic::Softplus.log_backward(rho, pi, d_log_pi, *labels, d_rho);
    }
}

impl CrowdNet for TraceRegularised {
    const KIND: &'static str = "trace_regularised";
    const SUMMARY: &'static str =
        "a classifier and a confusion matrix for each annotator, of smallest trace";
    const SOURCE: &'static str = "Tanno et al. 2019, arXiv:1902.03680";

    const STARTS_AT_MATRICES: bool = true;

    /// The sample code's training of all parameters together; the paper gives neither its rate nor its epochs.
    fn paper() -> (NetworkSpec, Self) {
        (paper::network(30, None, 1e-3), Self::default())
    }

    fn needs(&self, of_kind: Capabilities) -> Capabilities {
        let confusion = if self.known_confusion { FeatureUse::Needed } else { of_kind.confusion };
        Capabilities { confusion, ..of_kind }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let Some(given) = &task.evidence.annotations.given.confusion else {
            if self.known_confusion {
                return Err(Error::data("there are no confusion matrices")
                    .at("source.confusion")
                    .found("nothing, with known_confusion = true")
                    .help("give the table of this question, or leave known_confusion out"));
            }
            return Ok(vec![ParamTable::each("rho", annotators, &near_identity(task.dims))]);
        };
        // The softplus of ln(e^p - 1) is p.
        let rho = parameters(given, annotators, |p| {
            let p = if self.known_confusion { p } else { given.soften(p) };
            at_least(p, MIN_PROBABILITY).exp_m1().ln()
        });
        let table = ParamTable::drawn("rho", classes * labels, rho);
        Ok(vec![if self.known_confusion { table.fixed() } else { table }])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let rho: Vec<f64> =
            annotator_params.tables[0].values.iter().map(|v| f64::from(*v)).collect();
        let confusion = matrices(&rho, task.dims);
        let mean = mean_matrix(&confusion, task.dims);
        let not_dominant = not_dominant(&mean, task.dims).filter(|_| !self.known_confusion);
        AnnotatorReport {
            warnings: not_dominant.into_iter().collect(),
            confusion: Some(confusion),
            common: Some(mean),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for TraceRegularised {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanInstance);
    const RATE_POWER: f64 = 1.5;

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let Dims { annotators, classes, labels, .. } = context.dims;
        let rho = &context.gathered[0];
        let mut channel = NoisyChannel::new(rho, context);
        let scale = context.scale();
        let mut loss = 0.0;
        for (b, annotation) in context.annotations() {
            let first = annotation.annotator as usize * classes * labels;
            let cell = first + annotation.label as usize;
            let d_logits = &mut gradient.out.logits[b * classes..(b + 1) * classes];
            loss += channel.loss(b, cell, scale * annotation.weight, d_logits);
        }
        let lambda = if self.known_confusion { 0.0 } else { self.lambda };
        let each = lambda / annotators.max(1) as f64;
        let cells = classes * labels;
        for (n, share) in context.batch.share.iter().enumerate() {
            loss += channel.trace(n * cells..(n + 1) * cells, each * share);
        }
        channel.backward(rho, &mut gradient.tables[0]);
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        context.predict_with_matrices(&matrices(&context.gathered[0], context.dims))
    }
}

/// The mean of all annotators' matrices.
fn mean_matrix(confusion: &[f64], dims: Dims) -> Vec<f64> {
    let mut mean = vec![0.0; dims.classes * dims.labels];
    for cells in confusion.chunks_exact(mean.len()) {
        mean.iter_mut().zip(cells).for_each(|(m, c)| *m += c / dims.annotators as f64);
    }
    mean
}

/// A warning if the mean matrix violates the condition under which the pair of the smallest trace is the true one.
fn not_dominant(mean: &[f64], dims: Dims) -> Option<String> {
    let Dims { classes, labels, .. } = dims;
    let outnumbered = (0..classes)
        .filter(|l| (0..classes).any(|k| k != *l && mean[k * labels + l] >= mean[l * labels + l]));
    let n = outnumbered.count();
    (n > 0).then(|| {
        format!(
            "on average, {n} of {classes} labels are used for another class at least as often as for their own: the \
             confusion matrices cannot be distinguished from the classifier's own mistakes; add gold, or compare with \
             majority_vote"
        )
    })
}
