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
//! If all annotators labelled x, phase 2 uses the heads of all annotators. Differs from the unofficial public code,
//! which weights without a softmax and learns from the majority vote; and in network and training, which are
//! labelmill's defaults. `preset = "paper"` has the settings of that code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, Result};
use crate::model::neural::models::doctor_net::{
    by_row_block, heads, heads_likelihood, heads_loss, predict_mean,
};
use crate::model::neural::models::head_weights::{HeadWeights, TABLES, WEIGHTS, WeightsBy};
use crate::model::neural::models::paper;
use crate::model::neural::numerics::{at_least, softmax};
use crate::model::neural::{
    Act, AnnotatorParams, AnnotatorReport, BatchContext, BatchPrediction, CrowdNet, Gathered,
    Gradient, Heads, LearnerSubset, Neural, ParamTable, Phase, Reduction, Task, TrainSpec,
    TrainState, sequential,
};
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
        let (labels, annotators) = (context.dims.labels, context.dims.annotators);
        let form = self.head_weights();
        let zeros: Gathered =
            context.gathered.iter().skip(WEIGHTS).map(|rows| vec![0.0; rows.len()]).collect();
        let blocks = by_row_block(context, |rows, all| {
            let mut of_block: Gathered = vec![Vec::new()];
            of_block.extend(zeros.iter().cloned());
            let mut loss = 0.0;
            for (b, heads) in rows.zip(all.chunks_exact((annotators * labels).max(1))) {
                let row = form.logits(context.gathered, annotators, context.out.hidden(b));
                let (of_row, d_logits) = weights_loss_of_row(context, b, heads, &row.logits);
                form.backward(context.gathered, &row, &d_logits, &mut of_block);
                loss += of_row;
            }
            (loss, of_block)
        });
        let mut loss = 0.0;
        for (of_block, tables) in blocks {
            loss += of_block;
            for (table, own) in gradient.tables.iter_mut().zip(tables) {
                table.iter_mut().zip(own).for_each(|(sum, d)| *sum += d);
            }
        }
        loss
    }
}

/// The loss of phase 2 on row `b`, given every head's P(label), `[annotator, label]`, and the logits of the heads'
/// weights; and its derivatives with respect to the logits.
fn weights_loss_of_row(
    context: &BatchContext<'_>,
    b: usize,
    heads: &[f64],
    logits: &[f64],
) -> (f64, Vec<f64>) {
    let labels = context.dims.labels;
    let mut d_logits = vec![0.0; logits.len()];
    let scale = 1.0 / context.batch.len().max(1) as f64;
    let annotations = context.batch.annotations_of(b);
    let total: f64 = annotations.iter().map(|a| a.weight).sum();
    if total == 0.0 {
        return (0.0, d_logits);
    }
    let mut target = vec![0.0; labels];
    annotations.iter().for_each(|a| target[a.label as usize] += a.weight / total);
    let mut is_other = vec![true; logits.len()];
    for annotation in annotations {
        is_other[context.batch.annotators[annotation.annotator as usize] as usize] = false;
    }
    let mut others: Vec<usize> = (0..logits.len()).filter(|r| is_other[*r]).collect();
    if others.is_empty() {
        others = (0..logits.len()).collect();
    }
    let own: Vec<f64> = others.iter().map(|r| logits[*r]).collect();
    let mut weights = vec![0.0; own.len()];
    softmax(&own, &mut weights);
    let p = |r: usize, l: usize| heads[r * labels + l];
    let mean: Vec<f64> = (0..labels)
        .map(|l| others.iter().zip(&weights).map(|(r, w)| w * p(*r, l)).sum::<f64>())
        .map(|m: f64| at_least(m, f64::MIN_POSITIVE))
        .collect();
    let slope = |r: usize| -> f64 {
        -scale * (0..labels).map(|l| target[l] * p(r, l) / mean[l]).sum::<f64>()
    };
    let slopes: Vec<f64> = others.iter().map(|r| slope(*r)).collect();
    let average: f64 = slopes.iter().zip(&weights).map(|(s, w)| s * w).sum();
    for ((r, w), slope) in others.iter().zip(&weights).zip(&slopes) {
        d_logits[*r] += w * (slope - average);
    }
    let loss = -scale * (0..labels).map(|l| target[l] * mean[l].ln()).sum::<f64>();
    (loss, d_logits)
}

impl CrowdNet for WeightedDoctorNet {
    const KIND: &'static str = "weighted_doctor_net";
    const SUMMARY: &'static str = "a head for each annotator on shared features, with learned weights; the posterior is the prediction";
    const SOURCE: &'static str = "Guan et al. 2018, arXiv:1703.08774";
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);
    // A head is a whole layer, so it has the classifier's learning rate.
    const ANNOTATOR_RATE: f64 = 1e-3;
    const DELAYS_ANNOTATORS: bool = false;
    const CONDITIONS_ON_ANNOTATIONS: bool = false;
    const NEEDS_WHOLE_INSTANCES: bool = true;

    /// The settings of the public code.
    fn paper() -> Neural<Self> {
        let model = Self { weight_epochs: 10, weight_learning_rate: 0.03, ..Self::default() };
        Neural { network: paper::network(10, Some(32), 1e-3), model }
    }

    fn check(&self, _train: &TrainSpec, place: &str, problems: &mut Problems) {
        if self.weights_by == WeightsBy::Annotator && self.bottleneck.is_some() {
            problems.push(
                Problem::new("weights of annotators have no bottleneck")
                    .at(format!("{place}.bottleneck"))
                    .help("set weights_by = \"instance\", or leave it out"),
            );
        }
    }

    fn heads(&self) -> Heads {
        Heads::HIDDEN
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let mut tables = vec![heads(task)];
        tables.extend(self.head_weights().tables(task));
        Ok(tables)
    }

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

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
        if context.phase == WEIGHTS_PHASE {
            self.weights_loss(context, gradient)
        } else {
            heads_loss(context, gradient)
        }
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
