//! Models with a classifier of any kind: in the steps of an EM fit, or whose predictions are weighed with the votes.

pub mod crowdlab;
pub mod gem;
