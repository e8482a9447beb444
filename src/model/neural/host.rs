//! Numbers of tensors that are on the host, read and changed where they lie.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Storage, Tensor};

/// Changes the numbers of a tensor; every tensor that shares them sees it.
pub(super) fn change(tensor: &Tensor, f: impl FnMut(&mut [f32])) -> Result<()> {
    tensor.inplace_op1(&Alone(RefCell::new(f)))
}

/// Changes the numbers of a tensor by those of another, of the same shape.
pub(super) fn change_by(
    tensor: &Tensor,
    other: &Tensor,
    f: impl FnMut(&mut [f32], &[f32]),
) -> Result<()> {
    tensor.inplace_op2(&other.contiguous()?, &Beside(RefCell::new(f)))
}

/// Reads the numbers of tensors that lie in one piece each.
pub(super) fn read<const N: usize, R>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> R,
) -> Result<R> {
    let held = tensors.map(Tensor::storage_and_layout);
    let mut numbers = [&[][..]; N];
    for (numbers, (storage, layout)) in numbers.iter_mut().zip(&held) {
        *numbers = in_line(reals(storage)?, layout)?;
    }
    Ok(f(numbers))
}

/// What layers compute with.
pub(super) fn reals(storage: &Storage) -> Result<&[f32]> {
    match storage {
        Storage::Cpu(CpuStorage::F32(values)) => Ok(values),
        _ => candle_core::bail!("the tensor is not of f32 on the host"),
    }
}

/// The numbers of a tensor that lies in one piece.
fn in_line<'a>(values: &'a [f32], layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => candle_core::bail!("the tensor lies in pieces"),
    }
}

fn in_line_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&mut values[start..end]),
        _ => candle_core::bail!("the tensor lies in pieces, or is not of f32"),
    }
}

struct Alone<F>(RefCell<F>);

impl<F: FnMut(&mut [f32])> InplaceOp1 for Alone<F> {
    fn name(&self) -> &'static str {
        "change"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        (self.0.borrow_mut())(in_line_mut(storage, layout)?);
        Ok(())
    }
}

struct Beside<F>(RefCell<F>);

impl<F: FnMut(&mut [f32], &[f32])> InplaceOp2 for Beside<F> {
    fn name(&self) -> &'static str {
        "change by"
    }

    fn cpu_fwd(
        &self,
        storage: &mut CpuStorage,
        layout: &Layout,
        other: &CpuStorage,
        of_other: &Layout,
    ) -> Result<()> {
        let (values, by) = (in_line_mut(storage, layout)?, in_line(other.as_slice()?, of_other)?);
        if values.len() != by.len() {
            candle_core::bail!("{} numbers beside {}", values.len(), by.len());
        }
        (self.0.borrow_mut())(values, by);
        Ok(())
    }
}
