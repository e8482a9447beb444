//! ReLU and dropout on the host.
//!
//! # Why
//! candle's graph computes the gradient of a dropout mask too, and allocates a mask for a ReLU.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};

use crate::model::neural::net::host::{contiguous, read};

/// `max(x, 0)`; NaN is kept.
pub(crate) fn relu(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Relu)
}

/// `x` times a random mask.
pub(crate) fn dropout(x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op2(mask, Dropout)
}

struct Relu;

impl CustomOp1 for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous(x.as_slice()?, layout)?;
        let out: Vec<f32> = x.iter().map(|x| if *x < 0.0 { 0.0 } else { *x }).collect();
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, out: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let pass = |g: &f32, out: &f32| if *out > 0.0 { *g } else { 0.0 };
        zip_map(gradient, out, pass).map(Some)
    }
}

struct Dropout;

impl CustomOp2 for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        mask: &CpuStorage,
        of_mask: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, mask) =
            (contiguous(x.as_slice()?, layout)?, contiguous(mask.as_slice()?, of_mask)?);
        let out: Vec<f32> = x.iter().zip(mask).map(|(x, mask)| x * mask).collect();
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        mask: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(zip_map(gradient, mask, |g, mask| g * mask)?), None))
    }
}

/// Applies `f` to each pair of values of two tensors of the same shape.
fn zip_map(a: &Tensor, b: &Tensor, f: impl Fn(&f32, &f32) -> f32) -> Result<Tensor> {
    let values = read([&a.contiguous()?, b], |[a, b]| {
        a.iter().zip(b).map(|(a, b)| f(a, b)).collect::<Vec<f32>>()
    })?;
    Tensor::from_vec(values, a.dims(), a.device())
}
