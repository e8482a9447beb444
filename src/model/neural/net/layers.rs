//! The layers that backbones are built of.

use candle_core::Tensor;
use rand::RngCore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::model::neural::from_candle;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::batch_norm::BatchNorm;
use crate::model::neural::net::convolution::Convolution;
use crate::model::neural::net::host::format::by_image;
use crate::model::neural::net::host::pointwise::{dropout, relu};
use crate::model::neural::net::host::product::affine;
use crate::model::neural::net::max_pool::max_pool;
use crate::model::neural::net::mean_pool::mean_pool;
use crate::model::neural::net::mode::Mode;
use crate::model::neural::net::parameters::Parameters;
use crate::model::neural::net::residual::Shortcut;
use crate::run::Rng;

/// The activation function of a hidden layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// max(x, 0)
    #[default]
    Relu,
    /// x Phi(x), in its tanh form
    Gelu,
    /// x sigmoid(x)
    Silu,
    /// tanh(x)
    Tanh,
    /// 1.0507 max(x, 0) + 1.7581 min(e^x - 1, 0): keeps mean 0 and variance 1 (Klambauer et al. 2017)
    Selu,
}

/// The constants of SELU (Klambauer, Unterthiner, Mayr, Hochreiter 2017, equation 14).
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// One layer.
pub enum Layer {
    /// `x W + b`
    Dense(Dense),
    /// A convolution over `[batch, channel, height, width]`.
    Convolution(Convolution),
    /// Layers whose output is added to their input.
    Residual(Residual),
    /// The shortcut of a residual block that changes the shape of its input.
    Shortcut(Shortcut),
    /// Batch normalisation.
    BatchNorm(BatchNorm),
    /// A pointwise function.
    Activation(Activation),
    /// Dropout: sets this share of the values to zero in training.
    Dropout(f64),
    /// The maximum of each square of 2 x 2.
    MaxPool,
    /// The mean of each channel.
    MeanPool,
    /// Joins all axes but the first.
    Flatten,
}

/// `layers(x) + x`, or `layers(x) + shortcut(x)`.
pub struct Residual {
    pub(crate) layers: Vec<Layer>,
    /// The shortcut around the layers; `None` for the identity.
    pub(crate) shortcut: Option<Shortcut>,
}

impl Layer {
    /// The shape of a row's output, given the shape of its input.
    pub(crate) fn output_shape(&self, input: &[usize]) -> Vec<usize> {
        match (self, input) {
            (Self::Dense(dense), _) => vec![dense.weight.dims()[1]],
            (Self::Convolution(convolution), &[_, height, width]) => {
                let after = |size| convolution.size_after(size);
                vec![convolution.weight.dims()[0], after(height), after(width)]
            }
            (Self::Residual(block), _) => block.output_shape(input),
            (Self::Shortcut(shortcut), _) => shortcut.output_shape(input),
            (Self::MaxPool, &[channels, height, width]) => vec![channels, height / 2, width / 2],
            (Self::MeanPool, &[channels, ..]) => vec![channels],
            (Self::Flatten, _) => vec![input.iter().product()],
            _ => input.to_vec(),
        }
    }

    /// One of the layer's parameters or running statistics, if it has any.
    pub(crate) fn first_parameter(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(dense) => Some(&dense.weight),
            Self::Convolution(convolution) => Some(&convolution.weight),
            Self::BatchNorm(norm) => Some(norm.running_mean()),
            Self::Residual(_)
            | Self::Shortcut(_)
            | Self::Activation(_)
            | Self::Dropout(_)
            | Self::MaxPool
            | Self::MeanPool
            | Self::Flatten => None,
        }
    }

    /// The layer's output: a node of candle's graph if the input is one, or in training.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor, mode: &mut Mode<'_>, backend: Backend) -> Result<Tensor> {
        from_candle(match self {
            Self::Dense(dense) => return dense.forward(x, mode, backend),
            Self::Convolution(convolution) => convolution.forward(x, mode, backend),
            Self::BatchNorm(norm) => norm.forward(x, mode, backend, false),
            Self::Residual(block) => return block.forward(x, mode, backend),
            Self::Shortcut(shortcut) => shortcut.forward(x, backend),
            Self::Activation(activation) => activation.forward(x, backend),
            Self::Dropout(share) => match mode {
                Mode::Training(rng) if *share > 0.0 => {
                    dropout_mask(rng, x, *share).and_then(|mask| match backend {
                        Backend::Host => dropout(x, &mask),
                        Backend::Candle(_) => x * mask,
                    })
                }
                _ => return Ok(x.clone()),
            },
            Self::MaxPool => max_pool(x, backend),
            Self::MeanPool => mean_pool(x, backend),
            Self::Flatten => match backend {
                Backend::Host => by_image(x).and_then(|x| x.flatten_from(1)),
                Backend::Candle(_) => x.flatten_from(1),
            },
        })
    }
}

/// The output of a sequence of layers; a batch norm also computes the ReLU that follows it.
///
/// # Errors
/// When the device fails.
pub(crate) fn forward_all(
    layers: &[Layer],
    x: &Tensor,
    mode: &mut Mode<'_>,
    backend: Backend,
) -> Result<Tensor> {
    let (mut out, mut rest) = (x.clone(), layers);
    while let [layer, others @ ..] = rest {
        (out, rest) = match (layer, others) {
            (Layer::BatchNorm(norm), [Layer::Activation(Activation::Relu), others @ ..]) => {
                (from_candle(norm.forward(&out, mode, backend, true))?, others)
            }
            _ => (layer.forward(&out, mode, backend)?, others),
        };
    }
    Ok(out)
}

impl Activation {
    fn forward(self, x: &Tensor, backend: Backend) -> candle_core::Result<Tensor> {
        match self {
            Self::Relu if backend == Backend::Host => relu(x),
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu(),
            Self::Silu => x.silu(),
            Self::Tanh => x.tanh(),
            Self::Selu => x.elu(SELU_ALPHA)? * SELU_SCALE,
        }
    }
}

impl Residual {
    /// The shape of a row's output, given the shape of its input.
    pub(crate) fn output_shape(&self, input: &[usize]) -> Vec<usize> {
        self.layers.iter().fold(input.to_vec(), |shape, layer| layer.output_shape(&shape))
    }

    fn forward(&self, x: &Tensor, mode: &mut Mode<'_>, backend: Backend) -> Result<Tensor> {
        let out = forward_all(&self.layers, x, mode, backend)?;
        let beside =
            self.shortcut.map_or_else(|| Ok(x.clone()), |shortcut| shortcut.forward(x, backend));
        from_candle(beside.and_then(|beside| &out + beside.to_dtype(out.dtype())?))
    }
}

/// The dropout mask of `x`: each value is zero with probability `share`, in steps of 2^-16, else `1 / (1 - share)`.
pub(crate) fn dropout_mask(rng: &mut Rng, x: &Tensor, share: f64) -> candle_core::Result<Tensor> {
    let kept = (1.0 / (1.0 - share)) as f32;
    // The share is at most 1, so the product is at most 2^16.
    #[allow(clippy::cast_sign_loss)]
    let below = (share * 65_536.0).round() as u32;
    let mut drawn = vec![0; 2 * x.elem_count()];
    rng.fill_bytes(&mut drawn);
    let drawn = drawn.as_chunks::<2>().0.iter().map(|bytes| u32::from(u16::from_le_bytes(*bytes)));
    let mask: Vec<f32> = drawn.map(|drawn| if drawn < below { 0.0 } else { kept }).collect();
    Tensor::from_vec(mask, x.dims(), x.device())?.to_dtype(x.dtype())
}

/// A fully connected layer.
#[derive(Clone)]
pub struct Dense {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
}

impl Dense {
    /// Draws weights and biases as the backbone's `initialisation` says.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(parameters: &mut Parameters, name: &str, from: usize, to: usize) -> Result<Self> {
        let (weight, bias) = parameters.layer(name, &[from, to], to, from, to)?;
        Ok(Self { weight, bias })
    }

    /// `x W + b`, in the precision of the backend.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor, mode: &Mode<'_>, backend: Backend) -> Result<Tensor> {
        let (weight, bias) = (mode.parameter(&self.weight), mode.parameter(&self.bias));
        from_candle(match backend {
            Backend::Host => affine(x, &weight, &bias),
            Backend::Candle(precision) => (|| {
                let x = x.to_dtype(precision)?.contiguous()?;
                x.matmul(&weight.to_dtype(precision)?)?.broadcast_add(&bias.to_dtype(precision)?)
            })(),
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::run::Run;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn dropout_keeps_the_mean_by_its_scale() {
        let ones = Tensor::ones((100, 100), DType::F32, &Device::Cpu).unwrap();
        let mask = numbers(&dropout_mask(&mut Run::new(1).rng("dropout"), &ones, 0.25).unwrap());
        assert!(mask.iter().all(|m| *m == 0.0 || (m - 4.0 / 3.0).abs() < 1e-6));
        let mean = mask.iter().sum::<f32>() / 10_000.0;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn selu_is_that_of_its_paper() {
        let x = Var::new(&[-1.0_f32, 0.5, 1.0], &Device::Cpu).unwrap();
        let layer = Layer::Activation(Activation::Selu);
        let y = layer.forward(&x, &mut Mode::Fixed, Backend::Host).unwrap();
        let slopes = y.sum_all().unwrap().backward().unwrap();
        let near = |got: Vec<f32>, want: [f32; 3]| {
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-5, "{got}, expected {want}");
            }
        };
        near(numbers(&y), [-1.111_331, 0.525_350, 1.050_701]);
        near(numbers(slopes.get(&x).unwrap()), [0.646_769, 1.050_701, 1.050_701]);
    }
}
