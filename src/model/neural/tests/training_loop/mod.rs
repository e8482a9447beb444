//! Tests of the training loop.

pub(super) mod checkpoints;
pub(super) mod divergence;
pub(super) mod labels;
pub(super) mod learners;
pub(super) mod phases;
pub(super) mod resumed;
pub(super) mod schedules;
pub(super) mod scores;
pub(super) mod states;
pub(in crate::model::neural) mod trainer;
pub(super) mod training;
