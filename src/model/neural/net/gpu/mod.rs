//! Operations of a network's layers on a GPU, each one node of candle's graph with a backward pass of its own.
//!
//! # Why
//! Two steps and a prediction of VGG-16, made of candle's operations, spent 125 ms of an H100 in 3 058 kernels; with
//! those of `kernels/` they spent 36 ms in 1 128 (`benches/networks.md`). A batch norm with its ReLU, for one, was a
//! dozen passes over all pixels forwards and thirty backwards, and is three and two. candle also computes the
//! gradients of training data, and the gradient of a convolution by its input with a kernel that reads every value
//! once for each cell.
//!
//! An operation is a [`DeviceOp`](op::DeviceOp): a kernel, and loops that compute the same on the CPU for the tests.
//! Those of layers are in `layers/`.

pub(crate) mod augment;
pub(crate) mod copies;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
mod cuda_copies;
mod kernel;
pub(crate) mod layers;
pub(crate) mod loss;
mod op;
pub(crate) mod optimiser;
mod swapped;
#[cfg(test)]
mod tests;
