//! One head for each annotator on shared features; the classifier is their mean.
//!
//! ```text
//! p[r](x) = softmax(H[r] phi(x) + b[r])      loss = mean over annotations of CE(p[r](x_i), y)
//! prediction = mean_r p[r](x)
//! ```
//! M. Guan, V. Gulshan, A. Dai, G. Hinton: Who Said What: Modeling Individual Labelers Improves Classification. AAAI
//! 2018. arXiv:1703.08774
//!
//! A training step computes only the heads of the annotators in its batch; a prediction computes all heads. The model
//! has no P(label given class): the posterior of an instance is the prediction, whatever its own annotations are.
//!
//! Differs from the paper in network and training, which are labelmill's defaults: the paper's network is pretrained on
//! images. `preset = "paper"` has the epochs, batches and rate of the unofficial public code; its network, which stands for
//! a pretrained one, is the one that other papers have for LabelMe.

pub(crate) mod head_weights;
pub(crate) mod weighted_doctor_net;

use std::ops::Range;

use rand::Rng as _;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::heads::Heads;
use crate::model::neural::net::host::product::{MatrixView, multiply_into};
use crate::model::neural::numerics::{at_least, softmax};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::train_spec::Reduction;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::param_table::ParamTable;

/// Doctor net.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DoctorNet {
    /// Whether the mean of the heads weights each by the sum of the weights of its annotator's annotations, instead of
    /// equally: a soft annotation of several rows counts as one.
    pub weight_by_annotations: bool,
}

/// The index of the heads' table: `[annotator, hidden + 1, label]`, the bias last.
pub(crate) const HEADS: usize = 0;

/// The initial table of heads.
pub(crate) fn heads(task: &Task<'_>) -> ParamTable {
    let (hidden, labels) = (task.hidden, task.dims.labels);
    let mut rng = task.job.rng("annotator heads");
    let bound = 1.0 / (hidden.max(1) as f32).sqrt();
    let n = task.dims.annotators * (hidden + 1) * labels;
    let values = (0..n).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect();
    ParamTable::drawn("heads", (hidden + 1) * labels, values)
}

/// Writes one head's P(label) to `out`.
pub(crate) fn label_probabilities(head: &[f64], hidden: &[f64], out: &mut [f64]) {
    let labels = out.len();
    let (weights, bias) = head.split_at(hidden.len() * labels);
    let mut logits = bias.to_vec();
    for (x, row) in hidden.iter().zip(weights.chunks_exact(labels)) {
        logits.iter_mut().zip(row).for_each(|(l, w)| *l += x * w);
    }
    softmax(&logits, out);
}

/// The cross-entropy of the annotations under their annotators' heads; adds its derivatives to `gradient`.
pub(crate) fn heads_loss(context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
    let scale = context.scale();
    let labels = context.dims.labels;
    let width = context.annotator_params.tables[HEADS].width;
    let n_hidden = width / labels - 1;
    let mut p = vec![0.0; labels];
    let mut loss = 0.0;
    for (b, annotation) in context.annotations() {
        let own =
            annotation.annotator as usize * width..(annotation.annotator as usize + 1) * width;
        let (head, hidden) = (&context.gathered[HEADS][own.clone()], context.out.hidden(b));
        label_probabilities(head, hidden, &mut p);
        let weight = scale * annotation.weight;
        loss -= weight * at_least(p[annotation.label as usize], f64::MIN_POSITIVE).ln();
        p[annotation.label as usize] -= 1.0;
        p.iter_mut().for_each(|d| *d *= weight);
        let d_hidden = &mut gradient.out.hidden[b * n_hidden..(b + 1) * n_hidden];
        let d_head = &mut gradient.tables[HEADS][own];
        let (d_weights, d_bias) = d_head.split_at_mut(n_hidden * labels);
        d_bias.iter_mut().zip(&p).for_each(|(b, d)| *b += d);
        let rows = head.chunks_exact(labels).zip(d_weights.chunks_exact_mut(labels));
        for ((x, d_x), (row, d_row)) in hidden.iter().zip(d_hidden).zip(rows) {
            *d_x += row.iter().zip(&p).map(|(w, d)| w * d).sum::<f64>();
            d_row.iter_mut().zip(&p).for_each(|(w, d)| *w += x * d);
        }
    }
    loss
}

/// The number of rows whose heads are computed together, so that each head is read once for all of them.
const ROW_BLOCK: usize = 32;

/// Calls `of_block` for every block of `n` rows, in parallel; the results are in the order of the blocks.
pub(crate) fn by_row_block<R: Send>(
    n: usize,
    of_block: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    let blocks = (0..n.div_ceil(ROW_BLOCK)).into_par_iter();
    blocks.map(|block| of_block(block * ROW_BLOCK..((block + 1) * ROW_BLOCK).min(n))).collect()
}

/// Calls `read(annotator, P(label) of this annotator's head for these rows)` for every head, one after the other: one
/// matrix product for each.
///
/// # Shapes
/// The probabilities are `[row, label]`: those of one head, since those of all heads would be too large.
pub(crate) fn each_head(
    context: &BatchContext<'_>,
    rows: Range<usize>,
    mut read: impl FnMut(usize, &[f64]),
) {
    let labels = context.dims.labels;
    let heads = &context.annotator_params.tables[HEADS];
    let n_hidden = heads.width / labels - 1;
    let hidden = &context.out.hidden[rows.start * n_hidden..rows.end * n_hidden];
    let hidden: Vec<f32> = hidden.iter().map(|x| *x as f32).collect();
    let hidden = MatrixView::by_rows(&hidden, rows.len(), n_hidden);
    let (mut products, mut logits) = (vec![0.0; rows.len() * labels], vec![0.0; labels]);
    let mut p = vec![0.0; products.len()];
    for (annotator, head) in heads.values.chunks_exact(heads.width).enumerate() {
        let (weights, bias) = head.split_at(n_hidden * labels);
        let weights = MatrixView::by_rows(weights, n_hidden, labels);
        multiply_into(&mut products, &hidden, &weights, false);
        for (product, p) in products.chunks_exact(labels).zip(p.chunks_exact_mut(labels)) {
            let sums = product.iter().zip(bias).map(|(x, bias)| f64::from(*x) + f64::from(*bias));
            logits.iter_mut().zip(sums).for_each(|(logit, sum)| *logit = sum);
            softmax(&logits, p);
        }
        read(annotator, &p);
    }
}

/// P(label) of each annotation under its annotator's head.
pub(crate) fn heads_likelihood(context: &BatchContext<'_>) -> Vec<f64> {
    let width = context.annotator_params.tables[HEADS].width;
    let mut p = vec![0.0; context.dims.labels];
    let mut likelihood = Vec::with_capacity(context.batch.annotations.len());
    for (b, annotation) in context.annotations() {
        let first = annotation.annotator as usize * width;
        let head = &context.gathered[HEADS][first..first + width];
        label_probabilities(head, context.out.hidden(b), &mut p);
        likelihood.push(p[annotation.label as usize]);
    }
    likelihood
}

/// The prediction by the weighted mean of the heads, where `weights_of(b)` are the heads' weights for row `b`.
pub(crate) fn predict_mean<W: AsRef<[f64]>>(
    context: &BatchContext<'_>,
    weights_of: impl Fn(usize) -> W + Sync,
) -> BatchPrediction {
    let (classes, labels) = (context.dims.classes, context.dims.labels);
    let blocks = by_row_block(context.batch.len(), |rows| {
        let weights: Vec<W> = rows.clone().map(&weights_of).collect();
        let mut means = vec![0.0; rows.len() * classes];
        each_head(context, rows, |annotator, p| {
            let means = means.chunks_exact_mut(classes).zip(p.chunks_exact(labels));
            for ((mean, p), weights) in means.zip(&weights) {
                let weight = weights.as_ref()[annotator];
                mean.iter_mut().zip(p).for_each(|(m, p)| *m += weight * p);
            }
        });
        for mean in means.chunks_exact_mut(classes) {
            let sum: f64 = mean.iter().sum();
            mean.iter_mut().for_each(|m| *m /= sum);
        }
        means
    });
    let classes = blocks.concat();
    BatchPrediction {
        posterior: classes.clone(),
        classes,
        likelihood: heads_likelihood(context),
        parameters: Vec::new(),
    }
}

impl CrowdNet for DoctorNet {
    const KIND: &'static str = "doctor_net";
    const SUMMARY: &'static str =
        "a head for each annotator on shared features, averaged; the posterior is the prediction";
    const SOURCE: &'static str = "Guan et al. 2018, arXiv:1703.08774";
    const FINE_TUNES: bool = false;
    const CONDITIONS_ON_ANNOTATIONS: bool = false;

    /// The epochs, batches and rate of the public code, whose network is pretrained on images.
    fn paper() -> (NetworkSpec, Self) {
        (paper::network(10, Some(32), 1e-3), Self::default())
    }

    fn heads(&self, _sizes: &Sizes) -> Heads {
        Heads::HIDDEN
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let a = task.evidence.annotations;
        let mut weights = vec![1.0; task.dims.annotators];
        if self.weight_by_annotations {
            weights.fill(0.0);
            for (annotator, _, weight) in
                (0..task.dims.instances).flat_map(|i| a.triples_of_instance(i))
            {
                weights[annotator as usize] += weight;
            }
        }
        let weights = weights.into_iter().map(|weight| weight as f32).collect();
        Ok(vec![heads(task), ParamTable::drawn("head_weights", 1, weights).fixed()])
    }
}

impl TrainingObjective for DoctorNet {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);
    // A head is a whole layer, so it has the classifier's learning rate.
    const ANNOTATOR_RATE: f64 = 1e-3;
    const DELAYS_ANNOTATORS: bool = false;

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(heads_loss(context, gradient))
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let weights: Vec<f64> =
            context.annotator_params.tables[1].values.iter().map(|w| f64::from(*w)).collect();
        predict_mean(context, |_| &weights)
    }

    fn likelihood(&self, context: &BatchContext<'_>) -> Vec<f64> {
        heads_likelihood(context)
    }
}
