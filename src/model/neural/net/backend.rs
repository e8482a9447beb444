//! What computes the layers of a network: chosen once, when the network is built.

use candle_core::{DType, Device, Result, Tensor};

use crate::model::neural::net::Precision;
use crate::model::neural::net::host::format::by_pixel;

/// What computes layers. Every layer has the same outputs and gradients with both, up to rounding.
///
/// # Why
/// On the host candle's convolution takes thirteen times as long as ours, and its graph of a norm a dozen passes over
/// memory; its pooling hands back a quarter of the gradient. So there each layer is an operation of ours with a backward
/// pass of its own; candle's graph joins them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The operations of `host/`, for images of the axes `[row, column, image, channel]`.
    Host,
    /// candle's own operations, with products in this type of numbers, for images of the axes
    /// `[image, channel, row, column]`.
    Candle(DType),
}

impl Backend {
    /// That of a device.
    pub(crate) fn new(device: &Device, precision: Precision) -> Self {
        match precision {
            _ if device.is_cpu() => Self::Host,
            Precision::Bf16 if device.is_cuda() => Self::Candle(DType::BF16),
            _ => Self::Candle(DType::F32),
        }
    }

    /// Images `[image, channel, row, column]` as layers take them; tensors of other ranks as they are.
    pub(crate) fn images(self, x: &Tensor) -> Result<Tensor> {
        if self == Self::Host { by_pixel(x) } else { Ok(x.clone()) }
    }
}
