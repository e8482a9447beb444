//! The order in which the host keeps the numbers of images.
//!
//! # Why
//! The matrix `[row, column, image][channel]` makes convolutions products of what lies in memory, and norms and sums run
//! along its rows. candle's shape stays `[image, channel, row, column]`, with strides of its own, so that every other
//! operation sees the same numbers.

use candle_core::{Result, Tensor};

/// The same numbers in shared memory as `[row, column, image, channel]`, copied only where they lie in another order;
/// tensors of other ranks as they are, contiguous.
pub(crate) fn by_pixel(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.permute((2, 3, 0, 1))?.contiguous() } else { x.contiguous() }
}

/// `[image, channel, row, column]` of numbers as [`by_pixel`] orders them.
pub(crate) fn by_image(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.permute((2, 3, 0, 1)) } else { Ok(x.clone()) }
}

/// The numbers of `[image, channel, row, column]` from those of `[row, column, image, channel]`.
pub(crate) fn images(
    values: Vec<f32>,
    dims: (usize, usize, usize, usize),
    like: &Tensor,
) -> Result<Tensor> {
    let (images, channels, height, width) = dims;
    by_image(&Tensor::from_vec(values, (height, width, images, channels), like.device())?)
}
