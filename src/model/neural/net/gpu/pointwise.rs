//! ReLU on a device.

use candle_core::backend::BackendDevice;
use candle_core::op::CmpOp;
use candle_core::{Layout, Result, Shape, Tensor};

use crate::model::neural::net::gpu::{DeviceOp, DeviceStorage, OnDevice};

/// `max(x, 0)`; NaN is kept.
///
/// # Why
/// On a GPU candle's ReLU is 0 for NaN, and so hides that the training has diverged.
pub(crate) fn relu(x: &Tensor) -> Result<Tensor> {
    x.apply_op1(OnDevice(Relu))
}

struct Relu;

impl DeviceOp<1> for Relu {
    const NAME: &'static str = "relu";

    fn forward<S: DeviceStorage>(&self, [(x, of_x)]: [(&S, &Layout); 1]) -> Result<(S, Shape)> {
        let zero = x.device().zeros_impl(&Shape::from(()), x.dtype())?;
        let of_zero = Layout::contiguous(()).broadcast_as(of_x.shape())?;
        let is_negative = x.cmp(CmpOp::Lt, &zero, of_x, &of_zero)?;
        let of_mask = Layout::contiguous(of_x.shape());
        let out = is_negative.where_cond(&of_mask, &zero, &of_zero, x, of_x)?;
        Ok((out, of_x.shape().clone()))
    }

    fn backward(
        &self,
        _: [&Tensor; 1],
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        let zeros = Tensor::zeros((), out.dtype(), out.device())?.broadcast_as(out.shape())?;
        Ok([Some(out.detach().gt(&zeros)?.where_cond(gradient, &zeros)?)])
    }
}
