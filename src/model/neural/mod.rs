//! Models that learn a classifier from features and, with it, what annotators do.
//!
//! ```text
//! features ─ scaler ─ backbone ─┬─ logits ──────┐
//!  (matrix)           (candle)  ├─ hidden ──────┼─ loss over the flat list (row, annotator, label) ─ gradients
//!                               └─ auxiliary ───┘   on the host, by hand, in f64     ▲         │
//!                                                                    rows of the batch's annotators
//! ```
//! # Why
//! The classifier is where the arithmetic is, and candle runs it on the CPU or a card. What a model says of annotators
//! is a few numbers an annotation: its loss and derivatives are written by hand over the annotations that there are
//! (`crowd.rs`), against plain slices that a test can disturb one by one. So every model runs unchanged on every device,
//! and its cost follows its annotations.
//!
//! # Adding a model
//! 1. Write one file here; open it with the model, the citation and `Differs from`.
//! 2. Give it a spec struct with `device`, `backbone` and `train` beside its own parameters, and implement [`CrowdNet`]:
//!    the tables of annotators' parameters, the loss of a batch with its derivatives, and what it reports.
//! 3. Add its line to [`FAMILIES`](super::FAMILIES). The loop, batching, devices, selection, checkpoints, saved models
//!    and prediction come with it, and the gradient check and the conformance suite walk the registry.

mod backbone;
mod batch;
mod bootstrap;
mod conal;
mod convolution;
mod crowd;
mod crowd_layer;
mod device;
mod dl;
mod doctor_net;
mod fit;
mod host;
mod layers;
mod maths;
mod max_mig;
mod moments;
mod net;
mod optimiser;
mod pool;
mod prefetch;
mod product;
mod progress;
mod recipe;
mod saved;
mod scaler;
mod single_confusion;
mod snapshot;
mod step;
mod tape;
#[cfg(test)]
mod tests;
mod trace_regularised;
mod train;
mod vars;
mod weighted_doctor_net;

pub use backbone::{Architecture, BackboneSpec};
pub use batch::{Batch, Said};
pub use bootstrap::SoftBootstrap;
pub use conal::Conal;
pub use crowd::{Crowd, Gathered, Owner, Table};
pub use crowd_layer::CrowdLayer;
pub use device::device;
pub use dl::Dl;
pub use doctor_net::DoctorNet;
pub use fit::Neural;
pub use layers::Activation;
pub use max_mig::MaxMig;
pub use net::{Heads, Outputs, Precision};
pub use optimiser::{Course, OptimiserSpec, Rule};
pub use recipe::{BatchBy, Reduction, Select, TrainSpec};
pub use saved::predict;
pub use single_confusion::SingleConfusion;
pub use trace_regularised::TraceRegularised;
pub use weighted_doctor_net::WeightedDoctorNet;

use device::{auto, name_of, tensor};

use crate::error::{Problem, Result};
use crate::frame::{Dims, Evidence};
use crate::model::Spec;
use crate::model::fitted::Fitted;
use crate::run::Run;
use crate::spec::Problems;

/// The parts that every model's spec has.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// Where the network computes.
    pub device: &'a str,
    /// The classifier before its last layer.
    pub backbone: &'a BackboneSpec,
    /// How it is trained.
    pub train: &'a TrainSpec,
}

/// What a model is fitted to.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// Everything observed.
    pub evidence: Evidence<'a>,
    /// The sizes of every axis.
    pub dims: Dims,
    /// The width of the last hidden layer, where the model asked for it.
    pub hidden: usize,
    /// Random streams.
    pub run: &'a Run,
}

/// One stretch of training.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Its name in the trace.
    pub name: &'static str,
    /// Epochs.
    pub epochs: u32,
    /// Whether the classifier is trained.
    pub classifier: bool,
    /// The tables that are trained; `None` for all.
    pub tables: Option<&'static [&'static str]>,
    /// The learning rate of annotators' parameters, where it is another.
    pub annotator_rate: Option<f64>,
    /// Whether what is trained changes the likelihood of annotations, so that an epoch can be selected by it.
    pub moves_likelihood: bool,
}

impl Phase {
    /// Everything together.
    #[must_use]
    pub fn joint(epochs: u32) -> Self {
        Self {
            name: "train",
            epochs,
            classifier: true,
            tables: None,
            annotator_rate: None,
            moves_likelihood: true,
        }
    }
}

/// A batch, what the network gave for it, and the parameters of its annotators.
pub struct Step<'a> {
    /// The running phase, from 0.
    pub phase: usize,
    /// Rows and annotations.
    pub batch: &'a Batch,
    /// The network's outputs.
    pub out: &'a Outputs,
    /// The tables' rows of the batch's annotators.
    pub gathered: &'a Gathered,
    /// All tables.
    pub crowd: &'a Crowd,
    /// Sizes.
    pub dims: Dims,
}

impl Step<'_> {
    /// Every annotation of the batch with its row.
    pub fn said(&self) -> impl Iterator<Item = (usize, &Said)> {
        (0..self.batch.len()).flat_map(|b| self.batch.said_of(b).iter().map(move |said| (b, said)))
    }

    /// The classifier's probability of what was said, as if annotators said what they see.
    #[must_use]
    pub fn class_likelihood(&self) -> Vec<f64> {
        let p = |(b, said): (usize, &Said)| self.out.p(b).get(said.label as usize).copied();
        self.said().map(|said| p(said).unwrap_or_default()).collect()
    }

    /// As [`Step::judged_by`], with the matrices `[who, class, label]`.
    #[must_use]
    pub fn judged_by_matrices(&self, matrices: &[f64]) -> Judged {
        let Dims { classes, labels, .. } = self.dims;
        self.judged_by(|_, said, k| {
            matrices[(said.who as usize * classes + k) * labels + said.label as usize]
        })
    }

    /// What follows when `cell(row, said, class)` is the probability of what was said: posteriors by Bayes' rule with
    /// the classifier as the prior, and the likelihood of every annotation.
    #[must_use]
    pub fn judged_by(&self, cell: impl Fn(usize, &Said, usize) -> f64) -> Judged {
        let classes = self.dims.classes;
        let mut posterior = vec![0.0; self.out.p.len()];
        for (b, out) in posterior.chunks_exact_mut(classes).enumerate() {
            let mut logs: Vec<f64> =
                self.out.p(b).iter().map(|p| p.max(f64::MIN_POSITIVE).ln()).collect();
            for said in self.batch.said_of(b) {
                let terms =
                    (0..classes).map(|k| cell(b, said, k).max(maths::LEAST_PROBABILITY).ln());
                logs.iter_mut().zip(terms).for_each(|(l, term)| *l += said.weight * term);
            }
            maths::softmax(&logs, out);
        }
        let likelihood = |(b, said): (usize, &Said)| -> f64 {
            self.out.p(b).iter().enumerate().map(|(k, p)| p * cell(b, said, k)).sum()
        };
        Judged {
            classes: self.out.p.clone(),
            posterior,
            likelihood: self.said().map(likelihood).collect(),
            parameters: Vec::new(),
        }
    }
}

/// The derivatives of a loss: by output and by gathered parameter, in the shapes of both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gradient {
    /// By logits, hidden and auxiliary output; what is put into `p` flows on into the logits.
    pub out: Outputs,
    /// By gathered parameter.
    pub tables: Gathered,
}

/// What a trained model says of a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judged {
    /// The classifier's P(class given features), `[row, class]`.
    pub classes: Vec<f64>,
    /// P(class given features and annotations), `[row, class]`.
    pub posterior: Vec<f64>,
    /// P(what was said given features and annotator) of each annotation.
    pub likelihood: Vec<f64>,
    /// The numbers named by [`CrowdNet::instance_parameters`], `[row, name]`.
    pub parameters: Vec<f64>,
}

/// What a trained model reports of annotators.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CrowdReport {
    /// P(label given class), `[annotator, class, label]`.
    pub confusion: Option<Vec<f64>>,
    /// One matrix `[class, label]` for everybody.
    pub common: Option<Vec<f64>>,
    /// Other numbers of annotators, by name.
    pub parameters: Vec<(String, Vec<f64>)>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// A classifier with a model of its annotators.
pub trait CrowdNet: Spec {
    /// Device, backbone and training.
    fn parts(&self) -> Parts<'_>;

    /// What it reads from the network.
    fn heads(&self) -> Heads {
        Heads::CLASSIFIER
    }

    /// The parameters of annotators, as they begin.
    ///
    /// # Errors
    /// When the model cannot begin with this crowd.
    fn tables(&self, _task: &Task<'_>) -> Result<Vec<Table>> {
        Ok(Vec::new())
    }

    /// What an aggregator without features finds, for models whose classifier learns from that.
    ///
    /// # Errors
    /// Those of the aggregator.
    fn aggregate(&self, _evidence: Evidence<'_>, _run: &mut Run) -> Result<Option<Fitted>> {
        Ok(None)
    }

    /// What the losses of annotations are divided by, unless the user chooses; `None` where they are not summed.
    const REDUCTION: Option<Reduction>;

    /// The learning rate of annotators' parameters, unless the user chooses. An annotator is in few batches, so it is
    /// larger than the classifier's.
    const ANNOTATOR_RATE: f64 = 0.1;

    /// Whether annotators' parameters stand still at first, unless the user chooses. They do where they begin as an
    /// identity: moved before the classifier knows anything, they may exchange classes, and nothing brings them back.
    const DELAYS_ANNOTATORS: bool = true;

    /// Whether an incomplete batch is of no use.
    const WHOLE_BATCHES: bool = false;

    /// Whether the loss looks at all that was said of an instance at once.
    const WHOLE_INSTANCES: bool = false;

    /// Whether the classifier itself is told a batch's targets, and with them the trusted classes.
    const TELLS_TARGETS: bool = false;

    /// In how many epochs of a phase of `epochs` annotators' parameters stand still at first.
    fn annotator_delay(&self, epochs: u32) -> u32 {
        let usual = if Self::DELAYS_ANNOTATORS { epochs / 5 } else { 0 };
        self.parts().train.optimiser.annotator_delay.unwrap_or(usual)
    }

    /// The stretches of training, one after the other.
    fn phases(&self) -> Vec<Phase> {
        vec![Phase::joint(self.parts().train.epochs)]
    }

    /// The loss of a batch; adds its derivatives to `gradient`, which is zero.
    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64;

    /// What the trained model says of a batch, of which any annotation and any row may be new.
    fn judge(&self, step: &Step<'_>) -> Judged {
        Judged {
            classes: step.out.p.clone(),
            posterior: step.out.p.clone(),
            likelihood: step.class_likelihood(),
            parameters: Vec::new(),
        }
    }

    /// The names of what [`Judged::parameters`] holds.
    fn instance_parameters(&self) -> Vec<String> {
        Vec::new()
    }

    /// What it learned of annotators.
    fn report(&self, _task: &Task<'_>, _crowd: &Crowd) -> CrowdReport {
        CrowdReport::default()
    }

    /// The factor of the annotations' losses in a batch.
    fn scale(&self, step: &Step<'_>) -> f64 {
        let reduction = self.parts().train.reduction.or(Self::REDUCTION);
        reduction.unwrap_or(Reduction::Sum).factor(step.batch, step.dims)
    }
}

/// Rules that every model's parts keep.
fn check_parts<N: CrowdNet>(model: &N, place: &str, problems: &mut Problems) {
    let parts = model.parts();
    parts.backbone.check(place, problems);
    if let (None, Some(reduction)) = (N::REDUCTION, parts.train.reduction) {
        problems.push(
            Problem::new(format!("`{}` sums no losses of annotations", N::KIND))
                .at(format!("{place}.train.reduction"))
                .found(serde_json::to_string(&reduction).unwrap_or_default())
                .help("leave it out"),
        );
    }
    if N::WHOLE_INSTANCES && parts.train.batch_by == BatchBy::Annotation {
        problems.push(
            Problem::new(format!("`{}` looks at all annotations of an instance at once", N::KIND))
                .at(format!("{place}.train.batch_by"))
                .found("\"annotation\"")
                .help("choose \"instance\", or leave it out"),
        );
    }
    if let Err(e) = device(parts.device) {
        let at = format!("{place}.device");
        e.problems.into_iter().for_each(|p| problems.push(p.at(at.clone())));
    }
}
