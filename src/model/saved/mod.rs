//! What a fit writes to disk: the arrays of a model, and the checkpoint of an interrupted fit.

pub(super) mod checkpoint;
pub(crate) mod snapshot;
