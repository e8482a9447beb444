//! The layers of networks, one at a time, for the benchmark that compares them with those of candle-nn.

use candle_core::{Device, Tensor};

use super::batch_norm::BatchNorm;
use super::convolution::Convolution;
use super::layer_builder::LayerBuilder;
use crate::error::Result;
use crate::job_context::{JobContext, Rng};
use crate::model::neural::device::{DeviceChoice, from_candle};
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::forward_pass::mode::Mode;
use crate::model::neural::net::layers::{Activation, Dense, Layer};
use crate::model::neural::net::parameters::{Initialisation, Parameters};
use crate::model::neural::net::precision::Precision;

/// A kind of layer with its sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SingleLayerKind {
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

/// A layer in training.
pub struct SingleLayer {
    layer: Layer,
    backend: Backend,
    device: Device,
    rng: Rng,
}

impl SingleLayer {
    /// Draws the layer's parameters, on the device of this name: `cpu` or `cuda:0`.
    ///
    /// # Errors
    /// When the device cannot be used, or there is no memory for the parameters.
    pub fn new(kind: SingleLayerKind, device: &str) -> Result<Self> {
        let job = JobContext::new(0);
        let device = DeviceChoice::parse(device)?.open(&job, || Ok(0))?;
        let build = |layers: &LayerBuilder| {
            Ok(match kind {
                SingleLayerKind::Linear(from, to) => Layer::Dense(Dense::new(layers, from, to)?),
                SingleLayerKind::Convolution(from, to) => {
                    let shape = [to, from, 3, 3];
                    let (weight, bias) = layers.weight_and_bias(&shape, to, 9 * from, 9 * to)?;
                    Layer::Convolution(Convolution { weight, bias, padding: 1, stride: 1 })
                }
                SingleLayerKind::BatchNorm(n) => Layer::BatchNorm(BatchNorm::new(layers, n, true)?),
                SingleLayerKind::Relu => Layer::Activation(Activation::Relu),
                SingleLayerKind::Dropout(share) => Layer::Dropout(share),
                SingleLayerKind::MaxPool => Layer::MaxPool,
                SingleLayerKind::MeanPool => Layer::MeanPool,
            })
        };
        let parameters = Parameters::new(&job, &device, Initialisation::Uniform);
        let (layer, _) = parameters.build(build)?;
        let backend = Backend::new(&device, Precision::F32);
        Ok(Self { layer, backend, device, rng: job.rng("dropout") })
    }

    /// The layer's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Rows, or images `[image, channel, row, column]`, in the axis order of the layer.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn input(&self, x: &Tensor) -> Result<Tensor> {
        from_candle(self.backend.images(x))
    }

    /// The layer's output for an input in its axis order.
    ///
    /// # Errors
    /// When the input does not fit the layer.
    pub fn forward(&mut self, x: &Tensor) -> Result<Tensor> {
        let mut mode = Mode::Training(&mut self.rng);
        self.layer.forward(x, &mut mode, self.backend)
    }
}
