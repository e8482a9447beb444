//! One confusion matrix for everybody, between the classifier and what was said.
//!
//! ```text
//! P(y | x) = sum_k p[k] Q[k][y]      loss = (1/B) sum -ln P(y | x)  +  lambda trace(Q)
//! ```
//! S. Sukhbaatar, J. Bruna, M. Paluri, L. Bourdev, R. Fergus: Training Convolutional Networks with Noisy Labels. ICLR
//! workshop 2015. arXiv:1406.2080. With the trace of Tanno et al. 2019 (their baseline "Single CM").
//!
//! Differs from the original in Q's parameters (softplus rows, as in `trace_regularised`) and in the regulariser, which
//! was weight decay on Q.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::{Rows, negative_log, trace};
use super::trace_regularised::{matrices, near_identity};
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Judged, Parts, Reduction, Step, Table,
    Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::{Dims, Evidence};
use crate::model::fitted::{Fitted, best};
use crate::model::vote::MajorityVote;
use crate::model::{Model, Spec};
use crate::run::Run;
use crate::spec::Problems;

/// What the noisy labels are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoisyLabels {
    /// The majority vote of each instance.
    #[default]
    Majority,
    /// Every annotation.
    Annotations,
}

/// One confusion matrix for everybody.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SingleConfusion {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// What the noisy labels are.
    pub labels: NoisyLabels,
    /// The weight of the trace.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
    /// Epochs at the start in which the matrix is kept as it begins; left out, those of the optimiser's
    /// `annotator_delay`, or a fifth of all.
    pub identity_epochs: Option<u32>,
}

impl Default for SingleConfusion {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            labels: NoisyLabels::Majority,
            lambda: 0.01,
            identity_epochs: None,
        }
    }
}

impl Spec for SingleConfusion {
    const KIND: &'static str = "single_confusion";
    const SUMMARY: &'static str = "a classifier and one confusion matrix for everybody";
    const SOURCE: &'static str = "Sukhbaatar et al. 2015, arXiv:1406.2080; Tanno et al. 2019";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

impl SingleConfusion {
    /// (row, label, weight) of every noisy label.
    fn noisy(&self, step: &Step<'_>) -> Vec<(usize, usize, f64)> {
        match self.labels {
            NoisyLabels::Annotations => {
                step.said().map(|(b, said)| (b, said.label as usize, said.weight)).collect()
            }
            NoisyLabels::Majority => {
                // The target of a trusted row is its class, which is no noisy label.
                let untold = |b: &usize| step.batch.trusted[*b].is_none();
                let vote = |b: usize| Some((b, Self::vote(step, b)?, 1.0));
                (0..step.batch.len()).filter(untold).filter_map(vote).collect()
            }
        }
    }

    fn vote(step: &Step<'_>, b: usize) -> Option<usize> {
        let classes = step.dims.classes;
        best(step.batch.targets.get(b * classes..(b + 1) * classes)?).map(|(k, _)| k)
    }
}

impl CrowdNet for SingleConfusion {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanInstance);

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn aggregate(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Option<Fitted>> {
        match self.labels {
            NoisyLabels::Annotations => Ok(None),
            NoisyLabels::Majority => {
                MajorityVote::default().fit(Evidence { described: None, ..evidence }, run).map(Some)
            }
        }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        Ok(vec![Table::shared("rho", near_identity(task.dims))])
    }

    fn annotator_delay(&self, epochs: u32) -> u32 {
        let delay = self.identity_epochs.or(self.train.optimiser.annotator_delay);
        delay.unwrap_or(epochs / 5)
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let (classes, labels) = (step.dims.classes, step.dims.labels);
        let rho = &step.gathered[0];
        let q = matrices(rho, step.dims);
        let mut d_q = vec![0.0; q.len()];
        let scale = self.scale(step);
        let mut loss = self.lambda * trace(&q, labels);
        d_q.iter_mut().step_by(labels + 1).for_each(|d| *d += self.lambda);
        for (b, label, weight) in self.noisy(step) {
            let (p, d_p) = (step.out.p(b), &mut gradient.out.p[b * classes..(b + 1) * classes]);
            let likelihood: f64 = (0..classes).map(|k| p[k] * q[k * labels + label]).sum();
            let (term, slope) = negative_log(likelihood);
            loss += scale * weight * term;
            for k in 0..classes {
                d_p[k] += scale * weight * slope * q[k * labels + label];
                d_q[k * labels + label] += scale * weight * slope * p[k];
            }
        }
        Rows::Softplus.backward(rho, &q, &d_q, labels, &mut gradient.tables[0]);
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let Dims { classes, labels, .. } = step.dims;
        let q = matrices(&step.gathered[0], step.dims);
        let mut judged = step.judged_by_matrices(&q.repeat(step.batch.annotators.len().max(1)));
        if self.labels == NoisyLabels::Majority {
            // The matrix is that of one vote, not of each annotation.
            for (b, posterior) in judged.posterior.chunks_exact_mut(classes).enumerate() {
                posterior.copy_from_slice(step.out.p(b));
                let Some(vote) = Self::vote(step, b) else { continue };
                posterior.iter_mut().enumerate().for_each(|(k, p)| *p *= q[k * labels + vote]);
                let sum: f64 = posterior.iter().sum();
                posterior.iter_mut().for_each(|p| *p /= sum);
            }
        }
        judged
    }

    fn report(&self, task: &Task<'_>, crowd: &Crowd) -> CrowdReport {
        CrowdReport {
            common: Some(matrices(&crowd.tables[0].row(0), task.dims)),
            ..CrowdReport::default()
        }
    }
}
