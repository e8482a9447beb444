//! Dropout on a device, which computes the mask itself.

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::model::neural::net::dropout::Mask;

/// `x` times a random mask of the same shape.
///
/// # Why
/// The mask is the one that the host would draw, so that a network is trained with the same masks on every device, and
/// the devices can be compared. It is computed where it is used, in the forward pass and again in the backward pass: no
/// random number is copied to the GPU, and no mask is kept there.
pub(crate) fn dropout(x: &Tensor, mask: Mask) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Dropout(mask))
}

struct Dropout(Mask);

impl CustomOp1 for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("dropout reads contiguous tensors")
        };
        let x = &x.as_slice::<f32>()?[from..to];
        let out = x.iter().zip(self.0.factors(x.len())).map(|(x, factor)| x * factor).collect();
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((cuda::dropout(&self.0, x, layout)?, layout.shape().clone()))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        Err(candle_core::Error::NotCompiledWithCudaSupport)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient.contiguous()?.apply_op1_no_bwd(self).map(Some)
    }
}

// The kernel is launched through candle, whose interface for kernels is unsafe.
#[allow(unsafe_code)]
#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::OnceLock;

    use candle_core::cuda_backend::cudarc::driver::{
        CudaSlice, DeviceRepr, LaunchConfig, PushKernelArg,
    };
    use candle_core::cuda_backend::cudarc::nvrtc::compile_ptx;
    use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
    use candle_core::{CudaDevice, CudaStorage, Layout, Result};

    use crate::model::neural::net::dropout::Mask;

    const SOURCE: &str = include_str!("dropout.cu");
    /// The threads of a group, each of which computes a block of 16 words: the constants of the kernel.
    const THREADS: u32 = 128;
    const BLOCK_WORDS: u64 = 16;

    pub(super) fn dropout(mask: &Mask, x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        let device = &x.device;
        let slice = match &x.slice {
            CudaStorageSlice::F32(x) => {
                CudaStorageSlice::F32(launch("dropout_f32", mask, x, layout, device)?)
            }
            CudaStorageSlice::BF16(x) => {
                CudaStorageSlice::BF16(launch("dropout_bf16", mask, x, layout, device)?)
            }
            _ => candle_core::bail!("dropout is for f32 and bf16"),
        };
        Ok(CudaStorage { slice, device: device.clone() })
    }

    fn launch<T: DeviceRepr>(
        kernel: &str,
        mask: &Mask,
        x: &CudaSlice<T>,
        layout: &Layout,
        device: &CudaDevice,
    ) -> Result<CudaSlice<T>> {
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("dropout reads contiguous tensors")
        };
        let x = x.slice(from..to);
        let (len, first_word) = ((to - from) as u64, mask.first_word());
        let words = first_word % BLOCK_WORDS + len.div_ceil(2);
        let groups = words.div_ceil(BLOCK_WORDS * u64::from(THREADS));
        // SAFETY: the kernel writes every value.
        let out = unsafe { device.alloc::<T>(to - from)? };
        let kernel = device.get_or_load_custom_func(kernel, "labelmill_dropout", compiled()?)?;
        let (key, below, scale) = (mask.key(), mask.below(), mask.scale());
        let mut arguments = kernel.builder();
        arguments.arg(&len).arg(&x).arg(&out).arg(&key).arg(&first_word).arg(&below).arg(&scale);
        let config = LaunchConfig {
            grid_dim: (groups as u32, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are those of the kernel, in their order and sizes; it writes the `len` values of `out`.
        unsafe { arguments.launch(config) }.w()?;
        Ok(out)
    }

    /// The kernels for the driver, compiled once.
    fn compiled() -> Result<&'static str> {
        static PTX: OnceLock<String> = OnceLock::new();
        if let Some(ptx) = PTX.get() {
            return Ok(ptx);
        }
        let ptx = compile_ptx(SOURCE).w()?.to_src();
        Ok(PTX.get_or_init(|| ptx))
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::testing::{counted, device_of, numbers};
    use crate::run::Run;

    /// The kernel for `bf16` rounds the products of the mask to the nearest number, as the host does. The second mask
    /// begins inside a block of the stream.
    #[test]
    fn a_mask_of_bf16_is_that_of_f32() {
        let device = device_of(Backend::Candle(DType::BF16));
        if device.is_cpu() {
            eprintln!("skipped: there is no GPU");
            return;
        }
        let rng = &mut Run::new(1).rng("dropout");
        for dims in [[7, 33], [129, 65]] {
            let mask = Mask::draw(rng, dims[0] * dims[1], 0.3);
            let x = counted(&dims, 5).to_dtype(DType::BF16).unwrap();
            let exact = dropout(&x.to_dtype(DType::F32).unwrap(), mask.clone()).unwrap();
            let got = dropout(&x.to_device(&device).unwrap(), mask).unwrap();
            let [got, want] = [got, exact.to_dtype(DType::BF16).unwrap()]
                .map(|x| numbers(&x.to_dtype(DType::F32).unwrap()));
            assert_eq!(got, want, "{dims:?}");
        }
    }
}
