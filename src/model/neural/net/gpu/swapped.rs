//! The first two axes of a tensor in the other order.

use candle_core::{Result, Shape, Tensor};

use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, of_one};

/// `[a, b, ...]` as `[b, a, the others together]`.
///
/// # Why
/// candle copies a view with swapped axes value by value, with a division for each axis.
pub(super) fn swapped(x: &Tensor) -> Result<Tensor> {
    let dims = x.dims();
    let inner = dims[2..].iter().product();
    of_one(Swapped { first: dims[0], second: dims[1], inner }, x)
}

struct Swapped {
    first: usize,
    second: usize,
    inner: usize,
}

impl DeviceOp<1> for Swapped {
    const NAME: &'static str = "swapped axes";

    fn shape(&self, _: [&Shape; 1]) -> Shape {
        Shape::from((self.second, self.first, self.inner))
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        KernelCall::for_each("swapped", values).with(&[self.first, self.second, self.inner])
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        for (at, values) in inputs[0].chunks_exact(self.inner.max(1)).enumerate() {
            let to = (at % self.second * self.first + at / self.second) * self.inner;
            out[to..to + self.inner].copy_from_slice(values);
        }
    }
}
