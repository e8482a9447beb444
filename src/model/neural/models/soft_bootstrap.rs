//! A classifier trained on a mixture of the majority vote and its own prediction.
//!
//! ```text
//! soft  loss = -(1/B) sum_i sum_k ( beta t_i[k] + (1 - beta) p_i[k] ) ln p_i[k]
//! hard  the same with p_i replaced by the one-hot vector of its largest entry
//! ```
//! t is one-hot for the winner of the majority vote: of tied classes, the lowest. In the soft form gradients flow through
//! both p: the second term is an entropy regulariser. With beta = 1 the loss is the plain cross-entropy with the votes;
//! an instance with a trusted class has beta = 1.
//!
//! The posterior is the target of the loss, except that tied classes share t equally: a tied vote does not become a
//! decision for the lowest class, and the classifier decides between the tied classes.
//!
//! S. Reed, H. Lee, D. Anguelov, C. Szegedy, D. Erhan, A. Rabinovich: Training Deep Neural Networks on Noisy Labels with
//! Bootstrapping. ICLR workshop 2015. arXiv:1412.6596
//!
//! Differs from the paper in the source of t (the paper has a single noisy label, without ties), and in network and
//! training, which are labelmill's defaults. `preset = "paper"` has the settings of the baselines of Li et al. 2022 for
//! LabelMe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::model::neural::numerics::{at_least, softmax_backward};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::train_spec::Reduction;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::posterior::{best, hardened};

/// Soft and hard bootstrapping.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SoftBootstrap {
    /// Whether the target holds the classifier's most probable class instead of its probabilities.
    pub hard: bool,
    /// The weight of the vote in the target; left out, 0.95 for soft and 0.8 for hard.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta: Option<f64>,
}

impl SoftBootstrap {
    fn beta(&self) -> f64 {
        self.beta.unwrap_or(if self.hard { 0.8 } else { 0.95 })
    }

    /// The weight of the vote in the target of row `b`: one if its class is trusted.
    fn beta_of(&self, context: &BatchContext<'_>, b: usize) -> f64 {
        if context.batch.trusted[b].is_some() { 1.0 } else { self.beta() }
    }

    /// The mixture of `beta` times the vote and the classifier's prediction.
    fn mixture(&self, beta: f64, vote: &[f64], p: &[f64]) -> Vec<f64> {
        let own = if self.hard { one_hot(p) } else { p.to_vec() };
        vote.iter().zip(own).map(|(t, own)| beta * t + (1.0 - beta) * own).collect()
    }
}

/// One for the largest entry, of equal ones the first, and zero for all others.
fn one_hot(row: &[f64]) -> Vec<f64> {
    let largest = best(row).map(|(k, _)| k);
    (0..row.len()).map(|k| f64::from(u8::from(largest == Some(k)))).collect()
}

impl CrowdNet for SoftBootstrap {
    const KIND: &'static str = "soft_bootstrap";
    const SUMMARY: &'static str =
        "a classifier trained on a mixture of the vote and its own prediction";
    const SOURCE: &'static str = "Reed et al. 2015, arXiv:1412.6596";

    /// The paper's betas, and the training settings of the baselines of Li et al. 2022 for LabelMe, since the paper has
    /// no annotators.
    fn paper() -> (NetworkSpec, Self) {
        (paper::classifier(30, Some(128), 1e-4), Self::default())
    }
}

impl TrainingObjective for SoftBootstrap {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let n = context.dims.classes;
        let scale = 1.0 / context.batch.len().max(1) as f64;
        let mut loss = 0.0;
        for (b, vote) in context.batch.targets.chunks_exact(n).enumerate() {
            let p = context.out.p(b);
            let log: Vec<f64> = p.iter().map(|p| at_least(*p, f64::MIN_POSITIVE).ln()).collect();
            let beta = self.beta_of(context, b);
            let mixture = self.mixture(beta, &one_hot(vote), p);
            let d_logits = &mut gradient.out.logits[b * n..(b + 1) * n];
            for k in 0..n {
                loss -= scale * mixture[k] * log[k];
                d_logits[k] += scale * (p[k] - mixture[k]);
            }
            if !self.hard {
                let own = -scale * (1.0 - beta);
                let d_p: Vec<f64> = log.iter().map(|l| own * l).collect();
                softmax_backward(p, &d_p, d_logits);
            }
        }
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let n = context.dims.classes;
        let votes = context.batch.targets.chunks_exact(n).enumerate();
        let posterior = votes.flat_map(|(b, vote)| {
            self.mixture(self.beta_of(context, b), &hardened(vote), context.out.p(b))
        });
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: posterior.collect(),
            likelihood: context.class_likelihood(),
            parameters: Vec::new(),
        }
    }
}
