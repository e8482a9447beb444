//! Sums and statistics of the channels of tensors `[image, channel, pixel]` on a GPU.
//!
//! # Why
//! A group of threads runs on one multiprocessor. ResNet-20 has layers of 16 channels, so that one group for each would
//! leave most of a GPU idle: an H100 has 132 multiprocessors. Therefore a channel is summed in parts, whose sums are added
//! by a second launch. The parts depend on the sizes alone, so that the result does not depend on the GPU.

use candle_core::{DType, Result, Shape, Tensor};

use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, of_one};

/// The least number of values in a part of a channel, except the last.
const MIN_PER_PART: usize = 4096;

/// The largest number of parts of a channel.
const MAX_PARTS: usize = 64;

/// The sizes of a tensor `[image, channel, ...]`, whose axes behind the second are the pixels.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) images: usize,
    pub(super) channels: usize,
    pub(super) pixels: usize,
    /// The largest number of parts of a channel.
    max_parts: usize,
}

impl Planes {
    pub(super) fn from_tensor(x: &Tensor) -> Self {
        let dims = x.dims();
        // The sum of a part would be rounded to the eight bits of bf16.
        let max_parts = if x.dtype() == DType::BF16 { 1 } else { MAX_PARTS };
        Self { images: dims[0], channels: dims[1], pixels: dims[2..].iter().product(), max_parts }
    }

    /// The number of values of a channel.
    pub(super) fn count(self) -> usize {
        self.images * self.pixels
    }

    /// The channel of a value.
    pub(super) fn channel(self, at: usize) -> usize {
        at / self.pixels.max(1) % self.channels.max(1)
    }

    /// The number of values in a part of a channel; the last part may have fewer.
    pub(super) fn per_part(self) -> usize {
        self.count().div_ceil(self.max_parts).max(MIN_PER_PART)
    }

    /// The number of parts of a channel.
    pub(super) fn parts(self) -> usize {
        self.count().div_ceil(self.per_part()).max(1)
    }

    /// The number of values in this part.
    fn len_of(self, part: usize) -> usize {
        (self.count() - part * self.per_part()).min(self.per_part())
    }

    /// The part, of its channel, of a value.
    fn part(self, at: usize) -> usize {
        let image = at / (self.channels * self.pixels).max(1);
        (image * self.pixels + at % self.pixels.max(1)) / self.per_part()
    }

    /// The sum over each part of what `value` has at each position: `[part, channel]`.
    pub(super) fn part_sums(self, value: impl Fn(usize) -> f32) -> Vec<f64> {
        let mut sums = vec![0.0; self.parts() * self.channels];
        for at in 0..self.count() * self.channels {
            sums[self.part(at) * self.channels + self.channel(at)] += f64::from(value(at));
        }
        sums
    }

    /// A kernel with a group of threads for each part of a channel, and with the sizes.
    pub(super) fn for_each_part(self, name: &'static str) -> Result<KernelCall> {
        let numbers = [self.count(), self.channels, self.pixels, self.per_part()];
        KernelCall::for_each_group(name, self.parts() * self.channels).with(&numbers)
    }
}

/// The sum of each channel of `[image, channel, ...]`: `[channel]`.
pub(super) fn channel_sums(x: &Tensor) -> Result<Tensor> {
    sum_of_parts(&of_one(PartSums(Planes::from_tensor(x)), x)?)
}

/// The sum over the first axis, over parts of channels.
pub(super) fn sum_of_parts(parts: &Tensor) -> Result<Tensor> {
    let n = parts.dims()[0];
    if n == 1 { parts.squeeze(0) } else { of_one(SumOfParts { parts: n }, parts) }
}

struct PartSums(Planes);

impl DeviceOp<1> for PartSums {
    const NAME: &'static str = "sums of channels";

    fn shape(&self, _: [&Shape; 1]) -> Shape {
        Shape::from((self.0.parts(), self.0.channels))
    }

    fn kernel(&self, _: usize) -> Result<KernelCall> {
        self.0.for_each_part("channel_sums")
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let sums = self.0.part_sums(|at| inputs[0][at]);
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
    }
}

struct SumOfParts {
    parts: usize,
}

impl DeviceOp<1> for SumOfParts {
    const NAME: &'static str = "sum of parts";

    fn shape(&self, [parts]: [&Shape; 1]) -> Shape {
        Shape::from(&parts.dims()[1..])
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        KernelCall::for_each("add_parts", values).with(&[self.parts])
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        out.fill(0.0);
        for part in inputs[0].chunks_exact(out.len().max(1)) {
            out.iter_mut().zip(part).for_each(|(out, sum)| *out += sum);
        }
    }
}

/// The mean and the variance of each channel: `[2, channel]`.
pub(crate) fn channel_statistics(x: &Tensor) -> Result<Tensor> {
    let planes = Planes::from_tensor(x);
    let parts = of_one(PartStatistics(planes), x)?;
    if planes.parts() == 1 { parts.squeeze(0) } else { of_one(MergedStatistics(planes), &parts) }
}

/// The mean and the variance of each part of a channel: `[part, 2, channel]`.
struct PartStatistics(Planes);

impl DeviceOp<1> for PartStatistics {
    const NAME: &'static str = "statistics of channels";

    fn shape(&self, _: [&Shape; 1]) -> Shape {
        Shape::from((self.0.parts(), 2, self.0.channels))
    }

    fn kernel(&self, _: usize) -> Result<KernelCall> {
        self.0.for_each_part("statistics")
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let (x, planes, channels) = (inputs[0], self.0, self.0.channels);
        let means: Vec<f32> = planes
            .part_sums(|at| x[at])
            .iter()
            .enumerate()
            .map(|(group, sum)| (sum / planes.len_of(group / channels) as f64) as f32)
            .collect();
        let mean = |at: usize| means[planes.part(at) * channels + planes.channel(at)];
        let squares = planes.part_sums(|at| (x[at] - mean(at)).powi(2));
        for (group, (mean, squares)) in means.iter().zip(squares).enumerate() {
            let (part, channel) = (group / channels, group % channels);
            out[2 * part * channels + channel] = *mean;
            out[(2 * part + 1) * channels + channel] =
                (squares / planes.len_of(part) as f64) as f32;
        }
    }
}

/// The mean and the variance of each channel, from those of its parts.
struct MergedStatistics(Planes);

impl DeviceOp<1> for MergedStatistics {
    const NAME: &'static str = "statistics of parts";

    fn shape(&self, _: [&Shape; 1]) -> Shape {
        Shape::from((2, self.0.channels))
    }

    fn kernel(&self, _: usize) -> Result<KernelCall> {
        let numbers = [self.0.parts(), self.0.count(), self.0.per_part()];
        KernelCall::for_each("merge_statistics", self.0.channels).with(&numbers)
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let (planes, channels, count) = (self.0, self.0.channels, self.0.count() as f64);
        let of_part = |part: usize, channel: usize| {
            let at = 2 * part * channels + channel;
            (planes.len_of(part) as f64, inputs[0][at], inputs[0][at + channels])
        };
        for channel in 0..channels {
            let parts = (0..planes.parts()).map(|part| of_part(part, channel));
            let sum: f64 = parts.clone().map(|(n, mean, _)| n * f64::from(mean)).sum();
            let mean = (sum / count) as f32;
            let squares = parts.map(|(n, of_part, v)| n * f64::from(v + (of_part - mean).powi(2)));
            out[channel] = mean;
            out[channels + channel] = (squares.sum::<f64>() / count) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::testing::{device_of, numbers};

    /// The value of a position, whose mean differs by channel and from image to image.
    fn value(image: usize, channel: usize, pixel: usize) -> f64 {
        let noise = ((image * 31 + channel * 7 + pixel) * 5 % 23) as f64 * 0.1;
        noise + channel as f64 - 0.01 * image as f64
    }

    /// Channels of one part, of several whose last is shorter, and of the most, compared with sums over all values. The
    /// mean changes along a channel, so that the variance of the parts' means counts.
    #[test]
    fn sums_and_statistics_of_parts_are_those_of_the_channel() {
        let device = device_of(Backend::Device(DType::F32));
        for (images, channels, pixels, parts) in [(5, 3, 20, 1), (40, 3, 250, 3), (300, 2, 900, 64)]
        {
            let positions = (0..images).flat_map(|image| {
                (0..channels).flat_map(move |c| (0..pixels).map(move |p| value(image, c, p) as f32))
            });
            let x: Vec<f32> = positions.collect();
            let x = Tensor::from_vec(x, (images, channels, pixels), &device).unwrap();
            assert_eq!(Planes::from_tensor(&x).parts(), parts);
            let sums = numbers(&channel_sums(&x).unwrap());
            let statistics = numbers(&channel_statistics(&x).unwrap());
            assert_eq!((sums.len(), statistics.len()), (channels, 2 * channels));
            for c in 0..channels {
                let all = (0..images).flat_map(|i| (0..pixels).map(move |p| value(i, c, p)));
                let count = (images * pixels) as f64;
                let mean = all.clone().sum::<f64>() / count;
                let variance = all.map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                for (what, got, want) in [
                    ("sum", sums[c], mean * count),
                    ("mean", statistics[c], mean),
                    ("variance", statistics[channels + c], variance),
                ] {
                    let error = (f64::from(got) - want).abs();
                    assert!(error < 1e-5 * want.abs().max(1.0), "{what} {c}: {got}, {want}");
                }
            }
        }
    }
}
