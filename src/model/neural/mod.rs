//! Models that learn a classifier from features together with a model of the annotators.
//!
//! ```text
//! features ─ scaler ─ backbone ─┬─ logits ──────┐
//!  (matrix)           (candle)  ├─ hidden ──────┼─ loss over the flat list (row, annotator, label) ─ gradients
//!                               └─ named heads ─┘        on the host, in f64         ▲         │
//!                                                                  parameters of the batch's annotators
//! ```
//! A training is a sequence of acts (`objective/schedule.rs`): epochs of gradient descent, and between them other updates of
//! labels and parameters, such as an E-step. The loop asks the [`TrainingObjective`] for the next act, given the
//! training state. Everything that changes is in the training state, in the networks' parameters or in the annotators'
//! parameters; a checkpoint holds all three.
//!
//! In addition to the classifier a model may have other learners (`train/learners/`): a teacher, the components of a
//! mixture, or networks that read the matrix of annotations or the features of annotators (`data/inputs.rs`). A phase names
//! the learners that it trains, and one loss reads the outputs of all learners.
//!
//! ```text
//! net        the network, its input and its layers          objective  what is trained: traits, batch context, schedule
//! data       annotations become batches                     params     the parameters of annotators and instances
//! train      the loop over acts                             fit        from evidence to a fitted model, and prediction
//! models     one paper, one file
//! ```
//! `soft_target_network.rs` is a network without annotators, for models that alternate between labels and a classifier
//! (`model/classifier/`).
//!
//! # Why
//! Most of the arithmetic is in the classifier, and candle runs it on the CPU or a GPU. The model of the annotators
//! computes a few numbers for each annotation. Its loss and derivatives are written by hand over the flat list of
//! annotations, on plain slices whose values a test can perturb one by one; or the loss is one of tensors on the host
//! (`objective/tensor_objective.rs`). So every model runs unchanged on every device, and its cost is proportional to the
//! number of annotations.
//!
//! # Adding a model
//! 1. Write one file under `models/`; open it with the model, the citation and `Differs from`.
//! 2. Define a struct of the model's own settings. First implement [`CrowdNet`] for it: kind and summary for users, the
//!    networks, the tables of annotators' parameters, and the report on annotators. [`Neural`] adds `device`, `backbone`
//!    and `train`. Then implement [`TrainingObjective`], which the loop trains: the loss of a batch with its derivatives,
//!    by hand or as a `TensorObjective`, and the prediction of a batch. A model with its own schedule also implements `next_act` and `epochs`, and `m_step` if
//!    it has an M-step. Its E-step takes the posteriors of `predict`, or of `e_step` if that differs; with
//!    `annotator_matrices`, the EM kernels compute them. All models have the two blocks in this order, because losses read
//!    the networks' outputs and the tables by their indices.
//! 3. Add its `mod` line and its line in [`KINDS`] to `models/mod.rs`. The loop, batching, devices, selection,
//!    checkpoints, saved models and prediction need no further code, and the conformance suite tests every registered
//!    model. The gradient check in `tests/` fails until it has a case for the model.
//! 4. Name its keys above tests and rewrite the lists of models, as steps 6 and 7 of `model/mod.rs` describe.

mod data;
mod device;
mod fit;
mod models;
mod net;
mod numerics;
mod objective;
pub(crate) mod params;
mod soft_target_network;
mod spec;
#[cfg(test)]
mod tests;
mod train;

pub use device::DeviceChoice;
pub use fit::predict::predict;
pub use models::{Conal, KINDS, Lia};
pub use net::backbone::{Architecture, BackboneSpec, Scaling};
pub use net::layers::Activation;
#[cfg(any(debug_assertions, feature = "testing"))]
pub use net::layers::single_layer::{SingleLayer, SingleLayerKind};
pub use net::optimiser::optimiser_spec::{LrSchedule, OptimiserKind, OptimiserSpec};
pub use net::precision::Precision;
pub use objective::batch_context::BatchPrediction;
pub use objective::crowd_net::CrowdNet;
pub use objective::network_spec::NetworkSpec;
pub use objective::tensor_objective::{BatchVariables, OutputVariables, TensorObjective};
pub use objective::train_spec::TrainSpec;
pub use objective::training_objective::TrainingObjective;
pub(crate) use soft_target_network::{SoftTargetNetwork, WeightedTargets};
pub use spec::Neural;
