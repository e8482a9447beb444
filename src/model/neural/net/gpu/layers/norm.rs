//! Batch normalisation on a GPU, of tensors `[image, channel, pixel]`.

use candle_core::{Result, Shape, Tensor, Var};

use super::channels::{Planes, sum_of_parts};
use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, OnDevice, expect_len, of_three, set_to};

/// Moves `running` by `share` to `factor` times what a batch has.
pub(crate) fn move_running(running: &Var, seen: &Tensor, share: f64, factor: f64) -> Result<()> {
    expect_len("a running statistic", running, seen.elem_count())?;
    let moved = Moved { kept: (1.0 - share) as f32, added: (share * factor) as f32 };
    set_to(moved, running, seen)
}

struct Moved {
    kept: f32,
    added: f32,
}

impl DeviceOp<2> for Moved {
    const NAME: &'static str = "running statistic";

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        Ok(KernelCall {
            factors: vec![self.kept, self.added],
            ..KernelCall::for_each("moved", values)
        })
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        for ((out, running), seen) in out.iter_mut().zip(inputs[0]).zip(inputs[1]) {
            *out = self.kept * running + self.added * seen;
        }
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * scale + shift`, followed by ReLU where the settings say so. `scale` and `shift`
/// are `[channel]`, the statistics `[2, channel]`.
pub(crate) fn normalised(
    x: &Tensor,
    [scale, shift]: [&Tensor; 2],
    statistics: Tensor,
    settings: NormSettings,
) -> Result<Tensor> {
    let planes = Planes::from_tensor(x);
    for (what, tensor, rows) in
        [("a scale", scale, 1), ("a shift", shift, 1), ("statistics", &statistics, 2)]
    {
        expect_len(what, tensor, rows * planes.channels)?;
    }
    let normalise = Normalise { planes, statistics, settings };
    x.contiguous()?.apply_op3(scale, shift, OnDevice(normalise))
}

/// What a batch norm computes beside its parameters.
#[derive(Clone, Copy)]
pub(crate) struct NormSettings {
    /// Whether the statistics are functions of the input.
    pub(crate) is_of_batch: bool,
    /// Whether a ReLU follows.
    pub(crate) relu: bool,
    /// Added to a variance before its square root is taken.
    pub(crate) epsilon: f32,
}

#[derive(Clone)]
struct Normalise {
    planes: Planes,
    statistics: Tensor,
    settings: NormSettings,
}

impl Normalise {
    /// The kernel with the sizes, the flags and epsilon.
    fn with(&self, kernel: KernelCall) -> Result<KernelCall> {
        let (planes, relu) = (self.planes, usize::from(self.settings.relu));
        let kernel = kernel.with(&[planes.count(), planes.channels, planes.pixels, relu])?;
        Ok(KernelCall { factors: vec![self.settings.epsilon], ..kernel })
    }

    /// The normalised value, and the inverse deviation, at this position.
    fn at(&self, at: usize, x: &[f32], statistics: &[f32]) -> (f32, f32) {
        let (channel, channels) = (self.planes.channel(at), self.planes.channels);
        let inverse = 1.0 / (statistics[channels + channel] + self.settings.epsilon).sqrt();
        ((x[at] - statistics[channel]) * inverse, inverse)
    }

    /// The gradient before the ReLU.
    fn before_relu(&self, out: f32, gradient: f32) -> f32 {
        if self.settings.relu && (out <= 0.0 || out.is_nan()) { 0.0 } else { gradient }
    }
}

impl DeviceOp<3> for Normalise {
    const NAME: &'static str = "batch norm";

    fn more_inputs(&self) -> Result<Vec<Tensor>> {
        Ok(vec![self.statistics.clone()])
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        self.with(KernelCall::for_each("normalise", values))
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        for (at, out) in out.iter_mut().enumerate() {
            let channel = self.planes.channel(at);
            let y = self.at(at, inputs[0], inputs[3]).0 * inputs[1][channel] + inputs[2][channel];
            *out = if self.settings.relu && y < 0.0 { 0.0 } else { y };
        }
    }

    fn backward(
        &self,
        [x, scale, shift]: [&Tensor; 3],
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let sums = sum_of_parts(&of_three(NormSums(self.clone()), [x, out, gradient])?)?;
        let row = |n: usize, like: &Tensor| {
            like.track_op().then(|| sums.narrow(0, n, 1)?.reshape(like.dims())).transpose()
        };
        let (of_shift, of_scale) = (row(0, shift)?, row(1, scale)?);
        let of_x = if x.track_op() {
            let more = [self.statistics.clone(), scale.detach(), sums];
            Some(of_three(NormGradient(self.clone(), more), [x, out, gradient])?)
        } else {
            None
        };
        Ok([of_x, of_scale, of_shift])
    }
}

/// The sums of the gradient, and of its product with the normalised values, over each part of a channel: `[part, 2,
/// channel]`. Added over the parts, they are the gradients of shift and scale.
struct NormSums(Normalise);

impl DeviceOp<3> for NormSums {
    const NAME: &'static str = "sums of a batch norm's gradient";

    fn shape(&self, _: [&Shape; 3]) -> Shape {
        Shape::from((self.0.planes.parts(), 2, self.0.planes.channels))
    }

    fn more_inputs(&self) -> Result<Vec<Tensor>> {
        self.0.more_inputs()
    }

    fn kernel(&self, _: usize) -> Result<KernelCall> {
        let mut kernel = self.0.planes.for_each_part("norm_sums")?;
        kernel.numbers.push(u32::from(self.0.settings.relu));
        Ok(KernelCall { factors: vec![self.0.settings.epsilon], ..kernel })
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let (norm, planes) = (&self.0, self.0.planes);
        let &[x, y, gradient, statistics] = inputs else { return };
        let before_relu = |at: usize| norm.before_relu(y[at], gradient[at]);
        let sums = planes.part_sums(before_relu);
        let products = planes.part_sums(|at| before_relu(at) * norm.at(at, x, statistics).0);
        let channels = planes.channels.max(1);
        let of_parts = sums.chunks_exact(channels).zip(products.chunks_exact(channels));
        let all = of_parts.flat_map(|(sums, products)| sums.iter().chain(products));
        out.iter_mut().zip(all).for_each(|(out, sum)| *out = *sum as f32);
    }
}

/// The gradient of the input, by the statistics, the scale and the sums. With the statistics of the batch, the gradient
/// loses its mean and its part along the normalised values.
struct NormGradient(Normalise, [Tensor; 3]);

impl DeviceOp<3> for NormGradient {
    const NAME: &'static str = "gradient of a batch norm";

    fn more_inputs(&self) -> Result<Vec<Tensor>> {
        Ok(self.1.to_vec())
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        let mut kernel = self.0.with(KernelCall::for_each("norm_gradient", values))?;
        kernel.numbers.push(u32::from(self.0.settings.is_of_batch));
        Ok(kernel)
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let (norm, planes) = (&self.0, self.0.planes);
        let &[x, y, gradient, statistics, scale, sums] = inputs else { return };
        for (at, out) in out.iter_mut().enumerate() {
            let channel = planes.channel(at);
            let (normed, inverse) = norm.at(at, x, statistics);
            let mut g = norm.before_relu(y[at], gradient[at]);
            if norm.settings.is_of_batch {
                let along = normed * sums[planes.channels + channel];
                g -= (sums[channel] + along) / planes.count() as f32;
            }
            *out = g * inverse * scale[channel];
        }
    }
}
