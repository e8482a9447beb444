//! Models that learn a classifier from features together with a model of the annotators.
//!
//! ```text
//! features ─ scaler ─ backbone ─┬─ logits ──────┐
//!  (matrix)           (candle)  ├─ hidden ──────┼─ loss over the flat list (row, annotator, label) ─ gradients
//!                               └─ named heads ─┘   on the host, by hand, in f64     ▲         │
//!                                                                  parameters of the batch's annotators
//! ```
//! A training is a row of acts (`schedule.rs`): epochs of gradient descent, and between them what else a model does to
//! labels and parameters, such as an E-step. The loop asks the model for the next act, given the state; everything that
//! changes is in the state, in the network's parameters or in those of annotators, and all three are in the checkpoint.
//!
//! Beside the classifier a model may have other learners (`train/learner.rs`): a teacher, the parts of a mixture, or
//! networks that read the matrix of answers or the features of annotators (`data/inputs.rs`). A phase names the learners
//! that it trains, and one loss is given the outputs of all.
//!
//! The rooms: `net/` holds the network and its layers, `data/` makes batches, `train/` is the training loop,
//! `annotator_params.rs` holds the parameters of annotators, `models/` holds one paper a file.
//!
//! # Why
//! Most of the arithmetic is in the classifier, and candle runs it on the CPU or a GPU. The model of the annotators
//! computes a few numbers for each annotation: its loss and derivatives are written by hand over the flat list of
//! annotations, against plain slices that a test can disturb one by one. So every model runs unchanged on every
//! device, and its cost follows its annotations.
//!
//! # Adding a model
//! 1. Write one file under `models/`; open it with the model, the citation and `Differs from`.
//! 2. Give it a struct of its own parameters and implement [`CrowdNet`]: what a user reads of it, the tables of
//!    annotators' parameters, the loss of a batch with its derivatives, the prediction of a batch, and the report on
//!    annotators. `device`, `backbone` and `train` come with [`Neural`]. A model that is not trained in one go names its
//!    acts (`next_act`), and what its M-step estimates.
//! 3. Add its `mod` line and its line in [`MODELS`] to `models/mod.rs`. The loop, batching, devices, selection,
//!    checkpoints, saved models and prediction come with it, and the conformance suite walks the registry. The
//!    gradient check in `tests/` fails until it has a case.

mod annotator_params;
mod batch_context;
mod crowd_net;
mod data;
mod device;
mod fit;
mod models;
mod net;
mod numerics;
mod predict;
mod prefetch;
mod schedule;
mod spec;
#[cfg(test)]
mod tests;
mod train;

pub use annotator_params::{AnnotatorParams, Gathered, Owner, ParamTable};
pub use batch_context::{BatchContext, BatchPrediction, Gradient};
pub use crowd_net::{AnnotatorReport, CrowdNet, Task};
pub use data::batch::{Batch, BatchAnnotation};
pub use data::batching::InstanceSubset;
pub use data::inputs::LearnerInput;
pub use device::device;
pub use models::{
    AggNet, Conal, CrowdLayer, Dl, DoctorNet, MODELS, MaxMig, SingleConfusion, SoftBootstrap, Tcl,
    TraceRegularised, WeightedDoctorNet,
};
pub use net::Precision;
pub use net::backbone::{Architecture, BackboneSpec, Scaling};
pub use net::heads::{Head, HeadInput, Heads, Outputs};
pub use net::layers::Activation;
pub use net::parameters::Initialisation;
pub use predict::predict;
pub use schedule::{Act, LearnerSubset, Phase, one_after_the_other};
pub use spec::{NetworkSpec, Neural};
pub use train::learner::LearnerSpec;
pub use train::optimiser_spec::{LrSchedule, OptimiserKind, OptimiserSpec};
pub use train::spec::{BatchBy, Reduction, Select, TrainSpec};
pub use train::state::TrainState;

use device::{auto, from_candle, name_of};
