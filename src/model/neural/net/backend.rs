//! The implementation of a network's layers, chosen once when the network is built.

use candle_core::{DType, Device, Result, Tensor};

use crate::model::neural::net::host::format::by_pixel;
use crate::model::neural::net::precision::Precision;

/// The implementation of layers: the operations of `host/`, or those of `gpu/` and candle. Both give every layer the
/// same outputs and gradients, up to rounding.
///
/// # Why
/// On the host, candle-nn's layers take longer than ours, or are wrong ([`layers`](super::layers) has the figures). So there
/// each layer is our own operation with its own backward pass, as one node of candle's graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The operations of `host/`, for images with the axes `[row, column, image, channel]`.
    Host,
    /// The operations of `gpu/`, and candle's where it has none, with matrix products and convolutions in this data type,
    /// for images with the axes `[image, channel, row, column]`.
    Device(DType),
}

impl Backend {
    /// The backend for a device and a precision.
    pub(crate) fn new(device: &Device, precision: Precision) -> Self {
        match precision {
            _ if device.is_cpu() => Self::Host,
            Precision::Bf16 if device.is_cuda() => Self::Device(DType::BF16),
            _ => Self::Device(DType::F32),
        }
    }

    /// Images `[image, channel, row, column]` in the axis order of the backend; tensors of other ranks unchanged.
    pub(crate) fn images(self, x: &Tensor) -> Result<Tensor> {
        if self == Self::Host { by_pixel(x) } else { Ok(x.clone()) }
    }
}
