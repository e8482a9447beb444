//! What is trained: the traits of a model, the input of its loss, and its schedule of acts.

pub(super) mod batch_context;
pub(crate) mod counted;
pub(super) mod crowd_net;
pub(super) mod given_matrices;
pub(in crate::model::neural) mod network_spec;
pub(crate) mod paper;
pub(super) mod schedule;
pub(super) mod tensor_objective;
pub(crate) mod train_spec;
pub(crate) mod train_state;
pub(super) mod training_objective;
