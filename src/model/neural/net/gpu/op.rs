//! Nodes of candle's graph that a kernel computes on a GPU, and plain loops on the CPU.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage as _;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, InplaceOp2, Layout, Result,
    Shape, Tensor, Var,
};

use crate::model::neural::net::gpu::kernel::{KernelCall, not_contiguous};

/// An operation on `N` contiguous tensors of one data type.
///
/// The loops on the CPU are for tests: a network on the host has operations of its own, and shares only the loss. They are
/// the reference for the kernel, and where there is no GPU the tests of a layer compare them with those operations.
pub(super) trait DeviceOp<const N: usize>: Sized + Send + Sync + 'static {
    const NAME: &'static str;

    /// The shape of the output: by default, that of the first input.
    fn shape(&self, inputs: [&Shape; N]) -> Shape {
        inputs[0].clone()
    }

    /// Tensors without a gradient that the operation reads behind its inputs.
    ///
    /// # Errors
    /// When another forward pass has taken them.
    fn more_inputs(&self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    /// The kernel, given the number of values in the output.
    ///
    /// # Errors
    /// When a size has more than 32 bits.
    fn kernel(&self, values: usize) -> Result<KernelCall>;

    /// Computes the output as the kernel does.
    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]);

    /// The gradients of the inputs that need one, given the gradient of the output.
    ///
    /// # Errors
    /// When the device fails, or the operation has no gradient.
    fn backward(&self, _: [&Tensor; N], _: &Tensor, _: &Tensor) -> Result<[Option<Tensor>; N]> {
        candle_core::bail!("{} has no gradient", Self::NAME)
    }
}

/// A [`DeviceOp`] as candle's traits want it.
pub(super) struct OnDevice<T>(pub(super) T);

/// The output for an input that has no gradient.
pub(super) fn of_one<T: DeviceOp<1>>(op: T, x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&OnDevice(op))
}

/// The output for two inputs that have no gradient.
pub(super) fn of_two<T: DeviceOp<2>>(op: T, [a, b]: [&Tensor; 2]) -> Result<Tensor> {
    a.contiguous()?.apply_op2_no_bwd(&b.contiguous()?, &OnDevice(op))
}

/// Sets a variable to the output for its values and `b`, which has the same shape, without a copy.
pub(super) fn set_to<T: DeviceOp<2>>(op: T, var: &Var, b: &Tensor) -> Result<()> {
    var.inplace_op2(&b.contiguous()?, &OnDevice(op))
}

/// The output for three inputs that have no gradient.
pub(super) fn of_three<T: DeviceOp<3>>(op: T, [a, b, c]: [&Tensor; 3]) -> Result<Tensor> {
    a.contiguous()?.apply_op3_no_bwd(&b.contiguous()?, &c.contiguous()?, &OnDevice(op))
}

impl<T> OnDevice<T> {
    fn cpu<const N: usize>(
        &self,
        inputs: [(&CpuStorage, &Layout); N],
    ) -> Result<(CpuStorage, Shape)>
    where
        T: DeviceOp<N>,
    {
        let more = self.0.more_inputs()?;
        let more: Vec<Vec<f32>> = more
            .iter()
            .map(|x| x.flatten_all()?.to_dtype(DType::F32)?.to_vec1())
            .collect::<Result<_>>()?;
        // Numbers of 16 bits, as the tests have them, are computed in 32, as by the kernels.
        let dtype = inputs[0].0.dtype();
        let is_widened = dtype != DType::F32;
        let widen = |(x, layout): &(&CpuStorage, &Layout)| x.to_dtype(layout, DType::F32);
        let to_widen = inputs.iter().filter(|_| is_widened);
        let widened: Vec<CpuStorage> = to_widen.map(widen).collect::<Result<_>>()?;
        let slices = inputs.iter().enumerate().map(|(n, (x, layout))| {
            if is_widened {
                return widened[n].as_slice::<f32>();
            }
            let (from, to) = layout.contiguous_offsets().ok_or_else(not_contiguous)?;
            Ok(&x.as_slice::<f32>()?[from..to])
        });
        let mut slices = slices.collect::<Result<Vec<_>>>()?;
        slices.extend(more.iter().map(Vec::as_slice));
        let shape = self.0.shape(inputs.map(|(_, layout)| layout.shape()));
        let mut out = vec![0.0; shape.elem_count()];
        // Only in builds with assertions, as for tests: the loss is on the path of training on the host.
        if cfg!(debug_assertions) {
            self.0.kernel(out.len())?.check(slices.len())?;
        }
        self.0.on_host(&slices, &mut out);
        let out = CpuStorage::F32(out);
        let out = if is_widened { out.to_dtype(&Layout::contiguous(&shape), dtype)? } else { out };
        Ok((out, shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda<const N: usize>(
        &self,
        inputs: [(&CudaStorage, &Layout); N],
    ) -> Result<(CudaStorage, Shape)>
    where
        T: DeviceOp<N>,
    {
        let shape = self.0.shape(inputs.map(|(_, layout)| layout.shape()));
        let kernel = self.0.kernel(shape.elem_count())?;
        let out =
            super::cuda::launch(&kernel, &inputs, &self.0.more_inputs()?, shape.elem_count())?;
        Ok((out, shape))
    }

    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self)]
    fn cuda<const N: usize>(
        &self,
        _: [(&CudaStorage, &Layout); N],
    ) -> Result<(CudaStorage, Shape)> {
        Err(candle_core::Error::NotCompiledWithCudaSupport)
    }
}

/// Checks that a tensor has `len` values, as the kernels do not.
///
/// # Errors
/// When it has another number of them.
pub(super) fn expect_len(what: &str, tensor: &Tensor, len: usize) -> Result<()> {
    if tensor.elem_count() != len {
        candle_core::bail!("{what} of {} values for {len}", tensor.elem_count());
    }
    Ok(())
}

/// Checks that an output fits into the place of an input.
fn expect_shape(of_input: &Layout, of_output: &Shape) -> Result<()> {
    if of_input.shape() != of_output {
        candle_core::bail!("values of shape {of_output:?} for {:?}", of_input.shape());
    }
    Ok(())
}

/// Takes the one more input of an operation whose graph is not to keep it in memory.
pub(super) fn taken(input: &Mutex<Option<Tensor>>) -> Result<Vec<Tensor>> {
    match input.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(input) => Ok(vec![input]),
        None => candle_core::bail!("an operation goes forward twice"),
    }
}

impl<T: DeviceOp<1>> CustomOp1 for OnDevice<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, of_x: &Layout) -> Result<(CpuStorage, Shape)> {
        self.cpu([(x, of_x)])
    }

    fn cuda_fwd(&self, x: &CudaStorage, of_x: &Layout) -> Result<(CudaStorage, Shape)> {
        self.cuda([(x, of_x)])
    }

    fn bwd(&self, x: &Tensor, out: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let [of_x] = self.0.backward([x], out, &gradient.contiguous()?)?;
        Ok(of_x)
    }
}

/// An operation on two inputs is used without a gradient.
impl<T: DeviceOp<2>> CustomOp2 for OnDevice<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu([(a, of_a), (b, of_b)])
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        of_a: &Layout,
        b: &CudaStorage,
        of_b: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda([(a, of_a), (b, of_b)])
    }
}

/// The output takes the place of the first input, which is a variable, and so has the memory for itself.
impl<T: DeviceOp<2>> InplaceOp2 for OnDevice<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn cpu_fwd(
        &self,
        a: &mut CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<()> {
        let (values, shape) = self.cpu([(&*a, of_a), (b, of_b)])?;
        expect_shape(of_a, &shape)?;
        *a = values;
        Ok(())
    }

    fn cuda_fwd(
        &self,
        a: &mut CudaStorage,
        of_a: &Layout,
        b: &CudaStorage,
        of_b: &Layout,
    ) -> Result<()> {
        let (values, shape) = self.cuda([(&*a, of_a), (b, of_b)])?;
        expect_shape(of_a, &shape)?;
        *a = values;
        Ok(())
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
        self.cpu([(a, of_a), (b, of_b), (c, of_c)])
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
        self.cuda([(a, of_a), (b, of_b), (c, of_c)])
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [of_a, of_b, of_c] = self.0.backward([a, b, c], out, &gradient.contiguous()?)?;
        Ok((of_a, of_b, of_c))
    }
}
