//! One confusion matrix, shared by all annotators, between the classifier and the noisy labels.
//!
//! ```text
//! P(y | x) = sum_k p[k] Q[k][y]      loss = (1/B) sum -ln P(y | x)  +  lambda trace(Q)
//! ```
//! S. Sukhbaatar, J. Bruna, M. Paluri, L. Bourdev, R. Fergus: Training Convolutional Networks with Noisy Labels. ICLR
//! workshop 2015. arXiv:1406.2080. With the trace of Tanno et al. 2019 (their baseline "Single CM").
//!
//! The label is the winner of the majority vote: of tied classes, the lowest. In the posterior, tied classes share the
//! vote: P(class k) is proportional to p[k] times the mean of Q[k] over the tied classes, and is p[k] where all classes
//! are tied.
//!
//! Differs from the original in Q's parameters (softplus rows, as in `trace_regularised`), in the regulariser, which
//! was weight decay on Q, and in Q's learning rate of 0.1 (`train.optimiser.annotator_learning_rate`), where the
//! original uses the classifier's. As in the original, Q stays at the identity at first: for a fifth of the epochs,
//! unless `identity_epochs` or `annotator_delay` gives another number. Network and training are labelmill's defaults.
//! `preset = "paper"` has the lambda of Tanno et al.'s baseline and one rate for Q and classifier; epochs, rate and network
//! are those that other papers have for LabelMe, since this one gives none, and Q's epochs at the identity are a fifth.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, Result};
use crate::frame::{Dims, Evidence};
use crate::job_context::JobContext;
use crate::model::Model;
use crate::model::fitted::Fitted;
use crate::model::neural::data::batch::BatchAnnotation;
use crate::model::neural::models::trace_regularised::{NoisyChannel, matrices, near_identity};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::train_spec::{BatchBy, Reduction, TrainSpec};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::posterior::{best, hardened};
use crate::model::vote::MajorityVote;
use crate::spec::Problems;

/// The source of the noisy labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoisyLabels {
    /// The majority vote of each instance.
    #[default]
    Majority,
    /// Every annotation.
    Annotations,
}

/// One confusion matrix shared by all annotators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SingleConfusion {
    /// The source of the noisy labels.
    pub labels: NoisyLabels,
    /// The weight of the trace.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
    /// Epochs at the start in which the matrix is frozen; left out, the optimiser's `annotator_delay`, or a fifth of all.
    pub identity_epochs: Option<u32>,
}

impl Default for SingleConfusion {
    fn default() -> Self {
        Self { labels: NoisyLabels::Majority, lambda: 0.01, identity_epochs: None }
    }
}

impl SingleConfusion {
    /// (row, label, weight) of every noisy label.
    fn noisy(&self, context: &BatchContext<'_>) -> Vec<(usize, usize, f64)> {
        match self.labels {
            NoisyLabels::Annotations => context
                .annotations()
                .map(|(b, annotation)| (b, annotation.label as usize, annotation.weight))
                .collect(),
            NoisyLabels::Majority => {
                // The target of a trusted row is its class, not a noisy label.
                let untrusted = |b: &usize| context.batch.trusted[*b].is_none();
                let vote = |b: usize| Some((b, Self::vote(context, b)?, 1.0));
                (0..context.batch.len()).filter(untrusted).filter_map(vote).collect()
            }
        }
    }

    /// The targets of row `b`.
    fn targets<'a>(context: &BatchContext<'a>, b: usize) -> Option<&'a [f64]> {
        let classes = context.dims.classes;
        context.batch.targets.get(b * classes..(b + 1) * classes)
    }

    /// The winner of row `b`'s vote: of tied classes, the lowest.
    fn vote(context: &BatchContext<'_>, b: usize) -> Option<usize> {
        best(Self::targets(context, b)?).map(|(k, _)| k)
    }

    /// The posteriors, `[row, class]`, where the matrix `q` models one vote per instance, not each annotation.
    fn posterior_of_votes(context: &BatchContext<'_>, q: &[f64]) -> Vec<f64> {
        let Dims { classes, labels, .. } = context.dims;
        let mut posteriors = context.out.p.clone();
        for (b, posterior) in posteriors.chunks_exact_mut(classes).enumerate() {
            let Some(vote) = Self::shared_vote(context, b) else { continue };
            for (p, q) in posterior.iter_mut().zip(q.chunks_exact(labels)) {
                *p *= q.iter().zip(&vote).map(|(q, vote)| q * vote).sum::<f64>();
            }
            let sum: f64 = posterior.iter().sum();
            posterior.iter_mut().for_each(|p| *p /= sum);
        }
        posteriors
    }

    /// The vote of row `b`, which tied classes share; `None` where all classes are tied, as without a vote for a class.
    fn shared_vote(context: &BatchContext<'_>, b: usize) -> Option<Vec<f64>> {
        let vote = hardened(Self::targets(context, b)?);
        vote.iter().any(|share| *share != vote[0]).then_some(vote)
    }
}

impl CrowdNet for SingleConfusion {
    const KIND: &'static str = "single_confusion";
    const SUMMARY: &'static str = "a classifier and one confusion matrix shared by all annotators";
    const SOURCE: &'static str = "Sukhbaatar et al. 2015, arXiv:1406.2080; Tanno et al. 2019";

    /// The baseline of Tanno et al. 2019, after epochs with the identity as in Sukhbaatar et al. 2015, who give no number of
    /// them.
    fn paper() -> (NetworkSpec, Self) {
        let model = Self { identity_epochs: Some(6), ..Self::default() };
        (paper::network(30, None, 1e-3), model)
    }

    /// A vote is no sum over annotations: it has one loss, however many annotators gave it.
    fn check(&self, train: &TrainSpec, location: &str, problems: &mut Problems) {
        if self.labels == NoisyLabels::Annotations {
            return;
        }
        let mut refuse = |key: &str, found: &str| {
            problems.push(
                Problem::new("the majority vote is one label for each instance")
                    .at(format!("{location}.train.{key}"))
                    .found(found)
                    .help(format!("leave {key} out, or set labels = \"annotations\"")),
            );
        };
        if train.batch_by == BatchBy::Annotation {
            refuse("batch_by", "\"annotation\"");
        }
        if train.reduction == Some(Reduction::MeanAnnotation) {
            refuse("reduction", "\"mean_annotation\"");
        }
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        match self.labels {
            NoisyLabels::Annotations => Ok(None),
            NoisyLabels::Majority => MajorityVote::default().fit(evidence, job).map(Some),
        }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        Ok(vec![ParamTable::of_model("rho", near_identity(task.dims))])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        AnnotatorReport {
            common: Some(matrices(&annotator_params.tables[0].row(0), task.dims)),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for SingleConfusion {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanInstance);

    /// A vote has the weight 1.
    fn weighs_annotations(&self) -> bool {
        self.labels == NoisyLabels::Annotations
    }

    fn annotator_delay(&self, train: &TrainSpec, epochs: u32) -> u32 {
        let delay = self.identity_epochs.or(train.optimiser.annotator_delay);
        delay.unwrap_or(epochs / 5)
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let classes = context.dims.classes;
        let rho = &context.gathered[0];
        let mut channel = NoisyChannel::new(rho, context);
        let scale = context.scale();
        let mut loss = channel.trace(0..rho.len(), self.lambda);
        for (b, label, weight) in self.noisy(context) {
            let d_logits = &mut gradient.out.logits[b * classes..(b + 1) * classes];
            loss += channel.loss(b, label, scale * weight, d_logits);
        }
        channel.backward(rho, &mut gradient.tables[0]);
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let labels = context.dims.labels;
        let q = matrices(&context.gathered[0], context.dims);
        let cell = |_: usize, annotation: &BatchAnnotation, k: usize| {
            q[k * labels + annotation.label as usize]
        };
        let posterior = match self.labels {
            NoisyLabels::Annotations => context.posterior_by_bayes(cell),
            NoisyLabels::Majority => Self::posterior_of_votes(context, &q),
        };
        let (classes, likelihood) = (context.out.p.clone(), context.likelihood_by(cell));
        BatchPrediction { classes, posterior, likelihood, parameters: Vec::new() }
    }
}
