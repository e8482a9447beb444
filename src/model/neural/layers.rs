//! The layers that backbones are built of.

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use rand::RngCore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::convolution::Convolution;
use super::pool;
use super::product::{affine, product, row_sum};
use super::tensor;
use super::vars::{Kind, Vars};
use crate::error::Result;
use crate::run::Rng;

/// What bends a layer's output.
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
}

/// Whether the network is learning, and where its dropout masks come from.
pub enum Mode<'a> {
    /// Dropout draws, batch norm looks at the batch.
    Training(&'a mut Rng),
    /// Nothing is random, batch norm uses what it learned.
    Fixed,
}

/// One layer.
pub enum Layer {
    /// `x W + b`
    Dense(Dense),
    /// A convolution of stride 1 over `[batch, channel, height, width]`.
    Convolution(Convolution),
    /// Batch normalisation.
    BatchNorm(BatchNorm),
    /// A pointwise function.
    Activation(Activation),
    /// Zeroes this share of the numbers while learning.
    Dropout(f64),
    /// The largest of each square of 2 x 2.
    MaxPool,
    /// All axes but the first become one.
    Flatten,
}

impl Layer {
    /// The layer's output, computed in `precision`, as a node of candle's graph; but a dense layer goes back by itself.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor, mode: &mut Mode<'_>, precision: DType) -> Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.forward(x),
            Self::BatchNorm(norm) => norm.forward(x, mode),
            Self::Dropout(share) => match mode {
                Mode::Training(rng) if *share > 0.0 => {
                    tensor(dropout_mask(rng, x, *share).and_then(|mask| x * mask))
                }
                _ => Ok(x.clone()),
            },
            Self::Convolution(convolution) => tensor(convolution.node(x, precision)),
            Self::Activation(activation) => tensor(match activation {
                Activation::Relu => x.relu(),
                Activation::Gelu => x.gelu(),
                Activation::Silu => x.silu(),
                Activation::Tanh => x.tanh(),
            }),
            Self::MaxPool => tensor(pool::node(x)),
            Self::Flatten => tensor(x.flatten_from(1)),
        }
    }
}

/// For each number of `x` zero with probability `share`, in steps of 2^-16, else what keeps the mean.
pub(super) fn dropout_mask(rng: &mut Rng, x: &Tensor, share: f64) -> candle_core::Result<Tensor> {
    let kept = (1.0 / (1.0 - share)) as f32;
    // A share of 1 is 2^16, which no draw reaches.
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
    pub(super) weight: Tensor,
    pub(super) bias: Tensor,
    /// Whether its input is the data: nobody asks for the data's gradient.
    is_first: bool,
}

impl Dense {
    /// Draws the layer, uniformly within one over the root of its inputs.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn new(
        vars: &mut Vars,
        name: &str,
        from: usize,
        to: usize,
        is_first: bool,
    ) -> Result<Self> {
        let bound = 1.0 / (from.max(1) as f64).sqrt();
        Ok(Self {
            weight: vars.uniform(&format!("{name}.weight"), Kind::Weight, &[from, to], bound)?,
            bias: vars.uniform(&format!("{name}.bias"), Kind::Bias, &[to], bound)?,
            is_first,
        })
    }

    /// `x W + b`, in the precision of `x`. Its gradients are those of [`Dense::backward`]: candle's graph sees none.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = self.weight.detach().to_dtype(x.dtype());
        tensor((|| affine(x, &weight?, &self.bias.detach().to_dtype(x.dtype())?))())
    }

    /// Puts the gradients of weight and bias into `found`, from the input and the gradient by the output, and returns
    /// that by the input, unless the input is the data.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn backward(
        &self,
        input: &Tensor,
        gradient: &Tensor,
        found: &mut GradStore,
    ) -> Result<Option<Tensor>> {
        tensor((|| {
            let gradient = gradient.to_dtype(input.dtype())?;
            let of_weight = product(&input.t()?, &gradient)?.to_dtype(self.weight.dtype())?;
            let of_bias = row_sum(&gradient)?.to_dtype(self.bias.dtype())?;
            found.insert(&self.weight, of_weight);
            found.insert(&self.bias, of_bias);
            if self.is_first {
                return Ok(None);
            }
            let weight = self.weight.detach().to_dtype(input.dtype())?;
            product(&gradient, &weight.t()?).map(Some)
        })())
    }
}

/// Batch normalisation over all axes but the second.
pub struct BatchNorm {
    scale_and_shift: Option<(Tensor, Tensor)>,
    mean: Var,
    variance: Var,
}

/// How fast the running statistics follow the batches.
const NORM_MOMENTUM: f64 = 0.1;

/// Added to a variance before its root is taken.
const NORM_EPSILON: f64 = 1e-5;

impl BatchNorm {
    /// For `n` columns or channels; with `affine`, scaled and shifted afterwards.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn new(vars: &mut Vars, name: &str, n: usize, affine: bool) -> Result<Self> {
        let mut constant =
            |part: &str, kind, value| vars.constant(&format!("{name}.{part}"), kind, &[n], value);
        let scale_and_shift = if affine {
            let (scale, shift) =
                (constant("scale", Kind::Bias, 1.0)?, constant("shift", Kind::Bias, 0.0)?);
            Some((scale.as_tensor().clone(), shift.as_tensor().clone()))
        } else {
            None
        };
        let (mean, variance) =
            (constant("mean", Kind::Buffer, 0.0)?, constant("variance", Kind::Buffer, 1.0)?);
        Ok(Self { scale_and_shift, mean, variance })
    }

    fn forward(&self, x: &Tensor, mode: &Mode<'_>) -> Result<Tensor> {
        tensor(self.normalise(x, matches!(mode, Mode::Training(_))))
    }

    fn normalise(&self, x: &Tensor, training: bool) -> candle_core::Result<Tensor> {
        let precision = x.dtype();
        let dims = x.dims().to_vec();
        let n = dims[1];
        // One column a channel: [batch x height x width, channel].
        let x = x.to_dtype(DType::F32)?;
        let rows = if dims.len() == 4 { x.permute((0, 2, 3, 1))?.reshape(((), n))? } else { x };
        let count = rows.dims()[0] as f64;
        let rows = if training && count > 1.0 {
            let mean = rows.mean_keepdim(0)?;
            let centred = rows.broadcast_sub(&mean)?;
            let variance = centred.sqr()?.mean_keepdim(0)?;
            let follow = |running: &Var, seen: &Tensor| {
                let kept = (running.as_detached_tensor() * (1.0 - NORM_MOMENTUM))?;
                running.set(&(kept + (seen.detach().reshape(n)? * NORM_MOMENTUM)?)?)
            };
            follow(&self.mean, &mean)?;
            follow(&self.variance, &(&variance * (count / (count - 1.0)))?)?;
            centred.broadcast_div(&(variance + NORM_EPSILON)?.sqrt()?)?
        } else {
            let deviation = (self.variance.as_detached_tensor() + NORM_EPSILON)?.sqrt()?;
            rows.broadcast_sub(&self.mean.as_detached_tensor())?.broadcast_div(&deviation)?
        };
        let rows = match &self.scale_and_shift {
            Some((scale, shift)) => rows.broadcast_mul(scale)?.broadcast_add(shift)?,
            None => rows,
        };
        let out = match dims[..] {
            [batch, _, height, width] => {
                rows.reshape((batch, height, width, n))?.permute((0, 3, 1, 2))?.contiguous()?
            }
            _ => rows,
        };
        out.to_dtype(precision)
    }
}
