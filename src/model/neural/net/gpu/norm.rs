//! Batch normalisation on a device, of tensors `[image, channel, pixel]`.
//!
//! # Why
//! candle's graph of the same formulas passes over all pixels thirty times in the backward pass; their derivative in
//! closed form needs a third of that.

use candle_core::{Layout, Result, Shape, Tensor, op};

use crate::model::neural::net::gpu::{DeviceOp, DeviceStorage, OnDevice, of_channels, read_on};

/// `(x - mean) * inverse`, where mean and inverse deviation, `[1, channel, 1]`, are functions of `x` if they are those of
/// the batch.
pub(crate) fn normalised(
    x: &Tensor,
    mean: Tensor,
    inverse: Tensor,
    is_of_batch: bool,
) -> Result<Tensor> {
    x.apply_op1(OnDevice(Normalise { mean, inverse, is_of_batch }))
}

/// `x * scale + shift`, where both are `[channel]`.
pub(crate) fn scaled_and_shifted(x: &Tensor, scale: &Tensor, shift: &Tensor) -> Result<Tensor> {
    x.apply_op3(scale, shift, OnDevice(ScaleAndShift))
}

/// The mean of each channel, `[1, channel, 1]`.
pub(crate) fn means(x: &Tensor) -> Result<Tensor> {
    let (images, _, pixels) = x.dims3()?;
    sums(x)? / (images * pixels) as f64
}

/// The sum of each channel, `[1, channel, 1]`: first along the pixels, which are contiguous.
pub(super) fn sums(x: &Tensor) -> Result<Tensor> {
    let of_image = if x.dims()[2] == 1 { x.clone() } else { x.sum_keepdim(2)? };
    of_image.sum_keepdim(0)
}

struct Normalise {
    mean: Tensor,
    inverse: Tensor,
    is_of_batch: bool,
}

impl DeviceOp<1> for Normalise {
    const NAME: &'static str = "batch norm";

    fn forward<S: DeviceStorage>(&self, [(x, of_x)]: [(&S, &Layout); 1]) -> Result<(S, Shape)> {
        let shape = of_x.shape();
        let all = Layout::contiguous(shape);
        let centred = read_on(&self.mean, |mean: &S, layout| {
            x.binary_impl::<op::Sub>(mean, of_x, &layout.broadcast_as(shape.clone())?)
        })?;
        let out = read_on(&self.inverse, |inverse: &S, layout| {
            centred.binary_impl::<op::Mul>(inverse, &all, &layout.broadcast_as(shape.clone())?)
        })?;
        Ok((out, shape.clone()))
    }

    /// With the statistics of the batch the gradient loses its mean and its part along the output.
    fn backward(
        &self,
        _: [&Tensor; 1],
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        if !self.is_of_batch {
            return Ok([Some(gradient.broadcast_mul(&self.inverse)?)]);
        }
        let out = out.detach();
        let along = out.broadcast_mul(&means(&(gradient * &out)?)?)?;
        let centred = (gradient.broadcast_sub(&means(gradient)?)? - along)?;
        Ok([Some(centred.broadcast_mul(&self.inverse)?)])
    }
}

struct ScaleAndShift;

impl DeviceOp<3> for ScaleAndShift {
    const NAME: &'static str = "scale and shift";

    fn forward<S: DeviceStorage>(
        &self,
        [(x, of_x), (scale, of_scale), (shift, of_shift)]: [(&S, &Layout); 3],
    ) -> Result<(S, Shape)> {
        let shape = of_x.shape();
        let scaled = x.binary_impl::<op::Mul>(scale, of_x, &of_channels(of_scale, shape)?)?;
        let all = Layout::contiguous(shape);
        let out = scaled.binary_impl::<op::Add>(shift, &all, &of_channels(of_shift, shape)?)?;
        Ok((out, shape.clone()))
    }

    fn backward(
        &self,
        [x, scale, shift]: [&Tensor; 3],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let of_x = gradient.broadcast_mul(&scale.detach().reshape((1, (), 1))?)?;
        let of_scale = sums(&(gradient * x.detach())?)?.reshape(scale.dims())?;
        let of_shift = sums(gradient)?.reshape(shift.dims())?;
        Ok([Some(of_x), Some(of_scale), Some(of_shift)])
    }
}
