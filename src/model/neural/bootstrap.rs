//! A classifier that is told a mixture of the vote and of what it thinks itself.
//!
//! ```text
//! soft  loss = -(1/B) sum_i sum_k ( beta t_i[k] + (1 - beta) p_i[k] ) ln p_i[k]
//! hard  the same with p_i replaced by the one-hot vector of its largest entry
//! ```
//! t is the majority vote. In the soft form gradients flow through both p: the second term is an entropy regulariser.
//! With beta = 1 it is the plain classifier on votes.
//!
//! S. Reed, H. Lee, D. Anguelov, C. Szegedy, D. Erhan, A. Rabinovich: Training Deep Neural Networks on Noisy Labels with
//! Bootstrapping. ICLR workshop 2015. arXiv:1412.6596

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::softmax_backward;
use super::{
    BackboneSpec, CrowdNet, Gradient, Judged, Parts, Reduction, Step, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::Evidence;
use crate::model::fitted::{Fitted, best};
use crate::model::vote::MajorityVote;
use crate::model::{Model, Spec};
use crate::run::Run;
use crate::spec::Problems;

/// Soft and hard bootstrapping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SoftBootstrap {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// Whether the classifier's own part is its most probable class instead of its probabilities.
    pub hard: bool,
    /// The part of the vote; left out, 0.95 for soft and 0.8 for hard.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta: Option<f64>,
}

impl Default for SoftBootstrap {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            hard: false,
            beta: None,
        }
    }
}

impl Spec for SoftBootstrap {
    const KIND: &'static str = "soft_bootstrap";
    const SUMMARY: &'static str = "a classifier told a mixture of the vote and its own word";
    const SOURCE: &'static str = "Reed et al. 2015, arXiv:1412.6596";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

impl SoftBootstrap {
    fn beta(&self) -> f64 {
        self.beta.unwrap_or(if self.hard { 0.8 } else { 0.95 })
    }

    /// The mixture of the vote and the classifier's own word.
    fn mixture(&self, vote: &[f64], p: &[f64]) -> Vec<f64> {
        let beta = self.beta();
        let (voted, own) = (best(vote).map(|(k, _)| k), best(p).map(|(k, _)| k));
        let one = |k: usize, at: Option<usize>| f64::from(u8::from(at == Some(k)));
        let own = |k: usize| if self.hard { one(k, own) } else { p[k] };
        (0..p.len()).map(|k| beta * one(k, voted) + (1.0 - beta) * own(k)).collect()
    }
}

impl CrowdNet for SoftBootstrap {
    const REDUCTION: Option<Reduction> = None;
    const TELLS_TARGETS: bool = true;

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn aggregate(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Option<Fitted>> {
        MajorityVote::default().fit(Evidence { described: None, ..evidence }, run).map(Some)
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let n = step.dims.classes;
        let scale = 1.0 / step.batch.len().max(1) as f64;
        let mut loss = 0.0;
        for (b, vote) in step.batch.targets.chunks_exact(n).enumerate() {
            let p = step.out.p(b);
            let log: Vec<f64> = p.iter().map(|p| p.max(f64::MIN_POSITIVE).ln()).collect();
            let mixture = self.mixture(vote, p);
            let d_logits = &mut gradient.out.logits[b * n..(b + 1) * n];
            for k in 0..n {
                loss -= scale * mixture[k] * log[k];
                d_logits[k] += scale * (p[k] - mixture[k]);
            }
            if !self.hard {
                let own = -scale * (1.0 - self.beta());
                let d_p: Vec<f64> = log.iter().map(|l| own * l).collect();
                softmax_backward(p, &d_p, d_logits);
            }
        }
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let n = step.dims.classes;
        let votes = step.batch.targets.chunks_exact(n).enumerate();
        Judged {
            classes: step.out.p.clone(),
            posterior: votes.flat_map(|(b, vote)| self.mixture(vote, step.out.p(b))).collect(),
            likelihood: step.class_likelihood(),
            parameters: Vec::new(),
        }
    }
}
