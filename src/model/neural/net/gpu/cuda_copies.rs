//! The kernels that copy many tensors at once.

// The kernels are launched through cudarc's interface, which is unsafe.
#![allow(unsafe_code)]

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DeviceRepr, PushKernelArg};
use candle_core::{CudaStorage, DType, Device, Layout, Result, Storage, Tensor, Var};

use crate::model::neural::net::gpu::cuda::{Code, MAX_TENSORS, config};
use crate::model::neural::net::gpu::kernel::{Work, not_contiguous};

/// The values of flat tensors of `f32` on `device`, one after the other.
pub(super) fn gather(tensors: &[Tensor], device: &Device) -> Result<Tensor> {
    let count: usize = tensors.iter().map(Tensor::elem_count).sum();
    // SAFETY: the kernel writes every value.
    let all = unsafe { Tensor::empty(count, DType::F32, device)? };
    copy("gather", tensors.iter(), &all)?;
    Ok(all)
}

/// Sets variables of `f32` to values that follow each other.
pub(super) fn scatter(values: &Tensor, vars: &[Var]) -> Result<()> {
    copy("scatter", vars.iter().map(Var::as_tensor), values)
}

/// The argument `Tensors` of the kernels.
#[repr(C)]
struct Tensors {
    values: [u64; MAX_TENSORS],
    ends: [u64; MAX_TENSORS],
}

// All arguments of a kernel have at most 4 KB.
const _: () = assert!(size_of::<Tensors>() <= 4096 - 3 * size_of::<u64>());

// SAFETY: these are the fields of the kernels' structure, whose pointers have 64 bits.
unsafe impl DeviceRepr for Tensors {}

/// Launches a kernel for each [`MAX_TENSORS`] of the tensors, whose values follow each other in `all`.
fn copy<'a>(name: &str, tensors: impl Iterator<Item = &'a Tensor>, all: &Tensor) -> Result<()> {
    let tensors: Vec<&Tensor> = tensors.collect();
    let count: usize = tensors.iter().map(|tensor| tensor.elem_count()).sum();
    if count > all.elem_count() {
        candle_core::bail!("{} values for tensors of {count}", all.elem_count());
    }
    let mut first = 0;
    for tensors in tensors.chunks(MAX_TENSORS) {
        let storages: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
        let mut parts = Tensors { values: [0; MAX_TENSORS], ends: [0; MAX_TENSORS] };
        let mut count = 0;
        for (n, (storage, layout)) in storages.iter().enumerate() {
            count += layout.shape().elem_count();
            (parts.values[n], parts.ends[n]) = (address(cuda(storage)?, layout)?, count as u64);
        }
        if count == 0 {
            continue;
        }
        let all = all.narrow(0, first, count)?;
        let (storage, layout) = all.storage_and_layout();
        let storage = cuda(&storage)?;
        let (n_parts, address, n) = (tensors.len() as u32, address(storage, layout)?, count as u64);
        let stream = storage.device.cuda_stream();
        let function = Code::f32()?.function(name, &storage.device)?;
        let mut arguments = stream.launch_builder(&function);
        arguments.arg(&parts).arg(&n_parts).arg(&address).arg(&n);
        // SAFETY: the arguments are the parameters of both kernels, which access the `count` values of the tensors and of
        // `all`, and no others. Variables do not overlap `all` or each other, because each has memory of its own. All other
        // work on them is in the same stream.
        unsafe { arguments.launch(config(Work::Threads(count))?) }.w()?;
        first += count;
    }
    Ok(())
}

fn cuda(storage: &Storage) -> Result<&CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => candle_core::bail!("tensors that are copied together are on different devices"),
    }
}

/// The address of the first value of a contiguous tensor of `f32`.
fn address(storage: &CudaStorage, layout: &Layout) -> Result<u64> {
    let (from, to) = layout.contiguous_offsets().ok_or_else(not_contiguous)?;
    let stream = storage.device.cuda_stream();
    let view = storage.as_cuda_slice::<f32>()?.slice(from..to);
    let (address, _) = view.device_ptr(&stream);
    Ok(address)
}
