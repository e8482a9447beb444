//! What is trained: the traits of a model, the input of its loss, and its schedule of acts.

pub(super) mod batch_context;
pub(super) mod crowd_net;
pub(super) mod schedule;
pub(super) mod training_objective;
