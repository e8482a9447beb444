//! One head for each annotator on shared features; the classifier is their mean.
//!
//! ```text
//! p[r](x) = softmax(H[r] phi(x) + b[r])      loss = mean over annotations of CE(p[r](x_i), y)
//! prediction = mean_r p[r](x)
//! ```
//! M. Guan, V. Gulshan, A. Dai, G. Hinton: Who Said What: Modeling Individual Labelers Improves Classification. AAAI
//! 2018. arXiv:1703.08774
//!
//! A step computes the heads of its own annotators only; a prediction computes all.

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::softmax;
use super::{
    BackboneSpec, Batch, CrowdNet, Gradient, Heads, Judged, Parts, Reduction, Step, Table, Task,
    TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::model::Spec;
use crate::spec::Problems;

/// Doctor net.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DoctorNet {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// Whether an annotator's head counts as much as the annotator said, instead of all alike.
    pub weight_by_annotations: bool,
}

impl Default for DoctorNet {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            weight_by_annotations: false,
        }
    }
}

impl Spec for DoctorNet {
    const KIND: &'static str = "doctor_net";
    const SUMMARY: &'static str = "a head for each annotator on shared features, averaged";
    const SOURCE: &'static str = "Guan et al. 2018, arXiv:1703.08774";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

/// The heads' table, by place: `[annotator, hidden + 1, label]`, the bias last.
pub(super) const HEADS: usize = 0;

/// The heads as they begin.
pub(super) fn heads(task: &Task<'_>) -> Table {
    let (hidden, labels) = (task.hidden, task.dims.labels);
    let mut rng = task.run.rng("annotator heads");
    let bound = 1.0 / (hidden.max(1) as f32).sqrt();
    let n = task.dims.annotators * (hidden + 1) * labels;
    let values = (0..n).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect();
    Table::drawn("heads", (hidden + 1) * labels, values)
}

/// P(label) by one head.
pub(super) fn says(head: &[f64], hidden: &[f64], out: &mut [f64]) {
    let labels = out.len();
    let (weights, bias) = head.split_at(hidden.len() * labels);
    let mut logits = bias.to_vec();
    for (x, row) in hidden.iter().zip(weights.chunks_exact(labels)) {
        logits.iter_mut().zip(row).for_each(|(l, w)| *l += x * w);
    }
    softmax(&logits, out);
}

/// The cross-entropy of every annotation by its annotator's head, and its gradients.
pub(super) fn heads_loss(step: &Step<'_>, scale: f64, gradient: &mut Gradient) -> f64 {
    let labels = step.dims.labels;
    let width = step.crowd.tables[HEADS].width;
    let n_hidden = width / labels - 1;
    let mut p = vec![0.0; labels];
    let mut loss = 0.0;
    for (b, said) in step.said() {
        let own = said.who as usize * width..(said.who as usize + 1) * width;
        let (head, hidden) = (&step.gathered[HEADS][own.clone()], step.out.hidden(b));
        says(head, hidden, &mut p);
        let weight = scale * said.weight;
        loss -= weight * p[said.label as usize].max(f64::MIN_POSITIVE).ln();
        p[said.label as usize] -= 1.0;
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

/// Every head's P(label) for row `b`, `[annotator, label]`.
pub(super) fn everybody(step: &Step<'_>, b: usize) -> Vec<f64> {
    let labels = step.dims.labels;
    let heads = &step.crowd.tables[HEADS];
    let mut all = vec![0.0; heads.values.len() / heads.width * labels];
    for (r, out) in all.chunks_exact_mut(labels).enumerate() {
        says(&heads.row(r), step.out.hidden(b), out);
    }
    all
}

/// What heads weighted by `weight` say of a batch.
pub(super) fn judged(step: &Step<'_>, weight: &[f64]) -> Judged {
    let (classes, labels) = (step.dims.classes, step.dims.labels);
    let mut judged = Judged::default();
    for b in 0..step.batch.len() {
        let all = everybody(step, b);
        let mut mean = vec![0.0; classes];
        for (says, weight) in all.chunks_exact(labels).zip(weight) {
            mean.iter_mut().zip(says).for_each(|(m, p)| *m += weight * p);
        }
        let sum: f64 = mean.iter().sum();
        judged.classes.extend(mean.iter().map(|m| m / sum));
        let of = |(who, label): (u32, u32)| all[who as usize * labels + label as usize];
        let Batch { annotators, .. } = step.batch;
        let said = step.batch.said_of(b).iter().map(|s| (annotators[s.who as usize], s.label));
        judged.likelihood.extend(said.map(of));
    }
    judged.posterior = judged.classes.clone();
    judged
}

impl CrowdNet for DoctorNet {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);
    // A head is a whole layer: it learns as the classifier does.
    const ANNOTATOR_RATE: f64 = 1e-3;
    const DELAYS_ANNOTATORS: bool = false;

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn heads(&self) -> Heads {
        Heads { classifier: false, hidden: true, auxiliary: None }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        let n = |r: usize| {
            let rows = task.evidence.annotations.rows_of_annotator(r);
            if self.weight_by_annotations { rows as f32 } else { 1.0 }
        };
        let weights = (0..task.dims.annotators).map(n).collect();
        Ok(vec![heads(task), Table::drawn("head_weights", 1, weights).fixed()])
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        heads_loss(step, self.scale(step), gradient)
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let weights: Vec<f64> = step.crowd.tables[1].values.iter().map(|w| f64::from(*w)).collect();
        judged(step, &weights)
    }
}
