//! The devices that networks compute on, and their errors.
//!
//! `auto` takes a GPU only where a step has at least [`MIN_MULTIPLY_ADDS`]. The multiply-adds of a step are those of the
//! matrix products and convolutions of one forward pass: the products of one row, times the rows of a batch.
//!
//! # Why
//! A step on a GPU launches 40 kernels or more, copies the input and the gradients to the GPU, and waits for the outputs to
//! be copied back, which takes 0.45 ms or more however small the batch is (`benches/gpu.md`). In this time a CPU finishes
//! the whole step of a small network: beside an H100 or H200, 16 cores took 0.4 to 0.8 times as long for a step of 1
//! million multiply-adds, and 2.3 to 4.1 times as long for one of 17 million. The bound is set above the break-even of one
//! step, because a GPU takes a second to start, and others are slower beside faster processors.
//!
//! # Precision
//! Matrix products of `f32` on a GPU use no TF32: candle's `set_gemm_reduced_precision_f32` stays off. Convolutions with
//! the feature `cudnn` use it on Ampere and newer GPUs, because candle leaves cuDNN's default math type and offers no
//! other. TF32 has a mantissa of ten bits, and outputs are off by up to a hundredth of their value;
//! `NVIDIA_TF32_OVERRIDE=0` in the environment rules it out (`benches/networks.md`).

use candle_core::{Device, DeviceLocation};

use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::model::fitted::on_cpu;

/// The least number of multiply-adds in a forward pass for which `auto` takes a GPU.
pub(crate) const MIN_MULTIPLY_ADDS: usize = 20_000_000;

/// A device as a spec names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where there is one and it pays, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this index.
    Cuda(usize),
}

impl DeviceChoice {
    /// The choice of this name: `auto`, `cpu`, `cuda` or `cuda:1`. It opens no GPU, so that a spec can be checked on a
    /// machine without one.
    ///
    /// # Errors
    /// When there is no such name, or this program was built without CUDA.
    pub fn parse(name: &str) -> Result<Self> {
        let ordinal = match name {
            "auto" => return Ok(Self::Auto),
            "cpu" => return Ok(Self::Cpu),
            "cuda" => Some(0),
            other => other.strip_prefix("cuda:").and_then(|n| n.parse().ok()),
        };
        let Some(ordinal) = ordinal else {
            return Err(Error::spec("there is no such device")
                .found(format!("`{name}`"))
                .help("choose \"auto\", \"cpu\" or \"cuda:0\""));
        };
        if !candle_core::utils::cuda_is_available() {
            return Err(Error::spec("this labelmill was built without CUDA")
                .found(format!("`{name}`"))
                .help("build it with `--features cuda`, or choose \"auto\" or \"cpu\""));
        }
        Ok(Self::Cuda(ordinal))
    }

    /// Opens the device. `multiply_adds` counts those of a step; only `auto` calls it, and only where there may be a
    /// GPU. `run` is warned where a GPU pays and cannot be used.
    ///
    /// # Errors
    /// When the GPU cannot be used, or `multiply_adds` fails.
    pub(crate) fn open(
        self,
        job: &JobContext,
        multiply_adds: impl FnOnce() -> Result<usize>,
    ) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if !candle_core::utils::cuda_is_available() => Ok(Device::Cpu),
            Self::Auto if !gpu_pays(multiply_adds()?) => Ok(Device::Cpu),
            Self::Auto => Ok(gpu_or_cpu(job)),
            Self::Cuda(ordinal) => gpu(ordinal).map_err(|e| {
                let first = first_line(&e);
                Error::fit(format!("the device cannot be used: {first}"))
                    .found(format!("`cuda:{ordinal}`"))
            }),
        }
    }
}

/// Whether a step with this many multiply-adds in its forward pass is faster on a GPU.
fn gpu_pays(multiply_adds: usize) -> bool {
    multiply_adds >= MIN_MULTIPLY_ADDS
}

/// Opens the GPU of this number.
pub(crate) fn gpu(ordinal: usize) -> candle_core::Result<Device> {
    #[cfg(feature = "cuda")]
    return super::net::gpu::cuda::open(ordinal);
    #[cfg(not(feature = "cuda"))]
    Device::new_cuda(ordinal)
}

fn gpu_or_cpu(job: &JobContext) -> Device {
    gpu(0).unwrap_or_else(|e| {
        let why = first_line(&e);
        job.warn_of_machine(format!("no GPU can be used, so the CPU computes: {why}"));
        Device::Cpu
    })
}

/// The name of a device, as [`DeviceChoice::parse`] takes it.
pub(crate) fn name_of(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        _ => on_cpu(),
    }
}

/// Turns an error of candle into one of labelmill.
pub(crate) fn from_candle<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|e| Error::fit(format!("the network cannot be computed: {}", first_line(&e))))
}

/// The first line of an error's message, since a backtrace may follow.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The default device.
pub(crate) fn auto() -> String {
    "auto".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default `mlp` on 64 rows of 128 features stays on the CPU; with 128 rows of 1024 features it does not, nor do
    /// LeNet on 128 images of 28 x 28 pixels and ResNet-20 on one of 32 x 32.
    #[test]
    fn a_gpu_pays_from_twenty_million_multiply_adds_on() {
        let cases = [
            (0, false),
            (64 * (128 * 512 + 512 * 8), false),
            (128 * (1024 * 512 + 512 * 8), true),
            (19_999_999, false),
            (20_000_000, true),
            (128 * 415_848, true),
            (40_550_528, true),
        ];
        for (multiply_adds, pays) in cases {
            assert_eq!(gpu_pays(multiply_adds), pays, "{multiply_adds}");
        }
    }

    #[test]
    fn a_name_is_parsed_without_a_gpu() {
        assert_eq!(DeviceChoice::parse("auto").unwrap(), DeviceChoice::Auto);
        assert_eq!(DeviceChoice::parse("cpu").unwrap(), DeviceChoice::Cpu);
        if cfg!(feature = "cuda") {
            // More GPUs than any machine has: only opening the device fails.
            let far = DeviceChoice::parse("cuda:999").unwrap();
            assert_eq!(far, DeviceChoice::Cuda(999));
            assert!(far.open(&JobContext::new(0), || Ok(0)).is_err());
        }
    }

    /// Only a program with CUDA, on a machine without a GPU, gets to the warning.
    #[test]
    fn a_gpu_that_cannot_be_used_is_a_warning_of_the_run() {
        let mut job = JobContext::new(0);
        if gpu_or_cpu(&job).is_cpu() {
            job.keep_warnings_of_machine();
            assert!(job.warnings()[0].starts_with("no GPU can be used"), "{:?}", job.warnings());
        }
    }

    /// A device that is named is opened without counting.
    #[test]
    fn a_named_device_needs_no_count() {
        let (job, counted) = (JobContext::new(0), || Err(Error::bug("counted")));
        assert!(matches!(DeviceChoice::Cpu.open(&job, counted), Ok(Device::Cpu)));
        if !cfg!(feature = "cuda") {
            assert!(matches!(DeviceChoice::Auto.open(&job, counted), Ok(Device::Cpu)));
        }
    }
}
