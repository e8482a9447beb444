//! The layers of networks on the host, one at a time, for the benchmark that compares them with those of candle-nn.

use candle_core::{Device, Tensor};

use crate::error::Result;
use crate::model::neural::from_candle;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::batch_norm::BatchNorm;
use crate::model::neural::net::convolution::Convolution;
use crate::model::neural::net::host::format::by_pixel;
use crate::model::neural::net::layers::{Activation, Dense, Layer};
use crate::model::neural::net::mode::Mode;
use crate::model::neural::net::parameters::{Initialisation, Parameters};
use crate::run::{Rng, Run};

/// A kind of layer with its sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HostLayerKind {
    /// Fully connected: the numbers of inputs and outputs.
    Linear(usize, usize),
    /// A convolution by 3 x 3 kernels, with a padding of one pixel: the numbers of input and output channels.
    Convolution(usize, usize),
    /// Batch normalisation of this number of columns or channels, with a learned scale and shift.
    BatchNorm(usize),
    /// max(x, 0)
    Relu,
    /// Dropout of this share of the values.
    Dropout(f64),
    /// The maximum of each window of 2 x 2.
    MaxPool,
    /// The mean of each channel.
    MeanPool,
}

/// A layer on the host, in training.
pub struct HostLayer {
    layer: Layer,
    rng: Rng,
}

impl HostLayer {
    /// Draws the layer's parameters.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(kind: HostLayerKind) -> Result<Self> {
        let run = Run::new(0);
        let mut parameters = Parameters::new(&run, &Device::Cpu, Initialisation::Uniform);
        let layer = match kind {
            HostLayerKind::Linear(from, to) => {
                Layer::Dense(Dense::new(&mut parameters, "layer", from, to)?)
            }
            HostLayerKind::Convolution(from, to) => {
                let shape = [to, from, 3, 3];
                let (weight, bias) = parameters.layer("layer", &shape, to, 9 * from, 9 * to)?;
                Layer::Convolution(Convolution { weight, bias, padding: 1, stride: 1 })
            }
            HostLayerKind::BatchNorm(n) => {
                Layer::BatchNorm(BatchNorm::new(&mut parameters, "layer", n, true)?)
            }
            HostLayerKind::Relu => Layer::Activation(Activation::Relu),
            HostLayerKind::Dropout(share) => Layer::Dropout(share),
            HostLayerKind::MaxPool => Layer::MaxPool,
            HostLayerKind::MeanPool => Layer::MeanPool,
        };
        Ok(Self { layer, rng: run.rng("dropout") })
    }

    /// Rows, or images `[image, channel, row, column]`, in the axis order of the host's layers.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn input(x: &Tensor) -> Result<Tensor> {
        from_candle(by_pixel(x))
    }

    /// The layer's output for an input in the axis order of the host.
    ///
    /// # Errors
    /// When the input does not fit the layer.
    pub fn forward(&mut self, x: &Tensor) -> Result<Tensor> {
        let mut mode = Mode::Training(&mut self.rng);
        self.layer.forward(x, &mut mode, Backend::Host)
    }
}
