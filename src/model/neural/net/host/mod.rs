//! The operations of layers on the host, and access to the values of tensors without copies.

pub(crate) mod conv;
pub(crate) mod format;
pub(crate) mod max_pool;
pub(crate) mod norm;
mod outer_product;
pub(crate) mod pointwise;
pub(crate) mod pooled_convolution;
pub(crate) mod product;
mod row_product;
pub(crate) mod tiles;

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Storage, Tensor};

/// The number of values that a thread computes at a time where each depends on a few others.
const PART: usize = 1 << 14;

/// Changes the values of a tensor in place, given the values of another tensor of the same shape; tensors that share
/// its storage change too.
pub(crate) fn zip_in_place(
    tensor: &Tensor,
    other: &Tensor,
    f: impl FnMut(&mut [f32], &[f32]),
) -> Result<()> {
    tensor.inplace_op2(&other.contiguous()?, &InPlaceWith(RefCell::new(f)))
}

/// Reads the values of contiguous tensors.
pub(crate) fn read<const N: usize, R>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> R,
) -> Result<R> {
    let held = tensors.map(Tensor::storage_and_layout);
    let mut numbers = [&[][..]; N];
    for (numbers, (storage, layout)) in numbers.iter_mut().zip(&held) {
        *numbers = contiguous(f32s(storage)?, layout)?;
    }
    Ok(f(numbers))
}

/// The f32 values of a tensor on the host.
pub(crate) fn f32s(storage: &Storage) -> Result<&[f32]> {
    match storage {
        Storage::Cpu(CpuStorage::F32(values)) => Ok(values),
        _ => candle_core::bail!("the tensor is not of f32 on the host"),
    }
}

/// The values of a contiguous tensor.
pub(crate) fn contiguous<'a>(values: &'a [f32], layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => candle_core::bail!("the tensor is not contiguous"),
    }
}

fn contiguous_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&mut values[start..end]),
        _ => candle_core::bail!("the tensor is not contiguous, or not of f32"),
    }
}

struct InPlaceWith<F>(RefCell<F>);

impl<F: FnMut(&mut [f32], &[f32])> InplaceOp2 for InPlaceWith<F> {
    fn name(&self) -> &'static str {
        "zip in place"
    }

    fn cpu_fwd(
        &self,
        storage: &mut CpuStorage,
        layout: &Layout,
        other: &CpuStorage,
        of_other: &Layout,
    ) -> Result<()> {
        let (values, by) =
            (contiguous_mut(storage, layout)?, contiguous(other.as_slice()?, of_other)?);
        if values.len() != by.len() {
            candle_core::bail!("{} numbers beside {}", values.len(), by.len());
        }
        (self.0.borrow_mut())(values, by);
        Ok(())
    }
}
