//! Dropout on a GPU, which computes the mask itself.

use candle_core::{Result, Tensor};

use crate::model::neural::net::gpu::kernel::{BLOCK_WORDS, KernelCall};
use crate::model::neural::net::gpu::op::{DeviceOp, OnDevice, of_one};
use crate::model::neural::net::layers::dropout::Mask;

/// `x` times a random mask of the same shape.
///
/// # Why
/// The mask is the one that the host would draw, so that a network is trained with the same masks on every device, and
/// the devices can be compared. It is computed where it is used, in the forward pass and again in the backward pass: no
/// random number is copied to the GPU, and no mask is kept there.
pub(crate) fn dropout(x: &Tensor, mask: Mask) -> Result<Tensor> {
    x.contiguous()?.apply_op1(OnDevice(Dropout(mask)))
}

#[derive(Clone)]
struct Dropout(Mask);

impl DeviceOp<1> for Dropout {
    const NAME: &'static str = "dropout";

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        let (len, first_word) = (values as u64, self.0.first_word());
        let words = first_word % BLOCK_WORDS + len.div_ceil(2);
        let halves = [len, first_word].map(|n| [n as u32, (n >> 32) as u32]).concat();
        let numbers = [&self.0.key()[..], &halves, &[self.0.below()]].concat();
        let kernel = KernelCall::for_each("dropout", words.div_ceil(BLOCK_WORDS) as usize);
        Ok(KernelCall { numbers, factors: vec![self.0.scale()], ..kernel })
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let factors = self.0.factors(out.len());
        let each = out.iter_mut().zip(inputs[0]).zip(factors);
        each.for_each(|((out, x), factor)| *out = x * factor);
    }

    fn backward(
        &self,
        _: [&Tensor; 1],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        of_one(self.clone(), gradient).map(|of_x| [Some(of_x)])
    }
}
