//! Fully connected layers on a GPU.

use std::sync::Mutex;

use candle_core::{Result, Shape, Tensor};

use super::channels::channel_sums;
use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, OnDevice, expect_len, taken};

/// `x W + b`, for `x` `[row, in]`, `weight` `[in, out]` and `bias` `[out]`.
///
/// # Why
/// As one node of candle's graph, it adds the bias in one pass, and computes no gradient of training data.
pub(crate) fn affine(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let product = Mutex::new(Some(x.detach().matmul(&weight.detach())?));
    let columns = weight.dims2()?.1;
    expect_len("a bias", bias, columns)?;
    x.apply_op3(&weight, &bias.contiguous()?, OnDevice(DeviceAffine { columns, product }))
}

struct DeviceAffine {
    columns: usize,
    /// The output without the bias; the forward pass takes it, so that the graph does not keep it in memory.
    product: Mutex<Option<Tensor>>,
}

impl DeviceOp<3> for DeviceAffine {
    const NAME: &'static str = "affine map";

    fn shape(&self, [x, ..]: [&Shape; 3]) -> Shape {
        Shape::from((x.dims()[0], self.columns))
    }

    fn more_inputs(&self) -> Result<Vec<Tensor>> {
        taken(&self.product)
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        KernelCall::for_each("add_bias", values).with(&[self.columns, 1])
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let (bias, product) = (inputs[2], inputs[3]);
        let sums = product.iter().zip(bias.iter().cycle()).map(|(product, bias)| product + bias);
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
    }

    fn backward(
        &self,
        [x, weight, bias]: [&Tensor; 3],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let of_x = x.track_op().then(|| gradient.matmul(&weight.detach().t()?)).transpose()?;
        // A network that is not trained only passes the gradient on.
        let of_weight = weight.track_op().then(|| x.detach().t()?.matmul(gradient)).transpose()?;
        let of_bias = bias.track_op().then(|| channel_sums(gradient)).transpose()?;
        Ok([of_x, of_weight, of_bias])
    }
}
