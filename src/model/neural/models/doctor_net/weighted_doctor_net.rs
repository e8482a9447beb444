//! One head for each annotator on shared features, and a learned weight for each head.
//!
//! ```text
//! phase 1   trains the heads, as in `doctor_net`
//! phase 2   w = softmax(a) over the annotators who did not label x;  target t = the shares of x's labels
//!           loss = (1/B) sum_i -sum_l t_i[l] ln sum_r w[r] p[r](x_i)[l];  only a is trained
//! prediction = sum_r softmax(a)[r] p[r](x)
//! ```
//! With `weights_by = "instance"` a = V phi(x) + c depends on the instance (IWDN), through a narrow layer if
//! `bottleneck` is set (the bottlenecked form, MBDN in other code).
//!
//! M. Guan, V. Gulshan, A. Dai, G. Hinton: Who Said What: Modeling Individual Labelers Improves Classification. AAAI
//! 2018. arXiv:1703.08774
//!
//! If all annotators labelled x, phase 2 uses the heads of all annotators. It trains neither network nor heads: every
//! head's probabilities of the labels of x are computed once, if an eighth of the run's memory holds them.
//!
//! Differs from the unofficial public code, which weights without a softmax and learns from the majority vote; and in
//! network and training, which are labelmill's defaults. `preset = "paper"` has the epochs, batches and rates of that
//! code, and the network of `doctor_net`'s preset.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::head_weights::{BlockGradient, HeadWeights, TABLES, WEIGHTS, WeightsBy};
use crate::error::{Problem, Result};
use crate::frame::Dims;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::models::doctor_net::{
    by_row_block, each_head, heads, heads_likelihood, heads_loss, predict_mean,
};
use crate::model::neural::net::heads::Heads;
use crate::model::neural::numerics::{at_least, softmax};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase, sequential};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::TrainState;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::spec::Problems;

/// Weighted doctor net.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WeightedDoctorNet {
    /// The variables on which the weights of the heads depend.
    pub weights_by: WeightsBy,
    /// The width of a linear layer between an instance's last hidden layer and its weights (`weights_by = "instance"`);
    /// left out, there is no such layer.
    #[schemars(range(min = 1))]
    pub bottleneck: Option<usize>,
    /// Epochs that train the weights, after those of the heads.
    #[schemars(range(min = 1))]
    pub weight_epochs: u32,
    /// The learning rate of the weights.
    #[schemars(range(min = 0.0))]
    pub weight_learning_rate: f64,
}

impl Default for WeightedDoctorNet {
    fn default() -> Self {
        Self {
            weights_by: WeightsBy::Annotator,
            bottleneck: None,
            weight_epochs: 10,
            weight_learning_rate: 0.03,
        }
    }
}

/// The name of phase 2.
pub(crate) const WEIGHTS_PHASE: &str = "weights";

impl WeightedDoctorNet {
    fn head_weights(&self) -> HeadWeights {
        HeadWeights { by: self.weights_by, bottleneck: self.bottleneck }
    }

    /// The loss of phase 2.
    fn weights_loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
        let (form, annotators) = (self.head_weights(), context.dims.annotators);
        let constants = &context.out.constants;
        let blocks: Vec<(f64, BlockGradient)> = by_row_block(context.batch.len(), |rows| {
            let first = rows.start;
            let computed =
                constants.is_empty().then(|| target_probabilities(context, rows.clone()));
            let (mut loss, mut block) = (0.0, form.block(annotators));
            for b in rows {
                let p: &[f64] = match &computed {
                    Some(computed) => &computed[b - first],
                    None => &constants[b],
                };
                let mut row = form.logits(context.gathered, annotators, context.out.hidden(b));
                let (of_row, d_logits) =
                    weights_loss_of_row(context, b, p, &std::mem::take(&mut row.logits));
                loss += of_row;
                block.push(row, d_logits);
            }
            (loss, block)
        });
        let (losses, blocks): (Vec<f64>, Vec<BlockGradient>) = blocks.into_iter().unzip();
        form.backward(context.gathered, &blocks, &mut gradient.tables);
        losses.iter().sum()
    }
}

/// The shares of the labels among the weighted annotations of row `b`, as (label, share), ascending; empty where the
/// annotations have no weight.
fn target(context: &BatchContext<'_>, b: usize) -> Vec<(usize, f64)> {
    let annotations = context.batch.annotations_of_instance(b);
    let total: f64 = annotations.iter().map(|a| a.weight).sum();
    let mut shares = vec![0.0; context.dims.labels];
    annotations.iter().for_each(|a| shares[a.label as usize] += a.weight / total);
    shares.into_iter().enumerate().filter(|(_, share)| *share > 0.0).collect()
}

/// For each of these rows, every head's probability of the labels in the row's target, `[label of the target, annotator]`.
fn target_probabilities(context: &BatchContext<'_>, rows: Range<usize>) -> Vec<Vec<f64>> {
    let Dims { annotators, labels, .. } = context.dims;
    let targets: Vec<Vec<(usize, f64)>> = rows.clone().map(|b| target(context, b)).collect();
    let mut all: Vec<Vec<f64>> =
        targets.iter().map(|target| vec![0.0; target.len() * annotators]).collect();
    each_head(context, rows, |annotator, p| {
        for ((all, target), p) in all.iter_mut().zip(&targets).zip(p.chunks_exact(labels)) {
            for (of_label, (label, _)) in all.chunks_exact_mut(annotators).zip(target) {
                of_label[annotator] = p[*label];
            }
        }
    });
    all
}

/// The loss of phase 2 on row `b`, given every head's probability of the target's labels, `[label of the target,
/// annotator]`, and the logits of the heads' weights; and its derivatives with respect to the logits.
fn weights_loss_of_row(
    context: &BatchContext<'_>,
    b: usize,
    heads: &[f64],
    logits: &[f64],
) -> (f64, Vec<f64>) {
    let mut d_logits = vec![0.0; logits.len()];
    let scale = 1.0 / context.batch.len().max(1) as f64;
    let target = target(context, b);
    if target.is_empty() {
        return (0.0, d_logits);
    }
    let mut is_other = vec![true; logits.len()];
    for annotation in context.batch.annotations_of_instance(b) {
        is_other[context.batch.annotators[annotation.annotator as usize] as usize] = false;
    }
    let mut others: Vec<usize> = (0..logits.len()).filter(|r| is_other[*r]).collect();
    if others.is_empty() {
        others = (0..logits.len()).collect();
    }
    let own: Vec<f64> = others.iter().map(|r| logits[*r]).collect();
    let mut weights = vec![0.0; own.len()];
    softmax(&own, &mut weights);
    // (share, P(label) of every head, mean of the heads) of each label of the target.
    let labels: Vec<(f64, &[f64], f64)> = target
        .iter()
        .zip(heads.chunks_exact(logits.len()))
        .map(|((_, share), p)| {
            let mean = others.iter().zip(&weights).map(|(r, w)| w * p[*r]).sum::<f64>();
            (*share, p, at_least(mean, f64::MIN_POSITIVE))
        })
        .collect();
    let slope = |r: usize| -> f64 {
        -scale * labels.iter().map(|(share, p, mean)| share * p[r] / mean).sum::<f64>()
    };
    let slopes: Vec<f64> = others.iter().map(|r| slope(*r)).collect();
    let average: f64 = slopes.iter().zip(&weights).map(|(s, w)| s * w).sum();
    for ((r, w), slope) in others.iter().zip(&weights).zip(&slopes) {
        d_logits[*r] += w * (slope - average);
    }
    let loss = -scale * labels.iter().map(|(share, _, mean)| share * mean.ln()).sum::<f64>();
    (loss, d_logits)
}

impl CrowdNet for WeightedDoctorNet {
    const KIND: &'static str = "weighted_doctor_net";
    const SUMMARY: &'static str = "a head for each annotator on shared features, with learned weights; the posterior is the \
         prediction";
    const SOURCE: &'static str = "Guan et al. 2018, arXiv:1703.08774";
    const FINE_TUNES: bool = false;
    const CONDITIONS_ON_ANNOTATIONS: bool = false;
    const NEEDS_WHOLE_INSTANCES: bool = true;

    /// The epochs, batches and rates of the public code, whose network is pretrained on images.
    fn paper() -> (NetworkSpec, Self) {
        (paper::network(10, Some(32), 1e-3), Self::default())
    }

    fn check(&self, _train: &TrainSpec, location: &str, problems: &mut Problems) {
        if self.weights_by == WeightsBy::Annotator && self.bottleneck.is_some() {
            problems.push(
                Problem::new("weights of annotators have no bottleneck")
                    .at(format!("{location}.bottleneck"))
                    .help("set weights_by = \"instance\", or leave it out"),
            );
        }
    }

    fn heads(&self, _sizes: &Sizes) -> Heads {
        Heads::HIDDEN
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let mut tables = vec![heads(task)];
        tables.extend(self.head_weights().tables(task));
        Ok(tables)
    }

    fn report(&self, _task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        if self.weights_by == WeightsBy::Instance {
            return AnnotatorReport::default();
        }
        let logits = annotator_params.tables[WEIGHTS].row(0);
        let mut weights = vec![0.0; logits.len()];
        softmax(&logits, &mut weights);
        let parameters = vec![("weight".to_owned(), weights)];
        AnnotatorReport { parameters, ..AnnotatorReport::default() }
    }
}

impl TrainingObjective for WeightedDoctorNet {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);
    // A head is a whole layer, so it has the classifier's learning rate.
    const ANNOTATOR_RATE: f64 = 1e-3;
    const DELAYS_ANNOTATORS: bool = false;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let heads = Phase { tables: Some(&["heads"]), ..Phase::joint("heads", train.epochs) };
        let weights = Phase {
            learners: LearnerSubset::NONE,
            tables: Some(TABLES),
            annotator_rate: Some(self.weight_learning_rate),
            changes_likelihood: false,
            ..Phase::joint(WEIGHTS_PHASE, self.weight_epochs)
        };
        sequential(vec![heads, weights], state.acts)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        train.epochs.saturating_add(self.weight_epochs)
    }

    /// Phase 2 trains neither the network nor the heads.
    fn constants(&self, context: &BatchContext<'_>) -> Option<Vec<Vec<f64>>> {
        let n = context.batch.len();
        let of_block = |rows| target_probabilities(context, rows);
        (context.phase == WEIGHTS_PHASE).then(|| by_row_block(n, of_block).concat())
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(if context.phase == WEIGHTS_PHASE {
            self.weights_loss(context, gradient)
        } else {
            heads_loss(context, gradient)
        })
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let (form, annotators) = (self.head_weights(), context.dims.annotators);
        predict_mean(context, |b| {
            let row = form.logits(context.gathered, annotators, context.out.hidden(b));
            let mut weights = vec![0.0; annotators];
            softmax(&row.logits, &mut weights);
            weights
        })
    }

    fn likelihood(&self, context: &BatchContext<'_>) -> Vec<f64> {
        heads_likelihood(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Evidence;
    use crate::job_context::JobContext;
    use crate::model::neural::data::TrainingData;
    use crate::model::neural::data::batching::Batching;
    use crate::model::neural::models::doctor_net::HEADS;
    use crate::model::neural::spec::Neural;
    use crate::model::neural::tests::training_loop::trainer::trainer_of;
    use crate::testing::{tiny, with_features};

    /// Trains on six instances with features; annotator 2 has labelled only instance 6, which has none. Changes the
    /// initial head of annotator 2 by `change`, and returns the weights of all heads after phase 2.
    fn weights(
        weights_by: WeightsBy,
        mut job: JobContext,
        change: impl Fn(&mut [f32]),
    ) -> Vec<f32> {
        let annotations = [(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 1, 0), (4, 0, 1), (5, 0, 1)];
        let a = tiny(2, &[&annotations[..], &[(0, 1, 1), (2, 0, 0), (6, 2, 1)]].concat());
        let mut with_features = with_features(&a);
        with_features.row_of_instance[6] = None;
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let batching = Batching { batch_size: Some(4), by_annotation: false, drops_last: false };
        let data = TrainingData::new(evidence, None, false, batching).unwrap();
        let train = TrainSpec { epochs: 2, batch_size: Some(4), ..TrainSpec::default() };
        let model =
            WeightedDoctorNet { weights_by, weight_epochs: 3, ..WeightedDoctorNet::default() };
        let network = NetworkSpec { train, ..NetworkSpec::default() };
        let spec = Neural { network, model };
        let mut trainer = trainer_of(&spec, &data, evidence, &job);
        let heads = &mut trainer.annotator_params.tables[HEADS];
        change(&mut heads.values[2 * heads.width..]);
        trainer.train(&mut job).unwrap();
        trainer.annotator_params.tables[WEIGHTS].values.clone()
    }

    /// With enough memory hidden layers and heads' probabilities are computed once, else in every step.
    #[test]
    fn heads_that_are_computed_once_give_the_weights_of_those_of_every_step() {
        for weights_by in [WeightsBy::Annotator, WeightsBy::Instance] {
            let of = |memory| weights(weights_by, JobContext::new(1).with_memory(memory), |_| {});
            assert_eq!(of(8 << 30), of(1), "{weights_by:?}");
        }
    }

    /// The head of an annotator without training data is the mean of the others before the weights are learned.
    #[test]
    fn an_unknown_annotator_s_initial_head_is_never_used() {
        for weights_by in [WeightsBy::Annotator, WeightsBy::Instance] {
            let drawn = weights(weights_by, JobContext::new(1), |_| {});
            let other = weights(weights_by, JobContext::new(1), |head| {
                head.iter_mut().enumerate().for_each(|(n, w)| *w = (n as f32 * 1.7).sin());
            });
            assert!(drawn.iter().any(|weight| *weight != 0.0), "nothing moves");
            assert_eq!(drawn, other, "{weights_by:?}");
        }
    }
}
