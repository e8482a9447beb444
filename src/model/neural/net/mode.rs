//! What a forward pass is for.

use crate::run::Rng;

/// Whether a forward pass trains or predicts.
pub enum Mode<'a> {
    /// Dropout draws masks from this stream, and batch norm uses the statistics of the batch.
    Training(&'a mut Rng),
    /// Nothing is random, and batch norm uses its running statistics.
    Fixed,
}
