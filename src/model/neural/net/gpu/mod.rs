//! Operations for any of candle's devices, each one node of candle's graph with a backward pass of its own.
//!
//! # Why
//! candle's graph computes the gradients of training data too, the gradient of a convolution by its input
//! with a kernel that reads every value once for each cell, and adds each gradient to zeros. A node that knows which
//! gradients are needed launches fewer and faster kernels. The operations are made of those that every device of
//! candle has, so that the CPU computes the same for tests; only dropout has a CUDA kernel of its own, `dropout.cu`.

pub(crate) mod augment;
pub(crate) mod conv;
pub(crate) mod dropout;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod pointwise;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp3, Layout, MetalStorage, Result, Shape, Storage,
    Tensor,
};

/// The storage of one of candle's devices.
pub(super) trait DeviceStorage:
    BackendStorage<Device: BackendDevice<Storage = Self>>
{
    /// The storage of a tensor, if it is on this kind of device.
    fn of(storage: &Storage) -> Option<&Self>;
}

impl DeviceStorage for CpuStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        if let Storage::Cpu(storage) = storage { Some(storage) } else { None }
    }
}

impl DeviceStorage for CudaStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        if let Storage::Cuda(storage) = storage { Some(storage) } else { None }
    }
}

impl DeviceStorage for MetalStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        if let Storage::Metal(storage) = storage { Some(storage) } else { None }
    }
}

/// An operation on `N` tensors of one device.
pub(super) trait DeviceOp<const N: usize>: Send + Sync + 'static {
    const NAME: &'static str;

    /// The output and its shape.
    fn forward<S: DeviceStorage>(&self, inputs: [(&S, &Layout); N]) -> Result<(S, Shape)>;

    /// The gradients of the inputs that need one, given the gradient of the output.
    fn backward(
        &self,
        inputs: [&Tensor; N],
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; N]>;
}

/// Reads the storage of a tensor that is on the device of the operation.
pub(super) fn read_on<S: DeviceStorage, R>(
    tensor: &Tensor,
    read: impl FnOnce(&S, &Layout) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match S::of(&storage) {
        Some(storage) => read(storage, layout),
        None => candle_core::bail!("two tensors of an operation are on different devices"),
    }
}

/// The layout of a contiguous tensor `[channel]` that repeats it along every axis but the second of `shape`.
pub(super) fn of_channels(layout: &Layout, shape: &Shape) -> Result<Layout> {
    let mut dims = vec![1; shape.rank()];
    dims[1] = layout.dims()[0];
    Layout::contiguous_with_offset(dims, layout.start_offset()).broadcast_as(shape.clone())
}

/// A [`DeviceOp`] as candle's trait wants it.
pub(super) struct OnDevice<T>(pub(super) T);

impl<T: DeviceOp<1>> CustomOp1 for OnDevice<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, of_x: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.forward([(x, of_x)])
    }

    fn cuda_fwd(&self, x: &CudaStorage, of_x: &Layout) -> Result<(CudaStorage, Shape)> {
        self.0.forward([(x, of_x)])
    }

    fn metal_fwd(&self, x: &MetalStorage, of_x: &Layout) -> Result<(MetalStorage, Shape)> {
        self.0.forward([(x, of_x)])
    }

    fn bwd(&self, x: &Tensor, out: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let [of_x] = self.0.backward([x], out, gradient)?;
        Ok(of_x)
    }
}

impl<T: DeviceOp<3>> CustomOp3 for OnDevice<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
        c: &CpuStorage,
        of_c: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.forward([(a, of_a), (b, of_b), (c, of_c)])
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        of_a: &Layout,
        b: &CudaStorage,
        of_b: &Layout,
        c: &CudaStorage,
        of_c: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.0.forward([(a, of_a), (b, of_b), (c, of_c)])
    }

    fn metal_fwd(
        &self,
        a: &MetalStorage,
        of_a: &Layout,
        b: &MetalStorage,
        of_b: &Layout,
        c: &MetalStorage,
        of_c: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.0.forward([(a, of_a), (b, of_b), (c, of_c)])
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [of_a, of_b, of_c] = self.0.backward([a, b, c], out, gradient)?;
        Ok((of_a, of_b, of_c))
    }
}
