//! Maximum pooling over windows of 2 x 2 on a GPU, of images `[image, channel, row, column]`.

use candle_core::{Result, Shape, Tensor};

use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, OnDevice, of_two};

/// The pooled images. Of equal values the first is the largest, and NaN is larger than every number.
///
/// # Why
/// candle's pooling propagates only a quarter of the gradient, and hides NaN, by which a training shows that it has
/// diverged.
pub(crate) fn max_pool(x: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    x.contiguous()?.apply_op1(OnDevice(DeviceMaxPool { height, width }))
}

/// Rows and columns of the input.
#[derive(Clone, Copy)]
struct DeviceMaxPool {
    height: usize,
    width: usize,
}

impl DeviceMaxPool {
    /// The positions of the four values of each window, in all planes of `x`.
    fn windows(self, x: &[f32]) -> impl Iterator<Item = [usize; 4]> {
        let Self { height, width } = self;
        let columns = move |row: usize| (0..width / 2).map(move |x| 2 * row * width + 2 * x);
        let corners =
            move |first: usize| (0..height / 2).flat_map(columns).map(move |at| first + at);
        let planes =
            (0..x.len() / (height * width).max(1)).map(move |plane| plane * height * width);
        planes.flat_map(corners).map(move |at| [at, at + 1, at + width, at + width + 1])
    }
}

/// The position of the largest value of a window.
fn largest(x: &[f32], window: [usize; 4]) -> usize {
    window.into_iter().reduce(|a, b| if x[b] > x[a] || x[b].is_nan() { b } else { a }).unwrap_or(0)
}

impl DeviceOp<1> for DeviceMaxPool {
    const NAME: &'static str = "max pool";

    fn shape(&self, [x]: [&Shape; 1]) -> Shape {
        let dims = x.dims();
        Shape::from((dims[0], dims[1], self.height / 2, self.width / 2))
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        KernelCall::for_each("max_pool", values).with(&[self.height, self.width])
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let x = inputs[0];
        let windows = out.iter_mut().zip(self.windows(x));
        windows.for_each(|(out, window)| *out = x[largest(x, window)]);
    }

    fn backward(
        &self,
        [x]: [&Tensor; 1],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        of_two(MaxPoolGradient(*self), [x, gradient]).map(|of_x| [Some(of_x)])
    }
}

/// The gradient, given the input and the gradient of the output.
struct MaxPoolGradient(DeviceMaxPool);

impl DeviceOp<2> for MaxPoolGradient {
    const NAME: &'static str = "gradient of max pool";

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        KernelCall::for_each("max_pool_gradient", values).with(&[self.0.height, self.0.width])
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let x = inputs[0];
        out.fill(0.0);
        let windows = inputs[1].iter().zip(self.0.windows(x));
        windows.for_each(|(gradient, window)| out[largest(x, window)] = *gradient);
    }
}
