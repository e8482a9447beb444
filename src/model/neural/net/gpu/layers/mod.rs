//! The operations of layers, one a file.

pub(crate) mod channels;
pub(crate) mod conv;
pub(crate) mod dense;
pub(crate) mod dropout;
pub(crate) mod max_pool;
pub(crate) mod norm;
pub(super) mod patches;
pub(crate) mod relu;
