//! The memory layout of images on the host.
//!
//! # Why
//! In the matrix `[row, column, image][channel]` the operands of convolutions are contiguous rows, which need no
//! copies, and norms and sums run along the rows.

use candle_core::{Result, Tensor};

/// Images `[image, channel, row, column]` as `[row, column, image, channel]`; tensors of other ranks are only made
/// contiguous.
pub(crate) fn by_pixel(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.permute((2, 3, 0, 1))?.contiguous() } else { x.contiguous() }
}

/// `[row, column, image, channel]` as `[image, channel, row, column]`; tensors of other ranks unchanged.
pub(crate) fn by_image(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.permute((2, 3, 0, 1))?.contiguous() } else { Ok(x.clone()) }
}
