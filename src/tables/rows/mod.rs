//! Where the rows of a table come from, and how they are cut into parts.

pub(super) mod computed;
pub(super) mod cut;
pub(super) mod filled;
