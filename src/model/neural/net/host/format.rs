//! The order in which the host keeps the numbers of images.
//!
//! # Why
//! The matrix `[row, column, image][channel]` makes convolutions products of what lies in memory, and norms and sums run
//! along its rows.

use candle_core::{Result, Tensor};

/// Images `[image, channel, row, column]` as `[row, column, image, channel]`; tensors of other ranks as they are,
/// contiguous.
pub(crate) fn by_pixel(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.permute((2, 3, 0, 1))?.contiguous() } else { x.contiguous() }
}

/// `[row, column, image, channel]` as `[image, channel, row, column]`; tensors of other ranks as they are.
pub(crate) fn by_image(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.permute((2, 3, 0, 1))?.contiguous() } else { Ok(x.clone()) }
}
