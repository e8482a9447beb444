//! Launches the kernels of `kernels/`, and opens a GPU for them.

// The kernels are launched through candle's and cudarc's interfaces, which are unsafe.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg, result, sys,
};
use candle_core::cuda_backend::cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Device, Error, Layout, Result, Storage, Tensor};

use crate::model::neural::net::gpu::kernel::{
    BLOCK_WORDS, KernelCall, ROWS, SOURCE, Work, not_contiguous,
};

/// The threads of a group in which each has a value of its own.
const THREADS: usize = 256;

/// The largest number of tensors that one launch copies.
pub(super) const MAX_TENSORS: usize = 128;

/// The threads of a group that computes a sum: the bound of the kernels in `norm.cu`.
const THREADS_OF_A_SUM: usize = 1024;

/// The GPU of this number, which is opened once.
///
/// # Why
/// By default, CUDA returns freed memory to the driver whenever the host waits for the GPU, which is every step, and
/// allocates it again in the next one. candle also creates two events for each tensor, by which several streams would
/// wait for each other; and its default stream is another one for every thread of the host. Here there is one stream.
///
/// # Errors
/// When the GPU cannot be used.
pub(crate) fn open(ordinal: usize) -> Result<Device> {
    static OPENED: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&ordinal) {
        return Ok(device.clone());
    }
    let device = Device::new_cuda_with_stream(ordinal)?;
    if let Device::Cuda(cuda) = &device {
        // SAFETY: all work of all threads is in the one stream of the one device.
        unsafe { cuda.disable_event_tracking() };
        // A GPU without memory pools returns nothing that could be kept.
        let _ = keep_freed_memory(cuda);
    }
    opened.insert(ordinal, device.clone());
    Ok(device)
}

/// Keeps freed memory for the next allocation, until the process ends.
fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    let mut bytes = u64::MAX;
    // SAFETY: the device exists, and the attribute is a number of 64 bits.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device()).w()?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut bytes).cast()).w()
    }
}

/// The output of a kernel, of so many values in the data type of the first input.
pub(super) fn launch(
    kernel: &KernelCall,
    inputs: &[(&CudaStorage, &Layout)],
    more: &[Tensor],
    values: usize,
) -> Result<CudaStorage> {
    let more: Vec<_> = more.iter().map(Tensor::storage_and_layout).collect();
    let mut all = inputs.to_vec();
    for (storage, layout) in &more {
        match &**storage {
            Storage::Cuda(storage) => all.push((storage, layout)),
            _ => candle_core::bail!("two tensors of an operation are on different devices"),
        }
    }
    let Some((CudaStorage { slice, device }, _)) = inputs.first() else {
        candle_core::bail!("an operation without inputs")
    };
    let slice = match slice {
        CudaStorageSlice::F32(_) => {
            let code = Code::f32()?;
            CudaStorageSlice::F32(run(kernel, code, &all, values, device, |slice| match slice {
                CudaStorageSlice::F32(slice) => Some(slice),
                _ => None,
            })?)
        }
        CudaStorageSlice::BF16(_) => {
            let code = Code::bf16()?;
            CudaStorageSlice::BF16(run(kernel, code, &all, values, device, |slice| match slice {
                CudaStorageSlice::BF16(slice) => Some(slice),
                _ => None,
            })?)
        }
        _ => candle_core::bail!("operations on a GPU are for f32 and bf16"),
    };
    Ok(CudaStorage { slice, device: device.clone() })
}

/// The kernels for one data type.
#[derive(Clone, Copy)]
pub(super) struct Code {
    module: &'static str,
    ptx: &'static str,
}

impl Code {
    pub(super) fn f32() -> Result<Self> {
        static PTX: OnceLock<String> = OnceLock::new();
        Ok(Self { module: "labelmill_f32", ptx: compiled(&PTX, &[])? })
    }

    fn bf16() -> Result<Self> {
        static PTX: OnceLock<String> = OnceLock::new();
        Ok(Self { module: "labelmill_bf16", ptx: compiled(&PTX, &["-DBF16"])? })
    }

    /// The kernel of this name.
    pub(super) fn function(self, name: &str, device: &CudaDevice) -> Result<CudaFunction> {
        Ok(device.get_or_load_custom_func(name, self.module, self.ptx)?.into_cuda_function())
    }
}

/// The kernels for the driver, compiled once, with these options and the constants that Rust and CUDA share.
fn compiled(ptx: &'static OnceLock<String>, options: &[&str]) -> Result<&'static str> {
    if let Some(ptx) = ptx.get() {
        return Ok(ptx);
    }
    let constants = [
        ("THREADS", THREADS as u64),
        ("ROWS", ROWS as u64),
        ("BLOCK_WORDS", BLOCK_WORDS),
        ("MAX_TENSORS", MAX_TENSORS as u64),
    ];
    let defined = constants.iter().map(|(name, value)| format!("-D{name}={value}"));
    let options = options.iter().map(|option| (*option).to_owned()).chain(defined).collect();
    let options = CompileOptions { options, ..CompileOptions::default() };
    let new = compile_ptx_with_opts(SOURCE, options).w()?.to_src();
    Ok(ptx.get_or_init(|| new))
}

/// The slice of a storage, where it has the type `T`.
type SliceOf<T> = fn(&CudaStorageSlice) -> Option<&CudaSlice<T>>;

/// The values of a contiguous input.
fn view<'a, T>(
    storage: &'a CudaStorage,
    layout: &Layout,
    slice_of: SliceOf<T>,
) -> Result<CudaView<'a, T>> {
    let (from, to) = layout.contiguous_offsets().ok_or_else(not_contiguous)?;
    match slice_of(&storage.slice) {
        Some(slice) => Ok(slice.slice(from..to)),
        None => candle_core::bail!("the inputs of an operation have different data types"),
    }
}

/// The groups of threads of a launch.
pub(super) fn config(work: Work) -> Result<LaunchConfig> {
    let (groups, threads) = match work {
        Work::Threads(work) => (work.div_ceil(THREADS), THREADS),
        Work::Groups(groups) => (groups, THREADS_OF_A_SUM),
    };
    Ok(LaunchConfig {
        grid_dim: (u32::try_from(groups).map_err(Error::wrap)?, 1, 1),
        block_dim: (threads as u32, 1, 1),
        shared_mem_bytes: 0,
    })
}

/// Launches a kernel on inputs of one type, and returns its output of so many values.
fn run<T: DeviceRepr>(
    kernel: &KernelCall,
    code: Code,
    inputs: &[(&CudaStorage, &Layout)],
    values: usize,
    device: &CudaDevice,
    slice_of: SliceOf<T>,
) -> Result<CudaSlice<T>> {
    let views = inputs.iter().map(|(storage, layout)| view(storage, layout, slice_of));
    let views = views.collect::<Result<Vec<_>>>()?;
    let (Work::Threads(work) | Work::Groups(work)) = kernel.work;
    // SAFETY: the kernel writes every value.
    let out = unsafe { device.alloc::<T>(values)? };
    if work == 0 {
        return Ok(out);
    }
    debug_assert!(kernel.check(inputs.len()).is_ok(), "{}", kernel.name);
    let config = config(kernel.work)?;
    let work = work as u64;
    let (stream, function) = (device.cuda_stream(), code.function(kernel.name, device)?);
    let mut arguments = stream.launch_builder(&function);
    for view in &views {
        arguments.arg(view);
    }
    arguments.arg(&out).arg(&work);
    for number in &kernel.numbers {
        arguments.arg(number);
    }
    for factor in &kernel.factors {
        arguments.arg(factor);
    }
    // SAFETY: the arguments are the parameters of the kernel, by `KernelCall::check`, which the tests
    // on the CPU run for every operation. It writes the `values` of `out` and no other.
    unsafe { arguments.launch(config) }.w()?;
    Ok(out)
}
