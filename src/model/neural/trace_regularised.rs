//! Classifier and confusion matrices together, the matrices kept as unreliable as the data allow.
//!
//! ```text
//! P(y | x, r) = sum_k p[k] pi[r][k][y]            pi[r] = rows of softplus(rho[r]) over their sums
//! loss = (1/B) sum_i sum over (r, y) said of i of -ln P(y | x_i, r)  +  lambda mean_r trace(pi[r])
//! ```
//! The trace is added to what is minimised. Cross-entropy alone fixes only the product of the classifier's own confusion
//! and pi; among all such pairs the true one has the smallest mean trace, if on average every label is used more often
//! for its own class than for each other one.
//!
//! On digits labelled by flippers (`benches/mnist.md`) it helps most where the matrices learn no faster than the
//! classifier: there cross-entropy alone takes two classes for one on some crowds, and a larger lambda on fewer. Where
//! they learn thirty times faster both find the matrices, and a large lambda only blurs them.
//!
//! R. Tanno, A. Saeedi, S. Sankaranarayanan, D. C. Alexander, N. Silberman: Learning From Noisy Labels By Regularized
//! Estimation Of Annotator Confusion. CVPR 2019. arXiv:1902.03680, equation 4 and the sample code of its appendix.
//!
//! Differs from the sample code in that a step adds the traces of its own annotators only, each by its share of what it
//! said: over an epoch that is the same sum, and its cost does not grow with the crowd.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::{Rows, diagonal, negative_log, trace};
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Judged, Parts, Reduction, Step, Table,
    Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::Dims;
use crate::model::Spec;
use crate::spec::Problems;

/// Trace-regularised confusion matrices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceRegularised {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// The weight of the traces. Raising it makes annotators look less reliable; 0 leaves them out.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
}

impl Default for TraceRegularised {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            lambda: 0.01,
        }
    }
}

impl Spec for TraceRegularised {
    const KIND: &'static str = "trace_regularised";
    const SUMMARY: &'static str =
        "a classifier and a confusion matrix for each annotator, of smallest trace";
    const SOURCE: &'static str = "Tanno et al. 2019, arXiv:1902.03680";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

/// The parameters of a matrix near the identity: softplus(1) on the diagonal, softplus(-5) beside it.
pub(super) fn near_identity(dims: Dims) -> Vec<f32> {
    diagonal(dims.classes, dims.labels, 1.0, -5.0)
}

/// Matrices `[who, class, label]` from their parameters.
pub(super) fn matrices(rho: &[f64], dims: Dims) -> Vec<f64> {
    let mut pi = vec![0.0; rho.len()];
    Rows::Softplus.forward(rho, dims.labels, &mut pi);
    pi
}

impl CrowdNet for TraceRegularised {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanInstance);

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        Ok(vec![Table::each("rho", task.dims.annotators, &near_identity(task.dims))])
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let Dims { annotators, classes, labels, .. } = step.dims;
        let rho = &step.gathered[0];
        let pi = matrices(rho, step.dims);
        let mut d_pi = vec![0.0; pi.len()];
        let scale = self.scale(step);
        let mut loss = 0.0;
        for (b, said) in step.said() {
            let (p, d_p) = (step.out.p(b), &mut gradient.out.p[b * classes..(b + 1) * classes]);
            let first = said.who as usize * classes * labels + said.label as usize;
            let likelihood: f64 = (0..classes).map(|k| p[k] * pi[first + k * labels]).sum();
            let (term, slope) = negative_log(likelihood);
            let weight = scale * said.weight;
            loss += weight * term;
            for k in 0..classes {
                d_p[k] += weight * slope * pi[first + k * labels];
                d_pi[first + k * labels] += weight * slope * p[k];
            }
        }
        let each = self.lambda / annotators.max(1) as f64;
        let cells = classes * labels;
        for ((pi, d_pi), share) in
            pi.chunks(cells).zip(d_pi.chunks_mut(cells)).zip(&step.batch.share)
        {
            loss += each * share * trace(pi, labels);
            d_pi.iter_mut().step_by(labels + 1).for_each(|d| *d += each * share);
        }
        Rows::Softplus.backward(rho, &pi, &d_pi, labels, &mut gradient.tables[0]);
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        step.judged_by_matrices(&matrices(&step.gathered[0], step.dims))
    }

    fn report(&self, task: &Task<'_>, crowd: &Crowd) -> CrowdReport {
        let rho: Vec<f64> = crowd.tables[0].values.iter().map(|v| f64::from(*v)).collect();
        let confusion = matrices(&rho, task.dims);
        let mean = mean_matrix(&confusion, task.dims);
        CrowdReport {
            warnings: not_dominant(&mean, task.dims).into_iter().collect(),
            confusion: Some(confusion),
            common: Some(mean),
            ..CrowdReport::default()
        }
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

/// A warning where the mean matrix does not meet the condition under which the smallest trace is the true one.
fn not_dominant(mean: &[f64], dims: Dims) -> Option<String> {
    let Dims { classes, labels, .. } = dims;
    let outnumbered = (0..classes)
        .filter(|l| (0..classes).any(|k| k != *l && mean[k * labels + l] >= mean[l * labels + l]));
    let n = outnumbered.count();
    (n > 0).then(|| {
        format!(
            "on average, {n} of {classes} labels are used for another class at least as often as for their own: the \
             confusion matrices cannot be told from the classifier's own mistakes; add gold, or compare with \
             majority_vote"
        )
    })
}
