//! What a forward pass is for.

use candle_core::Tensor;

use crate::run::Rng;

/// Whether a forward pass trains or predicts.
pub enum Mode<'a> {
    /// Dropout draws masks from this stream, and batch norm uses the statistics of the batch.
    Training(&'a mut Rng),
    /// Nothing is random, and batch norm uses its running statistics.
    Fixed,
}

impl Mode<'_> {
    /// A parameter as a layer takes it: in training a variable of candle's graph.
    ///
    /// # Why
    /// Outputs of what is no variable are no nodes of a graph, which would keep what every layer was given.
    pub(crate) fn parameter(&self, parameter: &Tensor) -> Tensor {
        match self {
            Self::Training(_) => parameter.clone(),
            Self::Fixed => parameter.detach(),
        }
    }
}
