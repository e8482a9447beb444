//! Losses, their divisors and their gradients, compared with values that were computed independently.

pub(in crate::model::neural::tests) mod divisors;
pub(super) mod forms;
pub(super) mod gradients;
pub(super) mod many_rows;
pub(in crate::model::neural::tests) mod underflow;
pub(in crate::model::neural::tests) mod uneven;
