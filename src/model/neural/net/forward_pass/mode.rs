//! The mode of a forward pass.

use candle_core::Tensor;

use crate::job_context::Rng;

/// Whether a forward pass trains or predicts.
pub enum Mode<'a> {
    /// Dropout draws masks from this stream, and batch norm uses the statistics of the batch.
    Training(&'a mut Rng),
    /// As in training, but batch norm uses its running statistics, which stay as they are.
    Tuning(&'a mut Rng),
    /// Nothing is random, and batch norm uses its running statistics.
    Fixed,
}

impl Mode<'_> {
    /// The parameter for a layer's computation: in training a variable of candle's graph, else detached from the graph.
    ///
    /// # Why
    /// Without variables the outputs are no nodes of a graph. A graph would keep the input of every layer in memory.
    pub(crate) fn parameter(&self, parameter: &Tensor) -> Tensor {
        match self {
            Self::Training(_) | Self::Tuning(_) => parameter.clone(),
            Self::Fixed => parameter.detach(),
        }
    }
}
