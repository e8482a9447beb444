//! One head for each annotator on shared features, and a learned weight for each head.
//!
//! ```text
//! phase 1   the heads, as in `doctor_net`
//! phase 2   w = softmax(a) over the annotators who did not label x;  target t = the shares of x's labels
//!           loss = (1/B) sum_i -sum_l t_i[l] ln sum_r w[r] p[r](x_i)[l];  everything but a stands still
//! prediction = sum_r softmax(a)[r] p[r](x)
//! ```
//! M. Guan, V. Gulshan, A. Dai, G. Hinton: Who Said What: Modeling Individual Labelers Improves Classification. AAAI
//! 2018. arXiv:1703.08774
//!
//! Where everybody labelled an instance, everybody predicts it. Differs from the unofficial public code, which weights
//! without a softmax and learns from the majority vote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::doctor_net::{everybody, heads, heads_loss, judged};
use super::maths::softmax;
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Heads, Judged, Parts, Phase, Reduction,
    Step, Table, Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::model::Spec;
use crate::spec::Problems;

/// Weighted doctor net.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WeightedDoctorNet {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// Epochs in which the weights are learned, after those of the heads.
    #[schemars(range(min = 1))]
    pub weight_epochs: u32,
    /// The learning rate of the weights.
    #[schemars(range(min = 0.0))]
    pub weight_learning_rate: f64,
}

impl Default for WeightedDoctorNet {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            weight_epochs: 10,
            weight_learning_rate: 0.03,
        }
    }
}

impl Spec for WeightedDoctorNet {
    const KIND: &'static str = "weighted_doctor_net";
    const SUMMARY: &'static str =
        "a head for each annotator on shared features, with learned weights";
    const SOURCE: &'static str = "Guan et al. 2018, arXiv:1703.08774";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

/// The table of the weights before their softmax, by place.
const WEIGHTS: usize = 1;

fn all_weights(crowd: &Crowd) -> Vec<f64> {
    let logits = crowd.tables[WEIGHTS].row(0);
    let mut weights = vec![0.0; logits.len()];
    softmax(&logits, &mut weights);
    weights
}

impl WeightedDoctorNet {
    fn weights_loss(step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let labels = step.dims.labels;
        let logits = &step.gathered[WEIGHTS];
        let scale = 1.0 / step.batch.len().max(1) as f64;
        let mut loss = 0.0;
        for b in 0..step.batch.len() {
            let said = step.batch.said_of(b);
            let total: f64 = said.iter().map(|s| s.weight).sum();
            if total == 0.0 {
                continue;
            }
            let mut target = vec![0.0; labels];
            said.iter().for_each(|s| target[s.label as usize] += s.weight / total);
            let labelled =
                |r: usize| said.iter().any(|s| step.batch.annotators[s.who as usize] as usize == r);
            let mut others: Vec<usize> = (0..logits.len()).filter(|r| !labelled(*r)).collect();
            if others.is_empty() {
                others = (0..logits.len()).collect();
            }
            let own: Vec<f64> = others.iter().map(|r| logits[*r]).collect();
            let mut weights = vec![0.0; own.len()];
            softmax(&own, &mut weights);
            let all = everybody(step, b);
            let p = |r: usize, l: usize| all[r * labels + l];
            let mean: Vec<f64> = (0..labels)
                .map(|l| others.iter().zip(&weights).map(|(r, w)| w * p(*r, l)).sum::<f64>())
                .map(|m: f64| m.max(f64::MIN_POSITIVE))
                .collect();
            loss -= scale * (0..labels).map(|l| target[l] * mean[l].ln()).sum::<f64>();
            let slope = |r: usize| -> f64 {
                -scale * (0..labels).map(|l| target[l] * p(r, l) / mean[l]).sum::<f64>()
            };
            let slopes: Vec<f64> = others.iter().map(|r| slope(*r)).collect();
            let average: f64 = slopes.iter().zip(&weights).map(|(s, w)| s * w).sum();
            for ((r, w), slope) in others.iter().zip(&weights).zip(&slopes) {
                gradient.tables[WEIGHTS][*r] += w * (slope - average);
            }
        }
        loss
    }
}

impl CrowdNet for WeightedDoctorNet {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);
    // A head is a whole layer: it learns as the classifier does.
    const ANNOTATOR_RATE: f64 = 1e-3;
    const DELAYS_ANNOTATORS: bool = false;
    const WHOLE_INSTANCES: bool = true;

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn heads(&self) -> Heads {
        Heads { classifier: false, hidden: true, auxiliary: None }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        Ok(vec![heads(task), Table::shared("weights", vec![0.0; task.dims.annotators])])
    }

    fn phases(&self) -> Vec<Phase> {
        let heads =
            Phase { name: "heads", tables: Some(&["heads"]), ..Phase::joint(self.train.epochs) };
        let weights = Phase {
            name: "weights",
            epochs: self.weight_epochs,
            classifier: false,
            tables: Some(&["weights"]),
            annotator_rate: Some(self.weight_learning_rate),
            moves_likelihood: false,
        };
        vec![heads, weights]
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        match step.phase {
            0 => heads_loss(step, self.scale(step), gradient),
            _ => Self::weights_loss(step, gradient),
        }
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        judged(step, &all_weights(step.crowd))
    }

    fn report(&self, _task: &Task<'_>, crowd: &Crowd) -> CrowdReport {
        let weights = vec![("weight".to_owned(), all_weights(crowd))];
        CrowdReport { parameters: weights, ..CrowdReport::default() }
    }
}
