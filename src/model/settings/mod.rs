//! What settings of several kinds have in common, and what a kind says that it can do.

pub(super) mod capabilities;
pub(super) mod given_prior;
pub mod preset;
