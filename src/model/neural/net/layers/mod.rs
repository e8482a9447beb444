//! The layers that backbones are built of.
//!
//! # Why
//! They are our own, because those of candle-nn take longer on the host: a linear layer 1.2 to 1.5 times as long, a ReLU
//! 1.2 to 2.7 times, dropout 3.0 to 5.7 times, a batch norm 12 to 22 times, a convolution 6.2 times and a max pool 7.4
//! times. Two are also wrong: its max pool propagates a quarter of the gradient, and its batch norm divides by zero for
//! a batch of one row. Its mean pool takes 0.55 of the time of ours, but does not read the order of axes of our
//! convolutions, and takes less than a thousandth of a step. `benches/networks.md` has the sizes and the machine.

pub(crate) mod batch_norm;
pub(super) mod conv_shape;
pub(crate) mod convolution;
pub(super) mod dropout;
pub(crate) mod layer_builder;
pub(crate) mod max_pool;
pub(super) mod mean_pool;
pub(crate) mod residual;
#[cfg(any(debug_assertions, feature = "testing"))]
pub(crate) mod single_layer;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward_pass::mode::Mode;
use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::host::format::by_image;
use crate::model::neural::net::host::product::affine;
use crate::model::neural::net::{gpu, host};
use batch_norm::BatchNorm;
use convolution::Convolution;
use dropout::Mask;
use layer_builder::LayerBuilder;
use max_pool::max_pool;
use mean_pool::mean_pool;
use residual::Shortcut;

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
    /// Batch normalisation.
    BatchNorm(BatchNorm),
    /// A pointwise function.
    Activation(Activation),
    /// Dropout: sets this share of the values to zero in training.
    Dropout(f64),
    /// The maximum of each window of 2 x 2.
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
            Self::Activation(activation) => activation.forward(x, backend),
            Self::Dropout(share) => match mode {
                Mode::Training(rng) | Mode::Tuning(rng) if *share > 0.0 => {
                    let mask = Mask::draw(rng, x.elem_count(), *share);
                    match backend {
                        Backend::Host => host::pointwise::dropout(x, &mask),
                        Backend::Device(_) => gpu::layers::dropout::dropout(x, mask),
                    }
                }
                _ => return Ok(x.clone()),
            },
            Self::MaxPool => max_pool(x, backend),
            Self::MeanPool => mean_pool(x, backend),
            Self::Flatten => match backend {
                Backend::Host => by_image(x).and_then(|x| x.flatten_from(1)),
                Backend::Device(_) => x.flatten_from(1),
            },
        })
    }
}

/// The output of a sequence of layers; a batch norm also computes the ReLU that follows it, and a convolution on the host
/// the ReLU and the max pool that follow it. A ReLU before a max pool is computed after it: the maximum of ReLUs is the
/// ReLU of the maximum, with the same gradient, for a quarter of the values.
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
            (
                Layer::Convolution(convolution),
                [Layer::Activation(Activation::Relu), Layer::MaxPool, others @ ..],
            ) if backend == Backend::Host => {
                (from_candle(convolution.forward_pooled(&out, mode))?, others)
            }
            (relu @ Layer::Activation(Activation::Relu), [pool @ Layer::MaxPool, others @ ..]) => {
                let pooled = pool.forward(&out, mode, backend)?;
                (relu.forward(&pooled, mode, backend)?, others)
            }
            _ => (layer.forward(&out, mode, backend)?, others),
        };
    }
    Ok(out)
}

impl Activation {
    fn forward(self, x: &Tensor, backend: Backend) -> candle_core::Result<Tensor> {
        match self {
            Self::Relu if backend == Backend::Host => host::pointwise::relu(x),
            Self::Relu => gpu::layers::relu::relu(x),
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
    pub fn new(layer: &LayerBuilder, from: usize, to: usize) -> Result<Self> {
        let (weight, bias) = layer.weight_and_bias(&[from, to], to, from, to)?;
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
            Backend::Device(precision) => (|| {
                let [weight, bias] = [weight, bias].map(|tensor| tensor.to_dtype(precision));
                gpu::layers::dense::affine(&x.to_dtype(precision)?, &weight?, &bias?)
            })(),
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::parameters::{Initialisation, Parameters};
    use crate::model::neural::net::testing::{
        device_of, gradients, numbers, on_device_of, on_host_again,
    };

    /// The same stream gives the same output and the same gradient on both backends, bit for bit, in a second call too: of
    /// values that are kept, times 1 / (1 - share), and zero of the others.
    #[test]
    fn dropout_has_the_same_masks_on_every_device() {
        let values = (0..63).map(|n| n as f32 * 0.25 - 4.0).collect::<Vec<_>>();
        let x = Var::from_vec(values, (7, 9), &Device::Cpu).unwrap();
        let slopes = Tensor::arange(1.0_f32, 64.0, &Device::Cpu).unwrap().reshape((7, 9)).unwrap();
        let calls = |backend| {
            let mut rng = JobContext::new(1).rng("dropout");
            [0.3, 0.7].map(|share| {
                let mode = &mut Mode::Training(&mut rng);
                let x_there = on_device_of(backend, &x);
                let out = Layer::Dropout(share).forward(&x_there, mode, backend).unwrap();
                let found = gradients(&on_host_again(&out), &slopes);
                (numbers(&out), numbers(found.get(&x).unwrap()))
            })
        };
        let host = calls(Backend::Host);
        assert_eq!(calls(Backend::Device(DType::F32)), host);
        for ((out, gradient), share) in host.iter().zip([0.3, 0.7]) {
            let scale = 1.0 / (1.0 - share);
            let is_masked =
                |(got, whole): (&f32, f32)| *got == 0.0 || (got / whole - scale).abs() < 1e-5;
            assert!(out.iter().zip(numbers(&x)).all(is_masked), "{out:?}");
            assert!(gradient.iter().zip(numbers(&slopes)).all(is_masked), "{gradient:?}");
            assert!(gradient.contains(&0.0) && gradient.iter().any(|d| *d > 0.0));
        }
        assert_ne!(host[0], host[1]);
    }

    /// NaN is kept, minus infinity is not, and the gradient is that of positive values, with a batch norm, too.
    #[test]
    fn relu_keeps_nan_on_every_device() {
        let values = [-2.0_f32, 3.0, f32::NAN, 0.0, f32::NEG_INFINITY, f32::INFINITY];
        let x = Var::from_slice(&values, (3, 2), &Device::Cpu).unwrap();
        for backend in [Backend::Host, Backend::Device(DType::F32)] {
            let layer = Layer::Activation(Activation::Relu);
            // A view with swapped axes: [-2, NaN, -inf], [3, 0, inf].
            let swapped = on_device_of(backend, &x).t().unwrap();
            let out = layer.forward(&swapped, &mut Mode::Fixed, backend).unwrap();
            let got = numbers(&out);
            assert!(got[1].is_nan(), "{backend:?}: {got:?}");
            assert_eq!(
                [got[0], got[2], got[3], got[4], got[5]],
                [0.0, 0.0, 3.0, 0.0, f32::INFINITY]
            );
            let slopes =
                Tensor::new(&[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap();
            let found = gradients(&on_host_again(&out), &slopes);
            assert_eq!(numbers(found.get(&x).unwrap()), [0.0, 4.0, 0.0, 0.0, 0.0, 6.0]);
            let device = device_of(backend);
            let parameters = Parameters::new(&JobContext::new(1), &device, Initialisation::Uniform);
            let norm = parameters.build(|layers| BatchNorm::new(&layers.pp("norm"), 2, false));
            let norm = Layer::BatchNorm(norm.unwrap().0);
            let x = on_device_of(backend, &x);
            let out = forward_all(&[norm, layer], &x, &mut Mode::Fixed, backend).unwrap();
            let got = numbers(&out);
            assert!(got[2].is_nan() && got[0] == 0.0 && got[1] > 2.9, "{backend:?}: {got:?}");
        }
    }

    /// Windows of numbers, of ties, of negative numbers, and with NaN.
    #[test]
    fn a_relu_before_a_max_pool_may_be_computed_after_it() {
        let values = [
            [1.0_f32, 2.0, -3.0, 0.5],
            [2.0, 2.0, 2.0, 1.0],
            [-1.0, -1.0, -2.0, -4.0],
            [0.0, -1.0, f32::NAN, 5.0],
        ];
        let layers = [Layer::Activation(Activation::Relu), Layer::MaxPool];
        let bits = |x: &Tensor| numbers(x).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for backend in [Backend::Host, Backend::Device(DType::F32)] {
            let x = Tensor::new(&values, &Device::Cpu).unwrap().reshape((4, 1, 2, 2)).unwrap();
            let x = on_device_of(backend, &backend.images(&x).unwrap());
            let x = Var::from_tensor(&x).unwrap();
            let one_by_one = layers.iter().fold(x.as_tensor().clone(), |x, layer| {
                layer.forward(&x, &mut Mode::Fixed, backend).unwrap()
            });
            let together = forward_all(&layers, x.as_tensor(), &mut Mode::Fixed, backend).unwrap();
            assert_eq!(bits(&together), bits(&one_by_one), "{backend:?}");
            let gradient = |y: &Tensor| {
                let slopes = y.sum_all().unwrap().backward().unwrap();
                numbers(slopes.get(&x).unwrap())
            };
            assert_eq!(gradient(&together), gradient(&one_by_one), "{backend:?}");
        }
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
