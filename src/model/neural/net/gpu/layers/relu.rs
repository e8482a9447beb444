//! ReLU on a GPU.

use candle_core::{Result, Tensor};

use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, OnDevice, of_two};

/// `max(x, 0)`; NaN is kept.
///
/// # Why
/// On a GPU candle's ReLU is 0 for NaN, and so hides that the training has diverged.
pub(crate) fn relu(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(OnDevice(Relu))
}

struct Relu;

impl DeviceOp<1> for Relu {
    const NAME: &'static str = "relu";

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        Ok(KernelCall::for_each("relu", values))
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        out.iter_mut().zip(inputs[0]).for_each(|(out, x)| *out = if *x < 0.0 { 0.0 } else { *x });
    }

    fn backward(
        &self,
        _: [&Tensor; 1],
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        of_two(ReluGradient, [out, gradient]).map(|of_x| [Some(of_x)])
    }
}

/// The gradient, given the output and its gradient.
struct ReluGradient;

impl DeviceOp<2> for ReluGradient {
    const NAME: &'static str = "gradient of relu";

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        Ok(KernelCall::for_each("relu_gradient", values))
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        for ((of_x, y), gradient) in out.iter_mut().zip(inputs[0]).zip(inputs[1]) {
            *of_x = if *y > 0.0 { *gradient } else { 0.0 };
        }
    }
}
